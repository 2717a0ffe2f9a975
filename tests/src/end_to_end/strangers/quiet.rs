//! Foreign objects that affect only decisions about themselves: an in-place migration and its rollback run as without these
//! objects.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::migration::{MigrationPhase, Strategy};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;

use super::super::{MigrationReader, Tally};
use super::named::named;
use super::objects::{self, FLOODER, NAMESPACE};
use super::put;
use crate::cluster::Cluster;
use crate::demo::Tools;
use crate::demo::flannel_to_calico::{Request, Run};
use crate::demo::watch::Watch;

const STEP: Duration = Duration::from_mins(4);
/// The pod that changes continuously, and the time between two changes.
const BUSY: &str = "busy";
const BUSY_INTERVAL: Duration = Duration::from_millis(50);

/// An in-place migration, and its rollback.
pub async fn cases(cluster: &Cluster, tools: &Tools, tally: &mut Tally) {
    let Some(run) = tally.count("strangers: begin", Run::begin(cluster, tools).await) else {
        return;
    };
    tally.count(
        "strangers: their objects exist before the migration",
        create_objects(cluster).await,
    );
    tokio::select! {
        () = there_and_back(cluster, &run, tally) => {}
        ended = change_continuously(cluster) => {
            tally.count("strangers: a pod changes continuously", ended);
        }
    }
    tally.count(
        "strangers: their objects are unchanged",
        verify_unchanged(cluster).await,
    );
}

/// Creates the objects that exist from the start.
async fn create_objects(cluster: &Cluster) -> Result<()> {
    let objects = [
        objects::namespace(),
        objects::pod_that_asks("peta-before", "cpu", "20P"),
        objects::pod_that_asks("exa", "memory", "16Ei"),
        objects::large_pod(),
        objects::pod_that_waits(BUSY),
        objects::labelled(),
        objects::crowd(),
    ];
    for object in objects {
        put(cluster, &object).await?;
    }
    Ok(())
}

async fn there_and_back(cluster: &Cluster, run: &Run<'_>, tally: &mut Tally) {
    let reader = MigrationReader::new(cluster);
    let operator = &run.scene.operator;
    let request = Request {
        strategy: Strategy::InPlace,
        spec: super::patient_with_bridge(),
        ..Request::default()
    };
    let Some(watch) = tally.count("strangers: the migration starts", run.start(&request).await) else {
        return;
    };
    for pod in ["peta-before", "exa"] {
        let words = [
            &format!("Pod {NAMESPACE}/{pod}"),
            "a quantity that the scheduler can count",
        ];
        tally.count(
            format!("strangers: named: the earlier pod {pod}"),
            named(operator, &words).await,
        );
    }
    let started = reader.until_migration("a node is being migrated", STEP, |migration| {
        let status = migration.status.as_ref();
        status.is_some_and(|status| !status.progress.working.is_empty())
    });
    if tally
        .count("strangers: a node is being migrated", started.await)
        .is_none()
    {
        return;
    }
    let appears = async |name: &str| {
        put(cluster, &objects::pod_that_asks(name, "cpu", "20P")).await?;
        named(operator, &[&format!("Pod {NAMESPACE}/{name}"), "\"20P\""]).await
    };
    tally.count(
        "strangers: named: a pod with 20P while a node is migrated",
        appears("peta-during-node").await,
    );
    let flooded = async {
        let target = flood(cluster).await?;
        named(operator, &["datagrams per second to", &target]).await
    };
    tally.count("strangers: named: a pod that floods all listeners", flooded.await);
    let mixed = reader.until_migration("every node is on Calico", STEP, |migration| {
        let status = migration.status.as_ref();
        status.is_some_and(|status| status.phase == MigrationPhase::Mixed)
    });
    tally.count("strangers: every node has both networks", mixed.await);
    let rolled_back = async {
        let reported = async {
            reader
                .until_migration("the rollback has started", STEP, |migration| {
                    let status = migration.status.as_ref();
                    status.is_some_and(|status| status.phase == MigrationPhase::RollingBack)
                })
                .await?;
            appears("peta-during-rollback").await
        };
        let (rolled_back, named) = tokio::join!(run.scene.roll_back(), reported);
        rolled_back.and(named)
    };
    tally.count(
        "strangers: named: a pod with 20P during the rollback, and everything is rolled back",
        rolled_back.await,
    );
    let harmless = async {
        let workload = format!("deployment/{FLOODER}");
        let kubectl = [
            "-n",
            NAMESPACE,
            "delete",
            &workload,
            "--cascade=foreground",
            "--wait",
        ];
        cluster.api().kubectl(&kubectl).await?;
        for pod in ["peta-before", "peta-during-node", "peta-during-rollback"] {
            let pod = [
                "-n",
                NAMESPACE,
                "delete",
                "pod",
                pod,
                "--ignore-not-found",
                "--wait",
            ];
            cluster.api().kubectl(&pod).await?;
        }
        verify_no_disruption(run, watch).await
    };
    tally.count(
        "strangers: no pod was moved, and every host is as before",
        harmless.await,
    );
}

/// Checks that the hosts are as before and no pod was moved. The flood takes processor time from the probes: losses are printed,
/// but are no fault.
async fn verify_no_disruption(run: &Run<'_>, watch: Watch) -> Result<()> {
    let report = run.report(watch).await?;
    println!("{}", report.text());
    let others: Vec<&String> = report
        .problems
        .iter()
        .filter(|problem| !problem.contains("lost probes"))
        .collect();
    ensure!(others.is_empty(), "{others:?}");
    Ok(())
}

/// Floods replumb's traffic pods, and the listeners of its agents and its coordinator. Returns the address of one of the pods, as
/// in the status.
async fn flood(cluster: &Cluster) -> Result<String> {
    let labels = format!(
        "{}={}",
        api::names::COMPONENT_LABEL,
        api::names::TRAFFIC_COMPONENT
    );
    let pods: Api<k8s_openapi::api::core::v1::Pod> =
        Api::namespaced(cluster.api().client(), api::names::NAMESPACE);
    let list = pods
        .list(&ListParams::default().labels(&labels))
        .await
        .context("list the traffic pods")?;
    let addresses: Vec<String> = list
        .iter()
        .filter(|pod| {
            pod.spec
                .as_ref()
                .is_some_and(|spec| spec.host_network != Some(true))
        })
        .filter_map(|pod| pod.status.as_ref()?.pod_ip.clone())
        .collect();
    ensure!(!addresses.is_empty(), "no traffic pod has an address yet");
    let mut hosts = Vec::new();
    for node in cluster.node_names().await {
        hosts.push(cluster.node_address(&node).await?.to_string());
    }
    put(cluster, &objects::flooder(&addresses, &hosts)).await?;
    // While its node changes the network, the pod waits.
    let workload = format!("deployment/{FLOODER}");
    cluster.api().rolled_out(&workload, NAMESPACE, STEP).await?;
    Ok(addresses[0].clone())
}

/// Changes one pod of the stranger, until dropped.
async fn change_continuously(cluster: &Cluster) -> Result<()> {
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(cluster.api().client(), NAMESPACE);
    let mut tick = tokio::time::interval(BUSY_INTERVAL);
    let mut number: u64 = 0;
    loop {
        tick.tick().await;
        number += 1;
        let patch =
            json!({ "metadata": { "annotations": { "stranger.example/number": number.to_string() } } });
        // A change may fail while the API server is busy; the next one follows soon.
        let _ = pods
            .patch(BUSY, &PatchParams::default(), &Patch::Merge(patch))
            .await;
    }
}

/// Checks that the stranger's objects still have their labels.
async fn verify_unchanged(cluster: &Cluster) -> Result<()> {
    for object in ["pod/labelled", "service/labelled", "configmap/labelled"] {
        let path = r"jsonpath={.metadata.labels.replumb\.dev/address}";
        let label = cluster
            .api()
            .kubectl(&["-n", NAMESPACE, "get", object, "-o", path])
            .await?;
        ensure!(
            label == "10.96.0.1",
            "{object}: label replumb.dev/address: found {label:?}, needed 10.96.0.1"
        );
    }
    Ok(())
}
