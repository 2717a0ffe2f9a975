//! Addresses of nodes inside the range of pods: Calico may give such an address to a pod.

use std::net::IpAddr;

use ipnet::IpNet;

use super::CheckName;
use crate::detect::linux_nodes;
use crate::facts::ClusterFacts;
use crate::settings::Settings;
use engine::check::{Check, Finding, Report};

/// The block of Calico's IPAM that contains the address.
fn block_of(address: IpAddr, settings: &Settings) -> IpNet {
    let own = IpNet::from(address);
    let size = match address {
        IpAddr::V4(_) => settings.ip_pool_block_size.value,
        IpAddr::V6(_) => settings
            .ipv6
            .as_ref()
            .map_or(own.prefix_len(), |ipv6| ipv6.ip_pool_block_size.value),
    };
    IpNet::new(address, size).map_or(own, |block| block.trunc())
}

pub(super) fn check(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::NodeAddresses);
    let networks = settings.pod_networks();
    for node in linux_nodes(facts) {
        let within = |address: &&IpAddr| networks.iter().any(|network| network.range.contains(*address));
        for address in node.internal_addresses.iter().filter(within) {
            let block = block_of(*address, settings);
            // Calico takes a block of which one address is free.
            if facts.reserved.iter().any(|range| range.contains(&block)) {
                continue;
            }
            report.fail(
                "Node",
                &node.name,
                Finding::new(
                    "status.addresses",
                    format!("{address}, in the range of pods"),
                    format!("an address outside of the range, or an IPReservation that contains {block}"),
                    "flannel gives pods addresses of their node's podCIDR only; Calico takes blocks from the whole range and \
                     would give this address to a pod: create an IPReservation (crd.projectcalico.org/v1) whose reservedCIDRs \
                     contain the subnets of the nodes",
                ),
            );
        }
    }
    report.finish(
        "addresses of the Nodes",
        "outside of the range of pods, or reserved",
    )
}
