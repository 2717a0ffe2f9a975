//! Reads the cluster and Calico's datastore: the facts for the checks and the plan, and what a pass needs. Changes nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use api::NodeMigration;
use api::migration::{CurrentStage, Direction, PodCidr, PodCidrStatus, Stage};
use engine::cluster::Malformed;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Namespace, Service};
use k8s_openapi::api::networking::v1::ServiceCIDR;
use kube::core::DynamicObject;
use pod_cidr::calico_node::CalicoNode;
use pod_cidr::checks::permissions;
use pod_cidr::datastore::DatastoreFacts;
use pod_cidr::decide::PoolRole;
use pod_cidr::facts::ClusterFacts;
use pod_cidr::hardcoded_range::RangeUse;
use pod_cidr::host::HostSettings;
use pod_cidr::ipam::Block;
use pod_cidr::tunnel_address;
use pod_cidr::unclear::Unclear;

use super::calico_objects::{blocks, calicos_daemon_sets, kube_proxies, mentions};
use super::malformed::{self, Claims, Pools};
use super::read_cache::{ReadCache, SharedIpam};
use super::report::unreachable;
use super::{adopt, calico_nodes, datastore, objects};
use crate::cache::Cache;
use crate::calico;
use crate::calico::error::CalicoStoreError;
use crate::calico::store::Store;
use crate::context::Context;
use crate::etcd_access::problem;
use crate::facts::workloads::backends;
use crate::memory::Memory;
use crate::pass_error::PassError;
use crate::read_cache::Pace;
use crate::read_error::ReadError;
use crate::{facts, read, workloads};

/// Ranges that Services have or may have, each with the object that has it. In a cluster without `ServiceCIDR`s, the addresses of
/// Services.
async fn service_ranges(context: &Context) -> Result<Vec<(String, IpNet)>, ReadError> {
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
    reads: &mut ReadCache,
    kind: &PodCidr,
    node_migrations: &[Arc<NodeMigration>],
) -> Result<ClusterFacts, PassError> {
    let proxies = kube_proxies(context, cache).await?;
    let (datastore, in_calico) = in_calico(context, cache, reads, kind, proxies.uses).await?;
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
        budgets: facts::pods::budgets(&cache.budgets.state()),
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
        kube_proxy_is_known: proxies.is_known,
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

/// Calico's datastore, and the facts from it. When it cannot be reached, the first has the error, and the second is empty and
/// must not be used.
async fn in_calico(
    context: &Context,
    cache: &Cache,
    reads: &mut ReadCache,
    kind: &PodCidr,
    of_proxies: Vec<RangeUse>,
) -> Result<(DatastoreFacts, InCalico), PassError> {
    let mut found = DatastoreFacts::default();
    if let Some(said) = datastore::ask(context, cache, kind, None).await? {
        found.detected = said;
    }
    let Ok(said) = &found.detected else {
        return Ok((found, InCalico::default()));
    };
    let store = match reads.store(context, &said.value).await {
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
        let mentions = mentions(context, cache, &store, kind, None, of_proxies).await?;
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
        Err(PassError::Store(CalicoStoreError::Etcd(error))) => {
            reads.forget_store();
            found.etcd = Some(Err(problem(&error)));
            Ok((found, InCalico::default()))
        }
        Err(
            error @ (PassError::Read(_)
            | PassError::Write(_)
            | PassError::Store(CalicoStoreError::Read(_) | CalicoStoreError::Write(_))),
        ) => Err(error),
    }
}

/// Every `IPPool`.
pub async fn pools(store: &Store) -> Result<Pools, CalicoStoreError> {
    Ok(malformed::pools(&store.list(calico::IP_POOL).await?))
}

/// Calico's datastore, or why no step may run: it does not answer, or Calico works with another one.
pub async fn store(
    context: &Context,
    cache: &Cache,
    memory: &mut Memory,
    kind: &PodCidr,
    known: &PodCidrStatus,
) -> Result<Result<Store, String>, ReadError> {
    let datastore = &known.settings.datastore.value;
    let begun_with = known.settings.calico_daemon_set();
    let reads = memory.kinds.of::<ReadCache>();
    if let Some(message) = reads.moved(context, cache, kind, datastore, begun_with).await? {
        return Ok(Err(message));
    }
    let store = reads.store(context, datastore).await;
    Ok(store.map_err(|problem| unreachable(&problem)))
}

/// The allocations of Calico's IPAM, while agents keep tunnel addresses: as recent as the next step needs them.
pub async fn ipam(
    reads: &mut ReadCache,
    cache: &Cache,
    store: &Store,
    calico_nodes: &BTreeMap<String, CalicoNode>,
    stage: Option<&CurrentStage<Stage>>,
    direction: Direction,
    look: &HostSettings,
) -> Result<SharedIpam, CalicoStoreError> {
    let switches = stage.is_some_and(|stage| stage.name == Stage::Switch || stage.direction != direction);
    if switches && adopt::any_address_returns(cache, &look.from) {
        // Before a pool opens, an earlier read of its free addresses is too old.
        reads.forget_ipam();
    }
    let found = reads.ipam(store, Pace::Counted).await?;
    let mark = PoolRole::source(direction).mark();
    if tunnel_address::is_missing(calico_nodes, mark, &found, &look.from, &look.to) {
        reads.ipam(store, Pace::Waited).await
    } else {
        Ok(found)
    }
}
