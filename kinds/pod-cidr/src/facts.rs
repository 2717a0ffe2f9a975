//! What the coordinator reads off the API before it decides: the cluster as facts.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use serde_json::Value;

use super::calico_node::CalicoNode;
use super::datastore::DatastoreFacts;
use super::host::HostFacts;
use super::ipam::Block;
use super::mentions::Mention;
use super::unclear::Unclear;
use calico::ConfigMaps;
use engine::check::policies::PolicyState;
use engine::cluster::{DaemonSet, Malformed, Node, Webhook};
use engine::drain::Budget;
use engine::moves::{Workload, WorkloadFacts};
use engine::pods::Pods;
use engine::residents::Needed;

/// The cluster, as far as the checks and the plan need it.
#[derive(Clone, Debug, Default)]
pub struct ClusterFacts {
    /// Every Node, by name.
    pub nodes: BTreeMap<String, Node>,
    /// Every Pod but those of our own that watch; finished ones too.
    pub pods: Pods,
    /// What pods and namespaces say of their pools and addresses.
    pub pins: Vec<Pin>,
    /// Every workload that makes pods again.
    pub workloads: BTreeMap<Workload, WorkloadFacts>,
    /// Every `PodDisruptionBudget`.
    pub budgets: Vec<Budget>,
    /// Fail-closed admission webhooks that are served by a Service.
    pub webhooks: Vec<Webhook>,
    /// Namespace and name of the pods behind the cluster's name service.
    pub name_servers: BTreeSet<(String, String)>,
    /// Corefiles that these pods read, each with the object that has it.
    pub corefiles: Vec<(String, String)>,
    /// Where Calico's objects are: pools, blocks, policies.
    pub datastore: DatastoreFacts,
    /// Nodes as Calico has them, by name.
    pub calico_nodes: BTreeMap<String, CalicoNode>,
    /// Every `IPPool`, by name.
    pub pools: BTreeMap<String, Pool>,
    /// `IPPool`s whose range is known, and that are not understood otherwise.
    pub unclear_pools: Vec<Unclear>,
    /// Every block of Calico's IPAM.
    pub blocks: Vec<Block>,
    /// Blocks that are not understood.
    pub unclear_blocks: Vec<Unclear>,
    /// `IPAMConfig default`.
    pub ipam: IpamConfiguration,
    /// Ranges of Services, each with the object that says it.
    pub services: Vec<(String, IpNet)>,
    /// Who else says a range.
    pub mentions: Vec<Mention>,
    /// Every `DaemonSet`, by (namespace, name).
    pub daemon_sets: BTreeMap<(String, String), DaemonSet>,
    /// Data of the `ConfigMap`s that `DaemonSet`s of a network refer to.
    pub config_maps: ConfigMaps,
    /// Controller managers that run as pods.
    pub controller_managers: Vec<ControllerManager>,
    /// Custom resources of Calico's that are served: plural names in group `crd.projectcalico.org`.
    pub calico_resources: BTreeSet<String>,
    /// Whether the tool may do what it must do: verb on resource → answer of the API server.
    pub permissions: BTreeMap<String, bool>,
    /// How the API server has the policies that bound coordinator and agents, by name.
    pub policies: BTreeMap<String, PolicyState>,
    /// Objects that were read and not understood: nobody knows what they say.
    pub malformed: Vec<Malformed>,
    /// What every node's agent read off its host; a node without an entry has not reported.
    pub hosts: BTreeMap<String, HostFacts>,
}

impl ClusterFacts {
    /// What others need pods for, as far as it is known; of the coordinator nothing is.
    pub fn needed(&self) -> Needed {
        Needed {
            name_servers: self.name_servers.clone(),
            admission: Needed::admission_of(&self.webhooks),
            ..Needed::default()
        }
    }

    /// The name and the range of every pool of which the range is known.
    pub fn ranges(&self) -> impl Iterator<Item = (&str, IpNet)> {
        let understood = self.pools.values().map(|pool| (pool.name.as_str(), pool.range));
        let unclear = self.unclear_pools.iter();
        // Under a name that no pool has: neither of the two pools of a migration is among them.
        understood.chain(unclear.filter_map(|pool| Some((pool.malformed.object.as_str(), pool.range?))))
    }

    /// Nodes whose pods Calico serves.
    pub fn linux_nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes
            .values()
            .filter(|node| node.operating_system != "windows")
    }

    /// How many nodes take new pods.
    pub fn places(&self) -> usize {
        self.linux_nodes().filter(|node| node.schedulable()).count()
    }
}

/// An `IPPool`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// Name.
    pub name: String,
    /// Its range.
    pub range: IpNet,
    /// Its spec, as it is stored.
    pub spec: Value,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Field managers that own something of it, with the operation: `argocd-controller (Apply)`.
    pub managers: Vec<String>,
    /// Kind and name of what owns it.
    pub owners: Vec<String>,
    /// Whether it is being deleted.
    pub terminating: bool,
}

/// What Calico's IPAM goes by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpamConfiguration {
    /// `strictAffinity`.
    pub strict_affinity: bool,
    /// `maxBlocksPerHost`; `None` is Calico's default.
    pub blocks_per_node: Option<u64>,
}

/// What an object says of the pools or addresses of its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The object: `Pod default/web-1`, `Namespace shop`.
    pub object: String,
    /// The annotation.
    pub annotation: String,
    /// Its value.
    pub value: String,
}

/// A controller manager that runs as a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerManager {
    /// Its pod.
    pub pod: String,
    /// `--cluster-cidr`, each range; `None` where it was not understood.
    pub ranges: Option<Vec<IpNet>>,
    /// `--allocate-node-cidrs`.
    pub allocates: bool,
}

/// Annotations by which pods and namespaces say their pools or addresses.
pub const PIN_ANNOTATIONS: [&str; 5] = [
    "cni.projectcalico.org/ipv4pools",
    "cni.projectcalico.org/ipv6pools",
    "cni.projectcalico.org/ipAddrs",
    "cni.projectcalico.org/ipAddrsNoIpam",
    "cni.projectcalico.org/floatingIPs",
];
