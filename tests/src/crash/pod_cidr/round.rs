//! Changes of range with their crashes.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use api::migration::MigrationPhase;
use crash_point::Point;
use serde::Serialize;
use serde_json::json;

use super::judge::{Before, is_forgotten};
use super::steps::{Cell, Leg};
use crate::cluster::Cluster;
use crate::cluster::wait::{Observation, until};
use crate::crash::loss::{Loss, Moment};
use crate::crash::matrix::Owner;
use crate::crash::point::AdminPort;
use crate::crash::strike::strike;
use crate::demo::operator::Exit;
use crate::demo::pod_cidr::{Request, Run, manifest};
use crate::demo::{MIGRATION, Tools};
use crate::end_to_end::MigrationReader;

/// Time limit from one point to the next, and from a crash to the end.
const STEP: Duration = Duration::from_mins(5);
/// Time limit for a killed coordinator to lead again: its Lease must expire first.
const PATIENT: &str = "4m";
/// Time for one more replica, which is added before pods move if there is only one.
const ALONE: [&str; 5] = ["-n", "kube-system", "scale", "deployment/coredns", "--replicas=1"];

/// Result of one crash.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Outcome {
    /// The crash.
    #[serde(flatten)]
    pub cell: Cell,
    /// Time from the crash until the next one, or the end.
    pub seconds: f64,
    /// Probes in that time.
    pub loss: Loss,
    /// The problems at the end; empty is success.
    pub problems: Vec<String>,
}

/// The cluster and state of all rounds.
pub struct Bench<'cluster> {
    cluster: &'cluster Cluster,
    tools: &'cluster Tools,
    request: Request,
    reader: MigrationReader,
}

/// A point at which the coordinator has stopped.
struct Stop {
    port: AdminPort,
    home: String,
    before: Moment,
}

impl<'cluster> Bench<'cluster> {
    /// Rounds on this cluster, which has replumb's test build, and one pod of `CoreDNS` from now on.
    pub async fn new(cluster: &'cluster Cluster, tools: &'cluster Tools, request: Request) -> Result<Self> {
        cluster.api().kubectl(&ALONE).await?;
        Ok(Self {
            cluster,
            tools,
            request: Request {
                // The reasons to stop a migration have their own cases: here the migration must not wait for the user.
                spec: json!({ "gates": { "maxLossRatio": 1.0, "maxGapMilliseconds": 60000 } }),
                ..request
            },
            reader: MigrationReader::new(cluster),
        })
    }

    /// Runs one migration. An error is a migration that did not end, with the crashes that had ended by then.
    pub async fn run(&self, leg: Leg, cells: &[Cell]) -> (Vec<Outcome>, Result<()>) {
        let mut outcomes = Vec::new();
        let ended = self.perform(leg, cells, &mut outcomes).await;
        (outcomes, ended)
    }

    async fn perform(&self, leg: Leg, cells: &[Cell], outcomes: &mut Vec<Outcome>) -> Result<()> {
        let Some(first) = cells.first() else { return Ok(()) };
        let run = Run::begin(self.cluster, self.tools, self.request.clone()).await?;
        let before = Before::read(self.cluster).await?;
        let file = run.scene.operator.write_manifest(&manifest(&self.request))?;
        let file = file.to_string_lossy().into_owned();
        let apply = ["apply", "--filename", &file, "--yes", "--timeout", PATIENT];
        let back = ["rollback", "--all", "--yes", "--timeout", PATIENT];
        let (left, in_range) = match leg {
            Leg::There => {
                self.arm(&first.point()).await?;
                let there = async {
                    tokio::try_join!(
                        run_command(&run, &apply),
                        self.chain(cells, MigrationPhase::Completed, outcomes)
                    )
                };
                run.with_manual_steps(there).await?;
                (self.request.from, self.request.to)
            }
            Leg::Back => {
                run_command(&run, &apply).await?;
                run.until_all_have_moved().await?;
                self.arm(&first.point()).await?;
                let back = async {
                    tokio::try_join!(
                        run_command(&run, &back),
                        self.chain(cells, MigrationPhase::RolledBack, outcomes)
                    )
                };
                run.with_manual_steps(back).await?;
                (self.request.to, self.request.from)
            }
            Leg::Turn => {
                self.arm(&first.point()).await?;
                let turn = async {
                    tokio::try_join!(run_command(&run, &apply), self.turn(&run, first, &back, outcomes))
                };
                run.with_manual_steps(turn).await?;
                (self.request.to, self.request.from)
            }
        };
        if left == self.request.to {
            run.change_back().await?;
        }
        let problems = before.differs(&run, left, in_range).await?;
        for outcome in outcomes.iter_mut() {
            outcome.problems.extend(problems.iter().cloned());
        }
        self.forget().await
    }

    async fn coordinator(&self) -> Result<(AdminPort, String)> {
        let (_, home, _) = self.reader.coordinator().await?;
        Ok((AdminPort::of_coordinator(self.cluster, &home).await?, home))
    }

    async fn arm(&self, point: &Point) -> Result<()> {
        let (port, _) = self.coordinator().await?;
        port.run_to(self.cluster, Some(point)).await
    }

    /// Makes one crash after the other, then waits for the end.
    async fn chain(&self, cells: &[Cell], end: MigrationPhase, outcomes: &mut Vec<Outcome>) -> Result<()> {
        for (place, cell) in cells.iter().enumerate() {
            let next = cells.get(place + 1).map(Cell::point);
            let stop = self.stopped(cell).await?;
            let began = Instant::now();
            self.strike(cell, &stop, next.as_ref()).await?;
            // The next stop is the end of this crash: no change is missed between two.
            match cells.get(place + 1) {
                Some(next) => self.until_stopped(next).await?,
                None => self.until_phase(end).await?,
            }
            self.done(cell, &stop, began, outcomes).await?;
        }
        Ok(())
    }

    /// The user rolls back at the moment of the crash.
    async fn turn(
        &self,
        run: &Run<'_>,
        cell: &Cell,
        back: &[&str],
        outcomes: &mut Vec<Outcome>,
    ) -> Result<()> {
        let stop = self.stopped(cell).await?;
        let began = Instant::now();
        // The command waits until a coordinator has answered.
        tokio::try_join!(run_command(run, back), self.strike(cell, &stop, None))?;
        self.until_phase(MigrationPhase::RolledBack).await?;
        self.done(cell, &stop, began, outcomes).await
    }

    async fn stopped(&self, cell: &Cell) -> Result<Stop> {
        self.until_stopped(cell).await?;
        let (port, home) = self.coordinator().await?;
        Ok(Stop {
            port,
            home,
            before: Moment::now(self.cluster).await?,
        })
    }

    async fn until_stopped(&self, cell: &Cell) -> Result<()> {
        // The coordinator moves, too, so each attempt searches for it.
        let logs = self.cluster.directory().logs();
        until("the coordinator to answer", STEP, &logs, async || {
            let (port, _) = self.coordinator().await?;
            port.until_stopped(self.cluster, STEP)
                .await
                .map(Observation::Done)
        })
        .await
        .with_context(|| cell.words())
    }

    async fn strike(&self, cell: &Cell, stop: &Stop, next: Option<&Point>) -> Result<()> {
        let whom = (cell.victim, Owner::Coordinator);
        strike(self.cluster, &self.reader, whom, &stop.home, stop.port, next)
            .await
            .with_context(|| cell.words())
    }

    async fn done(
        &self,
        cell: &Cell,
        stop: &Stop,
        began: Instant,
        outcomes: &mut Vec<Outcome>,
    ) -> Result<()> {
        let seconds = began.elapsed().as_secs_f64();
        let loss = Moment::now(self.cluster).await?.since(&stop.before);
        println!(
            "        {}: finished {seconds:.1} s after the crash, {} of {} probes lost",
            cell.words(),
            loss.lost,
            loss.sent
        );
        outcomes.push(Outcome {
            cell: *cell,
            seconds,
            loss,
            problems: Vec::new(),
        });
        Ok(())
    }

    async fn until_phase(&self, phase: MigrationPhase) -> Result<()> {
        let what = format!("the Migration to be {phase:?}");
        let reached = self.reader.until_migration(&what, STEP, |migration| {
            let status = migration.status.as_ref();
            status.is_some_and(|status| status.phase == phase)
        });
        reached.await.map(|_| ())
    }

    /// Deletes the Migration with everything that it owns.
    async fn forget(&self) -> Result<()> {
        self.cluster
            .api()
            .kubectl(&["delete", "migrations.replumb.dev", MIGRATION, "--wait"])
            .await?;
        let logs = self.cluster.directory().logs();
        until("the Migration's objects to be deleted", STEP, &logs, async || {
            Ok(if is_forgotten(self.cluster).await? {
                Observation::Done(())
            } else {
                Observation::NotYet("NodeMigrations or traffic pods still exist".to_owned())
            })
        })
        .await
    }
}

/// Runs the user's command; the output is shown only if the result is not the expected one.
async fn run_command(run: &Run<'_>, arguments: &[&str]) -> Result<()> {
    let output = run.scene.operator.run(arguments).await?;
    ensure!(
        output.exit == Exit::Done,
        "`kubectl replumb {}` ended with {:?} and the output:\n{}",
        arguments.join(" "),
        output.exit,
        output.text
    );
    Ok(())
}
