//! Proof of a node's pod network: a pod on the node, reached from a node on the old and one on the new network.

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::node_migration::ProbeTarget;
use api::{Migration, NodeMigration, names};
use engine::probe::{ProbePod, Prober};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use serde_json::json;

use crate::context::Context;
use crate::drafts::Drafts;
use crate::snapshot::Snapshot;
use crate::write::WriteError;
use crate::{facts, own_pods};

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
/// in a cluster of one node, the node itself. A node that was asked for this probe pod stays its prober while it can.
pub fn choose(snapshot: &Snapshot, is_old: impl Fn(&NodeMigration) -> bool) -> Probes {
    let mut probes = Probes::default();
    let is_proved = |node: &&String| {
        let object = snapshot.node_migrations.get(*node);
        object.is_none_or(|object| object.spec.finished_at.is_some())
    };
    let open: Vec<&String> = snapshot
        .probe_pods
        .keys()
        .filter(|node| !is_proved(node))
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

/// Deletes probe pods whose node is finished, left the rollout, or loses its network (`outlived`).
///
/// # Errors
///
/// The API server refuses the write or does not answer.
pub async fn delete_spent_probe_pods(
    context: &Context,
    snapshot: &Snapshot,
    outlived: impl Fn(&NodeMigration, Option<&Node>) -> bool,
) -> Result<(), WriteError> {
    for (node, pod) in &snapshot.probe_pods {
        let node_object = snapshot.nodes.get(node).map(AsRef::as_ref);
        let spent = snapshot.node_migrations.get(node).is_none_or(|object| {
            let spec = &object.spec;
            spec.finished_at.is_some() || !spec.started || outlived(object, node_object)
        });
        if spent {
            own_pods::delete(context, pod).await?;
        }
    }
    Ok(())
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
    let waiting = status.container_statuses.iter().flatten().find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        Some(format!(
            "{}: {}",
            waiting.reason.as_deref()?,
            waiting.message.as_deref().unwrap_or_default()
        ))
    });
    ProbePod {
        uid: pod.uid().unwrap_or_default(),
        address: address.filter(|_| ready),
        message: waiting
            .or(status.phase)
            .unwrap_or_else(|| "no status yet".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::fake_api::FakeApi;

    const MIGRATION: &str = "demo";

    fn pod(api: &FakeApi, name: &str, node: &str, labels: &serde_json::Value, owner: &str) {
        api.put(
            &format!("/api/v1/namespaces/{}/pods/{name}", names::NAMESPACE),
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {
                    "name": name, "namespace": names::NAMESPACE, "labels": labels,
                    "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": owner, "uid": owner, "controller": true }],
                },
                "spec": { "nodeName": node, "containers": [] },
                "status": {
                    "phase": "Running", "podIP": "10.244.0.9", "podIPs": [{ "ip": "10.244.0.9" }],
                    "conditions": [{ "type": "Ready", "status": "True" }],
                },
            }),
        );
    }

    fn path(node: &str) -> String {
        format!("/apis/replumb.dev/v1alpha1/nodemigrations/{node}")
    }

    /// A Node with its agent; on the new network if `finished`.
    fn node(api: &FakeApi, name: &str, finished: bool) {
        api.put(
            &format!("/api/v1/nodes/{name}"),
            json!({
                "apiVersion": "v1", "kind": "Node", "metadata": { "name": name },
                "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
            }),
        );
        pod(api, &format!("agent-{name}"), name, &json!({}), names::AGENT);
        api.put(
            &path(name),
            json!({
                "apiVersion": "replumb.dev/v1alpha1", "kind": "NodeMigration", "metadata": { "name": name },
                "spec": {
                    "nodeName": name, "migration": MIGRATION, "goal": "Hold",
                    "finishedAt": finished.then_some("2026-01-01T00:00:00Z"),
                },
                "status": { "message": "", "flannelToCalico": { "phase": "Flannel", "goal": "Hold", "changes": [] } },
            }),
        );
    }

    fn probe_pod_on(api: &FakeApi, node: &str) {
        let labels = json!({ names::COMPONENT_LABEL: names::PROBE_COMPONENT });
        pod(api, &format!("replumb-probe-{node}"), node, &labels, MIGRATION);
    }

    fn probers(api: &FakeApi, node: &str) -> Vec<(String, &'static str)> {
        let snapshot = Snapshot::take(&api.cache(), MIGRATION, names::NAMESPACE);
        let probes = choose(&snapshot, |object| object.spec.finished_at.is_none());
        let probers = probes.probers.get(node).into_iter().flatten();
        probers.map(|prober| (prober.node.clone(), prober.side)).collect()
    }

    #[test]
    fn a_prober_stays_when_nodes_join_and_is_replaced_when_unready() {
        let api = FakeApi::default();
        node(&api, "proved", false);
        probe_pod_on(&api, "proved");
        assert_eq!(probers(&api, "proved"), [("proved".to_owned(), "own")]);
        node(&api, "old", false);
        node(&api, "new", true);
        let both = [("old".to_owned(), "old"), ("new".to_owned(), "new")];
        assert_eq!(probers(&api, "proved"), both);
        let asked = api.get(&format!(
            "/api/v1/namespaces/{}/pods/replumb-probe-proved",
            names::NAMESPACE
        ));
        let uid = asked.unwrap()["metadata"]["uid"].clone();
        let target =
            json!({ "node": "proved", "address": "10.244.0.9", "port": names::PROBE_PORT, "podUid": uid });
        for name in ["old", "new"] {
            api.edit(&path(name), &json!({ "spec": { "probes": [target] } }));
        }
        for number in 0..40 {
            node(&api, &format!("joined-{number:02}"), number % 2 == 0);
        }
        assert_eq!(probers(&api, "proved"), both, "already asked");
        // The prober is not Ready any more.
        api.edit(
            "/api/v1/nodes/old",
            &json!({ "status": { "conditions": [{ "type": "Ready", "status": "False" }] } }),
        );
        let others = probers(&api, "proved");
        assert_ne!(others[0].0, "old");
        assert_eq!((others[0].1, &others[1]), ("old", &both[1]));
    }

    #[test]
    fn probers_are_spread_over_nodes() {
        let api = FakeApi::default();
        for number in 0..40 {
            node(&api, &format!("n-{number:02}"), false);
            probe_pod_on(&api, &format!("n-{number:02}"));
        }
        let different: BTreeSet<String> = (0..40)
            .flat_map(|number| probers(&api, &format!("n-{number:02}")))
            .map(|(name, _)| name)
            .collect();
        assert!(different.len() > 15, "{different:?}");
    }
}
