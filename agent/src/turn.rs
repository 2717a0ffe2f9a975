//! The loop: observe → decide → journal → apply → report, on every change of the host or the goal.

use std::sync::Arc;
use std::time::Duration;

use api::NodeMigration;
use api::node_migration::Failure;
use futures::FutureExt;
use jiff::Timestamp;
use kube::{Api, ResourceExt};
use plan::check::Verdict;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::admin::Health;
use crate::goal::Seen;
use crate::kinds::{self, Kinds};
use crate::metrics::Metrics;
use crate::probe::Probes;
use crate::report::{self, Pending, Report, chain};
use crate::traffic::hub::Hub;

/// Changes come in bursts (a device, its address, its routes): one look for all of them.
const BURST: Duration = Duration::from_millis(150);
/// Shortest pause between two looks while nothing is asked of the node: pods come and go.
const CALM: Duration = Duration::from_secs(1);
/// Next look while a process is waited for: nobody announces its end.
const PROCESS: Duration = Duration::from_millis(500);
/// Next look while anything else is waited for: links and files announce themselves, this is the second net.
const WORKING: Duration = Duration::from_secs(2);
/// Next look while others are watched who announce nothing: what pods were told, and whom they have connections to.
const UNANNOUNCED: Duration = Duration::from_secs(5);
/// Next try after something failed.
const AFTER_FAILURE: Duration = Duration::from_secs(2);
/// Next look while nothing changes: what no event announces (a kernel parameter, a firewall chain) is seen then.
const RESYNC: Duration = Duration::from_mins(1);
/// The same while a check does not pass: whoever mends a kernel parameter wants to see that it is mended.
const RESYNC_WHILE_REFUSED: Duration = Duration::from_secs(10);
/// How long a change of mere facts may wait for its write.
const LAZY_WRITE: Duration = Duration::from_secs(10);

/// The agent of one node.
#[derive(Debug)]
pub struct Agent {
    kinds: Kinds,
    api: Api<NodeMigration>,
    seen: watch::Receiver<Seen>,
    changed: Arc<Notify>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    probes: Probes,
    traffic: Hub,
    /// The object as our last write left it, until the watch has seen that write.
    written: Option<Arc<NodeMigration>>,
    /// When the status was last written.
    wrote_at: Option<Instant>,
    /// What went wrong in the last turn: it is logged once, not every time it is tried again.
    complaint: String,
}

/// What one turn leaves behind: when to turn again without a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pace {
    next: Duration,
    /// Shortest pause before a change of the host makes the next turn.
    rest: Duration,
}

impl Agent {
    /// The agent, which has not looked yet.
    pub fn new(
        kinds: Kinds,
        api: Api<NodeMigration>,
        seen: watch::Receiver<Seen>,
        changed: Arc<Notify>,
        traffic: Hub,
        metrics: Arc<Metrics>,
        health: Arc<Health>,
    ) -> Self {
        Self {
            kinds,
            api,
            seen,
            probes: Probes::new(Arc::clone(&changed)),
            traffic,
            changed,
            metrics,
            health,
            written: None,
            wrote_at: None,
            complaint: String::new(),
        }
    }

    /// Turns until the process ends.
    pub async fn run(mut self) {
        loop {
            let pace = self.turn().await;
            self.health.turned(Timestamp::now());
            let until = Instant::now() + pace.next;
            tokio::select! {
                // A new goal is not kept waiting, and neither is what may stop the rollout.
                changed = self.seen.changed() => if changed.is_err() { return },
                () = self.traffic.has_news() => {}
                () = self.changed.notified() => {
                    let goal = self.seen.changed();
                    tokio::select! {
                        () = tokio::time::sleep(pace.rest) => {}
                        changed = goal => if changed.is_err() { return },
                        () = self.traffic.has_news() => {}
                    }
                    // What came during the pause is seen by the next look as well.
                    let _ = self.changed.notified().now_or_never();
                }
                () = tokio::time::sleep_until(until) => {}
            }
        }
    }

    /// The object as far as it is known: the watch's, or our own write that the watch has not seen yet.
    fn object(&mut self) -> Option<Arc<NodeMigration>> {
        let seen = self.seen.borrow_and_update().clone();
        let watched = match seen {
            Seen::NotYet => return None,
            Seen::Absent => {
                self.health.goal_read();
                self.written = None;
                return None;
            }
            Seen::Present(object) => object,
        };
        self.health.goal_read();
        let newer = self
            .written
            .take()
            .filter(|written| written.uid() == watched.uid() && version(written) > version(&watched));
        self.written.clone_from(&newer);
        Some(newer.unwrap_or(watched))
    }

    async fn turn(&mut self) -> Pace {
        self.metrics.turns.inc();
        let object = self.object();
        let spec = object.as_ref().map(|object| object.spec.clone());
        let targets = spec.as_ref().map(|spec| spec.probes.clone()).unwrap_or_default();
        let mtu = kinds::pod_mtu(spec.as_ref());
        self.probes.set(&targets, mtu);
        match &spec {
            Some(spec) => self.traffic.set(&spec.flows, spec.gates, spec.judged_since, mtu),
            None => self.traffic.set(&[], None, None, mtu),
        }

        let mut report = self.kinds.work(spec.as_ref(), &self.seen).await;
        self.complain(&report);
        report.probes = self.probes.results(&targets);
        report.traffic = self.traffic.report();
        self.tell_metrics(&report, targets.len());

        let well = report.checks.iter().all(|check| check.verdict == Verdict::Pass);
        let slow = if well { RESYNC } else { RESYNC_WHILE_REFUSED };
        let (next, rest) = match (&report.failure, report.pending) {
            (Some(_), _) => (AFTER_FAILURE, CALM),
            (None, Pending::Process) => (PROCESS, BURST),
            (None, Pending::Change) => (WORKING, BURST),
            (None, Pending::Unannounced) => (UNANNOUNCED, CALM),
            (None, Pending::Nothing) => (slow, CALM),
            (None, Pending::Reached) => (slow, BURST),
        };
        let mut pace = Pace { next, rest };
        // Its time is over and it did not go back: that has failed, and has its own pace.
        if let Some(left) = report.falls_back_in.filter(|left| !left.is_zero()) {
            pace.next = pace.next.min(left);
        }
        if let Some(object) = object {
            pace.next = pace.next.min(self.tell(&object, &report).await);
        }
        pace
    }

    fn complain(&mut self, report: &Report) {
        match &report.failure {
            Some(Failure {
                category, message, ..
            }) if *message != self.complaint => {
                tracing::warn!(category, message, "the agent does not go on");
                self.complaint.clone_from(message);
            }
            Some(_) => {}
            None if self.complaint.is_empty() => {}
            None => {
                tracing::info!(phase = ?report.phase, "the agent goes on");
                self.complaint.clear();
            }
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
    async fn tell(&mut self, object: &Arc<NodeMigration>, report: &Report) -> Duration {
        let old = object.status.clone().unwrap_or_default();
        let generation = object.metadata.generation.unwrap_or_default();
        let wanted = report::status(report, generation, &old, Timestamp::now());
        if object.status.as_ref() == Some(&wanted) {
            return RESYNC;
        }
        if let Some(wrote_at) = self.wrote_at
            && object.status.is_some()
            && !report::is_urgent(&old, &wanted)
            && wrote_at.elapsed() < LAZY_WRITE
        {
            return LAZY_WRITE.saturating_sub(wrote_at.elapsed());
        }
        match report::write(&self.api, object, &wanted).await {
            Ok(None) => RESYNC,
            Ok(Some(after)) => {
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
                AFTER_FAILURE
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
