//! Detection of settings. Ranges that do not fit are refused with the value found.

use ipnet::IpNet;

use super::checks::CheckName;
use super::facts::ClusterFacts;
use super::objects::BridgePolicy;
use super::ranges::{DEFAULT, ServiceCidr};
use super::settings::Settings;
use engine::check::{Check, Verdict, names};
use engine::cluster::Node;
use engine::corefile;
use engine::ranges::overlap;
use engine::sourced::{Source, Sourced};

/// Merges the spec with the facts of the cluster. Returns refusing checks if the ranges do not fit together, or if the source
/// range was not found.
///
/// # Errors
///
/// The `ServiceCIDR` `kubernetes` or the domain of the cluster is not found, no new range is set, or a new range does not fit.
pub fn detect(to: &[IpNet], facts: &ClusterFacts) -> Result<Settings, Vec<Check>> {
    let default = facts
        .ranges
        .iter()
        .find(|range| range.name == DEFAULT)
        .ok_or_else(|| vec![no_default(facts)])?;
    let wrong: Vec<Check> = to
        .iter()
        .enumerate()
        .filter_map(|(place, range)| refusal(place, range, to, default))
        .collect();
    if !wrong.is_empty() {
        return Err(wrong);
    }
    if to.is_empty() {
        return Err(vec![refuse(
            "spec.serviceCidr.to",
            "no range",
            "one range, or one of each family",
            "set the new range: `to: [172.30.0.0/16]`",
        )]);
    }
    let (object, domain) = facts
        .corefiles
        .iter()
        .find_map(|(object, text)| Some((object, corefile::domain(text)?)))
        .ok_or_else(|| vec![no_domain(facts)])?;
    Ok(Settings {
        from: Sourced {
            value: default.ranges.clone(),
            source: Source::Detected(format!("ServiceCIDR {DEFAULT}")),
        },
        to: Sourced {
            value: to.to_vec(),
            source: Source::Spec,
        },
        domain: Sourced {
            value: domain.to_owned(),
            source: Source::Detected(object.clone()),
        },
        bridge_policy: bridge_policy(facts),
    })
}

/// The policy of bridges: whether kube-proxy on every node recognizes connections of pods.
fn bridge_policy(facts: &ClusterFacts) -> Sourced<BridgePolicy> {
    let knows_pods = |node: &&Node| {
        let host = facts.hosts.get(&node.name);
        host.is_some_and(|host| facts.recognizes_pods(host))
    };
    let (value, source) = match facts.linux_nodes().find(|node| !knows_pods(node)) {
        Some(node) => (BridgePolicy::Cluster, format!("kube-proxy of Node {}", node.name)),
        None => (BridgePolicy::Local, "kube-proxy of every Node".to_owned()),
    };
    Sourced {
        value,
        source: Source::Detected(source),
    }
}

fn refuse(object: &str, found: &str, needed: &str, fix: &str) -> Check {
    CheckName::Ranges.not_pass(Verdict::Fail, object, found, needed, fix)
}

/// The refusal of this range.
fn refusal(place: usize, range: &IpNet, to: &[IpNet], default: &ServiceCidr) -> Option<Check> {
    let object = format!("spec.serviceCidr.to[{place}]");
    let is_of_family = |other: &&IpNet| other.max_prefix_len() == range.max_prefix_len();
    let refuse = |found: String, needed: &str, fix: &str| Some(refuse(&object, &found, needed, fix));
    if *range != range.trunc() {
        return refuse(
            format!("{range}, whose address has host bits"),
            &range.trunc().to_string(),
            "correct the address or the prefix length",
        );
    }
    if let Some(twice) = to.iter().take(place).find(is_of_family) {
        return refuse(
            format!("{range}, and {twice} of the same family"),
            "one range of each family",
            "remove one of them: a Service has one address of each family",
        );
    }
    // The API's own limit: it counts addresses in 64 bits.
    if range.addr().is_ipv6() && range.prefix_len() < 64 {
        return refuse(
            range.to_string(),
            "a prefix of 64 or longer",
            "choose a smaller range: the API accepts no larger one for Services",
        );
    }
    let Some(old) = default.ranges.iter().find(is_of_family) else {
        return refuse(
            format!("{range}, of a family that the cluster does not have"),
            "a range of a family of the cluster",
            "remove it: this migration replaces ranges; to add a second family, change the API servers' flag",
        );
    };
    if old == range {
        return refuse(
            format!("{range}, which ServiceCIDR {DEFAULT} has already"),
            "a range that does not overlap it",
            "omit this family, which needs no change",
        );
    }
    if overlap(old, range) {
        return refuse(
            format!("{range}, which overlaps {old}"),
            "a range that does not overlap it",
            "to get more addresses, create a second ServiceCIDR: no Service has to change. To move to a part of the old range, \
             or to a range around it, migrate to a third range and from there",
        );
    }
    None
}

fn no_default(facts: &ClusterFacts) -> Check {
    let object = format!("ServiceCIDR {DEFAULT}");
    match &facts.api_version {
        None => CheckName::ApiVersion.not_pass(
            Verdict::Fail,
            object,
            "no ServiceCIDRs in networking.k8s.io",
            "Kubernetes 1.33, or 1.31 with feature gate MultiCIDRServiceAllocator and networking.k8s.io/v1beta1 enabled",
            "upgrade first: without ServiceCIDRs every Service would have to be deleted and created again",
        ),
        Some(_) => refuse(
            &object,
            "missing",
            "the range of the API servers' flag",
            "check for an API server that restarts again and again: an API server creates it within seconds",
        ),
    }
}

fn no_domain(facts: &ClusterFacts) -> Check {
    let objects: Vec<&str> = facts
        .corefiles
        .iter()
        .map(|(object, _)| object.as_str())
        .collect();
    let found = if objects.is_empty() {
        "no Corefile found for the cluster DNS".to_owned()
    } else {
        format!("no domain in plugin kubernetes of {}", names(&objects))
    };
    CheckName::NameServers.not_pass(
        Verdict::Unknown,
        "name servers",
        found,
        "a Corefile with `kubernetes cluster.local …`",
        "correct the Corefile: while a Service has no address, its name points to a helper in the DNS domain of the cluster",
    )
}

#[cfg(test)]
mod tests;
