//! Reads the cluster: the facts for the checks and the plan, and flannel's or Calico's `DaemonSet`. Changes nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ::flannel_to_calico::api::OrEmpty as _;
use api::NodeMigration;
use engine::check::Check;
use engine::check::policies::PolicyState;
use engine::cluster::Malformed;
use engine::node_selection::NodeSelection;
use engine::pods::Pods;
use flannel_to_calico::checks::PERMISSIONS;
use flannel_to_calico::facts::{ClusterFacts, HostFacts, PreviewState};
use ipnet::IpNet;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::core::DynamicObject;
use kube::{Client, ResourceExt};

use crate::cache::Cache;
use crate::context::Context;
use crate::read::Webhooks;
use crate::read_error::ReadError;
use crate::{calico, facts, read};

/// The facts that the checks and the plan need.
pub async fn cluster(
    context: &Context,
    cache: &Cache,
    node_migrations: &[Arc<NodeMigration>],
) -> Result<ClusterFacts, ReadError> {
    let client = &context.client;
    let daemon_sets = cache.daemon_sets.state();
    let wanted = config_maps_to_read(&daemon_sets);
    let (config_maps, webhooks, calico_resources, serves_native_resources) = tokio::try_join!(
        read::config_maps(context, wanted),
        read::webhooks(context),
        read::calico_resources(context),
        read::serves_native_resources(context),
    )?;
    let (ip_pools, reserved, ipam_blocks, permissions, policies) = tokio::try_join!(
        calico::IP_POOL.list(client),
        calico::IP_RESERVATION.list(client),
        ipam_blocks(client),
        read::permissions(context, &PERMISSIONS),
        read::policies(context),
    )?;
    let reports = read::reports(context, cache, node_migrations);
    Ok(facts_of(&Objects {
        nodes: cache.nodes.state(),
        pods: cache.pods.index().pods(),
        daemon_sets,
        budgets: cache.budgets.state(),
        config_maps,
        webhooks,
        calico_resources,
        serves_native_resources,
        reserved,
        ip_pools,
        ipam_blocks,
        permissions,
        policies,
        hosts: read::from_reports(&reports, |status| {
            status.flannel_to_calico.or_empty().facts.clone()
        }),
        host_checks: read::from_reports(&reports, |status| {
            Some(status.flannel_to_calico.or_empty().checks.clone())
        }),
    }))
}

/// Range and affinity of every `IPAMBlock`: before the first change a foreign block may be anywhere in the range. A cluster on
/// flannel has few blocks, and no list of them follows once the migration runs.
async fn ipam_blocks(client: &Client) -> Result<Vec<Result<(IpNet, Option<String>), Malformed>>, ReadError> {
    calico::IPAM_BLOCK
        .each(client, |block| Some(facts::calico::ipam_block(&block)))
        .await
}

/// All objects that were read: watched kinds from their stores, the others as listed.
#[derive(Clone, Debug, Default)]
struct Objects {
    /// Every Node.
    nodes: Vec<Arc<Node>>,
    /// Every Pod.
    pods: Pods,
    /// Every `DaemonSet`.
    daemon_sets: Vec<Arc<DaemonSet>>,
    /// Every `PodDisruptionBudget`.
    budgets: Vec<Arc<PodDisruptionBudget>>,
    /// The existing `ConfigMap`s of those that [`config_maps_to_read`] names.
    config_maps: Vec<ConfigMap>,
    /// Every webhook configuration, and the Services behind those that fail closed.
    webhooks: Webhooks,
    /// Plural names that group `crd.projectcalico.org` serves; empty when it is not served.
    calico_resources: BTreeSet<String>,
    /// Whether group `projectcalico.org/v3` is served.
    serves_native_resources: bool,
    /// Every `IPReservation`.
    reserved: Vec<DynamicObject>,
    /// Every `IPPool`.
    ip_pools: Vec<DynamicObject>,
    /// Range and affinity of every `IPAMBlock`, or the error for one that cannot be parsed.
    ipam_blocks: Vec<Result<(IpNet, Option<String>), Malformed>>,
    /// Answers of the API server, by [`engine::check::Permission::key`].
    permissions: BTreeMap<String, bool>,
    /// State of the admission policies that restrict coordinator and agents, by name.
    policies: BTreeMap<String, PolicyState>,
    /// Facts of every host, as reported by its agent.
    hosts: BTreeMap<String, HostFacts>,
    /// Checks of every agent about its host.
    host_checks: BTreeMap<String, Vec<Check>>,
}

/// Namespaces and names of the `ConfigMap`s that `DaemonSet`s of a network refer to: they must be read before
/// [`facts_of`] is complete.
fn config_maps_to_read(daemon_sets: &[Arc<DaemonSet>]) -> BTreeSet<(String, String)> {
    daemon_sets
        .iter()
        .map(|found| facts::daemon_sets::daemon_set(found))
        .filter(flannel_to_calico::detect::is_of_a_network)
        .flat_map(|found| {
            let namespace = found.namespace.clone();
            found
                .referred_config_maps()
                .into_iter()
                .map(|name| (namespace.clone(), name.to_owned()))
                .collect::<Vec<_>>()
        })
        .collect()
}

/// The cluster as facts, including the names of objects that cannot be parsed.
fn facts_of(objects: &Objects) -> ClusterFacts {
    let mut malformed = Vec::new();
    let nodes = objects.nodes.iter().map(|found| facts::nodes::node(found));
    let mut pods = objects.pods.clone();
    pods.retain(|pod| !pod.finished);
    pods.sort_by_name();
    let ip_pools = facts::understood(
        objects.ip_pools.iter().map(facts::calico::ip_pool),
        &mut malformed,
    );
    let ipam_blocks = facts::understood(objects.ipam_blocks.iter().cloned(), &mut malformed);
    malformed.sort();
    let mut budgets = facts::pods::budgets(&objects.budgets);
    budgets.sort_by(|left, right| (&left.namespace, &left.name).cmp(&(&right.namespace, &right.name)));
    ClusterFacts {
        nodes: nodes.map(|node| (node.name.clone(), node)).collect(),
        outside: BTreeMap::new(),
        outside_hosts: BTreeMap::new(),
        selection: NodeSelection::default(),
        daemon_sets: objects
            .daemon_sets
            .iter()
            .map(|found| facts::daemon_sets::daemon_set(found))
            .map(|found| ((found.namespace.clone(), found.name.clone()), found))
            .collect(),
        config_maps: objects
            .config_maps
            .iter()
            .map(facts::daemon_sets::config_map)
            .collect(),
        webhooks: objects.webhooks.behind(&pods),
        pods,
        budgets,
        calico_resources: objects.calico_resources.clone(),
        serves_native_resources: objects.serves_native_resources,
        reserved: objects
            .reserved
            .iter()
            .flat_map(|object| facts::calico::reserved(object).0)
            .collect(),
        ip_pools: ip_pools
            .into_iter()
            .map(|pool| (pool.name.clone(), pool))
            .collect(),
        ipam_blocks: ipam_blocks.into_iter().collect(),
        permissions: objects.permissions.clone(),
        policies: objects.policies.clone(),
        malformed,
        policy_preview: PreviewState::Unread,
        hosts: objects.hosts.clone(),
        host_checks: objects.host_checks.clone(),
    }
}

/// The `DaemonSet` of this namespace and name, if it exists.
pub fn daemon_set(cache: &Cache, namespace: &str, name: &str) -> Option<Arc<DaemonSet>> {
    cache
        .daemon_sets
        .state()
        .into_iter()
        .find(|set| set.namespace().as_deref() == Some(namespace) && set.name_any() == name)
}

/// flannel's `DaemonSet`, which a step is about to change.
///
/// # Errors
///
/// The `DaemonSet` does not exist; the text says what the user does about it.
pub fn required_daemon_set(cache: &Cache, namespace: &str, name: &str) -> Result<Arc<DaemonSet>, String> {
    daemon_set(cache, namespace, name).ok_or_else(|| {
        format!("DaemonSet {namespace}/{name} not found: flannel was removed from the cluster; apply its manifest again")
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;

    use super::*;

    #[test]
    fn an_unreadable_field_is_named_and_others_are_kept() {
        let node = |name: &str, cpu: &str| {
            Arc::new(
                serde_json::from_value::<Node>(serde_json::json!({
                    "metadata": {"name": name}, "status": {"allocatable": {"cpu": cpu}},
                }))
                .unwrap(),
            )
        };
        let pod = |name: &str, phase: &str| {
            facts::pods::pod(
                &serde_json::from_value::<Pod>(serde_json::json!({
                    "metadata": {"namespace": "n", "name": name}, "status": {"phase": phase},
                }))
                .unwrap(),
            )
        };
        let facts = facts_of(&Objects {
            nodes: vec![node("b", "many"), node("a", "1")],
            pods: vec![pod("z", "Running"), pod("done", "Succeeded"), pod("y", "Pending")].into(),
            ip_pools: vec![
                serde_json::from_value(serde_json::json!({
                    "apiVersion": "crd.projectcalico.org/v1", "kind": "IPPool", "metadata": {"name": "odd"}, "spec": {},
                }))
                .unwrap(),
            ],
            ..Objects::default()
        });
        assert_eq!(facts.nodes.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(facts.malformed.len(), 1);
        assert_eq!(facts.malformed[0].object, "IPPool odd");
        let [field] = facts.nodes["b"].not_understood.as_slice() else {
            panic!("{:?}", facts.nodes)
        };
        assert_eq!(field.field, "status.allocatable.cpu");
        assert_eq!(
            facts.pods.iter().map(|pod| pod.name.as_str()).collect::<Vec<_>>(),
            ["y", "z"]
        );
    }
}
