//! The traffic gate on the wire: the limits in a Migration, the report of an agent, and the totals.

use std::net::IpAddr;

pub use engine::traffic::gates::Gates;
pub use engine::traffic::stream::Totals;
pub use engine::traffic::{Flow, PathClass, Protocol};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `GateRules` sets how much traffic may be lost before the migration halts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GateRules {
    /// `traffic` is whether traffic pods on all nodes probe each other. Possible values: `Watch` (default): traffic pods send and
    /// count probes continuously, and the rollout halts if a path loses more than `maxLossRatio` or `maxGapMilliseconds` allows.
    /// `Ignore`: there are no traffic pods; for `flannelToCalico`, each node is probed once after its change.
    #[serde(default)]
    pub traffic: TrafficGate,
    /// `maxLossRatio` is the highest allowed ratio of lost to sent probes on one path over the last 10 seconds, from 0 to 1. On a
    /// path to a pod, at least 2 probes, and on a path to a Service, at least 12 probes must be lost. Defaults to 0.01.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub max_loss_ratio: Option<f64>,
    /// `maxGapMilliseconds` is the longest allowed time without an answer on one path, in milliseconds. On a path to a Service,
    /// three times this value is allowed. A probe that is answered later than this counts as lost. Defaults to 2000. Minimum 200,
    /// maximum 60000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 200, max = 60000))]
    pub max_gap_milliseconds: Option<u32>,
    /// `sourceAddresses` is whether the migration waits while packets of pods of the new network arrive from other addresses than
    /// those of their pods, and packets of the old network do not. Possible values: `Keep` (default): it waits. `Ignore`: it does
    /// not.
    #[serde(default)]
    pub source_addresses: SourceAddressGate,
    /// `soak` is when stage Soak of `serviceCidr` ends. Possible values: `Unused` (default): no old address has been in use for
    /// `serviceCidr.soakSeconds`, and no object of a tenant names one. `Elapsed`: `serviceCidr.soakSeconds` have passed since the
    /// start of the stage, even if an old address is in use.
    #[serde(default)]
    pub soak: SoakGate,
}

/// `SourceAddressGate` is whether the migration waits while packets of pods of the new network arrive from other addresses than
/// those of their pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SourceAddressGate {
    /// The migration waits.
    #[default]
    Keep,
    /// The migration does not wait.
    Ignore,
}

/// `SoakGate` is when stage Soak of `serviceCidr` ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SoakGate {
    /// No old address has been in use for `soakSeconds`, and no object of a tenant names one.
    #[default]
    Unused,
    /// `soakSeconds` have passed since the start of the stage, even if an old address is in use.
    Elapsed,
}

impl GateRules {
    /// The limits. Unset fields have their defaults.
    pub fn gates(&self) -> Gates {
        let default = Gates::default();
        Gates {
            max_loss_ratio: self.max_loss_ratio.unwrap_or(default.max_loss_ratio),
            max_gap_milliseconds: self.max_gap_milliseconds.unwrap_or(default.max_gap_milliseconds),
        }
    }
}

/// `TrafficGate` is whether traffic pods on all nodes probe each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TrafficGate {
    /// Traffic pods send and count probes continuously, and the rollout halts if a path loses too many.
    #[default]
    Watch,
    /// There are no traffic pods.
    Ignore,
}

/// `TrafficReport` is what the traffic pods of one node have found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrafficReport {
    /// `flows` is the number of flows that the agent was asked for.
    #[serde(default)]
    pub flows: u32,
    /// `lossesCountedSince` is the value of `spec.lossesCountedSince` that this report is about. Everything but `classes` covers
    /// only the time after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub losses_counted_since: Option<Timestamp>,
    /// `reporting` is the list of traffic pods, by UID, that report to the agent and have a result for each of their paths.
    #[serde(default)]
    pub reporting: Vec<String>,
    /// `classes` is the number of probes by class of path, since the start of the agent.
    #[serde(default)]
    pub classes: Vec<ClassCount>,
    /// `breaches` is the list of paths that lose more than `spec.gates` allows now.
    #[serde(default)]
    pub breaches: Vec<Breach>,
    /// `floods` is the list of pods that receive more probes than they answer, each with the source. Losses on paths to these
    /// pods do not count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub floods: Vec<String>,
    /// `masquerades` is the list of paths on which packets of a traffic pod arrive from another address than that of the pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub masquerades: Vec<Masquerade>,
    /// `at` is the time of this report. A report in which only the numbers of answered probes have changed is not written.
    #[schemars(with = "String")]
    pub at: Timestamp,
}

/// `ClassCount` is the number of probes on one class of path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClassCount {
    /// `class` is the class of path. Possible values: `OldToOld`, `OldToNew`, `NewToOld` and `NewToNew`: between nodes, from a
    /// pod of the old or new network to a pod of the old or new network. `SameNode`: between the two networks on one node.
    /// `PodToService`: to the Service of the traffic pods. `PodToDns`: to the cluster DNS. `PodToApi`: to the API server.
    pub class: PathClass,
    /// The number of probes.
    #[serde(flatten)]
    pub totals: Totals,
}

/// `Breach` is a path that loses more than the gates allow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Breach {
    /// `flow` is the path.
    pub flow: Flow,
    /// `protocol` is the protocol of the lost probes. Unset if the traffic pod does not report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// `since` is the time since which the path loses too much.
    #[schemars(with = "String")]
    pub since: Timestamp,
    /// `message` is a human-readable description: the class of path, source and target, and which limit was exceeded.
    pub message: String,
}

/// `Masquerade` is a path on which packets arrive from another address than that of the sending pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Masquerade {
    /// `flow` is the path.
    pub flow: Flow,
    /// `sourceSeen` is the address that the packets come from at the other end.
    #[schemars(with = "String")]
    pub source_seen: IpAddr,
}

/// `GateBreach` is a traffic loss that has halted the rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GateBreach {
    /// `at` is the time at which the coordinator saw the loss.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// `message` is a human-readable description: the first path that lost too much, and the number of other such paths. At most
    /// 2048 bytes.
    pub message: String,
    /// `resumedAt` is the value of `spec.resumedAt` at that time. The halt ends when `spec.resumedAt` has another value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub resumed_at: Option<Timestamp>,
    /// `cleanSince` is the time after the halt since which all paths are watched and none loses too much. Unset before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub clean_since: Option<Timestamp>,
}
