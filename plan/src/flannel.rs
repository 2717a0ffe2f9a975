//! flannel's own texts: `subnet.env`, `net-conf.json`, node annotations.

use std::net::IpAddr;

use ipnet::Ipv4Net;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `/run/flannel/subnet.env`, parsed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SubnetEnvironment {
    /// `FLANNEL_NETWORK`: the cluster's pod network.
    #[schemars(with = "String")]
    pub network: Ipv4Net,
    /// `FLANNEL_SUBNET`: the bridge's address with the node's subnet length.
    #[schemars(with = "String")]
    pub subnet: Ipv4Net,
    /// `FLANNEL_MTU`.
    pub mtu: u32,
    /// `FLANNEL_IPMASQ`.
    pub ip_masquerade: bool,
}

/// `net-conf.json` of the ConfigMap, parsed. Unknown keys are kept out; a missing key is its default in flannel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkConfiguration {
    /// `Network`.
    #[schemars(with = "String")]
    pub network: Ipv4Net,
    /// `SubnetLen`; `None` when the key is missing (the API server's node CIDRs decide then).
    pub subnet_length: Option<u8>,
    /// `EnableIPv6`.
    pub ipv6: bool,
    /// `EnableNFTables`.
    pub nftables: bool,
    /// `Backend.Type`, as written.
    pub backend: String,
    /// `Backend.VNI`; 1 when missing.
    pub vni: u32,
    /// `Backend.Port`; 8472 (the kernel's) when missing or 0.
    pub port: u16,
    /// `Backend.DirectRouting`.
    pub direct_routing: bool,
    /// `Backend.Learning`.
    pub learning: bool,
    /// `Backend.MTU`; `None` when missing or 0.
    pub mtu: Option<u32>,
}

/// flannel's annotations on a Node, parsed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeAnnotations {
    /// `backend-type`.
    pub backend: String,
    /// `VtepMAC` of `backend-data`, lower-case.
    pub vtep_mac: String,
    /// `VNI` of `backend-data`.
    pub vni: Option<u32>,
    /// `public-ip`.
    #[schemars(with = "String")]
    pub public_address: IpAddr,
    /// `kube-subnet-manager`.
    pub kube_subnet_manager: bool,
}
