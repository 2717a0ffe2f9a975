//! The new ranges: nobody else's, and large enough.

use ipnet::IpNet;

use super::CheckName;
use crate::facts::ClusterFacts;
use crate::ranges::DEFAULT;
use crate::settings::{Settings, is_ours};
use crate::side::Side;
use engine::check::{Check, Finding, Report};
use engine::ranges::overlap;
use engine::ranges::reserved;

pub(super) fn check(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::Ranges);
    let changed = settings.changed();
    for (place, range) in changed.of(Side::New).iter().enumerate() {
        let name = format!("spec.serviceCidr.to[{place}]");
        let mut refuse = |found: String, needed: &str, fix: &str| {
            report.fail("", name.clone(), Finding::new("", found, needed, fix));
        };
        if let Some((of, why)) = reserved(range) {
            refuse(
                format!("{range}, which is of {of}: {why}"),
                "a range for private use",
                "take one of 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 or fc00::/7",
            );
        }
        for (object, other) in &facts.pod_ranges {
            if overlap(range, other) {
                refuse(
                    format!("{range}, which overlaps {other} of {object}"),
                    "a range apart from the pods'",
                    "a packet to an address of both goes to the Service, and the pod is not reached",
                );
            }
        }
        for other in facts
            .ranges
            .iter()
            .filter(|other| other.name != DEFAULT && !is_ours(&other.name))
        {
            if let Some(found) = other.ranges.iter().find(|other| overlap(range, other)) {
                refuse(
                    format!("{range}, which overlaps {found} of ServiceCIDR {}", other.name),
                    "a range of its own",
                    "delete that one first, or choose another range",
                );
            }
        }
        for node in facts.nodes.values() {
            if let Some(address) = node
                .internal_addresses
                .iter()
                .find(|address| range.contains(*address))
            {
                refuse(
                    format!("{range}, which holds {address} of Node {}", node.name),
                    "a range apart from the nodes'",
                    "choose another range",
                );
            }
        }
    }
    for (node, host) in &facts.hosts {
        let found = [
            host.in_target.routes.words("routes"),
            host.in_target.addresses.words("addresses"),
            host.in_target.rules.words("rules"),
        ]
        .concat();
        for what in found {
            report.fail(
                "Node",
                node,
                Finding::new(
                    "",
                    what,
                    "nothing that shares an address with the new range",
                    "somebody is there who would not be reached any more: find out who (a VPN, another cluster, the cloud's network), or \
                     choose another range",
                ),
            );
        }
    }
    let texts: Vec<String> = changed.of(Side::New).iter().map(IpNet::to_string).collect();
    report.finish(
        texts.join(","),
        "nobody's: no pod, node, route, rule or other ServiceCIDR has an address of it",
    )
}
