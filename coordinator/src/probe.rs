//! Proof of a node's pod network: a pod on the node, reached from a node on the old and one on the new network.

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::node_migration::ProbeTarget;
use api::{Migration, NodeMigration, names};
use engine::probe::{ProbePod, Prober};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use serde_json::json;

use crate::context::Context;
use crate::drafts::Drafts;
use crate::snapshot::Snapshot;
use crate::write::WriteError;
use crate::{facts, own_pods};

/// Time from the creation of a probe pod that ended to that of the next one: a kubelet without room would reject that one, too.
const REPLACED_AFTER: SignedDuration = SignedDuration::from_secs(10);

/// Targets and probers of this pass.
#[derive(Debug, Default)]
pub struct Probes {
    /// Targets by probing node: the wanted probes of every `NodeMigration` of this Migration.
    pub wanted: BTreeMap<String, Vec<ProbeTarget>>,
    /// Probers by proved node.
    pub probers: BTreeMap<String, Vec<Prober>>,
}

/// Chooses probers for the nodes with a probe pod, and collects their results.
///
/// Probers are one node on the old network (`is_old`) and one finished node, chosen at random for each probe pod: the cost does
/// not depend on the size of the cluster, and no node proves all the others. If neither exists, any other Ready node is chosen;
/// in a cluster of one node, the node itself. A node that was asked for this probe pod stays its prober while it can. Nodes that are
/// not `is_served` by their network yet are not probed: an answer would prove nothing.
pub fn choose(
    snapshot: &Snapshot,
    is_old: impl Fn(&NodeMigration) -> bool,
    is_served: impl Fn(&str) -> bool,
) -> Probes {
    let mut probes = Probes::default();
    let is_proved = |node: &&String| {
        let object = snapshot.node_migrations.get(*node);
        object.is_none_or(|object| object.spec.finished_at.is_some())
    };
    let open: Vec<&String> = snapshot
        .probe_pods
        .keys()
        .filter(|node| !is_proved(node) && is_served(node))
        .collect();
    if open.is_empty() {
        return probes;
    }
    let chance = Chance {
        usable: usable(snapshot, is_old),
        asked: asked(snapshot),
    };
    for node in open {
        let pod = &snapshot.probe_pods[node];
        let candidates = chance.candidates(snapshot, node, &pod.uid().unwrap_or_default());
        for target in targets(node, pod) {
            for (name, side) in &candidates {
                probes
                    .wanted
                    .entry(name.clone())
                    .or_default()
                    .push(target.clone());
                probes
                    .probers
                    .entry(node.clone())
                    .or_default()
                    .push(result(snapshot, name, side, &target));
            }
        }
    }
    probes
}

/// The network of a node that can probe others.
#[derive(Clone, Copy, Debug)]
enum Side {
    Old,
    New,
    Between,
}

/// Nodes that can probe others, by name.
fn usable(snapshot: &Snapshot, is_old: impl Fn(&NodeMigration) -> bool) -> BTreeMap<&str, Side> {
    let is_usable = |name: &str| {
        let node = snapshot.nodes.get(name);
        node.is_some_and(|node| facts::nodes::is_ready(node)) && snapshot.agent_ready(name)
    };
    let nodes = snapshot.node_migrations.iter();
    // An agent without a readable report could not answer either.
    let nodes = nodes.filter(|(name, object)| object.status.is_some() && is_usable(name));
    nodes
        .map(|(name, object)| {
            let side = if is_old(object) {
                Side::Old
            } else if object.spec.finished_at.is_some() {
                Side::New
            } else {
                Side::Between
            };
            (name.as_str(), side)
        })
        .collect()
}

/// Nodes that are asked to probe, by the UID of the probe pod.
fn asked(snapshot: &Snapshot) -> BTreeMap<&str, Vec<&str>> {
    let mut asked: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (node, object) in &snapshot.node_migrations {
        for target in &object.spec.probes {
            asked.entry(&target.pod_uid).or_default().push(node);
        }
    }
    asked
}

/// Candidates for probers: one read of the cluster for all probe pods.
struct Chance<'pass> {
    usable: BTreeMap<&'pass str, Side>,
    asked: BTreeMap<&'pass str, Vec<&'pass str>>,
}

impl Chance<'_> {
    fn candidates(&self, snapshot: &Snapshot, proved: &str, attempt: &str) -> Vec<(String, &'static str)> {
        let mut chosen = Vec::new();
        let choose = |words: &'static str, is_of: fn(Side) -> bool| {
            let is_of = |name: &&str| *name != proved && self.usable.get(name).copied().is_some_and(is_of);
            let before = self.asked.get(attempt).into_iter().flatten().copied().find(is_of);
            let name = before.or_else(|| {
                let seed = format!("{attempt}/{proved}/{words}");
                engine::probe::chosen(&seed, self.usable.keys().copied().filter(is_of))
            });
            name.map(|name| (name.to_owned(), words))
        };
        chosen.extend(choose("old", |side| matches!(side, Side::Old)));
        chosen.extend(choose("new", |side| matches!(side, Side::New)));
        if chosen.is_empty() {
            chosen.extend(choose("other", |_| true));
        }
        if chosen.is_empty() && snapshot.nodes.len() == 1 {
            chosen.push((proved.to_owned(), "own"));
        }
        chosen
    }
}

/// Each address of the pod, one of each family.
fn targets(node: &str, pod: &Pod) -> Vec<ProbeTarget> {
    let Some(pod_uid) = pod.uid() else {
        return Vec::new();
    };
    facts::pods::addresses(pod)
        .into_iter()
        .map(|address| ProbeTarget {
            node: node.to_owned(),
            address,
            port: names::PROBE_PORT,
            pod_uid: pod_uid.clone(),
        })
        .collect()
}

fn result(snapshot: &Snapshot, prober: &str, side: &'static str, target: &ProbeTarget) -> Prober {
    let result = snapshot
        .node_migrations
        .get(prober)
        .and_then(|object| object.status.as_ref())
        .and_then(|status| status.probes.iter().find(|result| &result.target == target));
    Prober {
        node: prober.to_owned(),
        side,
        reached: result.map(|result| result.reached),
        message: result.map_or_else(|| "no result yet".to_owned(), |result| result.message.clone()),
    }
}

/// Gives every agent its current targets, and removes the others.
pub fn ask_probers(snapshot: &Snapshot, probes: &Probes, drafts: &mut Drafts) {
    for (node, object) in &snapshot.node_migrations {
        let wanted = probes.wanted.get(node).map(Vec::as_slice).unwrap_or_default();
        if object.spec.probes != wanted {
            drafts.change(object, |spec| spec.probes = wanted.to_vec());
        }
    }
}

/// Deletes probe pods that ended, and those whose node is finished, left the rollout, or loses its network (`outlived`).
///
/// # Errors
///
/// The API server refuses the write or does not answer.
pub async fn delete_spent_probe_pods(
    context: &Context,
    snapshot: &Snapshot,
    now: Timestamp,
    outlived: impl Fn(&NodeMigration, Option<&Node>) -> bool,
) -> Result<(), WriteError> {
    for (node, pod) in &snapshot.probe_pods {
        let node_object = snapshot.nodes.get(node).map(AsRef::as_ref);
        let spent = snapshot.node_migrations.get(node).is_none_or(|object| {
            let spec = &object.spec;
            spec.finished_at.is_some() || !spec.started || outlived(object, node_object)
        });
        if spent || has_ended(pod, now) {
            own_pods::delete(context, pod).await?;
        }
    }
    Ok(())
}

/// Whether a probe pod was rejected or evicted by its kubelet, some time ago.
fn has_ended(pod: &Pod, now: Timestamp) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let made_at = pod.metadata.creation_timestamp.as_ref().map(|time| time.0);
    matches!(phase, Some("Failed" | "Succeeded"))
        && made_at.is_none_or(|made_at| now.duration_since(made_at) >= REPLACED_AFTER)
}

/// Creates the probe pod of a node, bound to the node directly because the node is cordoned.
///
/// # Errors
///
/// The API server refuses the write or does not answer.
pub async fn create(context: &Context, migration: &Migration, node: &Node) -> Result<(), WriteError> {
    let name = node.name_any();
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": format!("replumb-probe-{}", own_pods::short(&name)),
            "namespace": context.namespace,
            "labels": {
                "app.kubernetes.io/name": "replumb",
                names::COMPONENT_LABEL: names::PROBE_COMPONENT,
            },
            "ownerReferences": [own_pods::owner(migration)],
        },
        "spec": {
            "nodeName": name,
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "tolerations": [{ "operator": "Exists" }],
            "containers": [{
                "name": "echo",
                "image": context.agent_image,
                // The agent runs from this image, so the node has it: no pull happens while the
                // network of the node changes (R39).
                "imagePullPolicy": "Never",
                "args": ["echo", "--port", names::PROBE_PORT.to_string()],
                "env": [{ "name": "POD_UID", "valueFrom": { "fieldRef": { "fieldPath": "metadata.uid" } } }],
                "ports": [{ "containerPort": names::PROBE_PORT }],
                "readinessProbe": {
                    "tcpSocket": { "port": names::PROBE_PORT },
                    "periodSeconds": 1,
                },
                // A hostile sender costs the node at most this.
                "resources": {
                    "requests": { "cpu": "1m", "memory": "8Mi" },
                    "limits": { "cpu": "500m", "memory": "32Mi" },
                },
                "securityContext": {
                    "runAsNonRoot": true,
                    "runAsUser": names::PROBE_USER,
                    "runAsGroup": names::PROBE_USER,
                    "allowPrivilegeEscalation": false,
                    "capabilities": { "drop": ["ALL"] },
                    "readOnlyRootFilesystem": true,
                    "seccompProfile": { "type": "RuntimeDefault" },
                },
            }],
        },
    });
    own_pods::create(context, &format!("probe pod for node {name}"), pod).await
}

/// The probe pod as the decision sees it: with an address once it is Ready.
pub fn probe_pod(pod: &Pod) -> ProbePod {
    let status = pod.status.clone().unwrap_or_default();
    let ready = facts::pods::is_ready(pod);
    let address: Option<IpAddr> = status.pod_ip.as_deref().and_then(|text| text.parse().ok());
    let waiting = facts::pods::waiting(&status).map(|(reason, message)| format!("{reason}: {message}"));
    ProbePod {
        uid: pod.uid().unwrap_or_default(),
        address: address.filter(|_| ready),
        message: waiting.unwrap_or_else(|| facts::pods::state(&status, ": ")),
    }
}

#[cfg(test)]
mod tests;
