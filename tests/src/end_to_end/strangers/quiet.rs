//! Strangers that cost nothing but decisions about themselves: the migration goes there in place and back as if they were not there.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::migration::{MigrationPhase, Strategy};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;

use super::super::fair::start;
use super::super::{Looker, Tally};
use super::named::named;
use super::objects::{self, FLOODER, NAMESPACE};
use super::put;
use crate::cluster::Cluster;
use crate::demo::Tools;
use crate::demo::flannel_to_calico::{Run, Wanted};
use crate::demo::watch::Watch;

const STEP: Duration = Duration::from_mins(4);
/// The pod that changes all the time, and how often.
const BUSY: &str = "busy";
const BUSY_INTERVAL: Duration = Duration::from_millis(50);

/// There, in place, and back.
pub async fn cases(cluster: &Cluster, tools: &Tools, tally: &mut Tally) {
    let Some(run) = tally.count("strangers: begin", Run::begin(cluster, tools).await) else {
        return;
    };
    tally.count(
        "strangers: they are there before the migration",
        before(cluster).await,
    );
    tokio::select! {
        () = there_and_back(cluster, &run, tally) => {}
        ended = change_without_pause(cluster) => {
            tally.count("strangers: a pod changes all the time", ended);
        }
    }
    tally.count(
        "strangers: what they have is as they left it",
        left_alone(cluster).await,
    );
}

/// Puts those that are there from the start.
async fn before(cluster: &Cluster) -> Result<()> {
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
    let look = Looker::new(cluster);
    let operator = &run.scene.operator;
    let wanted = Wanted {
        strategy: Strategy::InPlace,
        spec: super::patient_gates(),
        ..Wanted::default()
    };
    let Some(watch) = tally.count("strangers: the migration begins", start(run, &wanted).await) else {
        return;
    };
    for pod in ["peta-before", "exa"] {
        let words = [
            &format!("Pod {NAMESPACE}/{pod}"),
            "a quantity that the scheduler can count",
        ];
        tally.count(
            format!("strangers: named: pod {pod} from before"),
            named(operator, &words).await,
        );
    }
    let begun = look.until_migration("a node is in work", STEP, |migration| {
        let status = migration.status.as_ref();
        status.is_some_and(|status| !status.progress.working.is_empty())
    });
    if tally.count("strangers: a node is in work", begun.await).is_none() {
        return;
    }
    let appears = async |name: &str| {
        put(cluster, &objects::pod_that_asks(name, "cpu", "20P")).await?;
        named(operator, &[&format!("Pod {NAMESPACE}/{name}"), "\"20P\""]).await
    };
    tally.count(
        "strangers: named: a pod with 20P in mid-node",
        appears("peta-in-mid-node").await,
    );
    let flooded = async {
        let target = flood(cluster).await?;
        named(operator, &["datagrams per second to", &target]).await
    };
    tally.count(
        "strangers: named: a pod that floods every listener",
        flooded.await,
    );
    let mixed = look.until_migration("every node has Calico", STEP, |migration| {
        let status = migration.status.as_ref();
        status.is_some_and(|status| status.phase == MigrationPhase::Mixed)
    });
    tally.count("strangers: every node has both networks", mixed.await);
    let back = async {
        let began = async {
            look.until_migration("the way back has begun", STEP, |migration| {
                let status = migration.status.as_ref();
                status.is_some_and(|status| status.phase == MigrationPhase::RollingBack)
            })
            .await?;
            appears("peta-in-mid-rollback").await
        };
        let (rolled_back, named) = tokio::join!(run.scene.roll_back(), began);
        rolled_back.and(named)
    };
    tally.count(
        "strangers: named: a pod with 20P in mid-rollback, and everything is taken back",
        back.await,
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
        for pod in ["peta-before", "peta-in-mid-node", "peta-in-mid-rollback"] {
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
        no_harm(run, watch).await
    };
    tally.count(
        "strangers: no pod was moved, and every host is as it was",
        harmless.await,
    );
}

/// The hosts are as they were, and no pod was moved. The flood takes processor time from the probes: what is lost is printed and not judged.
async fn no_harm(run: &Run<'_>, watch: Watch) -> Result<()> {
    let report = run.report(watch).await?;
    println!("{}", report.text());
    let others: Vec<&String> = report
        .problems
        .iter()
        .filter(|problem| !problem.contains("probes were lost"))
        .collect();
    ensure!(others.is_empty(), "{others:?}");
    Ok(())
}

/// Floods the pods that replumb proves paths with, and the listeners of its agents and its coordinator. Returns what the status calls one of
/// the pods.
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
    // While its node is swapped the pod waits.
    let workload = format!("deployment/{FLOODER}");
    cluster.api().rolled_out(&workload, NAMESPACE, STEP).await?;
    Ok(addresses[0].clone())
}

/// Changes one pod of the stranger's for ever.
async fn change_without_pause(cluster: &Cluster) -> Result<()> {
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(cluster.api().client(), NAMESPACE);
    let mut tick = tokio::time::interval(BUSY_INTERVAL);
    let mut number: u64 = 0;
    loop {
        tick.tick().await;
        number += 1;
        let patch =
            json!({ "metadata": { "annotations": { "stranger.example/number": number.to_string() } } });
        // Once in a while the API server is busy; the next change comes soon.
        let _ = pods
            .patch(BUSY, &PatchParams::default(), &Patch::Merge(patch))
            .await;
    }
}

/// Labels and objects that were the stranger's are there still.
async fn left_alone(cluster: &Cluster) -> Result<()> {
    for object in ["pod/labelled", "service/labelled", "configmap/labelled"] {
        let path = r"jsonpath={.metadata.labels.replumb\.dev/address}";
        let said = cluster
            .api()
            .kubectl(&["-n", NAMESPACE, "get", object, "-o", path])
            .await?;
        ensure!(
            said == "10.96.0.1",
            "{object} has another label than before: {said:?}"
        );
    }
    Ok(())
}
