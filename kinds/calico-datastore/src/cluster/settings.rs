//! Settings of the migration: from the spec, detected in the cluster, or the default.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use calico::etcd_access::Etcd;
use engine::sourced::Sourced;

/// Default of the longest pause of Calico, in seconds.
pub const PAUSE_LIMIT_SECONDS: u32 = 60 * 60;
/// Default of the time between the pause and the conversion, in seconds: a running CNI plugin can take that long.
pub const SETTLE_SECONDS: u32 = 15;

/// `Settings` are the settings of an upgrade of Calico's datastore, each with its source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// `daemonSet` is the DaemonSet of calico-node, as `namespace/name`.
    pub daemon_set: Sourced<String>,
    /// `controllers` is the Deployment of calico-kube-controllers, as `namespace/name`. Empty if there is none.
    pub controllers: Sourced<String>,
    /// `configuration` is the ConfigMap that is written together with the DaemonSet, as `namespace/name`. Empty if there is none.
    pub configuration: Sourced<String>,
    /// `fromImage` is the image of calico-node before the migration.
    pub from_image: Sourced<String>,
    /// `toImage` is the image of calico-node after the migration.
    pub to_image: Sourced<String>,
    /// `etcdV2` is the connection to etcd v2.
    pub etcd_v2: Sourced<Etcd>,
    /// `etcdV3` is the connection to etcd v3.
    pub etcd_v3: Sourced<Etcd>,
    /// `pauseLimitSeconds` is how long Calico may be paused before the migration is rolled back automatically, in seconds.
    pub pause_limit_seconds: Sourced<u32>,
    /// `settleSeconds` is how long the coordinator waits between the pause of Calico and the conversion, in seconds.
    pub settle_seconds: Sourced<u32>,
    /// `ignoreV3Data` is whether existing keys below `/calico/` in etcd v3 are allowed.
    pub ignore_v3_data: Sourced<bool>,
}
