//! The ranges that kube-proxy takes for those of pods, by its rules in the kernel of every node: these count, wherever kube-proxy
//! runs, whatever it is told, and whether it was restarted since. Pure.

use std::collections::{BTreeMap, BTreeSet};

use engine::found::Found;
use engine::owner::Owner;
use engine::words::{names, number};
use ipnet::IpNet;

use crate::hardcoded_range::{Needs, RangeUse};
use crate::host::HostFacts;
use crate::settings::Family;

/// The configuration of kube-proxy as found, and what the rules on nodes add to it: one entry for nodes with the same answer to
/// every question about both ranges. Rules with the ranges of a known configuration add nothing.
pub fn with_rules<'facts>(
    mentions: &[RangeUse],
    hosts: impl IntoIterator<Item = (&'facts str, &'facts HostFacts)>,
    from: &IpNet,
    to: &IpNet,
) -> Vec<RangeUse> {
    let configured: Vec<&RangeUse> = mentions
        .iter()
        .filter(|mention| mention.is_of_kube_proxy)
        .collect();
    // Not a configuration with more ranges: kube-proxy refuses two of one family, does not start, and leaves its former rules.
    let follows = |ranges: &[IpNet]| {
        let has_the_same = |mention: &&RangeUse| {
            let of_family = mention
                .ranges
                .iter()
                .filter(|range| Family::of(range) == Family::of(from));
            of_family.collect::<BTreeSet<_>>() == ranges.iter().collect::<BTreeSet<_>>()
        };
        configured.iter().any(has_the_same)
    };
    let mut groups: BTreeMap<[bool; 4], (Vec<IpNet>, Vec<String>)> = BTreeMap::new();
    for (node, host) in hosts {
        let ranges = ranges_of(host, from);
        // Without a range the rules recognize pods by links, or masquerade none.
        if ranges.is_empty() || follows(&ranges) {
            continue;
        }
        let one = of_rules(ranges.clone(), &[]);
        let answers = [
            one.is_too_narrow(from, to),
            one.is_too_narrow(to, from),
            one.contains_part_of(from),
            one.contains_part_of(to),
        ];
        let (_, nodes) = groups.entry(answers).or_insert_with(|| (ranges, Vec::new()));
        nodes.push(node.to_owned());
    }
    let of_nodes = groups
        .into_values()
        .map(|(ranges, nodes)| of_rules(ranges, &nodes));
    mentions.iter().cloned().chain(of_nodes).collect()
}

/// Whether the migration waits for other rules on this host before pods may move from one range to the other.
pub fn must_change(host: &HostFacts, from: &IpNet, to: &IpNet) -> bool {
    of_rules(ranges_of(host, from), &[]).is_too_narrow(from, to)
}

/// The ranges of this family in the rules.
fn ranges_of(host: &HostFacts, family: &IpNet) -> Vec<IpNet> {
    let Found::Present(found) = &host.local_traffic else {
        return Vec::new();
    };
    let of_family = found
        .ranges
        .iter()
        .filter(|range| Family::of(range) == Family::of(family));
    of_family.copied().collect()
}

/// Nodes whose agents have reported that the rules cannot be read, one line for the first of them: what they say decides whether pods
/// may move.
pub fn unreadable<'facts>(
    hosts: impl IntoIterator<Item = (&'facts str, &'facts HostFacts)>,
) -> Option<String> {
    let mut unreadable = hosts
        .into_iter()
        .filter_map(|(node, host)| match &host.local_traffic {
            Found::Malformed(problem) => Some((node, problem)),
            Found::Present(_) | Found::Absent => None,
        });
    let (node, problem) = unreadable.next()?;
    let others = and_others(unreadable.count());
    Some(format!(
        "rules of kube-proxy on node {node}: found {problem}{others}, needed the ranges that it takes for those of pods. Fix: correct \
         what the message names, or look at the rules yourself and confirm by spec.podCidr.localRangesChecked (--local-ranges-checked)"
    ))
}

/// The number of further nodes like a named one, as the end of a sentence; empty for none.
pub fn and_others(count: usize) -> String {
    match count {
        0 => String::new(),
        others => format!(", and {} like it", number(others, "other node", "other nodes")),
    }
}

/// Nodes whose rules do not show how kube-proxy recognizes pods, each with what was found instead.
pub fn unknown<'facts>(
    hosts: impl IntoIterator<Item = (&'facts str, Option<&'facts HostFacts>)>,
) -> Vec<(String, String)> {
    let unknown = |(node, host): (&str, Option<&HostFacts>)| {
        let found = match host.map(|host| &host.local_traffic) {
            Some(Found::Present(_)) => return None,
            Some(Found::Absent) => "no rules of kube-proxy".to_owned(),
            Some(Found::Malformed(problem)) => problem.clone(),
            None => "no report of its agent".to_owned(),
        };
        Some((node.to_owned(), found))
    };
    hosts.into_iter().filter_map(unknown).collect()
}

fn of_rules(ranges: Vec<IpNet>, nodes: &[String]) -> RangeUse {
    let on = if nodes.len() == 1 { "node" } else { "nodes" };
    RangeUse {
        object: format!("rules of kube-proxy on {on} {}", names(nodes)),
        owner: Owner::Cluster,
        fix: "restart kube-proxy there if it is told both ranges already (clusterCIDR of its configuration, or --cluster-cidr). \
              Otherwise set one range of the family around both first, or detectLocalMode InterfaceNamePrefix with prefix cali. Where \
              no kube-proxy runs any more, remove its rules with `kube-proxy --cleanup`, or confirm by localRangesChecked. \
              Needed: {ranges}"
            .to_owned(),
        ranges,
        more: 0,
        needs: Needs::BothThenNew,
        is_of_kube_proxy: true,
    }
}

#[cfg(test)]
mod tests;
