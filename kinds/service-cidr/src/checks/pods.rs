//! Pods that have to restart, and obstacles to their eviction.

use super::{CheckName, CheckPolicy};
use crate::facts::ClusterFacts;
use engine::check::{Check, Finding, Report, budgets, pods};
use engine::drain::Pod;
use engine::residents::workload_of;

pub(super) fn check(facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    // Every running pod has received the address of Service `default/kubernetes` when it started.
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
        .effect_unless_pause("all other pods restart, and stage Restart waits for this one");
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
                "has no controller, and is deleted in stage Restart",
                "delete it yourself first, or omit deleteBarePods",
            )
        } else {
            (
                "has no controller",
                "delete it before stage Restart, which waits for it because it has received old addresses, or set \
                 serviceCidr.deleteBarePods",
            )
        };
        report.warn("Pod", pod.key(), Finding::new("", found, "a controller", fix));
    }
    report.finish("every pod", "has a controller")
}

/// Static pods cannot be evicted, and receive new addresses only when their kubelet restarts them.
fn static_pods(told: &[&Pod]) -> Vec<Check> {
    let mut report = Report::new(CheckName::StaticPods);
    for pod in told.iter().filter(|pod| pod.mirror) {
        report.warn(
            "Pod",
            pod.key(),
            Finding::new(
                "",
                "a static pod that has received old addresses",
                "a restart after the exchange",
                "if it uses a Service, move its manifest out of the kubelet's directory and back after stage FollowUp. Most \
                 static pods use no Service and need no restart; the migration does not wait for them",
            ),
        );
    }
    report.finish("static pods", "none")
}
