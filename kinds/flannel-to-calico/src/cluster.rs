//! Facts about the cluster, which the coordinator reads from the API before it decides.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use super::facts::HostFacts;
use engine::check::Check;
use engine::check::policies::PolicyState;
use engine::cluster::{DaemonSet, IpPool, Malformed, Node, Webhook};
use engine::drain::Budget;
use engine::pods::Pods;

/// The facts about the cluster that the checks and the plan need.
#[derive(Clone, Debug, Default)]
pub struct ClusterFacts {
    /// Every Node, by name.
    pub nodes: BTreeMap<String, Node>,
    /// Every `DaemonSet`, by (namespace, name).
    pub daemon_sets: BTreeMap<(String, String), DaemonSet>,
    /// Data of the `ConfigMap`s that the `DaemonSet`s of flannel and Calico refer to (see
    /// [`DaemonSet::referred_config_maps`]), by (namespace, name).
    pub config_maps: BTreeMap<(String, String), BTreeMap<String, String>>,
    /// Every Pod that is not finished.
    pub pods: Pods,
    /// Every `PodDisruptionBudget`.
    pub budgets: Vec<Budget>,
    /// Fail-closed admission webhooks that are served by a Service.
    pub webhooks: Vec<Webhook>,
    /// Custom resources of Calico that are served: plural names in group `crd.projectcalico.org`.
    pub calico_resources: BTreeSet<String>,
    /// `IPPool`s, by name.
    pub ip_pools: BTreeMap<String, IpPool>,
    /// Existing IPAM blocks: CIDR → affinity (`host:<node>`), `None` if the block has no affinity.
    pub ipam_blocks: BTreeMap<IpNet, Option<String>>,
    /// Permissions of the coordinator: verb on resource → answer of the API server.
    pub permissions: BTreeMap<String, bool>,
    /// State of the admission policies that restrict the coordinator and the agents, by name.
    pub policies: BTreeMap<String, PolicyState>,
    /// Objects that were read and could not be parsed.
    pub malformed: Vec<Malformed>,
    /// Facts about the host of each node, as its agent reported them. A node without an entry has not reported.
    pub hosts: BTreeMap<String, HostFacts>,
    /// Check results of the agents on their hosts, by node.
    pub host_checks: BTreeMap<String, Vec<Check>>,
}
