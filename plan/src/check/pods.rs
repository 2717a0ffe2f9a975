//! Pods that have to leave, and what would keep them, whatever kind of migration asks them to.

use std::collections::BTreeMap;

use super::{Check, Finding, Report, Verdict, names};
use crate::drain::{self, Budget, Permissions, Pod};

/// Budgets that never yield, or do not now, and pods that no budget may let go since they have two.
pub fn budgets(name: impl Into<&'static str>, leaving: &[&Pod], budgets: &[Budget]) -> Vec<Check> {
    let mut report = Report::new(name);
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

/// Pods that would lose their data.
pub fn empty_dir(name: impl Into<&'static str>, leaving: &[&Pod], permissions: Permissions) -> Vec<Check> {
    let mut report = Report::new(name);
    for pod in leaving
        .iter()
        .filter(|pod| !pod.mirror && !pod.empty_dirs.is_empty())
    {
        let (verdict, fix) = if permissions.delete_empty_dir_data {
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

/// Pods that the API cannot evict.
pub fn static_pods(name: impl Into<&'static str>, leaving: &[&Pod]) -> Vec<Check> {
    let mut report = Report::new(name);
    let obstacle = |pod: &Pod| drain::obstacle(pod, Permissions::default());
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
