//! The stages of a migration, as the API shows them.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decision::Direction;

/// `CurrentStage` is the current stage of a migration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CurrentStage<Stage> {
    /// `name` is the name of the stage.
    pub name: Stage,
    /// `direction` is where the migration goes. Possible values: `Forward`: to the target. `Rollback`: back to the source.
    pub direction: Direction,
    /// `since` is the time at which the stage started.
    #[schemars(with = "String")]
    pub since: Timestamp,
}

/// `FinishedStage` is a finished stage of a migration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FinishedStage<Stage> {
    /// `name` is the name of the stage.
    pub name: Stage,
    /// `direction` is where the migration went. Possible values: `Forward`: to the target. `Rollback`: back to the source.
    pub direction: Direction,
    /// `startedAt` is the time at which the stage started.
    #[schemars(with = "String")]
    pub started_at: Timestamp,
    /// `finishedAt` is the time at which the stage ended.
    #[schemars(with = "String")]
    pub finished_at: Timestamp,
}
