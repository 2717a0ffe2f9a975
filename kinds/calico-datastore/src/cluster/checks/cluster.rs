//! The cluster around Calico.

use super::{CheckName, CheckPolicy};
use crate::cluster::facts::ClusterFacts;
use crate::cluster::settings::Settings;
use engine::check::{Check, Finding, Report, Verdict, names};
use engine::words::lines;

/// How long a node may take until its calico-node is Ready again, in seconds, when the image is there.
const SECONDS_A_NODE: usize = 40;

pub(super) fn check(settings: &Settings, facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    [
        nodes(facts),
        vec![without_network(facts)],
        rules(policy),
        vec![pause(settings, facts, policy)],
        webhooks(facts),
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

fn rules(policy: &CheckPolicy) -> Vec<Check> {
    let mut report = Report::new(CheckName::RolloutRules);
    for field in &policy.without_effect {
        report.warn(
            "",
            *field,
            Finding::new(
                "",
                "set",
                "nothing: no pod starts before the last node is done, so nobody waits between two of them",
                "leave it out; it has no effect here",
            ),
        );
    }
    report.finish("rollout", format!("{} nodes at a time", policy.at_once))
}

/// Whether all nodes can be done before everything goes back by itself.
fn pause(settings: &Settings, facts: &ClusterFacts, policy: &CheckPolicy) -> Check {
    let name = CheckName::PauseLimit;
    let limit = usize::try_from(settings.pause_limit_seconds.value).unwrap_or(usize::MAX);
    let rounds = facts.nodes.len().div_ceil(policy.at_once.max(1));
    let settle = usize::try_from(settings.settle_seconds.value).unwrap_or_default();
    let needed = settle.saturating_add(rounds.saturating_mul(SECONDS_A_NODE));
    let object = "the pause";
    let found = format!(
        "about {needed} s for {} nodes, {} at a time",
        facts.nodes.len(),
        policy.at_once
    );
    if needed > limit {
        return name.not_pass(
            Verdict::Fail,
            object,
            found,
            format!("less than pauseLimitSeconds, which is {limit}: after that everything goes back by itself"),
            "more nodes at a time (rollout.maxUnavailable), or a longer pause (spec.calicoDatastore.pauseLimitSeconds)",
        );
    }
    if !facts.without_image.is_empty() {
        let images = facts.without_image.iter();
        let lacking: Vec<String> = images
            .map(|(image, nodes)| format!("{image} is not seen on Nodes {}", names(nodes)))
            .collect();
        return name.not_pass(
            Verdict::Warn,
            object,
            format!("{found}; {}", lines(&lacking)),
            "the images on every node before: while one is pulled no pod gets a network",
            "pull them there first (a DaemonSet with that image, `crictl pull`). kubelet tells of its 50 largest images only",
        );
    }
    name.pass(object, found)
}

/// Without an answer of theirs no pod is made; those on the pod network get none again while Calico is paused.
fn webhooks(facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::Webhooks);
    for webhook in facts
        .webhooks
        .iter()
        .filter(|webhook| webhook.covers_pods_or_nodes)
    {
        let is_on_the_host = |(_, _, _, on_pod_network): &(String, String, String, bool)| !on_pod_network;
        if webhook.backends.iter().any(is_on_the_host) {
            continue;
        }
        let (namespace, service) = &webhook.service;
        report.warn(
            "",
            &webhook.object,
            Finding::new(
                "",
                format!("failurePolicy Fail, and all pods behind Service {namespace}/{service} are on the pod network"),
                "that it answers while Calico is paused",
                "if its last pod starts again in the pause, it gets no network, and no calico-node is made any more: let it exclude kube-system, or \
                 set failurePolicy Ignore meanwhile",
            ),
        );
    }
    report.finish(
        "every fail-closed webhook on pods",
        format!(
            "{} answer on the host's network, or there is none",
            facts.webhooks.len()
        ),
    )
}

fn traffic(policy: &CheckPolicy) -> Check {
    let name = CheckName::TrafficGate;
    if policy.is_unwatched {
        return name.not_pass(
            Verdict::Warn,
            "gates.traffic",
            "Ignore: nobody sees what the pods lose",
            "Watch",
            "leave it out: traffic between pods then stops the migration by itself",
        );
    }
    name.pass("gates.traffic", "Watch: traffic that is lost stops the migration")
}
