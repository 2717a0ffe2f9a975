//! Reads the facts of this kind. Changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use ::calico::runs_calico_node;
use api::NodeMigration;
use api::migration::PodCidr;
use engine::cluster::{DaemonSet, Malformed};
use engine::owner::KUBE_SYSTEM;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Service};
use k8s_openapi::api::networking::v1::{NetworkPolicy, ServiceCIDR};
use kube::ResourceExt;
use kube::core::DynamicObject;
use pod_cidr::calico_node::CalicoNode;
use pod_cidr::checks::permissions;
use pod_cidr::datastore::DatastoreFacts;
use pod_cidr::facts::ClusterFacts;
use pod_cidr::hardcoded_range::RangeUse;
use pod_cidr::ipam::{Block, Ipam};
use pod_cidr::unclear::Unclear;

use super::malformed::{self, Claims, Pools};
use super::read_cache::ReadCache;
use super::{calico_nodes, datastore, objects, places};
use crate::cache::Cache;
use crate::calico::store::Store;
use crate::calico::{self, Kind};
use crate::context::Context;
use crate::etcd_access::problem;
use crate::facts::workloads::backends;
use crate::write::WriteError;
use crate::{facts, read, workloads};

/// Calico's kinds that contain ranges for policies.
const POLICIES: [Kind; 4] = [
    Kind("GlobalNetworkPolicy", "globalnetworkpolicies"),
    Kind("NetworkPolicy", "networkpolicies"),
    Kind("GlobalNetworkSet", "globalnetworksets"),
    Kind("NetworkSet", "networksets"),
];

/// Ranges that Services have or may have, each with the object that has it. In a cluster without `ServiceCIDR`s, the addresses of Services.
async fn service_ranges(context: &Context) -> Result<Vec<(String, IpNet)>, WriteError> {
    let ranges = read::list_if_served::<ServiceCIDR>(context, "ServiceCIDRs").await?;
    let said: Vec<(String, IpNet)> = ranges.iter().flat_map(objects::ranges_of).collect();
    if !said.is_empty() {
        return Ok(said);
    }
    let given = read::each(context, "Services", |service: Service| {
        Some(objects::given_to(&service))
    })
    .await?;
    Ok(given.concat())
}

/// The facts that the checks and the plan need.
pub async fn cluster(
    context: &Context,
    cache: &Cache,
    looks: &mut ReadCache,
    kind: &PodCidr,
    node_migrations: &[Arc<NodeMigration>],
) -> Result<ClusterFacts, WriteError> {
    let (datastore, in_calico) = in_calico(context, cache, looks, kind).await?;
    let (calico_resources, name_services, services, webhooks) = tokio::try_join!(
        read::calico_resources(context),
        read::name_services(context),
        service_ranges(context),
        read::webhooks(context),
    )?;
    let needed = permissions(&datastore);
    let (namespaces, permissions, policies, workloads) = tokio::try_join!(
        read::each(context, "Namespaces", |namespace: Namespace| Some(
            objects::pins_of(&namespace)
        )),
        read::permissions(context, &needed),
        read::policies(context),
        workloads::workloads(context, cache),
    )?;
    let nodes = cache.nodes.state();
    let nodes: Vec<_> = nodes.iter().map(|found| facts::nodes::node(found)).collect();
    let index = cache.pods.index();
    let mut pods = index.pods();
    pods.sort_by_name();
    let pools = malformed::pools(&in_calico.pools);
    // A malformed pool without a range cannot be judged further.
    let (unclear_pools, of_no_range): (Vec<Unclear>, Vec<Unclear>) =
        pools.malformed.into_iter().partition(|pool| pool.range.is_some());
    let mut malformed: Vec<Malformed> = of_no_range.into_iter().map(|pool| pool.malformed).collect();
    let (blocks, unclear_blocks) = malformed::partition(in_calico.blocks);
    let (daemon_sets, config_maps) = calicos_daemon_sets(context, cache).await?;
    let controller_managers = objects::controller_managers(&index);
    let reports = read::reports(context, cache, node_migrations);
    malformed.sort();
    let name_servers = backends(&name_services, &pods);
    let corefiles = workloads::corefiles(context, &index, &name_servers).await?;
    Ok(ClusterFacts {
        nodes: nodes.into_iter().map(|node| (node.name.clone(), node)).collect(),
        pins: objects::pins(&index, namespaces),
        workloads,
        budgets: cache
            .budgets
            .state()
            .iter()
            .map(|found| facts::pods::budget(found))
            .collect(),
        webhooks: webhooks.behind(&pods),
        name_servers,
        corefiles,
        pods,
        pools: pools.valid,
        unclear_pools,
        blocks,
        unclear_blocks,
        ipam: objects::ipam(in_calico.ipam.as_ref()),
        services,
        mentions: in_calico.mentions,
        calico_nodes: in_calico.nodes,
        datastore,
        daemon_sets: daemon_sets
            .into_iter()
            .map(|set| ((set.namespace.clone(), set.name.clone()), set))
            .collect(),
        config_maps,
        controller_managers,
        calico_resources,
        permissions,
        policies,
        malformed,
        hosts: read::from_reports(&reports, |status| status.pod_cidr.clone()),
    })
}

/// Facts from Calico's datastore.
#[derive(Default)]
struct InCalico {
    pools: Vec<DynamicObject>,
    blocks: Vec<Result<Block, Unclear>>,
    ipam: Option<DynamicObject>,
    nodes: BTreeMap<String, CalicoNode>,
    mentions: Vec<RangeUse>,
}

/// Calico's datastore, and the facts from it. When it cannot be reached, the first has the error, and the second is empty and must not be
/// used.
async fn in_calico(
    context: &Context,
    cache: &Cache,
    looks: &mut ReadCache,
    kind: &PodCidr,
) -> Result<(DatastoreFacts, InCalico), WriteError> {
    let mut found = DatastoreFacts::default();
    if let Some(said) = datastore::ask(context, cache, kind, None).await? {
        found.detected = said;
    }
    let Ok(said) = &found.detected else {
        return Ok((found, InCalico::default()));
    };
    let store = match looks.store(context, &said.value).await {
        Ok(store) => store,
        Err(problem) => {
            found.etcd = Some(Err(problem));
            return Ok((found, InCalico::default()));
        }
    };
    if let Store::Etcd(store) = &store {
        found.etcd = Some(datastore::facts(store).await);
    }
    let read = async {
        let no_claims = Claims::default();
        let (pools, blocks, ipam, nodes) = tokio::try_join!(
            store.list(calico::IP_POOL),
            blocks(&store, &no_claims),
            store.ipam_config(),
            calico_nodes::read(&store, cache),
        )?;
        let mentions = mentions(context, cache, &store, kind, None).await?;
        Ok(InCalico {
            pools,
            blocks,
            ipam,
            nodes,
            mentions,
        })
    };
    match read.await {
        Ok(read) => Ok((found, read)),
        Err(WriteError::Etcd(error)) => {
            looks.forget_store();
            found.etcd = Some(Err(problem(&error)));
            Ok((found, InCalico::default()))
        }
        Err(error) => Err(error),
    }
}

/// Every `IPPool`.
pub async fn pools(store: &Store) -> Result<Pools, WriteError> {
    Ok(malformed::pools(&store.list(calico::IP_POOL).await?))
}

/// The allocations and reservations of Calico's IPAM.
pub async fn ipam(store: &Store) -> Result<Ipam, WriteError> {
    let (claims, reservations) = tokio::try_join!(
        store.each(calico::BLOCK_AFFINITY, |object| Some(malformed::claim(&object))),
        store.each(calico::IP_RESERVATION, |object| Some(objects::reserved(&object))),
    )?;
    // The claims give the range of a malformed block.
    let claims = Claims::of(claims);
    let blocks = blocks(store, &claims).await?;
    Ok(malformed::ipam(blocks, claims, reservations))
}

/// Every block, reduced to the fields that decisions need.
async fn blocks(store: &Store, claims: &Claims) -> Result<Vec<Result<Block, Unclear>>, WriteError> {
    let kept = |object: DynamicObject| Some(malformed::block(&object, claims));
    store.each(calico::IPAM_BLOCK, kept).await
}

/// Objects that contain a range. `begun_with`: namespace and name of Calico's `DaemonSet`, once the migration has started.
pub async fn mentions(
    context: &Context,
    cache: &Cache,
    store: &Store,
    kind: &PodCidr,
    begun_with: Option<(&str, &str)>,
) -> Result<Vec<RangeUse>, WriteError> {
    let (daemon_sets, config_maps) = calicos_daemon_sets(context, cache).await?;
    let daemon_set = ::calico::saved_daemon_set(&daemon_sets, begun_with);
    let detected = daemon_set.map(|set| set.namespace.as_str());
    let known = begun_with.map(|(namespace, _)| namespace);
    let system: Vec<&str> = [Some(context.namespace.as_str()), known.or(detected)]
        .into_iter()
        .flatten()
        .collect();
    let named = ["kubeadm-config", "kube-proxy"].map(|name| (KUBE_SYSTEM.to_owned(), name.to_owned()));
    let of_policy = |object: NetworkPolicy| places::network_policy(&object, &system, kind);
    let (maps, of_policies) = tokio::try_join!(
        read::config_maps(context, named.into()),
        read::each(context, "NetworkPolicies", of_policy),
    )?;
    let mut mentions: Vec<RangeUse> = daemon_set
        .into_iter()
        .flat_map(|set| places::calico(set, &config_maps, &system))
        .collect();
    for map in &maps {
        mentions.extend(match map.name_any().as_str() {
            "kubeadm-config" => places::kubeadm(map),
            _ => places::kube_proxy(map),
        });
    }
    mentions.extend(of_policies);
    for policies in POLICIES {
        let of_policy = |object: DynamicObject| places::calico_policy(policies.0, &object, &system, kind);
        mentions.extend(store.each(policies, of_policy).await?);
    }
    let managers = objects::controller_managers(&cache.pods.index());
    mentions.extend(managers.iter().filter_map(places::controller_manager));
    Ok(mentions)
}

/// Calico's `DaemonSet`s, and the data of the `ConfigMap`s that they refer to.
async fn calicos_daemon_sets(
    context: &Context,
    cache: &Cache,
) -> Result<(Vec<DaemonSet>, ::calico::ConfigMaps), WriteError> {
    let sets: Vec<DaemonSet> = cache
        .daemon_sets
        .state()
        .iter()
        .map(|found| facts::daemon_sets::daemon_set(found))
        .filter(runs_calico_node)
        .collect();
    let wanted = sets
        .iter()
        .flat_map(|set| {
            let names = set.referred_config_maps().into_iter();
            names.map(|name| (set.namespace.clone(), name.to_owned()))
        })
        .collect();
    let maps: Vec<ConfigMap> = read::config_maps(context, wanted).await?;
    let maps = maps.iter().map(facts::daemon_sets::config_map).collect();
    Ok((sets, maps))
}
