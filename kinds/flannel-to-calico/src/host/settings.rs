//! What an agent needs to know about flannel and Calico on its host.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::adopt::AdoptionSettings;
use super::{CALICO_DEVICE, CALICO_DEVICE_V6, FLANNEL_DEVICES, Tunnel};
use crate::settings::{FirewallTwins, LegacyPods, Settings, Strategy, defaults};

/// `HostSettings` is what an agent needs to know about flannel and Calico on its host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostSettings {
    /// `vni` is the VXLAN network identifier of flannel. The name of flannel's tunnel is `flannel.<VNI>`.
    pub vni: u32,
    /// `port` is the UDP port of VXLAN.
    pub port: u16,
    /// `mtu` is the MTU of the IPv4 tunnel, in bytes.
    pub mtu: u32,
    /// `cniConfigurationDirectory` is the CNI configuration directory on the host.
    pub cni_configuration_directory: String,
    /// `blockSize` is the prefix length of Calico's IPv4 IPAM blocks. Defaults to 26.
    #[serde(default = "usual_block_size")]
    pub block_size: u8,
    /// `nodeRangeLength` is the prefix length of the IPv4 subnet of a node. Defaults to 24.
    #[serde(default = "usual_node_range_length")]
    pub node_range_length: u8,
    /// `ipv6` is what the agent needs to know about IPv6. Unset if pods have IPv4 addresses only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipv6: Option<Ipv6HostSettings>,
    /// `adoptPods` is whether the agent adopts the running pods of flannel on its way to phase `Calico`: it moves each of them from
    /// `cni0` to a link of its own, without a restart. Defaults to false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub adopt_pods: bool,
    /// `writeFirewallTwins` is whether the agent keeps a twin for the links of Calico beside each rule of another program that names a
    /// link of flannel, from the first change of its host on. Defaults to false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub write_firewall_twins: bool,
    /// `adoption` is how pods are adopted. Used if `adoptPods` is true.
    #[serde(default, skip_serializing_if = "AdoptionSettings::is_default")]
    pub adoption: AdoptionSettings,
}

/// `Ipv6HostSettings` is what an agent needs to know about IPv6.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Ipv6HostSettings {
    /// `mtu` is the MTU of the IPv6 tunnel, in bytes. Defaults to 1280.
    #[serde(default = "least_mtu")]
    pub mtu: u32,
    /// `blockSize` is the prefix length of Calico's IPv6 IPAM blocks.
    pub block_size: u8,
    /// `nodeRangeLength` is the prefix length of the IPv6 subnet of a node.
    pub node_range_length: u8,
    /// `flannelPods` is whether pods of flannel may run on any node. While it is true, the agent keeps routes to the whole IPv6
    /// subnets of other nodes. The coordinator sets it to false when no pod of flannel is left. Defaults to true.
    #[serde(default = "yes")]
    pub flannel_pods: bool,
}

/// The minimum MTU of IPv6.
fn least_mtu() -> u32 {
    1280
}

fn yes() -> bool {
    true
}

fn usual_block_size() -> u8 {
    defaults::IP_POOL_BLOCK_SIZE
}

fn usual_node_range_length() -> u8 {
    defaults::FLANNEL_SUBNET_LENGTH
}

impl HostSettings {
    /// flannel's default settings, with the CNI configuration directory of the host: sufficient for observations, never used for
    /// changes.
    pub fn before_detection(cni_configuration_directory: impl Into<String>) -> Self {
        /// Of VXLAN in an uplink with an MTU of 1500 bytes.
        const MTU: u32 = 1450;
        Self {
            vni: defaults::FLANNEL_VNI,
            port: defaults::FLANNEL_PORT,
            mtu: MTU,
            block_size: defaults::IP_POOL_BLOCK_SIZE,
            node_range_length: defaults::FLANNEL_SUBNET_LENGTH,
            ipv6: None,
            adopt_pods: false,
            write_firewall_twins: false,
            adoption: AdoptionSettings::default(),
            cni_configuration_directory: cni_configuration_directory.into(),
        }
    }

    /// The settings for an agent, while flannel pods may run on any node.
    pub fn of(settings: &Settings) -> Self {
        Self {
            vni: settings.flannel_vni.value,
            port: settings.flannel_port.value,
            mtu: settings.flannel_mtu.value,
            cni_configuration_directory: settings.cni_configuration_directory.value.clone(),
            block_size: settings.ip_pool_block_size.value,
            node_range_length: settings.flannel_subnet_length.value,
            ipv6: settings.ipv6.as_ref().map(|ipv6| Ipv6HostSettings {
                mtu: settings.flannel_ipv6_mtu(),
                block_size: ipv6.ip_pool_block_size.value,
                node_range_length: ipv6.flannel_subnet_length.value,
                flannel_pods: true,
            }),
            adopt_pods: false,
            write_firewall_twins: false,
            adoption: AdoptionSettings::default(),
        }
    }

    /// The settings for the agents of a migration with this handling of legacy pods and of other programs' rules.
    pub fn for_agents(
        settings: &Settings,
        strategy: Strategy,
        legacy_pods: LegacyPods,
        firewall_twins: FirewallTwins,
    ) -> Self {
        Self {
            adopt_pods: (strategy, legacy_pods) == (Strategy::InPlace, LegacyPods::Adopt),
            write_firewall_twins: firewall_twins == FirewallTwins::Write,
            ..Self::of(settings)
        }
    }

    /// Name of flannel's VXLAN link.
    pub fn flannel_device(&self) -> String {
        format!("{}{}", FLANNEL_DEVICES[0], self.vni)
    }

    /// The tunnel links: one for each address family of the pods.
    pub fn tunnels(&self) -> Vec<Tunnel> {
        let ipv4 = Tunnel {
            flannel_name: self.flannel_device(),
            calico_name: CALICO_DEVICE,
            mtu: self.mtu,
            block_size: self.block_size,
            node_range_length: self.node_range_length,
        };
        [ipv4].into_iter().chain(self.ipv6_tunnel()).collect()
    }

    /// Size in bytes of the largest packet between any two pods: in Calico, a dual-stack pod has the smaller MTU of the tunnels.
    pub fn pod_mtu(&self) -> u32 {
        self.ipv6.as_ref().map_or(self.mtu, |ipv6| self.mtu.min(ipv6.mtu))
    }

    /// The IPv6 tunnel link.
    pub fn ipv6_tunnel(&self) -> Option<Tunnel> {
        self.ipv6.as_ref().map(|ipv6| Tunnel {
            flannel_name: format!("{}{}", FLANNEL_DEVICES[1], self.vni),
            calico_name: CALICO_DEVICE_V6,
            mtu: ipv6.mtu,
            block_size: ipv6.block_size,
            node_range_length: ipv6.node_range_length,
        })
    }
}
