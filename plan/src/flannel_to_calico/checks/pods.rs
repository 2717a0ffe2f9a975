//! Pods that have to leave their nodes, and what would keep them.

use std::collections::BTreeMap;

use super::{CheckName, CheckPolicy};
use crate::check::{Check, Finding, Report, Verdict, names};
use crate::drain::{self, Budget, Pod};
use crate::flannel_to_calico::cluster::ClusterFacts;
use crate::flannel_to_calico::detect::flannel_nodes;

pub(super) fn check(facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    let leaving = leaving(facts);
    [
        budgets(&leaving, &facts.budgets),
        bare(&leaving, policy),
        empty_dir(&leaving, policy),
        static_pods(&leaving),
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

fn budgets(leaving: &[&Pod], budgets: &[Budget]) -> Vec<Check> {
    let mut report = Report::new(CheckName::DisruptionBudgets);
    let mut by_namespace: BTreeMap<&str, Vec<&Pod>> = BTreeMap::new();
    for pod in leaving.iter().filter(|pod| !pod.mirror) {
        by_namespace.entry(&pod.namespace).or_default().push(pod);
    }
    let mut owners: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let mut guarding = 0;
    for budget in budgets {
        let Some(selector) = &budget.selector else {
            continue;
        };
        let pods: Vec<String> = by_namespace
            .get(budget.namespace.as_str())
            .into_iter()
            .flatten()
            .filter(|pod| selector.matches(&pod.labels))
            .map(|pod| pod.key())
            .collect();
        if pods.is_empty() {
            continue;
        }
        guarding += 1;
        for pod in &pods {
            owners.entry(pod.clone()).or_default().push(&budget.name);
        }
        if budget.disruptions_allowed <= 0 {
            blocked(budget, &pods, &mut report);
        }
    }
    for (pod, budgets) in owners.iter().filter(|(_, budgets)| budgets.len() > 1) {
        report.fail(
            "Pod",
            pod,
            Finding::new(
                "",
                format!(
                    "selected by {} PodDisruptionBudgets: {}",
                    budgets.len(),
                    names(budgets)
                ),
                "one at most",
                "the API server evicts no pod with two budgets: correct their selectors",
            ),
        );
    }
    report.finish(
        "every PodDisruptionBudget",
        format!("{guarding} guard pods that have to leave, and each allows a disruption"),
    )
}

fn blocked(budget: &Budget, pods: &[String], report: &mut Report) {
    let of_pods = format!("guards {}", names(pods));
    let key = format!("{}/{}", budget.namespace, budget.name);
    let (verdict, found, fix) = if budget.expected_pods == 0 {
        (
            Verdict::Unknown,
            format!("0 disruptions allowed, 0 pods expected; {of_pods}"),
            "its controller has not counted the pods, or cannot (`kubectl describe pdb` says why)",
        )
    } else if budget.desired_healthy >= budget.expected_pods {
        (
            Verdict::Fail,
            format!(
                "0 disruptions allowed, {} of {} pods must stay healthy; {of_pods}",
                budget.desired_healthy, budget.expected_pods
            ),
            "it never yields: allow one disruption, or add a replica, while the migration runs",
        )
    } else {
        (
            Verdict::Fail,
            format!(
                "0 disruptions allowed now, {} of {} pods healthy, {} needed; {of_pods}",
                budget.current_healthy, budget.expected_pods, budget.desired_healthy
            ),
            "see why its pods are not healthy; no pod of it is evicted before they are",
        )
    };
    let finding = Finding::new("", found, "at least 1 disruption allowed", fix);
    report.add(verdict, "PodDisruptionBudget", key, finding);
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

fn empty_dir(leaving: &[&Pod], policy: &CheckPolicy) -> Vec<Check> {
    let mut report = Report::new(CheckName::EmptyDir);
    for pod in leaving
        .iter()
        .filter(|pod| !pod.mirror && !pod.empty_dirs.is_empty())
    {
        let (verdict, fix) = if policy.permissions.delete_empty_dir_data {
            (
                Verdict::Warn,
                "allowed by spec.drain.deleteEmptyDirData: the data is lost with the pod",
            )
        } else {
            (
                Verdict::Fail,
                "the data is lost when the pod leaves its node: save what matters, then allow it by \
                 spec.drain.deleteEmptyDirData",
            )
        };
        let found = format!("emptyDir volumes {}", names(&pod.empty_dirs));
        report.add(
            verdict,
            "Pod",
            pod.key(),
            Finding::new("", found, "no emptyDir volume", fix),
        );
    }
    report.finish("every pod that has to leave", "has no emptyDir volume")
}

fn static_pods(leaving: &[&Pod]) -> Vec<Check> {
    let mut report = Report::new(CheckName::StaticPods);
    let obstacle = |pod: &Pod| drain::obstacle(pod, drain::Permissions::default());
    for pod in leaving
        .iter()
        .filter(|pod| obstacle(pod) == Some(drain::Obstacle::Static))
    {
        report.fail(
            "Pod",
            pod.key(),
            Finding::new(
                "",
                format!("a static pod on the pod network of node {}", pod.node),
                "static pods with hostNetwork only",
                "the API cannot evict it, and it would keep a dead network: move its manifest out of the kubelet's \
                 folder while the node is in work",
            ),
        );
    }
    report.finish("every static pod", "is on the host's network")
}

#[cfg(test)]
#[path = "pods_tests.rs"]
mod tests;
