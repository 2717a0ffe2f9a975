//! `Migration`: the desired and the observed state of one migration.

use std::collections::BTreeMap;

pub use calico::etcd_access::EtcdAccess;
pub use calico_datastore::api::{AutomaticRollback, CalicoDatastore, CalicoDatastoreStatus, DatastoreBackup};
use engine::check::Check;
pub use engine::decision::Direction;
pub use engine::document::Action;
pub use engine::stage::{CurrentStage, FinishedStage};
use engine::standstill::MigrationWait;
pub use flannel_to_calico::api::{FlannelToCalico, FlannelToCalicoStatus};
pub use flannel_to_calico::settings::{FirewallTwins, LegacyPods, Strategy};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
pub use pod_cidr::api::{PodCidr, PodCidrStatus};
pub use pod_cidr::decide::Stage;
pub use pod_cidr::settings::{Family, Mode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
pub use service_cidr::api::{ServiceAddresses, ServiceCidr, ServiceCidrStatus};
use strum::{IntoStaticStr, VariantArray};

pub use crate::rollout::{Canary, Drain, OnBlocked, Rollout};
use crate::traffic::{ClassCount, GateBreach, GateRules};

/// Defines the spec and the status, with one field for each kind.
macro_rules! migration {
    ($($(#[cfg($($cfg:tt)*)])? $kind:ident $field:ident $api_field:literal $default_name:literal,)+) => {
        /// `MigrationSpec` is the desired state of a Migration. Exactly one of the fields of the kinds must be set:
        /// `flannelToCalico`, `podCidr`, `serviceCidr` or `calicoDatastore`.
        #[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[kube(
            group = "replumb.dev",
            version = "v1alpha1",
            kind = "Migration",
            doc = "Migration changes one part of the network of a running cluster, and can be rolled back until its point of no return. The coordinator runs one Migration at a time.",
            plural = "migrations",
            shortname = "mig",
            status = "MigrationStatus",
            derive = "PartialEq",
            printcolumn(name = "Phase", type_ = "string", json_path = ".status.phase"),
            printcolumn(name = "Progress", type_ = "string", json_path = ".status.progress.text"),
            printcolumn(name = "Paused", type_ = "boolean", json_path = ".status.paused"),
            printcolumn(name = "Message", type_ = "string", json_path = ".status.message"),
            printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
        )]
        #[x_kube(validation = Rule::new(crate::kind::exactly_one_rule()).message(crate::kind::exactly_one_message().as_str()))]
        $(
        #[cfg_attr(all($($($cfg)*)?), x_kube(validation = Rule::new(
            crate::kind::immutable_rule::<::$field::api::Spec>($api_field)
        ).message(crate::kind::immutable_message::<::$field::api::Spec>($api_field).as_str())))]
        )+
        #[serde(rename_all = "camelCase")]
        pub struct MigrationSpec {
            $(
                $(#[cfg($($cfg)*)])?
                #[expect(missing_docs, reason = "the documentation is that of the type")]
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub $field: Option<::$field::api::Spec>,
            )+
            /// `desired` is the action to take. Possible values: `Plan` (default): run the checks and write the plan, and change
            /// nothing. `Run`: migrate. `Pause`: finish the nodes in progress, and start nothing new. `Abort`: as `Pause`, and
            /// also roll back the nodes in progress (`flannelToCalico`) or the whole migration (`calicoDatastore`). `Rollback`:
            /// roll back the whole migration. After the first change, `Plan` has the effect of `Pause`. `kubectl replumb` sets
            /// this field.
            #[serde(default)]
            pub desired: Desired,
            /// `rollout` sets how many nodes change at the same time, which nodes go first, and how long a step may take.
            #[serde(default)]
            pub rollout: Rollout,
            /// `drain` sets how pods are evicted.
            #[serde(default)]
            pub drain: Drain,
            /// `gates` sets how much traffic may be lost before the migration halts.
            #[serde(default)]
            pub gates: GateRules,
            /// `planHash` is the hash of the plan that the user has reviewed. Until the first change, the Migration is refused
            /// with reason `PlanChanged` if the hash of the current plan (`status.plan.hash`) is a different one. If unset, any
            /// plan is accepted.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub plan_hash: Option<String>,
            /// `resumedAt` is the time at which the user last resumed, aborted or rolled back the migration. Timeouts restart at
            /// this time. Traffic loss, drift and nodes that fell back before this time no longer stop the rollout. `kubectl
            /// replumb` sets this field.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schemars(with = "Option<String>")]
            pub resumed_at: Option<Timestamp>,
        }

        /// `MigrationStatus` is the observed state of a Migration. The coordinator writes it.
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(rename_all = "camelCase")]
        pub struct MigrationStatus {
            /// `phase` is the phase of the migration. Possible values: `Pending` (default): not processed yet. `Planning`: the
            /// checks run. `Planned`: all checks allow the migration, and `desired: Run` starts it. `Refused`: a check failed,
            /// the plan has changed since it was reviewed, or another Migration is active. `Preparing`: cluster-wide objects are
            /// written. `Rolling`: nodes, pods or Services change. `Mixed`: with strategy `InPlace`, all nodes are on Calico and
            /// some pods are still on the flannel network. `Finishing`: all nodes, pods or Services have changed, and what
            /// belongs to the source is removed. `Completed`: the migration is complete. `Halted`: the migration waits for a
            /// decision of the user. `RollingBack`: the migration is being rolled back. `RolledBack`: the migration is rolled
            /// back. Nothing has changed in `Pending`, `Planning`, `Planned` and `Refused`.
            #[serde(default)]
            pub phase: MigrationPhase,
            /// `observedGeneration` is the `metadata.generation` of the Migration that this status is about.
            #[serde(default)]
            pub observed_generation: i64,
            /// `message` is a human-readable description of what happens now or what the migration waits for, with the object and
            /// the remedy. At most 6144 bytes.
            #[serde(default)]
            pub message: String,
            /// `paused` is whether no further node, pod or Service is started. After the first change, it is true while `desired`
            /// is `Plan`, `Pause` or `Abort`, and while traffic loss or drift halts the rollout.
            #[serde(default)]
            pub paused: bool,
            /// `reason` is the reason, in `CamelCase`, why the migration makes no progress: a wait reason, a halt reason, or one
            /// of `AnotherMigration`, `ChecksFailed`, `KindNotSupported`, `PastReturn`, `PlanChanged` and `SettingsGone`. Empty
            /// while it makes progress.
            #[serde(default, skip_serializing_if = "String::is_empty")]
            pub reason: String,
            /// `wait` is what the migration as a whole waits for. Unset while a node is in progress, and while there is nothing
            /// to wait for.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub wait: Option<MigrationWait>,
            /// `phaseBeforeHalt` is the phase that continues after the halt. Unset unless `phase` is `Halted`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub phase_before_halt: Option<MigrationPhase>,
            /// `progress` is how much of the migration is done.
            #[serde(default)]
            pub progress: Progress,
            /// `checks` is the list of check results, failures first. Results that do not fit into 40 `KiB` are summarized by
            /// check. Not updated after the first change.
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            pub checks: Vec<Check>,
            /// `warnings` is about objects of other owners that limit what the coordinator can decide about them. Warnings do not
            /// stop the migration. Unset if there are none.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub warnings: Option<Warnings>,
            $(
                $(#[cfg($($cfg)*)])?
                #[expect(missing_docs, reason = "the documentation is that of the type")]
                #[serde(default, skip_serializing_if = "Option::is_none")]
                pub $field: Option<::$field::api::Status>,
            )+
            /// `plan` is what the migration will do. Not updated after the first change. The actions on each node are in its
            /// NodeMigration.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub plan: Option<Plan>,
            /// `startedAt` is the time of the first change. Unset before. From then on, the Migration cannot be deleted until its
            /// phase is `Completed` or `RolledBack`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schemars(with = "Option<String>")]
            pub started_at: Option<Timestamp>,
            /// `completedAt` is the time at which the phase became `Completed` or `RolledBack`. Unset before.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schemars(with = "Option<String>")]
            pub completed_at: Option<Timestamp>,
            /// `rollbackStartedAt` is the time since which the cluster-wide changes are being reverted, after all nodes are back
            /// on the old network. Unset otherwise. If the migration then goes forward again, these changes are made again before
            /// a node starts. Used by `flannelToCalico`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schemars(with = "Option<String>")]
            pub rollback_started_at: Option<Timestamp>,
            /// `traffic` is the number of probes that the traffic pods of all nodes have sent and lost, for each class of path.
            /// The numbers do not decrease.
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            pub traffic: Vec<ClassCount>,
            /// `breach` is the last traffic loss that halted the rollout. The halt lasts until `spec.resumedAt` changes. Unset if
            /// there was none.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub breach: Option<GateBreach>,
            /// `preparedAt` is the time at which all cluster-wide objects were in place. Unset before, and from
            /// `rollbackStartedAt` on. Used by `flannelToCalico`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            #[schemars(with = "Option<String>")]
            pub prepared_at: Option<Timestamp>,
            /// `drift` lists changes by other clients to objects that the migration has written. The rollout is halted until
            /// `spec.resumedAt` changes. Unset if there are none. Used by `flannelToCalico`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub drift: Option<Drift>,
            /// `savedState` is the state of the cluster before the first change, which the end of the migration or a rollback
            /// restores, as JSON by key. Values longer than 16384 bytes are in `MigrationRecords` instead: see
            /// `savedStateInRecords`. Written before the first change.
            #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
            pub saved_state: BTreeMap<String, String>,
            /// `savedStateInRecords` is the part of the saved state that is in `MigrationRecords` with `content: SavedState`: the
            /// length of the value in bytes, by key. Written before the first change.
            #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
            pub saved_state_in_records: BTreeMap<String, u64>,
            /// `conditions` are the conditions of the Migration: `Ready` is true if `phase` is `Completed`; `Progressing` is true
            /// in `Preparing`, `Rolling`, `Finishing` and `RollingBack` while `paused` is false; `Halted` is true if `phase` is
            /// `Halted`.
            #[serde(default, skip_serializing_if = "Vec::is_empty")]
            pub conditions: Vec<Condition>,
        }
    };
}

crate::for_each_kind!(migration);

/// `Desired` is the action to take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Desired {
    /// Run the checks and write the plan. Change nothing.
    #[default]
    Plan,
    /// Migrate.
    Run,
    /// Finish the nodes in progress, and start nothing new.
    Pause,
    /// As `Pause`, and also roll back the nodes in progress (`flannelToCalico`) or the whole migration (`calicoDatastore`).
    Abort,
    /// Roll back the whole migration. Possible until its point of no return.
    Rollback,
}

/// `MigrationPhase` is the phase of a Migration. Possible values: `Pending`, `Planning`, `Planned`, `Refused`, `Preparing`,
/// `Rolling`, `Mixed`, `Finishing`, `Completed`, `Halted`, `RollingBack` and `RolledBack`.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
    IntoStaticStr,
    VariantArray,
)]
pub enum MigrationPhase {
    /// The coordinator has not processed the Migration yet.
    #[default]
    Pending,
    /// The checks run. Nothing has changed.
    Planning,
    /// All checks allow the migration, and `desired: Run` starts it. Nothing has changed.
    Planned,
    /// A check failed, the plan has changed since it was reviewed, or another Migration is active. Nothing has changed.
    Refused,
    /// Cluster-wide objects are written.
    Preparing,
    /// Nodes, pods or Services change, one batch after the other.
    Rolling,
    /// Strategy `InPlace`: all nodes are on Calico, and some pods are still on the flannel network.
    Mixed,
    /// All nodes, pods or Services have changed, and what belongs to the source is removed.
    Finishing,
    /// The migration is complete.
    Completed,
    /// The migration waits for a decision of the user. See `message`.
    Halted,
    /// The migration is being rolled back.
    RollingBack,
    /// The migration is rolled back, and the cluster is as it was before.
    RolledBack,
}

impl MigrationPhase {
    /// Every phase, in order.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// The name of the phase, as in the API, in Events and in metrics.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Whether the migration has ended: it is complete or rolled back.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Completed | Self::RolledBack)
    }
}

/// `Drift` lists changes by other clients to objects that the migration has written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drift {
    /// `at` is the time at which the coordinator saw the first of these changes.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// `differences` is the list of changes: the object, the value found and the value needed. At most 20 items of at most 1024
    /// bytes.
    pub differences: Vec<String>,
    /// `resumedAt` is the value of `spec.resumedAt` at that time. The halt ends when `spec.resumedAt` has another value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub resumed_at: Option<Timestamp>,
}

/// `Warnings` is about objects of other owners that limit what the coordinator can decide about them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Warnings {
    /// `count` is the number of warnings.
    pub count: u32,
    /// `items` is the list of the first warnings: the object, the value found, and how the coordinator treats it. At most 20
    /// items of at most 512 bytes, and at most 4 items for each namespace or node.
    pub items: Vec<String>,
}

/// `Progress` is how much of a migration is done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// `text` is the summary for the column PROGRESS: `3/12` or `3/12 nodes` for nodes, `3/12 pods` or `3/12 services`.
    #[serde(default)]
    pub text: String,
    /// `nodes` is the number of nodes of the migration.
    #[serde(default)]
    pub nodes: u32,
    /// `done` is the number of nodes that are done, or that are rolled back during a rollback. Used by `flannelToCalico` and
    /// `calicoDatastore`.
    #[serde(default)]
    pub done: u32,
    /// `working` is the list of nodes, by name, that are in progress. At most 100 items. Used by `flannelToCalico`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub working: Vec<String>,
    /// `deferred` is the list of nodes, by name, that are set aside because they are NotReady, were skipped, or are retried
    /// later. At most 100 items. Used by `flannelToCalico`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deferred: Vec<String>,
}

/// `Plan` is what a migration will do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// `hash` is the SHA-256, in hexadecimal, of the actions here, in the NodeMigrations and in the `MigrationRecords`, without
    /// details that are marked `asOfNow`.
    pub hash: String,
    /// `prepare` is the list of cluster-wide actions before the first node, in order. At most 24 `KiB`, unless a single action is
    /// longer; further actions are in `MigrationRecords`. The actions for each node are in `spec.prepare` of its NodeMigration.
    pub prepare: Vec<Action>,
    /// `prepareInRecords` is the number of further actions, in `MigrationRecords` with `content: Prepare`. Unset if there are
    /// none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub prepare_in_records: u32,
    /// `nodeCount` is the number of nodes in the plan. Their actions are in `spec` of their NodeMigrations.
    #[serde(default)]
    pub node_count: u32,
    /// `finish` is the list of cluster-wide actions after the last node, in order. At most 24 `KiB`, unless a single action is
    /// longer; further actions are in `MigrationRecords`.
    pub finish: Vec<Action>,
    /// `finishInRecords` is the number of further actions, in `MigrationRecords` with `content: Finish`. Unset if there are none.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub finish_in_records: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}
