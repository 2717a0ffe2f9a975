//! Walks a conversion in a cluster through every state: with crashes after any step, with a rollback at any moment, and with a
//! calico-node of v3 that opens an empty v3, as the real one does.

use explore::{Follows, states};
use jiff::{SignedDuration, Timestamp};

use super::calico::{Calico, Content};
use super::decide::decide;
use super::nodes::fixture::{node, pod};
use super::nodes::{CalicoPod, NodeView};
use super::step::{Stage, Step, StoreWork};
use super::view::{ControllersView, ControllersWork, DaemonSetView, Next, Policy, StoresView, View, Work};
use crate::controller_objects::ControllerObjects;
use crate::run::decide::{ReadyV2, ReadyV3};
use crate::run::record::Phase;
use engine::decision::{Decision, Direction, HaltReason, Wait, WaitReason};

const START: i64 = 1_700_000_000;
const PAUSE_LIMIT: i64 = 3600;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(START + second).unwrap()
}

/// One change of the stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Write {
    Record(Phase),
    V2(bool),
    V3(ReadyV3),
    NodesOfV3,
}

/// The calico-node of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Pod {
    runs: Calico,
    ready: bool,
    terminating: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Host {
    ready: bool,
    pod: Option<Pod>,
}

impl Host {
    /// A Ready node with a Ready pod of v2.
    const V2: Self = Self {
        ready: true,
        pod: Some(Pod {
            runs: Calico::V2,
            ready: true,
            terminating: false,
        }),
    };

    fn view(self, name: &str) -> NodeView {
        let found = self.pod.map(|found| CalicoPod {
            ready: found.ready,
            terminating: found.terminating,
            ..pod(name, found.runs)
        });
        NodeView {
            name: name.to_owned(),
            ready: self.ready,
            pods: found.into_iter().collect(),
        }
    }
}

/// The names of the nodes.
const NODES: [&str; 2] = ["a", "b"];

/// A cluster, its stores, and the work on them.
#[expect(clippy::struct_excessive_bools, reason = "each is a separate fact")]
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct World {
    /// Whether the user wants the former state.
    goes_back: bool,
    phase: Option<Phase>,
    /// Whether the pause of this conversion has a limit, and whether it has lasted longer.
    is_limited: bool,
    is_overdue: bool,
    v2_open: bool,
    v3: ReadyV3,
    /// The work on the stores, and its remaining writes.
    work: Option<(StoreWork, Vec<Write>)>,
    failed: Option<StoreWork>,
    backed_up: bool,
    configuration: Calico,
    template: Calico,
    strategy: Calico,
    held: bool,
    hosts: [Host; 2],
    controllers: Calico,
    is_scaled: bool,
    controller_pod: Option<Calico>,
    /// Whether the controllers of v3 have written the objects that are not converted.
    is_written: bool,
    turned: bool,
    /// Whether the record belongs to this migration.
    ours: bool,
    nodes_of_v3: bool,
    /// Whether the controller of the `DaemonSet` is stopped, so that no pod is created.
    creates_no_pods: bool,
    /// Whether the pod of the controllers takes its time to end.
    controller_stays: bool,
    /// Whether the user has opened v3 by hand.
    by_hand: bool,
    finished: bool,
}

impl World {
    fn new() -> Self {
        Self {
            goes_back: false,
            phase: None,
            is_limited: false,
            is_overdue: false,
            v2_open: true,
            v3: ReadyV3::Missing,
            work: None,
            failed: None,
            backed_up: false,
            configuration: Calico::V2,
            template: Calico::V2,
            strategy: Calico::V2,
            held: false,
            hosts: [Host::V2; 2],
            controllers: Calico::V2,
            is_scaled: true,
            controller_pod: Some(Calico::V2),
            is_written: false,
            turned: false,
            ours: false,
            nodes_of_v3: false,
            creates_no_pods: false,
            controller_stays: false,
            by_hand: false,
            finished: false,
        }
    }

    fn nodes(&self) -> Vec<NodeView> {
        let nodes = NODES.iter().zip(self.hosts);
        nodes.map(|(name, host)| host.view(name)).collect()
    }

    fn next(&self) -> Next {
        let was_taken_back = self.ours && self.phase == Some(Phase::Aborted);
        let direction = if self.goes_back || self.turned || was_taken_back {
            Direction::Rollback
        } else {
            Direction::Forward
        };
        let work = match (&self.work, self.failed) {
            (Some((work, _)), _) => Work::Busy {
                work: *work,
                progress: "busy".to_owned(),
                refused: None,
            },
            (None, Some(work)) => Work::Failed {
                work,
                message: "unreachable".to_owned(),
                needs_user: false,
            },
            (None, None) => Work::Idle,
        };
        let view = View {
            direction,
            is_backed_up: self.backed_up,
            stores: Ok(self.stores()),
            configuration: Some(says(self.configuration)),
            daemon_set: DaemonSetView {
                template: says(self.template),
                strategy: if self.held {
                    Content::Other
                } else {
                    says(self.strategy)
                },
                is_held: self.held,
                missing: 0,
            },
            nodes: &self.nodes(),
            controllers: Some(ControllersView {
                template: says(self.controllers),
                is_stopped: !self.is_scaled,
                is_scaled: self.is_scaled,
                pods: usize::from(self.controller_pod.is_some()),
                is_available: self.controller_pod == Some(self.controllers),
            }),
            // Read only in this phase.
            controllers_work: match self.phase {
                Some(Phase::Verified) if self.is_written => ControllersWork::Complete,
                Some(Phase::Verified) => ControllersWork::Missing(remaining()),
                _ => ControllersWork::Unknown("not read".to_owned()),
            },
            work: &work,
            without_network: None,
            now: at(if self.is_overdue { PAUSE_LIMIT } else { 0 }),
        };
        let policy = Policy {
            at_once: 1,
            hold: None,
        };
        decide(&view, &policy)
    }

    fn stores(&self) -> StoresView {
        StoresView {
            phase: self.phase,
            v2: if self.v2_open {
                ReadyV2::Open
            } else {
                ReadyV2::Paused("false".to_owned())
            },
            v3: self.v3,
            abort_at: self.is_limited.then(|| at(PAUSE_LIMIT)),
            nodes_of_v3: self.nodes_of_v3,
            is_ours: self.ours,
        }
    }

    fn perform(&mut self, step: Step) {
        match step {
            Step::BackUp => self.backed_up = true,
            Step::StopControllers => self.is_scaled = false,
            Step::Work(work) => {
                self.failed = None;
                self.work = Some((work, self.writes(work)));
            }
            Step::StopWork => self.work = None,
            Step::RollBack(_) => {
                self.turned = true;
                self.work = Some((
                    StoreWork::Abort { nodes_of_v3: true },
                    self.writes(StoreWork::Abort { nodes_of_v3: true }),
                ));
            }
            Step::WriteConfiguration(calico) => self.configuration = calico,
            Step::WriteDaemonSet(calico) => {
                self.template = calico;
                self.held = true;
            }
            Step::Restart(pods) => {
                for (node, host) in NODES.iter().zip(&mut self.hosts) {
                    if let Some(found) = &mut host.pod {
                        found.terminating |= pods.contains(&pod(node, found.runs).name);
                    }
                }
                let ends = |host: &&Host| host.pod.is_some_and(|pod| pod.terminating);
                let busy = self.hosts.iter().filter(ends).count();
                assert!(busy <= 1, "one at a time: {self:?}");
            }
            Step::WriteControllers(calico) => {
                self.controllers = calico;
                self.is_scaled = true;
            }
            Step::WriteStrategy(calico) => {
                self.strategy = calico;
                self.held = false;
            }
            Step::Finish => self.finished = true,
        }
    }

    /// The remaining writes of this work, as the runner would make them.
    fn writes(&self, work: StoreWork) -> Vec<Write> {
        use Phase::{Aborted, Aborting, Completed, Completing, Paused, Pausing, Verified, Writing, Written};
        match work {
            StoreWork::Convert => {
                let begins = matches!(self.phase, None | Some(Aborted));
                let from = self.phase.filter(|_| !begins);
                let all = [
                    (None, Write::Record(Pausing)),
                    (Some(Pausing), Write::V2(false)),
                    (Some(Pausing), Write::Record(Paused)),
                    (Some(Paused), Write::Record(Writing)),
                    (Some(Writing), Write::V3(ReadyV3::Paused)),
                    (Some(Writing), Write::Record(Written)),
                    (Some(Written), Write::Record(Verified)),
                ];
                all.into_iter()
                    .filter(|(phase, _)| *phase >= from)
                    .map(|(_, write)| write)
                    .collect()
            }
            StoreWork::AnnounceNodes => vec![Write::NodesOfV3],
            StoreWork::Complete => vec![
                Write::Record(Completing),
                Write::V3(ReadyV3::Open),
                Write::Record(Completed),
            ],
            StoreWork::Abort { nodes_of_v3 } => {
                let mut writes = vec![Write::Record(Aborting)];
                if self.v3 == ReadyV3::Open {
                    writes.push(Write::V3(ReadyV3::Paused));
                }
                writes.push(Write::V2(true));
                if !nodes_of_v3 {
                    writes.extend([Write::V3(ReadyV3::Missing), Write::Record(Aborted)]);
                }
                writes
            }
        }
    }

    /// Advances everything that does not depend on the coordinator.
    fn tick(&mut self) {
        if let Some((_, writes)) = &mut self.work {
            if writes.is_empty() {
                self.work = None;
            } else {
                let write = writes.remove(0);
                self.write(write);
            }
        }
        let template = self.template;
        for host in &mut self.hosts {
            if let Some(pod) = &mut host.pod {
                pod.ready = true;
            }
            host.pod = host.pod.filter(|pod| !pod.terminating);
            if host.pod.is_none() && !self.creates_no_pods {
                host.pod = Some(Pod {
                    runs: template,
                    ready: false,
                    terminating: false,
                });
            }
        }
        // Unless it is held, the DaemonSet rolls its pods.
        if !self.held
            && self.hosts.iter().all(|host| host.pod.is_some())
            && let Some(pod) = self
                .hosts
                .iter_mut()
                .filter_map(|host| host.pod.as_mut())
                .find(|pod| pod.runs != template)
        {
            pod.terminating = true;
        }
        if !self.is_scaled || self.controller_pod.is_some_and(|pod| pod != self.controllers) {
            self.controller_pod = self.controller_pod.filter(|_| self.controller_stays);
        } else if self.controller_pod.is_none() {
            self.controller_pod = Some(self.controllers);
        } else if self.controllers == Calico::V3 {
            // One tick after their start, whether v3 is open or not.
            self.is_written = true;
        }
        self.hazards();
    }

    fn write(&mut self, write: Write) {
        match write {
            Write::Record(phase) => {
                if phase == Phase::Pausing {
                    (self.is_limited, self.is_overdue) = (true, false);
                    self.ours = true;
                    self.nodes_of_v3 = false;
                }
                if phase == Phase::Writing {
                    assert_eq!(self.controller_pod, None, "a controller writes to v2: {self:?}");
                }
                self.phase = Some(phase);
            }
            Write::V2(open) => self.v2_open = open,
            Write::V3(ready) => {
                let is_complete = matches!(self.phase, Some(Phase::Completing | Phase::Completed));
                assert!(
                    ready != ReadyV3::Open || is_complete,
                    "v3 is opened too early: {self:?}"
                );
                assert!(
                    ready != ReadyV3::Open || self.is_written || self.by_hand,
                    "pods of a namespace without a profile lose new connections: {self:?}"
                );
                if ready == ReadyV3::Missing {
                    self.is_written = false;
                }
                self.v3 = ready;
            }
            Write::NodesOfV3 => self.nodes_of_v3 = true,
        }
    }

    /// Behaviour of the real programs: one of v3 that finds no `ClusterInformation` creates one that is ready.
    fn hazards(&mut self) {
        let runs_v3 = |host: &Host| host.pod.is_some_and(|pod| pod.runs == Calico::V3);
        let nodes = self.hosts.iter().any(runs_v3);
        let controllers = self.controller_pod == Some(Calico::V3);
        if self.v3 == ReadyV3::Missing && (nodes || controllers) {
            self.v3 = ReadyV3::Open;
        }
        assert!(
            !(self.v2_open && self.v3 == ReadyV3::Open),
            "two open stores: {self:?}"
        );
    }

    fn is_completed(&self) -> bool {
        !self.v2_open
            && self.v3 == ReadyV3::Open
            && self.phase == Some(Phase::Completed)
            && self.strategy == Calico::V3
            && self.controller_pod == Some(Calico::V3)
            && self.nodes().iter().all(|node| node.is_done(Calico::V3))
    }

    fn is_rolled_back(&self) -> bool {
        self.v2_open
            // An abort by hand while nodes of v3 ran leaves v3 closed.
            && matches!(self.v3, ReadyV3::Missing | ReadyV3::Paused)
            && matches!(self.phase, None | Some(Phase::Aborted))
            && self.configuration == Calico::V2
            && self.template == Calico::V2
            && self.strategy == Calico::V2
            && !self.held
            && self.controller_pod == Some(Calico::V2)
            && self.nodes().iter().all(|node| node.is_done(Calico::V2))
    }

    /// The state after the decided step, and after everything around it has advanced.
    fn stepped(&self) -> Self {
        let mut world = self.clone();
        if let Decision::Run(step) = world.next().decision {
            world.perform(step);
        }
        if !world.finished {
            world.tick();
        }
        world
    }

    /// The state after the end of failures and outages; `None` if there are none.
    fn repaired(&self) -> Option<Self> {
        let mut world = self.clone();
        world.failed = None;
        world.creates_no_pods = false;
        world.controller_stays = false;
        world.hosts[0].ready = true;
        (world != *self).then_some(world)
    }

    /// The states after a crash of the coordinator, an unreachable store, an outage, or a command of the user.
    fn events(&self) -> Vec<Self> {
        let mut all = Vec::new();
        let mut add = |is_possible: bool, change: &dyn Fn(&mut Self)| {
            if is_possible {
                let mut world = self.clone();
                change(&mut world);
                all.push(world);
            }
        };
        // The coordinator dies, and its work on the stores with it.
        add(self.work.is_some(), &|world| world.work = None);
        // The runner itself ends a pause that is over; the coordinator does where no work runs.
        add(self.is_limited && self.work.is_none(), &|world| {
            world.is_overdue = true;
        });
        add(self.work.is_some(), &|world| {
            world.failed = world.work.take().map(|(work, _)| work);
        });
        add(true, &|world| world.goes_back = true);
        // The user aborts the conversion by hand: where nodes of v3 may run, v3 stays closed.
        add(self.stores().is_paused() && self.work.is_none(), &|world| {
            let stays = world.nodes_of_v3;
            for write in world.writes(StoreWork::Abort { nodes_of_v3: false }) {
                if !(stays && matches!(write, Write::V3(ReadyV3::Missing))) {
                    world.write(write);
                }
            }
        });
        // The pod of a node is deleted.
        add(true, &|world| world.hosts[1].pod = None);
        add(true, &|world| world.creates_no_pods = true);
        add(true, &|world| world.controller_stays = true);
        add(true, &|world| world.hosts[0].ready = false);
        let is_verified = self.phase == Some(Phase::Verified) && !self.v2_open && self.v3 == ReadyV3::Paused;
        // The user completes the conversion by hand.
        add(is_verified && self.work.is_none(), &|world| {
            world.by_hand = true;
            for write in world.writes(StoreWork::Complete) {
                world.write(write);
            }
        });
        // The user undoes the change of the DaemonSet.
        add(true, &|world| {
            world.template = Calico::V2;
            world.held = true;
        });
        all
    }
}

fn remaining() -> ControllerObjects {
    ControllerObjects {
        profiles: ["kns.default".to_owned()].into(),
        ..ControllerObjects::default()
    }
}

fn says(calico: Calico) -> Content {
    match calico {
        Calico::V2 => Content::V2,
        Calico::V3 => Content::V3,
    }
}

/// Most steps to the end.
const STEPS: usize = 400;

/// The states on the way from this one to the end, while nothing happens around it.
fn way(start: World) -> Vec<World> {
    let states = states([start], |world| {
        Follows::own((!world.finished).then(|| world.stepped()))
    });
    states.assert_each_arrives(STEPS, |world| world.finished);
    states.iter().cloned().collect()
}

/// The end of that way.
fn end(start: World) -> World {
    way(start).pop().unwrap()
}

#[test]
fn a_migration_completes_and_restores_the_update_strategy() {
    let world = end(World::new());
    assert!(world.is_completed(), "{world:?}");
    assert!(!world.held);
}

#[test]
fn a_rollback_after_any_tick_restores_the_former_state_until_v3_is_open() {
    let mut open = 0;
    let mut way = way(World::new());
    way.pop();
    for mut world in way {
        let is_open = world.v3 == ReadyV3::Open;
        world.goes_back = true;
        let end = end(world.clone());
        if is_open {
            open += 1;
            assert!(
                end.is_completed(),
                "no completion past the point of no return: {end:?}"
            );
        } else {
            assert!(end.is_rolled_back(), "after {world:?}: {end:?}");
        }
    }
    assert!(open > 0, "v3 was never open");
}

#[test]
fn a_pause_that_lasts_too_long_rolls_back() {
    for mut world in way(World::new()) {
        // The coordinator is stopped for that time.
        world.work = None;
        world.is_overdue = world.is_limited;
        // Elsewhere the runner itself finds that the pause is over.
        if world.stores().is_paused() {
            let next = world.next();
            assert!(
                matches!(next.decision, Decision::Run(Step::RollBack(_))),
                "{next:?}"
            );
        }
        let end = end(world.clone());
        assert!(
            end.is_completed() || end.is_rolled_back(),
            "after {world:?}: {end:?}"
        );
    }
}

/// With crashes, unreachable stores, outages, aborts and completions by hand, and a rollback, each at any moment, the migration
/// ends completed or rolled back once failures and outages have ended.
#[test]
fn any_events_end_in_completion_or_rollback() {
    let states = states([World::new()], |world| {
        if world.finished {
            assert!(world.is_completed() || world.is_rolled_back(), "{world:?}");
            return Follows::own([]);
        }
        Follows {
            own: world.repaired().into_iter().chain([world.stepped()]).collect(),
            others: world.events(),
        }
    });
    states.assert_more_than(80_000);
    states.assert_each_arrives(STEPS, |world| world.finished);
}

/// The decision for a view with this change.
fn decided<'work>(change: impl FnOnce(&mut View<'work>, &mut Policy)) -> Next {
    let mut view = View {
        direction: Direction::Forward,
        is_backed_up: true,
        stores: Ok(StoresView {
            phase: Some(Phase::Verified),
            v2: ReadyV2::Paused("false".to_owned()),
            v3: ReadyV3::Paused,
            abort_at: Some(at(PAUSE_LIMIT)),
            nodes_of_v3: true,
            is_ours: true,
        }),
        configuration: Some(Content::V3),
        daemon_set: DaemonSetView {
            template: Content::V3,
            strategy: Content::Other,
            is_held: true,
            missing: 0,
        },
        // Leaked, because the view borrows the nodes.
        nodes: Vec::leak(["a", "b"].map(|name| node(name, Calico::V2)).to_vec()),
        controllers: None,
        controllers_work: ControllersWork::Complete,
        work: &Work::Idle,
        without_network: None,
        now: at(0),
    };
    let mut policy = Policy {
        at_once: 1,
        hold: None,
    };
    change(&mut view, &mut policy);
    decide(&view, &policy)
}

#[test]
fn a_hold_does_not_hold_a_rollback() {
    let hold = || Wait {
        reason: WaitReason::Paused,
        message: "paused".to_owned(),
        until: None,
    };
    let held = decided(|_, policy| policy.hold = Some(hold()));
    assert!(matches!(held.decision, Decision::Wait(wait) if wait.reason == WaitReason::Paused));
    let overdue = decided(|view, policy| {
        policy.hold = Some(hold());
        view.now = at(PAUSE_LIMIT);
    });
    assert!(matches!(overdue.decision, Decision::Run(Step::RollBack(_))));
    let back = decided(|view, policy| {
        policy.hold = Some(hold());
        view.direction = Direction::Rollback;
    });
    assert_eq!(
        back.decision,
        Decision::Run(Step::Work(StoreWork::Abort { nodes_of_v3: true }))
    );
}

#[test]
fn an_unreachable_store_waits_and_a_foreign_change_halts() {
    let unknown = decided(|view, _| view.stores = Err("etcd is unreachable".to_owned()));
    assert!(matches!(unknown.decision, Decision::Wait(wait) if wait.reason == WaitReason::Datastore));
    assert_eq!(unknown.stage, None);
    let drift = decided(|view, _| view.daemon_set.template = Content::Other);
    assert!(
        matches!(&drift.decision, Decision::Halt(halt) if halt.reason == HaltReason::Drift),
        "{drift:?}"
    );
    // A rollback overwrites a foreign change with the former content.
    let back = decided(|view, _| {
        view.daemon_set.template = Content::Other;
        view.direction = Direction::Rollback;
        if let Ok(stores) = &mut view.stores {
            stores.phase = Some(Phase::Aborting);
            stores.v2 = ReadyV2::Open;
            view.configuration = Some(Content::V2);
        }
    });
    assert_eq!(back.decision, Decision::Run(Step::WriteDaemonSet(Calico::V2)));
    for phase in Phase::ALL.iter().copied() {
        let open = decided(|view, _| {
            if let Ok(stores) = &mut view.stores {
                stores.phase = Some(phase);
                stores.v3 = ReadyV3::Open;
            }
        });
        match phase {
            Phase::Completing => assert_eq!(open.decision, Decision::Run(Step::Work(StoreWork::Complete))),
            Phase::Completed => assert_eq!(open.stage, Some(Stage::Nodes)),
            _ => assert!(
                matches!(&open.decision, Decision::Halt(halt) if halt.reason == HaltReason::DatastoreRefused),
                "{phase}: {open:?}"
            ),
        }
    }
}

#[test]
fn v3_opens_only_when_the_controllers_have_written_all_their_objects() {
    let opened = |controllers_work: ControllersWork| {
        decided(|view, _| {
            view.nodes = Vec::leak(["a", "b"].map(|name| node(name, Calico::V3)).to_vec());
            view.controllers_work = controllers_work;
        })
    };
    let next = opened(ControllersWork::Complete);
    assert_eq!(next.decision, Decision::Run(Step::Work(StoreWork::Complete)));
    for (work, words) in [
        (ControllersWork::Missing(remaining()), "1 profile (kns.default)"),
        (
            ControllersWork::Unknown("etcd is unreachable".to_owned()),
            "etcd is unreachable",
        ),
    ] {
        let next = opened(work);
        assert_eq!(next.stage, Some(Stage::Controllers));
        assert!(
            matches!(&next.decision, Decision::Wait(wait) if wait.reason == WaitReason::CalicoControllers && wait.message.contains(words)),
            "{next:?}"
        );
    }
}

#[test]
fn a_refusal_is_shown_while_the_work_is_tried_again() {
    let refused = Work::Failed {
        work: StoreWork::Convert,
        message: "p cannot be converted".to_owned(),
        needs_user: true,
    };
    let again = Work::Busy {
        work: StoreWork::Convert,
        progress: "reading".to_owned(),
        refused: Some("p cannot be converted".to_owned()),
    };
    for work in [&refused, &again] {
        let next = decided(|view, _| {
            view.work = work;
            if let Ok(stores) = &mut view.stores {
                stores.phase = None;
            }
        });
        assert!(
            matches!(&next.decision, Decision::Halt(halt) if halt.message.contains("p cannot")),
            "{next:?}"
        );
    }
    assert_eq!(
        SignedDuration::from_secs(PAUSE_LIMIT),
        at(PAUSE_LIMIT).duration_since(at(0))
    );
}
