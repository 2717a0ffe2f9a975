//! Fills the cluster: nodes, workloads with their pods, Services.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::{StreamExt, TryStreamExt};
use k8s_openapi::api::apps::v1::{DaemonSet, ReplicaSet};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod, Service, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{ListParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::running;
use super::shape::{self, NAMESPACES, REPLICAS, Workload};
use super::size::{Kind, Place, Size};
use crate::cluster::wait::{Observation, until};
use crate::progress::{Detail, Progress};
use crate::store::Store;

/// Number of simultaneous requests.
const AT_ONCE: usize = 32;
/// One workload in this number has a budget.
const BUDGETED: u32 = 10;
/// Other namespaces with pods, which need a `ServiceAccount` before its controller runs.
fn others(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::FlannelToCalico | Kind::ServiceCidr => &["kube-flannel", "kube-system", api::names::NAMESPACE],
        Kind::PodCidr => &["kube-system", api::names::NAMESPACE],
    }
}

/// The number of nodes that this `DaemonSet` serves before the migration.
fn expected(set: &str, size: &Size) -> i32 {
    let nodes = i32::try_from(size.nodes).unwrap_or(i32::MAX);
    match size.migration {
        // calico-node waits for the label of each Node.
        Kind::FlannelToCalico if set == "calico-node" => 0,
        Kind::FlannelToCalico | Kind::PodCidr | Kind::ServiceCidr => nodes,
    }
}

/// Fills the cluster.
pub async fn fill(client: &Client, store: Store, size: &Size, progress: &Progress) -> Result<()> {
    let detail = Detail::default();
    progress
        .during("filling the cluster", &detail, async {
            namespaces(client, size.migration).await?;
            let nodes = (0..size.nodes).map(|number| (None, shape::node(Place(number), size.migration)));
            create_all::<Node>(client, nodes, &detail, "Nodes").await?;
            workloads(client, store, size, &detail).await?;
            let workloads = workload_count(size);
            let services = (0..size.services).map(|number| {
                let service = shape::service(number, workloads);
                (namespace_of(&service), service)
            });
            create_all::<Service>(client, services, &detail, "Services").await
        })
        .await
}

/// Waits until every pod runs and every `DaemonSet` is rolled out.
pub async fn settled(
    client: &Client,
    size: &Size,
    logs: &std::path::Path,
    progress: &Progress,
) -> Result<()> {
    let limit = Duration::from_secs(300 + u64::from(size.pods) / 20 + u64::from(size.nodes) / 2);
    let work = until("every pod to run", limit, logs, async || {
        let sets = Api::<DaemonSet>::all(client.clone())
            .list(&ListParams::default())
            .await?;
        let behind = sets.items.iter().find_map(|set| {
            let status = set.status.clone().unwrap_or_default();
            let expected = expected(&set.name_any(), size);
            (status.number_ready != expected || status.desired_number_scheduled != expected).then(|| {
                format!(
                    "{}: {} of {expected} pods Ready",
                    set.name_any(),
                    status.number_ready
                )
            })
        });
        if let Some(behind) = behind {
            tokio::time::sleep(Duration::from_secs(1)).await;
            return Ok(Observation::NotYet(behind));
        }
        // Only one page is needed to estimate the total.
        let pending = ListParams::default().fields("status.phase=Pending").limit(1);
        let pods = Api::<Pod>::all(client.clone()).list_metadata(&pending).await?;
        let left = pods.metadata.remaining_item_count.unwrap_or_default();
        Ok(match pods.items.first() {
            None => untainted(client).await?,
            Some(first) => Observation::NotYet(format!(
                "pod {} is Pending, and about {left} others",
                first.name_any()
            )),
        })
    });
    progress
        .during("waiting until every pod runs", &Detail::default(), work)
        .await
}

/// Whether new pods may start on every Node: before its controller has seen a heartbeat they may not.
async fn untainted(client: &Client) -> Result<Observation<()>> {
    let nodes = Api::<Node>::all(client.clone())
        .list(&ListParams::default())
        .await?;
    let tainted = |node: &&Node| {
        let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_ref());
        taints.is_some_and(|taints| !taints.is_empty())
    };
    Ok(match nodes.items.iter().find(tainted) {
        None => Observation::Done(()),
        Some(first) => Observation::NotYet(format!("Node {} is not schedulable yet", first.name_any())),
    })
}

/// Number of workloads.
pub fn workload_count(size: &Size) -> u32 {
    size.pods.div_ceil(REPLICAS)
}

async fn namespaces(client: &Client, kind: Kind) -> Result<()> {
    for number in 0..NAMESPACES {
        let name = shape::namespace(number);
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        create::<Namespace>(client, None, namespace).await?;
        account(client, &name).await?;
    }
    for name in others(kind) {
        account(client, name).await?;
    }
    Ok(())
}

async fn account(client: &Client, namespace: &str) -> Result<()> {
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default", "namespace": namespace}});
    create::<ServiceAccount>(client, Some(namespace.to_owned()), account).await?;
    Ok(())
}

/// Workloads with running pods.
async fn workloads(client: &Client, store: Store, size: &Size, detail: &Detail) -> Result<()> {
    let sets: Vec<(Workload, u32)> = (0..workload_count(size))
        .map(|number| (Workload(number), (size.pods - number * REPLICAS).min(REPLICAS)))
        .collect();
    let budgets = sets.iter().filter(|(workload, _)| workload.0 % BUDGETED == 0);
    let budgets = budgets.map(|(workload, _)| (Some(workload.namespace()), workload.budget()));
    create_all::<PodDisruptionBudget>(client, budgets, detail, "PodDisruptionBudgets").await?;
    let total = size.pods;
    let mut made = 0;
    let mut work = std::pin::pin!(
        futures::stream::iter(sets)
            .map(|(workload, replicas)| async move {
                let namespace = Some(workload.namespace());
                let set = workload.replica_set(replicas, size.pod_shape);
                let set = create::<ReplicaSet>(client, namespace, set).await?;
                let owner = set.uid().context("read the UID of the created ReplicaSet")?;
                let first = workload.pod(&owner, 0, &Place(0).name(), size.pod_shape);
                let pattern = would_create(client, workload, first).await?;
                store
                    .create(&running::pods(workload, replicas, &pattern, size)?)
                    .await?;
                Ok::<_, anyhow::Error>(replicas)
            })
            .buffer_unordered(AT_ONCE)
    );
    while let Some(replicas) = work.try_next().await? {
        made += replicas;
        detail.set(format_args!("{made} of {total} pods"));
    }
    match size.migration {
        Kind::PodCidr => records(store, size, detail).await,
        Kind::FlannelToCalico | Kind::ServiceCidr => Ok(()),
    }
}

/// Calico's records of the pods' addresses.
async fn records(store: Store, size: &Size, detail: &Detail) -> Result<()> {
    for number in 0..size.nodes {
        store.create(&running::records(Place(number), size)?).await?;
        detail.set(format_args!(
            "addresses of the pods on {} of {} nodes",
            number + 1,
            size.nodes
        ));
    }
    Ok(())
}

/// A pod as the API server would create it.
async fn would_create(client: &Client, workload: Workload, pod: Value) -> Result<Value> {
    let what = || format!("try to create a pod of {}", workload.name());
    let pod: Pod = serde_json::from_value(pod).with_context(what)?;
    let tried = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let pods: Api<Pod> = Api::namespaced(client.clone(), &workload.namespace());
    let created = pods.create(&tried, &pod).await.with_context(what)?;
    serde_json::to_value(created).with_context(what)
}

async fn create_all<K>(
    client: &Client,
    objects: impl Iterator<Item = (Option<String>, Value)>,
    detail: &Detail,
    what: &str,
) -> Result<()>
where
    K: Made + Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    let mut work = std::pin::pin!(
        futures::stream::iter(objects)
            .map(|(namespace, object)| create::<K>(client, namespace, object))
            .buffer_unordered(AT_ONCE)
    );
    let mut made = 0_u32;
    while work.try_next().await?.is_some() {
        made += 1;
        detail.set(format_args!("{made} {what}"));
    }
    Ok(())
}

/// A kind that the lab creates, namespaced or cluster-scoped.
pub(super) trait Made: Sized {
    /// The API of the objects.
    fn api(client: &Client, namespace: Option<&str>) -> Result<Api<Self>>;
}

macro_rules! made {
    (cluster: $($kind:ty),+) => { $(impl Made for $kind {
        fn api(client: &Client, namespace: Option<&str>) -> Result<Api<Self>> {
            match namespace {
                None => Ok(Api::all(client.clone())),
                Some(namespace) => bail!("{} is cluster-scoped, but namespace {namespace} was given", Self::kind(&())),
            }
        }
    })+ };
    (namespaced: $($kind:ty),+) => { $(impl Made for $kind {
        fn api(client: &Client, namespace: Option<&str>) -> Result<Api<Self>> {
            let namespace = namespace.with_context(|| format!("{} is namespaced, but no namespace was given", Self::kind(&())))?;
            Ok(Api::namespaced(client.clone(), namespace))
        }
    })+ };
}
made!(cluster: Namespace, Node);
made!(namespaced: ServiceAccount, ReplicaSet, Pod, Service, PodDisruptionBudget, k8s_openapi::api::batch::v1::Job);

/// Creates one object.
pub(super) async fn create<K>(client: &Client, namespace: Option<String>, object: Value) -> Result<K>
where
    K: Made + Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let what = || format!("create {} {name}", K::kind(&()));
    let object: K = serde_json::from_value(object).with_context(what)?;
    K::api(client, namespace.as_deref())?
        .create(&PostParams::default(), &object)
        .await
        .with_context(what)
}

fn namespace_of(object: &Value) -> Option<String> {
    object["metadata"]["namespace"].as_str().map(str::to_owned)
}
