//! Decides the next step from the record and both flags.

pub use calico::etcd::ReadyV3;
use jiff::{SignedDuration, Timestamp};

use super::record::{Phase, Record};
use super::refusal::Refusal;
use crate::controller_objects::ControllerObjects;

/// Goal of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// v2 is paused, and all its data is in v3.
    Start {
        /// Continue although v3 has keys below `/calico/`: equal keys are overwritten.
        over_existing: bool,
    },
    /// The record says that calico-nodes of v3 may run from now on.
    AnnounceNodes,
    /// v3 is open.
    Complete {
        /// Continue although v2 has changed since the conversion.
        despite_changes: bool,
        /// Continue although objects of Calico's controllers are missing in v3.
        despite_missing: bool,
    },
    /// v2 is open again. v3 stays closed and keeps its data, because a calico-node of v3 opens an empty v3. When none runs any
    /// more, `Abort` completes the rollback.
    Reopen,
    /// v2 is open again, and v3 is restored.
    Abort {
        /// Also from an open v3: newer pods lose their network.
        after_completion: bool,
    },
}

/// `/calico/v1/Ready`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadyV2 {
    /// The key does not exist: this is not a store of Calico v2.
    Missing,
    /// Calico works with v2.
    Open,
    /// Calico is paused; the value of the key. Every value except `true` counts as `false`.
    Paused(String),
}

impl ReadyV2 {
    /// Derived from the value of the key.
    pub fn of(value: Option<&str>) -> Self {
        match value {
            None => Self::Missing,
            Some("true") => Self::Open,
            Some(other) => Self::Paused(other.to_owned()),
        }
    }
}

/// State of both stores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// The record, if there is one.
    pub record: Option<Record>,
    /// The flag of v2.
    pub v2: ReadyV2,
    /// The flag of v3.
    pub v3: ReadyV3,
    /// Number of keys below `/calico/` in v3.
    pub keys: usize,
    /// `ClusterGUID` of v2.
    pub cluster: String,
    /// Hash of the present data of v2 after conversion.
    pub hash: String,
    /// Objects of Calico's controllers that are missing in v3. Read only for `Complete`, and empty otherwise.
    pub missing: ControllerObjects,
    /// Time between the pause and the read of v2, for CNI plugins that started before the pause.
    pub settle: SignedDuration,
    /// The present time.
    pub now: Timestamp,
}

/// One change: a single write, or several repeatable writes with the record as the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write the record.
    Announce,
    /// Set v2's flag to false, if it is true.
    Pause,
    /// Record that v2 is paused, with the time.
    RecordPaused,
    /// Copy the keys below `/calico/` in v3, and record their number.
    Keep,
    /// Restore v3 after an earlier attempt, except for keys of its controllers; then read v2, and record the snapshot.
    TakeSnapshot,
    /// Write keys of the snapshot, each batch with the record in one transaction.
    Write {
        /// Number of keys that are already written.
        from: usize,
    },
    /// Record that all keys are written.
    RecordWritten,
    /// Read every key again, compare it, and record the result.
    Verify,
    /// Record that there is no snapshot and no written key, because v2 has changed since the snapshot. v3 is changed only
    /// afterwards, because v2 can change back.
    StartOver,
    /// Record that calico-nodes of v3 may run.
    RecordNodes,
    /// Record that v3 is about to be opened.
    AnnounceCompletion,
    /// Set v3's flag to true, if it is false.
    OpenV3,
    /// Record that v3 is open. The copies of former keys stay, for a later abort.
    RecordCompleted,
    /// Record the start of an abort.
    AnnounceAbort,
    /// Set v3's flag to false.
    CloseV3,
    /// Set v2's flag to true.
    OpenV2,
    /// Write v2's flag again, so that a stopped process cannot write it by an old index; restore v3, its `ClusterInformation`
    /// last; record the end.
    Restore,
}

/// The decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Perform this step.
    Run(Step),
    /// Wait until this time for CNI plugins that started before the pause.
    Settle(Timestamp),
    /// Abort, because the pause had to end at this time.
    Overdue(Timestamp),
    /// The goal is reached.
    Done,
    /// The goal is refused, and nothing is changed.
    Refuse(Refusal),
}

/// The next step towards a goal.
///
/// # Examples
///
/// ```
/// use calico_datastore::controller_objects::ControllerObjects;
/// use calico_datastore::run::decide::{Goal, Next, Observed, ReadyV2, ReadyV3, Step, decide};
/// use jiff::{SignedDuration, Timestamp};
///
/// // Calico works with v2, and v3 is empty.
/// let observed = Observed {
///     record: None,
///     v2: ReadyV2::Open,
///     v3: ReadyV3::Missing,
///     keys: 0,
///     cluster: "abc".to_owned(),
///     hash: String::new(),
///     missing: ControllerObjects::default(),
///     settle: SignedDuration::ZERO,
///     now: Timestamp::UNIX_EPOCH,
/// };
/// let start = Goal::Start { over_existing: false };
/// assert_eq!(decide(start, &observed), Next::Run(Step::Announce));
/// ```
pub fn decide(goal: Goal, observed: &Observed) -> Next {
    let record = observed.record.as_ref();
    if let Some(record) = record.filter(|record| record.is_of_another(&observed.cluster)) {
        return Next::Refuse(Refusal::OtherCluster {
            record: record.cluster.clone(),
            here: observed.cluster.clone(),
        });
    }
    match goal {
        Goal::Start { over_existing } => start(observed, over_existing),
        Goal::AnnounceNodes => announce_nodes(observed),
        Goal::Complete {
            despite_changes,
            despite_missing,
        } => complete(observed, despite_changes, despite_missing),
        Goal::Reopen => abort(observed, false, Way::UntilV2IsOpen),
        Goal::Abort { after_completion } => abort(observed, after_completion, Way::Whole),
    }
}

fn start(observed: &Observed, over_existing: bool) -> Next {
    let Some(record) = &observed.record else {
        return begin(observed, over_existing);
    };
    let before = |next: Next| {
        if record.abort_at <= observed.now {
            Next::Overdue(record.abort_at)
        } else {
            next
        }
    };
    match record.phase {
        Phase::Aborted => begin(observed, over_existing),
        Phase::Pausing => before(match observed.v2 {
            ReadyV2::Missing => Next::Refuse(Refusal::NoFlag),
            ReadyV2::Open => Next::Run(Step::Pause),
            ReadyV2::Paused(_) => Next::Run(Step::RecordPaused),
        }),
        // Another program has changed a flag since the pause.
        Phase::Paused | Phase::Writing | Phase::Written | Phase::Verified if observed.v2 == ReadyV2::Open => {
            Next::Refuse(Refusal::V2Open)
        }
        Phase::Paused | Phase::Writing | Phase::Written | Phase::Verified if observed.v3 == ReadyV3::Open => {
            Next::Refuse(Refusal::V3Open {
                then: "the conversion would overwrite the data that Calico works with",
            })
        }
        Phase::Paused => before(prepare(record, observed)),
        Phase::Writing | Phase::Written => before(write(record, observed)),
        Phase::Verified => before(Next::Done),
        Phase::Completing => Next::Refuse(Refusal::BeingCompleted),
        Phase::Completed => Next::Refuse(Refusal::Completed),
        // An abort has to end before a new start.
        Phase::Aborting => roll_back(observed, Way::Whole),
    }
}

fn begin(observed: &Observed, over_existing: bool) -> Next {
    let open = observed.v3 == ReadyV3::Open;
    match &observed.v2 {
        _ if open => Next::Refuse(Refusal::V3Open {
            then: "the conversion would overwrite the data that Calico works with",
        }),
        ReadyV2::Missing => Next::Refuse(Refusal::NoFlag),
        ReadyV2::Paused(value) => Next::Refuse(Refusal::PausedByOthers { value: value.clone() }),
        ReadyV2::Open if observed.keys > 0 && !over_existing => {
            Next::Refuse(Refusal::NotEmpty { keys: observed.keys })
        }
        ReadyV2::Open => Next::Run(Step::Announce),
    }
}

/// The next step while v2 is paused and nothing is written.
fn prepare(record: &Record, observed: &Observed) -> Next {
    let since = record.paused_at.unwrap_or(record.started_at);
    let settled = since.checked_add(observed.settle).unwrap_or(Timestamp::MAX);
    if observed.now < settled {
        Next::Settle(settled)
    } else if record.kept.is_none() {
        Next::Run(Step::Keep)
    } else {
        Next::Run(Step::TakeSnapshot)
    }
}

fn write(record: &Record, observed: &Observed) -> Next {
    match &record.snapshot {
        Some(snapshot) if snapshot.hash == observed.hash => {
            if record.written < snapshot.objects {
                Next::Run(Step::Write { from: record.written })
            } else if record.phase == Phase::Writing {
                Next::Run(Step::RecordWritten)
            } else {
                Next::Run(Step::Verify)
            }
        }
        Some(_) | None => Next::Run(Step::StartOver),
    }
}

/// Requires only that a calico-node of v3 finds v3 closed.
fn announce_nodes(observed: &Observed) -> Next {
    let Some(record) = &observed.record else {
        return Next::Refuse(Refusal::NothingConverted);
    };
    match record.phase {
        Phase::Verified if observed.v2 == ReadyV2::Open => Next::Refuse(Refusal::V2Open),
        Phase::Verified => match lost(record, observed) {
            Some(refusal) => Next::Refuse(refusal),
            None if record.nodes_of_v3 => Next::Done,
            None => Next::Run(Step::RecordNodes),
        },
        Phase::Completing | Phase::Completed => Next::Done,
        Phase::Pausing | Phase::Paused | Phase::Writing | Phase::Written | Phase::Aborting => {
            Next::Refuse(Refusal::NotVerified { phase: record.phase })
        }
        Phase::Aborted => Next::Refuse(Refusal::NothingConverted),
    }
}

fn complete(observed: &Observed, despite_changes: bool, despite_missing: bool) -> Next {
    let Some(record) = &observed.record else {
        return Next::Refuse(Refusal::NothingConverted);
    };
    let open = |next: Next| match &observed.v2 {
        ReadyV2::Open => Next::Refuse(Refusal::V2Open),
        // Components of v2 create a missing flag at their start, with the value true.
        ReadyV2::Missing => Next::Refuse(Refusal::NoFlag),
        ReadyV2::Paused(_) => match lost(record, observed) {
            Some(refusal) => Next::Refuse(refusal),
            None => next,
        },
    };
    match record.phase {
        Phase::Pausing | Phase::Paused | Phase::Writing | Phase::Written | Phase::Aborting => {
            Next::Refuse(Refusal::NotVerified { phase: record.phase })
        }
        Phase::Aborted => Next::Refuse(Refusal::NothingConverted),
        Phase::Verified if !despite_changes && is_changed(record, observed) => {
            open(Next::Refuse(Refusal::Changed))
        }
        Phase::Verified if !despite_missing && !observed.missing.is_empty() => {
            open(Next::Refuse(Refusal::Missing {
                missing: observed.missing.clone(),
            }))
        }
        Phase::Verified => open(Next::Run(Step::AnnounceCompletion)),
        Phase::Completing if observed.v3 == ReadyV3::Open => Next::Run(Step::RecordCompleted),
        Phase::Completed if observed.v3 == ReadyV3::Open => Next::Done,
        Phase::Completing | Phase::Completed => open(Next::Run(Step::OpenV3)),
    }
}

/// The refusal when v3 has fewer keys than were written.
fn lost(record: &Record, observed: &Observed) -> Option<Refusal> {
    let objects = record.snapshot.as_ref().map_or(0, |snapshot| snapshot.objects);
    (observed.v3 == ReadyV3::Missing || observed.keys < objects).then_some(Refusal::KeysMissing {
        keys: observed.keys,
        objects,
    })
}

/// Whether v2 has changed since the conversion.
fn is_changed(record: &Record, observed: &Observed) -> bool {
    record
        .snapshot
        .as_ref()
        .is_none_or(|snapshot| snapshot.hash != observed.hash)
}

/// Extent of an abort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Until v2 is open.
    UntilV2IsOpen,
    /// Until v3 is restored as well.
    Whole,
}

fn abort(observed: &Observed, after_completion: bool, way: Way) -> Next {
    let v3_is_open = observed.v3 == ReadyV3::Open;
    match observed.record.as_ref().map(|record| record.phase) {
        Some(Phase::Aborting) => roll_back(observed, way),
        None | Some(Phase::Aborted) => match &observed.v2 {
            ReadyV2::Missing => Next::Refuse(Refusal::NoFlag),
            // Another program has opened v3: a run of this tool would have a record.
            _ if v3_is_open => Next::Refuse(Refusal::V3Open {
                then: "there is no record of a conversion to undo",
            }),
            ReadyV2::Open => Next::Done,
            ReadyV2::Paused(_) => Next::Run(Step::OpenV2),
        },
        Some(_) if observed.v2 == ReadyV2::Missing => Next::Refuse(Refusal::NoFlag),
        // Even when v3 was closed afterwards: its data is the state of the cluster.
        Some(Phase::Completed) if !after_completion => Next::Refuse(Refusal::AlreadyCompleted),
        Some(Phase::Completing) if v3_is_open && !after_completion => Next::Refuse(Refusal::AlreadyCompleted),
        Some(
            Phase::Pausing
            | Phase::Paused
            | Phase::Writing
            | Phase::Written
            | Phase::Verified
            | Phase::Completing
            | Phase::Completed,
        ) => Next::Run(Step::AnnounceAbort),
    }
}

/// Closes v3 before v2 is opened, and opens v2 before v3 is restored, so that pods get a network again as early as possible.
fn roll_back(observed: &Observed, way: Way) -> Next {
    match (&observed.v2, observed.v3) {
        (ReadyV2::Missing, _) => Next::Refuse(Refusal::NoFlag),
        (_, ReadyV3::Open) => Next::Run(Step::CloseV3),
        (ReadyV2::Paused(_), ReadyV3::Paused | ReadyV3::Missing) => Next::Run(Step::OpenV2),
        (ReadyV2::Open, ReadyV3::Paused | ReadyV3::Missing) => match way {
            Way::UntilV2IsOpen => Next::Done,
            Way::Whole => Next::Run(Step::Restore),
        },
    }
}
