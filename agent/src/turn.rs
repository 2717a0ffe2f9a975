//! The agent's loop: combines the reports of the host thread, the probes and the traffic pods into one status.

use std::sync::Arc;
use std::time::Duration;

use api::NodeMigration;
use futures::FutureExt;
use jiff::Timestamp;
use kube::{Api, ResourceExt};
use runtime::error::chain;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::backoff::{Backoff, LONGEST_PAUSE_WHILE_MIGRATING};
use crate::host::random;
use crate::host_thread::{HostThread, TurnReport};
use crate::kinds;
use crate::metrics::Metrics;
use crate::probe::Probes;
use crate::report::Report;
use crate::status;
use crate::traffic::hub::Hub;
use crate::watched_object::{self, WatchedObject};

/// Results of probes arrive in bursts: one write for all of them.
const BURST: Duration = Duration::from_millis(150);
/// Pause before the next turn when no event arrives.
const RESYNC: Duration = Duration::from_mins(1);

/// The agent of one node.
#[derive(Debug)]
pub struct Agent {
    host: HostThread,
    api: Api<NodeMigration>,
    seen: watch::Receiver<WatchedObject>,
    reports: watch::Receiver<Option<Arc<TurnReport>>>,
    probed: Arc<Notify>,
    metrics: Arc<Metrics>,
    probes: Probes,
    traffic: Hub,
    /// The object after the last write, until the watch has seen that write.
    written: Option<Arc<NodeMigration>>,
    /// When the status was last written.
    wrote_at: Option<Instant>,
    /// Failed writes in a row, and the earliest time of the next attempt.
    failures: Backoff,
    not_before: Option<Instant>,
}

impl Agent {
    /// An agent that has written nothing yet.
    pub fn new(
        host: HostThread,
        api: Api<NodeMigration>,
        seen: watch::Receiver<WatchedObject>,
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

    /// Runs until the process or the host thread ends.
    pub async fn run(mut self) {
        loop {
            let next = self.turn().await;
            tokio::select! {
                // A new goal is handled immediately, and so is a report that may stop the rollout.
                changed = self.seen.changed() => if changed.is_err() { break },
                changed = self.reports.changed() => if changed.is_err() { break },
                () = self.traffic.changed() => {}
                () = self.probed.notified() => {
                    tokio::time::sleep(BURST).await;
                    let _ = self.probed.notified().now_or_never();
                }
                () = tokio::time::sleep(next) => {}
            }
        }
        drop(self.host);
    }

    /// The newest known object: from the watch, or from a write that the watch has not seen yet.
    fn object(&mut self) -> Option<Arc<NodeMigration>> {
        let seen = self.seen.borrow_and_update().clone();
        let watched = match seen {
            WatchedObject::Unknown => return None,
            WatchedObject::Absent => {
                self.written = None;
                return None;
            }
            WatchedObject::Present(object) => object,
        };
        Some(watched_object::newest(&mut self.written, &watched))
    }

    async fn turn(&mut self) -> Duration {
        let object = self.object();
        let spec = object.as_ref().map(|object| &object.spec);
        let targets = spec.map(|spec| spec.probes.clone()).unwrap_or_default();
        let mtu = kinds::pod_mtu(spec);
        self.probes.set(&targets, mtu);
        match spec {
            Some(spec) => self
                .traffic
                .set(&spec.flows, spec.gates, spec.losses_counted_since, mtu),
            None => self.traffic.set(&[], None, None, mtu),
        }
        let Some(turn_report) = self.reports.borrow_and_update().clone() else {
            return RESYNC;
        };
        let mut report = turn_report.report.clone();
        report.probes = self.probes.results(&targets);
        report.traffic = self.traffic.report();
        self.set_metrics(&report, targets.len());
        match object {
            // A report for another object with this name says nothing about this one.
            Some(object) if object.uid() == turn_report.uid => {
                self.write_status(&object, turn_report.generation, &report).await
            }
            Some(_) | None => RESYNC,
        }
    }

    fn set_metrics(&self, report: &Report, targets: usize) {
        self.metrics
            .set_phase(&kinds::phases(), kinds::phase(&report.kinds));
        self.metrics
            .set_checks(&kinds::check_names(), &kinds::checks(&report.kinds));
        self.metrics
            .leftovers
            .set(i64::try_from(kinds::count_leftovers(&report.kinds)).unwrap_or(i64::MAX));
        self.metrics.failing.set(i64::from(report.failure.is_some()));
        let reached = report.probes.iter().filter(|probe| probe.reached).count();
        self.metrics.set_probes(reached, targets.saturating_sub(reached));
        self.metrics.traffic.set(report.traffic.as_ref());
    }

    /// Writes the status if it has changed, and returns the pause until the next turn.
    async fn write_status(
        &mut self,
        object: &Arc<NodeMigration>,
        generation: i64,
        report: &Report,
    ) -> Duration {
        let old = object.status.clone().unwrap_or_default();
        let wanted = status::status(report, generation, &old, Timestamp::now());
        if object.status.as_ref() == Some(&wanted) {
            return RESYNC;
        }
        if let Some(wrote_at) = self.wrote_at
            && object.status.is_some()
            && let may_wait = status::may_wait(&object.spec, &old, &wanted)
            && let remaining = may_wait.saturating_sub(wrote_at.elapsed())
            && !remaining.is_zero()
        {
            return remaining.min(RESYNC);
        }
        let now = Instant::now();
        if let Some(remaining) = self
            .not_before
            .map(|until| until.saturating_duration_since(now))
            .filter(|remaining| !remaining.is_zero())
        {
            return remaining;
        }
        match status::write(&self.api, object, &wanted).await {
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
                tracing::warn!(error = chain(&error), "writing the status failed; retrying");
                // The object may have been replaced or deleted: the watch shows which.
                self.written = None;
                // Without a random number the pause is the shortest one: the kernel has none only right after its start.
                let pause = self.failures.after_failure(
                    LONGEST_PAUSE_WHILE_MIGRATING,
                    random::number().unwrap_or_default(),
                );
                self.not_before = Some(Instant::now() + pause);
                pause
            }
        }
    }
}
