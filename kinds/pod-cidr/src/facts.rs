//! Facts of the cluster that the coordinator reads from the API before it decides.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use serde_json::Value;

use super::calico_node::CalicoNode;
use super::datastore::DatastoreFacts;
use super::hardcoded_range::RangeUse;
use super::host::HostFacts;
use super::ipam::Block;
use super::unclear::Unclear;
use calico::ConfigMaps;
use engine::check::policies::PolicyState;
use engine::cluster::{DaemonSet, Malformed, Node, Webhook, linux_nodes};
use engine::drain::Budget;
use engine::moves::{Workload, WorkloadFacts};
use engine::pods::Pods;
use engine::residents::Needed;

/// The cluster, as far as the checks and the plan need it.
#[derive(Clone, Debug, Default)]
pub struct ClusterFacts {
    /// Every Node, by name.
    pub nodes: BTreeMap<String, Node>,
    /// Every Pod, finished ones included, without the traffic pods of replumb.
    pub pods: Pods,
    /// Annotations of pods and namespaces that request pools or addresses.
    pub pins: Vec<Pin>,
    /// Every workload that replaces its pods.
    pub workloads: BTreeMap<Workload, WorkloadFacts>,
    /// Every `PodDisruptionBudget`.
    pub budgets: Vec<Budget>,
    /// Fail-closed admission webhooks that a Service serves.
    pub webhooks: Vec<Webhook>,
    /// Namespace and name of the pods of the cluster DNS.
    pub name_servers: BTreeSet<(String, String)>,
    /// Corefiles of these pods, each with the object that contains it.
    pub corefiles: Vec<(String, String)>,
    /// Where Calico stores its objects: pools, blocks, policies.
    pub datastore: DatastoreFacts,
    /// Calico's Nodes, by name.
    pub calico_nodes: BTreeMap<String, CalicoNode>,
    /// Every `IPPool`, by name.
    pub pools: BTreeMap<String, Pool>,
    /// `IPPool`s with a known range and another field that cannot be parsed.
    pub unclear_pools: Vec<Unclear>,
    /// Every block of Calico's IPAM.
    pub blocks: Vec<Block>,
    /// Blocks that cannot be parsed.
    pub unclear_blocks: Vec<Unclear>,
    /// `IPAMConfig default`.
    pub ipam: IpamConfiguration,
    /// Ranges of Services, each with the object that contains it.
    pub services: Vec<(String, IpNet)>,
    /// Objects that contain a range in their configuration.
    pub mentions: Vec<RangeUse>,
    /// Whether a kube-proxy was found whose way to recognize pods is in the API.
    pub kube_proxy_is_known: bool,
    /// Every `DaemonSet`, by (namespace, name).
    pub daemon_sets: BTreeMap<(String, String), DaemonSet>,
    /// Data of the `ConfigMap`s to which `DaemonSet`s of a network refer.
    pub config_maps: ConfigMaps,
    /// Controller managers that run as pods.
    pub controller_managers: Vec<ControllerManager>,
    /// Calico's custom resources that the API server serves: plural names in group `crd.projectcalico.org`.
    pub calico_resources: BTreeSet<String>,
    /// Whether replumb has each permission that it needs: verb on resource → answer of the API server.
    pub permissions: BTreeMap<String, bool>,
    /// State of the admission policies that restrict coordinator and agents, by name.
    pub policies: BTreeMap<String, PolicyState>,
    /// Objects that were read and cannot be parsed.
    pub malformed: Vec<Malformed>,
    /// Facts of each host, from its agent. A node without an entry has not reported.
    pub hosts: BTreeMap<String, HostFacts>,
}

impl ClusterFacts {
    /// Pods that other pods need, as far as known. The pod of the coordinator is not known here.
    pub fn needed(&self) -> Needed {
        Needed {
            name_servers: self.name_servers.clone(),
            admission: Needed::admission_of(&self.webhooks),
            ..Needed::default()
        }
    }

    /// Name and range of every pool with a known range.
    pub fn ranges(&self) -> impl Iterator<Item = (&str, IpNet)> {
        let understood = self.pools.values().map(|pool| (pool.name.as_str(), pool.range));
        let unclear = self.unclear_pools.iter();
        // The name here is no pool's name, so that none of these is taken for a pool of the migration.
        understood.chain(unclear.filter_map(|pool| Some((pool.malformed.object.as_str(), pool.range?))))
    }

    /// Nodes on which Calico networks pods.
    pub fn linux_nodes(&self) -> impl Iterator<Item = &Node> {
        linux_nodes(&self.nodes)
    }

    /// Number of nodes that accept new pods.
    pub fn nodes_for_pods(&self) -> usize {
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
    /// Its spec, as stored.
    pub spec: Value,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Its field managers, each with the operation: `argocd-controller (Apply)`.
    pub managers: Vec<String>,
    /// Kind and name of its owners.
    pub owners: Vec<String>,
    /// Whether it is being deleted.
    pub terminating: bool,
}

/// Configuration of Calico's IPAM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpamConfiguration {
    /// `strictAffinity`.
    pub strict_affinity: bool,
    /// `maxBlocksPerHost`; `None` is Calico's default.
    pub blocks_per_node: Option<u64>,
}

/// An annotation by which an object requests pools or addresses for its pods.
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
    /// Ranges of `--cluster-cidr`; `None` if the value cannot be parsed.
    pub ranges: Option<Vec<IpNet>>,
    /// `--allocate-node-cidrs`.
    pub allocates: bool,
}
