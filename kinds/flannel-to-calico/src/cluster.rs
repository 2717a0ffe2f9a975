//! What the coordinator reads off the API before it decides: the cluster as facts.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;

use super::facts::HostFacts;
use engine::check::Check;
use engine::check::policies::PolicyState;
use engine::cluster::{DaemonSet, IpPool, Malformed, Node, Webhook};
use engine::drain::Budget;
use engine::pods::Pods;

/// The cluster, as far as the checks and the plan need it.
#[derive(Clone, Debug, Default)]
pub struct ClusterFacts {
    /// Every Node, by name.
    pub nodes: BTreeMap<String, Node>,
    /// Every `DaemonSet`, by (namespace, name).
    pub daemon_sets: BTreeMap<(String, String), DaemonSet>,
    /// Data of the `ConfigMap`s that `DaemonSet`s of a network refer to (see
    /// [`DaemonSet::referred_config_maps`]), by (namespace, name).
    pub config_maps: BTreeMap<(String, String), BTreeMap<String, String>>,
    /// Every Pod that is not finished.
    pub pods: Pods,
    /// Every `PodDisruptionBudget`.
    pub budgets: Vec<Budget>,
    /// Fail-closed admission webhooks that are served by a Service.
    pub webhooks: Vec<Webhook>,
    /// Calico's custom resource definitions that are served: plural names in group `crd.projectcalico.org`.
    pub calico_resources: BTreeSet<String>,
    /// `IPPool`s, by name.
    pub ip_pools: BTreeMap<String, IpPool>,
    /// Existing IPAM blocks: CIDR → affinity (`host:<node>`), `None` where it has none.
    pub ipam_blocks: BTreeMap<IpNet, Option<String>>,
    /// Whether the tool may do what it must do: verb on resource → answer of the API server.
    pub permissions: BTreeMap<String, bool>,
    /// How the API server has the policies that bound coordinator and agents, by name.
    pub policies: BTreeMap<String, PolicyState>,
    /// Objects that were read and not understood: nobody knows what they say.
    pub malformed: Vec<Malformed>,
    /// Facts of every node's host, as its agent reported them; a node without an entry has not reported.
    pub hosts: BTreeMap<String, HostFacts>,
    /// Checks that the agents made of their hosts, by node.
    pub host_checks: BTreeMap<String, Vec<Check>>,
}
