//! Pods that have to move, and what would keep them.

use super::{CheckName, CheckPolicy};
use crate::check::{Check, Finding, Report, Verdict, pods};
use crate::drain::Pod;
use crate::pod_cidr::facts::ClusterFacts;
use crate::pod_cidr::holders::holders;
use crate::pod_cidr::moves::has_to_move;
use crate::pod_cidr::residents::workload_of;
use crate::pod_cidr::settings::Settings;

pub(super) fn check(settings: &Settings, facts: &ClusterFacts, policy: CheckPolicy) -> Vec<Check> {
    let leaving = leaving(settings, facts);
    [
        pods::budgets(CheckName::DisruptionBudgets, &leaving, &facts.budgets),
        pods::empty_dir(CheckName::EmptyDir, &leaving, policy.permissions),
        pods::static_pods(CheckName::StaticPods, &static_pods(settings, facts)),
        bare(&leaving, policy),
        workloads(&leaving, facts),
        held(settings, facts),
    ]
    .concat()
}

/// Pods that the migration moves.
pub(super) fn leaving<'facts>(settings: &Settings, facts: &'facts ClusterFacts) -> Vec<&'facts Pod> {
    let pools = facts.pools.values().map(|pool| (pool.name.as_str(), pool.range));
    let targets = settings.stay(&settings.to.value, pools);
    facts
        .pods
        .iter()
        .filter(|pod| pod.deleted_at.is_none() && has_to_move(pod, &targets))
        .collect()
}

/// Static pods with an address of the old range.
fn static_pods<'facts>(settings: &Settings, facts: &'facts ClusterFacts) -> Vec<&'facts Pod> {
    let from = settings.from.value;
    facts
        .pods
        .iter()
        .filter(|pod| pod.mirror && pod.uses_pod_network())
        .filter(|pod| {
            pod.addresses
                .iter()
                .any(|address| from.contains(&ipnet::IpNet::from(*address)))
        })
        .collect()
}

fn bare(leaving: &[&Pod], policy: CheckPolicy) -> Vec<Check> {
    let mut report = Report::new(CheckName::BarePods);
    for pod in leaving.iter().filter(|pod| pod.controller.is_none()) {
        let fix = if policy.delete_bare_pods {
            "allowed by spec.podCidr.deleteBarePods: it is evicted last, and nobody creates it again"
        } else {
            "it is left alone, and the migration waits for it after all others: delete it then, or set spec.podCidr.deleteBarePods"
        };
        let finding = Finding::new("", "no controller", "a controller", fix);
        report.add(Verdict::Warn, "Pod", pod.key(), finding);
    }
    report.finish("every pod that has to move", "has a controller")
}

/// What an operator has to know before: it is no reason to refuse.
fn workloads(leaving: &[&Pod], facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::Workloads);
    let mut seen = std::collections::BTreeSet::new();
    for pod in leaving {
        let Some(workload) = workload_of(pod) else {
            continue;
        };
        let Some(known) = facts.workloads.get(&workload) else {
            continue;
        };
        if !seen.insert(workload.clone()) {
            continue;
        }
        if known.wanted == 1 && workload.kind != "DaemonSet" && workload.kind != "Job" {
            report.warn(
                "",
                workload.key(),
                Finding::new(
                    "",
                    "one pod",
                    "two, for a service that is not interrupted",
                    "it is away while its pod moves: scale it up for the time of the migration, or accept that",
                ),
            );
        }
        if workload.kind == "Job" {
            report.warn(
                "",
                workload.key(),
                Finding::new(
                    "",
                    "a Job that runs",
                    "one that has ended",
                    "its pods are not evicted; the migration waits until it ends, or somebody deletes it",
                ),
            );
        }
    }
    report.finish(
        "every workload whose pods have to move",
        "has another pod meanwhile",
    )
}

fn held(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::Holders);
    let from = settings.from.value;
    let allocations: Vec<_> = facts
        .blocks
        .iter()
        .filter(|block| from.contains(&block.range))
        .flat_map(|block| block.allocations.iter().cloned())
        .collect();
    let calico = &settings.calico_daemon_set_namespace.value;
    for words in holders(&allocations, &facts.pods, calico) {
        // Tunnels take another address by themselves once the pool is closed.
        if words.starts_with("the tunnel of node") {
            continue;
        }
        let finding = Finding::new(
            "",
            words,
            "only pods that run, and tunnels",
            "do it before the migration, or when it waits for it (stage Verify)",
        );
        report.warn("range", from.to_string(), finding);
    }
    report.finish(
        format!(
            "{} addresses of {from} that Calico's IPAM has given out",
            allocations.len()
        ),
        "all are of pods that run, or of tunnels",
    )
}
