//! The fields of a Migration for the rollout and the drain of nodes.

use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `Rollout` sets how many nodes change at the same time, which nodes go first, and how long a step may take.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rollout {
    /// `maxUnavailable` is the number or percentage of nodes that may be unavailable at the same time: a number from 1, or a
    /// percentage from 1% to 100% of all nodes, rounded up. Nodes that are NotReady for other reasons count. For `podCidr`, the
    /// limit applies to nodes that change their tunnel address or, in mode `ByNode`, are drained; for `calicoDatastore`, to nodes
    /// that replace calico-node. `serviceCidr` does not use it. Defaults to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
    /// `canary` sets which nodes change first. If unset, there are no canary nodes. Applies to `flannelToCalico`; `podCidr` uses
    /// only `canary.soakSeconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
    /// `intervalSeconds` is the minimum time between the end of one node and the start of the next, in seconds. Applies to
    /// `flannelToCalico`. Defaults to 0.
    #[serde(default)]
    pub interval_seconds: u32,
    /// `stepTimeoutSeconds` is the maximum time, in seconds, for one step of a node, and for a wait of the whole migration
    /// without progress. The migration halts after this time. Steps that drain a node use `drain.timeoutSeconds` instead, and
    /// waits for a person, a turn or a soak time have no timeout. Defaults to 600. Minimum 10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10))]
    pub step_timeout_seconds: Option<u32>,
}

/// `Canary` sets which nodes change first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Canary {
    /// `nodes` is the number of canary nodes. The first nodes of the rollout order are the canary nodes, and no other node starts
    /// before all of them are done. Minimum 1.
    #[schemars(range(min = 1))]
    pub nodes: u32,
    /// `soakSeconds` is the time between the end of the last canary node and the start of the other nodes, in seconds. For
    /// `podCidr`, it is how long all paths between both ranges must work before the new IPPool is opened to all pods, and at
    /// least 10. Defaults to 0.
    #[serde(default)]
    pub soak_seconds: u32,
}

/// `Drain` sets how pods are evicted. `calicoDatastore` does not use it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Drain {
    /// `timeoutSeconds` is the maximum time for one step that drains a node, in seconds. `onBlocked` sets what happens after this
    /// time. Applies to `flannelToCalico`. Defaults to 900. Minimum 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub timeout_seconds: Option<u32>,
    /// `gracePeriodSeconds` overrides the termination grace period of evicted pods, in seconds. If unset, each pod has its own
    /// grace period. Minimum 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub grace_period_seconds: Option<u32>,
    /// `onBlocked` is what happens if a node is not drained within `timeoutSeconds`. Applies to `flannelToCalico`. Possible
    /// values: `Pause` (default): the rollout halts, and the node keeps its cordon until the user resumes or rolls back. `Wait`:
    /// the node keeps waiting and counts against `rollout.maxUnavailable`. `Skip`: a node on which only the cordon has changed is
    /// uncordoned, keeps the old network, and is retried after all other nodes; for other nodes as `Pause`. For `podCidr` and
    /// `serviceCidr`, blocked evictions are always retried, and `Wait` and `Skip` turn failed checks of PodDisruptionBudgets into
    /// warnings.
    #[serde(default)]
    pub on_blocked: OnBlocked,
    /// `deleteEmptyDirData` allows the eviction of pods with emptyDir volumes. The data in these volumes is lost. Defaults to
    /// false.
    #[serde(default)]
    pub delete_empty_dir_data: bool,
    /// `force` allows the eviction of pods without a controller. Evicted pods without a controller are not created again. For
    /// `podCidr` and `serviceCidr`, `deleteBarePods` of the kind has the same effect. Defaults to false.
    #[serde(default)]
    pub force: bool,
}

/// `OnBlocked` is what happens if a node is not drained in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnBlocked {
    /// The rollout halts. The node keeps its cordon until the user resumes or rolls back.
    #[default]
    Pause,
    /// The node keeps waiting and counts against `maxUnavailable`.
    Wait,
    /// A node on which only the cordon has changed is uncordoned, keeps the old network, and is retried after all other nodes.
    /// Other nodes: as `Pause`.
    Skip,
}
