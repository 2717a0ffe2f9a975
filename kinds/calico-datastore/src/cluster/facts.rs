//! What the coordinator reads off the API and off both stores before it decides: the cluster as facts.

use std::collections::BTreeMap;

use serde_json::Value;

use super::manifest::Manifest;
use crate::left::Left;
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
    /// The manifest of v3, or everything that is wrong with it; `None` where it is no YAML that could be read.
    pub manifest: Option<Result<Manifest, Vec<String>>>,
    /// The `DaemonSet` of calico-node as it is, of the manifest's name.
    pub daemon_set: Option<Found>,
    /// Every pod of it.
    pub pods: Vec<NodePod>,
    /// Other `DaemonSet`s with a container calico-node: their pods would not be changed.
    pub other_daemon_sets: Vec<String>,
    /// The Deployment of the controllers as it is.
    pub controllers: Option<Found>,
    /// `ConfigMap`s of calico-node's namespace that its environment is of.
    pub config_maps: ConfigMaps,
    /// Objects of the manifest that are not as it says, each with what is otherwise: they are applied by a person before.
    pub not_applied: Vec<(String, String)>,
    /// Objects of the manifest that the coordinator may not read.
    pub unseen: Vec<String>,
    /// What the API server would not take of the writes of this migration: the object, and why.
    pub refused: Vec<(String, String)>,
    /// Other controllers of Calico v2's that run: they would write to a store that is being converted.
    pub other_controllers: Vec<(String, Owner)>,
    /// Both stores; `None` before it is known how they are reached.
    pub stores: Option<Result<StoreFacts, StoreProblem>>,
    /// Pods that have a node and no network, for whatever reason, before anything is changed.
    pub without_network: Vec<String>,
    /// Whether the tool may do what it must do: verb on resource → answer of the API server.
    pub permissions: BTreeMap<String, bool>,
    /// How the API server has the policies that bound coordinator and agents, by name.
    pub policies: BTreeMap<String, PolicyState>,
    /// Objects that were read and not understood: nobody knows what they say.
    pub malformed: Vec<Malformed>,
    /// Fail-closed webhooks that have to answer before a pod is made.
    pub webhooks: Vec<Webhook>,
    /// Images of the manifest that are pulled in the pause, each with the Nodes that do not say that they have it.
    pub without_image: BTreeMap<String, Vec<String>>,
    /// The version of the API server.
    pub kubernetes_version: String,
}

/// A `DaemonSet` or a Deployment of Calico's as it is.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// As the checks see it. Of a Deployment `desired` and `ready` are its pods.
    pub object: DaemonSet,
    /// Its pod template.
    pub template: Value,
    /// Its selector.
    pub selector: Value,
}

/// A pod of calico-node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodePod {
    /// Its name.
    pub name: String,
    /// Its node.
    pub node: String,
    /// The image of its container calico-node.
    pub image: String,
    /// Whether it is Ready.
    pub ready: bool,
}

/// Both stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreFacts {
    /// Version of the etcd of v2.
    pub etcd_v2: String,
    /// Version of the etcd of v3.
    pub etcd_v3: String,
    /// What v2 says of its version.
    pub calico_version: String,
    /// The flag of v2.
    pub ready_v2: ReadyV2,
    /// The flag of v3.
    pub ready_v3: ReadyV3,
    /// Keys below `/calico/` in v3.
    pub keys_v3: usize,
    /// How far a conversion is, of which there is a record.
    pub phase: Option<Phase>,
    /// Who works on the stores at this moment.
    pub at_work: Option<String>,
    /// What comes of a conversion.
    pub conversion: Result<Converted, NotConverted>,
}

/// What comes of a conversion.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Converted {
    /// Keys that are written to v3, by what they are.
    pub keys: BTreeMap<String, usize>,
    /// What there is to know.
    pub notes: Vec<String>,
    /// Objects that get another name.
    pub renamed: usize,
    /// Nodes, as etcd v3 names them.
    pub hosts: Vec<String>,
    /// What calico-kube-controllers of v3 has to write, of what the cluster has.
    pub left: Left,
    /// Objects of the cluster of which it cannot write anything, and why.
    pub flawed: Vec<(Origin, Flaw)>,
}

/// Why v2 cannot be converted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotConverted {
    /// Why.
    pub message: String,
    /// What a person does about it.
    pub hint: String,
    /// Every value that cannot be, a line each.
    pub lines: Vec<String>,
}

impl Converted {
    /// How many keys.
    pub fn objects(&self) -> usize {
        self.keys.values().sum()
    }
}

impl ClusterFacts {
    /// The manifest, where it is understood.
    pub fn understood(&self) -> Option<&Manifest> {
        self.manifest.as_ref()?.as_ref().ok()
    }

    /// Both stores, where they were read.
    pub fn read_stores(&self) -> Option<&StoreFacts> {
        self.stores.as_ref()?.as_ref().ok()
    }
}
