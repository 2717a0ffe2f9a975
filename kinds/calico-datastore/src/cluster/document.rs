//! Renders the plan: every action on every object, in order.

use super::facts::ClusterFacts;
use super::manifest::KOPS;
use super::settings::Settings;
use crate::run::record::PREFIX;
use engine::document::{Action, Document, NodeActions};
use engine::words::names;

/// The plan. `order` has the nodes in the order in which they change.
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
        "all of Calico's data in both stores, with its checksum; the Secrets stay until you delete them",
    )];
    if !settings.controllers.value.is_empty() {
        actions.push(Action::new(
            "patch",
            format!("Deployment {}", settings.controllers.value),
            "replicas 0: no controller writes to etcd v2, and changed policies have no effect until the controllers run again",
        ));
    }
    actions.push(Action::new(
        "patch",
        "etcd v2: /calico/v1/Ready",
        format!(
            "\"false\": Calico is PAUSED. Running pods keep their network and policies; NEW PODS GET NO NETWORK, and deleted \
             pods stay Terminating, until Calico works with v3. After {} s, everything rolls back",
            settings.pause_limit_seconds.value
        ),
    ));
    actions.push(Action::new(
        "wait",
        format!("{} s", settings.settle_seconds.value),
        "for CNI plugins that started before the pause",
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
            format!("keys: {} ({})", converted.objects(), names(&all))
        });
    actions.push(Action::as_of_now(
        "create",
        "etcd v3: /calico/",
        format!(
            "{}; then every key is read again and compared. The record of the conversion is in {PREFIX}",
            keys.unwrap_or_else(|| "the data of etcd v2".to_owned())
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
            "the pod template of the manifest: {} in place of {}; updateStrategy OnDelete, so that replumb orders the nodes",
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
            "the DaemonSet creates it again with {}; no other pod of the node restarts or loses its network",
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
        "datastoreReady true: Calico works with v3, and waiting pods get their network. THE POINT OF NO RETURN: later changes \
         are in v3 alone",
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
            "no wait by replumb: after the end, you run `kops edit cluster`, set spec.networking.calico.majorVersion: v3, and \
             run `kops update cluster --yes`, so that kops does not restore v2",
        ));
    }
    actions.push(Action::new(
        "wait",
        "etcd v2: /calico",
        "no wait by replumb: the data stays. Remove it when you no longer need it: ETCDCTL_API=2 etcdctl rm -r /calico",
    ));
    actions
}
