//! Workloads whose pods have to move, and who admits their successors: what an operator has to know before.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use super::CheckName;
use crate::facts::ClusterFacts;
use engine::check::{Check, Finding, Report, names};
use engine::moves::{Resident, Workload};

pub(super) fn check(
    facts: &ClusterFacts,
    leaving: &[&Resident<'_>],
    raised: &BTreeSet<Workload>,
) -> Vec<Check> {
    [
        places(facts, leaving),
        webhooks(facts, leaving, raised),
        workloads(facts, leaving, raised),
    ]
    .concat()
}

/// Somewhere the successors have to go.
fn places(facts: &ClusterFacts, leaving: &[&Resident<'_>]) -> Vec<Check> {
    let mut report = Report::new(CheckName::SchedulableNodes);
    let (usable, others): (Vec<_>, Vec<_>) = facts.linux_nodes().partition(|node| node.schedulable());
    if usable.is_empty() {
        report.fail(
            "",
            "Nodes",
            Finding::new(
                "",
                format!("none of {} takes pods", others.len()),
                "at least one that is Ready, not cordoned and without a taint",
                "uncordon nodes, or add some: a pod that is evicted would not come back",
            ),
        );
    }
    let mut to_move: BTreeMap<&str, usize> = BTreeMap::new();
    for resident in leaving.iter().filter(|resident| !resident.pod.of_daemon_set()) {
        *to_move.entry(&resident.pod.node).or_default() += 1;
    }
    for node in others.iter().filter(|node| node.unschedulable) {
        if let Some(count) = to_move.get(node.name.as_str()) {
            report.warn(
                "Node",
                &node.name,
                Finding::new(
                    "spec.unschedulable",
                    format!("cordoned, with {count} pods that have to move"),
                    "a node that takes them back",
                    "they go to other nodes, if there is room: uncordon it, unless you want that",
                ),
            );
        }
    }
    report.finish("Nodes", format!("{} take pods", usable.len()))
}

/// While nobody answers a webhook that fails closed, no pod is made: not even its own.
fn webhooks(facts: &ClusterFacts, leaving: &[&Resident<'_>], raised: &BTreeSet<Workload>) -> Vec<Check> {
    let mut report = Report::new(CheckName::Webhooks);
    let watched = facts
        .webhooks
        .iter()
        .filter(|webhook| webhook.covers_pods_or_nodes);
    let alone: BTreeSet<(&str, &str)> = watched
        .clone()
        .filter_map(|webhook| match webhook.backends.as_slice() {
            [(namespace, name, _, _)] => Some((namespace.as_str(), name.as_str())),
            [] | [_, _, ..] => None,
        })
        .collect();
    let leaves: BTreeSet<(&str, &str)> = leaving
        .iter()
        .filter(|resident| {
            resident
                .workload
                .is_none_or(|workload| !raised.contains(workload))
        })
        .map(|resident| (resident.pod.namespace.as_str(), resident.pod.name.as_str()))
        .filter(|name| alone.contains(name))
        .collect();
    for webhook in watched.clone() {
        let (namespace, service) = &webhook.service;
        match webhook.backends.as_slice() {
            [] => report.fail(
                "",
                &webhook.object,
                Finding::new(
                    "",
                    format!("failurePolicy Fail, and no pod behind Service {namespace}/{service}"),
                    "a pod that answers",
                    "no pod can be made already, so that no pod that is evicted comes back: repair it, or set its failurePolicy to Ignore",
                ),
            ),
            [(namespace, name, _, _)] => {
                if leaves.contains(&(namespace.as_str(), name.as_str())) {
                    report.warn(
                        "",
                        &webhook.object,
                        Finding::new(
                            "",
                            format!("failurePolicy Fail, and one pod behind it, which has to move: {namespace}/{name}"),
                            "two pods",
                            "scale it up for the time of the migration, or see that its own namespace is not covered by it: while its pod \
                             is away no pod is made, and where it covers itself its own successor is not either",
                        ),
                    );
                }
            }
            [_, _, ..] => {}
        }
    }
    report.finish(
        "every fail-closed webhook on pods, nodes or DaemonSets",
        format!("{} of them, each answered while pods move", watched.count()),
    )
}

/// What the migration cannot do by itself for a workload: it is no reason to refuse.
fn workloads(facts: &ClusterFacts, leaving: &[&Resident<'_>], raised: &BTreeSet<Workload>) -> Vec<Check> {
    let mut report = Report::new(CheckName::Workloads);
    let workloads: BTreeSet<&Workload> = leaving.iter().filter_map(|resident| resident.workload).collect();
    for workload in workloads.iter().copied() {
        for finding in judge(workload, facts, raised) {
            report.warn("", workload.key(), finding);
        }
    }
    let outside = outside(leaving, facts);
    if !outside.is_empty() {
        report.warn(
            "",
            "addresses of no IPPool",
            Finding::new(
                "",
                names(&outside),
                "pods with addresses of IPPools only",
                "these pods are evicted as well, and get an address of the new pool; if another network gives them theirs, they come back \
                 with the like, and the migration waits for them",
            ),
        );
    }
    report.finish(
        format!("{} workloads whose pods have to move", workloads.len()),
        "each has another pod meanwhile",
    )
}

fn judge(workload: &Workload, facts: &ClusterFacts, raised: &BTreeSet<Workload>) -> Vec<Finding<'static>> {
    if ["Job", "CronJob"].contains(&workload.kind.as_str()) {
        return vec![Finding::new(
            "",
            "a Job that runs",
            "one that has ended",
            "its pods are not evicted; the migration waits until it ends, or somebody deletes it",
        )];
    }
    let Some(known) = facts.workloads.get(workload) else {
        return vec![Finding::new(
            "",
            "nobody knows how many pods it has to have",
            "a Deployment, a StatefulSet, a DaemonSet, or a ReplicaSet of its own",
            "its pods are evicted one at a time, the next as soon as those that are there are Ready, whether another one has been made or \
             not: a PodDisruptionBudget holds that",
        )];
    };
    let mut findings = Vec::new();
    if known.wanted == 1 && workload.kind != "DaemonSet" && !raised.contains(workload) {
        findings.push(Finding::new(
            "",
            "one pod",
            "two, for a service that is not interrupted",
            "it is away while its pod moves: scale it up for the time of the migration if it can run twice, or accept that",
        ));
    }
    if known.on_delete {
        findings.push(Finding::new(
            "spec.updateStrategy",
            "OnDelete",
            "a template that its pods may come back from",
            "its pods are evicted like all others, and made again from its newest template: see that nobody holds an update back by it",
        ));
    }
    findings
}

/// Addresses that are in no pool, each with its pod: another network gave them, or a pool that is gone.
fn outside(leaving: &[&Resident<'_>], facts: &ClusterFacts) -> Vec<String> {
    let in_no_pool = |address: &IpAddr| {
        let of_family = |range: &IpNet| range.addr().is_ipv4() == address.is_ipv4();
        let mut of_family = facts
            .pools
            .values()
            .map(|pool| pool.range)
            .filter(of_family)
            .peekable();
        of_family.peek().is_some() && !of_family.any(|range| range.contains(address))
    };
    leaving
        .iter()
        .flat_map(|resident| {
            resident
                .pod
                .addresses
                .iter()
                .map(|address| (resident.pod, address))
        })
        .filter(|(_, address)| in_no_pool(address))
        .map(|(pod, address)| format!("{} {address}", pod.key()))
        .collect()
}

#[cfg(test)]
#[path = "workloads_tests.rs"]
mod tests;
