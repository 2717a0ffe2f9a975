//! From stores to the view of one node that the decision is made on. Reads nothing but its arguments.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use api::{NodeMigration, names};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use plan::drain::{self, Budget};
use plan::flannel_to_calico::cluster::Malformed;
use plan::flannel_to_calico::import;
use plan::flannel_to_calico::node::{
    AgentReport, Direction, NetworkLabel, NodeView, ProbePod, Prober, Stage,
};
use plan::flannel_to_calico::settings::{PodNetwork, Settings};

use crate::cache::Cache;
use crate::evict::Refusals;
use crate::facts;

/// One look at the stores: every decision of a pass is made on the same facts.
pub struct Snapshot {
    /// Nodes by name.
    pub nodes: BTreeMap<String, Arc<Node>>,
    /// `NodeMigration`s of this Migration by node name.
    pub node_migrations: BTreeMap<String, Arc<NodeMigration>>,
    /// Pods as the drain sees them.
    pub pods: Vec<drain::Pod>,
    /// `PodDisruptionBudget`s.
    pub budgets: Vec<Budget>,
    /// flannel's networks.
    networks: Vec<PodNetwork>,
    /// Whether the agent on a node is Ready.
    agents: BTreeMap<String, bool>,
    /// flannel's pods by node, with readiness.
    flannel_pods: BTreeMap<String, Vec<(String, bool)>>,
    /// Calico's pods by node, with readiness.
    calico_pods: BTreeMap<String, Vec<(String, bool)>>,
    /// Probe pods by the node that they prove.
    pub probe_pods: BTreeMap<String, Arc<Pod>>,
    /// Traffic pods of every node.
    pub traffic_pods: Vec<Arc<Pod>>,
    /// Pods that were not understood: nobody knows whether they may be moved.
    pub malformed: Vec<Malformed>,
}

impl Snapshot {
    /// Looks at the stores once.
    pub fn take(cache: &Cache, settings: &Settings, migration: &str, namespace: &str) -> Self {
        let mut snapshot = Self {
            nodes: cache
                .nodes
                .state()
                .into_iter()
                .map(|node| (node.name_any(), node))
                .collect(),
            node_migrations: cache
                .node_migrations
                .state()
                .into_iter()
                .filter(|object| object.spec.migration == migration)
                .map(|object| (object.spec.node_name.clone(), object))
                .collect(),
            pods: Vec::new(),
            budgets: cache
                .budgets
                .state()
                .iter()
                .map(|budget| facts::pods::budget(budget))
                .collect(),
            networks: settings.pod_networks(),
            agents: BTreeMap::new(),
            flannel_pods: BTreeMap::new(),
            calico_pods: BTreeMap::new(),
            probe_pods: BTreeMap::new(),
            traffic_pods: Vec::new(),
            malformed: Vec::new(),
        };
        for pod in cache.pods.state() {
            snapshot.sort_pod(&pod, settings, namespace);
        }
        snapshot
    }

    fn sort_pod(&mut self, pod: &Arc<Pod>, settings: &Settings, namespace: &str) {
        let facts = match facts::pods::pod(pod) {
            Ok(facts) => facts,
            Err(malformed) => {
                self.malformed.push(malformed);
                return;
            }
        };
        let usable = facts.ready && facts.deleted_at.is_none();
        let owned_by = |set_namespace: &str, set_name: &str| {
            facts.namespace == set_namespace
                && facts
                    .controller
                    .as_ref()
                    .is_some_and(|(kind, name)| kind == "DaemonSet" && name == set_name)
        };
        if owned_by(
            &settings.flannel_daemon_set_namespace.value,
            &settings.flannel_daemon_set_name.value,
        ) {
            self.flannel_pods
                .entry(facts.node.clone())
                .or_default()
                .push((facts.key(), usable));
        }
        if owned_by(
            &settings.calico_daemon_set_namespace.value,
            &settings.calico_daemon_set_name.value,
        ) {
            self.calico_pods
                .entry(facts.node.clone())
                .or_default()
                .push((facts.key(), usable));
        }
        if owned_by(namespace, names::AGENT) {
            *self.agents.entry(facts.node.clone()).or_default() |= usable;
        }
        let component = pod.labels().get(names::COMPONENT_LABEL).map(String::as_str);
        match component.filter(|_| facts.namespace == namespace) {
            // Ours: never drained, deleted once the node is proved.
            Some(names::PROBE_COMPONENT) => {
                self.probe_pods.insert(facts.node.clone(), Arc::clone(pod));
            }
            // Ours: never drained, deleted when its network goes.
            Some(names::TRAFFIC_COMPONENT) => self.traffic_pods.push(Arc::clone(pod)),
            _ => self.pods.push(facts),
        }
    }

    /// Whether the agent of this node is Ready.
    pub fn agent_ready(&self, node: &str) -> bool {
        self.agents.get(node).copied().unwrap_or_default()
    }

    /// The view of one node; `None` when the Node or its `NodeMigration` is not there.
    pub fn view<'snapshot>(
        &'snapshot self,
        name: &'snapshot str,
        migration: &str,
        refusals: &'snapshot Refusals,
        probers: Vec<Prober>,
    ) -> Option<NodeView<'snapshot>> {
        let node = self.nodes.get(name)?;
        let object = self.node_migrations.get(name)?;
        let status = object.status.clone().unwrap_or_default();
        let host = status.facts.as_ref();
        let wanted = host.map(|host| {
            let claimed = facts::nodes::node(node)
                .map(|node| import::claimed(&node, &self.networks))
                .unwrap_or_default();
            import::wanted(name, &claimed, host)
        });
        Some(NodeView {
            name,
            direction: if object.spec.returning {
                Direction::Back
            } else {
                Direction::There
            },
            ready: facts::nodes::is_ready(node),
            ready_changed: facts::nodes::ready_changed(node),
            unschedulable: is_unschedulable(node),
            cordoned_by_us: is_cordoned_by(node, migration),
            network: network_label(node),
            goal: object.spec.goal,
            agent: AgentReport {
                ready: self.agent_ready(name),
                phase: status.phase,
                message: status.message,
                failure: status
                    .failure
                    .filter(|failure| !failure.retriable)
                    .map(|failure| failure.message),
                failing_checks: status
                    .checks
                    .iter()
                    .filter(|check| !check.verdict.allows())
                    .map(plan::check::Check::line)
                    .collect(),
                goal: status.goal,
                changes: status.changes,
                fell_back: status.fell_back,
                sees_calicos_pods: host.is_some_and(|host| !host.calico.pods.is_empty()),
            },
            residents: drain::residents(&self.pods, name),
            budgets: &self.budgets,
            refusals,
            flannel_pods: self.flannel_pods.get(name).cloned().unwrap_or_default(),
            calico_pods: self.calico_pods.get(name).cloned().unwrap_or_default(),
            to_import: wanted
                .as_ref()
                .map(|wanted| import::missing(wanted, &object.spec.imported))
                .unwrap_or_default(),
            to_release: wanted
                .as_ref()
                .map(|wanted| import::outdated(wanted, &object.spec.imported))
                .unwrap_or_default(),
            legacy_pods: host
                .into_iter()
                .flat_map(|host| &host.legacy_pods)
                .flat_map(|pod| pod.addresses.iter().copied())
                .collect(),
            probe_pod: self.probe_pods.get(name).map(|pod| probe_pod(pod)),
            probers,
            stage: object
                .spec
                .step
                .as_ref()
                .and_then(|step| Stage::read(&step.name).map(|stage| (stage, step.since))),
        })
    }
}

/// What the Node's network label says.
pub fn network_label(node: &Node) -> NetworkLabel {
    let label = node.labels().get(names::NODE_NETWORK_LABEL);
    NetworkLabel::read(label.map(String::as_str))
}

/// Whether the Node is cordoned, by whomever.
pub fn is_unschedulable(node: &Node) -> bool {
    node.spec
        .as_ref()
        .and_then(|spec| spec.unschedulable)
        .unwrap_or_default()
}

/// Whether the cordon of the Node is this Migration's.
pub fn is_cordoned_by(node: &Node, migration: &str) -> bool {
    node.annotations()
        .get(names::CORDONED_BY_ANNOTATION)
        .is_some_and(|by| by == migration)
}

/// The probe pod as the decision sees it: it has an address once it is Ready.
fn probe_pod(pod: &Pod) -> ProbePod {
    let status = pod.status.clone().unwrap_or_default();
    let ready = facts::pods::is_ready(pod);
    let address: Option<IpAddr> = status.pod_ip.as_deref().and_then(|text| text.parse().ok());
    let waiting = status.container_statuses.iter().flatten().find_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        Some(format!(
            "{}: {}",
            waiting.reason.as_deref()?,
            waiting.message.as_deref().unwrap_or_default()
        ))
    });
    ProbePod {
        uid: pod.uid().unwrap_or_default(),
        address: address.filter(|_| ready),
        message: waiting
            .or(status.phase)
            .unwrap_or_else(|| "no status yet".to_owned()),
    }
}
