//! Reads the facts that the checks and the plan need. Changes nothing.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use api::{Migration, NodeMigration};
use engine::cluster::Malformed;
use engine::corefile;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::ResourceQuota;
use kube::ResourceExt;
use serde_json::Value;
use service_cidr::assignment::of_migration;
use service_cidr::checks::PERMISSIONS;
use service_cidr::class::Class;
use service_cidr::facts::ClusterFacts;
use service_cidr::ranges::{DEFAULT, ServiceCidr, afterwards};

use super::ReadCache;
use super::dry_run::Tried;
use super::objects::{all_ranges, all_services, api_version, server_version};
use super::quotas;
use crate::cache::Cache;
use crate::context::Context;
use crate::facts::workloads::backends;
use crate::memory::Memory;
use crate::pass_error::PassError;
use crate::read_cache::Pace;
use crate::read_error::ReadError;
use crate::{calico, facts, read, workloads};

/// Time for dry runs in one pass: ten thousand Services are thirty thousand requests.
const TRYING: Duration = Duration::from_secs(5);

/// The ranges of the default `ServiceCIDR`; none when it does not exist or is malformed.
pub async fn default_ranges(context: &Context) -> Result<Vec<IpNet>, ReadError> {
    let Some(version) = api_version(&context.client).await? else {
        return Ok(Vec::new());
    };
    let all = all_ranges(&context.client, &version).await?.unwrap_or_default();
    let default = all.into_iter().find(|range| range.name == DEFAULT);
    Ok(default.map(|range| range.ranges).unwrap_or_default())
}

/// The facts that the checks and the plan of this Migration need.
pub async fn cluster(
    context: &Context,
    cache: &Cache,
    memory: &mut Memory,
    migration: &Migration,
    node_migrations: &[Arc<NodeMigration>],
    to: &[IpNet],
) -> Result<ClusterFacts, PassError> {
    let mut malformed = Vec::new();
    let api_version = api_version(&context.client).await?;
    let ranges = ranges(context, api_version.as_deref(), &mut malformed).await?;
    let (services, name_services, webhooks, permissions, policies, workload_facts, quotas) = tokio::try_join!(
        all_services(&context.client),
        read::name_services(context),
        read::webhooks(context),
        read::permissions(context, &PERMISSIONS),
        read::policies(context),
        workloads::workloads(context, cache),
        read::each(context, "ResourceQuotas", |quota: ResourceQuota| Some(
            quotas::quota(&quota)
        )),
    )?;
    let nodes = cache.nodes.state();
    let nodes: Vec<_> = nodes.iter().map(|found| facts::nodes::node(found)).collect();
    let index = cache.pods.index();
    let mut pods = index.pods();
    pods.sort_by_name();
    let name_servers = backends(&name_services, &pods);
    let corefiles = workloads::corefiles(context, &index, &name_servers).await?;
    let domain = corefiles.iter().find_map(|(_, text)| corefile::domain(text));
    let tried = match domain {
        Some(domain) => {
            let moving = moving(&services, &ranges, to);
            let trials = &mut memory.kinds.of::<ReadCache>().trials;
            trials.ask(context, migration, domain, &moving, TRYING).await?
        }
        // Without a domain a check fails.
        None => Tried::default(),
    };
    let reports = read::reports(context, cache, node_migrations);
    malformed.sort();
    let of_ranges = ranges.iter().flat_map(|range| &range.ranges);
    let said: Vec<IpNet> = of_ranges.chain(to).copied().collect();
    Ok(ClusterFacts {
        api_version,
        server_version: server_version(&context.client).await?,
        pod_ranges: pod_ranges(context, &nodes).await?,
        ranges,
        api_servers: memory
            .kinds
            .of::<ReadCache>()
            .api_servers(context, cache, Pace::Counted)
            .await?,
        corefiles: corefiles.clone(),
        permissions,
        policies,
        malformed,
        hosts: read::from_reports(&reports, |status| status.service_cidr.clone()),
        workloads: workload_facts,
        budgets: facts::pods::budgets(&cache.budgets.state()),
        webhooks: webhooks.behind(&pods),
        name_servers,
        mentions: memory
            .kinds
            .of::<ReadCache>()
            .mentions(context, Pace::Counted, &said)
            .await?
            .to_vec(),
        quotas,
        refused: tried.refused,
        untried: tried.untried,
        untried_before: tried.untried_before,
        own_path: own_path(context),
        pods,
        services,
        nodes: nodes.into_iter().map(|node| (node.name.clone(), node)).collect(),
    })
}

async fn ranges(
    context: &Context,
    version: Option<&str>,
    malformed: &mut Vec<Malformed>,
) -> Result<Vec<ServiceCidr>, ReadError> {
    let Some(version) = version else {
        return Ok(Vec::new());
    };
    Ok(match all_ranges(&context.client, version).await? {
        Ok(ranges) => ranges,
        Err(what) => {
            malformed.push(what);
            Vec::new()
        }
    })
}

/// Services that would exchange an address at present.
fn moving<'services>(
    services: &'services [Value],
    ranges: &[ServiceCidr],
    to: &[IpNet],
) -> Vec<&'services Value> {
    let default = ranges.iter().find(|range| range.name == DEFAULT);
    let from = default.map(|range| range.ranges.clone()).unwrap_or_default();
    let after = afterwards(&from, to);
    let left: Vec<IpNet> = from.into_iter().filter(|range| !after.contains(range)).collect();
    of_migration(services)
        .filter(|service| matches!(Class::of(&service["spec"], &left), Class::Moves(_)))
        .collect()
}

/// Ranges of pods' addresses: of every Node, and of every IPPool of Calico.
async fn pod_ranges(
    context: &Context,
    nodes: &[engine::cluster::Node],
) -> Result<Vec<(String, IpNet)>, ReadError> {
    let pools = calico::IP_POOL.list(&context.client).await?;
    let of_pools = pools.iter().filter_map(|pool| {
        let range = pool.data["spec"]["cidr"].as_str()?.parse().ok()?;
        Some((format!("IPPool {}", pool.name_any()), range))
    });
    let of_nodes = nodes.iter().flat_map(|node| {
        let ranges = node.pod_cidrs.iter().filter_map(|text| text.parse().ok());
        ranges.map(|range| (format!("Node {}", node.name), range))
    });
    Ok(of_pools.chain(of_nodes).collect())
}

/// Host, or address, by which the coordinator reaches the API server.
pub fn own_path(context: &Context) -> String {
    let host = context.config.cluster_url.host().unwrap_or_default();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare.parse::<IpAddr>()
        .map_or_else(|_| host.to_owned(), |address| address.to_string())
}
