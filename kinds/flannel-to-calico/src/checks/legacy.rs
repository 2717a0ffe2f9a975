//! Check that each pod on flannel's bridge is known.

use super::network::hosts;
use super::{CheckName, CheckPolicy};
use crate::facts::ClusterFacts;
use crate::host::{HostSettings, links_without_known_pod, obstacles};
use crate::settings::{LegacyPods, Settings, Strategy};
use engine::check::{Check, Finding, Report, Verdict, names};

pub(super) fn check(settings: &Settings, facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    let mut report = Report::new(CheckName::LegacyPods);
    // In place, Calico could assign an unknown address to another pod. A drain waits until the link is gone.
    let verdict = match policy.strategy {
        Strategy::InPlace => Verdict::Fail,
        Strategy::Drain => Verdict::Warn,
    };
    let mut known = 0;
    for (node, host) in hosts(facts, &mut report) {
        known += host.legacy_pods.iter().filter(|pod| pod.attached).count();
        for problem in links_without_known_pod(host) {
            let finding = Finding::new(
                "cni0",
                problem,
                "a libcni record for each link on cni0",
                "delete the pod of that link; the new pod has a record",
            );
            report.add(verdict, "Node", &node.name, finding);
        }
        if (policy.strategy, policy.legacy_pods) == (Strategy::InPlace, LegacyPods::Adopt) {
            for pod in obstacles(host, &HostSettings::of(settings)) {
                let finding = Finding::new(
                    "cni0",
                    format!("{pod}, so the pod cannot be adopted"),
                    "a pod that can be adopted",
                    "restart the pod after its node is on Calico; until then cni0 stays on the node",
                );
                report.add(Verdict::Warn, "Node", &node.name, finding);
            }
        }
        let answered = host.bridge.present().map_or(&[][..], |bridge| &bridge.answered);
        let in_place = policy.strategy == Strategy::InPlace && settings.ipv6.is_some();
        if in_place && !answered.is_empty() {
            let listed: Vec<String> = answered.iter().map(ToString::to_string).collect();
            let finding = Finding::new(
                "cni0",
                format!("already answers for {}", names(&listed)),
                "answers for its own addresses only: a rollback removes all others",
                "delete these proxy entries (`ip -6 neighbour show proxy dev cni0`), or use strategy Drain",
            );
            report.add(Verdict::Fail, "Node", &node.name, finding);
        }
    }
    report.finish("pods on cni0", format!("{known}, each with a known sandbox"))
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{self, verdicts};
    use super::*;
    use crate::facts::Found;
    use engine::check::Verdict::{Fail, Pass, Warn};

    #[test]
    fn a_link_without_a_record_is_named_and_fails_in_place() {
        let mut facts = fixture::cluster();
        let judge = |facts: &ClusterFacts, strategy| {
            let policy = CheckPolicy {
                strategy,
                ..fixture::policy()
            };
            check(&fixture::settings(), facts, &policy)
        };
        assert_eq!(
            verdicts(&judge(&facts, Strategy::InPlace)),
            [("LegacyPods", Pass)]
        );
        if let Found::Present(bridge) = &mut facts.hosts.get_mut("b").unwrap().bridge {
            bridge.ports.push("veth9".to_owned());
        }
        let found = judge(&facts, Strategy::InPlace);
        assert_eq!(verdicts(&found), [("LegacyPods", Fail)]);
        assert!(
            found[0].object.contains("Node b") && found[0].found.contains("veth9"),
            "{found:?}"
        );
        assert_eq!(verdicts(&judge(&facts, Strategy::Drain)), [("LegacyPods", Warn)]);
    }

    #[test]
    fn a_bridge_that_answers_for_other_addresses_fails_in_place() {
        let (settings, mut facts) = fixture::dual_stack();
        if let Found::Present(bridge) = &mut facts.hosts.get_mut("b").unwrap().bridge {
            bridge.answered.push("fd00:10:244:2::50/128".parse().unwrap());
        }
        for (strategy, expected) in [(Strategy::InPlace, Fail), (Strategy::Drain, Pass)] {
            let policy = CheckPolicy {
                strategy,
                ..fixture::policy()
            };
            let found = check(&settings, &facts, &policy);
            assert_eq!(verdicts(&found), [("LegacyPods", expected)]);
            assert_eq!(found[0].found.contains("fd00:10:244:2::50"), expected == Fail);
        }
    }
}
