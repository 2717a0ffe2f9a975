//! Walks through every state of both stores: with the tool killed after every write, with changed goals, with changes of v2, and
//! with the deadline past at any moment.

use std::collections::BTreeSet;

use explore::Follows;
use jiff::{SignedDuration, Timestamp};

use super::decide::{Goal, Next, Observed, ReadyV2, ReadyV3, Step, decide};
use super::record::{Phase, Record, Snapshot};
use super::refusal::Refusal;
use crate::controller_objects::ControllerObjects;

/// Number of converted keys.
const OBJECTS: usize = 3;
/// Seconds between the announcement and the automatic abort.
const LIMIT: i64 = 600;

/// Both stores in a minimal form: v3 has either former keys, or keys of the conversion.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct World {
    phase: Option<Phase>,
    /// Number of written keys in the record.
    written: usize,
    kept: Option<usize>,
    hash: Option<u8>,
    /// `None`: the key does not exist.
    v2_is_open: Option<bool>,
    /// Version of the data of v2.
    v2_data: u8,
    v3: ReadyV3,
    /// Number of keys of the conversion in v3, and the version of v2's data that they come from.
    ours: usize,
    ours_of: Option<u8>,
    /// Number of unchanged former keys in v3, and number of their copies.
    theirs: usize,
    copies: usize,
    /// Whether the record says that nodes of v3 may run. An abort here assumes that none runs.
    nodes_of_v3: bool,
    is_late: bool,
    /// Whether the controllers of v3 have written all their objects.
    is_whole: bool,
}

impl World {
    fn new(theirs: usize) -> Self {
        Self {
            phase: None,
            written: 0,
            kept: None,
            hash: None,
            v2_is_open: Some(true),
            v2_data: 0,
            v3: ReadyV3::Missing,
            ours: 0,
            ours_of: None,
            theirs,
            copies: 0,
            nodes_of_v3: false,
            is_late: false,
            is_whole: false,
        }
    }

    fn observed(&self) -> Observed {
        let second = |second: i64| Timestamp::from_second(second).unwrap();
        let record = self.phase.map(|phase| Record {
            id: "0".repeat(32),
            phase,
            cluster: "guid".to_owned(),
            started_at: second(0),
            paused_at: (phase > Phase::Pausing).then(|| second(0)),
            abort_at: second(LIMIT),
            snapshot: self.hash.map(|hash| Snapshot {
                hash: hash.to_string(),
                taken_at: second(15),
                objects: OBJECTS,
            }),
            written: self.written,
            over_existing: true,
            kept: self.kept,
            nodes_of_v3: self.nodes_of_v3,
            why: None,
            tool: "0.1.0".to_owned(),
        });
        Observed {
            record,
            v2: match self.v2_is_open {
                None => ReadyV2::Missing,
                Some(true) => ReadyV2::Open,
                Some(false) => ReadyV2::Paused("false".to_owned()),
            },
            v3: self.v3,
            keys: self.ours + self.theirs,
            cluster: "guid".to_owned(),
            hash: self.v2_data.to_string(),
            missing: if self.is_whole {
                ControllerObjects::default()
            } else {
                remaining()
            },
            settle: SignedDuration::from_secs(15),
            now: second(if self.is_late { LIMIT } else { 20 }),
        }
    }

    /// The states during a step: the tool can be killed after each of them.
    fn after(&self, step: Step) -> Vec<Self> {
        let mut states = Vec::new();
        let mut now = self.clone();
        match step {
            Step::Announce => {
                now.phase = Some(Phase::Pausing);
                (now.written, now.kept, now.hash) = (0, None, None);
                now.nodes_of_v3 = false;
            }
            Step::Pause => now.v2_is_open = Some(false),
            Step::RecordPaused => now.phase = Some(Phase::Paused),
            Step::Keep => {
                now.copies = 0;
                states.push(now.clone());
                while now.copies < now.theirs {
                    now.copies += 1;
                    states.push(now.clone());
                }
                now.kept = Some(now.copies);
            }
            Step::TakeSnapshot => {
                // One of the former keys belongs to controllers of an earlier attempt.
                states.extend(now.restore(1));
                now.phase = Some(Phase::Writing);
                now.hash = Some(now.v2_data);
            }
            Step::Write { from } => {
                assert_eq!(from, now.ours, "a key is omitted, or written twice");
                assert_eq!(
                    now.hash,
                    Some(now.v2_data),
                    "the written data differs from the record"
                );
                now.ours += 1;
                now.ours_of = now.hash;
                now.written += 1;
                // `ClusterInformation` is the first key; it overwrites a former one.
                now.v3 = ReadyV3::Paused;
                now.theirs = 0;
            }
            Step::RecordWritten => now.phase = Some(Phase::Written),
            Step::Verify => {
                assert_eq!((now.ours, now.ours_of), (OBJECTS, now.hash));
                assert_eq!(
                    now.hash,
                    Some(now.v2_data),
                    "the compared data differs from the written data"
                );
                now.phase = Some(Phase::Verified);
            }
            Step::StartOver => {
                now.phase = Some(Phase::Paused);
                (now.written, now.hash) = (0, None);
            }
            Step::Restore => {
                states.extend(now.restore(0));
                now.copies = 0;
                states.push(now.clone());
                now.phase = Some(Phase::Aborted);
            }
            Step::RecordNodes => now.nodes_of_v3 = true,
            Step::AnnounceCompletion => now.phase = Some(Phase::Completing),
            Step::OpenV3 => now.v3 = ReadyV3::Open,
            Step::RecordCompleted => now.phase = Some(Phase::Completed),
            Step::AnnounceAbort => now.phase = Some(Phase::Aborting),
            Step::CloseV3 => now.v3 = ReadyV3::Paused,
            Step::OpenV2 => now.v2_is_open = Some(true),
        }
        states.push(now);
        states
    }

    /// Restores v3 key by key, except this number of former keys.
    fn restore(&mut self, left_out: usize) -> Vec<Self> {
        let mut states = Vec::new();
        while self.ours > 0 {
            self.ours -= 1;
            states.push(self.clone());
        }
        self.ours_of = None;
        let wanted = self.kept.map(|kept| kept.saturating_sub(left_out));
        while wanted.is_some_and(|wanted| self.theirs < wanted) {
            assert_eq!(Some(self.copies), self.kept, "copies of former keys are missing");
            self.theirs += 1;
            states.push(self.clone());
        }
        while wanted.is_some_and(|wanted| self.theirs > wanted) {
            self.theirs -= 1;
            states.push(self.clone());
        }
        self.v3 = ReadyV3::Missing;
        states.push(self.clone());
        states
    }

    fn check(&self) {
        assert!(
            self.v2_is_open != Some(true) || self.v3 != ReadyV3::Open,
            "Calico works with two stores: {self:?}"
        );
        if self.v3 == ReadyV3::Open {
            assert_eq!(
                self.ours, OBJECTS,
                "Calico works with an incomplete store: {self:?}"
            );
        }
    }

    /// Runs to the goal; returns all states on the way and the last decision.
    fn go(&self, goal: Goal) -> (Vec<Self>, Next) {
        let (mut way, mut now, mut goal) = (Vec::new(), self.clone(), goal);
        for _ in 0..64 {
            match decide(goal, &now.observed()) {
                Next::Run(step) => {
                    let states = now.after(step);
                    now = states.last().unwrap().clone();
                    way.extend(states);
                }
                Next::Settle(_) => panic!("15 s are over: {now:?}"),
                Next::Overdue(_) => {
                    goal = Goal::Abort {
                        after_completion: false,
                    };
                }
                ended => return (way, ended),
            }
        }
        panic!("no end: {self:?} {goal:?}");
    }
}

fn remaining() -> ControllerObjects {
    ControllerObjects {
        profiles: BTreeSet::from(["kns.default".to_owned()]),
        policies: BTreeSet::new(),
    }
}

/// Opens v3 despite changes of v2 and missing objects.
const DESPITE_CHANGES: Goal = Goal::Complete {
    despite_changes: true,
    despite_missing: true,
};

const GOALS: [Goal; 10] = [
    Goal::AnnounceNodes,
    Goal::Reopen,
    Goal::Start { over_existing: false },
    Goal::Start { over_existing: true },
    Goal::Complete {
        despite_changes: false,
        despite_missing: false,
    },
    Goal::Complete {
        despite_changes: false,
        despite_missing: true,
    },
    Goal::Complete {
        despite_changes: true,
        despite_missing: false,
    },
    DESPITE_CHANGES,
    Goal::Abort {
        after_completion: false,
    },
    Goal::Abort {
        after_completion: true,
    },
];

/// All reachable states. Other programs change a flag only when this does not open a second store.
fn reachable(first: World, with_other_programs: bool) -> BTreeSet<World> {
    let states = explore::states([first], |world| {
        world.check();
        let mut others = vec![
            World {
                is_late: true,
                ..world.clone()
            },
            // v2 changes while it is open, or by hand.
            World {
                v2_data: 1 - world.v2_data,
                ..world.clone()
            },
            // The controllers of v3 write whether v3 is open or not.
            World {
                is_whole: true,
                ..world.clone()
            },
        ];
        if with_other_programs {
            others.extend(changes_by_others(world));
        }
        Follows {
            own: GOALS.into_iter().flat_map(|goal| world.go(goal).0).collect(),
            others,
        }
    });
    states.iter().cloned().collect()
}

/// States after a change by another program.
fn changes_by_others(world: &World) -> Vec<World> {
    let mut made = vec![World {
        v2_is_open: Some(false),
        ..world.clone()
    }];
    if world.v3 == ReadyV3::Open {
        made.push(World {
            v3: ReadyV3::Paused,
            ..world.clone()
        });
    } else {
        made.push(World {
            v2_is_open: Some(true),
            ..world.clone()
        });
    }
    made
}

fn all() -> BTreeSet<World> {
    let of = |theirs| reachable(World::new(theirs), false);
    [0, 2].into_iter().flat_map(of).collect()
}

#[test]
fn two_stores_are_never_open_and_every_phase_is_reached() {
    for theirs in [0, 2] {
        reachable(World::new(theirs), true);
    }
    let all = all();
    let phases: BTreeSet<Phase> = all.iter().filter_map(|world| world.phase).collect();
    assert_eq!(phases, Phase::ALL.iter().copied().collect());
    assert!(all.len() > 200, "{}", all.len());
}

#[test]
fn an_abort_from_any_state_opens_v2_and_restores_v3() {
    for theirs in [0, 2] {
        for world in reachable(World::new(theirs), true) {
            let (way, ended) = world.go(Goal::Abort {
                after_completion: true,
            });
            if world.v3 == ReadyV3::Open && matches!(world.phase, None | Some(Phase::Aborted)) {
                unreachable!("only `complete` opens v3: {world:?}");
            }
            let last = way.last().unwrap_or(&world);
            assert_eq!(ended, Next::Done, "{world:?}");
            assert_eq!(last.v2_is_open, Some(true), "{world:?}");
            assert_eq!(
                (last.ours, last.theirs, last.v3),
                (0, theirs, ReadyV3::Missing),
                "{world:?}"
            );
        }
    }
}

#[test]
fn a_reopened_v2_leaves_v3_closed_with_its_data() {
    for world in reachable(World::new(0), true) {
        let (way, ended) = world.go(Goal::Reopen);
        if ended != Next::Done {
            assert!(way.is_empty(), "{world:?}");
            continue;
        }
        let last = way.last().unwrap_or(&world);
        assert_eq!(last.v2_is_open, Some(true), "{world:?}");
        assert_eq!(last.ours, world.ours, "{world:?}");
        let (way, ended) = last.go(Goal::Abort {
            after_completion: false,
        });
        let whole = way.last().unwrap_or(last);
        assert_eq!(
            (ended, whole.ours, whole.v3),
            (Next::Done, 0, ReadyV3::Missing),
            "{world:?}"
        );
    }
}

#[test]
fn a_completed_conversion_is_aborted_only_with_after_completion() {
    for world in reachable(World::new(0), true) {
        let (way, ended) = world.go(Goal::Abort {
            after_completion: false,
        });
        let is_completed = world.phase == Some(Phase::Completed) || world.v3 == ReadyV3::Open;
        if is_completed && world.phase != Some(Phase::Aborting) {
            assert_eq!(
                (way, ended),
                (Vec::new(), Next::Refuse(Refusal::AlreadyCompleted)),
                "{world:?}"
            );
        } else {
            assert_eq!(ended, Next::Done, "{world:?}");
        }
    }
}

#[test]
fn an_incomplete_store_is_not_opened() {
    let (way, _) = World::new(0).go(Goal::Start { over_existing: false });
    let verified = way.last().unwrap();
    for (ours, v3) in [
        (OBJECTS - 1, ReadyV3::Paused),
        (OBJECTS, ReadyV3::Missing),
        (0, ReadyV3::Missing),
    ] {
        let world = World {
            v3,
            ours,
            ..verified.clone()
        };
        let (way, ended) = world.go(DESPITE_CHANGES);
        let lost = Refusal::KeysMissing {
            keys: ours,
            objects: OBJECTS,
        };
        assert_eq!((way, ended), (Vec::new(), Next::Refuse(lost)));
    }
    let (way, ended) = World {
        v2_is_open: None,
        ..verified.clone()
    }
    .go(DESPITE_CHANGES);
    assert_eq!((way, ended), (Vec::new(), Next::Refuse(Refusal::NoFlag)));
}

#[test]
fn a_record_of_another_cluster_is_refused() {
    let (way, _) = World::new(0).go(Goal::Start { over_existing: false });
    let mut observed = way.last().unwrap().observed();
    observed.cluster = "other".to_owned();
    for goal in GOALS {
        let next = decide(goal, &observed);
        assert!(
            matches!(next, Next::Refuse(Refusal::OtherCluster { .. })),
            "{goal:?}: {next:?}"
        );
    }
}

#[test]
fn a_start_from_any_state_before_the_deadline_is_verified() {
    for world in all().into_iter().filter(|world| !world.is_late) {
        let (way, ended) = world.go(Goal::Start { over_existing: true });
        let last = way.last().unwrap_or(&world);
        match world.phase {
            Some(Phase::Completing) => assert_eq!(ended, Next::Refuse(Refusal::BeingCompleted)),
            Some(Phase::Completed) => assert_eq!(ended, Next::Refuse(Refusal::Completed)),
            _ => {
                assert_eq!(
                    (ended, last.phase),
                    (Next::Done, Some(Phase::Verified)),
                    "{world:?}"
                );
                assert_eq!(last.v2_is_open, Some(false), "{world:?}");
            }
        }
    }
}

#[test]
fn a_pause_that_lasts_too_long_is_aborted() {
    for world in all().into_iter().filter(|world| world.is_late) {
        let is_before_the_end = world.phase.is_some_and(|phase| phase < Phase::Completing);
        let (way, _) = world.go(Goal::Start { over_existing: true });
        if is_before_the_end {
            assert_eq!(way.last().unwrap().v2_is_open, Some(true), "{world:?}");
        }
    }
}

#[test]
fn v3_is_opened_only_after_verification() {
    for world in all() {
        let (way, ended) = world.go(DESPITE_CHANGES);
        if way.iter().any(|world| world.v3 == ReadyV3::Open) {
            assert!(
                matches!(world.phase, Some(Phase::Verified | Phase::Completing)),
                "{world:?}"
            );
            assert_eq!(ended, Next::Done, "{world:?}");
        }
    }
}

#[test]
fn a_change_after_the_snapshot_is_refused_unless_despite_changes() {
    let (way, _) = World::new(0).go(Goal::Start { over_existing: false });
    let verified = way.last().unwrap();
    let changed = World {
        v2_data: 1,
        ..verified.clone()
    };
    let complete = |despite_changes| {
        let goal = Goal::Complete {
            despite_changes,
            despite_missing: true,
        };
        changed.go(goal).1
    };
    assert_eq!(complete(false), Next::Refuse(Refusal::Changed));
    assert_eq!(complete(true), Next::Done);
}

#[test]
fn missing_objects_keep_v3_closed_unless_despite_missing() {
    let complete = |despite_missing| Goal::Complete {
        despite_changes: true,
        despite_missing,
    };
    let is_verified = |world: &World| world.phase == Some(Phase::Verified);
    for world in all().into_iter().filter(is_verified) {
        let (way, ended) = world.go(complete(false));
        if world.is_whole {
            assert_eq!(ended, Next::Done, "{world:?}");
        } else {
            let missing = Refusal::Missing { missing: remaining() };
            assert_eq!((way, ended), (Vec::new(), Next::Refuse(missing)), "{world:?}");
        }
        assert_eq!(world.go(complete(true)).1, Next::Done, "{world:?}");
    }
}

#[test]
fn a_state_without_a_record_is_refused() {
    let world = World::new(2);
    let (_, ended) = world.go(Goal::Start { over_existing: false });
    assert_eq!(ended, Next::Refuse(Refusal::NotEmpty { keys: 2 }));
    let paused = World {
        v2_is_open: Some(false),
        ..World::new(0)
    };
    let (way, ended) = paused.go(Goal::Start { over_existing: false });
    assert_eq!(
        (way, ended),
        (
            Vec::new(),
            Next::Refuse(Refusal::PausedByOthers {
                value: "false".to_owned()
            })
        )
    );
    let open = World {
        v3: ReadyV3::Open,
        v2_is_open: Some(false),
        ours: OBJECTS,
        ..World::new(0)
    };
    for goal in GOALS {
        let (way, ended) = open.go(goal);
        assert!(
            way.is_empty() && matches!(ended, Next::Refuse(_)),
            "{goal:?}: {ended:?}"
        );
    }
    let nothing = World {
        v2_is_open: None,
        ..World::new(0)
    };
    for goal in GOALS {
        let (way, ended) = nothing.go(goal);
        assert!(
            way.is_empty() && matches!(ended, Next::Refuse(_)),
            "{goal:?}: {ended:?}"
        );
    }
}
