//! Pods that have to leave their nodes, and what would keep them.

use super::{CheckName, CheckPolicy};
use crate::check::{Check, Finding, Report, Verdict, budgets, pods};
use crate::drain::Pod;
use crate::flannel_to_calico::cluster::ClusterFacts;
use crate::flannel_to_calico::detect::flannel_nodes;

pub(super) fn check(facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    let leaving = leaving(facts);
    [
        budgets::check(CheckName::DisruptionBudgets, &leaving, &facts.budgets),
        bare(&leaving, policy),
        pods::empty_dir(CheckName::EmptyDir, &leaving, policy.permissions),
        pods::static_pods(CheckName::StaticPods, &leaving),
    ]
    .concat()
}

/// Pods on the pod network of nodes on flannel, that are not on their way out already.
pub(super) fn leaving(facts: &ClusterFacts) -> Vec<&Pod> {
    let nodes: std::collections::BTreeSet<&str> =
        flannel_nodes(facts).map(|node| node.name.as_str()).collect();
    facts
        .pods
        .iter()
        .filter(|pod| pod.uses_pod_network() && pod.deleted_at.is_none() && nodes.contains(pod.node.as_str()))
        .collect()
}

fn bare(leaving: &[&Pod], policy: &CheckPolicy) -> Vec<Check> {
    let mut report = Report::new(CheckName::BarePods);
    for pod in leaving
        .iter()
        .filter(|pod| !pod.mirror && pod.controller.is_none())
    {
        let (verdict, fix) = if policy.permissions.force {
            (
                Verdict::Warn,
                "allowed by spec.drain.force: it is evicted, and nobody creates it again",
            )
        } else {
            (
                Verdict::Fail,
                "nobody would create it again: delete it, put it under a controller, or allow it by spec.drain.force",
            )
        };
        report.add(
            verdict,
            "Pod",
            pod.key(),
            Finding::new("", "no controller", "a controller", fix),
        );
    }
    report.finish("every pod that has to leave", "has a controller")
}

#[cfg(test)]
#[path = "pods_tests.rs"]
mod tests;
