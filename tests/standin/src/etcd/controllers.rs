//! kube-controllers of v2.6 and v3.8, as far as they make profiles. **They never look at the flag**, here as there: they
//! write while Calico is paused, and those of v3 make a `ClusterInformation` that says that v3 is ready when there is none.

use std::fmt::Debug;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
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
use super::{of_environment, startup3};
use crate::node::environment::Environment;
use crate::version::{Datastore, Generation, Played};
use crate::{datastore, log};

/// How often everything is compared when nothing has changed, as in Calico.
const RECONCILIATION: Duration = Duration::from_mins(5);
/// After a failure.
const RETRY: Duration = Duration::from_secs(1);
/// How often v3 looks whether it is ready, as in Calico.
const HEALTH: Duration = Duration::from_secs(10);

/// Runs until a signal.
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
        bail!("the stand-in plays kube-controllers only of a Calico with etcd");
    };
    let client = datastore::client(environment.kubeconfig().as_deref()).await?;
    let store: &'static Store = Box::leak(Box::new(of_environment(environment, generation).await?));
    if generation == Generation::V3 {
        startup3::ensure_initialized(store, None, "k8s").await?;
    }
    let mut running = JoinSet::new();
    for name in enabled(environment, generation) {
        match source(name) {
            Some(Source::Namespaces) => {
                running.spawn(follow::<Namespace>(client.clone(), store, Source::Namespaces));
            }
            Some(Source::ServiceAccounts) => {
                running.spawn(follow::<ServiceAccount>(
                    client.clone(),
                    store,
                    Source::ServiceAccounts,
                ));
            }
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

fn source(controller: &str) -> Option<Source> {
    match controller {
        "profile" | "namespace" => Some(Source::Namespaces),
        "serviceaccount" => Some(Source::ServiceAccounts),
        _ => None,
    }
}

/// Makes the profiles of every object of a kind, at each change and after each while.
async fn follow<K>(client: Client, store: &'static Store, source: Source) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
{
    let api: Api<K> = Api::all(client);
    let mut changes = watcher(api.clone(), watcher::Config::default().any_semantic())
        .default_backoff()
        .boxed();
    loop {
        let pause = match pass(&api, store, source).await {
            Ok(()) => RECONCILIATION,
            Err(error) => {
                warn!("{error:#}; trying again in {RETRY:?}");
                RETRY
            }
        };
        if let Ok(Some(Err(error))) = tokio::time::timeout(pause, changes.next()).await {
            warn!("watch every {}: {error}; trying again", K::kind(&()));
        }
    }
}

async fn pass<K>(api: &Api<K>, store: &Store, source: Source) -> Result<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let objects = api
        .list(&ListParams::default())
        .await
        .with_context(|| format!("list every {}", K::kind(&())))?;
    let prefix = source.prefix(store.generation);
    let mut wanted = Wanted::new();
    for object in &objects.items {
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

/// Ready is who can write `ClusterInformation` and reach the API server, whatever the flag says.
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
    fn only_controllers_that_make_profiles_are_played() {
        let environment =
            Environment::from([("ENABLED_CONTROLLERS", "policy,namespace,serviceaccount,node")]);
        let played: Vec<Source> = enabled(&environment, Generation::V3)
            .into_iter()
            .filter_map(source)
            .collect();
        assert_eq!(played, [Source::Namespaces, Source::ServiceAccounts]);
        let usual = Environment::default();
        assert_eq!(
            enabled(&usual, Generation::V2),
            ["policy", "profile", "workloadendpoint"]
        );
    }
}
