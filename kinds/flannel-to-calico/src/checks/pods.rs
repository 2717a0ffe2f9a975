//! Checks of pods to evict, and of what can block their eviction.

use super::{CheckName, CheckPolicy};
use crate::detect::flannel_nodes;
use crate::facts::ClusterFacts;
use crate::settings::Strategy;
use engine::check::{Check, Finding, Report, Verdict, budgets, pods};
use engine::drain::Pod;
use engine::evict::OnBlocked;

pub(super) fn check(facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    let leaving = leaving(facts);
    [
        budgets::check(
            CheckName::DisruptionBudgets,
            &leaving,
            &facts.budgets,
            meanwhile(policy),
        ),
        bare(&leaving, policy),
        pods::empty_dir(
            CheckName::EmptyDir,
            &leaving,
            policy.permissions,
            meanwhile(policy),
        ),
        pods::static_pods(CheckName::StaticPods, &leaving),
    ]
    .concat()
}

/// The effect of `spec.drain.onBlocked` on a pod that cannot be evicted.
fn meanwhile(policy: &CheckPolicy) -> Option<&'static str> {
    match (policy.on_blocked, policy.strategy) {
        (OnBlocked::Pause, _) => None,
        (OnBlocked::Wait, Strategy::Drain) => {
            Some("the node waits for the pod, and counts as unavailable for maxUnavailable")
        }
        (OnBlocked::Skip, Strategy::Drain) => {
            Some("the node is skipped, and tried again after all other nodes")
        }
        (OnBlocked::Wait | OnBlocked::Skip, Strategy::InPlace) => {
            Some("all other pods restart, and the node stays in phase Mixed")
        }
    }
}

/// Pods on the pod network of nodes on flannel that are not terminating.
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
                "allowed by spec.drain.force: the pod is evicted, and not created again".to_owned(),
            )
        } else {
            pods::verdict_for_blocked_pod(
                meanwhile(policy),
                Verdict::Fail,
                "delete the pod, create it with a controller, or allow its eviction by spec.drain.force: no controller \
                 would create it again",
            )
        };
        report.add(
            verdict,
            "Pod",
            pod.key(),
            Finding::new("", "no controller", "a controller", fix),
        );
    }
    report.finish("every pod to evict", "has a controller")
}

/// Pods whose grace period is longer than the drain timeout: the network of a node does not change before its pods are gone.
pub(super) fn grace_periods(facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    let mut report = Report::new(CheckName::GracePeriods);
    let time = &policy.time;
    for pod in leaving(facts) {
        if let Some(seconds) = time.exceeded_by(pod) {
            report.warn(
                "Pod",
                pod.key(),
                Finding::new(
                    "",
                    format!("a grace period of {seconds} s"),
                    format!("at most {} s, which is spec.drain.timeoutSeconds", time.limit.as_secs()),
                    "set spec.drain.gracePeriodSeconds, or ask the owner of the pod: if it needs that long to end, the node \
                     stays on flannel",
                ),
            );
        }
    }
    report.finish(
        "every pod to evict",
        "has a grace period of at most spec.drain.timeoutSeconds",
    )
}

#[cfg(test)]
mod tests;
