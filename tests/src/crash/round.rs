//! One migration forward and back, with its crashes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use api::migration::{LegacyPods, MigrationPhase, Strategy};
use crash_point::{Edge, Point};
use serde::Serialize;
use serde_json::json;

use super::judge::{Before, Undisturbed};
use super::loss::{Loss, Moment};
use super::matrix::{Cell, Leg, Owner, Round};
use super::point::AdminPort;
use super::strike::strike;
use super::workload;
use crate::cluster::Cluster;
use crate::cluster::wait::{Observation, until};
use crate::demo::MIGRATION;
use crate::demo::flannel_to_calico::{Request, is_soaking, manifest};
use crate::demo::operator::{Exit, Operator};
use crate::end_to_end::MigrationReader;

/// Time limit from one point to the next, and from a crash until its node is finished.
const STEP: Duration = Duration::from_mins(4);
/// Time limit for a killed coordinator to lead again: its Lease must expire first.
const PATIENT: &str = "4m";
/// `soakSeconds`: longer than a round, because adopted pods do not keep flannel.
const SOAK_SECONDS: u32 = 7200;

/// Result of one crash.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// The crash.
    #[serde(flatten)]
    pub cell: Cell,
    /// The step's node; for a step of the whole cluster, the node whose agent or power failed.
    pub node: String,
    /// Time from the crash until the node, or the part of the migration, was finished.
    pub seconds: f64,
    /// Probes in that time.
    pub loss: Loss,
    /// The problems; empty is success.
    pub problems: Vec<String>,
}

/// The cluster and state of all rounds.
pub struct Bench<'cluster> {
    /// The cluster.
    cluster: &'cluster Cluster,
    /// The user's commands.
    operator: Operator,
    /// What happens to the pods from before.
    legacy_pods: LegacyPods,
    reader: MigrationReader,
    /// The host settings of the network on Calico, after a migration without crashes.
    undisturbed: Undisturbed,
}

impl<'cluster> Bench<'cluster> {
    /// Rounds on this cluster, which has replumb's test build.
    pub fn new(cluster: &'cluster Cluster, operator: Operator, legacy_pods: LegacyPods) -> Self {
        Self {
            cluster,
            operator,
            legacy_pods,
            reader: MigrationReader::new(cluster),
            undisturbed: Undisturbed::default(),
        }
    }

    /// Runs a round. A problem at its end is added to the crashes that may have caused it; an error is a round that
    /// did not end, with the crashes that had ended by then.
    pub async fn run(&mut self, round: &Round) -> (Vec<Outcome>, Result<()>) {
        let mut outcomes = Vec::new();
        let ended = self.forward_and_back(round, &mut outcomes).await;
        (outcomes, ended)
    }

    async fn forward_and_back(&mut self, round: &Round, outcomes: &mut Vec<Outcome>) -> Result<()> {
        let before = Before::read(self.cluster).await?;
        let order = self.begin(round, outcomes).await?;
        self.there(round, &order, outcomes).await?;
        self.undisturbed
            .judge_on_calico(self.cluster, round, outcomes)
            .await?;
        workload::create(self.cluster).await?;
        self.back(round, &order, outcomes).await?;
        self.undo(round, &order, outcomes).await?;
        workload::delete(self.cluster).await?;
        before.judge_back(self.cluster, round, outcomes).await?;
        self.forget().await
    }

    /// Runs the user's command; the output is shown only if the result is not the expected one.
    async fn run_command(&self, arguments: &[&str]) -> Result<()> {
        let output = self.operator.run(arguments).await?;
        ensure!(
            output.exit == Exit::Done,
            "`kubectl replumb {}` ended with {:?} and the output:\n{}",
            arguments.join(" "),
            output.exit,
            output.text
        );
        Ok(())
    }

    async fn coordinator(&self) -> Result<AdminPort> {
        let (_, home, _) = self.reader.coordinator().await?;
        AdminPort::of_coordinator(self.cluster, &home).await
    }

    async fn admin_port_of(&self, cell: &Cell, node: &str) -> Result<AdminPort> {
        match cell.step.owner {
            Owner::Agent => AdminPort::of_agent(self.cluster, node).await,
            Owner::Coordinator => self.coordinator().await,
        }
    }

    /// Applies and prepares the Migration; returns the order of the nodes. The coordinator stops when it has started
    /// the first node.
    async fn begin(&self, round: &Round, outcomes: &mut Vec<Outcome>) -> Result<Vec<String>> {
        let request = Request {
            strategy: Strategy::InPlace,
            // The reasons to stop a rollout have their own cases: here the rollout must not wait for the user.
            spec: json!({
                "flannelToCalico": { "legacyPods": self.legacy_pods, "soakSeconds": SOAK_SECONDS },
                "gates": { "maxLossRatio": 1.0, "maxGapMilliseconds": 60000 },
            }),
            ..Request::default()
        };
        let file = self.operator.write_manifest(&manifest(&request))?;
        let file = file.to_string_lossy().into_owned();
        let start = start_of(None);
        let (_, home, _) = self.reader.coordinator().await?;
        let coordinator = AdminPort::of_coordinator(self.cluster, &home).await?;
        let first = round
            .prepare
            .map_or_else(|| start.clone(), |cell| point(&cell, &home));
        coordinator.run_to(self.cluster, Some(&first)).await?;
        let arguments = ["apply", "--filename", &file, "--yes", "--timeout", PATIENT];
        let apply = self.run_command(&arguments);
        let struck = async {
            let Some(cell) = round.prepare else { return Ok(()) };
            let rolling = async || {
                self.until_phase("the Migration to be prepared", MigrationPhase::Rolling)
                    .await
            };
            outcomes.push(self.cell(&cell, &home, Some(&start), rolling).await?);
            Ok(())
        };
        tokio::try_join!(apply, struck)?;
        self.reader.until_planned(STEP).await
    }

    /// Migrates each node in turn, from the coordinator's stop at its start.
    async fn there(&self, round: &Round, order: &[String], outcomes: &mut Vec<Outcome>) -> Result<()> {
        for (place, node) in order.iter().enumerate() {
            let coordinator = self.coordinator().await?;
            coordinator
                .until_stopped(self.cluster, STEP)
                .await
                .with_context(|| format!("the coordinator starts node {node}"))?;
            let next = order.get(place + 1).map(|next| start_of(Some(next)));
            let finished = async || {
                let what = "is on Calico";
                let on_calico = self
                    .reader
                    .until_node(node, what, STEP, |spec| spec.finished_at.is_some());
                on_calico.await.map(|_| ())
            };
            let Some(cell) = round.there.get(place) else {
                coordinator.run_to(self.cluster, next.as_ref()).await?;
                finished().await?;
                continue;
            };
            self.arm(cell, node, next.as_ref()).await?;
            outcomes.push(self.cell(cell, node, next.as_ref(), finished).await?);
        }
        let on_calico = self
            .reader
            .until_migration("every node to be on Calico", STEP, |migration| {
                let status = migration.status.as_ref();
                match self.legacy_pods {
                    LegacyPods::Adopt => is_soaking(migration),
                    LegacyPods::Keep | LegacyPods::Restart => {
                        status.is_some_and(|status| status.phase == MigrationPhase::Mixed)
                    }
                }
            });
        on_calico.await.map(|_| ())
    }

    async fn until_phase(&self, what: &str, phase: MigrationPhase) -> Result<()> {
        let reached = self.reader.until_migration(what, STEP, |migration| {
            let status = migration.status.as_ref();
            status.is_some_and(|status| status.phase == phase)
        });
        reached.await.map(|_| ())
    }

    /// From its stop at the start of the node, the coordinator runs to the crash point, or to the next node.
    async fn arm(&self, cell: &Cell, node: &str, next: Option<&Point>) -> Result<()> {
        let coordinator = self.coordinator().await?;
        let here = point(cell, node);
        match cell.step.owner {
            // The coordinator is at this point already.
            Owner::Coordinator if cell.step.name == "StartNode" => Ok(()),
            Owner::Coordinator => coordinator.run_to(self.cluster, Some(&here)).await,
            Owner::Agent => {
                let agent = AdminPort::of_agent(self.cluster, node).await?;
                agent.run_to(self.cluster, Some(&here)).await?;
                coordinator.run_to(self.cluster, next).await
            }
        }
    }

    /// Rolls back each node by name, from the last to the first.
    async fn back(&self, round: &Round, order: &[String], outcomes: &mut Vec<Outcome>) -> Result<()> {
        for (place, node) in order.iter().rev().enumerate() {
            let returned = async || {
                let what = "is back on flannel";
                let back = self.reader.until_node(node, what, STEP, |spec| {
                    spec.returned_at.is_some() && spec.finished_at.is_none() && !spec.rolling_back
                });
                back.await.map(|_| ())
            };
            let arguments = ["rollback", node.as_str(), "--yes", "--timeout", PATIENT];
            self.run_command_and_strike(&arguments, round.back.get(place), node, outcomes, returned)
                .await?;
        }
        Ok(())
    }

    async fn undo(&self, round: &Round, order: &[String], outcomes: &mut Vec<Outcome>) -> Result<()> {
        let undone = async || {
            self.until_phase("the migration to be rolled back", MigrationPhase::RolledBack)
                .await
        };
        let arguments = ["rollback", "--all", "--yes", "--timeout", PATIENT];
        let node = order.first().context("the cluster has no node")?;
        self.run_command_and_strike(&arguments, round.undo.as_ref(), node, outcomes, undone)
            .await
    }

    /// Runs the user's command, with a crash on the way if there is one.
    async fn run_command_and_strike(
        &self,
        arguments: &[&str],
        cell: Option<&Cell>,
        node: &str,
        outcomes: &mut Vec<Outcome>,
        done: impl AsyncFnOnce() -> Result<()>,
    ) -> Result<()> {
        let Some(cell) = cell else {
            self.run_command(arguments).await?;
            return done().await;
        };
        let port = self.admin_port_of(cell, node).await?;
        port.run_to(self.cluster, Some(&point(cell, node))).await?;
        // The command waits for the coordinator, which may have stopped.
        let run_command = self.run_command(arguments);
        let struck = async {
            outcomes.push(self.cell(cell, node, None, done).await?);
            Ok(())
        };
        tokio::try_join!(run_command, struck).map(|_| ())
    }

    /// Waits until the owner has stopped there, makes the crash, and waits until the node is finished.
    async fn cell(
        &self,
        cell: &Cell,
        node: &str,
        next: Option<&Point>,
        done: impl AsyncFnOnce() -> Result<()>,
    ) -> Result<Outcome> {
        let words = format!("{} of node {node}", cell.words());
        let attempt = async {
            let port = self.admin_port_of(cell, node).await?;
            port.until_stopped(self.cluster, STEP).await?;
            // The owner waits for the crash: no change is missed meanwhile.
            let before = Moment::now(self.cluster).await?;
            let began = Instant::now();
            let whom = (cell.victim, cell.step.owner);
            strike(self.cluster, &self.reader, whom, node, port, next).await?;
            done().await?;
            let seconds = began.elapsed().as_secs_f64();
            let loss = Moment::now(self.cluster).await?.since(&before);
            Ok::<_, anyhow::Error>(Outcome {
                cell: *cell,
                node: node.to_owned(),
                seconds,
                loss,
                problems: Vec::new(),
            })
        };
        let outcome = attempt.await.with_context(|| words.clone())?;
        println!(
            "        {words}: finished {:.1} s after the crash, {} of {} probes lost",
            outcome.seconds, outcome.loss.lost, outcome.loss.sent
        );
        Ok(outcome)
    }

    /// Deletes the Migration with everything that it owns.
    async fn forget(&self) -> Result<()> {
        self.cluster
            .api()
            .kubectl(&["delete", "migrations.replumb.dev", MIGRATION, "--wait"])
            .await?;
        let logs = self.cluster.directory().logs();
        until("the Migration's objects to be deleted", STEP, &logs, async || {
            let left = self
                .cluster
                .api()
                .kubectl(&["get", "nodemigrations.replumb.dev", "-o", "name"])
                .await?;
            Ok(if left.trim().is_empty() {
                Observation::Done(())
            } else {
                Observation::NotYet(left)
            })
        })
        .await
    }
}

/// The point at which the coordinator has started this node, or any node.
fn start_of(node: Option<&str>) -> Point {
    Point {
        step: "StartNode".to_owned(),
        edge: Edge::Recorded,
        node: node.map(str::to_owned),
    }
}

/// The point at which the cell's owner must stop, if the step belongs to the node.
fn point(cell: &Cell, node: &str) -> Point {
    let of_node = matches!(cell.step.leg, Leg::There | Leg::Back);
    Point {
        step: cell.step.name.to_owned(),
        edge: cell.edge,
        // An agent belongs to its node.
        node: (of_node && cell.step.owner == Owner::Coordinator).then(|| node.to_owned()),
    }
}
