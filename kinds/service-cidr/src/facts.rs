//! What the coordinator reads off the API before it decides: the cluster as facts.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::host::HostFacts;
use super::ranges::ServiceCidr;
use engine::check::policies::PolicyState;
use engine::cluster::{Malformed, Node, NotUnderstood, Webhook};
use engine::drain::Budget;
use engine::moves::{Workload, WorkloadFacts};
use engine::owner::Owner;
use engine::pods::Pods;
use engine::residents::Needed;

/// The cluster, as far as the checks and the plan need it.
#[derive(Clone, Debug, Default)]
pub struct ClusterFacts {
    /// Version of `networking.k8s.io` that has `ServiceCIDR`s, the newest that is served; `None` where none is.
    pub api_version: Option<String>,
    /// Every `ServiceCIDR`.
    pub ranges: Vec<ServiceCidr>,
    /// The outline of every Service ([`super::outline`]).
    pub services: Vec<Value>,
    /// Every Node, by name.
    pub nodes: BTreeMap<String, Node>,
    /// Ranges that pods have their addresses of, each with the object that says it.
    pub pod_ranges: Vec<(String, IpNet)>,
    /// Every API server behind `default/kubernetes`, by its address.
    pub api_servers: BTreeMap<IpAddr, ApiServer>,
    /// Corefiles of the name servers, each with the object that has it.
    pub corefiles: Vec<(String, String)>,
    /// Whether the tool may do what it must do: verb on resource → answer of the API server.
    pub permissions: BTreeMap<String, bool>,
    /// How the API server has the policies that bound coordinator and agents, by name.
    pub policies: BTreeMap<String, PolicyState>,
    /// Objects that were read and not understood: nobody knows what they say.
    pub malformed: Vec<Malformed>,
    /// What the agents said, by node; a node whose agent is silent is not in it.
    pub hosts: BTreeMap<String, HostFacts>,
    /// Every pod.
    pub pods: Pods,
    /// Every workload that makes pods again.
    pub workloads: BTreeMap<Workload, WorkloadFacts>,
    /// Every `PodDisruptionBudget`.
    pub budgets: Vec<Budget>,
    /// Every admission webhook.
    pub webhooks: Vec<Webhook>,
    /// Namespace and name of the cluster's name servers' pods.
    pub name_servers: BTreeSet<(String, String)>,
    /// Who else says an address or a range of Services: the object and its field, what it says, and what a person does.
    pub mentions: Vec<Mention>,
    /// Every `ResourceQuota`.
    pub quotas: Vec<Quota>,
    /// Writes that the API server, asked whether it would take them, has refused: the object and the API server's words.
    pub refused: Vec<(String, String)>,
    /// How many Services the API server was not asked about yet.
    pub untried: usize,
    /// How many of those are older than the Migration: they are waited for.
    pub untried_before: usize,
    /// Host, or address, by which the coordinator reaches the API server.
    pub own_path: String,
}

/// A `ResourceQuota`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What it allows, by resource (`services.loadbalancers`).
    pub rooms: BTreeMap<String, Room>,
    /// What it says of Services that was not understood.
    pub not_understood: Vec<NotUnderstood>,
}

/// How much of something a quota allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// In all.
    pub hard: u64,
    /// So much of it is there.
    pub used: u64,
}

impl Room {
    /// What may be made still.
    pub fn left(self) -> u64 {
        self.hard.saturating_sub(self.used)
    }
}

/// A place that says addresses of Services, and is nobody's but people's to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mention {
    /// The object and its field: `ConfigMap kube-system/kubelet-config: clusterDNS`.
    pub object: String,
    /// Whose it is.
    pub owner: Owner,
    /// Addresses and ranges that it says, of those that Services leave or come to: the first few of each.
    pub says: Vec<IpNet>,
    /// How many more of them it says.
    pub more: usize,
    /// What a person does about it; `{new}` stands for what has to be written.
    pub fix: String,
}

impl ClusterFacts {
    /// Nodes that an agent can run on.
    pub fn linux_nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes
            .values()
            .filter(|node| node.operating_system != "windows")
    }

    /// Whether kube-proxy of this node knows which connections are of pods.
    pub fn knows_pods(&self, host: &HostFacts) -> bool {
        let pods = self.pod_ranges.iter().map(|(_, range)| range);
        host.local_traffic.present().is_some_and(|by| by.knows(pods))
    }

    /// What others need pods for, as far as it is known; of the coordinator nothing is.
    pub fn needed(&self) -> Needed {
        Needed {
            name_servers: self.name_servers.clone(),
            admission: Needed::admission_of(&self.webhooks),
            ..Needed::default()
        }
    }
}

/// One API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiServer {
    /// Its `--service-cluster-ip-range`, or why nobody knows it.
    pub ranges: Result<Vec<IpNet>, String>,
    /// Addresses that its certificate is for, or why nobody knows them.
    pub addresses: Result<Vec<IpAddr>, String>,
}
