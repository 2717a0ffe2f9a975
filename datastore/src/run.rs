//! Runs a conversion: observe both stores, decide, perform one step, and observe again.

mod batch;
mod copies;
mod error;
mod observe;
mod perform;
pub mod prepared;
mod report;
mod settle;
mod write;

pub use error::RunError;
pub use report::{Flags, Status, status};

use std::path::PathBuf;
use std::time::Duration;

use calico_datastore::controller_objects::ControllerObjects;
use calico_datastore::run::decide::{Goal, Next, Observed, Step, decide};
use calico_datastore::run::record::{Phase, Record};
use calico_datastore::run::refusal::Refusal;
use jiff::{SignedDuration, Timestamp};

use crate::backup::Backup;
use crate::error::StoreError;
use crate::lock::Lock;
use crate::stores::{CLUSTER_GUID, Stores};
use observe::observe;
use prepared::{NotConvertible, Prepared};
use settle::{Settle, wait};

/// Consecutive failures, each after the store's own patience, before the run fails. While Calico is paused, the run continues at
/// least until the end of the pause.
const FAILURES: u32 = 3;
/// Pause between two attempts.
const PAUSE: Duration = Duration::from_secs(1);

/// Options of a run.
#[derive(Clone, Debug)]
pub struct Options {
    /// Time after the pause in which v2 is not read.
    pub settle: SignedDuration,
    /// Longest pause before the conversion is aborted.
    pub pause_limit: SignedDuration,
    /// Keys in one transaction; by default, etcd accepts 128 changes and as many conditions.
    pub batch: usize,
    /// Folder of the backups; `None` when the caller makes them.
    pub backups: Option<PathBuf>,
    /// Whether the caller knows that no calico-node of v3 runs any more, so that no key stays in v3 because of them.
    pub no_nodes_of_v3: bool,
    /// Name of the holder of the lock, for other processes.
    pub holder: String,
}

/// Receives progress messages, one line at a time.
pub type Progress<'caller> = &'caller (dyn Fn(&str) + Sync);

/// A run on both stores that holds the lock.
struct Runner<'caller> {
    stores: &'caller Stores,
    options: &'caller Options,
    tell: Progress<'caller>,
    lock: Lock,
    /// Result of the conversion of v2's data, by the last read.
    prepared: Prepared,
    over_existing: bool,
    /// The backup of this run.
    backup: Option<Backup>,
    /// Cause of an automatic abort.
    why: Option<String>,
}

/// Reaches a goal from any state of the stores. Returns the record at the end.
///
/// # Errors
///
/// The run is refused, another process holds the lock, the data cannot be converted, the backup cannot be written, or a store
/// fails. [`RunError::Aborted`] and [`RunError::AbortFailed`] say that the conversion was undone, or could not be.
pub async fn run_to(
    stores: &Stores,
    options: &Options,
    goal: Goal,
    tell: Progress<'_>,
) -> Result<Option<Record>, RunError> {
    let (goal, prepared, why) = begin(stores, goal).await?;
    // A refused run writes nothing, not even the lock.
    if let Some(refusal) = refusal(stores, &prepared, goal).await? {
        return Err(RunError::Refused(refusal));
    }
    let lock = Lock::take(&stores.v3, &options.holder).await?;
    let mut runner = Runner {
        stores,
        options,
        tell,
        lock,
        prepared,
        over_existing: matches!(goal, Goal::Start { over_existing: true }),
        backup: None,
        why,
    };
    let ended = runner.reach(goal).await;
    let why = runner.why.take();
    // A lock that is not released expires.
    if let Err(error) = runner.lock.release().await {
        tell(&format!("the lock was not released and will expire: {error}"));
    }
    match (ended, why) {
        (Ok(_), Some(why)) => Err(RunError::Aborted { why }),
        (Err(error), Some(why)) => Err(RunError::AbortFailed {
            why,
            error: Box::new(error),
        }),
        (ended, None) => ended,
    }
}

/// Converts v2 as it is now. The goal becomes an abort when a conversion has paused Calico and v2 cannot be converted any more.
async fn begin(stores: &Stores, goal: Goal) -> Result<(Goal, Prepared, Option<String>), RunError> {
    let abort = Goal::Abort {
        after_completion: false,
    };
    match goal {
        // These goals need only the flag and the name of v2.
        Goal::AnnounceNodes | Goal::Reopen | Goal::Abort { .. } => {
            Ok((goal, Prepared::without_data(&stores.cluster().await?), None))
        }
        Goal::Start { .. } | Goal::Complete { .. } => {
            let tree = stores.v2.tree().await?;
            let error = match Prepared::of(&tree) {
                Ok(prepared) => return Ok((goal, prepared, None)),
                Err(error) => error,
            };
            if !is_begun(stores).await? {
                return Err(error.into());
            }
            let prepared = Prepared {
                remaining: ControllerObjects::of(&tree),
                ..Prepared::without_data(tree.value(CLUSTER_GUID).unwrap_or_default())
            };
            match goal {
                Goal::Complete {
                    despite_changes: true,
                    ..
                } => Ok((goal, prepared, None)),
                Goal::Complete { .. } => Err(error.into()),
                Goal::Start { .. } | Goal::AnnounceNodes | Goal::Reopen | Goal::Abort { .. } => {
                    Ok((abort, prepared, Some(unconvertible(&error))))
                }
            }
        }
    }
}

/// Whether a conversion that `start` continues has paused Calico.
async fn is_begun(stores: &Stores) -> Result<bool, StoreError> {
    let recorded = stores.record().await?;
    Ok(recorded.is_some_and(|recorded| {
        matches!(
            recorded.record.phase,
            Phase::Pausing | Phase::Paused | Phase::Writing | Phase::Written | Phase::Verified
        )
    }))
}

fn unconvertible(error: &NotConvertible) -> String {
    format!("the data of v2 during the pause cannot be converted: {error}")
}

/// Reason to refuse a goal in the present state of both stores. Changes nothing and takes no lock.
///
/// # Errors
///
/// A store does not answer, or its state cannot be read.
pub async fn refusal(
    stores: &Stores,
    prepared: &Prepared,
    goal: Goal,
) -> Result<Option<Refusal>, StoreError> {
    let observation = observe(stores, prepared, goal, SignedDuration::ZERO).await?;
    Ok(match decide(goal, &observation.observed) {
        Next::Refuse(refusal) => Some(refusal),
        Next::Run(_) | Next::Settle(_) | Next::Overdue(_) | Next::Done => None,
    })
}

impl Runner<'_> {
    async fn reach(&mut self, goal: Goal) -> Result<Option<Record>, RunError> {
        let mut goal = goal;
        let mut failures = 0;
        let mut settle = Settle::new(self.options.settle);
        // End of the pause, after which the conversion is aborted.
        let mut until: Option<Timestamp> = None;
        loop {
            let observation = match observe(self.stores, &self.prepared, goal, settle.remaining()).await {
                Ok(observation) => observation,
                Err(error) => {
                    self.retry(&mut failures, until, error).await?;
                    continue;
                }
            };
            until = paused_until(&observation.observed);
            let step = match decide(goal, &observation.observed) {
                Next::Run(step) => step,
                Next::Settle(until) => {
                    if settle.begin() {
                        (self.tell)(&format!(
                            "waiting until {} for CNI plugins that started before the pause",
                            until.strftime("%H:%M:%SZ")
                        ));
                    }
                    wait(until).await;
                    continue;
                }
                Next::Overdue(since) => {
                    self.abort(&mut goal, format!("the pause had to end by {since}"));
                    continue;
                }
                Next::Done => return Ok(observation.observed.record),
                Next::Refuse(refusal) => return Err(RunError::Refused(refusal)),
            };
            let is_aborting = matches!(goal, Goal::Reopen | Goal::Abort { .. });
            match self.perform(step, observation).await {
                Ok(()) => failures = 0,
                // The next read shows whether the step was performed.
                Err(RunError::Store(
                    error @ (StoreError::Unreachable { .. } | StoreError::Changed { .. }),
                )) => {
                    self.retry(&mut failures, until, error).await?;
                }
                Err(RunError::Aborted { why }) if !is_aborting => self.abort(&mut goal, why),
                Err(RunError::NotConvertible(error)) if step == Step::TakeSnapshot => {
                    self.abort(&mut goal, unconvertible(&error));
                }
                // Another process may continue: no further write.
                Err(error @ RunError::Store(StoreError::LockLost { .. })) => return Err(error),
                // Calico is paused, and waiting does not correct such an error.
                Err(error) if is_paused_by_start(step) && !is_aborting => {
                    self.abort(&mut goal, error.to_string());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits before another attempt, or returns the error after too many. While Calico is paused, attempts continue until the end
    /// of the pause.
    async fn retry(
        &self,
        failures: &mut u32,
        until: Option<Timestamp>,
        error: StoreError,
    ) -> Result<(), RunError> {
        *failures += 1;
        let is_late = until.is_none_or(|until| until <= Timestamp::now());
        if *failures >= FAILURES && is_late {
            return Err(error.into());
        }
        (self.tell)(&format!("{error}; retrying"));
        // A back-off, with the deadline above.
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }

    fn abort(&mut self, goal: &mut Goal, why: String) {
        (self.tell)(&format!("{why}; aborting the conversion"));
        self.why = Some(why);
        *goal = Goal::Abort {
            after_completion: false,
        };
    }
}

/// End of the pause, if this conversion has paused Calico.
fn paused_until(observed: &Observed) -> Option<Timestamp> {
    let record = observed.record.as_ref()?;
    let is_paused = !matches!(record.phase, Phase::Completed | Phase::Aborted);
    is_paused.then_some(record.abort_at)
}

/// Whether Calico is paused before this step, as a step of `start`.
fn is_paused_by_start(step: Step) -> bool {
    match step {
        Step::RecordPaused
        | Step::Keep
        | Step::TakeSnapshot
        | Step::Write { .. }
        | Step::RecordWritten
        | Step::Verify
        | Step::StartOver => true,
        Step::Announce
        | Step::Pause
        | Step::RecordNodes
        | Step::AnnounceCompletion
        | Step::OpenV3
        | Step::RecordCompleted
        | Step::AnnounceAbort
        | Step::CloseV3
        | Step::OpenV2
        | Step::Restore => false,
    }
}
