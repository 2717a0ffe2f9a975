//! Pods that have to leave their nodes, and what would keep them.

use super::{CheckName, CheckPolicy};
use crate::cluster::ClusterFacts;
use crate::detect::flannel_nodes;
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

/// What the user said of pods that do not go.
fn meanwhile(policy: &CheckPolicy) -> Option<&'static str> {
    match (policy.on_blocked, policy.strategy) {
        (OnBlocked::Pause, _) => None,
        (OnBlocked::Wait, Strategy::Drain) => {
            Some("its node waits for it, and holds a place of maxUnavailable")
        }
        (OnBlocked::Skip, Strategy::Drain) => {
            Some("its node is passed over, and tried again after all others")
        }
        (OnBlocked::Wait | OnBlocked::Skip, Strategy::InPlace) => {
            Some("all others start again, and its node stays in phase Mixed")
        }
    }
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
                "allowed by spec.drain.force: it is evicted, and nobody creates it again".to_owned(),
            )
        } else {
            pods::held(
                meanwhile(policy),
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

/// Pods that may take longer than their node waits for them: as long as they are there its network does not change.
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
                    format!("{} s at most, which is spec.drain.timeoutSeconds", time.limit.as_secs()),
                    "if its process takes that long, its node stays on flannel: ask its owner, or set spec.drain.gracePeriodSeconds",
                ),
            );
        }
    }
    report.finish(
        "every pod that has to leave",
        "ends within spec.drain.timeoutSeconds",
    )
}

#[cfg(test)]
#[path = "pods_tests.rs"]
mod tests;
