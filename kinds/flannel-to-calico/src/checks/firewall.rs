//! Rules of other programs on the hosts that name the links of flannel.

use super::network::hosts;
use super::{CheckName, CheckPolicy};
use crate::facts::ClusterFacts;
use crate::foreign_rules::ForeignRule;
use crate::settings::{FirewallTwins, LegacyPods, Strategy};
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
        let adopts = (policy.strategy, policy.legacy_pods) == (Strategy::InPlace, LegacyPods::Adopt);
        let passage = found.passage.iter().filter(|_| adopts).map(|rule| (rule, true));
        let mut refused = found.refused;
        for (rule, is_passage) in found.rules.iter().map(|rule| (rule, false)).chain(passage) {
            match (policy.firewall_twins, &rule.refused) {
                (_, Some(problem)) => {
                    refused = refused.saturating_sub(u32::from(!is_passage));
                    report.fail("Node", &node.name, cannot_be_written(rule, problem));
                }
                (FirewallTwins::Refuse, None) if is_passage => {
                    report.fail("Node", &node.name, needed_for_adoption(rule));
                }
                (FirewallTwins::Refuse, None) => report.fail("Node", &node.name, needed(rule)),
                (FirewallTwins::Write, None) => report.warn("Node", &node.name, will_be_written(rule)),
            }
        }
        // With twins by the agent, only the refused ones are the user's.
        let more = match policy.firewall_twins {
            FirewallTwins::Refuse => found.more,
            FirewallTwins::Write => refused,
        };
        if more > 0 {
            let more = usize::try_from(more).unwrap_or(usize::MAX);
            report.fail(
                "Node",
                &node.name,
                Finding::new(
                    "firewall",
                    number(
                        more,
                        "more rule without its twin",
                        "more rules without their twins",
                    ),
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

fn needed_for_adoption(rule: &ForeignRule) -> Finding<'_> {
    Finding::new(
        &rule.chain,
        &rule.rule,
        format!("also, while pods are adopted: {}", rule.twin),
        "for some seconds pods keep the links veth… off the bridge, so that neither this rule nor that for cali… applies to them: add \
         this rule as well, on every node, and remove it after the migration; or let the agents write it for that time \
         (--write-firewall-twins); or leave the pods on their bridge (--legacy-pods keep or restart, or strategy drain)",
    )
}

fn will_be_written(rule: &ForeignRule) -> Finding<'_> {
    Finding::new(
        &rule.chain,
        &rule.rule,
        format!("also: {}", rule.twin),
        "nothing for the migration: the agent writes the second rule, with the comment replumb-twin (replumb-passage for an adoption), and \
         removes it in a rollback. Add the rule for the links of Calico to the permanent rules of its program as well, before that program \
         reloads them or the node restarts",
    )
}

fn cannot_be_written<'rule>(rule: &'rule ForeignRule, problem: &'rule str) -> Finding<'rule> {
    Finding::new(
        &rule.chain,
        format!("{}; no agent can write its twin: {problem}", rule.rule),
        format!("also: {}", rule.twin),
        "change the rules of the program that owns this one, so that they say the same about the links cali… and vxlan.calico",
    )
}
