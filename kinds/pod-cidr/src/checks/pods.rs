//! Pods that have to move, and what would keep them.

use std::net::IpAddr;

use ipnet::IpNet;

use super::{CheckName, CheckPolicy};
use crate::facts::ClusterFacts;
use crate::holders::{Cluster, holders_besides_tunnels};
use crate::settings::Settings;
use engine::check::{Check, Finding, Report, budgets, names, pods};
use engine::drain::Pod;
use engine::moves::{Movers, Resident, Wave};

pub(super) fn check(
    settings: &Settings,
    facts: &ClusterFacts,
    leaving: &[&Resident<'_>],
    policy: CheckPolicy,
) -> Vec<Check> {
    let evicted: Vec<&Pod> = leaving
        .iter()
        .filter(|resident| Wave::of(resident).is_evicted(policy.delete_bare_pods))
        .map(|resident| resident.pod)
        .collect();
    let meanwhile = policy
        .on_blocked
        .meanwhile("all others move, and stage Verify waits for it");
    [
        budgets::check(CheckName::DisruptionBudgets, &evicted, &facts.budgets, meanwhile),
        pods::empty_dir(CheckName::EmptyDir, &evicted, policy.permissions, meanwhile),
        static_pods(settings, facts),
        bare(leaving, policy),
        held(settings, facts),
    ]
    .concat()
}

/// Pods that the migration moves.
pub(super) fn leaving<'facts>(
    settings: &Settings,
    facts: &ClusterFacts,
    residents: &'facts [Resident<'facts>],
) -> Vec<&'facts Resident<'facts>> {
    let targets = settings.stay(&settings.to.value, facts.ranges());
    residents
        .iter()
        .filter(|resident| resident.pod.deleted_at.is_none() && Movers::OutOf(&targets).has(resident.pod))
        .collect()
}

/// Static pods with an address of the old range.
fn static_pods(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::StaticPods);
    let from = settings.from.value;
    let is_old = |address: &&IpAddr| from.contains(&IpNet::from(**address));
    for pod in facts
        .pods
        .iter()
        .filter(|pod| pod.mirror && pod.uses_pod_network())
    {
        let old: Vec<String> = pod
            .addresses
            .iter()
            .filter(is_old)
            .map(ToString::to_string)
            .collect();
        if old.is_empty() {
            continue;
        }
        report.fail(
            "Pod",
            pod.key(),
            Finding::new(
                "",
                format!("a static pod on node {} with {}", pod.node, names(&old)),
                "static pods with hostNetwork only, or an address of another range",
                "the API cannot evict it, and it would keep the old range for ever: give it hostNetwork, or take its manifest out of the \
                 kubelet's folder until the migration is over",
            ),
        );
    }
    report.finish("every static pod", format!("none has an address of {from}"))
}

fn bare(leaving: &[&Resident<'_>], policy: CheckPolicy) -> Vec<Check> {
    let mut report = Report::new(CheckName::BarePods);
    for resident in leaving.iter().filter(|resident| resident.workload.is_none()) {
        let fix = if policy.delete_bare_pods {
            "allowed by spec.podCidr.deleteBarePods: it is evicted last, and nobody creates it again"
        } else {
            "it is left alone, and the migration waits for it after all others: delete it then, or set spec.podCidr.deleteBarePods"
        };
        let finding = Finding::new("", "no controller", "a controller", fix);
        report.warn("Pod", resident.pod.key(), finding);
    }
    report.finish("every pod that has to move", "has a controller")
}

fn held(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::Holders);
    let from = settings.from.value;
    let allocations: Vec<_> = facts
        .blocks
        .iter()
        .filter(|block| from.contains(&block.range))
        .flat_map(|block| &block.allocations)
        .collect();
    let cluster = Cluster {
        pods: &facts.pods,
        nodes: &facts.calico_nodes,
        calico: &settings.calico_daemon_set_namespace.value,
    };
    for words in holders_besides_tunnels(allocations.iter().copied(), cluster) {
        let finding = Finding::new(
            "",
            words,
            "only pods that run, and ends of tunnels",
            "do it now, or when the migration waits for it (stage Verify): the old pool is not deleted before",
        );
        report.warn("range", from.to_string(), finding);
    }
    report.finish(
        format!(
            "{} addresses of {from} that Calico's IPAM has given out",
            allocations.len()
        ),
        "all are of pods that run, or of ends of tunnels",
    )
}

#[cfg(test)]
#[path = "pods_tests.rs"]
mod tests;
