//! The host's own thread: looks at the host, steps, and the dead man's switch. Nothing of the API, of probes or of listeners runs here:
//! however busy those are, and whoever keeps them so, a host that has to go back goes back in time.

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

use crate::goal::Seen;
use crate::health::Health;
use crate::kinds::Kinds;
use crate::metrics::Metrics;
use crate::report::{Pending, Report};

/// Changes come in bursts (a device, its address, its routes): one look for all of them.
const BURST: Duration = Duration::from_millis(150);
/// Shortest pause between two looks while nothing is asked of the node: pods come and go.
const CALM: Duration = Duration::from_secs(1);
/// Next look while a process is waited for: nothing announces its end.
const PROCESS: Duration = Duration::from_millis(500);
/// Next look while anything else is waited for: links and files announce themselves, this is the second net.
const WORKING: Duration = Duration::from_secs(2);
/// Next look while others are watched who announce nothing: what pods were told, and whom they have connections to.
const UNANNOUNCED: Duration = Duration::from_secs(5);
/// A pause that lasts longer than it should by this was none of ours.
const STOOD_STILL: Duration = Duration::from_secs(10);
/// Next try after something failed.
const AFTER_FAILURE: Duration = Duration::from_secs(2);
/// Next look while nothing changes: what no event announces (a kernel parameter, a firewall chain) is seen then.
const RESYNC: Duration = Duration::from_mins(1);
/// The same while a check does not pass: a person who corrects a kernel parameter wants to see that it is correct.
const RESYNC_WHILE_REFUSED: Duration = Duration::from_secs(10);

/// The thread could not be started.
#[derive(Debug, Error)]
#[error("could not start the host's own thread")]
pub struct StartError(#[source] Box<dyn std::error::Error + Send + Sync>);

/// What the thread works with. It is made on the thread: its sockets belong to the thread's own loop.
pub struct Parts {
    /// Hands and eyes, for each kind.
    pub kinds: Kinds,
    /// Woken by each change of the host.
    pub changed: Arc<Notify>,
    /// The watch of the host: a thread without one would be blind.
    pub watching: tokio::task::JoinHandle<()>,
}

/// What the thread found in its last look.
#[derive(Clone, Debug)]
pub struct Told {
    /// UID of the object that asked for it; `None` where there was none.
    pub uid: Option<String>,
    /// Generation of that object.
    pub generation: i64,
    /// What was found and done.
    pub report: Report,
}

/// The running thread. It ends with this.
#[derive(Debug)]
pub struct HostThread {
    reports: watch::Receiver<Option<Arc<Told>>>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl HostThread {
    /// Starts it in the network namespace of the calling thread, and waits until it has its parts.
    pub fn start<Error>(
        parts: impl FnOnce() -> Result<Parts, Error> + Send + 'static,
        goals: watch::Receiver<Seen>,
        metrics: Arc<Metrics>,
        health: Arc<Health>,
    ) -> Result<Self, StartError>
    where
        Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (tell, reports) = watch::channel(None);
        let (stop, stopped) = oneshot::channel();
        let (started, starts) = mpsc::channel();
        let body = move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => {
                    // The other end waits for it.
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
                    tell,
                    metrics,
                    health,
                    complaint: String::new(),
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

    /// What it finds. It is closed when the thread has ended.
    pub fn reports(&self) -> watch::Receiver<Option<Arc<Told>>> {
        self.reports.clone()
    }
}

impl Drop for HostThread {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && let Err(panic) = thread.join()
        {
            tracing::error!(?panic, "the host's own thread panicked");
        }
    }
}

/// When to look again without a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pace {
    next: Duration,
    /// Shortest pause before a change of the host makes the next look.
    rest: Duration,
}

struct Turns {
    kinds: Kinds,
    goals: watch::Receiver<Seen>,
    changed: Arc<Notify>,
    tell: watch::Sender<Option<Arc<Told>>>,
    metrics: Arc<Metrics>,
    health: Arc<Health>,
    /// What went wrong in the last turn: it is logged once, not every time it is tried again.
    complaint: String,
}

impl Turns {
    /// Turns until no goal can come any more.
    async fn run(mut self) {
        loop {
            let pace = self.turn().await;
            self.health.turned();
            let until = Instant::now() + pace.next;
            tokio::select! {
                // A new goal is not kept waiting, nor is a new question.
                changed = self.goals.changed() => if changed.is_err() { return },
                () = self.kinds.are_asked_anew() => {}
                () = self.changed.notified() => {
                    tokio::select! {
                        // A look that is due is not put off by what comes before it.
                        () = tokio::time::sleep_until(until.min(Instant::now() + pace.rest)) => {}
                        changed = self.goals.changed() => if changed.is_err() { return },
                        () = self.kinds.are_asked_anew() => {}
                    }
                    // What came during the pause is seen by the next look as well.
                    let _ = self.changed.notified().now_or_never();
                }
                () = tokio::time::sleep_until(until) => {}
            }
            // The process was stopped, or the machine was: what was said meanwhile is not heard yet.
            if Instant::now().saturating_duration_since(until) > STOOD_STILL {
                self.kinds.stood_still();
            }
        }
    }

    async fn turn(&mut self) -> Pace {
        self.metrics.turns.inc();
        let object = match self.goals.borrow_and_update().clone() {
            Seen::NotYet => None,
            Seen::Absent => {
                self.health.goal_read();
                None
            }
            Seen::Present(object) => {
                self.health.goal_read();
                Some(object)
            }
        };
        let spec = object.as_ref().map(|object| &object.spec);
        let report = self.kinds.work(spec, &self.goals).await;
        self.complain(&report);
        let pace = pace(&report);
        let told = Told {
            uid: object.as_ref().and_then(|object| object.uid()),
            generation: object.as_deref().map(generation).unwrap_or_default(),
            report,
        };
        self.tell.send_replace(Some(Arc::new(told)));
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
}

fn generation(object: &NodeMigration) -> i64 {
    object.metadata.generation.unwrap_or_default()
}

fn pace(report: &Report) -> Pace {
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
    // Its time is over and it did not go back: that has failed, and has its own pace.
    let falls_back_in = report.falls_back_in.filter(|left| !left.is_zero());
    Pace {
        next: falls_back_in.map_or(next, |left| next.min(left)),
        rest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_look_is_due_when_the_host_has_to_go_back() {
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
    fn what_it_cannot_be_started_with_is_said() {
        let (_goals, seen) = watch::channel(Seen::NotYet);
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
