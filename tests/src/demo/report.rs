//! The report of a demo, as JSON and as text, the same for every kind of migration. A kind adds a part of its own, under its
//! name. `docs/report.schema.json` is the schema.

mod text;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::marker::PhantomData;

use anyhow::{Context, Result};
use api::migration::MigrationPhase;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::ser::{SerializeMap as _, Serializer};
use serde::{Deserialize as _, Serialize};
use serde_json::Value;
use traffic::report::Summary;

use super::host::Host;
use super::same::Comparison;
use super::watch::Peak;
use crate::cluster::Cluster;
use crate::cluster::pods;

/// The part of a report that only one kind of migration has.
pub trait OwnPart: Serialize + JsonSchema + Sized {
    /// Name of the kind, as in the spec of a Migration. The part has this name in JSON.
    const KIND: &'static str;

    /// The part as lines of text.
    fn lines(&self) -> Vec<String>;

    /// The last line of the text of a report without problems.
    fn verdict(_report: &Report<Self>) -> Option<String> {
        None
    }
}

/// The report of a demo.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Report_{Own}")]
pub struct Report<Own: OwnPart> {
    /// The Migration.
    pub migration: MigrationReport,
    /// Every node. In a migration from flannel the order is that of the migration.
    pub nodes: Vec<NodeReport>,
    /// The traffic.
    pub probes: Summary,
    /// Pods that were recreated or restarted.
    pub pods: Pods,
    /// The implementation of Calico. Absent if the cluster has no Calico.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calico: Option<String>,
    /// The part of the kind.
    #[serde(flatten, serialize_with = "under_its_name")]
    #[schemars(with = "UnderItsName<Own>")]
    pub own: Own,
    /// Faults that were found. An empty list is a pass.
    pub problems: Vec<String>,
}

/// The Migration.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigrationReport {
    /// Name of the Migration.
    pub name: String,
    /// Kind of the migration: the field of the spec.
    pub kind: String,
    /// The phase in which the migration ended.
    pub phase: MigrationPhase,
    /// Time from the first change to the last.
    pub seconds: f64,
    /// Hash of the plan.
    pub plan_hash: String,
    /// Stages of the status, in order. Empty for a kind without stages.
    pub stages: Vec<StageReport>,
    /// The highest number of nodes that were unavailable at the same time, observed from outside. Absent if not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub most_unavailable: Option<usize>,
    /// Number of observations of the nodes. Absent if not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observations: Option<u64>,
}

/// One stage of a migration.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StageReport {
    /// Name of the stage.
    pub name: String,
    /// `Forward` or `Rollback`.
    pub direction: String,
    /// Duration.
    pub seconds: f64,
}

/// One node. A field is absent if the demo does not measure it.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// Name of the Node.
    pub name: String,
    /// The phase that its agent proved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<String>,
    /// Time from the first step of the node to the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Time in which the network of running pods was exchanged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swap_seconds: Option<f64>,
    /// Steps of the node, in order.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<Vec<NodeStep>>,
    /// Remaining entries of the old network on the host, by the agent and by other tools.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub leftovers: Option<Vec<String>>,
    /// Entries of other programs that are gone from the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub foreign_gone: Option<Vec<String>>,
    /// Entries of other programs that are new on the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub foreign_new: Option<Vec<String>>,
    /// After a rollback: the whole state of the host, compared with the one from before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comparison: Option<Comparison>,
}

/// One step of a node.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeStep {
    /// Name of the step.
    pub name: String,
    /// Duration.
    pub seconds: f64,
}

/// A manual step that the migration requested and the demo's user took.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ManualStep {
    /// The Migration's message.
    pub requested: String,
    /// The action of the user.
    pub done: String,
}

/// The measurements that every demo makes.
#[derive(Clone, Debug)]
pub struct Measurements {
    /// The Migration.
    pub migration: MigrationReport,
    /// Every node.
    pub nodes: Vec<NodeReport>,
    /// The traffic.
    pub probes: Summary,
    /// Pods that were recreated or restarted.
    pub pods: Pods,
    /// The implementation of Calico, if the cluster has one.
    pub calico: Option<String>,
}

/// Pods that were recreated or restarted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Pods {
    /// Pods of the workloads that were evicted and created again.
    pub recreated: usize,
    /// Container restarts in pods that were not recreated.
    pub restarted: i64,
}

/// Changes of entries on a host that belong to other programs.
#[derive(Clone, Debug, Default)]
pub struct Foreign {
    /// Lines that are gone.
    pub gone: Vec<String>,
    /// Lines that are new.
    pub new: Vec<String>,
}

impl ManualStep {
    /// The step as two lines of text.
    pub fn lines(&self) -> [String; 2] {
        let Self { requested, done } = self;
        [
            format!("manual step requested: {requested}"),
            format!("  done: {done}"),
        ]
    }
}

impl Pods {
    /// Compares the restarts of every pod by UID, before and after.
    pub fn between(before: &BTreeMap<String, i32>, after: &BTreeMap<String, i32>) -> Self {
        Self {
            recreated: before.keys().filter(|uid| !after.contains_key(*uid)).count(),
            restarted: after
                .iter()
                .filter_map(|(uid, now)| Some(i64::from(now - before.get(uid)?)))
                .sum(),
        }
    }
}

impl Foreign {
    /// Compares two observations of one host.
    pub fn between(before: &Host, after: &Host) -> Self {
        let (before, after) = (before.foreign(), after.foreign());
        Self {
            gone: before.difference(&after).cloned().collect(),
            new: after.difference(&before).cloned().collect(),
        }
    }

    /// Each line as a fault of this node.
    pub fn problems(&self, node: &str) -> Vec<String> {
        let gone = self
            .gone
            .iter()
            .map(|line| format!("gone from node {node}: {line}"));
        let new = self.new.iter().map(|line| format!("new on node {node}: {line}"));
        gone.chain(new).collect()
    }
}

/// Reports of the traffic generators of all nodes; ends the generators first, so that their last reports are written.
pub async fn probes(cluster: &Cluster) -> Result<Summary> {
    Ok(Summary::of(&super::traffic::end(cluster).await?))
}

/// Container restarts by UID, of every pod that counts.
pub async fn restarts(cluster: &Cluster, counts: fn(&Pod) -> bool) -> Result<BTreeMap<String, i32>> {
    let api: Api<Pod> = Api::all(cluster.api().client());
    let list = api.list(&ListParams::default()).await.context("list pods")?;
    Ok(list
        .items
        .into_iter()
        .filter(counts)
        .map(|pod| (pod.uid().unwrap_or_default(), pods::restarts(&pod)))
        .collect())
}

impl MigrationReport {
    /// The report of a Migration of this kind; `peak` is the watch of the nodes, if there was one.
    pub fn of<Own: OwnPart>(migration: &Value, peak: Option<&Peak>) -> Self {
        let status = &migration["status"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let history = status[Own::KIND]["history"].as_array().into_iter().flatten();
        Self {
            name: text(&migration["metadata"]["name"]),
            kind: Own::KIND.to_owned(),
            phase: MigrationPhase::deserialize(&status["phase"]).unwrap_or_default(),
            seconds: seconds(&status["startedAt"], &status["completedAt"]),
            plan_hash: text(&status["plan"]["hash"]),
            stages: history
                .map(|stage| StageReport {
                    name: text(&stage["name"]),
                    direction: text(&stage["direction"]),
                    seconds: seconds(&stage["startedAt"], &stage["finishedAt"]),
                })
                .collect(),
            most_unavailable: peak.map(|peak| peak.nodes.len()),
            observations: peak.map(|peak| peak.observations),
        }
    }
}

/// Seconds between two times of an object; 0 if one is missing.
fn seconds(from: &Value, to: &Value) -> f64 {
    let time = |value: &Value| value.as_str()?.parse::<Timestamp>().ok();
    match (time(from), time(to)) {
        (Some(from), Some(to)) => to.duration_since(from).as_secs_f64(),
        _ => 0.0,
    }
}

impl NodeReport {
    /// Nodes of which a demo knows no more than the names.
    pub fn named(names: Vec<String>) -> Vec<Self> {
        let node = |name| Self {
            name,
            ..Self::default()
        };
        names.into_iter().map(node).collect()
    }

    /// A node with the entries of other programs that have changed.
    pub fn with_foreign(name: String, foreign: Foreign) -> Self {
        Self {
            name,
            foreign_gone: Some(foreign.gone),
            foreign_new: Some(foreign.new),
            ..Self::default()
        }
    }

    /// Faults of a node in every migration.
    fn problems(&self) -> Vec<String> {
        let name = &self.name;
        let different = self
            .comparison
            .iter()
            .flat_map(|comparison| &comparison.different);
        let different = different.map(|line| format!("node {name} differs from before, {line}"));
        let lines = |lines: &Option<Vec<String>>| lines.clone().unwrap_or_default();
        let foreign = Foreign {
            gone: lines(&self.foreign_gone),
            new: lines(&self.foreign_new),
        };
        different.chain(foreign.problems(name)).collect()
    }
}

impl<Own: OwnPart> Report<Own> {
    /// A report with the faults that every migration can have; `needed` is the phase in which the migration had to end.
    pub fn new(measurements: Measurements, own: Own, needed: MigrationPhase) -> Self {
        let Measurements {
            migration,
            nodes,
            probes,
            pods,
            calico,
        } = measurements;
        let mut problems = Vec::new();
        if migration.phase != needed {
            problems.push(format!(
                "phase of the migration: found {:?}, needed {needed:?}",
                migration.phase
            ));
        }
        problems.extend(nodes.iter().flat_map(NodeReport::problems));
        if probes.all.sent == 0 {
            problems.push("no probe was sent: losses are unknown".to_owned());
        }
        if migration.observations == Some(0) {
            problems
                .push("the nodes were not observed: the number of unavailable nodes is unknown".to_owned());
        }
        Self {
            migration,
            nodes,
            probes,
            pods,
            calico,
            own,
            problems,
        }
    }
}

fn under_its_name<Own: OwnPart, S: Serializer>(own: &Own, serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(1))?;
    map.serialize_entry(Own::KIND, own)?;
    map.end()
}

/// The schema of the part of a kind: an object with one field, which has the name of the kind.
struct UnderItsName<Own>(PhantomData<Own>);

impl<Own: OwnPart> JsonSchema for UnderItsName<Own> {
    fn schema_name() -> Cow<'static, str> {
        Own::KIND.into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let own = generator.subschema_for::<Own>();
        json_schema!({ "type": "object", "properties": { (Own::KIND): own }, "required": [Own::KIND] })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_pods_count_as_recreated_and_others_by_their_restarts() {
        let restarts = |pods: &[(&str, i32)]| {
            pods.iter()
                .map(|(uid, count)| ((*uid).to_owned(), *count))
                .collect()
        };
        let (before, after) = (
            restarts(&[("stays", 1), ("goes", 5)]),
            restarts(&[("stays", 3), ("comes", 7)]),
        );
        let expected = Pods {
            recreated: 1,
            restarted: 2,
        };
        assert_eq!(Pods::between(&before, &after), expected);
    }
}
