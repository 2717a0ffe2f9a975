//! A conversion as it is carried out: look, decide, make one step, look again.

mod batch;
mod keep;
mod perform;
pub mod prepared;
mod report;
mod write;

pub use report::{Flags, Status, status};

use std::path::PathBuf;
use std::time::Duration;

use calico_datastore::left::Left;
use calico_datastore::run::decide::{Goal, Next, Observed, ReadyV2, Step, decide};
use calico_datastore::run::record::{Phase, Record};
use calico_datastore::run::refusal::Refusal;
use calico_datastore::v2::READY;
use jiff::{SignedDuration, Timestamp};
use thiserror::Error;
use tokio::time::Instant;

use crate::backup::{Backup, BackupError};
use crate::error::StoreError;
use crate::lock::Lock;
use crate::stores::{CLUSTER_GUID, ROOT, Recorded, Stores, ready_v3};
use prepared::{NotConvertible, Prepared};

/// Looks and steps that fail one after the other, each after the store's own patience, before it is given up. While Calico is paused
/// it is not given up before the pause is over.
const FAILURES: u32 = 3;
/// Between two of them.
const PAUSE: Duration = Duration::from_secs(1);
/// A wait is looked at anew so often: the clock may have been set.
const LOOK: Duration = Duration::from_secs(1);

/// What may be chosen.
#[derive(Clone, Debug)]
pub struct Options {
    /// How long v2 is left alone after the pause.
    pub settle: SignedDuration,
    /// How long the pause may last before it goes back by itself.
    pub pause_limit: SignedDuration,
    /// Keys of one transaction; etcd takes 128 changes, and as many conditions, by default.
    pub batch: usize,
    /// Where backups are written; `None` where whoever asks has seen to it.
    pub backups: Option<PathBuf>,
    /// Whether whoever asks has seen that no calico-node of v3 runs any more: nothing is left in v3 for their sake.
    pub no_nodes_of_v3: bool,
    /// Who does this, for whoever finds the lock taken.
    pub holder: String,
}

/// Why it did not get where it was to go.
#[derive(Debug, Error)]
pub enum RunError {
    /// A store.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It was not begun, or not gone on with.
    #[error("{0}")]
    Refused(Refusal),
    /// v2 cannot be converted.
    #[error(transparent)]
    NotConvertible(#[from] NotConvertible),
    /// No backup, no change.
    #[error(transparent)]
    Backup(#[from] BackupError),
    /// It went back by itself.
    #[error("{why}: it was taken back, Calico works with etcd v2 again")]
    TookBack {
        /// Why.
        why: String,
    },
    /// It was to go back by itself, and does not.
    #[error("{why}: it was to be taken back, and that failed: {error}")]
    NotTakenBack {
        /// Why it was to go back.
        why: String,
        /// Why it does not.
        error: Box<RunError>,
    },
}

impl RunError {
    /// What a person does about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Store(error) => error.hint(),
            Self::Refused(refusal) => Some(refusal.hint().to_owned()),
            Self::NotConvertible(error) => Some(error.hint().to_owned()),
            Self::Backup(_) => Some("name a folder that can be written with --output-dir".to_owned()),
            Self::TookBack { .. } => Some("mend that, then start again".to_owned()),
            Self::NotTakenBack { error, .. } => Some(format!(
                "Calico may still be paused: `kubectl replumb datastore status`, then `abort`{}",
                error.hint().map(|hint| format!("; {hint}")).unwrap_or_default()
            )),
        }
    }

    /// Whether nothing was changed because something is not as it has to be.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Refused(_) | Self::NotConvertible(_) => true,
            Self::Store(_) | Self::Backup(_) | Self::TookBack { .. } | Self::NotTakenBack { .. } => false,
        }
    }
}

/// Where what happens is told, a line at a time.
pub type Tell<'caller> = &'caller (dyn Fn(&str) + Sync);

/// Somebody at work on both stores, with the lock.
struct Runner<'caller> {
    stores: &'caller Stores,
    options: &'caller Options,
    tell: Tell<'caller>,
    lock: Lock,
    /// What v2 is converted to, as it was read last.
    prepared: Prepared,
    over_existing: bool,
    /// The backup that this one has made.
    backup: Option<Backup>,
    /// Why it goes back, if it does by itself.
    why: Option<String>,
}

/// Goes to a goal, from wherever somebody has left it. Returns the record at the end.
pub async fn go(
    stores: &Stores,
    options: &Options,
    goal: Goal,
    tell: Tell<'_>,
) -> Result<Option<Record>, RunError> {
    let (goal, prepared, why) = begin(stores, goal).await?;
    // What is refused writes nothing, the lock not either.
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
    let ended = runner.arrive(goal).await;
    let why = runner.why.take();
    // One that could not be given back goes by itself.
    if let Err(error) = runner.lock.release().await {
        tell(&format!(
            "the lock was not given back, it goes by itself: {error}"
        ));
    }
    match (ended, why) {
        (Ok(_), Some(why)) => Err(RunError::TookBack { why }),
        (Err(error), Some(why)) => Err(RunError::NotTakenBack {
            why,
            error: Box::new(error),
        }),
        (ended, None) => ended,
    }
}

/// What it begins with: v2 as it is converted now. Where Calico is paused by us and v2 cannot be converted any more, it goes back.
async fn begin(stores: &Stores, goal: Goal) -> Result<(Goal, Prepared, Option<String>), RunError> {
    let abort = Goal::Abort {
        after_completion: false,
    };
    match goal {
        // Whoever goes back needs nothing of v2 but its flag and its name.
        Goal::AnnounceNodes | Goal::Reopen | Goal::Abort { .. } => {
            Ok((goal, Prepared::nothing(&stores.cluster().await?), None))
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
                left: Left::of(&tree),
                ..Prepared::nothing(tree.value(CLUSTER_GUID).unwrap_or_default())
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

/// Whether Calico is paused by a conversion that `start` goes on with.
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
    format!("what v2 says since it is paused cannot be converted: {error}")
}

/// What stands against a goal as both stores are at this moment. Changes nothing, takes no lock.
pub async fn refusal(
    stores: &Stores,
    prepared: &Prepared,
    goal: Goal,
) -> Result<Option<Refusal>, StoreError> {
    let looked = look(stores, prepared, goal, SignedDuration::ZERO).await?;
    Ok(match decide(goal, &looked.observed) {
        Next::Refuse(refusal) => Some(refusal),
        Next::Run(_) | Next::Settle(_) | Next::Overdue(_) | Next::Done => None,
    })
}

/// Both stores as they were read.
struct Looked {
    observed: Observed,
    /// The revision of the record.
    revision: i64,
    /// The index of v2's flag, if it is there.
    index: Option<u64>,
}

/// Both stores as they are now. v2 first: who decides by the record and the flag of v3 must not write v2 by what came after them.
async fn look(
    stores: &Stores,
    prepared: &Prepared,
    goal: Goal,
    settle: SignedDuration,
) -> Result<Looked, StoreError> {
    let flag = stores.v2.get(READY).await?;
    let (recorded, information, keys) = tokio::try_join!(
        stores.record(),
        stores.cluster_information(),
        stores.v3.count(ROOT),
    )?;
    let (record, revision) = match recorded {
        Some(Recorded { record, revision }) => (Some(record), revision),
        None => (None, 0),
    };
    let missing = match goal {
        Goal::Complete {
            despite_missing: false,
            ..
        } => stores.missing(prepared.left.clone()).await?,
        Goal::Complete { .. }
        | Goal::Start { .. }
        | Goal::AnnounceNodes
        | Goal::Reopen
        | Goal::Abort { .. } => Left::default(),
    };
    let observed = Observed {
        record,
        v2: ReadyV2::of(flag.as_ref().map(|flag| flag.value.as_str())),
        v3: ready_v3(information.as_ref().map(|(_, value)| value))?,
        keys,
        cluster: prepared.cluster.clone(),
        hash: prepared.hash.clone(),
        missing,
        settle,
        now: Timestamp::now(),
    };
    Ok(Looked {
        observed,
        revision,
        index: flag.map(|flag| flag.index),
    })
}

impl Runner<'_> {
    async fn arrive(&mut self, goal: Goal) -> Result<Option<Record>, RunError> {
        let mut goal = goal;
        let mut failures = 0;
        let mut settle = Settle::new(self.options.settle);
        // While it is paused, when it goes back.
        let mut until: Option<Timestamp> = None;
        loop {
            let looked = match look(self.stores, &self.prepared, goal, settle.left()).await {
                Ok(looked) => looked,
                Err(error) => {
                    self.again(&mut failures, until, error).await?;
                    continue;
                }
            };
            until = paused_until(&looked.observed);
            let step = match decide(goal, &looked.observed) {
                Next::Run(step) => step,
                Next::Settle(until) => {
                    if settle.begin() {
                        (self.tell)(&format!(
                            "waiting until {}: what CNI plugins began before the pause ends",
                            until.strftime("%H:%M:%SZ")
                        ));
                    }
                    wait(until).await;
                    continue;
                }
                Next::Overdue(since) => {
                    self.go_back(&mut goal, format!("the pause was to end by {since}"));
                    continue;
                }
                Next::Done => return Ok(looked.observed.record),
                Next::Refuse(refusal) => return Err(RunError::Refused(refusal)),
            };
            let is_going_back = matches!(goal, Goal::Reopen | Goal::Abort { .. });
            match self.perform(step, looked).await {
                Ok(()) => failures = 0,
                // Whether it was made the next look tells.
                Err(RunError::Store(
                    error @ (StoreError::Unreachable { .. } | StoreError::Changed { .. }),
                )) => {
                    self.again(&mut failures, until, error).await?;
                }
                Err(RunError::TookBack { why }) if !is_going_back => self.go_back(&mut goal, why),
                Err(RunError::NotConvertible(error)) if step == Step::TakeSnapshot => {
                    self.go_back(&mut goal, unconvertible(&error));
                }
                // Somebody else may go on: not one write more.
                Err(error @ RunError::Store(StoreError::LockLost { .. })) => return Err(error),
                // Calico is paused, and what etcd says does not get better by waiting.
                Err(error) if is_paused_by_start(step) && !is_going_back => {
                    self.go_back(&mut goal, error.to_string());
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Something did not answer. Is it looked at again? While Calico is paused, until that is to end.
    async fn again(
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
        (self.tell)(&format!("{error}; looking again"));
        // A back-off, with the deadline above.
        tokio::time::sleep(PAUSE).await;
        Ok(())
    }

    fn go_back(&mut self, goal: &mut Goal, why: String) {
        (self.tell)(&format!("{why}; taking it back"));
        self.why = Some(why);
        *goal = Goal::Abort {
            after_completion: false,
        };
    }
}

/// Until when Calico may be paused by this conversion, if it is.
fn paused_until(observed: &Observed) -> Option<Timestamp> {
    let record = observed.record.as_ref()?;
    let is_paused = !matches!(record.phase, Phase::Completed | Phase::Aborted);
    is_paused.then_some(record.abort_at)
}

/// Whether it is a step of `start` before which Calico was paused.
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

/// The time in which v2 is left alone: not longer than it was meant to be by a clock that nobody sets.
struct Settle {
    whole: SignedDuration,
    begun: Option<Instant>,
}

impl Settle {
    fn new(whole: SignedDuration) -> Self {
        Self { whole, begun: None }
    }

    /// Whether it begins with this.
    fn begin(&mut self) -> bool {
        let is_first = self.begun.is_none();
        self.begun.get_or_insert_with(Instant::now);
        is_first
    }

    /// As the decision takes it: all of it, or nothing once it is over.
    fn left(&self) -> SignedDuration {
        let is_over = self
            .begun
            .is_some_and(|begun| begun.elapsed() >= self.whole.unsigned_abs());
        if is_over { SignedDuration::ZERO } else { self.whole }
    }
}

/// A wait that the clock ends.
async fn wait(until: Timestamp) {
    let left = Timestamp::now().duration_until(until);
    if left.is_positive() {
        tokio::time::sleep(left.unsigned_abs().min(LOOK)).await;
    }
}
