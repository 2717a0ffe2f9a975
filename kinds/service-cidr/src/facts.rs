//! Facts of the cluster that the coordinator reads from the API before it decides.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::Value;

use super::host::HostFacts;
use super::ranges::ServiceCidr;
use engine::check::policies::PolicyState;
use engine::cluster::{Malformed, Node, NotUnderstood, Webhook, linux_nodes};
use engine::drain::Budget;
use engine::moves::{Workload, WorkloadFacts};
use engine::owner::Owner;
use engine::pods::Pods;
use engine::residents::Needed;

/// The cluster, as far as the checks and the plan need it.
#[derive(Clone, Debug, Default)]
pub struct ClusterFacts {
    /// The newest served version of `networking.k8s.io` with `ServiceCIDR`s; `None` if there is none.
    pub api_version: Option<String>,
    /// Major and minor version of the API server that answered; `None` if it is not known.
    pub server_version: Option<(u32, u32)>,
    /// Every `ServiceCIDR`.
    pub ranges: Vec<ServiceCidr>,
    /// The outline of every Service ([`super::outline`]).
    pub services: Vec<Value>,
    /// Every Node, by name.
    pub nodes: BTreeMap<String, Node>,
    /// Ranges of pods, each with the object that contains it.
    pub pod_ranges: Vec<(String, IpNet)>,
    /// Every API server behind `default/kubernetes`, by its address.
    pub api_servers: BTreeMap<IpAddr, ApiServer>,
    /// Corefiles of the name servers, each with the object that contains it.
    pub corefiles: Vec<(String, String)>,
    /// Whether replumb has each permission that it needs: verb on resource → answer of the API server.
    pub permissions: BTreeMap<String, bool>,
    /// State of the admission policies that restrict coordinator and agents, by name.
    pub policies: BTreeMap<String, PolicyState>,
    /// Objects that were read and cannot be parsed.
    pub malformed: Vec<Malformed>,
    /// Facts of each host, from its agent. A node without an entry has not reported.
    pub hosts: BTreeMap<String, HostFacts>,
    /// Every pod.
    pub pods: Pods,
    /// Every workload that replaces its pods.
    pub workloads: BTreeMap<Workload, WorkloadFacts>,
    /// Every `PodDisruptionBudget`.
    pub budgets: Vec<Budget>,
    /// Every admission webhook.
    pub webhooks: Vec<Webhook>,
    /// Namespace and name of the cluster's name servers' pods.
    pub name_servers: BTreeSet<(String, String)>,
    /// Objects that contain an address or a range of Services in their configuration.
    pub mentions: Vec<Mention>,
    /// Every `ResourceQuota`.
    pub quotas: Vec<Quota>,
    /// Writes that the API server has refused in a dry run: the object, and the error of the API server.
    pub refused: Vec<(String, String)>,
    /// Number of Services without a dry run so far.
    pub untried: usize,
    /// Number of these that are older than the Migration, for which the migration waits.
    pub untried_before: usize,
    /// Host name or address by which the coordinator reaches the API server.
    pub own_path: String,
}

/// A `ResourceQuota`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its limits, by resource (`services.loadbalancers`).
    pub rooms: BTreeMap<String, Room>,
    /// Its fields about Services that cannot be parsed.
    pub not_understood: Vec<NotUnderstood>,
}

/// The limit of a quota for one resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// The limit.
    pub hard: u64,
    /// The current use.
    pub used: u64,
}

impl Room {
    /// The remaining number.
    pub fn remaining(self) -> u64 {
        self.hard.saturating_sub(self.used)
    }
}

/// An object whose configuration contains addresses of Services, and that only the user can change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mention {
    /// The object and its field: `ConfigMap kube-system/kubelet-config: clusterDNS`.
    pub object: String,
    /// The owner of the object.
    pub owner: Owner,
    /// Addresses and ranges that it contains within the source and target ranges: the first few of each.
    pub addresses: Vec<IpNet>,
    /// Number of further ones that it contains.
    pub more: usize,
    /// The fix; `{new}` is a placeholder for the needed value.
    pub fix: String,
}

impl ClusterFacts {
    /// Nodes on which an agent can run.
    pub fn linux_nodes(&self) -> impl Iterator<Item = &Node> {
        linux_nodes(&self.nodes)
    }

    /// Whether kube-proxy of this node recognizes connections of pods.
    pub fn recognizes_pods(&self, host: &HostFacts) -> bool {
        let pods = self.pod_ranges.iter().map(|(_, range)| range);
        host.local_traffic
            .present()
            .is_some_and(|by| by.recognizes_pods(pods))
    }

    /// Pods that other pods need, as far as known. The pod of the coordinator is not known here.
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
    /// Its `--service-cluster-ip-range`, or why it is unknown.
    pub ranges: Result<Vec<IpNet>, String>,
    /// The addresses in its certificate, or why they are unknown.
    pub addresses: Result<Vec<IpAddr>, String>,
}
