//! Every option of Calico's own migration controller, merged: what the user wrote, what was detected, the default.

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use engine::sourced::Sourced;

/// What the user may set. Every field is optional; field names are the wire's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Options {
    /// `FLANNEL_NETWORK`: IPv4 network of flannel. Detected from `net-conf.json`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub flannel_network: Option<Ipv4Net>,
    /// `FLANNEL_DAEMONSET_NAME`: name of flannel's `DaemonSet`. Detected; default `kube-flannel-ds-amd64`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flannel_daemon_set_name: Option<String>,
    /// `FLANNEL_DAEMONSET_NAMESPACE`: its namespace. Detected; default `kube-system`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flannel_daemon_set_namespace: Option<String>,
    /// `FLANNEL_MTU`: MTU of flannel's VXLAN device. Detected from `subnet.env` of every node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 576, max = 65535))]
    pub flannel_mtu: Option<u32>,
    /// `FLANNEL_IP_MASQ`: whether outbound traffic is masqueraded. Detected from `subnet.env` of every node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flannel_ip_masquerade: Option<bool>,
    /// `FLANNEL_SUBNET_LEN`: subnet length of a node. Detected from the Nodes' podCIDR; default 24.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 8, max = 30))]
    pub flannel_subnet_length: Option<u8>,
    /// `FLANNEL_ANNOTATION_PREFIX`: flannel's `--kube-annotation-prefix`. Detected from its arguments;
    /// default `flannel.alpha.coreos.com`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flannel_annotation_prefix: Option<String>,
    /// `FLANNEL_VNI`: VXLAN network identifier. Detected from `net-conf.json`; default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 16_777_215))]
    pub flannel_vni: Option<u32>,
    /// `FLANNEL_PORT`: UDP port of VXLAN. Detected from `net-conf.json`; default 8472.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub flannel_port: Option<u16>,
    /// `CALICO_DAEMONSET_NAME`: name of Calico's `DaemonSet`; default `calico-node`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calico_daemon_set_name: Option<String>,
    /// `CALICO_DAEMONSET_NAMESPACE`: its namespace; default `kube-system`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calico_daemon_set_namespace: Option<String>,
    /// `DEFAULT_IPPOOL_SIZE`: block size of the new `IPPool`; default 26.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 20, max = 32))]
    pub ip_pool_block_size: Option<u8>,
    /// `CNI_CONFIG_DIR`: folder of the CNI configuration on every host; default `/etc/cni/net.d`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cni_configuration_directory: Option<String>,
}

/// Every option with its value and source: what the migration works with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// Network of flannel, and of the new pool.
    #[schemars(with = "Sourced<String>")]
    pub flannel_network: Sourced<Ipv4Net>,
    /// Name of flannel's `DaemonSet`.
    pub flannel_daemon_set_name: Sourced<String>,
    /// Namespace of flannel's `DaemonSet`.
    pub flannel_daemon_set_namespace: Sourced<String>,
    /// MTU of the tunnel device.
    pub flannel_mtu: Sourced<u32>,
    /// Whether outbound traffic is masqueraded.
    pub flannel_ip_masquerade: Sourced<bool>,
    /// Subnet length of a node.
    pub flannel_subnet_length: Sourced<u8>,
    /// Prefix of flannel's node annotations.
    pub flannel_annotation_prefix: Sourced<String>,
    /// VXLAN network identifier.
    pub flannel_vni: Sourced<u32>,
    /// UDP port of VXLAN.
    pub flannel_port: Sourced<u16>,
    /// Name of Calico's `DaemonSet`.
    pub calico_daemon_set_name: Sourced<String>,
    /// Namespace of Calico's `DaemonSet`.
    pub calico_daemon_set_namespace: Sourced<String>,
    /// Block size of the new pool.
    pub ip_pool_block_size: Sourced<u8>,
    /// Folder of the CNI configuration on every host.
    pub cni_configuration_directory: Sourced<String>,
    /// flannel's network of IPv6; absent where pods have IPv4 alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6Settings>,
}

/// flannel's network of IPv6, beside that of IPv4.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ipv6Settings {
    /// The network, and that of the new pool.
    #[schemars(with = "Sourced<String>")]
    pub flannel_network: Sourced<Ipv6Net>,
    /// Subnet length of a node.
    pub flannel_subnet_length: Sourced<u8>,
    /// Block size of the new pool.
    pub ip_pool_block_size: Sourced<u8>,
}

/// flannel's network of one family, and how it is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodNetwork {
    /// Its range.
    pub range: IpNet,
    /// Subnet length of a node.
    pub subnet_length: u8,
    /// Block size of a new pool.
    pub block_size: u8,
}

/// flannel gives its tunnel of IPv6 so many bytes less than that of IPv4: the outer header is longer.
const IPV6_HEADER_IS_LONGER_BY: u32 = 20;

impl Settings {
    /// MTU of flannel's tunnel device of IPv6.
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

/// Defaults of Calico's own controller, as its documentation lists them.
pub mod defaults {
    /// `FLANNEL_DAEMONSET_NAME`.
    pub const FLANNEL_DAEMON_SET_NAME: &str = "kube-flannel-ds-amd64";
    /// The namespace in which that documentation looks for it.
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
    /// Its namespace in Calico's manifest.
    pub const CALICO_DAEMON_SET_NAMESPACE: &str = "kube-system";
    /// `DEFAULT_IPPOOL_SIZE`.
    pub const IP_POOL_BLOCK_SIZE: u8 = 26;
    /// `FLANNEL_IPV6_SUBNET_LEN`.
    pub const FLANNEL_IPV6_SUBNET_LENGTH: u8 = 64;
    /// `DEFAULT_IPPOOL_SIZE_V6`.
    pub const IPV6_POOL_BLOCK_SIZE: u8 = 122;
    /// `CNI_CONFIG_DIR`.
    pub const CNI_CONFIGURATION_DIRECTORY: &str = "/etc/cni/net.d";
}

/// How a node changes its network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Strategy {
    /// Pods leave the node by eviction before its network changes.
    #[default]
    Drain,
    /// The node changes its network under its pods: they keep running, with their addresses.
    InPlace,
}

/// What happens, in place, to pods that were there before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum LegacyPods {
    /// They live on, and go when their owners replace them.
    #[default]
    Keep,
    /// Once every node is on Calico they are evicted, under their budgets, `maxUnavailable` nodes at a time.
    Restart,
}
