//! Checks of the agents: each node has one that reports, and none has found a problem on its host that would halt it.

use super::CheckName;
use crate::detect::linux_nodes;
use crate::facts::ClusterFacts;
use crate::host_checks::HostCheck;
use engine::check::{Check, Finding, Report, Verdict, agents};

pub(super) fn check(facts: &ClusterFacts) -> Vec<Check> {
    [missing(facts), host_checks(facts)].concat()
}

fn missing(facts: &ClusterFacts) -> Vec<Check> {
    let reports = |node: &str| facts.hosts.contains_key(node);
    agents::missing(CheckName::AgentMissing, linux_nodes(facts), reports)
}

/// The check of the coordinator for the same prerequisite; `None` if only the agent checks it.
fn judged_as(check: HostCheck) -> Option<CheckName> {
    match check {
        HostCheck::CniConfiguration => Some(CheckName::ConflistMalformed),
        HostCheck::SubnetEnvironment => Some(CheckName::SubnetEnvironment),
        HostCheck::FlannelDevice => Some(CheckName::NetworkConfigurationMatchesDevice),
        HostCheck::DirectRouting => Some(CheckName::DirectRouting),
        HostCheck::ReversePathFilter => Some(CheckName::ReversePathFilter),
        HostCheck::BridgeNetfilter => Some(CheckName::BridgeNetfilter),
        HostCheck::HostAddress => Some(CheckName::PublicAddress),
        // Without flanneld, flannel's pod is not Ready.
        HostCheck::FlannelProcess => Some(CheckName::FlannelDaemonSet),
        HostCheck::HostReadable
        | HostCheck::FlannelBridge
        | HostCheck::CalicoDevice
        | HostCheck::Leftovers
        | HostCheck::Journal => None,
    }
}

/// Problems that would halt an agent later: a journal that cannot be written, a `cni0` that is no bridge.
fn host_checks(facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::HostChecks);
    for (node, checks) in &facts.host_checks {
        let start = format!("Node {node}: ");
        // An unknown name comes from an agent of another version: its refusal counts.
        let of_the_agent = checks.iter().filter(|check| {
            check.verdict != Verdict::Pass && HostCheck::read(&check.name).and_then(judged_as).is_none()
        });
        for check in of_the_agent {
            let object = check.object.strip_prefix(&start).unwrap_or(&check.object);
            let part = format!("{object} ({})", check.name);
            let finding = Finding::new(&part, &check.found, &check.needed, &check.fix);
            report.add(check.verdict, "Node", node, finding);
        }
    }
    let silent = linux_nodes(facts).filter(|node| !facts.host_checks.contains_key(&node.name));
    for node in silent {
        let finding = Finding::new(
            "host",
            "no check result from the agent",
            "the results of the agent's checks",
            "see check AgentMissing",
        );
        report.unknown("Node", &node.name, finding);
    }
    report.finish(
        "checks of the agents on their hosts",
        format!("no other problem; agents: {}", facts.host_checks.len()),
    )
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::fixture::{self, verdicts};
    use super::*;
    use crate::host_checks;
    use engine::check::Verdict::{Fail, Pass, Unknown};

    #[test]
    fn each_node_without_a_report_fails() {
        let mut facts = fixture::cluster();
        facts.hosts.remove("b");
        facts.nodes.get_mut("c").unwrap().ready = false;
        facts.hosts.remove("c");
        let checks = missing(&facts);
        assert_eq!(
            verdicts(&checks),
            [("AgentMissing", Fail), ("AgentMissing", Fail)]
        );
        assert_eq!(checks[0].object, "Node b");
        assert_eq!(checks[1].found, "no report of an agent; the Node is NotReady");
    }

    #[test]
    fn a_windows_node_needs_no_agent() {
        let mut facts = fixture::cluster();
        facts.nodes.get_mut("c").unwrap().operating_system = "windows".to_owned();
        facts.hosts.remove("c");
        assert_eq!(verdicts(&missing(&facts)), [("AgentMissing", Pass)]);
    }

    #[test]
    fn a_cluster_without_nodes_is_unknown() {
        assert_eq!(
            verdicts(&missing(&ClusterFacts::default())),
            [("AgentMissing", Unknown)]
        );
    }

    #[test]
    fn a_journal_that_cannot_be_written_fails() {
        let mut facts = fixture::cluster();
        let problem = Err("write probe: No space left on device (os error 28)".to_owned());
        let check = host_checks::journal("b", Path::new("/var/lib/replumb"), &problem);
        facts.host_checks.insert("b".to_owned(), vec![check]);
        let checks = super::host_checks(&facts);
        assert_eq!(verdicts(&checks), [("HostChecks", Fail)]);
        assert_eq!(checks[0].object, "Node b: /var/lib/replumb (Journal)");
        assert!(checks[0].found.contains("No space left"), "{checks:?}");
        assert!(!checks[0].fix.is_empty());
    }

    #[test]
    fn a_check_of_the_coordinator_is_not_repeated() {
        let mut facts = fixture::cluster();
        let check = Check::not_pass(
            "CniConfiguration",
            Fail,
            "Node b: /etc/cni/net.d",
            "none",
            "one",
            "see",
        );
        facts.host_checks.insert("b".to_owned(), vec![check]);
        assert_eq!(verdicts(&super::host_checks(&facts)), [("HostChecks", Pass)]);
    }

    #[test]
    fn a_failed_check_of_another_version_fails() {
        let mut facts = fixture::cluster();
        let check = Check::not_pass("KernelTooNew", Fail, "Node b: kernel", "9.0", "less", "see");
        facts.host_checks.insert("b".to_owned(), vec![check]);
        assert_eq!(verdicts(&super::host_checks(&facts)), [("HostChecks", Fail)]);
    }

    #[test]
    fn a_host_without_check_results_is_unknown() {
        let mut facts = fixture::cluster();
        facts.host_checks.remove("b");
        assert_eq!(verdicts(&super::host_checks(&facts)), [("HostChecks", Unknown)]);
    }
}
