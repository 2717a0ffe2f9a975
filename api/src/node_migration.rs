//! `NodeMigration`: the goal of one node (written by the coordinator) and its state (written by the agent on that node).

pub use engine::time_limit::TimeLimit;
use jiff::Timestamp;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::migration::Action;
use crate::traffic::{Flow, Gates, TrafficReport};

/// Defines the spec and the status, with one field for each kind.
macro_rules! node_migration {
    ($($(#[cfg($($cfg:tt)*)])? $kind:ident $field:ident $api_field:literal $default_name:literal,)+) => {
        /// `NodeMigrationSpec` is what a migration does on one node. The coordinator writes it, and the agent on the node reads
        /// it.
        #[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
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
            printcolumn(name = "Phase", type_ = "string", json_path = ".status.flannelToCalico.phase"),
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
            $(
                $(#[cfg($($cfg)*)])?
                #[expect(missing_docs, reason = "the documentation is that of the type")]
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub $field: Option<::$field::api::NodeSpec>,
            )+
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
            /// `lossesCountedSince` is the value of `spec.resumedAt` of the Migration. Losses that the agent has seen before it
            /// learned of this value do not count. Unset if `flows` is empty, or if the Migration has no such value.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schemars(with = "Option<String>")]
            pub losses_counted_since: Option<Timestamp>,
            /// `position` is the position of the node in the rollout order, from 0.
            #[serde(default)]
            pub position: u32,
            /// `started` is true from the start of the node until it is back on the old network. Used by `flannelToCalico`.
            #[serde(default)]
            pub started: bool,
            /// `rollingBack` is whether the node is being rolled back. Used by `flannelToCalico`.
            #[serde(default, skip_serializing_if = "std::ops::Not::not")]
            pub rolling_back: bool,
            /// `skipped` is whether the node was set aside, because of `drain.onBlocked: Skip` or because its first step failed.
            /// The node is retried after all other nodes. Used by `flannelToCalico`.
            #[serde(default, skip_serializing_if = "std::ops::Not::not")]
            pub skipped: bool,
            /// `prepare` is the list of planned actions for this node before the first node changes, in order.
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            pub prepare: Vec<Action>,
            /// `plan` is the list of planned actions on this node, in order.
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            pub plan: Vec<Action>,
            /// `step` is the current step of the node. Unset before the first step and after the last step. Used by
            /// `flannelToCalico`.
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
            /// `finishedBeforeRollback` is the value that `finishedAt` had before the rollback of the node started. Unset
            /// otherwise. `finishedAt` gets this value again if the first step of the rollback fails and the node is set aside.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schemars(with = "Option<String>")]
            pub finished_before_rollback: Option<Timestamp>,
            /// `returnedAt` is the time at which the node was back on the old network. Unset before, and once the node is started
            /// again.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schemars(with = "Option<String>")]
            pub returned_at: Option<Timestamp>,
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
            /// `message` is a human-readable description of what the agent does or waits for.
            #[serde(default)]
            pub message: String,
            /// `failure` is why the agent does not continue. Unset while it does.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub failure: Option<Failure>,
            $(
                $(#[cfg($($cfg)*)])?
                #[expect(missing_docs, reason = "the documentation is that of the type")]
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub $field: Option<::$field::api::NodeStatus>,
            )+
            /// `steps` is the list of changes that the agent has made on its host, oldest first. At most 32 items; older ones are
            /// dropped.
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            pub steps: Vec<FinishedStep>,
            /// `traffic` is the report of the traffic pods of this node. Unset if there has been no flow since the start of the
            /// agent.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub traffic: Option<TrafficReport>,
            /// `probes` is the list of results of `spec.probes`.
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            pub probes: Vec<ProbeResult>,
        }
    };
}

crate::for_each_kind!(node_migration);

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
    /// `timeLimit` is the time limit of the step. Unset if there is none: `drain.onBlocked: Wait`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_limit: Option<TimeLimit>,
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
