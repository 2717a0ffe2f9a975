//! The next step, from the record and both flags as they are now.

use jiff::{SignedDuration, Timestamp};
use thiserror::Error;

use super::record::{Phase, Record};
use crate::calico_datastore::left::Left;

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

/// `spec.datastoreReady` of `ClusterInformation` `default` in v3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadyV3 {
    /// There is no such object.
    Missing,
    /// Calico does not work with v3.
    Paused,
    /// It does.
    Open,
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
    /// Make v3 as it was before, should somebody have started over; read v2, and record what is converted.
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

/// Why it does not go there.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// v2 has no flag.
    #[error("etcd v2 has no key /calico/v1/Ready: no Calico v2 works with it")]
    NoFlag,
    /// v2 was paused by somebody else.
    #[error(
        "/calico/v1/Ready in etcd v2 is {value:?} and there is no record of ours: somebody else has paused Calico"
    )]
    PausedBySomebody {
        /// What the flag says.
        value: String,
    },
    /// v3 has data.
    #[error("etcd v3 has {keys} keys below /calico/: whose they are is not known")]
    NotEmpty {
        /// How many.
        keys: usize,
    },
    /// v3 is open without our doing, or since we were done.
    #[error("Calico works with etcd v3 already (datastoreReady is true): {then}")]
    V3Open {
        /// What would follow.
        then: &'static str,
    },
    /// v2 is open while v3 is to be.
    #[error(
        "/calico/v1/Ready in etcd v2 is true: with datastoreReady as well Calico would work with two stores"
    )]
    V2Open,
    /// There is nothing to complete.
    #[error(
        "there is no record of a conversion in etcd v3: Calico would be led to a store that nobody has filled"
    )]
    NothingConverted,
    /// It is not far enough.
    #[error(
        "the conversion is in phase {phase}: v3 is opened only when everything is written and was read again (Verified)"
    )]
    NotVerified {
        /// How far it is.
        phase: Phase,
    },
    /// It was completed.
    #[error("the conversion was completed at an earlier time: Calico works with etcd v3")]
    Completed,
    /// It was completed, and is to be left.
    #[error(
        "the conversion was completed: what has been written to etcd v3 since then would be lost, and pods with it their network"
    )]
    LeavesCompleted,
    /// v3 has lost what was written.
    #[error(
        "etcd v3 has {keys} keys below /calico/, and {objects} were written: Calico would be led to half a store"
    )]
    Lost {
        /// How many are there.
        keys: usize,
        /// How many there have to be.
        objects: usize,
    },
    /// It is being completed.
    #[error("the conversion is being completed")]
    BeingCompleted,
    /// v2 has changed.
    #[error("etcd v2 says something else than what was converted: those changes would be lost")]
    Changed,
    /// The controllers of v3 have not written theirs.
    #[error(
        "etcd v3 has not yet {left}, which Calico's controllers of v3 write: once v3 is open, new connections of pods whose profile is missing are \
         dropped, and policies that are missing hold nothing back"
    )]
    Missing {
        /// What is missing.
        left: Left,
    },
    /// The record is of another cluster.
    #[error("the record in etcd v3 is of the cluster {record:?}, and etcd v2 is of the cluster {here:?}")]
    OtherCluster {
        /// The record's.
        record: String,
        /// That of v2.
        here: String,
    },
}

impl Refusal {
    /// What a person does about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::NoFlag => {
                "are these the endpoints of the etcd that Calico v2 uses, and is Calico v2 with etcd installed?"
            }
            Self::PausedBySomebody { .. } => {
                "if no other upgrade is under way, `abort` sets it to true; then start again"
            }
            Self::NotEmpty { .. } => {
                "look at them (`etcdctl get --prefix --keys-only /calico/`); remove them, or start with --ignore-v3-data, which writes over \
                 equal keys and, on abort, puts back what was there"
            }
            Self::V3Open { .. } => {
                "who opened it? `status` shows both stores; nobody but a person can tell which of them is right"
            }
            Self::V2Open => "who set it to true? `abort` takes the conversion back; then start again",
            Self::NothingConverted => "`start` first; and are these the endpoints that it was started with?",
            Self::NotVerified { .. } => "`start` goes on where it stopped, `abort` takes it back",
            Self::Completed => "nothing is to be done; `status` shows both stores",
            Self::LeavesCompleted => {
                "undo the upgrade of calico-node and the controllers first (`kubectl rollout undo`), then `abort --after-completion`"
            }
            Self::Lost { .. } => "who took them away? `abort` takes the conversion back; then start again",
            Self::BeingCompleted => "`complete` goes on where it stopped; `abort` takes it back",
            Self::Changed => {
                "`abort`, then start again; or `complete --despite-changes` if what changed does not matter (`dry-run` shows it)"
            }
            Self::Missing { .. } => {
                "let calico-kube-controllers of v3 run, which write it within seconds while Calico is paused (see their log); then `complete` again. \
                 Where nobody is to write it (its namespace was deleted meanwhile, no controllers run), `complete --despite-missing`"
            }
            Self::OtherCluster { .. } => "check the endpoints of both stores: they have to be of one cluster",
        }
    }
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
