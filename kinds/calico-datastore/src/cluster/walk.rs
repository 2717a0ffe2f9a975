//! Simulates a conversion in a cluster and walks it to its end from any state: with crashes after any step, with a rollback at
//! any moment, and with a calico-node of v3 that opens an empty v3, as the real one does.

use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

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
#[derive(Clone, Copy, Debug)]
enum Write {
    Record(Phase),
    V2(bool),
    V3(ReadyV3),
    NodesOfV3,
}

/// A cluster, its stores, and the work on them.
#[expect(clippy::struct_excessive_bools, reason = "each is a separate fact")]
#[derive(Clone, Debug)]
struct World {
    second: i64,
    phase: Option<Phase>,
    abort_at: Option<Timestamp>,
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
    nodes: Vec<NodeView>,
    controllers: Calico,
    replicas: usize,
    controller_pods: Vec<Calico>,
    /// Whether the controllers of v3 have written the objects that are not converted.
    is_written: bool,
    turned: bool,
    /// Whether the record belongs to this migration.
    ours: bool,
    nodes_of_v3: bool,
    /// Whether the controller of the `DaemonSet` is stopped, so that no pod is created.
    creates_no_pods: bool,
    /// Whether the user has opened v3 by hand.
    by_hand: bool,
    finished: bool,
}

impl World {
    fn new() -> Self {
        Self {
            second: 0,
            phase: None,
            abort_at: None,
            v2_open: true,
            v3: ReadyV3::Missing,
            work: None,
            failed: None,
            backed_up: false,
            configuration: Calico::V2,
            template: Calico::V2,
            strategy: Calico::V2,
            held: false,
            nodes: ["a", "b", "c"].map(|name| node(name, Calico::V2)).to_vec(),
            controllers: Calico::V2,
            replicas: 1,
            controller_pods: vec![Calico::V2],
            is_written: false,
            turned: false,
            ours: false,
            nodes_of_v3: false,
            creates_no_pods: false,
            by_hand: false,
            finished: false,
        }
    }

    fn next(&self, direction: Direction) -> Next {
        let was_taken_back = self.ours && self.phase == Some(Phase::Aborted);
        let direction = if self.turned || was_taken_back {
            Direction::Rollback
        } else {
            direction
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
            nodes: &self.nodes,
            controllers: Some(ControllersView {
                template: says(self.controllers),
                is_stopped: self.replicas == 0,
                is_scaled: self.replicas == 1,
                pods: self.controller_pods.len(),
                is_available: self.controller_pods == [self.controllers],
            }),
            // Read only in this phase.
            controllers_work: match self.phase {
                Some(Phase::Verified) if self.is_written => ControllersWork::Complete,
                Some(Phase::Verified) => ControllersWork::Missing(remaining()),
                _ => ControllersWork::Unknown("not read".to_owned()),
            },
            work: &work,
            without_network: None,
            now: at(self.second),
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
            abort_at: self.abort_at,
            nodes_of_v3: self.nodes_of_v3,
            is_ours: self.ours,
        }
    }

    fn perform(&mut self, step: Step) {
        match step {
            Step::BackUp => self.backed_up = true,
            Step::StopControllers => self.replicas = 0,
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
                for pod in self.nodes.iter_mut().flat_map(|node| &mut node.pods) {
                    pod.terminating |= pods.contains(&pod.name);
                }
                let ends = |pod: &CalicoPod| pod.terminating;
                let busy = self
                    .nodes
                    .iter()
                    .filter(|node| node.pods.iter().any(ends))
                    .count();
                assert!(busy <= 1, "one at a time: {self:?}");
            }
            Step::WriteControllers(calico) => {
                self.controllers = calico;
                self.replicas = 1;
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
        self.second += 1;
        if let Some((_, writes)) = &mut self.work {
            if writes.is_empty() {
                self.work = None;
            } else {
                let write = writes.remove(0);
                self.write(write);
            }
        }
        let template = self.template;
        for node in &mut self.nodes {
            for found in &mut node.pods {
                found.ready = true;
            }
            node.pods.retain(|pod| !pod.terminating);
            if node.pods.is_empty() && !self.creates_no_pods {
                let mut made = pod(&node.name, template);
                made.ready = false;
                node.pods.push(made);
            }
        }
        // Unless it is held, the DaemonSet rolls its pods.
        let is_old = |node: &&mut NodeView| node.pods.first().is_some_and(|pod| pod.runs != Some(template));
        if !self.held
            && self.nodes.iter().all(|node| !node.pods.is_empty())
            && let Some(pod) = self
                .nodes
                .iter_mut()
                .find(is_old)
                .and_then(|node| node.pods.first_mut())
        {
            pod.terminating = true;
        }
        if self.replicas == 0 || self.controller_pods.iter().any(|pod| *pod != self.controllers) {
            self.controller_pods.pop();
        } else if self.controller_pods.is_empty() {
            self.controller_pods.push(self.controllers);
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
                    self.abort_at = Some(at(self.second + PAUSE_LIMIT));
                    self.ours = true;
                    self.nodes_of_v3 = false;
                }
                if phase == Phase::Writing {
                    assert!(
                        self.controller_pods.is_empty(),
                        "a controller writes to v2: {self:?}"
                    );
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
        let nodes = self
            .nodes
            .iter()
            .flat_map(|node| &node.pods)
            .any(|pod| pod.runs == Some(Calico::V3));
        let controllers = self.controller_pods.contains(&Calico::V3);
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
            && self.controller_pods == [Calico::V3]
            && self.nodes.iter().all(|node| node.is_done(Calico::V3))
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
            && self.controller_pods == [Calico::V2]
            && self.nodes.iter().all(|node| node.is_done(Calico::V2))
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

/// Walks until the migration has finished.
fn walk(world: &mut World, direction: Direction) {
    for _ in 0..400 {
        if let Decision::Run(step) = world.next(direction).decision {
            world.perform(step);
        }
        if world.finished {
            return;
        }
        world.tick();
    }
    panic!("no end: {world:?}, {:?}", world.next(direction));
}

/// Walks this many ticks.
fn walk_some(world: &mut World, direction: Direction, ticks: usize) {
    for _ in 0..ticks {
        if let Decision::Run(step) = world.next(direction).decision {
            world.perform(step);
        }
        if world.finished {
            return;
        }
        world.tick();
    }
}

#[test]
fn a_migration_completes_and_restores_the_update_strategy() {
    let mut world = World::new();
    walk(&mut world, Direction::Forward);
    assert!(world.is_completed(), "{world:?}");
    assert!(!world.held);
}

/// Number of ticks until the migration completes.
fn ticks() -> usize {
    let mut world = World::new();
    (0..400)
        .find(|_| {
            walk_some(&mut world, Direction::Forward, 1);
            world.finished
        })
        .unwrap()
}

#[test]
fn a_rollback_after_any_tick_restores_the_former_state_until_v3_is_open() {
    let mut open = 0;
    for ticks in 0..ticks() {
        let mut world = World::new();
        walk_some(&mut world, Direction::Forward, ticks);
        let is_open = world.v3 == ReadyV3::Open;
        walk(&mut world, Direction::Rollback);
        if is_open {
            open += 1;
            assert!(
                world.is_completed(),
                "no completion past the point of no return: {world:?}"
            );
        } else {
            assert!(world.is_rolled_back(), "after {ticks}: {world:?}");
        }
    }
    assert!(open > 0, "v3 was never open");
}

#[test]
fn a_pause_that_lasts_too_long_rolls_back() {
    for ticks in 0..ticks() {
        let mut world = World::new();
        walk_some(&mut world, Direction::Forward, ticks);
        // The coordinator is stopped for that time.
        world.work = None;
        world.second += PAUSE_LIMIT + 1;
        // Elsewhere the runner itself finds that the pause is over.
        if world.stores().is_paused() {
            let next = world.next(Direction::Forward);
            assert!(
                matches!(next.decision, Decision::Run(Step::RollBack(_))),
                "{next:?}"
            );
        }
        walk(&mut world, Direction::Forward);
        assert!(
            world.is_completed() || world.is_rolled_back(),
            "after {ticks}: {world:?}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    /// With crashes, unreachable stores, aborts by hand and changes of direction, the migration ends completed or rolled back.
    #[test]
    fn any_events_end_in_completion_or_rollback(events in proptest::collection::vec((1_usize..8, 0_u8..12), 0..10)) {
        let mut world = World::new();
        let mut direction = Direction::Forward;
        for (ticks, event) in events {
            walk_some(&mut world, direction, ticks);
            if world.finished {
                break;
            }
            match event {
                // The coordinator dies, and its work on the stores with it.
                0 => world.work = None,
                1 => world.failed = world.work.take().map(|(work, _)| work),
                2 => direction = Direction::Rollback,
                // The user aborts the conversion by hand: where nodes of v3 may run, v3 stays closed.
                3 if world.stores().is_paused() && world.work.is_none() => {
                    let stays = world.nodes_of_v3;
                    for write in world.writes(StoreWork::Abort { nodes_of_v3: false }) {
                        if !(stays && matches!(write, Write::V3(ReadyV3::Missing))) {
                            world.write(write);
                        }
                    }
                }
                // The pod of a node is deleted.
                4 => world.nodes[1].pods.clear(),
                5 => world.failed = None,
                // No pods are created for a while.
                6 => world.creates_no_pods = true,
                7 => world.creates_no_pods = false,
                // A node is NotReady, and Ready again.
                8 => world.nodes[0].ready = false,
                9 => world.nodes[0].ready = true,
                // The user completes the conversion by hand.
                10 if world.phase == Some(Phase::Verified) && !world.v2_open && world.work.is_none() && world.v3 == ReadyV3::Paused => {
                    world.by_hand = true;
                    for write in world.writes(StoreWork::Complete) {
                        world.write(write);
                    }
                }
                // The user undoes the change of the DaemonSet.
                11 => {
                    world.template = Calico::V2;
                    world.held = true;
                }
                _ => {}
            }
        }
        // Failures and outages end.
        world.failed = None;
        world.creates_no_pods = false;
        world.nodes[0].ready = true;
        if !world.finished {
            walk(&mut world, direction);
        }
        prop_assert!(world.is_completed() || world.is_rolled_back(), "{world:?}");
    }
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
