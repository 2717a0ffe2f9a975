//! Reads of workloads before pods are evicted for any reason.

use std::collections::{BTreeMap, BTreeSet};

use api::MigrationStatus;
use engine::decision::WaitReason;
use engine::moves::{Workload, WorkloadFacts};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet, StatefulSet};

use crate::cache::Cache;
use crate::context::Context;
use crate::pod_index::Index;
use crate::read_error::ReadError;
use crate::waits::wait;
use crate::{facts, read};

/// Every workload that recreates pods, read for the checks. While pods move, watches deliver them: [`Cache::workloads`].
pub async fn workloads(
    context: &Context,
    cache: &Cache,
) -> Result<BTreeMap<Workload, WorkloadFacts>, ReadError> {
    let deployment = |object: Deployment| Some(facts::workloads::deployment(&object));
    let stateful_set = |object: StatefulSet| Some(facts::workloads::stateful_set(&object));
    let replica_set = |object: ReplicaSet| {
        let (workload, facts) = facts::workloads::replica_set(&object);
        facts.map(|facts| (workload, facts))
    };
    let (deployments, stateful_sets, replica_sets) = tokio::try_join!(
        read::each(context, "Deployments", deployment),
        read::each(context, "StatefulSets", stateful_set),
        read::each(context, "ReplicaSets", replica_set),
    )?;
    let others = deployments.into_iter().chain(stateful_sets).chain(replica_sets);
    Ok(others.chain(cache.of_daemon_sets()).collect())
}

/// Every workload that recreates pods, from the watches. If their lists are incomplete, the status says so.
pub async fn watched(
    context: &Context,
    cache: &Cache,
    status: &mut MigrationStatus,
) -> Option<BTreeMap<Workload, WorkloadFacts>> {
    let workloads = cache.workloads(&context.watching).await;
    if workloads.is_none() {
        let message = "Deployments, ReplicaSets and StatefulSets are not known yet: their lists are incomplete. The coordinator \
                       needs the right to watch them (deploy/base)";
        wait(status, WaitReason::RequestRefused, message.to_owned());
    }
    workloads
}

/// The Corefiles of these name servers.
pub async fn corefiles(
    context: &Context,
    pods: &Index,
    name_servers: &BTreeSet<(String, String)>,
) -> Result<Vec<(String, String)>, ReadError> {
    let of_name_servers = pods.more().filter(|(name, _)| name_servers.contains(name));
    let maps = read::config_maps(context, facts::name_servers::mounted_config_maps(of_name_servers)).await?;
    Ok(maps.iter().filter_map(facts::name_servers::corefile).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_api::FakeApi;
    use crate::workload_store::WorkloadStore;

    #[tokio::test(start_paused = true)]
    async fn missing_lists_are_waited_for_and_reported() {
        let api = FakeApi::default();
        api.deny_reading("/apis/apps/v1/deployments", "no right to watch");
        let mut stores = (*api.cache()).clone();
        stores.workloads = WorkloadStore::default();
        let mut status = MigrationStatus::default();
        assert_eq!(
            watched(&api.context(), &Cache::of(stores), &mut status).await,
            None
        );
        assert_eq!(status.reason, "RequestRefused");
        assert!(
            status.message.contains("right to watch them"),
            "{}",
            status.message
        );
        let mut status = MigrationStatus::default();
        let found = watched(&api.context(), &api.cache(), &mut status).await;
        assert_eq!((found, status.message.as_str()), (Some(BTreeMap::new()), ""));
    }
}
