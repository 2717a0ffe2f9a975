//! Pods that are started again: whether each may go.

use super::{CheckName, CheckPolicy};
use crate::facts::ClusterFacts;
use engine::check::{Check, Finding, Report, budgets, pods};
use engine::drain::Pod;
use engine::residents::workload_of;

pub(super) fn check(facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    // Every pod that runs was told the address of Service `default/kubernetes` when it started.
    let told: Vec<&Pod> = facts
        .pods
        .iter()
        .filter(|pod| !pod.finished && pod.deleted_at.is_none())
        .collect();
    let evicted: Vec<&Pod> = told
        .iter()
        .copied()
        .filter(|pod| !pod.mirror && (policy.delete_bare_pods || workload_of(pod).is_some()))
        .collect();
    let meanwhile = policy
        .on_blocked
        .meanwhile("all others start again, and stage Restart waits for it");
    [
        bare(&told, policy),
        budgets::check(CheckName::DisruptionBudgets, &evicted, &facts.budgets, meanwhile),
        pods::empty_dir(CheckName::EmptyDir, &evicted, policy.permissions, meanwhile),
        static_pods(&told),
    ]
    .concat()
}

fn bare(told: &[&Pod], policy: &CheckPolicy) -> Vec<Check> {
    let mut report = Report::new(CheckName::BarePods);
    for pod in told {
        if pod.mirror || workload_of(pod).is_some() {
            continue;
        }
        let (found, fix) = if policy.delete_bare_pods {
            (
                "is deleted in stage Restart, and nobody makes it again",
                "take it away yourself first, or leave deleteBarePods out",
            )
        } else {
            (
                "has no controller that makes it again",
                "it was told old addresses when it started, and stage Restart waits for it: delete it before, or set \
                 serviceCidr.deleteBarePods",
            )
        };
        report.warn("Pod", pod.key(), Finding::new("", found, "a controller", fix));
    }
    report.finish("every pod", "has a controller that makes it again")
}

/// Nobody can evict them, and what they were told they are told again only by their kubelet.
fn static_pods(told: &[&Pod]) -> Vec<Check> {
    let mut report = Report::new(CheckName::StaticPods);
    for pod in told.iter().filter(|pod| pod.mirror) {
        report.warn(
            "Pod",
            pod.key(),
            Finding::new(
                "",
                "is a static pod, and was told old addresses when it started",
                "a start after the exchange",
                "most of them ask for no Service: then it matters nothing, and nobody waits for it. One that does: move its manifest out of \
                 the kubelet's folder and back, after stage FollowUp",
            ),
        );
    }
    report.finish("static pods", "there are none")
}
