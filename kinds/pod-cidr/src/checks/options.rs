//! Options of the Migration that cannot work in this cluster, or that are dangerous.

use super::{CheckName, CheckPolicy};
use crate::facts::ClusterFacts;
use crate::settings::Mode;
use engine::check::{Check, Finding, Report};

pub(super) fn check(facts: &ClusterFacts, policy: CheckPolicy) -> Vec<Check> {
    let mut checks = mode(facts, policy.mode);
    checks.extend(gate(policy.is_unwatched));
    checks
}

/// Mode `ByNode` needs another node for the pods of a drained node.
fn mode(facts: &ClusterFacts, mode: Mode) -> Vec<Check> {
    let mut report = Report::new(CheckName::Mode);
    let open = facts.nodes_for_pods();
    let found = match mode {
        Mode::ByWorkload => "ByWorkload: pods move workload by workload",
        Mode::ByNode if open < 2 => {
            report.fail(
                "",
                "spec.podCidr.mode",
                Finding::new(
                    "",
                    format!("ByNode, and nodes that accept pods: {open}"),
                    "two nodes that are Ready, not cordoned and not tainted",
                    "uncordon or add a node, remove a taint, or use mode ByWorkload, which cordons no node",
                ),
            );
            ""
        }
        Mode::ByNode => "ByNode: pods move node by node, and each node is cordoned during its drain",
    };
    report.finish("spec.podCidr.mode", found)
}

fn gate(is_unwatched: bool) -> Vec<Check> {
    let mut report = Report::new(CheckName::TrafficGate);
    if is_unwatched {
        report.warn(
            "",
            "spec.gates.traffic",
            Finding::new(
                "",
                "Ignore",
                "Watch",
                "omit gates.traffic: with Ignore, connectivity of the new range is not tested before all pods get its \
                 addresses, and lost traffic does not stop the migration",
            ),
        );
    }
    report.finish(
        "spec.gates.traffic",
        "Watch: the migration stops if pods of both ranges cannot reach each other",
    )
}

#[cfg(test)]
mod tests {
    use engine::check::{Verdict, worst};

    use super::super::fixture;
    use super::*;

    #[test]
    fn mode_by_node_needs_two_nodes_and_unwatched_traffic_is_a_warning() {
        let facts = fixture::cluster();
        assert_eq!(worst(&check(&facts, CheckPolicy::default())), Verdict::Pass);
        let by_node = CheckPolicy {
            mode: Mode::ByNode,
            ..CheckPolicy::default()
        };
        assert_eq!(worst(&check(&facts, by_node)), Verdict::Pass);
        let mut one = facts.clone();
        for node in one.nodes.values_mut().skip(1) {
            node.unschedulable = true;
        }
        assert_eq!(worst(&check(&one, by_node)), Verdict::Fail);
        assert_eq!(worst(&check(&one, CheckPolicy::default())), Verdict::Pass);
        let unwatched = CheckPolicy {
            is_unwatched: true,
            ..CheckPolicy::default()
        };
        assert_eq!(worst(&check(&facts, unwatched)), Verdict::Warn);
    }
}
