//! The host thread: observations of the host, steps, and the dead man's switch. API requests, probes and listeners run elsewhere:
//! however busy they are, a host that has to be rolled back is rolled back in time.

use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use api::NodeMigration;
use api::node_migration::Failure;
use engine::check::Verdict;
use futures::FutureExt;
use kube::ResourceExt;
use thiserror::Error;
use tokio::sync::{Notify, oneshot, watch};
use tokio::time::Instant;

use crate::health::Health;
use crate::kinds::{self, Kinds};
use crate::metrics::Metrics;
use crate::report::{Pending, Report};
use crate::watched_object::WatchedObject;

/// Changes arrive in bursts (a device, its address, its routes): one observation for all of them.
const BURST: Duration = Duration::from_millis(150);
/// Shortest pause between two observations while the node has no goal: pods are created and deleted.
const CALM: Duration = Duration::from_secs(1);
/// Pause while the agent waits for a process: no event announces its end.
const PROCESS: Duration = Duration::from_millis(500);
/// Pause while the agent waits for any other change: links and files cause events, so that this is only a fallback.
const WORKING: Duration = Duration::from_secs(2);
/// Pause while state is observed that causes no events: environment of pods and their connections.
const UNANNOUNCED: Duration = Duration::from_secs(5);
/// A pause that is longer than planned by this means that the process was suspended.
const STOOD_STILL: Duration = Duration::from_secs(10);
/// Pause after a failure.
const AFTER_FAILURE: Duration = Duration::from_secs(2);
/// Pause without events: changes that cause no event (a kernel parameter, a firewall chain) are seen then.
const RESYNC: Duration = Duration::from_mins(1);
/// The same while a check does not pass: a user who corrects a kernel parameter sees the result soon.
const RESYNC_WHILE_REFUSED: Duration = Duration::from_secs(10);

/// The thread could not be started.
#[derive(Debug, Error)]
#[error("could not start the host thread")]
pub struct StartError(#[source] Box<dyn std::error::Error + Send + Sync>);

/// The objects that the thread works with, created on the thread: their sockets belong to the thread's own loop.
pub struct Parts {
    /// Worker or observer of each kind.
    pub kinds: Kinds,
    /// Notified by each change of the host.
    pub changed: Arc<Notify>,
    /// The watch of the host: the thread ends if it ends.
    pub watching: tokio::task::JoinHandle<()>,
}

/// Report of the thread's last turn.
#[derive(Clone, Debug)]
pub struct TurnReport {
    /// UID of the NodeMigration; `None` without one.
    pub uid: Option<String>,
    /// Generation of that object.
    pub generation: i64,
    /// Observations and results.
    pub report: Report,
}

/// The running thread. Dropping it ends the thread.
#[derive(Debug)]
pub struct HostThread {
    reports: watch::Receiver<Option<Arc<TurnReport>>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HostThread {
    /// Starts the thread in the network namespace of the calling thread, and waits until its parts are created.
    ///
    /// # Errors
    ///
    /// The thread or its runtime cannot be started, or `parts` returns an error.
    pub fn start<Error>(
        parts: impl FnOnce() -> Result<Parts, Error> + Send + 'static,
        goals: watch::Receiver<WatchedObject>,
        metrics: Arc<Metrics>,
        health: Arc<Health>,
    ) -> Result<Self, StartError>
    where
        Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (report_sender, reports) = watch::channel(None);
        let (stop, stopped) = oneshot::channel();
        let (started, starts) = mpsc::channel();
        let body = move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => {
                    // The receiver waits for it.
                    let _ = started.send(Err(error.into()));
                    return;
                }
            };
            runtime.block_on(async {
                let Parts {
                    kinds,
                    changed,
                    watching,
                } = match parts() {
                    Ok(parts) => parts,
                    Err(error) => {
                        let _ = started.send(Err(error.into()));
                        return;
                    }
                };
                let _ = started.send(Ok(()));
                let turns = Turns {
                    kinds,
                    goals,
                    changed,
                    report_sender,
                    metrics,
                    health,
                    last_failure: String::new(),
                };
                tokio::select! {
                    () = Box::pin(turns.run()) => {}
                    _ = stopped => {}
                    ended = watching => tracing::error!(?ended, "the watch of the host ended"),
                }
            });
        };
        let thread = std::thread::Builder::new()
            .name("host".to_owned())
            .spawn(body)
            .map_err(|error| StartError(error.into()))?;
        match starts.recv() {
            Ok(Ok(())) => Ok(Self {
                reports,
                stop: Some(stop),
                thread: Some(thread),
            }),
            Ok(Err(error)) => Err(StartError(error)),
            Err(error) => Err(StartError(error.into())),
        }
    }

    /// Reports of the thread. The channel is closed when the thread has ended.
    pub fn reports(&self) -> watch::Receiver<Option<Arc<TurnReport>>> {
        self.reports.clone()
    }
}

impl Drop for HostThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && let Err(panic) = thread.join()
        {
            tracing::error!(?panic, "the host thread panicked");
        }
    }
}

/// Time of the next observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pace {
    next: Duration,
    /// Shortest pause before a change of the host causes the next observation.
    rest: Duration,
}

struct Turns {
    kinds: Kinds,
    goals: watch::Receiver<WatchedObject>,
    changed: Arc<Notify>,
    report_sender: watch::Sender<Option<Arc<TurnReport>>>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    /// The failure of the last turn: logged once, not at each retry.
    last_failure: String,
}

impl Turns {
    /// Runs until the channel of goals is closed.
    async fn run(mut self) {
        loop {
            let pace = self.turn().await;
            self.health.turned();
            let until = Instant::now() + pace.next;
            tokio::select! {
                // A new goal is handled immediately, and so is a new question.
                changed = self.goals.changed() => if changed.is_err() { return },
                () = self.kinds.question_changed() => {}
                () = self.changed.notified() => {
                    tokio::select! {
                        // A change does not delay an observation that is due.
                        () = tokio::time::sleep_until(until.min(Instant::now() + pace.rest)) => {}
                        changed = self.goals.changed() => if changed.is_err() { return },
                        () = self.kinds.question_changed() => {}
                    }
                    // The next observation includes changes during the pause.
                    let _ = self.changed.notified().now_or_never();
                }
                () = tokio::time::sleep_until(until) => {}
            }
            // The process or the machine was suspended: changes of the API during that time are not known yet.
            if Instant::now().saturating_duration_since(until) > STOOD_STILL {
                self.kinds.record_suspension();
            }
        }
    }

    async fn turn(&mut self) -> Pace {
        self.metrics.turns.inc();
        let object = match self.goals.borrow_and_update().clone() {
            WatchedObject::Unknown => None,
            WatchedObject::Absent => {
                self.health.goal_read();
                None
            }
            WatchedObject::Present(object) => {
                self.health.goal_read();
                Some(object)
            }
        };
        let spec = object.as_ref().map(|object| &object.spec);
        let report = self.kinds.work(spec, &self.goals).await;
        self.log_failure(&report);
        let pace = pace(&report);
        let turn_report = TurnReport {
            uid: object.as_ref().and_then(|object| object.uid()),
            generation: object.as_deref().map(generation).unwrap_or_default(),
            report,
        };
        self.report_sender.send_replace(Some(Arc::new(turn_report)));
        pace
    }

    fn log_failure(&mut self, report: &Report) {
        match &report.failure {
            Some(Failure {
                category, message, ..
            }) if *message != self.last_failure => {
                tracing::warn!(category, message, "the agent cannot continue");
                self.last_failure.clone_from(message);
            }
            Some(_) => {}
            None if self.last_failure.is_empty() => {}
            None => {
                tracing::info!(message = report.message, "the agent continues");
                self.last_failure.clear();
            }
        }
    }
}

fn generation(object: &NodeMigration) -> i64 {
    object.metadata.generation.unwrap_or_default()
}

fn pace(report: &Report) -> Pace {
    let all_pass = kinds::checks(&report.kinds)
        .iter()
        .all(|check| check.verdict == Verdict::Pass);
    let slow = if all_pass { RESYNC } else { RESYNC_WHILE_REFUSED };
    let (next, rest) = match (&report.failure, report.pending) {
        (Some(_), _) => (AFTER_FAILURE, CALM),
        (None, Pending::Process) => (PROCESS, BURST),
        (None, Pending::Change) => (WORKING, BURST),
        (None, Pending::Steps) => (BURST, BURST),
        (None, Pending::Unobservable) => (UNANNOUNCED, CALM),
        (None, Pending::NoGoal) => (slow, CALM),
        (None, Pending::GoalReached) => (slow, BURST),
    };
    // The time is over and the host was not rolled back: the rollback has failed, and a failure has its own pause.
    let falls_back_in = report.falls_back_in.filter(|remaining| !remaining.is_zero());
    Pace {
        next: falls_back_in.map_or(next, |remaining| next.min(remaining)),
        rest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_observation_is_due_when_the_host_has_to_be_rolled_back() {
        let report = Report {
            pending: Pending::Change,
            falls_back_in: Some(Duration::from_millis(700)),
            ..Report::default()
        };
        assert_eq!(pace(&report).next, Duration::from_millis(700));
        let over = Report {
            falls_back_in: Some(Duration::ZERO),
            ..report.clone()
        };
        assert_eq!(pace(&over).next, WORKING, "no busy loop");
        let far = Report {
            falls_back_in: Some(Duration::from_mins(10)),
            ..report
        };
        assert_eq!(pace(&far).next, WORKING);
    }

    #[test]
    fn a_failed_start_names_the_cause() {
        let (_goals, seen) = watch::channel(WatchedObject::Unknown);
        let error = HostThread::start(
            || Err("no netlink"),
            seen,
            Arc::new(Metrics::new().unwrap()),
            Arc::new(Health::starting()),
        )
        .unwrap_err();
        assert!(runtime::error::chain(&error).contains("no netlink"), "{error}");
    }
}
