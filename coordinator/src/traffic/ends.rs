//! The end of traffic: senders stop, each agent reports its last counts, and the traffic pods are deleted.

use api::{MigrationStatus, NodeMigration};
use engine::decision::{Wait, WaitReason};
use engine::words::number;
use kube::ResourceExt;

use super::reports::sums;
use super::silences::PATIENCE;
use super::{TrafficMemory, ask_one};
use crate::context::Context;
use crate::drafts::Drafts;
use crate::snapshot::Snapshot;
use crate::write::WriteError;
use crate::{facts, own_pods};

/// Ends all traffic, after the last node or after a rollback. Each pass until the end adds up the agents' reports.
///
/// # Errors
///
/// An object changed since it was read, or the API server refuses a request or does not answer.
pub async fn end(
    context: &Context,
    known: &mut TrafficMemory,
    snapshot: &Snapshot,
    status: &mut MigrationStatus,
) -> Result<(), WriteError> {
    status.traffic = sums(snapshot, &status.traffic);
    known.unreported.keep(unreported(snapshot).map(str::to_owned));
    let mut asks = Drafts::default();
    for object in snapshot.node_migrations.values() {
        ask_one(&mut asks, object, Vec::new(), None, None);
    }
    asks.write(context).await?;
    for pod in &snapshot.traffic_pods {
        own_pods::delete(context, pod).await?;
    }
    Ok(())
}

/// The wait at the end: for traffic pods that are terminating, then for agents that have not reported their last counts. An
/// unready node is not waited for, and a silent agent for at most 2 minutes.
pub fn ending(known: &TrafficMemory, snapshot: &Snapshot) -> Option<Wait> {
    let pods = snapshot.traffic_pods.iter().filter_map(|pod| {
        let node = pod.spec.as_ref()?.node_name.as_deref()?;
        is_ready(snapshot, node)
            .then(|| format!("traffic pod {} on node {node} is terminating", pod.name_any()))
    });
    let agents = unreported(snapshot)
        .filter(|node| !known.unreported.has_lasted(&(*node).to_owned(), PATIENCE))
        .map(|node| format!("node {node}: its agent has not reported its last losses yet"));
    wait(WaitReason::PodsTerminating, pods).or_else(|| wait(WaitReason::TrafficUnwatched, agents))
}

fn wait(reason: WaitReason, mut remaining: impl Iterator<Item = String>) -> Option<Wait> {
    let first = remaining.next()?;
    let message = match remaining.count() {
        0 => first,
        others => format!("{first}, and {}", number(others, "other", "others")),
    };
    Some(Wait {
        reason,
        message,
        until: None,
    })
}

fn is_ready(snapshot: &Snapshot, node: &str) -> bool {
    snapshot
        .nodes
        .get(node)
        .is_some_and(|node| facts::nodes::is_ready(node))
}

/// Nodes with a Ready agent that has not reported its last counts yet.
fn unreported(snapshot: &Snapshot) -> impl Iterator<Item = &str> {
    snapshot
        .node_migrations
        .iter()
        .filter(|(node, object)| {
            !has_reported(object)
                && is_ready(snapshot, node)
                && snapshot.agent_ready(node)
                && !snapshot.unclear.contains_key(*node)
        })
        .map(|(node, _)| node.as_str())
}

/// Whether the agent has stopped counting and reported that. Its counts come with the generation that has no paths.
fn has_reported(object: &NodeMigration) -> bool {
    let counts = object.status.as_ref().filter(|status| status.traffic.is_some());
    let is_current =
        counts.is_none_or(|status| Some(status.observed_generation) >= object.metadata.generation);
    object.spec.flows.is_empty() && is_current
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::fake_api::FakeApi;

    fn node_migration(node: &str) -> String {
        format!("/apis/replumb.dev/v1alpha1/nodemigrations/{node}")
    }

    fn counts(lost: u64) -> Value {
        json!({
            "flows": 1, "reporting": [], "breaches": [], "at": "2026-01-01T00:00:00Z",
            "classes": [{ "class": "OldToOld", "sent": 100, "lost": lost, "longestGapMilliseconds": 100 }],
        })
    }

    /// Three nodes whose agents send, and have reported one lost probe each.
    fn cluster() -> FakeApi {
        let api = FakeApi::default();
        for node in ["a", "b", "c"] {
            api.put(
                &format!("/api/v1/nodes/{node}"),
                json!({
                    "metadata": { "name": node },
                    "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
                }),
            );
            api.put(
                &agent(node),
                json!({
                    "metadata": { "name": format!("agent-{node}"), "namespace": "replumb-system", "ownerReferences": [{
                        "apiVersion": "apps/v1", "kind": "DaemonSet", "name": api::names::AGENT, "uid": "d", "controller": true,
                    }] },
                    "spec": { "nodeName": node, "hostNetwork": true, "containers": [] },
                    "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
                }),
            );
            let flow = json!({
                "class": "OldToOld", "source": "u-1", "to": "node a", "address": "10.244.1.30", "port": 9812,
            });
            api.put(
                &node_migration(node),
                json!({
                    "apiVersion": "replumb.dev/v1alpha1", "kind": "NodeMigration",
                    "metadata": { "name": node, "generation": 1 },
                    "spec": { "nodeName": node, "migration": "m", "flows": [flow] },
                    "status": { "observedGeneration": 1, "traffic": counts(1) },
                }),
            );
        }
        api
    }

    fn agent(node: &str) -> String {
        format!("/api/v1/namespaces/replumb-system/pods/agent-{node}")
    }

    /// The agent reports for the generation without paths.
    fn answers(api: &FakeApi, node: &str, lost: u64) {
        let generation = api.get(&node_migration(node)).unwrap()["metadata"]["generation"].clone();
        api.edit(
            &node_migration(node),
            &json!({ "status": { "observedGeneration": generation, "traffic": counts(lost) } }),
        );
    }

    /// One pass of the end: lost probes, and the wait.
    async fn pass(
        api: &FakeApi,
        known: &mut TrafficMemory,
        status: &mut MigrationStatus,
    ) -> (u64, Option<Wait>) {
        let snapshot = Snapshot::take(&api.cache(), "m", "replumb-system");
        end(&api.context(), known, &snapshot, status).await.unwrap();
        (status.traffic[0].totals.lost, ending(known, &snapshot))
    }

    fn words(wait: Option<Wait>) -> String {
        let wait = wait.unwrap();
        assert_eq!(wait.reason, WaitReason::TrafficUnwatched);
        wait.message
    }

    #[tokio::test]
    async fn losses_just_before_the_end_are_in_the_sum() {
        let api = cluster();
        let (mut known, mut status) = (TrafficMemory::default(), MigrationStatus::default());
        // In the first pass agents still send.
        let (lost, held) = pass(&api, &mut known, &mut status).await;
        assert_eq!(lost, 3);
        let message = words(held);
        assert!(
            message.starts_with("node a: its agent") && message.ends_with("and 2 others"),
            "{message}"
        );
        answers(&api, "a", 5);
        let (lost, held) = pass(&api, &mut known, &mut status).await;
        assert_eq!(lost, 7);
        assert!(words(held).starts_with("node b: its agent"));
        answers(&api, "b", 1);
        answers(&api, "c", 2);
        let (lost, held) = pass(&api, &mut known, &mut status).await;
        assert_eq!((lost, held), (8, None));
        // A restarted agent counts from zero.
        api.edit(&node_migration("a"), &json!({ "status": { "traffic": null } }));
        assert_eq!(pass(&api, &mut known, &mut status).await, (8, None));
    }

    #[tokio::test]
    async fn an_unready_or_silent_agent_does_not_delay_the_end() {
        let api = cluster();
        let (mut known, mut status) = (TrafficMemory::default(), MigrationStatus::default());
        let not_ready = json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } });
        pass(&api, &mut known, &mut status).await;
        api.edit("/api/v1/nodes/a", &not_ready);
        api.edit(&agent("b"), &not_ready);
        api.edit(
            &node_migration("c"),
            &json!({ "status": { "flannelToCalico": { "phase": "nonsense" } } }),
        );
        assert_eq!(pass(&api, &mut known, &mut status).await.1, None);

        let api = cluster();
        let mut known = TrafficMemory::default();
        pass(&api, &mut known, &mut status).await;
        answers(&api, "a", 1);
        answers(&api, "b", 1);
        assert!(words(pass(&api, &mut known, &mut status).await.1).starts_with("node c: its agent"));
        known.hurry();
        assert_eq!(pass(&api, &mut known, &mut status).await.1, None);
    }
}
