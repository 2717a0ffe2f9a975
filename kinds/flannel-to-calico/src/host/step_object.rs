//! The object of a step, in words.

use std::net::IpAddr;

use super::{BRIDGE, HostStep};
use crate::facts::{FirewallBackend, FirewallObject};

impl HostStep {
    /// The object that the step changes, for messages.
    pub fn object(&self) -> String {
        match self {
            Self::WithdrawSubnetEnvironment | Self::RestoreSubnetEnvironment => {
                "file /run/flannel/subnet.env".to_owned()
            }
            Self::DeleteVxlanDevice(name) | Self::RestoreVxlanDevice(name) => format!("link {name}"),
            Self::DeleteBridge | Self::RestoreBridge => format!("link {BRIDGE}"),
            Self::DeleteFirewallObject(object) | Self::RestoreFirewallObject(object) => {
                describe_firewall_object(object)
            }
            Self::RouteLegacyPods(addresses) => {
                format!("routes to addresses on {BRIDGE}: {}", addresses.len())
            }
            Self::AnswerForPods | Self::StopAnsweringForPods => {
                format!("proxy_arp (and proxy_ndp) of link {BRIDGE}")
            }
            Self::AnswerForAddresses(networks) => {
                let number: u128 = networks
                    .iter()
                    .map(|network| 1 << (128 - network.prefix_len()))
                    .sum();
                format!("{number} IPv6 addresses that link {BRIDGE} answers for")
            }
            Self::StopAnsweringForAddresses => format!("IPv6 addresses that link {BRIDGE} answers for"),
            Self::RouteSubnets { link, .. } => {
                format!("routes through link {link} to whole IPv6 subnets of nodes")
            }
            Self::UnrouteSubnets => "routes to whole IPv6 subnets of nodes".to_owned(),
            Self::RenameVxlanDevice { from, to, .. } | Self::ReturnVxlanDevice { from, to } => {
                format!("link {from}, new name {to}")
            }
            Self::ForgetLegacyPod(sandbox) => format!("leftovers of sandbox {sandbox}"),
            Self::OpenBridge | Self::CloseBridge => {
                format!("reverse path filter and frames of link {BRIDGE}")
            }
            Self::ChangePods(change) | Self::RevertPods(change) => {
                let links: Vec<&str> = change.pods.iter().map(|end| end.link.as_str()).collect();
                format!("links of pods: {}", links.join(", "))
            }
            Self::KeepBridgeAddresses(addresses) | Self::DropBridgeAddresses(addresses) => {
                let addresses: Vec<String> = addresses.iter().map(IpAddr::to_string).collect();
                format!("addresses of {BRIDGE} on link lo: {}", addresses.join(", "))
            }
            Self::RemoveFrameRules(links) => format!("rules for frames of links {}", links.join(", ")),
            Self::RemoveLeases => "host-local leases and flannel's delegate files in /var/lib/cni".to_owned(),
            Self::RemoveConflist(name) | Self::RestoreConflist(name) | Self::RemoveCalicoConflist(name) => {
                format!("conflist {name}")
            }
            Self::DeleteCalicoFirewall(object) if object.backend == FirewallBackend::Nftables => {
                describe_firewall_object(object)
            }
            Self::DeleteCalicoFirewall(object) => {
                format!(
                    "{} rules and chains of Calico in table {}",
                    backend(object),
                    object.table
                )
            }
            Self::DeleteCalicoSets => "Calico's IP sets (ipset cali…)".to_owned(),
            Self::DeleteBlackholes => "Calico's blackhole routes".to_owned(),
            Self::RestoreNodeRoutes { link, .. } => format!("routes of link {link}"),
            Self::UnrouteLegacyPods => format!("routes to single pods on {BRIDGE}"),
            Self::RemoveCalicoRecords => "records of Calico's pods in /var/lib/cni/results".to_owned(),
        }
    }
}

pub(super) fn describe_firewall_object(object: &FirewallObject) -> String {
    let backend = backend(object);
    if object.chain.is_empty() {
        format!("{backend} table {}", object.table)
    } else if object.chain.starts_with("FLANNEL-") {
        format!("{backend} chain {} in table {}", object.chain, object.table)
    } else {
        format!(
            "{backend} rules of flannel in chain {} of table {}",
            object.chain, object.table
        )
    }
}

fn backend(object: &FirewallObject) -> &'static str {
    match object.backend {
        FirewallBackend::IptablesNft => "iptables (nf_tables)",
        FirewallBackend::Ip6tablesNft => "ip6tables (nf_tables)",
        FirewallBackend::IptablesLegacy => "iptables (legacy)",
        FirewallBackend::Ip6tablesLegacy => "ip6tables (legacy)",
        FirewallBackend::Nftables => "nftables",
    }
}
