//! `Migration`: the desired and the observed state of one migration.

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
use engine::standstill::MigrationWait;
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
use service_cidr::assignment::AssignedAddresses;
use service_cidr::side::Sides;
use service_cidr::step::Stage as ServiceStage;

use crate::traffic::{ClassCount, GateBreach, GateRules};

/// `MigrationSpec` is the desired state of a Migration. Exactly one of `flannelToCalico`, `podCidr`, `serviceCidr` and
/// `calicoDatastore` must be set and is the kind of the migration.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
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
#[x_kube(validation = Rule::new("[has(self.flannelToCalico), has(self.podCidr), has(self.serviceCidr), has(self.calicoDatastore)].filter(kind, kind).size() == 1")
    .message("exactly one of flannelToCalico, podCidr, serviceCidr, calicoDatastore must be set"))]
#[x_kube(validation = Rule::new("has(self.flannelToCalico) == has(oldSelf.flannelToCalico) && (!has(self.flannelToCalico) || self.flannelToCalico == oldSelf.flannelToCalico)")
    .message("flannelToCalico is immutable: delete this Migration before it starts or after it ends, and create another one"))]
#[x_kube(validation = Rule::new("has(self.podCidr) == has(oldSelf.podCidr) && (!has(self.podCidr) || self.podCidr == oldSelf.podCidr)")
    .message("podCidr is immutable: delete this Migration before it starts or after it ends, and create another one"))]
#[x_kube(validation = Rule::new("has(self.serviceCidr) == has(oldSelf.serviceCidr) && (!has(self.serviceCidr) || self.serviceCidr == oldSelf.serviceCidr)")
    .message("serviceCidr is immutable: delete this Migration before it starts or after it ends, and create another one"))]
#[x_kube(validation = Rule::new("has(self.calicoDatastore) == has(oldSelf.calicoDatastore) && (!has(self.calicoDatastore) || self.calicoDatastore == oldSelf.calicoDatastore)")
    .message("calicoDatastore is immutable: delete this Migration before it starts or after it ends, and create another one"))]
#[serde(rename_all = "camelCase")]
pub struct MigrationSpec {
    /// `flannelToCalico` migrates the pod network from flannel VXLAN to Calico VXLAN. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flannel_to_calico: Option<FlannelToCalico>,
    /// `podCidr` moves all pods of a Calico IPPool to a new range, then deletes the old IPPool. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_cidr: Option<PodCidr>,
    /// `serviceCidr` moves the `ClusterIPs` of Services to a new range. The old and the new address of a Service both answer
    /// until the old addresses are released at the end. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_cidr: Option<ServiceCidr>,
    /// `calicoDatastore` upgrades Calico v2 (data in etcd v2) to Calico v3 (data in etcd v3). Calico is paused while its data is
    /// converted and calico-node is replaced node by node. Immutable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calico_datastore: Option<CalicoDatastore>,
    /// `desired` is the action to take. Possible values: `Plan` (default): run the checks and write the plan, and change nothing.
    /// `Run`: migrate. `Pause`: finish the nodes in progress, and start nothing new. `Abort`: as `Pause`, and also roll back the
    /// nodes in progress (`flannelToCalico`) or the whole migration (`calicoDatastore`). `Rollback`: roll back the whole
    /// migration. After the first change, `Plan` has the effect of `Pause`. `kubectl replumb` sets this field.
    #[serde(default)]
    pub desired: Desired,
    /// `rollbackNodes` is the list of nodes, by name, to roll back to the old network. A node stays on the old network until its
    /// name is removed from the list. Applies to `flannelToCalico`. `kubectl replumb rollback NODE` adds names, and
    /// `kubectl replumb resume` clears the list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rollback_nodes: Vec<String>,
    /// `rollbackServices` is the list of Services, as `namespace/name`, to roll back to the addresses that they had before the
    /// migration. A Service keeps that address until its name is removed from the list. Applies to `serviceCidr` until stage
    /// Close; after that, only `desired: Rollback` rolls back Services. The migration is paused while the list names a Service
    /// that cannot be rolled back. `kubectl replumb rollback --service` adds names, and `kubectl replumb resume` clears the list.
    /// At most 1000 items.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub rollback_services: Vec<String>,
    /// `rollout` sets how many nodes change at the same time, which nodes go first, and how long a step may take.
    #[serde(default)]
    pub rollout: Rollout,
    /// `drain` sets how pods are evicted.
    #[serde(default)]
    pub drain: Drain,
    /// `gates` sets how much traffic may be lost before the migration halts.
    #[serde(default)]
    pub gates: GateRules,
    /// `planHash` is the hash of the plan that the user has reviewed. Until the first change, the Migration is refused with
    /// reason `PlanChanged` if the hash of the current plan (`status.plan.hash`) is a different one. If unset, any plan is
    /// accepted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_hash: Option<String>,
    /// `resumedAt` is the time at which the user last resumed, aborted or rolled back the migration. Timeouts restart at this
    /// time. Traffic loss, drift and nodes that fell back before this time no longer stop the rollout. `kubectl replumb` sets
    /// this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub resumed_at: Option<Timestamp>,
}

/// `FlannelToCalico` migrates the pod network from flannel VXLAN to Calico VXLAN.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FlannelToCalico {
    /// `strategy` is how a node changes its network. Possible values: `Drain` (default): the pods of the node are evicted before
    /// its network changes. `InPlace`: the pods of the node keep running and keep their addresses while its network changes.
    #[serde(default)]
    pub strategy: Strategy,
    /// `legacyPods` is what happens to the pods that are still on the flannel network when all nodes are on Calico. Applies to
    /// strategy `InPlace`. Possible values: `Keep` (default): the pods run until their owners replace them. `Restart`: the pods
    /// are evicted within their PodDisruptionBudgets, on at most `rollout.maxUnavailable` nodes at the same time.
    #[serde(default)]
    pub legacy_pods: LegacyPods,
    /// `allowSingleNode` allows strategy `Drain` in a cluster that has one schedulable node. All pods of that node are down while
    /// it changes its network. Defaults to false.
    #[serde(default)]
    pub allow_single_node: bool,
    /// `options` overrides detected settings. Each option corresponds to an environment variable of Calico's own flannel
    /// migration controller.
    #[serde(default)]
    pub options: Options,
}

/// `PodCidr` moves all pods of a Calico IPPool to a new range, then deletes the old IPPool.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("isCIDR(self.from) && cidr(self.from) == cidr(self.from).masked()")
    .message("from must be a range without host bits, such as 10.244.0.0/16"))]
#[x_kube(validation = Rule::new("isCIDR(self.to) && cidr(self.to) == cidr(self.to).masked()")
    .message("to must be a range without host bits, such as 10.200.0.0/16"))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodCidr {
    /// `from` is the range, in CIDR notation without host bits, of the IPPool that pods move from. Exactly one IPPool must have
    /// this range. At most 43 characters.
    #[schemars(with = "String", length(max = 43))]
    pub from: IpNet,
    /// `to` is the range, in CIDR notation without host bits, that pods move to, of the same address family as `from`. The range
    /// must not overlap `from`. An existing IPPool of this range is used; otherwise the migration creates one. At most 43
    /// characters.
    #[schemars(with = "String", length(max = 43))]
    pub to: IpNet,
    /// `family` is the address family of `from` and `to`. If set, both ranges must be of this family.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<Family>,
    /// `blockSize` is the prefix length of the IPAM blocks of the new IPPool: 20 to 32 for IPv4, 116 to 128 for IPv6, and at
    /// least the prefix length of `to`. Defaults to the block size of the old IPPool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 20, max = 128))]
    pub block_size: Option<u8>,
    /// `mode` is the order in which pods move. Possible values: `ByWorkload` (default): workload by workload, on any node.
    /// `ByNode`: node by node; each node is cordoned, drained, checked by its agent and uncordoned.
    #[serde(default)]
    pub mode: Mode,
    /// `soakSeconds` is how long the old IPPool is kept after the last of its addresses is no longer in use, in seconds. The
    /// migration can be rolled back until the old IPPool is deleted. Defaults to 86400.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soak_seconds: Option<u32>,
    /// `podsAtOnce` is the maximum number of pods that move at the same time, over all workloads. Defaults to 5. Minimum 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub pods_at_once: Option<u32>,
    /// `deleteBarePods` allows the eviction of pods without a controller, after all other pods. Evicted pods without a controller
    /// are not created again. Defaults to false.
    #[serde(default)]
    pub delete_bare_pods: bool,
    /// `etcd` is the connection to etcd v3 if Calico stores its data there. Defaults to the connection that calico-node uses.
    /// Must be unset if Calico stores its data in the Kubernetes API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdAccess>,
}

/// `ServiceCidr` moves the `ClusterIPs` of Services to a new range. Both addresses of a Service answer until the old addresses
/// are released at the end.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[x_kube(validation = Rule::new("self.to.all(range, isCIDR(range) && cidr(range) == cidr(range).masked())")
    .message("to must be ranges without host bits, such as 172.30.0.0/16"))]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServiceCidr {
    /// `to` is the list of new ranges for Services, in CIDR notation without host bits: one for each address family that changes.
    /// A range must not overlap the current range of its family, and the prefix length of an IPv6 range must be at least 64. 1 or
    /// 2 items of at most 43 characters.
    #[schemars(with = "Vec<ServiceRange>", length(min = 1, max = 2))]
    pub to: Vec<IpNet>,
    /// `keepLoadBalancers` keeps the `ClusterIPs` of Services of type `LoadBalancer`. A change of these addresses would make the
    /// cloud provider delete the load balancer. At most 4000 addresses can be kept. If false, the migration waits, before it
    /// releases the old addresses, until the owners of these Services have replaced them. Defaults to true.
    #[serde(default = "default_true")]
    pub keep_load_balancers: bool,
    /// `order` is a list of Services, as `namespace/name`, that change before all others, in this order. Service
    /// `default/kubernetes` and the DNS Services always change first. Each Service must exist when the checks run. At most 1000
    /// items.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1000))]
    pub order: Vec<String>,
    /// `servicesAtOnce` is the maximum number of Services that change their addresses at the same time. Services without
    /// endpoints, and Services that were created during the migration, have limits of their own. Every batch needs reports from
    /// the agents of all nodes: use a larger value for thousands of Services on hundreds of nodes. Defaults to 10. Minimum 1,
    /// maximum 250.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 250))]
    pub services_at_once: Option<u32>,
    /// `podsAtOnce` is the maximum number of pods that restart at the same time, over all workloads. Defaults to 5. Minimum 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub pods_at_once: Option<u32>,
    /// `deleteBarePods` allows the eviction of pods without a controller, after all other pods. Evicted pods without a controller
    /// are not created again. Defaults to false.
    #[serde(default)]
    pub delete_bare_pods: bool,
    /// `soakSeconds` is how long the old addresses keep answering before they are released, in seconds. The time starts when no
    /// old address is in use any more or, with `gates.soak: Elapsed`, with stage Soak. A rollback does not wait for this time.
    /// Defaults to 86400.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soak_seconds: Option<u32>,
}

/// `CalicoDatastore` upgrades Calico v2 (data in etcd v2) to Calico v3 (data in etcd v3). Calico is paused while its data is
/// converted and calico-node is replaced node by node.
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

/// `EtcdAccess` is the connection to an etcd cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EtcdAccess {
    /// `endpoints` is the list of client URLs of etcd, as `http://HOST:PORT` or `https://HOST:PORT`. 1 to 20 items.
    #[schemars(length(min = 1, max = 20))]
    pub endpoints: Vec<String>,
    /// `secret` is the name of a Secret in the namespace of replumb with the keys `etcd-ca`, `etcd-cert` and `etcd-key`. Required
    /// for `https` endpoints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

fn default_true() -> bool {
    true
}

/// A range for Services, in CIDR notation without host bits. At most 43 characters.
#[derive(JsonSchema)]
#[schemars(transparent)]
struct ServiceRange(
    #[expect(dead_code, reason = "only the schema is used")]
    #[schemars(length(max = 43))]
    String,
);

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

/// `MigrationPhase` is the phase of a Migration. Possible values: `Pending`, `Planning`, `Planned`, `Refused`, `Preparing`,
/// `Rolling`, `Mixed`, `Finishing`, `Completed`, `Halted`, `RollingBack` and `RolledBack`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
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

    /// Whether the migration has ended: it is complete or rolled back.
    pub fn is_over(self) -> bool {
        matches!(self, Self::Completed | Self::RolledBack)
    }
}

/// `MigrationStatus` is the observed state of a Migration. The coordinator writes it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigrationStatus {
    /// `phase` is the phase of the migration. Possible values: `Pending` (default): not processed yet. `Planning`: the checks
    /// run. `Planned`: all checks allow the migration, and `desired: Run` starts it. `Refused`: a check failed, the plan has
    /// changed since it was reviewed, or another Migration is active. `Preparing`: cluster-wide objects are written. `Rolling`:
    /// nodes, pods or Services change. `Mixed`: with strategy `InPlace`, all nodes are on Calico and some pods are still on the
    /// flannel network. `Finishing`: all nodes, pods or Services have changed, and what belongs to the source is removed.
    /// `Completed`: the migration is complete. `Halted`: the migration waits for a decision of the user. `RollingBack`: the
    /// migration is being rolled back. `RolledBack`: the migration is rolled back. Nothing has changed in `Pending`, `Planning`,
    /// `Planned` and `Refused`.
    #[serde(default)]
    pub phase: MigrationPhase,
    /// `observedGeneration` is the `metadata.generation` of the Migration that this status is about.
    #[serde(default)]
    pub observed_generation: i64,
    /// `message` is a human-readable description of what happens now or what the migration waits for, with the object and the
    /// remedy. At most 6144 bytes.
    #[serde(default)]
    pub message: String,
    /// `paused` is whether no further node, pod or Service is started. After the first change, it is true while `desired` is
    /// `Plan`, `Pause` or `Abort`, and while traffic loss or drift halts the rollout.
    #[serde(default)]
    pub paused: bool,
    /// `reason` is the reason, in `CamelCase`, why the migration makes no progress: a wait reason, a halt reason, or one of
    /// `AnotherMigration`, `ChecksFailed`, `KindNotSupported`, `PastReturn`, `PlanChanged` and `SettingsGone`. Empty while it
    /// makes progress.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// `wait` is what the migration as a whole waits for. Unset while a node is in progress, and while there is nothing to
    /// wait for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<MigrationWait>,
    /// `phaseBeforeHalt` is the phase that continues after the halt. Unset unless `phase` is `Halted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase_before_halt: Option<MigrationPhase>,
    /// `progress` is how much of the migration is done.
    #[serde(default)]
    pub progress: Progress,
    /// `checks` is the list of check results, failures first. Results that do not fit into 40 `KiB` are summarized by check. Not
    /// updated after the first change.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checks: Vec<Check>,
    /// `warnings` is about objects of other owners that limit what the coordinator can decide about them. Warnings do not stop
    /// the migration. Unset if there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warnings: Option<Warnings>,
    /// `flannelToCalico` is the state of a migration from flannel to Calico. Unset until its settings are known, and for other
    /// kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flannel_to_calico: Option<FlannelToCalicoStatus>,
    /// `podCidr` is the state of a change of the pod range. Unset until its settings are known, and for other kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_cidr: Option<PodCidrStatus>,
    /// `serviceCidr` is the state of a change of the Service range. Unset until its settings are known, and for other kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_cidr: Option<ServiceCidrStatus>,
    /// `calicoDatastore` is the state of an upgrade of Calico's datastore. Unset until its settings are known, and for other
    /// kinds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calico_datastore: Option<Box<CalicoDatastoreStatus>>,
    /// `plan` is what the migration will do. Not updated after the first change. The actions on each node are in its
    /// NodeMigration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan: Option<Plan>,
    /// `startedAt` is the time of the first change. Unset before. From then on, the Migration cannot be deleted until its phase
    /// is `Completed` or `RolledBack`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub started_at: Option<Timestamp>,
    /// `completedAt` is the time at which the phase became `Completed` or `RolledBack`. Unset before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub completed_at: Option<Timestamp>,
    /// `rollbackStartedAt` is the time since which the cluster-wide changes are being reverted, after all nodes are back on the old
    /// network. Unset otherwise. If the migration then goes forward again, these changes are made again before a node starts.
    /// Used by `flannelToCalico`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub rollback_started_at: Option<Timestamp>,
    /// `traffic` is the number of probes that the traffic pods of all nodes have sent and lost, for each class of path. The
    /// numbers do not decrease.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub traffic: Vec<ClassCount>,
    /// `breach` is the last traffic loss that halted the rollout. The halt lasts until `spec.resumedAt` changes. Unset if there
    /// was none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub breach: Option<GateBreach>,
    /// `preparedAt` is the time at which all cluster-wide objects were in place. Unset before, and from `rollbackStartedAt` on. Used by
    /// `flannelToCalico`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub prepared_at: Option<Timestamp>,
    /// `drift` lists changes by other clients to objects that the migration has written. The rollout is halted until
    /// `spec.resumedAt` changes. Unset if there are none. Used by `flannelToCalico`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drift: Option<Drift>,
    /// `savedState` is the state of the cluster before the first change, which the end of the migration or a rollback restores, as
    /// JSON by key. Values longer than 16384 bytes are in `MigrationRecords` instead: see `savedStateInRecords`. Written before the
    /// first change.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub saved_state: BTreeMap<String, String>,
    /// `savedStateInRecords` is the part of the saved state that is in `MigrationRecords` with `content: SavedState`: the length of the
    /// value in bytes, by key. Written before the first change.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub saved_state_in_records: BTreeMap<String, u64>,
    /// `conditions` are the conditions of the Migration: `Ready` is true if `phase` is `Completed`; `Progressing` is true in
    /// `Preparing`, `Rolling`, `Finishing` and `RollingBack` while `paused` is false; `Halted` is true if `phase` is `Halted`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}

/// `FlannelToCalicoStatus` is the state of a migration from flannel to Calico.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FlannelToCalicoStatus {
    /// `settings` are the settings of the migration, each with its source. Detected again until the first change, and fixed after
    /// that.
    pub settings: Settings,
}

/// `PodCidrStatus` is the state of a change of the pod range. The source range is the one that pods leave: the old range, or the
/// new range during a rollback.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodCidrStatus {
    /// `settings` are the settings of the migration, each with its source. Detected again until the first change, and fixed after
    /// that.
    pub settings: pod_cidr::settings::Settings,
    /// `stage` is the current stage. Unset before the first stage and after the last stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<CurrentStage<Stage>>,
    /// `history` is the list of finished stages, oldest first. At most 60 items; older ones are dropped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<FinishedStage<Stage>>,
    /// `podsInOldRange` is the number of pods with an address in the old range. Finished pods, static pods and pods with
    /// hostNetwork are not counted.
    #[serde(default)]
    pub pods_in_old_range: u32,
    /// `podsInNewRange` is the number of pods with an address in the new range. Finished pods, static pods and pods with
    /// hostNetwork are not counted.
    #[serde(default)]
    pub pods_in_new_range: u32,
    /// `sourceBlocks` is the number of Calico IPAM blocks and block affinities in the source range (the range that pods leave).
    /// Unset before the first count.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_blocks: Option<u32>,
    /// `sourceEmptySince` is the time since which no pod has to move and no object has an address in the source range. Unset while one
    /// does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub source_empty_since: Option<Timestamp>,
    /// `sourceClosedAt` is the time since which the source IPPool assigns no addresses. Unset while it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub source_closed_at: Option<Timestamp>,
    /// `provedAt` is the time since which all paths between both ranges are known to work. Unset before, and if the new IPPool is
    /// closed again while the migration goes forward.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub proved_at: Option<Timestamp>,
    /// `raisedReplicas` lists the Deployments that were scaled up for the duration of the migration: the number of replicas before, by
    /// `namespace/name`. An entry is removed when its Deployment is scaled back.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub raised_replicas: BTreeMap<String, u32>,
}

impl PodCidrStatus {
    /// The status of a migration that has not started.
    pub fn of(settings: pod_cidr::settings::Settings) -> Self {
        Self {
            settings,
            stage: None,
            history: Vec::new(),
            pods_in_old_range: 0,
            pods_in_new_range: 0,
            source_blocks: None,
            source_empty_since: None,
            source_closed_at: None,
            proved_at: None,
            raised_replicas: BTreeMap::new(),
        }
    }
}

/// `ServiceCidrStatus` is the state of a change of the Service range. The source range is the one that Services leave: the old
/// range, or the new range during a rollback.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceCidrStatus {
    /// `settings` are the settings of the migration, each with its source. Detected again until the first change, and fixed after
    /// that.
    pub settings: service_cidr::settings::Settings,
    /// `stage` is the current stage. Unset before the first stage and after the last stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<CurrentStage<ServiceStage>>,
    /// `history` is the list of finished stages, oldest first. At most 60 items; older ones are dropped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<FinishedStage<ServiceStage>>,
    /// `addresses` is where earlier versions recorded the old and new addresses of Services, by `namespace/name`. Deprecated: the
    /// addresses are in `MigrationRecords` with `content: ServiceAddresses`. The coordinator moves entries there.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub addresses: BTreeMap<String, ServiceAddresses>,
    /// `servicesInOldRange` is the number of Services with an address in the old range, including Services that keep their
    /// address.
    #[serde(default)]
    pub services_in_old_range: u32,
    /// `servicesInNewRange` is the number of Services with an address in the new range.
    #[serde(default)]
    pub services_in_new_range: u32,
    /// `podsWithSourceAddresses` is the number of pods that received an address of the source range (the range that Services leave) at their
    /// start, in an environment variable or as name server. Unset until all agents have reported, and while the source range
    /// assigns addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods_with_source_addresses: Option<u32>,
    /// `connectionsToSource` is the number of connections to addresses of the source range that the kernels of the nodes track.
    /// Unset until all agents have reported, and while the source range assigns addresses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections_to_source: Option<u32>,
    /// `targetAnnouncedSince` is the time since which pods that start receive no address of the source range: the source range assigns no
    /// addresses, and no kubelet and no object of the cluster names one. Unset otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub target_announced_since: Option<Timestamp>,
    /// `sourceUnusedSince` is the time since which no address of the source range has been in use. Unset while any is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub source_unused_since: Option<Timestamp>,
    /// `soakStartedAt` is the time at which stage Soak was first reached in the current direction. Unset before. With
    /// `gates.soak: Elapsed`, the time of `soakSeconds` starts here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub soak_started_at: Option<Timestamp>,
    /// `exchangeStartedAt` is the time at which Services started to change their addresses in the current direction. Unset before.
    /// Services that were created later do not delay the closing of the source range, and change their addresses after that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub exchange_started_at: Option<Timestamp>,
}

impl ServiceCidrStatus {
    /// The status of a migration that has not started.
    pub fn of(settings: service_cidr::settings::Settings) -> Self {
        Self {
            settings,
            stage: None,
            history: Vec::new(),
            addresses: BTreeMap::new(),
            services_in_old_range: 0,
            services_in_new_range: 0,
            pods_with_source_addresses: None,
            connections_to_source: None,
            target_announced_since: None,
            source_unused_since: None,
            soak_started_at: None,
            exchange_started_at: None,
        }
    }

    /// The addresses in `addresses`, in the form that decisions use.
    pub fn written_here(&self) -> AssignedAddresses {
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

/// `CalicoDatastoreStatus` is the state of an upgrade of Calico's datastore.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CalicoDatastoreStatus {
    /// `settings` are the settings of the migration, each with its source. Detected again until the first change, and fixed after
    /// that.
    pub settings: calico_datastore::cluster::settings::Settings,
    /// `stage` is the current stage. Unset before the first stage and after the last stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<CurrentStage<DatastoreStage>>,
    /// `history` is the list of finished stages, oldest first. At most 60 items; older ones are dropped.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub history: Vec<FinishedStage<DatastoreStage>>,
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
    /// `automaticRollback` is why the migration is rolled back although `spec.desired` does not ask for it. Once set, the migration does
    /// not go forward again. Unset otherwise.
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
            max_pods_without_network: 0,
            pod_without_network: None,
            automatic_rollback: None,
        }
    }
}

/// `ServiceAddresses` are the addresses of one Service that change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceAddresses {
    /// `old` is the list of addresses before the migration, in the order of the address families of the Service.
    #[schemars(with = "Vec<String>")]
    pub old: Vec<IpAddr>,
    /// `new` is the list of addresses in the new range, in the same order.
    #[schemars(with = "Vec<String>")]
    pub new: Vec<IpAddr>,
}

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

/// `Drift` lists changes by other clients to objects that the migration has written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drift {
    /// `at` is the time at which the coordinator saw the first of these changes.
    #[schemars(with = "String")]
    pub at: Timestamp,
    /// `differences` is the list of changes: the object, the value found and the value needed. At most 20 items of at most 1024 bytes.
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
    /// `prepareInRecords` is the number of further actions, in `MigrationRecords` with `content: Prepare`. Unset if there are none.
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
