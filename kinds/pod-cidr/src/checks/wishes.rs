//! What the Migration itself asks for and cannot have, or should not want.

use super::{CheckName, CheckPolicy};
use crate::facts::ClusterFacts;
use crate::settings::Mode;
use engine::check::{Check, Finding, Report};

pub(super) fn check(facts: &ClusterFacts, policy: CheckPolicy) -> Vec<Check> {
    let mut checks = mode(facts, policy.mode);
    checks.extend(gate(policy.is_unwatched));
    checks
}

/// Pods of a node that is drained have to go somewhere.
fn mode(facts: &ClusterFacts, mode: Mode) -> Vec<Check> {
    let mut report = Report::new(CheckName::Mode);
    let open = facts.places();
    let found = match mode {
        Mode::ByWorkload => "ByWorkload: pods move workload by workload",
        Mode::ByNode if open < 2 => {
            report.fail(
                "",
                "spec.podCidr.mode",
                Finding::new(
                    "",
                    format!("ByNode, and {open} nodes that take pods"),
                    "two nodes that are Ready, and neither cordoned nor tainted",
                    "uncordon or add a node, or take a taint away; or mode ByWorkload, which cordons none",
                ),
            );
            ""
        }
        Mode::ByNode => "ByNode: pods leave node by node, each cordoned for that time",
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
                "leave gates.traffic out: nobody proves then that pods of the new range are reached before every pod gets one of its \
                 addresses, and nothing stops the migration when traffic is lost",
            ),
        );
    }
    report.finish(
        "spec.gates.traffic",
        "Watch: pods of both ranges reach each other, or the migration stops",
    )
}

#[cfg(test)]
mod tests {
    use engine::check::{Verdict, worst};

    use super::super::fixture;
    use super::*;

    #[test]
    fn drained_pods_need_a_place_and_what_is_not_watched_is_said() {
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
