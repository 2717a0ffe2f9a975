//! A migration without disturbances, and the conditions that must hold all the time.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use api::migration::MigrationPhase;
use kube::ResourceExt;

use super::in_place::check_no_disruption;
use super::migration_reader::MigrationReader;
use super::{Tally, metrics};
use crate::cluster::Cluster;
use crate::demo::Tools;
use crate::demo::flannel_to_calico::report::Report;
use crate::demo::flannel_to_calico::{Request, Run};

const STEP: Duration = Duration::from_mins(5);
const WHOLE: Duration = Duration::from_mins(20);

/// Migrates one node at a time. The user has cordoned one node, a second Migration is created, and both endpoints are scraped.
pub async fn fair(cluster: &Cluster, tools: &Tools) -> Tally {
    let mut tally = Tally::default();
    let Some(run) = tally.count("fair: begin", Run::begin(cluster, tools).await) else {
        return tally;
    };
    let reader = MigrationReader::new(cluster);
    let cordoned = "lab-worker-1";
    tally.count(
        "fair: the user cordons a node",
        cluster.api().kubectl(&["cordon", cordoned]).await,
    );
    let Some(watch) = tally.count("fair: start", run.start(&Request::default()).await) else {
        return tally;
    };
    let scraped = async {
        reader
            .until_migration("nodes are being migrated", STEP, |migration| {
                migration
                    .status
                    .as_ref()
                    .is_some_and(|status| !status.progress.working.is_empty())
            })
            .await?;
        let (_, node, _) = reader.coordinator().await?;
        metrics::verify_both(cluster, &node).await
    };
    tally.count("fair: the metrics of both endpoints pass promlint", scraped.await);
    tally.count(
        "fair: a second Migration is refused",
        second_is_refused(cluster).await,
    );
    let completed = reader
        .until_migration("the Migration is completed", WHOLE, is_completed)
        .await;
    if tally.count("fair: completed", completed).is_none() {
        return tally;
    }
    tally.count(
        "fair: the node that the user cordoned stays cordoned",
        is_cordoned(&reader, cordoned).await,
    );
    let report = async {
        let report = run.report(watch).await?;
        println!("{}", report.text());
        judge(&report, 2)?;
        // The user's cordon counts as one unavailable node all the time.
        Ok(())
    };
    tally.count(
        "fair: nothing of flannel remains, and no foreign entry has changed",
        report.await,
    );
    tally
}

/// Migrates five nodes, two at a time.
pub async fn wide(cluster: &Cluster, tools: &Tools) -> Tally {
    let mut tally = Tally::default();
    let whole = async {
        let run = Run::begin(cluster, tools).await?;
        let request = Request {
            max_unavailable: "2".to_owned(),
            ..Request::default()
        };
        let watch = run.migrate(&request).await?;
        let report = run.report(watch).await?;
        println!("{}", report.text());
        judge(&report, 2)
    };
    tally.count(
        "wide: of five nodes at most two are unavailable at the same time",
        whole.await,
    );
    tally
}

/// Whether the Migration is completed.
pub fn is_completed(migration: &api::Migration) -> bool {
    migration
        .status
        .as_ref()
        .is_some_and(|status| status.phase == MigrationPhase::Completed)
}

fn judge(report: &Report, most: usize) -> Result<()> {
    check_no_disruption(report, &[])?;
    let unavailable = report
        .migration
        .most_unavailable
        .context("the report has no number of unavailable nodes")?;
    ensure!(
        unavailable <= most,
        "nodes unavailable at the same time: found {unavailable}, needed at most {most}"
    );
    ensure!(
        report.probes.unfinished.is_empty(),
        "probers without a last report: {}",
        report.probes.unfinished.join(", ")
    );
    Ok(())
}

/// Checks that the Node is cordoned, and that the cordon is not one of replumb.
pub async fn is_cordoned(reader: &MigrationReader, node: &str) -> Result<()> {
    let found = reader.node(node).await?;
    ensure!(
        found.spec.as_ref().and_then(|spec| spec.unschedulable) == Some(true),
        "Node {node} is not cordoned"
    );
    ensure!(
        !found
            .annotations()
            .contains_key(api::names::CORDONED_BY_ANNOTATION),
        "Node {node} has the annotation of a cordon by replumb"
    );
    Ok(())
}

async fn second_is_refused(cluster: &Cluster) -> Result<()> {
    let second = serde_json::json!({
        "apiVersion": "replumb.dev/v1alpha1", "kind": "Migration", "metadata": { "name": "second" },
        "spec": { "flannelToCalico": {}, "desired": "Run" },
    });
    cluster.api().apply(&second.to_string()).await?;
    let api: kube::Api<api::Migration> = kube::Api::all(cluster.api().client());
    let logs = cluster.directory().logs();
    let refused = crate::cluster::wait::until("the second Migration is refused", STEP, &logs, async || {
        let status = api.get("second").await?.status.unwrap_or_default();
        Ok(if status.phase == MigrationPhase::Refused {
            crate::cluster::wait::Observation::Done(status)
        } else {
            crate::cluster::wait::Observation::NotYet(format!("{:?}: {}", status.phase, status.message))
        })
    })
    .await?;
    ensure!(
        refused.message.contains(crate::demo::MIGRATION),
        "the refusal does not name the first Migration: {}",
        refused.message
    );
    cluster
        .api()
        .kubectl(&["delete", "migrations.replumb.dev", "second"])
        .await
        .context("delete the second Migration")?;
    Ok(())
}
