//! Detection of settings. What makes no sense is a refusal that names the value.

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

/// Merges what the spec says with what the cluster shows. Checks that refuse come back when the ranges make no sense together, or
/// what is to be left was not found.
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
            "say where the Services are to go: `to: [172.30.0.0/16]`",
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

/// Whether every kube-proxy knows which connections are of pods.
fn bridge_policy(facts: &ClusterFacts) -> Sourced<BridgePolicy> {
    let knows_pods = |node: &&Node| {
        let host = facts.hosts.get(&node.name);
        host.is_some_and(|host| facts.knows_pods(host))
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

/// Why this range is no place for Services to go.
fn refusal(place: usize, range: &IpNet, to: &[IpNet], default: &ServiceCidr) -> Option<Check> {
    let object = format!("spec.serviceCidr.to[{place}]");
    let is_of_family = |other: &&IpNet| other.max_prefix_len() == range.max_prefix_len();
    let refuse = |found: String, needed: &str, fix: &str| Some(refuse(&object, &found, needed, fix));
    if *range != range.trunc() {
        return refuse(
            format!("{range}, whose address has bits behind its prefix"),
            &range.trunc().to_string(),
            "nobody knows which part of it is the slip",
        );
    }
    if let Some(twice) = to.iter().take(place).find(is_of_family) {
        return refuse(
            format!("{range}, and {twice} of the same family"),
            "one range of each family",
            "a Service has one address of each family",
        );
    }
    // The API's own limit: it counts addresses in 64 bits.
    if range.addr().is_ipv6() && range.prefix_len() < 64 {
        return refuse(
            range.to_string(),
            "a prefix of 64 or longer",
            "the API takes no wider one for Services",
        );
    }
    let Some(old) = default.ranges.iter().find(is_of_family) else {
        return refuse(
            format!("{range}, and no Service has an address of that family"),
            "a range of a family that the cluster has",
            "this migration replaces ranges; a second family is added by the API servers' flag alone",
        );
    };
    if old == range {
        return refuse(
            format!("{range}, which ServiceCIDR {DEFAULT} has already"),
            "a range apart from it",
            "nothing is to be done for this family: leave it out",
        );
    }
    if overlap(old, range) {
        return refuse(
            format!("{range}, which overlaps {old}"),
            "a range apart from it",
            "for more addresses beside the old ones a second ServiceCIDR is enough, and no Service has to change. To move into a part of \
             the old range, or one around it, go by a third range and back",
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
            "no ServiceCIDRs at all in networking.k8s.io",
            "Kubernetes 1.33, or 1.31 with feature gate MultiCIDRServiceAllocator and networking.k8s.io/v1beta1 switched on",
            "upgrade first: without them every Service has to be deleted and made again",
        ),
        Some(_) => refuse(
            &object,
            "nothing",
            "the range of the API servers' flag",
            "an API server makes it within some seconds: is one there that starts again and again?",
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
        "no Corefile behind the cluster's name service".to_owned()
    } else {
        format!("no domain in plugin kubernetes of {}", names(&objects))
    };
    CheckName::NameServers.not_pass(
        Verdict::Unknown,
        "name servers",
        found,
        "a Corefile with `kubernetes cluster.local …`",
        "while a Service has no address its name leads to a helper, by the cluster's domain",
    )
}

#[cfg(test)]
#[path = "detect_tests.rs"]
mod tests;
