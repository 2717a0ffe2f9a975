//! The fields of this kind in the API.

use engine::host_report::{HostReport, Urgency};
use engine::kind_fields::KindFields;
use engine::sourced::Sourced;
use engine::stage::{CurrentStage, FinishedStage};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decide::Stage;

/// `example` labels a ConfigMap. Immutable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// `configMap` is the name of the ConfigMap, in the namespace of replumb. 1 to 253 characters.
    #[schemars(length(min = 1, max = 253))]
    pub config_map: String,
    /// `holdSeconds` is how long the label stays before the migration completes, in seconds. The migration can be rolled back
    /// until then. Defaults to 0.
    #[serde(default)]
    pub hold_seconds: u32,
}

impl KindFields for Spec {}

/// `example` is the state of the migration. Unset until its settings are known, and for other kinds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    /// `settings` are the settings of the migration, each with its source.
    pub settings: Settings,
    /// `stage` is the current stage. Unset before the first stage and after the last stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<CurrentStage<Stage>>,
    /// `history` is the list of finished stages, oldest first. At most 60 items; older ones are dropped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<FinishedStage<Stage>>,
}

/// `Settings` are the settings of the migration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// `configMap` is the name of the ConfigMap.
    pub config_map: Sourced<String>,
}

/// `example` asks the agent for its kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NodeSpec {}

/// `example` is what the agent has read from its host. Unset if `spec.example` is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// `kernel` is the release of the kernel.
    pub kernel: String,
}

impl HostReport for NodeStatus {
    type Orders = NodeSpec;

    fn urgency(&self, old: &Self, _orders: Option<&NodeSpec>) -> Urgency {
        if self == old { Urgency::Late } else { Urgency::Now }
    }
}
