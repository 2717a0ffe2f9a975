//! Addresses of nodes inside the range of pods: Calico may give such an address to a pod.

use std::net::IpAddr;

use super::CheckName;
use crate::detect::linux_nodes;
use crate::facts::ClusterFacts;
use crate::settings::Settings;
use engine::check::{Check, Finding, Report};

pub(super) fn check(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::NodeAddresses);
    let networks = settings.pod_networks();
    for node in linux_nodes(facts) {
        let within = |address: &&IpAddr| networks.iter().any(|network| network.range.contains(*address));
        for address in node.internal_addresses.iter().filter(within) {
            if facts.reserved.iter().any(|range| range.contains(address)) {
                continue;
            }
            report.fail(
                "Node",
                &node.name,
                Finding::new(
                    "status.addresses",
                    format!("{address}, in the range of pods"),
                    "an address outside of the range, or an IPReservation that covers it",
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
