//! Facts of the cluster and of both stores that checks and plan depend on.

use std::collections::BTreeMap;

use serde_json::Value;

use super::manifest::Manifest;
use crate::controller_objects::ControllerObjects;
use crate::run::decide::{ReadyV2, ReadyV3};
use crate::run::record::Phase;
use crate::sources::{Flaw, Origin};
use calico::etcd_access::{ConfigMaps, StoreProblem};
use engine::check::policies::PolicyState;
use engine::cluster::{DaemonSet, Malformed, Node, Webhook};
use engine::owner::Owner;

/// The cluster, as far as the checks and the plan need it.
#[derive(Clone, Debug, Default)]
pub struct ClusterFacts {
    /// Every Node, by name.
    pub nodes: BTreeMap<String, Node>,
    /// The manifest of v3, or all its problems; `None` when it is not valid YAML.
    pub manifest: Option<Result<Manifest, Vec<String>>>,
    /// The `DaemonSet` of calico-node in the cluster, by the name in the manifest.
    pub daemon_set: Option<Workload>,
    /// Every pod of this `DaemonSet`.
    pub pods: Vec<NodePod>,
    /// Other `DaemonSet`s with a container calico-node: their pods would not be changed.
    pub other_daemon_sets: Vec<String>,
    /// The Deployment of the controllers in the cluster.
    pub controllers: Option<Workload>,
    /// `ConfigMap`s of calico-node's namespace that its environment refers to.
    pub config_maps: ConfigMaps,
    /// Objects that differ from the manifest, each with the difference: the user has to apply them before.
    pub differing: Vec<(String, String)>,
    /// Objects of the manifest that the coordinator may not read.
    pub unreadable: Vec<String>,
    /// Writes of this migration that the API server would refuse: the object and the reason.
    pub refused: Vec<(String, String)>,
    /// Other running controllers of Calico v2, which would write to a store during the conversion.
    pub other_controllers: Vec<(String, Owner)>,
    /// Both stores; `None` before their connection settings are known.
    pub stores: Option<Result<StoreFacts, StoreProblem>>,
    /// Pods that have a node and no network before the migration, for any reason.
    pub without_network: Vec<String>,
    /// Permissions of the coordinator: verb on resource → answer of the API server.
    pub permissions: BTreeMap<String, bool>,
    /// State of the admission policies for coordinator and agents, by name.
    pub policies: BTreeMap<String, PolicyState>,
    /// Objects that were read and could not be decoded.
    pub malformed: Vec<Malformed>,
    /// Fail-closed webhooks that every new pod depends on.
    pub webhooks: Vec<Webhook>,
    /// Images of the manifest that would be pulled during the pause, each with the Nodes that do not report it.
    pub without_image: BTreeMap<String, Vec<String>>,
    /// The version of the API server.
    pub kubernetes_version: String,
}

/// A `DaemonSet` or a Deployment of Calico in the cluster.
#[derive(Clone, Debug, Default)]
pub struct Workload {
    /// The object in the form for checks. For a Deployment, `desired` and `ready` count its pods.
    pub object: DaemonSet,
    /// Pod template.
    pub template: Value,
    /// Selector.
    pub selector: Value,
}

/// A pod of calico-node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePod {
    /// Name of the pod.
    pub name: String,
    /// Node of the pod.
    pub node: String,
    /// Image of the container calico-node.
    pub image: String,
    /// Whether the pod is Ready.
    pub ready: bool,
}

/// Both stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFacts {
    /// Version of the etcd of v2.
    pub etcd_v2: String,
    /// Version of the etcd of v3.
    pub etcd_v3: String,
    /// Version of Calico in v2.
    pub calico_version: String,
    /// The flag of v2.
    pub ready_v2: ReadyV2,
    /// The flag of v3.
    pub ready_v3: ReadyV3,
    /// Keys below `/calico/` in v3.
    pub keys_v3: usize,
    /// Phase in the record of a conversion; `None` without a record.
    pub phase: Option<Phase>,
    /// The process that holds the lock now.
    pub lock_holder: Option<String>,
    /// Result of a conversion in memory.
    pub conversion: Result<Converted, NotConverted>,
}

/// Result of a conversion in memory.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Converted {
    /// Number of keys to write to v3, by kind.
    pub keys: BTreeMap<String, usize>,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// Number of objects that get another name.
    pub renamed: usize,
    /// Nodes, by their names in etcd v3.
    pub hosts: Vec<String>,
    /// Objects that calico-kube-controllers of v3 has to write, by the sources in the cluster.
    pub remaining: ControllerObjects,
    /// Objects of the cluster that calico-kube-controllers of v3 cannot write, and the reason.
    pub flawed: Vec<(Origin, Flaw)>,
}

/// Reason why v2 cannot be converted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotConverted {
    /// The reason.
    pub message: String,
    /// The fix for the user.
    pub hint: String,
    /// A line for every value that cannot be converted.
    pub lines: Vec<String>,
}

impl Converted {
    /// Number of keys to write.
    pub fn objects(&self) -> usize {
        self.keys.values().sum()
    }
}

impl ClusterFacts {
    /// The manifest, if it is valid.
    pub fn understood(&self) -> Option<&Manifest> {
        self.manifest.as_ref()?.as_ref().ok()
    }

    /// Both stores, if they were read.
    pub fn read_stores(&self) -> Option<&StoreFacts> {
        self.stores.as_ref()?.as_ref().ok()
    }
}
