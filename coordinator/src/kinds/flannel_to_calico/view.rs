//! View of one node for its decision, from the stores. Reads only its arguments.

use ::flannel_to_calico::api::OrEmpty as _;
use api::names;
use api::node_migration::NodeMigrationStatus;
use engine::drain;
use engine::probe::Prober;
use engine::sourced::Sourced;
use flannel_to_calico::facts::HostFacts;
use flannel_to_calico::host::{HostSettings, PodNetworkService, pods_that_stay, service};
use flannel_to_calico::import;
use flannel_to_calico::node::{AgentReport, Direction, NetworkLabel, NodeView, Stage};
use flannel_to_calico::objects::Allocation;
use flannel_to_calico::settings::Settings;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use crate::cordon;
use crate::evictions::Refusals;
use crate::facts;
use crate::probe::probe_pod;
use crate::snapshot::Snapshot;

/// What the agent of a node has reported.
fn agent_report(ready: bool, status: &NodeMigrationStatus, settings: &HostSettings) -> AgentReport {
    let of_host = status.flannel_to_calico.or_empty();
    let failure = status.failure.as_ref();
    let facts = of_host.facts.as_ref();
    AgentReport {
        ready,
        phase: of_host.phase,
        message: status.message.clone(),
        failure: failure
            .filter(|failure| !failure.retriable)
            .map(|failure| failure.message.clone()),
        failing_checks: of_host
            .checks
            .iter()
            .filter(|check| !check.verdict.allows())
            .map(engine::check::Check::line)
            .collect(),
        goal: of_host.goal,
        changes: of_host.changes.clone(),
        fell_back: of_host.automatic_rollback.clone(),
        has_calico_pods: facts.is_some_and(|host| !host.calico.pods.is_empty()),
        is_served_by_calico: facts.is_some_and(|host| service(host, settings) == PodNetworkService::Calico),
    }
}

/// The view of one node; `None` if the Node or its `NodeMigration` does not exist.
pub fn view<'snapshot>(
    snapshot: &'snapshot Snapshot,
    settings: &Settings,
    name: &'snapshot str,
    migration: &str,
    refusals: &'snapshot Refusals,
    probers: Vec<Prober>,
) -> Option<NodeView<'snapshot>> {
    let daemons = |namespace: &Sourced<String>, set: &Sourced<String>| {
        snapshot.daemons_on(name, &namespace.value, &set.value)
    };
    let node = snapshot.nodes.get(name)?;
    let object = snapshot.node_migrations.get(name)?;
    let status = object.status.clone().unwrap_or_default();
    let host = status.flannel_to_calico.or_empty().facts.as_ref();
    let host_settings = HostSettings::of(settings);
    let wanted = host.map(|host| wanted_addresses(name, node, host, settings));
    Some(NodeView {
        name,
        direction: if object.spec.rolling_back {
            Direction::Rollback
        } else {
            Direction::Forward
        },
        was_done_at: object.spec.finished_before_rollback,
        ready: facts::nodes::is_ready(node),
        ready_changed: facts::nodes::ready_changed(node),
        unschedulable: cordon::is_unschedulable(node),
        cordoned_by_replumb: cordon::is_by(node, migration),
        network: network_label(node),
        goal: object.spec.flannel_to_calico.or_empty().goal,
        agent: agent_report(snapshot.agent_ready(name), &status, &host_settings),
        residents: drain::residents(snapshot.pods_on(name), name),
        budgets: &snapshot.budgets,
        refusals,
        flannel_pods: daemons(
            &settings.flannel_daemon_set_namespace,
            &settings.flannel_daemon_set_name,
        ),
        calico_pods: daemons(
            &settings.calico_daemon_set_namespace,
            &settings.calico_daemon_set_name,
        ),
        to_import: wanted
            .as_ref()
            .map(|wanted| {
                import::missing(
                    wanted,
                    &object.spec.flannel_to_calico.or_empty().imported_addresses,
                )
            })
            .unwrap_or_default(),
        to_release: wanted
            .as_ref()
            .map(|wanted| {
                import::outdated(
                    wanted,
                    &object.spec.flannel_to_calico.or_empty().imported_addresses,
                )
            })
            .unwrap_or_default(),
        legacy_pods: host.map(|host| host.legacy_pods.clone()).unwrap_or_default(),
        pods_that_stay: host
            .map(|host| pods_that_stay(host, &host_settings))
            .unwrap_or_default(),
        probe_pod: snapshot.probe_pods.get(name).map(|pod| probe_pod(pod)),
        probers,
        stage: object
            .spec
            .step
            .as_ref()
            .and_then(|step| Stage::read(&step.name).map(|stage| (stage, step.since))),
    })
}

/// The addresses on this host that Calico's IPAM must contain.
pub fn wanted_addresses(name: &str, node: &Node, host: &HostFacts, settings: &Settings) -> Vec<Allocation> {
    let claimed = import::claimed(&facts::nodes::node(node), &settings.pod_networks());
    import::wanted(name, &claimed, host)
}

/// Value of the Node's network label.
pub fn network_label(node: &Node) -> NetworkLabel {
    let label = node.labels().get(names::NODE_NETWORK_LABEL);
    NetworkLabel::read(label.map(String::as_str))
}

/// Whether the Node's label says that flannel runs on it.
pub fn is_on_flannel(node: &Node) -> bool {
    match network_label(node) {
        NetworkLabel::Missing | NetworkLabel::Flannel => true,
        NetworkLabel::Neither | NetworkLabel::Calico | NetworkLabel::Other(_) => false,
    }
}
