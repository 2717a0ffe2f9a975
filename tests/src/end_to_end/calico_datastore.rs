//! A migration of Calico's datastore from etcd v2 to v3 in a cluster: the refusals, the rollback from each stage, on request and
//! at the end of the pause, and the whole migration while the coordinator is killed.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use api::Migration;
use api::migration::MigrationPhase;
use calico_datastore::cluster::step::Stage;
use serde_json::json;

use super::coordinator::kill_coordinator;
use super::{MigrationReader, Tally};
use crate::cluster::Cluster;
use crate::demo::calico_datastore::cases::CASES;
use crate::demo::calico_datastore::stores::Etcd;
use crate::demo::calico_datastore::{Request, Run, late, manifest, prepare, refuse};
use crate::demo::operator::{Exit, Operator};
use crate::demo::{End, Tools, breaking};

const STEP: Duration = Duration::from_mins(5);
/// A policy that refuses each start of the controllers. Writes that start no pod are allowed.
const NO_CONTROLLERS: &str = "
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: { name: no-controllers }
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules: [{ apiGroups: [apps], apiVersions: [v1], operations: [UPDATE], resources: [deployments] }]
  validations:
    - expression: object.metadata.name != 'calico-kube-controllers' || object.spec.replicas <= oldObject.spec.replicas
      message: the controllers must not start
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: { name: no-controllers }
spec: { policyName: no-controllers, validationActions: [Deny] }
";
/// The policy's message.
const NO_CONTROLLERS_MESSAGE: &str = "the controllers must not start";
/// A request for one more replica of the controllers.
const MORE_CONTROLLERS: [&str; 8] = [
    "patch",
    "deployment",
    "calico-kube-controllers",
    "-n",
    "kube-system",
    "--dry-run=server",
    "-p",
    r#"{"spec":{"replicas":2}}"#,
];
/// The permissions of the controllers, of v2 and of v3.
const PERMISSIONS: &str = "clusterrole/calico-kube-controllers";
/// The shortest `pauseLimitSeconds`.
const SHORTEST_PAUSE: u32 = 60;

/// Every case.
pub async fn calico_datastore(cluster: &Cluster, tools: &Tools) -> Tally {
    let operator = Operator::new(cluster, &tools.command_line);
    let mut tally = Tally::default();
    let prepared = prepare(cluster, &operator).await;
    if tally
        .count(
            "calico-datastore: the user's steps before the migration",
            prepared,
        )
        .is_none()
    {
        return tally;
    }
    for case in CASES {
        let result = refuse(cluster, &operator, case).await;
        tally.count(format!("calico-datastore: refused: {}", case.name), result);
    }
    for stage in [Stage::Prepare, Stage::Convert] {
        tally.count(
            format!("calico-datastore: rolled back from stage {}", stage.as_str()),
            roll_back_from(cluster, tools, stage).await,
        );
    }
    tally.count(
        "calico-datastore: rolled back from stage Controllers, in which the API server refuses writes of the controllers",
        roll_back_after_refusal(cluster, tools).await,
    );
    tally.count(
        "calico-datastore: controllers without permissions are named, and the end of the pause rolls a paused migration back",
        roll_back_at_deadline(cluster, tools).await,
    );
    tally.count(
        "calico-datastore: rolled back after a node has changed, everything is as before, and no loss",
        there_and_back(cluster, tools).await,
    );
    tally.count(
        "calico-datastore: the whole migration without loss or restart of a pod, with two kills of the coordinator",
        whole(cluster, tools).await,
    );
    tally
}

/// Starts a migration and rolls it back as soon as it is in this stage, or a later one.
async fn roll_back_from(cluster: &Cluster, tools: &Tools, stage: Stage) -> Result<()> {
    let operator = Operator::new(cluster, &tools.command_line);
    let reader = MigrationReader::new(cluster);
    begin(cluster, &operator, &Request::new(End::RolledBack)).await?;
    reader
        .until_migration(&format!("stage {}", stage.as_str()), STEP, |migration| {
            stage_of(migration) >= Some(stage)
        })
        .await?;
    operator
        .expect_within(Exit::Done, &["rollback", "--all", "--yes", "--wait"], STEP)
        .await?;
    verify_rolled_back(cluster, &reader).await
}

/// Refuses the start of the controllers, after every node has changed, and rolls back.
async fn roll_back_after_refusal(cluster: &Cluster, tools: &Tools) -> Result<()> {
    let operator = Operator::new(cluster, &tools.command_line);
    let reader = MigrationReader::new(cluster);
    cluster.api().apply(NO_CONTROLLERS).await?;
    breaking::until_refused(cluster, &MORE_CONTROLLERS, NO_CONTROLLERS_MESSAGE).await?;
    begin(cluster, &operator, &Request::new(End::RolledBack)).await?;
    reader
        .until_migration("the controllers are refused", STEP, |migration| {
            let status = migration.status.clone().unwrap_or_default();
            let is_refused = status.message.contains(NO_CONTROLLERS_MESSAGE);
            stage_of(migration) == Some(Stage::Controllers) && status.reason == "CheckFailing" && is_refused
        })
        .await?;
    operator
        .expect(Exit::Done, &["rollback", "--all", "--yes"])
        .await?;
    reader
        .until_migration(
            "every node uses v2 again, and the controllers do not run",
            STEP,
            |migration| {
                let status = migration.status.clone().unwrap_or_default();
                status.phase == MigrationPhase::RollingBack && status.reason == "CheckFailing"
            },
        )
        .await?;
    delete_policy(cluster).await?;
    reader
        .until_migration("the migration is rolled back", STEP, |migration| {
            let status = migration.status.as_ref();
            status.is_some_and(|status| status.phase == MigrationPhase::RolledBack)
        })
        .await?;
    verify_rolled_back(cluster, &reader).await
}

async fn delete_policy(cluster: &Cluster) -> Result<()> {
    for kind in ["validatingadmissionpolicybinding", "validatingadmissionpolicy"] {
        cluster.api().kubectl(&["delete", kind, "no-controllers"]).await?;
    }
    Ok(())
}

fn stage_of(migration: &Migration) -> Option<Stage> {
    let known = migration.status.as_ref()?.calico_datastore.as_ref()?;
    known.stage.as_ref().map(|stage| stage.name)
}

/// Runs the controllers of v3 without permissions: these write nothing. The user pauses the migration and does not resume it.
async fn roll_back_at_deadline(cluster: &Cluster, tools: &Tools) -> Result<()> {
    let operator = Operator::new(cluster, &tools.command_line);
    let reader = MigrationReader::new(cluster);
    let request = Request {
        end: End::RolledBack,
        // Every node at the same time: otherwise the plan refuses this short pause.
        spec: json!({ "calicoDatastore": { "pauseLimitSeconds": SHORTEST_PAUSE }, "rollout": { "maxUnavailable": 3 } }),
        kills: 0,
    };
    begin(cluster, &operator, &request).await?;
    reader
        .until_migration("Calico is paused", STEP, |migration| {
            let known = migration
                .status
                .as_ref()
                .and_then(|status| status.calico_datastore.as_ref());
            known.is_some_and(|known| known.paused_since.is_some())
        })
        .await?;
    let api = cluster.api();
    let rules = api
        .kubectl(&["get", PERMISSIONS, "-o", "jsonpath={.rules}"])
        .await?;
    set_permissions(cluster, "[]").await?;
    let rolled_back = until_deadline(&operator, &reader).await;
    // The controllers of v2 need the permissions for the rollback.
    set_permissions(cluster, &rules).await?;
    rolled_back?;
    let migration = reader
        .until_migration("the migration is rolled back", STEP, |migration| {
            migration
                .status
                .as_ref()
                .is_some_and(|status| status.phase == MigrationPhase::RolledBack)
        })
        .await?;
    let status = migration.status.context("the Migration has no status")?;
    let why = status.calico_datastore.and_then(|known| known.automatic_rollback);
    let why = why.context("the status has no reason of the rollback")?.reason;
    ensure!(why.contains("the pause had to end by"), "the reason is {why:?}");
    ensure!(
        status.message.contains(&why),
        "the message is {:?}",
        status.message
    );
    verify_rolled_back(cluster, &reader).await
}

/// Waits until the missing objects are named, pauses the migration, and waits for the rollback at the deadline.
async fn until_deadline(operator: &Operator, reader: &MigrationReader) -> Result<()> {
    reader
        .until_migration("the migration waits for the controllers", STEP, |migration| {
            let status = migration.status.clone().unwrap_or_default();
            status.reason == "CalicoControllers" && status.message.contains("not yet written to etcd v3: ")
        })
        .await?;
    operator.expect(Exit::Done, &["pause"]).await?;
    reader
        .until_migration("the rollback starts", STEP, |migration| {
            let phase = migration.status.as_ref().map(|status| status.phase);
            matches!(
                phase,
                Some(MigrationPhase::RollingBack | MigrationPhase::RolledBack)
            )
        })
        .await?;
    Ok(())
}

/// Sets the permissions of the controllers to these rules, as JSON.
async fn set_permissions(cluster: &Cluster, rules: &str) -> Result<()> {
    let change = format!(r#"[{{"op":"replace","path":"/rules","value":{rules}}}]"#);
    let patch = ["patch", PERMISSIONS, "--type=json", "--patch", &change];
    cluster.api().kubectl(&patch).await.map(|_| ())
}

/// Checks that etcd v3 is empty, that pods start, and that the Migration is rolled back.
async fn verify_rolled_back(cluster: &Cluster, reader: &MigrationReader) -> Result<()> {
    let etcd = Etcd::of(cluster).await?;
    let remaining = etcd.v3().await?;
    let first = remaining.keys().next();
    ensure!(
        remaining.is_empty(),
        "keys remaining in etcd v3: {}, first: {first:?}",
        remaining.len()
    );
    cluster
        .api()
        .kubectl(&["-n", "sample", "rollout", "restart", "deployment/web"])
        .await?;
    cluster.api().rolled_out("deployment/web", "sample", STEP).await?;
    let migration = reader.migration().await?;
    let phase = migration.status.map(|status| status.phase);
    ensure!(
        phase == Some(MigrationPhase::RolledBack),
        "phase of the migration: found {phase:?}, needed RolledBack"
    );
    breaking::delete_migration(cluster).await
}

/// Starts a migration. A refused Migration of an earlier case is deleted before, so that each case fails alone.
async fn begin(cluster: &Cluster, operator: &Operator, request: &Request) -> Result<()> {
    breaking::delete_migration(cluster).await?;
    let file = operator.write_manifest(&manifest(cluster, request).await?)?;
    let apply = ["apply", "--filename", &file.to_string_lossy(), "--yes"];
    operator.expect(Exit::Done, &apply).await.map(|_| ())
}

async fn there_and_back(cluster: &Cluster, tools: &Tools) -> Result<()> {
    breaking::delete_migration(cluster).await?;
    crate::demo::traffic::replace_probers(cluster).await?;
    let run = Run::begin(cluster, tools, Request::new(End::RolledBack)).await?;
    let late = run.migrate().await?;
    let report = run.report_so_far(late).await?;
    println!("{}", report.text());
    ensure!(report.problems.is_empty(), "{}", report.problems.join("; "));
    late::delete_created(cluster).await?;
    breaking::delete_migration(cluster).await
}

async fn whole(cluster: &Cluster, tools: &Tools) -> Result<()> {
    breaking::delete_migration(cluster).await?;
    crate::demo::traffic::replace_probers(cluster).await?;
    let stages = [Stage::Convert, Stage::Nodes];
    let request = Request {
        kills: stages.len().try_into()?,
        ..Request::new(End::Migrated)
    };
    let run = Run::begin(cluster, tools, request).await?;
    let reader = MigrationReader::new(cluster);
    let killed = async {
        for stage in stages {
            reader
                .until_migration(&format!("stage {}", stage.as_str()), STEP, |migration| {
                    stage_of(migration) >= Some(stage)
                })
                .await?;
            kill_coordinator(cluster, &reader).await?;
        }
        anyhow::Ok(())
    };
    let (late, ()) = tokio::try_join!(run.migrate(), killed)?;
    let report = run.report(late).await?;
    println!("{}", report.text());
    ensure!(report.problems.is_empty(), "{}", report.problems.join("; "));
    Ok(())
}
