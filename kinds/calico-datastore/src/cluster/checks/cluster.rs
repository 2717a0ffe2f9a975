//! Checks of the cluster around Calico: nodes, pods, rollout, pause, webhooks and traffic.

use super::{CheckName, CheckPolicy};
use crate::cluster::facts::ClusterFacts;
use crate::cluster::settings::Settings;
use engine::check::{Check, Finding, Report, Verdict, names};
use engine::words::lines;

/// Time until the calico-node of a node is Ready again, in seconds, when the node has the image.
const SECONDS_A_NODE: usize = 40;

pub(super) fn check(settings: &Settings, facts: &ClusterFacts, policy: &CheckPolicy) -> Vec<Check> {
    [
        nodes(facts),
        vec![without_network(facts)],
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
                "repair the Node, or delete it",
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
                "check that the coordinator may list Nodes",
            ),
        );
    }
    report.finish("every Node", format!("{} Ready", facts.nodes.len()))
}

fn without_network(facts: &ClusterFacts) -> Check {
    let name = CheckName::PendingPods;
    if facts.without_network.is_empty() {
        return name.pass("every pod on a node", "a network");
    }
    name.not_pass(
        Verdict::Warn,
        format!("pods {}", names(&facts.without_network)),
        "on a node, without a network",
        "no such pod: while Calico is paused, they are counted as waiting",
        "find out why they do not start: the cause stays the same after the migration",
    )
}

/// Checks that all nodes can change before the end of the pause.
fn pause(settings: &Settings, facts: &ClusterFacts, policy: &CheckPolicy) -> Check {
    let name = CheckName::PauseLimit;
    let limit = usize::try_from(settings.pause_limit_seconds.value).unwrap_or(usize::MAX);
    let rounds = facts.nodes.len().div_ceil(policy.max_unavailable.max(1));
    let settle = usize::try_from(settings.settle_seconds.value).unwrap_or_default();
    let needed = settle.saturating_add(rounds.saturating_mul(SECONDS_A_NODE));
    let object = "the pause";
    let found = format!(
        "about {needed} s (nodes: {}, at a time: {})",
        facts.nodes.len(),
        policy.max_unavailable
    );
    if needed > limit {
        return name.not_pass(
            Verdict::Fail,
            object,
            found,
            format!("at most pauseLimitSeconds, which is {limit}: after that, everything rolls back"),
            "raise rollout.maxUnavailable or spec.calicoDatastore.pauseLimitSeconds",
        );
    }
    if !facts.without_image.is_empty() {
        let images = facts.without_image.iter();
        let lacking: Vec<String> = images
            .map(|(image, nodes)| format!("{image} is not reported by Nodes {}", names(nodes)))
            .collect();
        return name.not_pass(
            Verdict::Warn,
            object,
            format!("{found}; {}", lines(&lacking)),
            "the images on every node: while one is pulled, no pod gets a network",
            "pull them first (a DaemonSet with that image, or `crictl pull`); kubelet reports only its 50 largest images",
        );
    }
    name.pass(object, found)
}

/// Checks the webhooks that every new pod depends on: a backend on the pod network that restarts gets no network while Calico is
/// paused.
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
                "answers while Calico is paused",
                "let it exclude kube-system, or set failurePolicy Ignore during the migration: if its last pod restarts in the \
                 pause, that pod gets no network, and no calico-node can be created",
            ),
        );
    }
    report.finish(
        "every fail-closed webhook on pods",
        format!(
            "a backend on the host network, or no such webhook (fail-closed webhooks: {})",
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
            "Ignore: lost traffic is not detected",
            "Watch",
            "remove the field: lost traffic between pods then stops the migration",
        );
    }
    name.pass("gates.traffic", "Watch: lost traffic stops the migration")
}
