//! The agent's loop: what the host's thread found, what probes and traffic pods found, and one status that says it.

use std::sync::Arc;
use std::time::Duration;

use api::NodeMigration;
use futures::FutureExt;
use jiff::Timestamp;
use kube::{Api, ResourceExt};
use runtime::error::chain;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::goal::{LONGEST_PAUSE_IN_WORK, Seen};
use crate::host::random;
use crate::host_thread::{HostThread, Told};
use crate::kinds;
use crate::metrics::Metrics;
use crate::probe::Probes;
use crate::report::{self, Report};
use crate::traffic::hub::Hub;

/// Results of probes come in bursts: one write for all of them.
const BURST: Duration = Duration::from_millis(150);
/// Next look at what is there to tell while nothing is announced.
const RESYNC: Duration = Duration::from_mins(1);

/// The agent of one node.
#[derive(Debug)]
pub struct Agent {
    host: HostThread,
    api: Api<NodeMigration>,
    seen: watch::Receiver<Seen>,
    reports: watch::Receiver<Option<Arc<Told>>>,
    probed: Arc<Notify>,
    metrics: Arc<Metrics>,
    probes: Probes,
    traffic: Hub,
    /// The object as our last write left it, until the watch has seen that write.
    written: Option<Arc<NodeMigration>>,
    /// When the status was last written.
    wrote_at: Option<Instant>,
    /// Writes that failed in a row, and until when the next one waits.
    failures: Backoff,
    not_before: Option<Instant>,
}

impl Agent {
    /// The agent, which has told nothing yet.
    pub fn new(
        host: HostThread,
        api: Api<NodeMigration>,
        seen: watch::Receiver<Seen>,
        traffic: Hub,
        metrics: Arc<Metrics>,
    ) -> Self {
        let probed = Arc::new(Notify::new());
        Self {
            reports: host.reports(),
            host,
            api,
            seen,
            probes: Probes::new(Arc::clone(&probed)),
            probed,
            traffic,
            metrics,
            written: None,
            wrote_at: None,
            failures: Backoff::default(),
            not_before: None,
        }
    }

    /// Turns until the process ends, or the host's thread.
    pub async fn run(mut self) {
        loop {
            let next = self.turn().await;
            tokio::select! {
                // A new goal is not kept waiting, and neither is what may stop the rollout.
                changed = self.seen.changed() => if changed.is_err() { break },
                changed = self.reports.changed() => if changed.is_err() { break },
                () = self.traffic.has_news() => {}
                () = self.probed.notified() => {
                    tokio::time::sleep(BURST).await;
                    let _ = self.probed.notified().now_or_never();
                }
                () = tokio::time::sleep(next) => {}
            }
        }
        drop(self.host);
    }

    /// The object as far as it is known: the watch's, or our own write that the watch has not seen yet.
    fn object(&mut self) -> Option<Arc<NodeMigration>> {
        let seen = self.seen.borrow_and_update().clone();
        let watched = match seen {
            Seen::NotYet => return None,
            Seen::Absent => {
                self.written = None;
                return None;
            }
            Seen::Present(object) => object,
        };
        let newer = self
            .written
            .take()
            .filter(|written| written.uid() == watched.uid() && version(written) > version(&watched));
        self.written.clone_from(&newer);
        Some(newer.unwrap_or(watched))
    }

    async fn turn(&mut self) -> Duration {
        let object = self.object();
        let spec = object.as_ref().map(|object| &object.spec);
        let targets = spec.map(|spec| spec.probes.clone()).unwrap_or_default();
        let mtu = kinds::pod_mtu(spec);
        self.probes.set(&targets, mtu);
        match spec {
            Some(spec) => self.traffic.set(&spec.flows, spec.gates, spec.judged_since, mtu),
            None => self.traffic.set(&[], None, None, mtu),
        }
        let Some(told) = self.reports.borrow_and_update().clone() else {
            return RESYNC;
        };
        let mut report = told.report.clone();
        report.probes = self.probes.results(&targets);
        report.traffic = self.traffic.report();
        self.tell_metrics(&report, targets.len());
        match object {
            // What was found for another object of the name says nothing of this one.
            Some(object) if object.uid() == told.uid => self.tell(&object, told.generation, &report).await,
            Some(_) | None => RESYNC,
        }
    }

    fn tell_metrics(&self, report: &Report, targets: usize) {
        self.metrics.set_phase(report.phase);
        self.metrics.set_checks(&report.checks);
        self.metrics
            .leftovers
            .set(i64::try_from(report.left()).unwrap_or(i64::MAX));
        self.metrics.failing.set(i64::from(report.failure.is_some()));
        let reached = report.probes.iter().filter(|probe| probe.reached).count();
        self.metrics.set_probes(reached, targets.saturating_sub(reached));
        self.metrics.traffic.set(report.traffic.as_ref());
    }

    /// Writes the status when it says something new, and returns when to try again.
    async fn tell(&mut self, object: &Arc<NodeMigration>, generation: i64, report: &Report) -> Duration {
        let old = object.status.clone().unwrap_or_default();
        let wanted = report::status(report, generation, &old, Timestamp::now());
        if object.status.as_ref() == Some(&wanted) {
            return RESYNC;
        }
        if let Some(wrote_at) = self.wrote_at
            && object.status.is_some()
            && let may_wait = report::may_wait(object.spec.goal, &old, &wanted)
            && let left = may_wait.saturating_sub(wrote_at.elapsed())
            && !left.is_zero()
        {
            return left.min(RESYNC);
        }
        let now = Instant::now();
        if let Some(left) = self
            .not_before
            .map(|until| until.saturating_duration_since(now))
            .filter(|left| !left.is_zero())
        {
            return left;
        }
        match report::write(&self.api, object, &wanted).await {
            Ok(None) => RESYNC,
            Ok(Some(after)) => {
                self.failures.succeeded();
                self.not_before = None;
                self.metrics.writes.with_label_values(&["written"]).inc();
                self.wrote_at = Some(Instant::now());
                self.written = Some(Arc::new(after));
                RESYNC
            }
            Err(error) => {
                self.metrics.writes.with_label_values(&["error"]).inc();
                tracing::warn!(
                    error = chain(&error),
                    "the status cannot be written; trying again"
                );
                // Another object of the name, or none: the watch says which.
                self.written = None;
                // Without a random number the pause is the shortest: the kernel has none only at its very start.
                let pause = self
                    .failures
                    .after_failure(LONGEST_PAUSE_IN_WORK, random::number().unwrap_or_default());
                self.not_before = Some(Instant::now() + pause);
                pause
            }
        }
    }
}

/// The resource version as a number. A version that is none is older than everything.
fn version(object: &NodeMigration) -> u64 {
    object
        .metadata
        .resource_version
        .as_deref()
        .and_then(|text| text.parse().ok())
        .unwrap_or_default()
}
