//! Workloads whose pods have to move, and the webhooks that admit the replacement pods.

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

/// Nodes for the replacement pods.
fn places(facts: &ClusterFacts, leaving: &[&Resident<'_>]) -> Vec<Check> {
    let mut report = Report::new(CheckName::SchedulableNodes);
    let (usable, others): (Vec<_>, Vec<_>) = facts.linux_nodes().partition(|node| node.schedulable());
    if usable.is_empty() {
        report.fail(
            "",
            "Nodes",
            Finding::new(
                "",
                format!("none of {} accepts pods", others.len()),
                "at least one that is Ready, not cordoned and not tainted",
                "uncordon or add nodes: otherwise evicted pods are not replaced",
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
                    format!("cordoned, pods that have to move: {count}"),
                    "a node that accepts their replacements",
                    "uncordon it, unless the pods may move to other nodes with free capacity",
                ),
            );
        }
    }
    report.finish("Nodes", format!("accept pods: {}", usable.len()))
}

/// While a fail-closed webhook does not answer, no pod can be created, including the pods of the webhook itself.
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
                    "a running pod",
                    "repair the webhook, or set its failurePolicy to Ignore: no pod can be created now, so evicted pods are not \
                     replaced",
                ),
            ),
            [(namespace, name, _, _)] => {
                if leaves.contains(&(namespace.as_str(), name.as_str())) {
                    report.warn(
                        "",
                        &webhook.object,
                        Finding::new(
                            "",
                            format!("failurePolicy Fail, and a single pod, which has to move: {namespace}/{name}"),
                            "two pods",
                            "scale it up during the migration, or exclude its own namespace from the webhook: while its pod \
                             moves no pod can be created, and a webhook that covers its own pods blocks its own replacement",
                        ),
                    );
                }
            }
            [_, _, ..] => {}
        }
    }
    report.finish(
        "every fail-closed webhook on pods, nodes or DaemonSets",
        format!("{} found, each answers while pods move", watched.count()),
    )
}

/// Workloads that need attention from the user. None refuses the migration.
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
                "none, if these pods get their addresses from Calico: they are evicted too, and get addresses of the new pool. \
                 If another network assigns them, their replacements get such addresses again, and the migration waits for them",
            ),
        );
    }
    report.finish(
        format!("workloads whose pods have to move: {}", workloads.len()),
        "each has another running pod while one moves",
    )
}

fn judge(workload: &Workload, facts: &ClusterFacts, raised: &BTreeSet<Workload>) -> Vec<Finding<'static>> {
    if ["Job", "CronJob"].contains(&workload.kind.as_str()) {
        return vec![Finding::new(
            "",
            "a running Job",
            "a finished Job",
            "wait for its end, or delete it: its pods are not evicted, and the migration waits for them",
        )];
    }
    let Some(known) = facts.workloads.get(workload) else {
        return vec![Finding::new(
            "",
            "its number of replicas is unknown",
            "a Deployment, a StatefulSet, a DaemonSet or a ReplicaSet",
            "create a PodDisruptionBudget: its pods are evicted one at a time, the next one as soon as all existing ones are \
             Ready, even if no replacement was created",
        )];
    };
    let mut findings = Vec::new();
    if known.wanted == 1 && workload.kind != "DaemonSet" && !raised.contains(workload) {
        findings.push(Finding::new(
            "",
            "1 replica",
            "2 replicas, for a service without interruption",
            "scale it up during the migration if it can run twice, or accept that it is unavailable while its pod moves",
        ));
    }
    if known.on_delete {
        findings.push(Finding::new(
            "spec.updateStrategy",
            "OnDelete",
            "a template that may be applied to all pods",
            "check that no update is held back by OnDelete: its pods are evicted like all others, and replaced from its newest \
             template",
        ));
    }
    findings
}

/// Addresses in no pool, each with its pod: assigned by another network, or from a deleted pool.
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
mod tests;
