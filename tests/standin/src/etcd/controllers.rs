//! kube-controllers of v2.6 and v3.8, reduced to profiles and policies. **They never read the flag**, like Calico's:
//! they write while Calico is paused, and those of v3 create a `ClusterInformation` with v3 ready if there is none.

use std::fmt::Debug;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::ListParams;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;
use tracing::{info, warn};

use super::profiles::{Source, Wanted, reconcile};
use super::status::Status;
use super::store::Store;
use super::{of_environment, policies, startup3};
use crate::node::environment::Environment;
use crate::version::{Datastore, Generation, Played};
use crate::{datastore, log};

/// Time between two comparisons of all objects without a change, as in Calico.
const RECONCILIATION: Duration = Duration::from_mins(5);
/// After a failure.
const RETRY: Duration = Duration::from_secs(1);
/// Time between two checks of v3's readiness, as in Calico.
const HEALTH: Duration = Duration::from_secs(10);

/// Runs until a signal arrives.
pub fn main() -> ExitCode {
    log::to_standard_output("kube-controllers");
    let result = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("start a runtime")
        .and_then(|runtime| runtime.block_on(run(&Environment::of_process())));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("kube-controllers (stand-in): {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(environment: &Environment) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for signals")?;
    tokio::select! {
        result = controllers(environment) => result,
        _ = terminate.recv() => {
            info!("terminated");
            Ok(())
        }
    }
}

async fn controllers(environment: &Environment) -> Result<()> {
    let Datastore::Etcd(generation) = Played::of_program()?.datastore else {
        bail!("the stand-in plays kube-controllers only for a Calico with etcd");
    };
    let client = datastore::client(environment.kubeconfig().as_deref()).await?;
    let store: &'static Store = Box::leak(Box::new(of_environment(environment, generation).await?));
    if generation == Generation::V3 {
        startup3::ensure_initialized(store, None, "k8s").await?;
    }
    let mut running = JoinSet::new();
    for name in enabled(environment, generation) {
        let client = client.clone();
        match played(name) {
            Some(Controller::Namespaces) => drop(running.spawn(follow::<Namespace>(client, store))),
            Some(Controller::ServiceAccounts) => {
                drop(running.spawn(follow::<ServiceAccount>(client, store)));
            }
            Some(Controller::Policies) => drop(running.spawn(follow::<NetworkPolicy>(client, store))),
            None => info!("controller {name} is not played"),
        }
    }
    if generation == Generation::V3 {
        running.spawn(watch_health(client, store));
    }
    while let Some(ended) = running.join_next().await {
        ended.context("run a controller")??;
    }
    Ok(())
}

fn enabled(environment: &Environment, generation: Generation) -> Vec<&str> {
    let usual = match generation {
        Generation::V2 => "policy,profile,workloadendpoint",
        Generation::V3 => "policy,profile,workloadendpoint,node",
    };
    environment
        .get("ENABLED_CONTROLLERS")
        .unwrap_or(usual)
        .split(',')
        .collect()
}

/// The played controllers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Controller {
    Namespaces,
    ServiceAccounts,
    Policies,
}

fn played(controller: &str) -> Option<Controller> {
    match controller {
        "profile" | "namespace" => Some(Controller::Namespaces),
        "serviceaccount" => Some(Controller::ServiceAccounts),
        "policy" => Some(Controller::Policies),
        _ => None,
    }
}

/// A kind of objects that a controller follows.
trait Followed: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static {
    /// Creates the results of all of them.
    fn reconcile(store: &Store, all: &[Self]) -> impl Future<Output = Result<()>> + Send;
}

impl Followed for Namespace {
    async fn reconcile(store: &Store, all: &[Self]) -> Result<()> {
        profiles(store, Source::Namespaces, all).await
    }
}

impl Followed for ServiceAccount {
    async fn reconcile(store: &Store, all: &[Self]) -> Result<()> {
        profiles(store, Source::ServiceAccounts, all).await
    }
}

impl Followed for NetworkPolicy {
    async fn reconcile(store: &Store, all: &[Self]) -> Result<()> {
        policies::reconcile(store, all).await
    }
}

/// Creates the results of every object of a kind, at each change and after each interval.
async fn follow<K: Followed>(client: Client, store: &'static Store) -> Result<()> {
    let api: Api<K> = Api::all(client);
    let mut changes = watcher(api.clone(), watcher::Config::default().any_semantic())
        .default_backoff()
        .boxed();
    loop {
        let pause = match pass(&api, store).await {
            Ok(()) => RECONCILIATION,
            Err(error) => {
                warn!("{error:#}; retrying in {RETRY:?}");
                RETRY
            }
        };
        if let Ok(Some(Err(error))) = tokio::time::timeout(pause, changes.next()).await {
            warn!("watch every {}: {error}; retrying", K::kind(&()));
        }
    }
}

async fn pass<K: Followed>(api: &Api<K>, store: &Store) -> Result<()> {
    let all = api
        .list(&ListParams::default())
        .await
        .with_context(|| format!("list every {}", K::kind(&())))?;
    K::reconcile(store, &all.items).await
}

/// The profiles of a source.
async fn profiles<K: Resource>(store: &Store, source: Source, objects: &[K]) -> Result<()> {
    let prefix = source.prefix(store.generation);
    let mut wanted = Wanted::new();
    for object in objects {
        let name = match object.namespace() {
            Some(namespace) => format!("{prefix}{namespace}.{}", object.name_any()),
            None => format!("{prefix}{}", object.name_any()),
        };
        let labels = object.labels().iter();
        let labels =
            labels.map(|(label, value)| (format!("{}{label}", source.label_prefix()), value.clone()));
        wanted.insert(name, labels.collect());
    }
    reconcile(store, source, &wanted).await
}

/// Ready if `ClusterInformation` can be written and the API server reached, independent of the flag.
async fn watch_health(client: Client, store: &'static Store) -> Result<()> {
    let mut interval = tokio::time::interval(HEALTH);
    let mut status = Status::default();
    loop {
        interval.tick().await;
        let initialized = startup3::ensure_initialized(store, None, "k8s").await;
        status.note(
            "CalicoDatastore",
            &initialized.context("Error verifying datastore"),
        );
        let version = client.apiserver_version().await.map(drop);
        status.note("KubeAPIServer", &version.context("Error reaching apiserver"));
        status.write()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_controllers_of_profiles_and_policies_are_played() {
        let environment =
            Environment::from([("ENABLED_CONTROLLERS", "policy,namespace,serviceaccount,node")]);
        let all: Vec<Controller> = enabled(&environment, Generation::V3)
            .into_iter()
            .filter_map(played)
            .collect();
        assert_eq!(
            all,
            [
                Controller::Policies,
                Controller::Namespaces,
                Controller::ServiceAccounts
            ]
        );
        let usual = Environment::default();
        assert_eq!(
            enabled(&usual, Generation::V2),
            ["policy", "profile", "workloadendpoint"]
        );
    }
}
