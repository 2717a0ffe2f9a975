//! Rules of other programs on the hosts that name the links of flannel.

use super::CheckName;
use super::network::hosts;
use crate::facts::ClusterFacts;
use engine::check::{Check, Finding, Report};
use engine::words::number;

pub(super) fn check(facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::HostFirewall);
    let hosts = hosts(facts, &mut report);
    for (node, host) in &hosts {
        let Some(found) = &host.foreign_rules else {
            report.unknown(
                "Node",
                &node.name,
                Finding::new(
                    "firewall",
                    "the agent has not reported the rules of other programs",
                    "the rules that name cni0 or flannel's tunnel",
                    "wait for the next report; an agent of an earlier version does not report them: update it",
                ),
            );
            continue;
        };
        if let Some(problem) = &found.problem {
            report.unknown(
                "Node",
                &node.name,
                Finding::new(
                    "firewall",
                    problem,
                    "the rules that name cni0 or flannel's tunnel",
                    "check that `nft list ruleset` works on the node",
                ),
            );
        }
        for rule in &found.rules {
            report.fail(
                "Node",
                &node.name,
                Finding::new(
                    &rule.chain,
                    &rule.rule,
                    format!("also: {}", rule.twin),
                    "pods have links cali… and the tunnel is vxlan.calico once the node is migrated, so that the rule would no longer \
                     apply to them: add the second rule beside the first (firewalld: the interfaces cali+ and vxlan.calico to the same \
                     zone; ufw: the same route rule), on every node and permanently",
                ),
            );
        }
        if found.more > 0 {
            let more = number(
                usize::try_from(found.more).unwrap_or(usize::MAX),
                "more rule",
                "more rules",
            );
            report.fail(
                "Node",
                &node.name,
                Finding::new(
                    "firewall",
                    more,
                    "a second rule for the links of Calico beside each",
                    "add them like the others",
                ),
            );
        }
    }
    report.finish(
        format!("firewall of {}", number(hosts.len(), "host", "hosts")),
        "no rule of another program names the links of flannel alone",
    )
}
