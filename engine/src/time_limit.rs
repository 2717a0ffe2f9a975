//! The time limit of a step.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `TimeLimit` is the time limit of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TimeLimit {
    /// `seconds` is the time limit in seconds. If the host gives new pods no network and neither the agent nor the coordinator
    /// makes progress for this time, the agent puts the old network back.
    pub seconds: u32,
    /// `from` is the start of the time limit: the start of the step, or `spec.resumedAt` of the Migration if that is later. The
    /// agent does not compare it with its own clock; a changed value restarts the time.
    #[schemars(with = "String")]
    pub from: Timestamp,
}
