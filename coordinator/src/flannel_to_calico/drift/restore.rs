//! Writes again what somebody else changed, once it is announced.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use api::node_migration::LabelRecord;
use api::{NodeMigration, names};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::super::calico;
use super::{Found, Mend, selector};
use crate::context::Context;
use crate::tell;
use crate::write::{self, WriteError};

/// So many within [`WINDOW`] are written as soon as they are found, of each object. Somebody who writes back each time is not
/// raced: every change of a selector is a roll of its `DaemonSet`.
const AT_ONCE: usize = 3;
const WINDOW: Duration = Duration::from_mins(1);
/// From then on.
const PACE: Duration = Duration::from_secs(10);
/// More writes than this are left to the next pass.
const WRITES_AT_ONCE: usize = 100;

/// When each object was written again, lately.
#[derive(Debug, Default)]
pub struct Restores {
    times: BTreeMap<String, VecDeque<Instant>>,
}

impl Restores {
    /// Whether this object may be written once more now; counts it.
    fn may(&mut self, object: &str, now: Instant) -> bool {
        let is_old = |time: &Instant| now.saturating_duration_since(*time) > WINDOW;
        self.times.retain(|_, times| {
            times.retain(|time| !is_old(time));
            !times.is_empty()
        });
        let times = self.times.entry(object.to_owned()).or_default();
        let paced = times.len() >= AT_ONCE
            && times
                .back()
                .is_some_and(|last| now.saturating_duration_since(*last) < PACE);
        if !paced {
            times.push_back(now);
        }
        !paced
    }
}

/// What came of it.
#[derive(Debug, Default)]
pub struct Restored {
    /// Nodes whose label was not what was written: nothing else is decided of them in this pass.
    pub nodes: BTreeSet<String>,
    /// What the API server refused, each with its words.
    pub refused: Vec<String>,
}

/// Writes all of it again. What the API server refuses is an answer, and nothing else waits for it.
pub async fn restore(
    context: &Context,
    restores: &mut Restores,
    found: &[Found],
) -> Result<Restored, WriteError> {
    let mut restored = Restored::default();
    let mut written = 0;
    for found in found {
        if let Mend::Label { node, .. } = &found.mend {
            restored.nodes.insert(node.name_any());
        }
        let Some(object) = object(&found.mend) else {
            continue;
        };
        if written >= WRITES_AT_ONCE || !restores.may(&object, Instant::now()) {
            continue;
        }
        written += 1;
        match mend(context, &found.mend).await {
            // It changed again: the next look tells.
            Ok(()) | Err(WriteError::Conflict { .. }) => {}
            Err(
                error @ WriteError::Api {
                    source: kube::Error::Api(_),
                    ..
                },
            ) => {
                let words = tell::chain(&error);
                restored
                    .refused
                    .push(format!("{}; it cannot be written again: {words}", found.what));
            }
            Err(error @ WriteError::Api { .. }) => return Err(error),
        }
    }
    Ok(restored)
}

/// Which object is written; `None` when that is left to its owner.
fn object(mend: &Mend) -> Option<String> {
    match mend {
        Mend::Label { node, .. } => Some(write::describe(node.as_ref())),
        Mend::Selector { set, .. } => Some(write::describe(set.as_ref())),
        Mend::Create { kind, object } => Some(format!("{} {}", kind.0, object["metadata"]["name"])),
        Mend::Patch { kind, found, .. } => Some(format!("{} {}", kind.0, found.name_any())),
        Mend::ByItsOwner => None,
    }
}

async fn mend(context: &Context, mend: &Mend) -> Result<(), WriteError> {
    match mend {
        Mend::Label { node, record, needed } => restore_label(context, node, record, needed).await,
        Mend::Selector { set, network } => {
            let namespace = set.namespace().unwrap_or_default();
            let sets: Api<DaemonSet> = Api::namespaced(context.client.clone(), &namespace);
            let attempt = "restoring the node selector of";
            write::patch(&sets, set.as_ref(), attempt, selector(network))
                .await
                .map(|_| ())
        }
        Mend::Create { kind, object } => match kind.create(&context.client, object).await? {
            calico::Created::Now | calico::Created::Before => Ok(()),
        },
        Mend::Patch { kind, found, change } => kind.patch_spec(&context.client, found, change).await,
        Mend::ByItsOwner => Ok(()),
    }
}

/// Two caches may be of different age: what is recorded of the label is read again before the Node is written.
async fn restore_label(
    context: &Context,
    node: &Node,
    record: &LabelRecord,
    needed: &str,
) -> Result<(), WriteError> {
    let name = node.name_any();
    let migrations: Api<NodeMigration> = Api::all(context.client.clone());
    let now = migrations
        .get(&name)
        .await
        .map_err(|source| WriteError::of("reading", format!("NodeMigration {name}"), source))?;
    if now.spec.label != *record {
        return Ok(());
    }
    let nodes: Api<Node> = Api::all(context.client.clone());
    let change = json!({ "metadata": { "labels": { names::NODE_NETWORK_LABEL: needed } } });
    write::patch(&nodes, node, "restoring the label of", change)
        .await
        .map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_writes_back_each_time_is_answered_every_ten_seconds() {
        let start = Instant::now();
        let mut restores = Restores::default();
        let at = |seconds| start + Duration::from_secs(seconds);
        for _ in 0..AT_ONCE {
            assert!(restores.may("Node a", at(0)));
        }
        assert!(!restores.may("Node a", at(0)));
        assert!(restores.may("Node b", at(0)), "it is another's");
        assert!(!restores.may("Node a", at(9)));
        assert!(restores.may("Node a", at(10)));
        assert!(!restores.may("Node a", at(11)));
        assert!(restores.may("Node a", at(80)), "it was quiet for a minute");
        assert!(restores.may("Node a", at(81)));
    }
}
