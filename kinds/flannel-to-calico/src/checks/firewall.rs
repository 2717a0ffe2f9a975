//! Rules of other programs on the hosts that name the links of flannel.

use super::network::hosts;
use super::{CheckName, CheckPolicy};
use crate::facts::ClusterFacts;
use crate::foreign_rules::ForeignRule;
use crate::settings::FirewallTwins;
use engine::check::{Check, Finding, Report};
use engine::words::number;

pub(super) fn check(facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
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
            match (policy.firewall_twins, &rule.refused) {
                (FirewallTwins::Refuse, _) => report.fail("Node", &node.name, needed(rule)),
                (FirewallTwins::Write, None) => report.warn("Node", &node.name, will_be_written(rule)),
                (FirewallTwins::Write, Some(problem)) => {
                    report.fail("Node", &node.name, cannot_be_written(rule, problem));
                }
            }
        }
        // The agent writes these as well, and stops before its first change if one is refused.
        if found.more > 0 && policy.firewall_twins == FirewallTwins::Refuse {
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

fn needed(rule: &ForeignRule) -> Finding<'_> {
    Finding::new(
        &rule.chain,
        &rule.rule,
        format!("also: {}", rule.twin),
        "pods have links cali… and the tunnel is vxlan.calico once the node is migrated, so that the rule would no longer apply to \
         them: add the second rule beside the first (firewalld: the interfaces cali+ and vxlan.calico to the same zone; ufw: the same \
         route rule), on every node and permanently; or let the agents write it for the migration (--write-firewall-twins)",
    )
}

fn will_be_written(rule: &ForeignRule) -> Finding<'_> {
    Finding::new(
        &rule.chain,
        &rule.rule,
        format!("also: {}", rule.twin),
        "nothing for the migration: the agent writes the second rule with the comment replumb-twin, and a rollback removes it. Add it \
         to the permanent rules of its program as well, before that program reloads them or the node restarts",
    )
}

fn cannot_be_written<'rule>(rule: &'rule ForeignRule, problem: &'rule str) -> Finding<'rule> {
    Finding::new(
        &rule.chain,
        format!("{}; the agent cannot write its twin: {problem}", rule.rule),
        format!("also: {}", rule.twin),
        "add a rule for the links cali… and vxlan.calico with the same effect by the program that owns this one",
    )
}
