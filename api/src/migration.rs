//! `Migration`: what a user asks for, and how far it is.

#![expect(
    clippy::duplicated_attributes,
    reason = "each printcolumn has a type of its own"
)]

use std::collections::BTreeMap;
use std::net::IpAddr;

use calico_datastore::cluster::step::Stage as DatastoreStage;
use engine::check::Check;
pub use engine::decision::Direction;
pub use engine::document::Action;
use engine::standstill::Standstill;
pub use flannel_to_calico::settings::{LegacyPods, Strategy};
use flannel_to_calico::settings::{Options, Settings};
use ipnet::IpNet;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::{CustomResource, KubeSchema};
pub use pod_cidr::decide::Stage;
pub use pod_cidr::settings::{Family, Mode};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use service_cidr::side::Sides;
use service_cidr::step::Stage as ServiceStage;
use service_cidr::subjects::Book;

use crate::traffic::{ClassCount, GateBreach, GateRules};

/// One migration of the cluster. Exactly one of the four kinds is set.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "replumb.dev",
    version = "v1alpha1",
    kind = "Migration",
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
#[x_kube(validation = Rule::new("[has(self.flannelToCalico), has(self.podCidr), has(self.serviceCidr), has(self.calicoDatastore)].filter(kind, kind).size() == 1")
    .message("exactly one of flannelToCalico, podCidr, serviceCidr, calicoDatastore must be set"))]
#[x_kube(validation = Rule::new("has(self.flannelToCalico) == has(oldSelf.flannelToCalico) && (!has(self.flannelToCalico) || self.flannelToCalico == oldSelf.flannelToCalico)")
    .message("flannelToCalico is immutable: delete this Migration while it is not running and apply another"))]
#[x_kube(validation = Rule::new("has(self.podCidr) == has(oldSelf.podCidr) && (!has(self.podCidr) || self.podCidr == oldSelf.podCidr)")
    .message("podCidr is immutable: delete this Migration while it is not running and apply another"))]
#[x_kube(validation = Rule::new("has(self.serviceCidr) == has(oldSelf.serviceCidr) && (!has(self.serviceCidr) || self.serviceCidr == oldSelf.serviceCidr)")
    .message("serviceCidr is immutable: delete this Migration while it is not running and apply another"))]
#[x_kube(validation = Rule::new("has(self.calicoDatastore) == has(oldSelf.calicoDatastore) && (!has(self.calicoDatastore) || self.calicoDatastore == oldSelf.calicoDatastore)")
    .message("calicoDatastore is immutable: delete this Migration while it is not running and apply another"))]
#[serde(rename_all = "camelCase")]
pub struct MigrationSpec {
    /// flannel VXLAN → Calico VXLAN.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flannel_to_calico: Option<FlannelToCalico>,
    /// Another range for the pods: a new pool of Calico's, every pod moved, the old pool deleted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_cidr: Option<PodCidr>,
    /// Another range for the Services: every address exchanged while both answer, the old ones given up at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_cidr: Option<ServiceCidr>,
    /// Calico v2 (etcd v2) → v3 (etcd v3): its data converted while it is paused, calico-node changed node by node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calico_datastore: Option<CalicoDatastore>,
    /// What is wanted now: look only, go on, stop starting new nodes, or go back.
    #[serde(default)]
    pub desired: Desired,
    /// Nodes, by name, that go back to the old network and stay there as long as they are listed here.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rollback_nodes: Vec<String>,
    /// Services, as `namespace/name`, that take the address back which they had before `serviceCidr`, and keep it as long as they are
    /// listed here. Until the old range gives out nothing more: after that all of them go back, or none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub rollback_services: Vec<String>,
    /// How many nodes at a time, which first.
    #[serde(default)]
    pub rollout: Rollout,
    /// How pods leave a node.
    #[serde(default)]
    pub drain: Drain,
    /// What traffic may lose before no further node is started.
    #[serde(default)]
    pub gates: GateRules,
    /// Hash of the plan that was reviewed. When set, a run that would do something else is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_hash: Option<String>,
    /// When a person said "resume": deadlines that passed before count from here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub resumed_at: Option<Timestamp>,
}

/// flannel VXLAN → Calico VXLAN.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FlannelToCalico {
    /// How a node changes its network.
    #[serde(default)]
    pub strategy: Strategy,
    /// In place: what happens to pods that were there before.
    #[serde(default)]
    pub legacy_pods: LegacyPods,
    /// Go on although the cluster has one schedulable node: every pod is down while that node changes.
    #[serde(default)]
    pub allow_single_node: bool,
    /// Options of Calico's own migration controller.
    #[serde(default)]
    pub options: Options,
}

/// Another range for the pods: a new pool of Calico's, every pod moved, the old pool deleted.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("isCIDR(self.from) && cidr(self.from) == cidr(self.from).masked()")
    .message("from has to be a range without bits behind its prefix, such as 10.244.0.0/16"))]
#[x_kube(validation = Rule::new("isCIDR(self.to) && cidr(self.to) == cidr(self.to).masked()")
    .message("to has to be a range without bits behind its prefix, such as 10.200.0.0/16"))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodCidr {
    /// Range of the `IPPool` that pods leave.
    #[schemars(with = "String", length(max = 43))]
    pub from: IpNet,
    /// Range of the `IPPool` that they come to.
    #[schemars(with = "String", length(max = 43))]
    pub to: IpNet,
    /// The family of both. Said twice it is checked: one migration changes one family.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<Family>,
    /// Prefix length of the new pool's blocks: 20 to 32, or 116 to 128 of IPv6. Default: the old pool's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 20, max = 128))]
    pub block_size: Option<u8>,
    /// How pods leave the old range.
    #[serde(default)]
    pub mode: Mode,
    /// How long the old pool stays once it is empty, in seconds: so long going back is cheap. Default 86400.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soak_seconds: Option<u32>,
    /// How many pods may be on their way at the same time. Default 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub pods_at_once: Option<u32>,
    /// Evict pods that no controller creates again, after all others.
    #[serde(default)]
    pub delete_bare_pods: bool,
    /// The way to etcd v3, where Calico keeps its pools there. Default: as calico-node in the cluster has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdAccess>,
}

/// Another range for the Services: every address exchanged while both answer, the old ones given up at the end.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("self.to.all(range, isCIDR(range) && cidr(range) == cidr(range).masked())")
    .message("to has to be ranges without bits behind their prefix, such as 172.30.0.0/16"))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceCidr {
    /// Ranges that Services come to: one of each family that changes.
    #[schemars(with = "Vec<ServiceRange>", length(min = 1, max = 2))]
    pub to: Vec<IpNet>,
    /// Whether Services of type `LoadBalancer` keep their cluster addresses: a cloud would delete the balancer with an exchange. Where
    /// they do not, the migration waits before its end until their owners have replaced them. Default true.
    #[serde(default = "yes")]
    pub keep_load_balancers: bool,
    /// Services that go before others, as `namespace/name`. `default/kubernetes` and the name servers go first in any case.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub order: Vec<String>,
    /// How many Services exchange their addresses at the same time. Default 10. Every node is asked three or four times for so many Services,
    /// each time by one write to its NodeMigration and one or two of its agent: a large cluster needs more at the same time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 250))]
    pub services_at_once: Option<u32>,
    /// How many pods may start again at the same time. Default 5.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub pods_at_once: Option<u32>,
    /// Evict pods that no controller creates again, after all others.
    #[serde(default)]
    pub delete_bare_pods: bool,
    /// How long both addresses answer once nobody is seen to use the old one, in seconds. Default 86400.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soak_seconds: Option<u32>,
}

/// Calico v2 (etcd v2) → v3 (etcd v3): its data converted while it is paused, calico-node changed node by node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CalicoDatastore {
    /// What Calico ships for v3 with etcd, as YAML: the `DaemonSet` of calico-node, the `ConfigMap` of its environment and the Deployment of
    /// calico-kube-controllers are written when it is their turn; everything else in it has to be in the cluster before. No Secrets.
    #[schemars(length(min = 1, max = 200_000))]
    pub manifest: String,
    /// The way to etcd v2. Default: as calico-node in the cluster has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_v2: Option<EtcdAccess>,
    /// The way to etcd v3. Default: as calico-node of the manifest has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_v3: Option<EtcdAccess>,
    /// How long Calico may be paused before everything goes back by itself, in seconds. Default 3600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 60, max = 86_400))]
    pub pause_limit_seconds: Option<u32>,
    /// How long v2 is left alone after the pause, until what CNI plugins began before has ended, in seconds. Default 15.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = 600))]
    pub settle_seconds: Option<u32>,
    /// Go on although something is below `/calico/` in etcd v3: equal keys are written over, profiles of namespaces and policies of
    /// Kubernetes are deleted (its controllers write them anew), others stay; on the way back everything is put back.
    #[serde(default)]
    pub ignore_v3_data: bool,
}

/// The way to one etcd.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EtcdAccess {
    /// `http://HOST:PORT` or `https://HOST:PORT`.
    #[schemars(length(min = 1, max = 20))]
    pub endpoints: Vec<String>,
    /// A Secret in replumb's namespace with the keys `etcd-ca`, `etcd-cert` and `etcd-key`; needed for https.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

fn yes() -> bool {
    true
}

/// The schema of one range.
#[derive(JsonSchema)]
#[schemars(transparent)]
struct ServiceRange(
    #[expect(dead_code, reason = "only its schema is used")]
    #[schemars(length(max = 43))]
    String,
);

/// What is wanted now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Desired {
    /// Check and plan; change nothing.
    #[default]
    Plan,
    /// Migrate.
    Run,
    /// Finish the nodes in work and start no other.
    Pause,
    /// Take the nodes in work back to the old network and start no other. Nodes that are done stay.
    Abort,
    /// Take every node back to the old network, one batch after the other, then everything that was written for the
    /// cluster. Until the old network's DaemonSet is deleted.
    Rollback,
}

/// How many nodes at a time, which first.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Rollout {
    /// Nodes that may be out of work at the same time: a number or a percentage of all nodes, rounded up to
    /// at least 1. Nodes that are NotReady for other reasons count. Default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrString>,
    /// Nodes that go first, alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub canary: Option<Canary>,
    /// Pause between the end of one node and the start of the next, in seconds.
    #[serde(default)]
    pub interval_seconds: u32,
    /// How long one step of one node may take before the rollout halts, in seconds. Default 600.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 10))]
    pub step_timeout_seconds: Option<u32>,
}

/// Nodes that go first, alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Canary {
    /// How many nodes.
    #[schemars(range(min = 1))]
    pub nodes: u32,
    /// How long they must be done before the others start, in seconds.
    #[serde(default)]
    pub soak_seconds: u32,
}

/// How pods leave a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Drain {
    /// How long the pods of one node may take to leave, in seconds. Default 900.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub timeout_seconds: Option<u32>,
    /// Grace period that overrides the pods' own, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub grace_period_seconds: Option<u32>,
    /// What happens when the time is over.
    #[serde(default)]
    pub on_blocked: OnBlocked,
    /// Evict pods with emptyDir volumes: their data is lost.
    #[serde(default)]
    pub delete_empty_dir_data: bool,
    /// Evict pods that no controller creates again.
    #[serde(default)]
    pub force: bool,
}

/// What happens when a drain is blocked past its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OnBlocked {
    /// The rollout halts; the node keeps its old network and its cordon until a person decides.
    #[default]
    Pause,
    /// The node keeps waiting, no other node starts past `maxUnavailable`.
    Wait,
    /// The node is uncordoned, keeps its old network, and is tried again after all others.
    Skip,
}

/// Where a Migration is.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub enum MigrationPhase {
    /// Not looked at yet.
    #[default]
    Pending,
    /// Checks run; nothing has changed.
    Planning,
    /// Every check allows the migration; `desired: Run` starts it. Nothing has changed.
    Planned,
    /// A check refuses the migration, or the plan changed since it was reviewed. Nothing has changed.
    Refused,
    /// Cluster-wide objects are written.
    Preparing,
    /// Nodes change, one batch after the other.
    Rolling,
    /// In place: every node is on the new network, and pods of the old one live on beside it.
    Mixed,
    /// Every node is on the new network; the old network's objects are removed.
    Finishing,
    /// The old network is gone from every node and from the cluster.
    Completed,
    /// A person has to decide: see the message.
    Halted,
    /// Nodes go back to the old network, then what was written for the cluster is taken back.
    RollingBack,
    /// Every node is on the old network, and the cluster is as it was before.
    RolledBack,
}

impl MigrationPhase {
    /// Every phase, in order.
    pub const ALL: [Self; 12] = [
        Self::Pending,
        Self::Planning,
        Self::Planned,
        Self::Refused,
        Self::Preparing,
        Self::Rolling,
        Self::Mixed,
        Self::Finishing,
        Self::Completed,
        Self::Halted,
        Self::RollingBack,
        Self::RolledBack,
    ];

    /// Whether nothing is done any more: it was completed or taken back.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Completed | Self::RolledBack)
    }
}

/// How far a Migration is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigrationStatus {
    /// Where it is.
    #[serde(default)]
    pub phase: MigrationPhase,
    /// `metadata.generation` that this status speaks of.
    #[serde(default)]
    pub observed_generation: i64,
    /// What happens now, on which object; what a person does about it.
    #[serde(default)]
    pub message: String,
    /// Whether no new node is started: by `desired: Pause` or by a policy.
    #[serde(default)]
    pub paused: bool,
    /// Enumerated reason why it does not go on now; empty when it does.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub blocked: String,
    /// What the migration as a whole waits for, and since when nothing has moved; absent while a node is in work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub standstill: Option<Standstill>,
    /// The phase that goes on once a halt is over; absent unless the phase is Halted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub halted_in: Option<MigrationPhase>,
    /// Nodes by phase.
    #[serde(default)]
    pub progress: Progress,
    /// Checks that were made, refusals first. Those that pass on every node are one line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
    /// Objects of others that cost decisions about them, and stop nothing else; absent where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warnings: Option<Warnings>,
    /// What is known of a migration from flannel to Calico.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flannel_to_calico: Option<FlannelToCalicoStatus>,
    /// What is known of a change of the pods' range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_cidr: Option<PodCidrStatus>,
    /// What is known of a change of the Services' range.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_cidr: Option<ServiceCidrStatus>,
    /// What is known of a conversion of Calico's datastore.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calico_datastore: Option<Box<CalicoDatastoreStatus>>,
    /// What will be done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Plan>,
    /// When the first change was made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub started_at: Option<Timestamp>,
    /// When it was completed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub completed_at: Option<Timestamp>,
    /// Since when what was written for the cluster is being taken back; absent while it stands. It is written anew before
    /// another node goes to the new network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub undone_since: Option<Timestamp>,
    /// What was sent and lost on each class of path, of all nodes together.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub traffic: Vec<ClassCount>,
    /// The last time that traffic stopped the rollout; it stands until somebody says resume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breach: Option<GateBreach>,
    /// Since when what has to be there before the first node is; absent before, and once it is being taken back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub prepared_at: Option<Timestamp>,
    /// What somebody else changed of what the migration wrote; it stands until somebody says resume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<Drift>,
    /// What was there before the migration and is put back at its end: key → JSON text.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub before: BTreeMap<String, String>,
    /// What of that is too long for a status, and is in `MigrationRecord`s: key → length of the text in bytes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub before_in_records: BTreeMap<String, u64>,
    /// Conditions: Ready, Progressing, Halted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// What is known of a migration from flannel to Calico.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FlannelToCalicoStatus {
    /// What it works with, each value with its source; saved before the first change.
    pub settings: Settings,
}

/// What is known of a change of the pods' range.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodCidrStatus {
    /// What it works with, each value with its source; saved before the first change.
    pub settings: pod_cidr::settings::Settings,
    /// Where it is; absent before the first change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<StageNow<Stage>>,
    /// Stages that are over, in order, with their times; the newest are kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<StageDone<Stage>>,
    /// Pods that have an address of the old range and have to move.
    #[serde(default)]
    pub pods_in_old_range: u32,
    /// Pods that have an address of the new range.
    #[serde(default)]
    pub pods_in_new_range: u32,
    /// Blocks of Calico's IPAM in the range that is left; absent before somebody has looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blocks_left: Option<u32>,
    /// Since when no pod is on its way and nobody has an address of the range that is left; absent while somebody does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub empty_since: Option<Timestamp>,
    /// Since when the pool that is left is closed; absent while it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub closed_at: Option<Timestamp>,
    /// Since when every path between both ranges answers; absent before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub proved_at: Option<Timestamp>,
    /// Deployments that were given more pods for the time of the migration: namespace/name → what they had.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub raised: BTreeMap<String, u32>,
}

impl PodCidrStatus {
    /// Nothing has been done yet.
    pub fn of(settings: pod_cidr::settings::Settings) -> Self {
        Self {
            settings,
            stage: None,
            history: Vec::new(),
            pods_in_old_range: 0,
            pods_in_new_range: 0,
            blocks_left: None,
            empty_since: None,
            closed_at: None,
            proved_at: None,
            raised: BTreeMap::new(),
        }
    }
}

/// What is known of a change of the Services' range.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceCidrStatus {
    /// What it works with, each value with its source; saved before the first change.
    pub settings: service_cidr::settings::Settings,
    /// Where it is; absent before the first change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<StageNow<ServiceStage>>,
    /// Stages that are over, in order, with their times; the newest are kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<StageDone<ServiceStage>>,
    /// Addresses of Services that change, as an earlier version wrote them down here; they are in `MigrationRecord`s now.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub addresses: BTreeMap<String, ServiceAddresses>,
    /// Services that have an address of the old range, those that keep theirs included.
    #[serde(default)]
    pub services_in_old_range: u32,
    /// Services that have an address of the new range.
    #[serde(default)]
    pub services_in_new_range: u32,
    /// Pods that were told an address of the range that is left when they started; absent before somebody has looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods_told_left: Option<u32>,
    /// Connections to an address of the range that is left, as the nodes' kernels track them; absent before somebody has looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections_to_left: Option<u32>,
    /// Since when a pod that starts is told no address of the range that is left; absent while it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub told_new_since: Option<Timestamp>,
    /// Since when nobody is seen to use an address that is left; absent while somebody is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub unused_since: Option<Timestamp>,
    /// When stage Soak was reached first in this direction: with `gates.soak: Elapsed` its time begins there. Absent before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub soak_began: Option<Timestamp>,
    /// When Services began to exchange their addresses in this direction; absent before. The range that is left is closed without those
    /// that were created later, and they exchange their addresses after that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub exchange_began: Option<Timestamp>,
}

impl ServiceCidrStatus {
    /// Nothing has been done yet.
    pub fn of(settings: service_cidr::settings::Settings) -> Self {
        Self {
            settings,
            stage: None,
            history: Vec::new(),
            addresses: BTreeMap::new(),
            services_in_old_range: 0,
            services_in_new_range: 0,
            pods_told_left: None,
            connections_to_left: None,
            told_new_since: None,
            unused_since: None,
            soak_began: None,
            exchange_began: None,
        }
    }

    /// The addresses that an earlier version wrote down here, as decisions use them.
    pub fn written_here(&self) -> Book {
        let sides = |both: &ServiceAddresses| Sides {
            old: both.old.clone(),
            new: both.new.clone(),
        };
        self.addresses
            .iter()
            .map(|(name, both)| (name.clone(), sides(both)))
            .collect()
    }
}

/// What is known of a conversion of Calico's datastore.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CalicoDatastoreStatus {
    /// What it works with, each value with its source; saved before the first change.
    pub settings: calico_datastore::cluster::settings::Settings,
    /// Where it is; absent before the first change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<StageNow<DatastoreStage>>,
    /// Stages that are over, in order, with their times; the newest are kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<StageDone<DatastoreStage>>,
    /// Where everything of both stores is kept aside; absent before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backup: Option<DatastoreBackup>,
    /// The conversion that is recorded in etcd v3, by its id, once it is this migration's; absent before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
    /// How far that is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record_phase: Option<String>,
    /// Since when Calico is paused, and no pod gets a network; absent while it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub paused_since: Option<Timestamp>,
    /// When everything goes back by itself; absent while Calico is not paused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub paused_until: Option<Timestamp>,
    /// When Calico was let work with v3; absent before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub opened_at: Option<Timestamp>,
    /// Pods that have a node and wait for a network.
    #[serde(default)]
    pub pods_without_network: u32,
    /// The most of them that were seen while Calico was paused.
    #[serde(default)]
    pub most_pods_without_network: u32,
    /// The one of them that has waited for longest; absent where none waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_without_network: Option<String>,
    /// Why it goes back though nobody asked for it; absent where it does not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turned_back: Option<TurnedBack>,
}

/// Why a migration goes back though nobody asked for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TurnedBack {
    /// Since when.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// Why.
    pub why: String,
}

/// Everything of Calico's in both stores, kept aside in Secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DatastoreBackup {
    /// Name of the first Secret, in replumb's namespace; the others have its label.
    pub name: String,
    /// How many Secrets.
    pub parts: u32,
    /// SHA-256 of all of it, unpacked, in hexadecimal.
    pub sha256: String,
    /// Keys of v2 in it.
    pub v2_keys: u32,
    /// Keys of v3 in it.
    pub v3_keys: u32,
    /// When it was taken.
    #[schemars(with = "String")]
    pub taken_at: Timestamp,
}

impl CalicoDatastoreStatus {
    /// Nothing has been done yet.
    pub fn of(settings: calico_datastore::cluster::settings::Settings) -> Self {
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
            most_pods_without_network: 0,
            first_without_network: None,
            turned_back: None,
        }
    }
}

/// The addresses of one Service that change, in its order of families.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAddresses {
    /// As they were before.
    #[schemars(with = "Vec<String>")]
    pub old: Vec<IpAddr>,
    /// In the new range.
    #[schemars(with = "Vec<String>")]
    pub new: Vec<IpAddr>,
}

/// Where a change of a range is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StageNow<Stage> {
    /// The stage.
    pub name: Stage,
    /// Where the migration leads.
    pub direction: Direction,
    /// When it began.
    #[schemars(with = "String")]
    pub since: Timestamp,
}

/// A stage that is over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StageDone<Stage> {
    /// The stage.
    pub name: Stage,
    /// Where the migration led.
    pub direction: Direction,
    /// When it began.
    #[schemars(with = "String")]
    pub started_at: Timestamp,
    /// When it ended.
    #[schemars(with = "String")]
    pub finished_at: Timestamp,
}

/// Somebody else changed what the migration wrote.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drift {
    /// When the coordinator took notice of the first.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// Each the object, what it said and what it has to say; at most 20 are kept.
    pub what: Vec<String>,
    /// `resumedAt` of the Migration at that time: another one says that the rollout goes on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub resumed_at: Option<Timestamp>,
}

/// What objects of others are or do that costs decisions about them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Warnings {
    /// How many there are.
    pub count: u32,
    /// The first of each namespace and of each node: the object, the value found, and what it counts as.
    pub first: Vec<String>,
}

/// Nodes by phase.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// `3/12`.
    #[serde(default)]
    pub text: String,
    /// All nodes of the migration.
    #[serde(default)]
    pub nodes: u32,
    /// Nodes that are done.
    #[serde(default)]
    pub done: u32,
    /// Nodes in work now, by name; of many the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub working: Vec<String>,
    /// Nodes set aside (NotReady, skipped), by name; of many the first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deferred: Vec<String>,
}

/// What will be done, cluster-wide and node by node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Plan {
    /// SHA-256 over everything but the names of pods, hexadecimal: over what stands in other objects, too.
    pub hash: String,
    /// Cluster-wide actions before the first node, in order. Those for each node are in its NodeMigration's `spec.prepare`.
    pub prepare: Vec<Action>,
    /// How many more there are, in `MigrationRecord`s that hold `Prepare`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub prepare_in_records: u32,
    /// How many nodes have a part in the plan: it is in their NodeMigrations' spec.
    #[serde(default)]
    pub node_count: u32,
    /// Cluster-wide actions after the last node, in order.
    pub finish: Vec<Action>,
    /// How many more there are, in `MigrationRecord`s that hold `Finish`.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub finish_in_records: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks with a reference")]
fn is_zero(count: &u32) -> bool {
    *count == 0
}
