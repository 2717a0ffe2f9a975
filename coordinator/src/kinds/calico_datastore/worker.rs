//! What takes longer than a pass: a conversion, its completion, its way back. One at a time, beside the passes; it ends with this process,
//! and with its leadership.

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

/// What failed is made again after so long.
const AGAIN: Duration = Duration::from_secs(10);

/// Who works on the stores.
#[derive(Debug, Default)]
pub struct Worker {
    running: Option<Running>,
    ended: Option<Ended>,
    /// Why it went back by itself, until somebody has asked.
    took_back: Option<String>,
}

#[derive(Debug)]
struct Running {
    work: StoreWork,
    said: Arc<Mutex<String>>,
    /// Why it failed before.
    refused: Option<String>,
    task: JoinHandle<Result<Option<Record>, RunError>>,
}

#[derive(Debug)]
struct Ended {
    work: StoreWork,
    message: String,
    needs_a_person: bool,
    at: Instant,
}

impl Worker {
    /// Begins. What was under way ends.
    pub fn begin(&mut self, stores: Arc<Stores>, options: Options, work: StoreWork, over_existing: bool) {
        self.stop();
        let refused = self
            .ended
            .take()
            .filter(|ended| ended.needs_a_person && ended.work.is_back() == work.is_back())
            .map(|ended| ended.message);
        let said = Arc::new(Mutex::new("both stores are read".to_owned()));
        let told = Arc::clone(&said);
        let goal = goal(work, over_existing);
        let task = tokio::spawn(async move {
            let tell = |line: &str| {
                info!(line, "datastore");
                line.clone_into(&mut told.lock().unwrap_or_else(PoisonError::into_inner));
            };
            run::go(&stores, &options, goal, &tell).await
        });
        self.running = Some(Running {
            work,
            said,
            refused,
            task,
        });
    }

    /// Ends what is under way, as a crash would: whoever goes on finds out how far it came.
    pub fn stop(&mut self) {
        if let Some(running) = self.running.take() {
            running.task.abort();
        }
    }

    /// What is being done.
    pub async fn look(&mut self) -> Work {
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
                said,
                refused: running.refused.clone(),
            };
        }
        match &self.ended {
            Some(ended) if ended.at.elapsed() < AGAIN => Work::Failed {
                work: ended.work,
                message: ended.message.clone(),
                needs_a_person: ended.needs_a_person,
            },
            Some(_) | None => Work::Idle,
        }
    }

    /// Why it went back by itself, if it did since somebody asked.
    pub fn took_back(&mut self) -> Option<String> {
        self.took_back.take()
    }

    fn end(
        &mut self,
        work: StoreWork,
        ended: Result<Result<Option<Record>, RunError>, tokio::task::JoinError>,
    ) {
        let (message, needs_a_person) = match ended {
            Ok(Ok(_)) => {
                self.ended = None;
                return;
            }
            Ok(Err(RunError::TookBack { why })) => {
                self.took_back = Some(why);
                self.ended = None;
                return;
            }
            Ok(Err(error)) => {
                let hint = hints::of(&error)
                    .map(|hint| format!(". {hint}"))
                    .unwrap_or_default();
                if let RunError::NotTakenBack { why, .. } = &error {
                    self.took_back = Some(why.clone());
                }
                (format!("{error}{hint}"), needs_a_person(&error))
            }
            Err(error) => (format!("what was done on the stores ended: {error}"), false),
        };
        self.ended = Some(Ended {
            work,
            message,
            needs_a_person,
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
            // Who asks has looked, and knows what the cluster has of it.
            despite_missing: true,
        },
        StoreWork::TakeBack { nodes_of_v3: true } => Goal::Reopen,
        StoreWork::TakeBack { nodes_of_v3: false } => Goal::Abort {
            after_completion: false,
        },
    }
}

/// Whether it does not pass by itself.
fn needs_a_person(error: &RunError) -> bool {
    match error {
        RunError::Store(error) => is_of_the_store(error),
        RunError::NotTakenBack { error, .. } => needs_a_person(error),
        RunError::Refused(_)
        | RunError::NotConvertible(_)
        | RunError::Backup(_)
        | RunError::TookBack { .. } => true,
    }
}

fn is_of_the_store(error: &StoreError) -> bool {
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
