//! Calico's datastore from v2 to v3 in a cluster: what is refused, the way back from each stage, by hand and by itself, and the whole way
//! while the coordinator is killed.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use api::Migration;
use api::migration::MigrationPhase;
use calico_datastore::cluster::step::Stage;
use serde_json::json;

use super::coordinator::kill_coordinator;
use super::{Looker, Tally};
use crate::cluster::Cluster;
use crate::demo::calico_datastore::cases::CASES;
use crate::demo::calico_datastore::stores::Etcd;
use crate::demo::calico_datastore::{Run, Wanted, late, manifest, prepare, refuse};
use crate::demo::operator::{Exit, Operator};
use crate::demo::{End, Tools, breaking};

const STEP: Duration = Duration::from_mins(5);
/// Whoever starts the controllers is refused. What writes them and starts none is not.
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
      message: nobody starts the controllers
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: { name: no-controllers }
spec: { policyName: no-controllers, validationActions: [Deny] }
";
/// What it says.
const NO_CONTROLLERS_SAYS: &str = "nobody starts the controllers";
/// One more of the controllers than there are.
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
/// What the controllers, of v2 and of v3, may do.
const RIGHTS: &str = "clusterrole/calico-kube-controllers";
/// The shortest pause that can be asked for, in seconds.
const SHORT: u32 = 60;

/// Every case.
pub async fn calico_datastore(cluster: &Cluster, tools: &Tools) -> Tally {
    let operator = Operator::new(cluster, &tools.command_line);
    let mut tally = Tally::default();
    let prepared = prepare(cluster, &operator).await;
    if tally
        .count("calico-datastore: what a person does before", prepared)
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
            format!("calico-datastore: taken back from stage {}", stage.as_str()),
            back_from(cluster, tools, stage).await,
        );
    }
    tally.count(
        "calico-datastore: taken back from stage Controllers, where the API server refuses to write them",
        refused_and_back(cluster, tools).await,
    );
    tally.count(
        "calico-datastore: controllers that may write nothing are named, and taken back by the end of the pause, though somebody has stopped the migration",
        by_itself(cluster, tools).await,
    );
    tally.count(
        "calico-datastore: taken back when a node has changed, everything is as before, and nothing was lost",
        there_and_back(cluster, tools).await,
    );
    tally.count(
        "calico-datastore: the whole way, nothing was lost and nobody started again, though the coordinator is killed twice",
        whole(cluster, tools).await,
    );
    tally
}

/// Starts it and takes it back as soon as this stage is seen, or the one after it.
async fn back_from(cluster: &Cluster, tools: &Tools, stage: Stage) -> Result<()> {
    let operator = Operator::new(cluster, &tools.command_line);
    let look = Looker::new(cluster);
    begin(cluster, &operator, &Wanted::new(End::RolledBack)).await?;
    look.until_migration(&format!("stage {}", stage.as_str()), STEP, |migration| {
        stage_of(migration) >= Some(stage)
    })
    .await?;
    operator
        .expect_within(Exit::Done, &["rollback", "--all", "--yes", "--wait"], STEP)
        .await?;
    as_before(cluster, &look).await
}

/// Nobody may start the controllers: every node has changed by then.
async fn refused_and_back(cluster: &Cluster, tools: &Tools) -> Result<()> {
    let operator = Operator::new(cluster, &tools.command_line);
    let look = Looker::new(cluster);
    cluster.api().apply(NO_CONTROLLERS).await?;
    breaking::until_refused(cluster, &MORE_CONTROLLERS, NO_CONTROLLERS_SAYS).await?;
    begin(cluster, &operator, &Wanted::new(End::RolledBack)).await?;
    look.until_migration("the controllers are refused", STEP, |migration| {
        let status = migration.status.clone().unwrap_or_default();
        let is_refused = status.message.contains(NO_CONTROLLERS_SAYS);
        stage_of(migration) == Some(Stage::Controllers) && status.reason == "CheckFailing" && is_refused
    })
    .await?;
    operator
        .expect(Exit::Done, &["rollback", "--all", "--yes"])
        .await?;
    look.until_migration(
        "every node is of v2 again, but for the controllers",
        STEP,
        |migration| {
            let status = migration.status.clone().unwrap_or_default();
            status.phase == MigrationPhase::RollingBack && status.reason == "CheckFailing"
        },
    )
    .await?;
    delete(cluster).await?;
    look.until_migration("it is taken back", STEP, |migration| {
        let status = migration.status.as_ref();
        status.is_some_and(|status| status.phase == MigrationPhase::RolledBack)
    })
    .await?;
    as_before(cluster, &look).await
}

async fn delete(cluster: &Cluster) -> Result<()> {
    for kind in ["validatingadmissionpolicybinding", "validatingadmissionpolicy"] {
        cluster.api().kubectl(&["delete", kind, "no-controllers"]).await?;
    }
    Ok(())
}

fn stage_of(migration: &Migration) -> Option<Stage> {
    let known = migration.status.as_ref()?.calico_datastore.as_ref()?;
    known.stage.as_ref().map(|stage| stage.name)
}

/// The controllers of v3 run and may read nothing, so they write nothing. Somebody pauses the migration meanwhile, and goes to bed.
async fn by_itself(cluster: &Cluster, tools: &Tools) -> Result<()> {
    let operator = Operator::new(cluster, &tools.command_line);
    let look = Looker::new(cluster);
    let wanted = Wanted {
        end: End::RolledBack,
        // Every node at once, or the plan refuses so short a pause.
        spec: json!({ "calicoDatastore": { "pauseLimitSeconds": SHORT }, "rollout": { "maxUnavailable": 3 } }),
        kills: 0,
    };
    begin(cluster, &operator, &wanted).await?;
    look.until_migration("Calico is paused", STEP, |migration| {
        let known = migration
            .status
            .as_ref()
            .and_then(|status| status.calico_datastore.as_ref());
        known.is_some_and(|known| known.paused_since.is_some())
    })
    .await?;
    let api = cluster.api();
    let rules = api.kubectl(&["get", RIGHTS, "-o", "jsonpath={.rules}"]).await?;
    allow(cluster, "[]").await?;
    let turned = unwritten(&operator, &look).await;
    // Those of v2 need them on the way back.
    allow(cluster, &rules).await?;
    turned?;
    let migration = look
        .until_migration("it is taken back", STEP, |migration| {
            migration
                .status
                .as_ref()
                .is_some_and(|status| status.phase == MigrationPhase::RolledBack)
        })
        .await?;
    let status = migration.status.context("a status")?;
    let why = status.calico_datastore.and_then(|known| known.automatic_rollback);
    let why = why.context("it does not say why it was taken back")?.reason;
    ensure!(why.contains("the pause had to end by"), "it says {why:?}");
    ensure!(status.message.contains(&why), "it says {:?}", status.message);
    as_before(cluster, &look).await
}

/// What is missing is named as long as it is waited for, and the deadline is kept.
async fn unwritten(operator: &Operator, look: &Looker) -> Result<()> {
    look.until_migration("the controllers are waited for", STEP, |migration| {
        let status = migration.status.clone().unwrap_or_default();
        status.reason == "CalicoControllers" && status.message.contains("not yet written to etcd v3: ")
    })
    .await?;
    operator.expect(Exit::Done, &["pause"]).await?;
    look.until_migration("it goes back", STEP, |migration| {
        let phase = migration.status.as_ref().map(|status| status.phase);
        matches!(
            phase,
            Some(MigrationPhase::RollingBack | MigrationPhase::RolledBack)
        )
    })
    .await?;
    Ok(())
}

/// Lets the controllers do this, as JSON, and nothing else.
async fn allow(cluster: &Cluster, rules: &str) -> Result<()> {
    let change = format!(r#"[{{"op":"replace","path":"/rules","value":{rules}}}]"#);
    let patch = ["patch", RIGHTS, "--type=json", "--patch", &change];
    cluster.api().kubectl(&patch).await.map(|_| ())
}

/// Nothing of it is left in the stores, and pods start.
async fn as_before(cluster: &Cluster, look: &Looker) -> Result<()> {
    let etcd = Etcd::of(cluster).await?;
    let left = etcd.v3().await?;
    let first = left.keys().next();
    ensure!(
        left.is_empty(),
        "{} keys are left in etcd v3, the first is {first:?}",
        left.len()
    );
    cluster
        .api()
        .kubectl(&["-n", "sample", "rollout", "restart", "deployment/web"])
        .await?;
    cluster.api().rolled_out("deployment/web", "sample", STEP).await?;
    let migration = look.migration().await?;
    let phase = migration.status.map(|status| status.phase);
    ensure!(phase == Some(MigrationPhase::RolledBack), "it is {phase:?}");
    breaking::delete_migration(cluster).await
}

/// Begins one. What a case before has left refused is deleted, so that each case fails for itself.
async fn begin(cluster: &Cluster, operator: &Operator, wanted: &Wanted) -> Result<()> {
    breaking::delete_migration(cluster).await?;
    let file = operator.write_manifest(&manifest(cluster, wanted).await?)?;
    let apply = ["apply", "--filename", &file.to_string_lossy(), "--yes"];
    operator.expect(Exit::Done, &apply).await.map(|_| ())
}

async fn there_and_back(cluster: &Cluster, tools: &Tools) -> Result<()> {
    breaking::delete_migration(cluster).await?;
    crate::demo::traffic::replace_probers(cluster).await?;
    let run = Run::begin(cluster, tools, Wanted::new(End::RolledBack)).await?;
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
    let wanted = Wanted {
        kills: stages.len().try_into()?,
        ..Wanted::new(End::Migrated)
    };
    let run = Run::begin(cluster, tools, wanted).await?;
    let look = Looker::new(cluster);
    let killed = async {
        for stage in stages {
            look.until_migration(&format!("stage {}", stage.as_str()), STEP, |migration| {
                stage_of(migration) >= Some(stage)
            })
            .await?;
            kill_coordinator(cluster, &look).await?;
        }
        anyhow::Ok(())
    };
    let (late, ()) = tokio::try_join!(run.migrate(), killed)?;
    let report = run.report(late).await?;
    println!("{}", report.text());
    ensure!(report.problems.is_empty(), "{}", report.problems.join("; "));
    Ok(())
}
