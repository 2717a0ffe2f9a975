//! Settings of the migration: all options of Calico's own migration controller, merged from the spec, detected values and
//! defaults.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use engine::sourced::Sourced;

/// `Options` overrides detected settings of a migration from flannel to Calico.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Options {
    /// `flannelNetwork` is the IPv4 network of flannel, in CIDR notation (`FLANNEL_NETWORK`). Defaults to the value in
    /// `net-conf.json`, or else in `subnet.env` of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub flannel_network: Option<Ipv4Net>,
    /// `flannelDaemonSetName` is the name of flannel's DaemonSet (`FLANNEL_DAEMONSET_NAME`). The DaemonSet must exist. Defaults
    /// to `kube-flannel-ds-amd64` if namespace `kube-system` has this DaemonSet, or else to the only DaemonSet that runs flannel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flannel_daemon_set_name: Option<String>,
    /// `flannelDaemonSetNamespace` is the namespace of flannel's DaemonSet (`FLANNEL_DAEMONSET_NAMESPACE`). Defaults to
    /// `kube-system` if this namespace has the DaemonSet, or else to the namespace of the only DaemonSet that fits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flannel_daemon_set_namespace: Option<String>,
    /// `flannelMtu` is the MTU of flannel's VXLAN link, in bytes (`FLANNEL_MTU`). Defaults to the value in `subnet.env` of the
    /// nodes, or else in `net-conf.json`. Minimum 576, maximum 65535.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 576, max = 65535))]
    pub flannel_mtu: Option<u32>,
    /// `flannelIpMasquerade` is whether outbound traffic of pods is masqueraded (`FLANNEL_IP_MASQ`). Defaults to the value in
    /// `subnet.env` of the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flannel_ip_masquerade: Option<bool>,
    /// `flannelSubnetLength` is the prefix length of the IPv4 subnet of a node (`FLANNEL_SUBNET_LEN`). Defaults to that of the
    /// podCIDR of the Nodes, or else 24. Minimum 8, maximum 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 8, max = 30))]
    pub flannel_subnet_length: Option<u8>,
    /// `flannelAnnotationPrefix` is the prefix of flannel's annotations on Nodes (`FLANNEL_ANNOTATION_PREFIX`). Defaults to the
    /// argument `--kube-annotation-prefix` of flanneld, or else `flannel.alpha.coreos.com`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flannel_annotation_prefix: Option<String>,
    /// `flannelVni` is the VXLAN network identifier (`FLANNEL_VNI`). Defaults to the value in `net-conf.json`, or else 1. Minimum
    /// 1, maximum 16777215.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_215))]
    pub flannel_vni: Option<u32>,
    /// `flannelPort` is the UDP port of VXLAN (`FLANNEL_PORT`). Defaults to the value in `net-conf.json`, or else 8472. Minimum
    /// 1, maximum 65535.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub flannel_port: Option<u16>,
    /// `calicoDaemonSetName` is the name of the DaemonSet of calico-node (`CALICO_DAEMONSET_NAME`). Defaults to `calico-node`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calico_daemon_set_name: Option<String>,
    /// `calicoDaemonSetNamespace` is the namespace of the DaemonSet of calico-node (`CALICO_DAEMONSET_NAMESPACE`). Defaults to
    /// `kube-system`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calico_daemon_set_namespace: Option<String>,
    /// `ipPoolBlockSize` is the prefix length of the IPAM blocks of the new IPv4 IPPool (`DEFAULT_IPPOOL_SIZE`). Defaults to 26.
    /// Minimum 20, maximum 32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 20, max = 32))]
    pub ip_pool_block_size: Option<u8>,
    /// `cniConfigurationDirectory` is the CNI configuration directory on all hosts (`CNI_CONFIG_DIR`). Defaults to
    /// `/etc/cni/net.d`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cni_configuration_directory: Option<String>,
}

/// `Settings` are the settings of a migration from flannel to Calico, each with its source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// `flannelNetwork` is the IPv4 network of flannel, in CIDR notation, and the range of the new IPPool.
    #[schemars(with = "Sourced<String>")]
    pub flannel_network: Sourced<Ipv4Net>,
    /// `flannelDaemonSetName` is the name of flannel's DaemonSet.
    pub flannel_daemon_set_name: Sourced<String>,
    /// `flannelDaemonSetNamespace` is the namespace of flannel's DaemonSet.
    pub flannel_daemon_set_namespace: Sourced<String>,
    /// `flannelMtu` is the MTU of the IPv4 VXLAN link, in bytes.
    pub flannel_mtu: Sourced<u32>,
    /// `flannelIpMasquerade` is whether outbound traffic of pods is masqueraded.
    pub flannel_ip_masquerade: Sourced<bool>,
    /// `flannelSubnetLength` is the prefix length of the IPv4 subnet of a node.
    pub flannel_subnet_length: Sourced<u8>,
    /// `flannelAnnotationPrefix` is the prefix of flannel's annotations on Nodes.
    pub flannel_annotation_prefix: Sourced<String>,
    /// `flannelVni` is the VXLAN network identifier.
    pub flannel_vni: Sourced<u32>,
    /// `flannelPort` is the UDP port of VXLAN.
    pub flannel_port: Sourced<u16>,
    /// `calicoDaemonSetName` is the name of the DaemonSet of calico-node.
    pub calico_daemon_set_name: Sourced<String>,
    /// `calicoDaemonSetNamespace` is the namespace of the DaemonSet of calico-node.
    pub calico_daemon_set_namespace: Sourced<String>,
    /// `ipPoolBlockSize` is the prefix length of the IPAM blocks of the new IPv4 IPPool.
    pub ip_pool_block_size: Sourced<u8>,
    /// `cniConfigurationDirectory` is the CNI configuration directory on all hosts.
    pub cni_configuration_directory: Sourced<String>,
    /// `ipv6` are the settings for IPv6. Unset if pods have IPv4 addresses only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Settings>,
}

/// `Ipv6Settings` are the settings for the IPv6 network of flannel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ipv6Settings {
    /// `flannelNetwork` is the IPv6 network of flannel, in CIDR notation, and the range of the new IPPool.
    #[schemars(with = "Sourced<String>")]
    pub flannel_network: Sourced<Ipv6Net>,
    /// `flannelSubnetLength` is the prefix length of the IPv6 subnet of a node.
    pub flannel_subnet_length: Sourced<u8>,
    /// `ipPoolBlockSize` is the prefix length of the IPAM blocks of the new IPv6 IPPool.
    pub ip_pool_block_size: Sourced<u8>,
}

/// The network of flannel in one address family, with the sizes of its parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodNetwork {
    /// The range of the network.
    pub range: IpNet,
    /// The prefix length of the subnet of a node.
    pub subnet_length: u8,
    /// The prefix length of the IPAM blocks of a new pool.
    pub block_size: u8,
}

/// Difference in bytes between the MTUs of flannel's IPv4 and IPv6 tunnels: the outer IPv6 header is longer.
const IPV6_HEADER_IS_LONGER_BY: u32 = 20;

impl Settings {
    /// MTU of flannel's IPv6 tunnel device.
    pub fn flannel_ipv6_mtu(&self) -> u32 {
        self.flannel_mtu.value.saturating_sub(IPV6_HEADER_IS_LONGER_BY)
    }

    /// flannel's networks, IPv4 first.
    pub fn pod_networks(&self) -> Vec<PodNetwork> {
        let ipv4 = PodNetwork {
            range: IpNet::V4(self.flannel_network.value),
            subnet_length: self.flannel_subnet_length.value,
            block_size: self.ip_pool_block_size.value,
        };
        let ipv6 = self.ipv6.as_ref().map(|ipv6| PodNetwork {
            range: IpNet::V6(ipv6.flannel_network.value),
            subnet_length: ipv6.flannel_subnet_length.value,
            block_size: ipv6.ip_pool_block_size.value,
        });
        [ipv4].into_iter().chain(ipv6).collect()
    }
}

/// Defaults in the documentation of Calico's own controller.
pub mod defaults {
    /// `FLANNEL_DAEMONSET_NAME`.
    pub const FLANNEL_DAEMON_SET_NAME: &str = "kube-flannel-ds-amd64";
    /// Namespace of flannel's `DaemonSet` in that documentation.
    pub const FLANNEL_DAEMON_SET_NAMESPACE: &str = "kube-system";
    /// `FLANNEL_SUBNET_LEN`.
    pub const FLANNEL_SUBNET_LENGTH: u8 = 24;
    /// `FLANNEL_ANNOTATION_PREFIX`.
    pub const FLANNEL_ANNOTATION_PREFIX: &str = "flannel.alpha.coreos.com";
    /// `FLANNEL_VNI`.
    pub const FLANNEL_VNI: u32 = 1;
    /// `FLANNEL_PORT`.
    pub const FLANNEL_PORT: u16 = 8472;
    /// `CALICO_DAEMONSET_NAME`.
    pub const CALICO_DAEMON_SET_NAME: &str = "calico-node";
    /// Namespace of this `DaemonSet` in Calico's manifest.
    pub const CALICO_DAEMON_SET_NAMESPACE: &str = "kube-system";
    /// `DEFAULT_IPPOOL_SIZE`.
    pub const IP_POOL_BLOCK_SIZE: u8 = 26;
    /// `FLANNEL_IPV6_SUBNET_LEN`.
    pub const FLANNEL_IPV6_SUBNET_LENGTH: u8 = 64;
    /// `DEFAULT_IPPOOL_SIZE_V6`.
    pub const IPV6_POOL_BLOCK_SIZE: u8 = 122;
    /// `CNI_CONFIG_DIR`.
    pub const CNI_CONFIGURATION_DIRECTORY: &str = engine::cni::CONFIGURATION_DIRECTORY;
}

/// `Strategy` is how a node changes its network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Strategy {
    /// The pods of the node are evicted before its network changes.
    #[default]
    Drain,
    /// The pods of the node keep running and keep their addresses while its network changes.
    InPlace,
}

/// `FirewallTwins` is what happens where a rule of another program names a link of flannel and has no twin for the links of Calico.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum FirewallTwins {
    /// The migration does not start.
    #[default]
    Refuse,
    /// The agents write the twins while their hosts are being migrated, and remove them in a rollback.
    Write,
}

/// `LegacyPods` is what happens to the pods that are still on the flannel network when their node is on Calico.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum LegacyPods {
    /// The pods run until their owners replace them.
    Keep,
    /// The pods are evicted within their PodDisruptionBudgets, on at most `maxUnavailable` nodes at the same time.
    Restart,
    /// The pods become pods of Calico without a restart: on each node, the link of each pod leaves `cni0`.
    #[default]
    Adopt,
}
