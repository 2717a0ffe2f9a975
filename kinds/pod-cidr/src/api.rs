//! The fields of this kind in the API.

use std::collections::BTreeMap;

use calico::etcd_access::EtcdAccess;
use engine::kind_fields::KindFields;
use engine::stage::{CurrentStage, FinishedStage};
use ipnet::IpNet;
use jiff::Timestamp;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::decide::Stage;
use crate::settings::{Family, Mode, Settings};

pub use self::{PodCidr as Spec, PodCidrStatus as Status};
pub use crate::host::{HostFacts as NodeStatus, HostSettings as NodeSpec};

/// `podCidr` moves all pods of a Calico IPPool to a new range, then deletes the old IPPool. Immutable, except `localRangesChecked`.
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
    /// `localRangesChecked` confirms that whatever routes Services on the nodes takes both ranges for ranges of pods, or recognizes
    /// pods in another way. Needed if neither the API nor the rules of kube-proxy on the nodes show that. With true, the migration
    /// does not wait for rules of kube-proxy. Can be changed at any time. Defaults to false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub local_ranges_checked: bool,
    /// `etcd` is the connection to etcd v3 if Calico stores its data there. Defaults to the connection that calico-node uses.
    /// Must be unset if Calico stores its data in the Kubernetes API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdAccess>,
}

impl KindFields for PodCidr {
    const CHANGEABLE: &'static [&'static str] = &["localRangesChecked"];
}

/// `podCidr` is the state of a change of the pod range. Unset until its settings are known, and for other kinds. The source range
/// is the one that pods leave: the old range, or the new range during a rollback.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodCidrStatus {
    /// `settings` are the settings of the migration, each with its source. Detected again until the first change, and fixed after
    /// that.
    pub settings: Settings,
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
    /// `sourceEmptySince` is the time since which no pod has to move and no object has an address in the source range. Unset
    /// while one does.
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
    /// `raisedReplicas` lists the Deployments that were scaled up for the duration of the migration: the number of replicas
    /// before, by `namespace/name`. An entry is removed when its Deployment is scaled back.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub raised_replicas: BTreeMap<String, u32>,
}

impl PodCidrStatus {
    /// The status of a migration that has not started.
    pub fn of(settings: Settings) -> Self {
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
