//! `cargo lab scale`: a migration of a large cluster, and its cost for the coordinator.
//!
//! etcd, kube-apiserver, kube-controller-manager, kube-scheduler and the coordinator are real; the coordinator is a
//! release build with its memory limit. kwok plays kubelets and pods, and [`hollow`] plays the agents.

mod audit;
mod calico;
mod churn;
mod control;
mod coordinator;
pub mod hollow;
mod ipam;
mod load;
mod manual_steps;
mod measure;
mod memory;
mod migration;
mod objects;
mod process;
mod proxy;
mod report;
mod running;
mod shape;
mod size;

pub use report::Report;
pub use size::{Kind, POD_NETWORK, PodShape, Size, Strategy};

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use api::migration::MigrationPhase;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};

use crate::apilab::{self, OwnApiLab};
use crate::demo::report::ManualStep;
use crate::progress::{Detail, Progress};
use coordinator::Coordinator;
use hollow::Fleet;
use manual_steps::Person;
use measure::{Reading, Readings};
use objects::Objects;
use report::{Answers, Part};

/// Time between two reads.
const BEAT: Duration = Duration::from_secs(1);
/// Time limit for a plan.
const PLAN_LIMIT: Duration = Duration::from_mins(40);

/// Creates the cluster, migrates it and reports the cost. Nothing remains afterwards, whatever ends the run.
pub async fn run(size: &Size, progress: &Progress) -> Result<Report> {
    let lab = control::start(size)?;
    progress.say(format_args!(
        "etcd and the API server run; logs are in {}",
        lab.folder().display()
    ));
    let client = lab.admin().await?;
    load::fill(&client, lab.store(), size, progress).await?;
    control::start_controllers(&lab, size.migration)?;
    let ipam = async {
        match size.migration {
            Kind::PodCidr => ipam::play(client.clone()).await,
            Kind::FlannelToCalico | Kind::ServiceCidr => std::future::pending().await,
        }
    };
    let hollow = apilab::client(&lab.kubeconfig_in(hollow::USER, Some("system:masters"))?).await?;
    let agents = Fleet::new(hollow, POD_NETWORK.parse().context("read the network of pods")?).run();
    let work = async {
        load::settled(&client, size, lab.folder(), progress).await?;
        let pod_bytes = pod_bytes(&client).await?;
        let mut objects = Objects::follow(&client).await?;
        let coordinator = Coordinator::start(&lab, size).await?;
        progress.say("the coordinator has read the cluster");
        let mut measured = Measured {
            lab: &lab,
            client: &client,
            size,
            coordinator,
            readings: Readings::default(),
            began: Instant::now(),
        };
        let parts = measured.whole(progress).await?;
        objects.check()?;
        measured.report(parts, pod_bytes, objects.largest())
    };
    tokio::select! {
        report = work => report,
        ended = ipam => match ended.context("the simulated IPAM has ended")? {},
        ended = agents => match ended {
            Ok(()) => bail!("the hollow agents have ended"),
            Err(error) => Err(error.context("the hollow agents have ended")),
        },
    }
}

/// Bytes of one ordinary pod in the API server's answer.
async fn pod_bytes(client: &Client) -> Result<usize> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), &shape::namespace(0));
    let some = pods
        .list(&ListParams::default().limit(1))
        .await
        .context("list a pod")?;
    let first = some.items.first().context("find an ordinary pod")?;
    Ok(serde_json::to_vec(first).context("write a pod")?.len())
}

/// A coordinator under observation.
struct Measured<'lab> {
    lab: &'lab OwnApiLab,
    client: &'lab Client,
    size: &'lab Size,
    coordinator: Coordinator,
    readings: Readings,
    began: Instant,
}

/// The three parts of the time.
struct Parts {
    planning: Part,
    idle: Part,
    migration: Part,
    answers: Answers,
    unfinished: Option<String>,
    manual_steps: Vec<ManualStep>,
}

/// The start of a part of the time.
struct Start {
    wall: Timestamp,
    steady: Instant,
    readings: usize,
    from_server: u64,
    to_server: u64,
}

impl Measured<'_> {
    async fn whole(&mut self, progress: &Progress) -> Result<Parts> {
        self.read().await?;
        let start = self.start();
        migration::create(self.client, self.size).await?;
        let unfinished = self
            .until(MigrationPhase::Planned, PLAN_LIMIT, "planning", progress)
            .await?;
        if let Some(words) = unfinished {
            bail!("no plan after {} s: {words}", PLAN_LIMIT.as_secs());
        }
        let (planning, _) = self.part(&start)?;

        let start = self.start();
        while start.steady.elapsed() < self.size.idle {
            tokio::time::sleep(BEAT).await;
            self.read().await?;
        }
        let (idle, _) = self.part(&start)?;

        let start = self.start();
        migration::start(self.client).await?;
        let churn = churn::churn(self.client.clone(), self.size.churn);
        let mut manual_steps = Vec::new();
        let person = Person {
            lab: self.lab,
            client: self.client,
            way: self.coordinator.way(),
            progress,
        };
        let person = person.play(self.size.migration, &mut manual_steps);
        let unfinished = tokio::select! {
            ended = self.until(migration::end(self.size), self.size.limit, "migrating", progress) => ended?,
            ended = churn => return ended.and(Err(anyhow::anyhow!("the churn of pods has ended"))),
            ended = person => match ended? {},
        };
        let (migration, answers) = self.part(&start)?;
        Ok(Parts {
            planning,
            idle,
            migration,
            answers: Answers::of(answers),
            unfinished,
            manual_steps,
        })
    }

    /// Reads the status every second until the Migration is in this phase. After the limit: the present status.
    async fn until(
        &mut self,
        wanted: MigrationPhase,
        limit: Duration,
        what: &str,
        progress: &Progress,
    ) -> Result<Option<String>> {
        let began = Instant::now();
        let detail = Detail::default();
        let work = async {
            loop {
                if let Some(stand) = migration::status(self.client).await? {
                    if stand.reached(wanted, began.elapsed())? {
                        return Ok(None);
                    }
                    if began.elapsed() > limit {
                        return Ok(Some(stand.words));
                    }
                    detail.set(stand.words.chars().take(160).collect::<String>());
                } else if began.elapsed() > limit {
                    return Ok(Some("no API server answers".to_owned()));
                }
                self.read().await?;
                tokio::time::sleep(BEAT).await;
            }
        };
        progress.during(what, &detail, work).await
    }

    async fn read(&mut self) -> Result<()> {
        let usage = self.coordinator.usage()?;
        let metrics = self.coordinator.metrics().await?;
        self.readings.add(Reading {
            at: self.began.elapsed(),
            usage,
            passes: measure::counter(&metrics, "replumb_passes_total")?,
        });
        Ok(())
    }

    fn start(&self) -> Start {
        let counts = self.coordinator.counts();
        Start {
            wall: Timestamp::now(),
            steady: Instant::now(),
            readings: self.readings.mark(),
            from_server: counts.received(),
            to_server: counts.sent(),
        }
    }

    /// The values since then, and the time that agents waited.
    fn part(&self, start: &Start) -> Result<(Part, Vec<f64>)> {
        let mut requests = audit::read(
            &self.lab.audit_log(),
            self.size.migration,
            start.wall,
            Timestamp::now(),
        )?;
        let answers = std::mem::take(&mut requests.answers);
        let counts = self.coordinator.counts();
        let part = Part {
            seconds: start.steady.elapsed().as_secs_f64(),
            passes: self.readings.passes(start.readings, self.readings.mark()),
            requests,
            bytes_from_server: counts.received() - start.from_server,
            bytes_to_server: counts.sent() - start.to_server,
        };
        Ok((part, answers))
    }

    fn report(
        &self,
        parts: Parts,
        pod_bytes: usize,
        largest_objects: std::collections::BTreeMap<String, objects::Largest>,
    ) -> Result<Report> {
        let Parts {
            planning,
            idle,
            migration,
            answers,
            unfinished,
            manual_steps,
        } = parts;
        // A migration that did not end in its time may not have reached its first node.
        if answers.count == 0 && unfinished.is_none() {
            bail!("the migration has ended, but no agent's report was answered");
        }
        Ok(Report {
            size: self.size.clone(),
            pod_bytes,
            limited_by: self.coordinator.limited_by(),
            peak_resident_bytes: self.readings.peak_resident(),
            peak_anonymous_bytes: self.readings.peak_anonymous(),
            largest_objects,
            plan_seconds: planning.seconds,
            migration_seconds: migration.seconds,
            unfinished,
            manual_steps,
            planning,
            idle,
            migration,
            answers,
        })
    }
}
