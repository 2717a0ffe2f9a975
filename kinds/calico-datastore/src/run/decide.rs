//! The next step, from the record and both flags as they are now.

pub use calico::etcd::ReadyV3;
use jiff::{SignedDuration, Timestamp};

use super::record::{Phase, Record};
use super::refusal::Refusal;
use crate::left::Left;

/// Where it is to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// v2 paused, and all of it in v3.
    Start {
        /// Go on although something is below `/calico/` in v3: equal keys are written over.
        over_existing: bool,
    },
    /// Recorded that calico-nodes of v3 may run from now on.
    AnnounceNodes,
    /// v3 open.
    Complete {
        /// Go on although v2 says something else than what was converted.
        despite_changes: bool,
        /// Go on although v3 has not all that the conversion leaves to Calico's controllers.
        despite_missing: bool,
    },
    /// v2 open again. v3 stays closed, with what is in it: a calico-node of v3 that finds nothing there opens it. Once none runs any more,
    /// `Abort` goes the rest of the way.
    Reopen,
    /// v2 open again, v3 as it was.
    Abort {
        /// Also from an open v3: pods that got their network since then lose it.
        after_completion: bool,
    },
}

/// `/calico/v1/Ready`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReadyV2 {
    /// There is no such key: nothing of Calico v2 lives here.
    Missing,
    /// Calico works with v2.
    Open,
    /// It does not; what the key says. Whatever is not `true` is `false`.
    Paused(String),
}

impl ReadyV2 {
    /// Of the key's value.
    pub fn of(value: Option<&str>) -> Self {
        match value {
            None => Self::Missing,
            Some("true") => Self::Open,
            Some(other) => Self::Paused(other.to_owned()),
        }
    }
}

/// Both stores as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// The record, if there is one.
    pub record: Option<Record>,
    /// The flag of v2.
    pub v2: ReadyV2,
    /// The flag of v3.
    pub v3: ReadyV3,
    /// How many keys are below `/calico/` in v3.
    pub keys: usize,
    /// `ClusterGUID` of v2.
    pub cluster: String,
    /// Hash of what v2 is converted to now.
    pub hash: String,
    /// What the conversion leaves to Calico's controllers and v3 has not. Read on the way to completion alone, and empty elsewhere.
    pub missing: Left,
    /// How long after the pause v2 is left alone: what a CNI plugin had begun before ends.
    pub settle: SignedDuration,
    /// Now.
    pub now: Timestamp,
}

/// One change: one write, or many of which each can be made again, and the record last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Write the record.
    Announce,
    /// Set v2's flag to false, if it is true.
    Pause,
    /// Record that v2 is paused, and since when.
    RecordPaused,
    /// Keep aside what is below `/calico/` in v3, and record how much that is.
    Keep,
    /// Make v3 as it was before, should somebody have started over, but for what its controllers are to write anew; read v2, and record what
    /// is converted.
    TakeSnapshot,
    /// Write keys of the snapshot, from this one on, each batch with the record in one transaction.
    Write {
        /// How many are there already.
        from: usize,
    },
    /// Record that all are written.
    RecordWritten,
    /// Read every key again and compare; record that.
    Verify,
    /// v2 says something else than when its data were chosen: record that nothing is chosen and nothing of it written. Before v3 is
    /// changed, since v2 may say again what it said.
    StartOver,
    /// Record that calico-nodes of v3 may run.
    RecordNodes,
    /// Record that v3 is to be opened.
    AnnounceCompletion,
    /// Set v3's flag to true, if it is false.
    OpenV3,
    /// Record that v3 is open. What was kept aside stays, for whoever goes back all the same.
    RecordCompleted,
    /// Record that it goes back.
    AnnounceAbort,
    /// Set v3's flag to false.
    CloseV3,
    /// Set v2's flag to true.
    OpenV2,
    /// Write v2's flag once more, so that nobody who stood still writes it by what he saw; make v3 as it was before, its
    /// `ClusterInformation` last; record that.
    Restore,
}

/// What is next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// This change.
    Run(Step),
    /// Nothing until then: what a CNI plugin began before the pause ends.
    Settle(Timestamp),
    /// It is past its deadline: abort.
    Overdue(Timestamp),
    /// It is where it was to go.
    Done,
    /// It does not go there, and nothing is changed.
    Refuse(Refusal),
}

/// The next step towards a goal.
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
        // Somebody has turned a flag since: what is in hand is not what was paused.
        Phase::Paused | Phase::Writing | Phase::Written | Phase::Verified if observed.v2 == ReadyV2::Open => {
            Next::Refuse(Refusal::V2Open)
        }
        Phase::Paused | Phase::Writing | Phase::Written | Phase::Verified if observed.v3 == ReadyV3::Open => {
            Next::Refuse(Refusal::V3Open {
                then: "what is converted would be written over what it works with",
            })
        }
        Phase::Paused => before(prepare(record, observed)),
        Phase::Writing | Phase::Written => before(write(record, observed)),
        Phase::Verified => before(Next::Done),
        Phase::Completing => Next::Refuse(Refusal::BeingCompleted),
        Phase::Completed => Next::Refuse(Refusal::Completed),
        // Half-way back is nowhere to start from.
        Phase::Aborting => go_back(observed, Way::Whole),
    }
}

fn begin(observed: &Observed, over_existing: bool) -> Next {
    let open = observed.v3 == ReadyV3::Open;
    match &observed.v2 {
        _ if open => Next::Refuse(Refusal::V3Open {
            then: "what is converted now would be written over what it works with",
        }),
        ReadyV2::Missing => Next::Refuse(Refusal::NoFlag),
        ReadyV2::Paused(value) => Next::Refuse(Refusal::PausedBySomebody { value: value.clone() }),
        ReadyV2::Open if observed.keys > 0 && !over_existing => {
            Next::Refuse(Refusal::NotEmpty { keys: observed.keys })
        }
        ReadyV2::Open => Next::Run(Step::Announce),
    }
}

/// v2 is paused and nothing is written.
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

/// As little as it takes for a calico-node of v3 to find v3 closed.
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
        // Components of v2 that start make the flag where there is none, and it is true then.
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
                left: observed.missing.clone(),
            }))
        }
        Phase::Verified => open(Next::Run(Step::AnnounceCompletion)),
        Phase::Completing if observed.v3 == ReadyV3::Open => Next::Run(Step::RecordCompleted),
        Phase::Completed if observed.v3 == ReadyV3::Open => Next::Done,
        Phase::Completing | Phase::Completed => open(Next::Run(Step::OpenV3)),
    }
}

/// Whether v3 has less than what was written to it.
fn lost(record: &Record, observed: &Observed) -> Option<Refusal> {
    let objects = record.snapshot.as_ref().map_or(0, |snapshot| snapshot.objects);
    (observed.v3 == ReadyV3::Missing || observed.keys < objects).then_some(Refusal::Lost {
        keys: observed.keys,
        objects,
    })
}

/// Whether v2 says something else now than what was converted.
fn is_changed(record: &Record, observed: &Observed) -> bool {
    record
        .snapshot
        .as_ref()
        .is_none_or(|snapshot| snapshot.hash != observed.hash)
}

/// How far back it goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Until v2 is open.
    UntilV2IsOpen,
    /// Until v3 is as it was, too.
    Whole,
}

fn abort(observed: &Observed, after_completion: bool, way: Way) -> Next {
    let v3_is_open = observed.v3 == ReadyV3::Open;
    match observed.record.as_ref().map(|record| record.phase) {
        Some(Phase::Aborting) => go_back(observed, way),
        None | Some(Phase::Aborted) => match &observed.v2 {
            ReadyV2::Missing => Next::Refuse(Refusal::NoFlag),
            // Not ours: whoever opened v3 has a record of it, or knows.
            _ if v3_is_open => Next::Refuse(Refusal::V3Open {
                then: "there is no record of how it came to that, so nobody knows what to take back",
            }),
            ReadyV2::Open => Next::Done,
            ReadyV2::Paused(_) => Next::Run(Step::OpenV2),
        },
        Some(_) if observed.v2 == ReadyV2::Missing => Next::Refuse(Refusal::NoFlag),
        // Also when somebody has closed v3 since: what is in it is what the cluster is.
        Some(Phase::Completed) if !after_completion => Next::Refuse(Refusal::LeavesCompleted),
        Some(Phase::Completing) if v3_is_open && !after_completion => Next::Refuse(Refusal::LeavesCompleted),
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

/// v3 is closed before v2 is opened, and v2 is opened before v3 is tidied: pods get a network again as early as can be.
fn go_back(observed: &Observed, way: Way) -> Next {
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
