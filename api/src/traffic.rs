//! Traffic as the gate, on the wire: what a Migration allows, what an agent reports of its node, and the sum of it.

pub use engine::traffic::gates::Gates;
pub use engine::traffic::stream::Totals;
pub use engine::traffic::{Flow, PathClass, Protocol};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What has to hold before a migration goes on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GateRules {
    /// Whether the agents probe each other's pod network without pause, and what they find stops the rollout.
    #[serde(default)]
    pub traffic: TrafficGate,
    /// Lost probes by sent ones over the last 10 seconds of one path, 0 to 1. Default 0.01.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0.0, max = 1.0))]
    pub max_loss_ratio: Option<f64>,
    /// The longest time in which a path has no answer, in milliseconds. Default 2000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 200, max = 60000))]
    pub max_gap_milliseconds: Option<u32>,
    /// Of `serviceCidr`: what ends stage Soak, in which the addresses that Services have left still answer.
    #[serde(default)]
    pub soak: SoakGate,
}

/// What ends stage Soak of `serviceCidr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SoakGate {
    /// No connection leads to an old address for `soakSeconds`, and no object of a tenant says one.
    #[default]
    Unused,
    /// `soakSeconds` have passed since it began, even if an old address is in use then.
    Elapsed,
}

impl GateRules {
    /// The limits, with the defaults where the spec says nothing.
    pub fn gates(&self) -> Gates {
        let default = Gates::default();
        Gates {
            max_loss_ratio: self.max_loss_ratio.unwrap_or(default.max_loss_ratio),
            max_gap_milliseconds: self.max_gap_milliseconds.unwrap_or(default.max_gap_milliseconds),
        }
    }
}

/// Whether traffic is the gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TrafficGate {
    /// A traffic pod on every node sends and counts without pause; a path that loses more than it may stops the
    /// rollout.
    #[default]
    Watch,
    /// No traffic pods. Each node's network is proved once, when it has changed, and not looked at afterwards.
    Ignore,
}

/// What the traffic pods of one node found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TrafficReport {
    /// How many flows the agent was asked for.
    #[serde(default)]
    pub flows: u32,
    /// `judgedSince` of the spec: everything but the counts is about the time after that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub judged_since: Option<Timestamp>,
    /// UIDs of the traffic pods that report, and of whose paths every one has been answered or given up.
    #[serde(default)]
    pub reporting: Vec<String>,
    /// Counts by class of path since the agent's start.
    #[serde(default)]
    pub classes: Vec<ClassCount>,
    /// Paths that lose more than they may now.
    #[serde(default)]
    pub breaches: Vec<Breach>,
    /// Pods that get more probes than they answer, and from where. What is lost there does not count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub floods: Vec<String>,
    /// As of when. Numbers that only grow are not written for themselves.
    #[schemars(with = "String")]
    pub at: Timestamp,
}

/// What was sent and lost on one class of path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClassCount {
    /// The class.
    pub class: PathClass,
    /// The counts.
    #[serde(flatten)]
    pub totals: Totals,
}

/// A path that loses more than it may.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Breach {
    /// The path.
    pub flow: Flow,
    /// What is lost on it; absent where nobody knows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<Protocol>,
    /// Since when.
    #[schemars(with = "String")]
    pub since: Timestamp,
    /// Which class, from where to where, what was exceeded.
    pub message: String,
}

/// That traffic stopped the rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GateBreach {
    /// When the coordinator took notice.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// The path that was named first, and how many others there were.
    pub message: String,
    /// `resumedAt` of the Migration at that time: another one says that the rollout goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub resumed_at: Option<Timestamp>,
    /// Since when every path is watched again after that, and none lost more than it may.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub clean_since: Option<Timestamp>,
}
