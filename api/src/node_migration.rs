//! `NodeMigration`: one node's goal (written by the coordinator) and its fact (written by that node's agent).

#![expect(
    clippy::duplicated_attributes,
    reason = "each printcolumn has a type of its own"
)]

use std::collections::BTreeMap;

use engine::check::Check;
use flannel_to_calico::facts::HostFacts;
use flannel_to_calico::host::HostSettings;
pub use flannel_to_calico::host::Patience;
use flannel_to_calico::import::ImportedAddress;
use flannel_to_calico::phase::{Goal, Phase};
use jiff::Timestamp;
use kube::{CustomResource, KubeSchema};
use pod_cidr::host::{HostFacts as PodCidrFacts, HostSettings as PodCidrSettings};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use service_cidr::host::{HostFacts as ServiceCidrFacts, HostSettings as ServiceCidrSettings};

use crate::migration::Action;
use crate::traffic::{Flow, Gates, TrafficReport};

/// One node of a Migration; its name is the node's.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "replumb.dev",
    version = "v1alpha1",
    kind = "NodeMigration",
    plural = "nodemigrations",
    shortname = "nmig",
    status = "NodeMigrationStatus",
    derive = "PartialEq",
    printcolumn(name = "Node", type_ = "string", json_path = ".spec.nodeName"),
    printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
    printcolumn(name = "Step", type_ = "string", json_path = ".spec.step.name"),
    printcolumn(name = "Since", type_ = "date", json_path = ".spec.step.since"),
    printcolumn(name = "Message", type_ = "string", json_path = ".spec.step.message")
)]
#[x_kube(validation = Rule::new("self.nodeName == oldSelf.nodeName").message("nodeName is immutable"))]
#[serde(rename_all = "camelCase")]
pub struct NodeMigrationSpec {
    /// Name of the Node.
    #[schemars(length(min = 1, max = 253))]
    pub node_name: String,
    /// Name of the Migration.
    pub migration: String,
    /// What is asked of the agent. Set forward by one phase at a time, or back to the old network.
    #[serde(default)]
    pub goal: Goal,
    /// What the agent needs to know for it; absent until the settings are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flannel_to_calico: Option<HostSettings>,
    /// What the agent looks for while the range of pods changes: it answers in `status.podCidr`. It changes nothing on its host but
    /// addresses of `tunnelEnds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_cidr: Option<PodCidrSettings>,
    /// What the agent looks for while the range of Services changes: it answers in `status.serviceCidr`, and changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_cidr: Option<ServiceCidrSettings>,
    /// Set while Calico's datastore is converted: the agent proves the traffic, looks at nothing else and changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calico_datastore: Option<CalicoDatastoreHost>,
    /// Addresses that the agent probes from its host, until the list is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<ProbeTarget>,
    /// What the traffic pods of this node send without pause.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flows: Vec<Flow>,
    /// What those may lose; absent where nothing is sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gates: Option<Gates>,
    /// The operator's last word, `resumedAt` of the Migration: what was lost before the agent heard of it does not count any
    /// more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub judged_since: Option<Timestamp>,
    /// What this migration has written into the Node's network label.
    #[serde(default, skip_serializing_if = "LabelRecord::is_empty")]
    pub label: LabelRecord,
    /// In place: addresses of living pods that Calico's IPAM was told of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub imported: Vec<ImportedAddress>,
    /// Position in the order, from 0.
    #[serde(default)]
    pub position: u32,
    /// Whether the node has been taken into work.
    #[serde(default)]
    pub admitted: bool,
    /// Whether the node in work is on its way back to the old network.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub returning: bool,
    /// Whether the node was set aside, by `drain.onBlocked: Skip` or since it did not take its first step, and comes after all others.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skipped: bool,
    /// What will be done for this node before the first node changes, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prepare: Vec<Action>,
    /// What will be done on this node, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plan: Vec<Action>,
    /// What was there of this node before the migration, and is put back on the way back; absent of one that joined later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<NodeBefore>,
    /// What the coordinator does with the node now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<StepNow>,
    /// Steps that are finished, in order, with their times.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<StepDone>,
    /// When the node was taken into work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub started_at: Option<Timestamp>,
    /// When the node was done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub finished_at: Option<Timestamp>,
    /// When the node that is on its way back was done; absent of one that was not. It is done again since then where its first step
    /// back is not taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub done_before: Option<Timestamp>,
    /// That its agent put the old network back by itself; absent once it is taken into work again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fell_back: Option<FellBack>,
    /// When the node was back on the old network; absent while it is not, and once it is taken into work again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub returned_at: Option<Timestamp>,
}

/// What an agent needs to know while Calico's datastore is converted: nothing of its host changes but the pod of calico-node, which
/// the coordinator sees itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CalicoDatastoreHost {}

/// What a migration has written into a Node's network label: whatever else it says is somebody else's word.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelRecord {
    /// The value that was written last, or found when the node was first looked at; absent before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written: Option<String>,
    /// The value that is about to be written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl LabelRecord {
    /// Whether nothing is recorded.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// What was there of a node before the migration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeBefore {
    /// Calico's annotations of the Node.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Names of the blocks of Calico's IPAM that were the node's.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<String>,
}

/// What the coordinator does with a node now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StepNow {
    /// Name of the step, from an enum.
    pub name: String,
    /// When it began.
    #[schemars(with = "String")]
    pub since: Timestamp,
    /// Enumerated reason of the wait; empty while something is done.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// What is waited for, on which object.
    #[serde(default)]
    pub message: String,
    /// Whether a person has to decide.
    #[serde(default)]
    pub halted: bool,
    /// How long the step may take; absent where it may take for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patience: Option<Patience>,
}

/// That an agent put the old network back by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FellBack {
    /// When the coordinator took notice.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// Why, in the agent's words.
    pub why: String,
    /// `resumedAt` of the Migration at that time: another one says that the node goes there again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub resumed_at: Option<Timestamp>,
}

/// A finished step of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StepDone {
    /// Name of the step, from an enum.
    pub name: String,
    /// When it began.
    #[schemars(with = "String")]
    pub started_at: Timestamp,
    /// When it ended.
    #[schemars(with = "String")]
    pub finished_at: Timestamp,
}

/// An address in another node's pod network that the agent probes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProbeTarget {
    /// The node whose pod network is proved.
    pub node: String,
    /// Address of the probe pod.
    #[schemars(with = "String")]
    pub address: std::net::IpAddr,
    /// UDP and TCP port.
    pub port: u16,
    /// UID of the probe pod: an answer of an earlier pod proves nothing.
    pub pod_uid: String,
}

/// What an agent found, and what it did last.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeMigrationStatus {
    /// `metadata.generation` of the spec that the agent has acted on.
    #[serde(default)]
    pub observed_generation: i64,
    /// Version of the agent.
    #[serde(default)]
    pub agent_version: String,
    /// What is provably true of the host; absent while it cannot be told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// When this phase was first seen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub phase_since: Option<Timestamp>,
    /// What the agent does or waits for now.
    #[serde(default)]
    pub message: String,
    /// Why the agent does not go on; absent when it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// What the agent read off its host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<HostFacts>,
    /// What the agent found of both ranges on its host, as `spec.podCidr` asks; absent while it could not look, and where nobody
    /// asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_cidr: Option<PodCidrFacts>,
    /// What the agent found on its host, as `spec.serviceCidr` asks; absent while it could not look, and where nobody asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_cidr: Option<ServiceCidrFacts>,
    /// What of the old network is still there.
    #[serde(default)]
    pub leftovers: Vec<String>,
    /// What is different on the host from before the migration: what the way back would do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
    /// Why the agent puts the old network back, or has put it back, by itself; absent once the coordinator has taken notice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fell_back: Option<String>,
    /// The goal that the agent has acted on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal: Option<Goal>,
    /// The agent's own checks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
    /// Host steps that the agent performed, the newest last (bounded).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepDone>,
    /// What the traffic pods of this node found; absent while there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<TrafficReport>,
    /// Results of the probes in the spec.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<ProbeResult>,
}

/// Why an agent does not go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// Enumerated category.
    pub category: String,
    /// What was attempted on which object, and what went wrong.
    pub message: String,
    /// Whether the agent tries again by itself.
    pub retriable: bool,
}

/// Result of one probe target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProbeResult {
    /// The target, as it stands in the spec.
    pub target: ProbeTarget,
    /// Whether UDP, TCP and a full-MTU datagram were answered.
    pub reached: bool,
    /// What was answered and what was not.
    pub message: String,
    /// When it was last tried.
    #[schemars(with = "String")]
    pub at: Timestamp,
}
