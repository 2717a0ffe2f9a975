//! The new ranges: not reserved, and not in use.

use ipnet::IpNet;

use super::CheckName;
use crate::facts::ClusterFacts;
use crate::range_name::is_ours;
use crate::ranges::DEFAULT;
use crate::settings::Settings;
use crate::side::Side;
use engine::check::{Check, Finding, Report};
use engine::ranges::overlap;
use engine::ranges::reserved;

/// The most host bits of a range before [`ANY_SIZE`].
const HOST_BITS: u8 = 20;
/// From this version, an API server takes larger ranges: `MultiCIDRServiceAllocator` and `DisableAllocatorDualWrite` are on.
const ANY_SIZE: (u32, u32) = (1, 34);
/// The object in which kubeadm keeps the range.
const KUBEADM: &str = "kubeadm-config";

/// What is needed instead of a range with more host bits than the API server or kubeadm accepts, and the fix.
fn too_large(range: &IpNet, facts: &ClusterFacts) -> Option<(String, &'static str)> {
    let length = range.max_prefix_len() - HOST_BITS;
    if range.prefix_len() >= length {
        return None;
    }
    let most = format!("at most {HOST_BITS} host bits (/{length})");
    let is_old = facts.server_version.is_none_or(|version| version < ANY_SIZE);
    if is_old {
        let version = facts.server_version.map_or_else(
            || "whose version is not known".to_owned(),
            |(major, minor)| format!("of {major}.{minor}"),
        );
        let (major, minor) = ANY_SIZE;
        return Some((
            format!("{most} for an API server {version}, or Kubernetes {major}.{minor}"),
            "choose a smaller range: kube-apiserver does not start with this one",
        ));
    }
    let of_kubeadm = facts
        .mentions
        .iter()
        .any(|mention| mention.object.contains(KUBEADM));
    of_kubeadm.then(|| {
        (
            format!("{most}, which kubeadm accepts"),
            "choose a smaller range: `kubeadm upgrade` refuses networking.serviceSubnet with this one",
        )
    })
}

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
                format!("{range}, which overlaps {of}, reserved for {why}"),
                "a range for private use",
                "choose a range of 10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16 or fc00::/7",
            );
        }
        if let Some((needed, fix)) = too_large(range, facts) {
            let bits = range.max_prefix_len() - range.prefix_len();
            refuse(format!("{range}, with {bits} host bits"), &needed, fix);
        }
        for (object, other) in &facts.pod_ranges {
            if overlap(range, other) {
                refuse(
                    format!("{range}, which overlaps {other} of {object}"),
                    "no overlap with pod ranges",
                    "choose another range: a pod with the address of a Service would be unreachable",
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
                    "no overlap with other ServiceCIDRs",
                    "delete that ServiceCIDR first, or choose another range",
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
                    format!("{range}, which contains {address} of Node {}", node.name),
                    "no overlap with addresses of Nodes",
                    "choose another range",
                );
            }
        }
    }
    for (node, host) in &facts.hosts {
        let found = [
            host.target.routes.words("routes"),
            host.target.addresses.words("addresses"),
            host.target.rules.words("rules"),
        ]
        .concat();
        for what in found {
            report.fail(
                "Node",
                node,
                Finding::new(
                    "",
                    what,
                    "no overlap with the new range",
                    "choose another range, or remove the entry: the host uses this range for another network (a VPN, another \
                     cluster, the cloud's network), which would become unreachable",
                ),
            );
        }
    }
    let texts: Vec<String> = changed.of(Side::New).iter().map(IpNet::to_string).collect();
    report.finish(
        texts.join(","),
        "no overlap with pods, Nodes, routes, rules and other ServiceCIDRs",
    )
}
