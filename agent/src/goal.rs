//! Watches this node's own `NodeMigration`, and no other. Reads from the API.

use std::sync::Arc;
use std::time::Duration;

use api::NodeMigration;
use api::node_migration::NodeMigrationSpec;
use futures::StreamExt;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::backoff::{Backoff, LONGEST_PAUSE_ON_WATCH, LONGEST_PAUSE_WHILE_MIGRATING};
use crate::host::random;
use crate::kinds::{self, Attention};
use crate::watched_object::WatchedObject;

/// The longest pause between two attempts to reach the API server while the agent has no task.
const LONGEST_PAUSE: Duration = Duration::from_mins(1);

/// Follows the `NodeMigration` with the node's name until the process ends.
pub fn follow(client: Client, node: &str) -> (watch::Receiver<WatchedObject>, JoinHandle<()>) {
    let (sender, receiver) = watch::channel(WatchedObject::Unknown);
    let node = node.to_owned();
    let task = tokio::spawn(async move {
        let mut objects = std::pin::pin!(watch_object(Api::<NodeMigration>::all(client), &node));
        let mut failures = Backoff::default();
        let mut longest = LONGEST_PAUSE;
        while let Some(object) = objects.next().await {
            let seen = match object {
                Ok(Some(object)) => WatchedObject::Present(Arc::new(object)),
                Ok(None) => WatchedObject::Absent,
                Err(error) => {
                    // The last goal stays valid: an unreachable API server does not stop the migration of the node.
                    tracing::warn!(%node, error = runtime::error::chain(&error), "watching the NodeMigration failed; retrying");
                    let random = random::number().unwrap_or_default();
                    tokio::time::sleep(failures.after_failure(longest, random)).await;
                    continue;
                }
            };
            failures.succeeded();
            longest = longest_pause(&seen);
            if sender.send(seen).is_err() {
                return;
            }
        }
    });
    (receiver, task)
}

fn longest_pause(seen: &WatchedObject) -> Duration {
    let attention = match seen {
        WatchedObject::Present(object) => attention(&object.spec),
        WatchedObject::Unknown | WatchedObject::Absent => Attention::Idle,
    };
    match attention {
        Attention::Changing => LONGEST_PAUSE_WHILE_MIGRATING,
        Attention::Observed => LONGEST_PAUSE_ON_WATCH,
        Attention::Idle => LONGEST_PAUSE,
    }
}

/// How closely the agent follows its NodeMigration: the coordinator may need its observations although the host does not change.
fn attention(spec: &NodeMigrationSpec) -> Attention {
    match kinds::attention(spec) {
        _ if spec.started => Attention::Changing,
        Attention::Changing => Attention::Changing,
        _ if !spec.flows.is_empty() || !spec.probes.is_empty() => Attention::Observed,
        Attention::Observed if spec.finished_at.is_none() => Attention::Observed,
        Attention::Observed | Attention::Idle => Attention::Idle,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::idle(json!({}), LONGEST_PAUSE)]
    #[case::admitted(json!({ "started": true }), LONGEST_PAUSE_WHILE_MIGRATING)]
    #[case::goal_flannel(json!({ "flannelToCalico": { "goal": "Flannel" } }), LONGEST_PAUSE_WHILE_MIGRATING)]
    #[case::with_flows(
        json!({ "flows": [{ "class": "OldToOld", "source": "u", "to": "node b", "address": "10.244.1.2", "port": 9812 }] }),
        LONGEST_PAUSE_ON_WATCH
    )]
    #[case::with_probes(
        json!({ "probes": [{ "node": "b", "address": "10.244.1.2", "port": 9812, "podUid": "u" }] }),
        LONGEST_PAUSE_ON_WATCH
    )]
    #[case::kind_observes_every_node(json!({ "calicoDatastore": {} }), LONGEST_PAUSE_ON_WATCH)]
    #[case::finished(json!({ "calicoDatastore": {}, "finishedAt": "2026-01-01T00:00:00Z" }), LONGEST_PAUSE)]
    fn the_longest_pause_depends_on_the_spec(#[case] fields_of_case: Value, #[case] expected: Duration) {
        let mut spec = json!({ "nodeName": "a", "migration": "m" });
        let fields = spec.as_object_mut().unwrap();
        fields.extend(fields_of_case.as_object().unwrap().clone());
        let object = json!({
            "apiVersion": "replumb.dev/v1alpha1", "kind": "NodeMigration", "metadata": { "name": "a" }, "spec": spec,
        });
        let seen = WatchedObject::Present(Arc::new(serde_json::from_value(object).unwrap()));
        assert_eq!(longest_pause(&seen), expected);
        assert_eq!(longest_pause(&WatchedObject::Absent), LONGEST_PAUSE);
    }
}
