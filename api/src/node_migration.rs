//! `NodeMigration`: the goal of one node (written by the coordinator) and its state (written by the agent on that node).

#![expect(
    clippy::duplicated_attributes,
    reason = "each printcolumn has a type of its own"
)]

use std::collections::BTreeMap;

use engine::check::Check;
use flannel_to_calico::facts::HostFacts;
use flannel_to_calico::host::HostSettings;
pub use flannel_to_calico::host::TimeLimit;
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

/// `NodeMigrationSpec` is what a migration does on one node. The coordinator writes it, and the agent on the node reads it.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "replumb.dev",
    version = "v1alpha1",
    kind = "NodeMigration",
    doc = "NodeMigration is the part of a Migration that is about one node. The object has the name of the node. The coordinator creates and deletes the object and writes its spec; the agent on the node writes its status.",
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
    /// `nodeName` is the name of the Node, and of this object. 1 to 253 characters. Immutable.
    #[schemars(length(min = 1, max = 253))]
    pub node_name: String,
    /// `migration` is the name of the Migration.
    pub migration: String,
    /// `goal` is the phase that the agent brings its host to. The coordinator moves it forward by one phase at a time. Possible
    /// values: `Hold` (default): report, and change nothing. `Flannel`: revert all changes. `Held`, `Swapped`, `Mixed`,
    /// `Detached`, `Calico`: change the host until it is in this phase. Used by `flannelToCalico`.
    #[serde(default)]
    pub goal: Goal,
    /// `flannelToCalico` is the description of both networks for the agent, for migrations of this kind. Unset until the settings
    /// are known: if no kind is set, the agent reports about flannel and Calico on its host and changes nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flannel_to_calico: Option<HostSettings>,
    /// `podCidr` is what the agent reports in `status.podCidr`, for migrations of this kind. The agent changes nothing on its
    /// host but the addresses in `tunnelAddresses`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_cidr: Option<PodCidrSettings>,
    /// `serviceCidr` is what the agent reports in `status.serviceCidr`, for migrations of this kind. The agent changes nothing on
    /// its host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_cidr: Option<ServiceCidrSettings>,
    /// `calicoDatastore` is set for migrations of this kind. The agent reports the traffic of its node, and changes nothing on
    /// its host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calico_datastore: Option<CalicoDatastoreHost>,
    /// `probes` is the list of probe pods that the agent probes from its host. The results are in `status.probes`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<ProbeTarget>,
    /// `flows` is the list of paths on which the traffic pods of this node send probes continuously. The results are in
    /// `status.traffic`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flows: Vec<Flow>,
    /// `gates` is how much may be lost on each of `flows`. Unset if `flows` is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gates: Option<Gates>,
    /// `lossesCountedSince` is the value of `spec.resumedAt` of the Migration. Losses that the agent has seen before it learned of this
    /// value do not count. Unset if `flows` is empty, or if the Migration has no such value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub losses_counted_since: Option<Timestamp>,
    /// `label` is what the migration has written into the label `projectcalico.org/node-network-during-migration` of the Node.
    /// Used by `flannelToCalico`.
    #[serde(default, skip_serializing_if = "LabelRecord::is_empty")]
    pub label: LabelRecord,
    /// `importedAddresses` is the list of addresses of running pods that the migration has written into Calico's IPAM. Used by strategy
    /// `InPlace`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub imported_addresses: Vec<ImportedAddress>,
    /// `position` is the position of the node in the rollout order, from 0.
    #[serde(default)]
    pub position: u32,
    /// `started` is true from the start of the node until it is back on the old network. Used by `flannelToCalico`.
    #[serde(default)]
    pub started: bool,
    /// `rollingBack` is whether the node is being rolled back. Used by `flannelToCalico`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub rolling_back: bool,
    /// `skipped` is whether the node was set aside, because of `drain.onBlocked: Skip` or because its first step failed. The node
    /// is retried after all other nodes. Used by `flannelToCalico`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub skipped: bool,
    /// `prepare` is the list of planned actions for this node before the first node changes, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prepare: Vec<Action>,
    /// `plan` is the list of planned actions on this node, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plan: Vec<Action>,
    /// `savedState` is the state of the node before the migration, which a rollback restores. Unset for a node that joined later.
    /// Used by `flannelToCalico`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved_state: Option<SavedNodeState>,
    /// `step` is the current step of the node. Unset before the first step and after the last step. Used by `flannelToCalico`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<CurrentStep>,
    /// `history` is the list of finished steps, oldest first. At most 60 items; older ones are dropped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<FinishedStep>,
    /// `startedAt` is the time at which the node was started. Unset before, and after a rollback.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub started_at: Option<Timestamp>,
    /// `finishedAt` is the time at which the node was done. Unset before, and while and after the node is rolled back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub finished_at: Option<Timestamp>,
    /// `finishedBeforeRollback` is the value that `finishedAt` had before the rollback of the node started. Unset otherwise. `finishedAt`
    /// gets this value again if the first step of the rollback fails and the node is set aside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub finished_before_rollback: Option<Timestamp>,
    /// `automaticRollback` is set if the agent has put the old network back without being asked. Unset once the node is started again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub automatic_rollback: Option<AutomaticRollback>,
    /// `returnedAt` is the time at which the node was back on the old network. Unset before, and once the node is started again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub returned_at: Option<Timestamp>,
}

/// `CalicoDatastoreHost` is what an agent needs for an upgrade of Calico's datastore: nothing. The coordinator itself observes
/// the pod of calico-node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CalicoDatastoreHost {}

/// `LabelRecord` is what the migration has written into the network label of a Node. Any other value of the label is a change by
/// another client.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LabelRecord {
    /// `current` is the value that was last written, or that was found when the node was first observed. Unset before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current: Option<String>,
    /// `pending` is the value that is about to be written. Unset otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pending: Option<String>,
}

impl LabelRecord {
    /// Whether neither value is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// `SavedNodeState` is the state of a node before the migration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SavedNodeState {
    /// `annotations` are the annotations of the Node that start with `projectcalico.org/`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// `blocks` is the list of `IPAMBlocks`, by name, with affinity to the node.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blocks: Vec<String>,
}

/// `CurrentStep` is the current step of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CurrentStep {
    /// `name` is the name of the step. Possible values: `Cordon`, `Drain`, `StopFlannel`, `HoldNewPods`, `DrainDaemonSets`,
    /// `Detach`, `Import`, `Swap`, `StartCalico`, `Attach`, `Probe` and `Uncordon`; in a rollback also `StopCalico`, `PutBack`,
    /// `StartFlannel` and `Return`.
    pub name: String,
    /// `since` is the time at which the step started.
    #[schemars(with = "String")]
    pub since: Timestamp,
    /// `reason` is the wait or halt reason, in `CamelCase`. Empty while the step makes progress.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// `message` is a human-readable description of what the step waits for, with the object. At most 4096 bytes.
    #[serde(default)]
    pub message: String,
    /// `halted` is whether the step waits for a decision of the user.
    #[serde(default)]
    pub halted: bool,
    /// `patience` is the time limit of the step. Unset if there is none: `drain.onBlocked: Wait`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patience: Option<TimeLimit>,
}

/// `AutomaticRollback` is about an agent that has put the old network back without being asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutomaticRollback {
    /// `at` is the time at which the coordinator saw the report of the agent.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// `reason` is the human-readable reason of the agent. At most 2048 bytes.
    pub reason: String,
    /// `resumedAt` is the value of `spec.resumedAt` of the Migration at that time. The node is started again when
    /// `spec.resumedAt` has another value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub resumed_at: Option<Timestamp>,
}

/// `FinishedStep` is a finished step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FinishedStep {
    /// `name` is the name of the step.
    pub name: String,
    /// `startedAt` is the time at which the step started.
    #[schemars(with = "String")]
    pub started_at: Timestamp,
    /// `finishedAt` is the time at which the step ended.
    #[schemars(with = "String")]
    pub finished_at: Timestamp,
}

/// `ProbeTarget` is a probe pod that the agent probes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProbeTarget {
    /// `node` is the name of the node that the probe pod is on.
    pub node: String,
    /// `address` is the address of the probe pod.
    #[schemars(with = "String")]
    pub address: std::net::IpAddr,
    /// `port` is the UDP and TCP port of the probe pod.
    pub port: u16,
    /// `podUid` is the UID of the probe pod. Answers of other pods do not count.
    pub pod_uid: String,
}

/// `NodeMigrationStatus` is what the agent has observed and done on its node. The agent on the node writes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeMigrationStatus {
    /// `observedGeneration` is the `metadata.generation` of the spec that the agent has acted on.
    #[serde(default)]
    pub observed_generation: i64,
    /// `agentVersion` is the version of the agent.
    #[serde(default)]
    pub agent_version: String,
    /// `phase` is the state of the host between the two networks, as the agent has observed it. Unset if the host cannot be read.
    /// Used by `flannelToCalico`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// `phaseSince` is the time at which the agent first observed this phase. Unset if `phase` is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub phase_since: Option<Timestamp>,
    /// `message` is a human-readable description of what the agent does or waits for.
    #[serde(default)]
    pub message: String,
    /// `failure` is why the agent does not continue. Unset while it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// `facts` is what the agent has read from its host. Unset if the host cannot be read. Used by `flannelToCalico`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<HostFacts>,
    /// `podCidr` is what the agent has found in both ranges on its host. Unset if the host cannot be read, and if `spec.podCidr`
    /// is unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_cidr: Option<PodCidrFacts>,
    /// `serviceCidr` is what the agent has found about Services on its host. Unset if the host cannot be read, and if
    /// `spec.serviceCidr` is unset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_cidr: Option<ServiceCidrFacts>,
    /// `leftovers` is the list of objects of the flannel network that are on the host. Used by `flannelToCalico`.
    #[serde(default)]
    pub leftovers: Vec<String>,
    /// `changes` is the list of differences between the host and its state before the migration, which a rollback reverts. Used
    /// by `flannelToCalico`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<String>,
    /// `automaticRollback` is why the agent puts, or has put, the old network back without being asked. Unset otherwise, and once the
    /// coordinator has set `goal` to `Flannel`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub automatic_rollback: Option<String>,
    /// `goal` is the goal that the agent has acted on. Used by `flannelToCalico`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub goal: Option<Goal>,
    /// `checks` is the list of results of the checks that the agent makes on its host. Used by `flannelToCalico`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
    /// `steps` is the list of changes that the agent has made on its host, oldest first. At most 32 items; older ones are
    /// dropped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<FinishedStep>,
    /// `traffic` is the report of the traffic pods of this node. Unset if there has been no flow since the start of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<TrafficReport>,
    /// `probes` is the list of results of `spec.probes`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub probes: Vec<ProbeResult>,
}

/// `Failure` is why an agent does not continue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Failure {
    /// `category` is the kind of failure, in `CamelCase`.
    pub category: String,
    /// `message` is a human-readable description of what failed, on which object, and why.
    pub message: String,
    /// `retriable` is whether the agent retries.
    pub retriable: bool,
}

/// `ProbeResult` is the result of the probes of one target.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProbeResult {
    /// `target` is the target, as in `spec.probes`.
    pub target: ProbeTarget,
    /// `reached` is whether the probe pod has answered over UDP, over TCP, and to a UDP packet as large as the MTU of pods.
    pub reached: bool,
    /// `message` is a human-readable description of which probes were answered.
    pub message: String,
    /// `at` is the time at which this result was first found. Later probes with the same result do not change it.
    #[schemars(with = "String")]
    pub at: Timestamp,
}
