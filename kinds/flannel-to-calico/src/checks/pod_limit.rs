//! Check that each node has room for the pods of replumb, in place: the pods of the node stay, and a kubelet that runs as many pods as
//! it may rejects the probe pod.

use std::collections::BTreeMap;

use super::{CheckName, CheckPolicy};
use crate::detect::flannel_nodes;
use crate::facts::ClusterFacts;
use crate::settings::Strategy;
use engine::check::{Check, Finding, Report};
use engine::words::number;

pub(super) fn check(facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    let mut report = Report::new(CheckName::PodLimit);
    if policy.strategy == Strategy::Drain {
        return report.finish(
            "Nodes",
            "the pods of a node leave before the probe pod starts".to_owned(),
        );
    }
    let mut used: BTreeMap<&str, u64> = BTreeMap::new();
    for pod in facts.pods.iter().filter(|pod| !pod.finished) {
        *used.entry(&pod.node).or_default() += 1;
    }
    // The probe pod, and a traffic pod beside it. calico-node takes the place of flannel's pod.
    let (needed, own_pods) = if policy.watches_traffic {
        (2, "a probe pod and a traffic pod of replumb")
    } else {
        (1, "a probe pod of replumb")
    };
    for node in flannel_nodes(facts) {
        let limit = node.allocatable_pods;
        let used = used.get(node.name.as_str()).copied().unwrap_or_default();
        let missing = used.saturating_add(needed).saturating_sub(limit);
        // The check MalformedObjects names amounts that could not be parsed; a node that is not Ready may report none.
        if limit == 0 && (!node.ready || !node.not_understood.is_empty()) {
            continue;
        }
        if missing > 0 {
            let fix = format!(
                "move {} to other nodes, or raise maxPods of its kubelet",
                number(missing, "pod", "pods")
            );
            let finding = Finding::new(
                "status.allocatable.pods",
                format!("{limit}, {} on the node", number(used, "pod", "pods")),
                format!("room for {own_pods}"),
                &fix,
            );
            report.fail("Node", &node.name, finding);
        }
    }
    report.finish("Nodes", format!("each node has room for {own_pods}"))
}

#[cfg(test)]
mod tests;
