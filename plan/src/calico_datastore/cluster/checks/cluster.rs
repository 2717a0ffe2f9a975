//! The cluster around Calico.

use super::{CheckName, CheckPolicy};
use crate::calico_datastore::cluster::facts::ClusterFacts;
use crate::check::{Check, Finding, Report, Verdict, names};

pub(super) fn check(facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    [
        nodes(facts),
        vec![without_network(facts)],
        vec![rules(policy)],
        vec![traffic(policy)],
    ]
    .concat()
}

fn nodes(facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::NodesReady);
    for node in facts.nodes.values().filter(|node| !node.ready) {
        report.fail(
            "Node",
            &node.name,
            Finding::new(
                "",
                "NotReady",
                "Ready: Calico stays paused until each node has the calico-node of v3",
                "bring it back, or delete the Node",
            ),
        );
    }
    if facts.nodes.is_empty() {
        report.unknown(
            "the list of",
            "Nodes",
            Finding::new(
                "",
                "no Node",
                "at least one",
                "see whether the coordinator may list Nodes",
            ),
        );
    }
    report.finish("every Node", format!("{} Ready", facts.nodes.len()))
}

fn without_network(facts: &ClusterFacts) -> Check {
    let name = CheckName::PendingPods;
    if facts.without_network.is_empty() {
        return name.pass("every pod on a node", "has its network");
    }
    name.not_pass(
        Verdict::Warn,
        format!("pods {}", names(&facts.without_network)),
        "on a node, and without a network",
        "none: while Calico is paused such pods are counted",
        "see why they do not start: what they wait for now they wait for afterwards, too",
    )
}

fn rules(policy: &CheckPolicy) -> Check {
    let name = CheckName::RolloutRules;
    if policy.without_effect.is_empty() {
        return name.pass("rollout", "as this kind rolls calico-node");
    }
    name.not_pass(
        Verdict::Warn,
        policy.without_effect.join(", "),
        "set",
        "nothing: no pod starts before the last node is done, so nobody waits between two of them",
        "leave it out; it has no effect here",
    )
}

fn traffic(policy: &CheckPolicy) -> Check {
    let name = CheckName::TrafficGate;
    if policy.is_unwatched {
        return name.not_pass(
            Verdict::Warn,
            "gates.traffic",
            "Off: nobody sees what the pods lose",
            "Watch",
            "leave it out: traffic between pods then stops the migration by itself",
        );
    }
    name.pass("gates.traffic", "Watch: traffic that is lost stops the migration")
}
