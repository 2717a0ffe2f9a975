//! The fields of this kind in the API.

use calico::etcd_access::EtcdAccess;
use engine::host_report::{HostReport, Urgency};
use engine::kind_fields::KindFields;
use engine::stage::{CurrentStage, FinishedStage};
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cluster::settings::Settings;
use crate::cluster::step::Stage;

pub use self::{
    CalicoDatastore as Spec, CalicoDatastoreHost as NodeSpec, CalicoDatastoreHostStatus as NodeStatus,
};

/// The state of a migration. Boxed: the status of every Migration would be as large as the largest one.
pub type Status = Box<CalicoDatastoreStatus>;

/// `calicoDatastore` upgrades Calico v2 (data in etcd v2) to Calico v3 (data in etcd v3). Calico is paused while its data is
/// converted and calico-node is replaced node by node. Immutable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CalicoDatastore {
    /// `manifest` is Calico's own manifest for v3 with etcd, as YAML. The coordinator writes the DaemonSet of calico-node, its
    /// ConfigMap and the Deployment of calico-kube-controllers when their stage is reached. All other objects of the manifest
    /// must exist before the migration. Secrets in the manifest must not contain data. 1 to 200000 characters.
    #[schemars(length(min = 1, max = 200_000))]
    pub manifest: String,
    /// `etcdV2` is the connection to etcd v2. Defaults to the connection that calico-node in the cluster uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_v2: Option<EtcdAccess>,
    /// `etcdV3` is the connection to etcd v3. Defaults to the connection that calico-node in `manifest` uses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_v3: Option<EtcdAccess>,
    /// `pauseLimitSeconds` is how long Calico may be paused before the migration is rolled back automatically, in seconds. No pod
    /// gets a network while Calico is paused. Defaults to 3600. Minimum 60, maximum 86400.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 60, max = 86_400))]
    pub pause_limit_seconds: Option<u32>,
    /// `settleSeconds` is how long the coordinator waits between the pause of Calico and the conversion, in seconds, so that
    /// running CNI plugins finish. Defaults to 15. Maximum 600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 600))]
    pub settle_seconds: Option<u32>,
    /// `ignoreV3Data` allows existing keys below `/calico/` in etcd v3. Keys that the conversion writes are overwritten. Profiles
    /// of namespaces and policies that mirror Kubernetes objects are deleted, and Calico's controllers create them again. All
    /// other keys are kept. A rollback restores all keys. Defaults to false.
    #[serde(default)]
    pub ignore_v3_data: bool,
}

impl KindFields for CalicoDatastore {}

/// `calicoDatastore` is the state of an upgrade of Calico's datastore. Unset until its settings are known, and for other kinds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CalicoDatastoreStatus {
    /// `settings` are the settings of the migration, each with its source. Detected again until the first change, and fixed after
    /// that.
    pub settings: Settings,
    /// `stage` is the current stage. Unset before the first stage and after the last stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<CurrentStage<Stage>>,
    /// `history` is the list of finished stages, oldest first. At most 60 items; older ones are dropped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<FinishedStage<Stage>>,
    /// `backup` is the backup of all Calico data in both stores. Unset until it is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<DatastoreBackup>,
    /// `record` is the ID of the conversion record in etcd v3 that this migration has started. Unset before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
    /// `recordPhase` is the phase of the conversion record in etcd v3. Possible values: `Pausing`, `Paused`, `Writing`,
    /// `Written`, `Verified`, `Completing`, `Completed`, `Aborting` and `Aborted`. Unset if there is no record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record_phase: Option<String>,
    /// `pausedSince` is the time since which Calico is paused. No pod gets a network while Calico is paused. Unset while it is
    /// not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub paused_since: Option<Timestamp>,
    /// `pausedUntil` is the time at which the migration is rolled back automatically if Calico is still paused. Unset while
    /// Calico is not paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub paused_until: Option<Timestamp>,
    /// `openedAt` is the time at which Calico started to work with etcd v3, which is the point of no return. Unset before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub opened_at: Option<Timestamp>,
    /// `podsWithoutNetwork` is the number of pods that are assigned to a node and wait for a network.
    #[serde(default)]
    pub pods_without_network: u32,
    /// `maxPodsWithoutNetwork` is the largest value of `podsWithoutNetwork` while Calico was paused.
    #[serde(default)]
    pub max_pods_without_network: u32,
    /// `podWithoutNetwork` is the oldest pod that waits for a network, as `namespace/name`. Unset if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_without_network: Option<String>,
    /// `automaticRollback` is why the migration is rolled back although `spec.desired` does not ask for it. Once set, the
    /// migration does not go forward again. Unset otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub automatic_rollback: Option<AutomaticRollback>,
}

/// `AutomaticRollback` is why a migration is rolled back although `spec.desired` does not ask for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AutomaticRollback {
    /// `at` is the time at which the rollback started.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// `reason` is the human-readable reason. At most 2048 bytes.
    pub reason: String,
}

/// `DatastoreBackup` is a backup of all Calico data in both stores, in immutable Secrets in the namespace of replumb. The
/// coordinator does not delete these Secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DatastoreBackup {
    /// `name` is the name of the first Secret. All Secrets of a backup have the same value of the label
    /// `replumb.dev/calico-datastore-backup`.
    pub name: String,
    /// `parts` is the number of Secrets.
    pub parts: u32,
    /// `sha256` is the SHA-256 of the whole backup, uncompressed, in hexadecimal.
    pub sha256: String,
    /// `v2Keys` is the number of keys from etcd v2.
    pub v2_keys: u32,
    /// `v3Keys` is the number of keys from etcd v3.
    pub v3_keys: u32,
    /// `takenAt` is the time of the backup.
    #[schemars(with = "String")]
    pub taken_at: Timestamp,
}

impl CalicoDatastoreStatus {
    /// The status of a migration that has not started.
    pub fn of(settings: Settings) -> Self {
        Self {
            settings,
            stage: None,
            history: Vec::new(),
            backup: None,
            record: None,
            record_phase: None,
            paused_since: None,
            paused_until: None,
            opened_at: None,
            pods_without_network: 0,
            max_pods_without_network: 0,
            pod_without_network: None,
            automatic_rollback: None,
        }
    }
}

/// `calicoDatastore` is set for migrations of this kind. The agent reports the traffic of its node, and changes nothing on its
/// host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CalicoDatastoreHost {}

/// `calicoDatastore` is set once the agent has read `spec.calicoDatastore`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CalicoDatastoreHostStatus {}

impl HostReport for CalicoDatastoreHostStatus {
    type Orders = CalicoDatastoreHost;

    fn urgency(&self, _old: &Self, _orders: Option<&CalicoDatastoreHost>) -> Urgency {
        Urgency::Late
    }
}
