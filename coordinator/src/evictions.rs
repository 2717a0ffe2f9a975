//! Requested evictions and refusals: what outlives a pass. Lost at a restart.

use std::collections::BTreeMap;

use engine::evict::{PodName, Refusal};
use jiff::Timestamp;
use strum::IntoStaticStr;
use tokio::task::JoinSet;

/// Refused evictions by pod UID. Lost at a restart: the age then starts at the next refusal.
pub type Refusals = BTreeMap<String, Refusal>;

/// Requested evictions without an answer, and recent evictions.
#[derive(Default)]
pub struct Evictions {
    pub(crate) requests: JoinSet<(PodName, Outcome)>,
    /// Time of each request without an answer, by pod UID.
    pub(crate) unanswered: BTreeMap<String, Timestamp>,
    /// Time of each recent eviction, by pod UID.
    pub(crate) made: BTreeMap<String, Timestamp>,
    /// Time when the API server first reported a pod as gone, by pod UID.
    pub(crate) gone: BTreeMap<String, Timestamp>,
    /// Pods reported as gone again after the watch had time to show it.
    pub(crate) lost: Vec<PodName>,
}

/// Result of one request.
#[derive(IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub(crate) enum Outcome {
    /// The pod terminates.
    Evicted,
    /// The pod does not exist any more.
    Gone,
    /// A new pod has the same name, perhaps on another node (R5).
    Replaced,
    /// The API server refused the eviction.
    Refused { by_budget: bool, message: String },
    /// The API server could not answer.
    Error(String),
}

impl Outcome {
    /// Label for metrics.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Refused { by_budget: true, .. } => "refused_by_budget",
            outcome => outcome.into(),
        }
    }
}
