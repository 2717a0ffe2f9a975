//! Proving a node's pod network: a pod on it, reached from an old and a new node.

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::node_migration::ProbeTarget;
use api::{Migration, NodeMigration, names};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use plan::probe::{ProbePod, Prober};
use serde_json::json;

use crate::context::Context;
use crate::drafts::Drafts;
use crate::snapshot::Snapshot;
use crate::write::WriteError;
use crate::{facts, own_pods};

/// Who probes whom in this pass.
#[derive(Debug, Default)]
pub struct Probes {
    /// Targets by the node that probes them: what every `NodeMigration` of this Migration should have.
    pub wanted: BTreeMap<String, Vec<ProbeTarget>>,
    /// Probers by the node that is proved.
    pub probers: BTreeMap<String, Vec<Prober>>,
}

/// Chooses who probes the nodes that have a probe pod, and collects the results so far.
///
/// One node that is still on the old network (`is_old`) and one that is done, each by chance and anew for each probe pod: the cost
/// stays the same however large the cluster is, and no node proves all the others. Where neither exists, any other Ready node; on
/// a cluster of one, the node itself.
pub fn choose(snapshot: &Snapshot, is_old: impl Fn(&NodeMigration) -> bool) -> Probes {
    let mut probes = Probes::default();
    for (node, pod) in &snapshot.probe_pods {
        let done = snapshot
            .node_migrations
            .get(node)
            .is_none_or(|object| object.spec.finished_at.is_some());
        if done {
            continue;
        }
        let candidates = candidates(snapshot, node, &pod.uid().unwrap_or_default(), &is_old);
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

fn candidates(
    snapshot: &Snapshot,
    proved: &str,
    attempt: &str,
    is_old: &impl Fn(&NodeMigration) -> bool,
) -> Vec<(String, &'static str)> {
    let usable = |name: &str| {
        name != proved
            && snapshot.agent_ready(name)
            && snapshot
                .nodes
                .get(name)
                .is_some_and(|node| facts::nodes::is_ready(node))
    };
    let others: Vec<(&String, bool, bool)> = snapshot
        .node_migrations
        .iter()
        // One that has said nothing, or nothing that is understood, would answer no question either.
        .filter(|(name, object)| object.status.is_some() && usable(name))
        .map(|(name, object)| {
            let new = object.spec.finished_at.is_some();
            (name, is_old(object), new)
        })
        .collect();
    let mut chosen = Vec::new();
    let choose = |side: &'static str, is_of: fn(&(&String, bool, bool)) -> bool| {
        let names = others
            .iter()
            .filter(|other| is_of(other))
            .map(|(name, ..)| name.as_str());
        let seed = format!("{attempt}/{proved}/{side}");
        plan::probe::chosen(&seed, names).map(|name| (name.to_owned(), side))
    };
    chosen.extend(choose("old", |(_, old, _)| *old));
    chosen.extend(choose("new", |(_, _, new)| *new));
    if chosen.is_empty() {
        chosen.extend(choose("other", |_| true));
    }
    if chosen.is_empty() && snapshot.nodes.len() == 1 {
        chosen.push((proved.to_owned(), "own"));
    }
    chosen
}

/// Each address of the pod: one of each family that pods have.
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

/// Gives every agent the targets that it should probe now, and takes back the others.
pub fn ask_probers(snapshot: &Snapshot, probes: &Probes, drafts: &mut Drafts) {
    for (node, object) in &snapshot.node_migrations {
        let wanted = probes.wanted.get(node).map(Vec::as_slice).unwrap_or_default();
        if object.spec.probes != wanted {
            drafts.change(object, |spec| spec.probes = wanted.to_vec());
        }
    }
}

/// A probe pod whose node is done or not in work any more has served, and one whose network goes (`outlived`).
pub async fn delete_spent_probe_pods(
    context: &Context,
    snapshot: &Snapshot,
    outlived: impl Fn(&NodeMigration, Option<&Node>) -> bool,
) -> Result<(), WriteError> {
    for (node, pod) in &snapshot.probe_pods {
        let node_object = snapshot.nodes.get(node).map(AsRef::as_ref);
        let spent = snapshot.node_migrations.get(node).is_none_or(|object| {
            let spec = &object.spec;
            spec.finished_at.is_some() || !spec.admitted || outlived(object, node_object)
        });
        if spent {
            own_pods::delete(context, pod).await?;
        }
    }
    Ok(())
}

/// Creates the probe pod of a node. It is bound to the node directly: the node is cordoned.
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
                // The image is on the node already, since the agent runs from it: nothing is pulled while
                // the node's network changes (R39).
                "imagePullPolicy": "Never",
                "args": ["echo", "--port", names::PROBE_PORT.to_string()],
                "env": [{ "name": "POD_UID", "valueFrom": { "fieldRef": { "fieldPath": "metadata.uid" } } }],
                "ports": [{ "containerPort": names::PROBE_PORT }],
                "readinessProbe": {
                    "tcpSocket": { "port": names::PROBE_PORT },
                    "periodSeconds": 1,
                },
                // What a hostile pod sends costs the node no more than this.
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

/// The probe pod as the decision sees it: it has an address once it is Ready.
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
