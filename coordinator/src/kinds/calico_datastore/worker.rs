//! Work that takes longer than a pass: a conversion, its completion, its rollback. One at a time, beside the passes. The work
//! ends with this process, and with its leadership.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use calico_datastore::cluster::step::StoreWork;
use calico_datastore::cluster::view::Work;
use calico_datastore::run::decide::Goal;
use calico_datastore::run::record::Record;
use datastore::error::StoreError;
use datastore::run::{self, Options, RunError};
use datastore::stores::Stores;
use tokio::task::JoinHandle;
use tracing::info;

use super::hints;

/// Failed work starts again after this time.
const AGAIN: Duration = Duration::from_secs(10);

/// The work on the stores.
#[derive(Debug, Default)]
pub struct Worker {
    running: Option<Running>,
    ended: Option<Ended>,
    /// Why the work rolled back without a command, until the reason is taken.
    took_back: Option<String>,
}

#[derive(Debug)]
struct Running {
    work: StoreWork,
    said: Arc<Mutex<String>>,
    /// Why the former attempt failed.
    refused: Option<String>,
    task: JoinHandle<Result<Option<Record>, RunError>>,
}

#[derive(Debug)]
struct Ended {
    work: StoreWork,
    message: String,
    needs_user: bool,
    at: Instant,
}

impl Worker {
    /// Starts this work, and stops other work.
    pub fn begin(&mut self, stores: Arc<Stores>, options: Options, work: StoreWork, over_existing: bool) {
        self.stop();
        let refused = self
            .ended
            .take()
            .filter(|ended| ended.needs_user && ended.work.is_rollback() == work.is_rollback())
            .map(|ended| ended.message);
        let said = Arc::new(Mutex::new("reading both stores".to_owned()));
        let told = Arc::clone(&said);
        let goal = goal(work, over_existing);
        let task = tokio::spawn(async move {
            let tell = |line: &str| {
                info!(line, "datastore progress");
                line.clone_into(&mut told.lock().unwrap_or_else(PoisonError::into_inner));
            };
            run::run_to(&stores, &options, goal, &tell).await
        });
        self.running = Some(Running {
            work,
            said,
            refused,
            task,
        });
    }

    /// Stops the work, as a crash would: the next work finds out how far it came.
    pub fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            running.task.abort();
        }
    }

    /// The state of the work.
    pub async fn state(&mut self) -> Work {
        if let Some(running) = self.running.take_if(|running| running.task.is_finished()) {
            self.end(running.work, running.task.await);
        }
        if let Some(running) = &self.running {
            let said = running
                .said
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            return Work::Busy {
                work: running.work,
                progress: said,
                refused: running.refused.clone(),
            };
        }
        match &self.ended {
            Some(ended) if ended.at.elapsed() < AGAIN => Work::Failed {
                work: ended.work,
                message: ended.message.clone(),
                needs_user: ended.needs_user,
            },
            Some(_) | None => Work::Idle,
        }
    }

    /// Why the work rolled back without a command, since the last call.
    pub fn take_rollback_reason(&mut self) -> Option<String> {
        self.took_back.take()
    }

    fn end(
        &mut self,
        work: StoreWork,
        ended: Result<Result<Option<Record>, RunError>, tokio::task::JoinError>,
    ) {
        let (message, needs_user) = match ended {
            Ok(Ok(_)) => {
                self.ended = None;
                return;
            }
            Ok(Err(RunError::Aborted { why })) => {
                self.took_back = Some(why);
                self.ended = None;
                return;
            }
            Ok(Err(error)) => {
                let hint = hints::hint(&error)
                    .map(|hint| format!(". {hint}"))
                    .unwrap_or_default();
                if let RunError::AbortFailed { why, .. } = &error {
                    self.took_back = Some(why.clone());
                }
                (format!("{error}{hint}"), needs_user(&error))
            }
            Err(error) => (format!("the work on the stores failed: {error}"), false),
        };
        self.ended = Some(Ended {
            work,
            message,
            needs_user,
            at: Instant::now(),
        });
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop();
    }
}

fn goal(work: StoreWork, over_existing: bool) -> Goal {
    match work {
        StoreWork::Convert => Goal::Start { over_existing },
        StoreWork::AnnounceNodes => Goal::AnnounceNodes,
        StoreWork::Complete => Goal::Complete {
            despite_changes: false,
            // The coordinator has checked before, and knows which objects the cluster has.
            despite_missing: true,
        },
        StoreWork::Abort { nodes_of_v3: true } => Goal::Reopen,
        StoreWork::Abort { nodes_of_v3: false } => Goal::Abort {
            after_completion: false,
        },
    }
}

/// Whether a user has to act, because a new attempt would fail again.
fn needs_user(error: &RunError) -> bool {
    match error {
        RunError::Store(error) => store_needs_user(error),
        RunError::AbortFailed { error, .. } => needs_user(error),
        RunError::Refused(_)
        | RunError::NotConvertible(_)
        | RunError::Backup(_)
        | RunError::Aborted { .. } => true,
    }
}

fn store_needs_user(error: &StoreError) -> bool {
    match error {
        StoreError::Unreachable { .. }
        | StoreError::Locked { .. }
        | StoreError::Changed { .. }
        | StoreError::LockLost { .. } => false,
        StoreError::Access { .. }
        | StoreError::File { .. }
        | StoreError::Answer { .. }
        | StoreError::NoV2 { .. }
        | StoreError::NoV3 { .. } => true,
    }
}
