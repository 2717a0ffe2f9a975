//! The plan: every action on every object, in order.

use super::facts::ClusterFacts;
use super::manifest::KOPS;
use super::settings::Settings;
use crate::run::record::PREFIX;
use engine::document::{Action, Document, NodeActions};
use engine::words::names;

/// Writes the plan. `order` is the nodes, as they go.
pub fn document(settings: &Settings, facts: &ClusterFacts, order: &[String]) -> Document {
    Document {
        prepare: prepare(settings, facts),
        nodes: order
            .iter()
            .map(|node| NodeActions {
                node: node.clone(),
                prepare: Vec::new(),
                actions: on_node(settings),
            })
            .collect(),
        finish: finish(settings, facts),
    }
}

fn prepare(settings: &Settings, facts: &ClusterFacts) -> Vec<Action> {
    let mut actions = vec![Action::new(
        "create",
        "Secrets replumb-calico-datastore-… in the coordinator's namespace",
        "everything of Calico's in both stores, with its checksum; they stay until a person deletes them",
    )];
    if !settings.controllers.value.is_empty() {
        actions.push(Action::new(
            "patch",
            format!("Deployment {}", settings.controllers.value),
            "replicas 0: nobody writes to etcd v2 any more, and policies that change take no effect until it is back",
        ));
    }
    actions.push(Action::new(
        "patch",
        "etcd v2: /calico/v1/Ready",
        format!(
            "\"false\": Calico is PAUSED. Pods that run go on by the rules that are there; NEW PODS GET NO NETWORK, and pods that are deleted stay \
             Terminating, until Calico works with v3. After {} s everything goes back by itself",
            settings.pause_limit_seconds.value
        ),
    ));
    actions.push(Action::new(
        "wait",
        format!("{} s", settings.settle_seconds.value),
        "what CNI plugins began before ends",
    ));
    let keys = facts
        .read_stores()
        .and_then(|stores| stores.conversion.as_ref().ok())
        .map(|converted| {
            let all: Vec<String> = converted
                .keys
                .iter()
                .map(|(kind, count)| format!("{count} {kind}"))
                .collect();
            format!("{} keys: {}", converted.objects(), names(&all))
        });
    actions.push(Action::as_of_now(
        "create",
        "etcd v3: /calico/",
        format!(
            "{}; then every key is read again and compared. The record of it is in {PREFIX}",
            keys.unwrap_or_else(|| "what etcd v2 has".to_owned())
        ),
    ));
    if !settings.configuration.value.is_empty() {
        actions.push(Action::new(
            "patch",
            format!("ConfigMap {}", settings.configuration.value),
            "the data of the manifest",
        ));
    }
    actions.push(Action::new(
        "patch",
        format!("DaemonSet {}", settings.daemon_set.value),
        format!(
            "the pod template of the manifest: {} in place of {}; updateStrategy OnDelete, so that each node goes when it is its turn",
            settings.to_image.value, settings.from_image.value
        ),
    ));
    actions
}

fn on_node(settings: &Settings) -> Vec<Action> {
    vec![Action::new(
        "evict",
        "the pod of calico-node",
        format!(
            "it is made again with {}; no other pod of the node starts again, and none loses its network",
            settings.to_image.value
        ),
    )]
}

fn finish(settings: &Settings, facts: &ClusterFacts) -> Vec<Action> {
    let mut actions = Vec::new();
    if !settings.controllers.value.is_empty() {
        actions.push(Action::new(
            "patch",
            format!("Deployment {}", settings.controllers.value),
            "the pod template of the manifest, and its replicas",
        ));
    }
    actions.push(Action::new(
        "patch",
        "etcd v3: ClusterInformation default",
        "datastoreReady true: Calico works with v3, and pods that waited get their network. THE POINT OF NO RETURN: what is written from now on \
         is in v3 alone",
    ));
    actions.push(Action::new(
        "patch",
        format!("DaemonSet {}", settings.daemon_set.value),
        "updateStrategy of the manifest",
    ));
    let is_of_kops = facts
        .daemon_set
        .as_ref()
        .is_some_and(|found| KOPS.iter().any(|label| found.object.labels.contains_key(*label)));
    if is_of_kops {
        actions.push(Action::new(
            "wait",
            "kops",
            "not waited for, and not before the end: a person runs `kops edit cluster`, sets spec.networking.calico.majorVersion: v3, and \
             `kops update cluster --yes`, so that kops does not bring v2 back",
        ));
    }
    actions.push(Action::new(
        "wait",
        "etcd v2: /calico",
        "not waited for: it stays as it is. When nobody wants it back any more, a person removes it: ETCDCTL_API=2 etcdctl rm -r /calico",
    ));
    actions
}
