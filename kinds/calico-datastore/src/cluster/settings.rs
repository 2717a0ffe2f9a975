//! What the migration works with: what the user wrote, what the cluster shows, the default.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use calico::etcd_access::Etcd;
use engine::sourced::Sourced;

/// How long Calico may be paused, in seconds, when nobody says.
pub const PAUSE_LIMIT_SECONDS: u32 = 60 * 60;
/// How long v2 is left alone after the pause, in seconds, when nobody says: so long a CNI plugin may take.
pub const SETTLE_SECONDS: u32 = 15;

/// What the migration works with; saved before the first change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// The `DaemonSet` of calico-node, as namespace/name.
    pub daemon_set: Sourced<String>,
    /// The Deployment of Calico's controllers, as namespace/name; empty where there is none.
    pub controllers: Sourced<String>,
    /// The `ConfigMap` that is written with the `DaemonSet`, as namespace/name; empty where there is none.
    pub configuration: Sourced<String>,
    /// The image of calico-node before.
    pub from_image: Sourced<String>,
    /// And after.
    pub to_image: Sourced<String>,
    /// The way to etcd v2.
    pub etcd_v2: Sourced<Etcd>,
    /// The way to etcd v3.
    pub etcd_v3: Sourced<Etcd>,
    /// How long Calico may be paused before everything goes back by itself, in seconds.
    pub pause_limit_seconds: Sourced<u32>,
    /// How long v2 is left alone after the pause, in seconds.
    pub settle_seconds: Sourced<u32>,
    /// Whether something may be in v3 before, and is written over.
    pub ignore_v3_data: Sourced<bool>,
}
