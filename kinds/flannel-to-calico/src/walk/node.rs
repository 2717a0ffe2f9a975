//! Walk of a node with strategy `Drain` through all reachable states: each step of the decision, each event around it in any
//! order, and a crash of the coordinator after each step (the step is done, its record is lost).
//!
//! In every state the chosen step must be safe, and from every state the node must reach the end state.

use std::collections::BTreeMap;

use explore::{Follows, States};

use super::super::node::{
    AgentReport, NetworkLabel, NodeStep, NodeView, Policy, Stage, decide, release_reason,
};
use super::super::phase::{Goal, Phase};
use super::super::settings::{LegacyPods, Strategy};
use super::fixture::{self, at, calico_pods, flannel_pods, node, probe_pod, probers};
use super::{Flip, LabelRecord};
use engine::daemon_pod::DaemonPodState;
use engine::decision::{Decision, HaltReason, WaitReason};
use engine::drain::{Budget, Pod, Selector, residents};
use engine::evict::{OnBlocked, Refusal};
use engine::pods::Pods;

/// The state of a pod in the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Life {
    /// Runs with an address.
    Runs,
    /// Terminates, and still has its address.
    Terminates,
    /// Is created again and waits for a network (`DaemonSet`), or runs on another node (others).
    Moved,
}

/// The origin of the cordon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cordon {
    None,
    Replumb,
    /// Cordoned by replumb, and uncordoned by the user meanwhile: replumb's annotation still exists.
    Lifted,
    /// Cordoned by the user before the migration: must stay.
    User,
}

/// The node and its environment. Small, because every reachable combination is visited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct World {
    cordon: Cordon,
    label: Label,
    goal: Goal_,
    phase: Phase,
    workload: Life,
    daemon: Life,
    flannel_pod: Option<DaemonPodState>,
    calico_ready: Option<bool>,
    /// calico-node has written to the host, Ready or not.
    serves: bool,
    probe: Probe,
    refused: bool,
    stage: Option<Stage>,
    node_ready: bool,
    agent_ready: bool,
    done: bool,
    record: LabelRecord,
    flip: Flip,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Missing,
    Flannel,
    Neither,
    Calico,
}

impl Label {
    fn value(self) -> Option<&'static str> {
        match self {
            Self::Missing => None,
            Self::Flannel => Some("flannel"),
            Self::Neither => Some("none"),
            Self::Calico => Some("calico"),
        }
    }

    fn read(value: &str) -> Self {
        match value {
            "flannel" => Self::Flannel,
            "none" => Self::Neither,
            "calico" => Self::Calico,
            other => panic!("unknown label: {other}"),
        }
    }
}

/// [`Goal`] with an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Goal_(u8);

impl Goal_ {
    fn of(goal: Goal) -> Self {
        Self(goal.phase().map_or(0, |phase| 1 + phase as u8))
    }

    fn goal(self) -> Goal {
        [Goal::Hold, Goal::Held, Goal::Detached, Goal::Calico]
            .into_iter()
            .find(|goal| Self::of(*goal) == self)
            .expect("each number is from a goal")
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Probe {
    None,
    Starting,
    Runs,
    Unreached,
    Reached,
}

const POLICY: Policy = Policy {
    strategy: Strategy::Drain,
    legacy_pods: LegacyPods::Keep,
    ..fixture::POLICY
};

impl World {
    fn start(cordon: Cordon, label: Label) -> Self {
        Self {
            cordon,
            label,
            goal: Goal_::of(Goal::Hold),
            phase: Phase::Flannel,
            workload: Life::Runs,
            daemon: Life::Runs,
            flannel_pod: Some(DaemonPodState::Ready),
            calico_ready: None,
            serves: false,
            probe: Probe::None,
            refused: false,
            stage: None,
            node_ready: true,
            agent_ready: true,
            done: false,
            record: LabelRecord::of(label.value()),
            flip: Flip::Never,
        }
    }

    fn pods(&self) -> Pods {
        let pod = |name: &str, kind: &str, life: Life| Pod {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            uid: format!("{name}-{life:?}"),
            node: "a".to_owned(),
            controller: Some((kind.to_owned(), "owner".to_owned())),
            deleted_at: (life == Life::Terminates).then(|| at(0)),
            addresses: match life {
                Life::Runs | Life::Terminates => vec!["10.244.1.7".parse().unwrap()],
                Life::Moved => Vec::new(),
            },
            ..Pod::default()
        };
        let mut pods = vec![pod("daemon", "DaemonSet", self.daemon)];
        if self.workload != Life::Moved {
            pods.push(pod("workload", "ReplicaSet", self.workload));
        }
        pods.into()
    }

    fn view<'world>(
        &self,
        pods: &'world Pods,
        refusals: &'world BTreeMap<String, Refusal>,
    ) -> NodeView<'world> {
        NodeView {
            ready: self.node_ready,
            ready_changed: Some(at(0)),
            unschedulable: !matches!(self.cordon, Cordon::None | Cordon::Lifted),
            cordoned_by_replumb: matches!(self.cordon, Cordon::Replumb | Cordon::Lifted),
            network: match self.label {
                Label::Missing => NetworkLabel::Missing,
                Label::Flannel => NetworkLabel::Flannel,
                Label::Neither => NetworkLabel::Neither,
                Label::Calico => NetworkLabel::Calico,
            },
            goal: self.goal.goal(),
            agent: AgentReport {
                ready: self.agent_ready,
                phase: Some(self.phase),
                is_served_by_calico: self.serves,
                ..AgentReport::default()
            },
            residents: residents(pods, "a"),
            flannel_pods: flannel_pods(self.flannel_pod),
            calico_pods: calico_pods(self.calico_ready),
            probe_pod: (self.probe != Probe::None).then(|| probe_pod(self.probe != Probe::Starting)),
            probers: probers(match self.probe {
                Probe::Reached => Some(true),
                Probe::Unreached => Some(false),
                Probe::None | Probe::Starting | Probe::Runs => None,
            }),
            stage: self.stage.map(|stage| (stage, at(0))),
            ..node(refusals)
        }
    }

    /// The decision in this state.
    fn decide(&self) -> (Stage, Decision<NodeStep>) {
        let pods = self.pods();
        let refusals: BTreeMap<String, Refusal> = if self.refused {
            let refusal = Refusal {
                since: at(0),
                next_try: at(100),
                by_budget: true,
                message: "budget".to_owned(),
            };
            BTreeMap::from([("workload-Runs".to_owned(), refusal)])
        } else {
            BTreeMap::new()
        };
        let next = decide(&self.view(&pods, &refusals), &POLICY, at(10));
        (next.stage, next.decision)
    }

    /// Asserts that the step is safe in this state.
    fn assert_safe(&self, step: &NodeStep) {
        let is_on_flannel = |life: Life| life != Life::Moved && self.phase < Phase::Detached;
        match step {
            NodeStep::Cordon => {
                assert!(
                    matches!(self.cordon, Cordon::None | Cordon::Lifted),
                    "cordoned twice: {self:?}"
                );
            }
            NodeStep::Evict(_) => {
                assert!(
                    matches!(self.cordon, Cordon::Replumb | Cordon::User),
                    "evicted uncordoned: {self:?}"
                );
                assert!(
                    self.label <= Label::Flannel || self.flannel_pod.is_none(),
                    "flannel's pod may not end: {self:?}"
                );
            }
            NodeStep::Label("none") => {
                assert!(self.label <= Label::Flannel, "label went back: {self:?}");
                assert_eq!(
                    self.workload,
                    Life::Moved,
                    "flannel ends before its pods: {self:?}"
                );
            }
            NodeStep::Label("calico") => {
                assert!(
                    self.phase >= Phase::Detached,
                    "Calico starts with flannel's devices: {self:?}"
                );
                assert_eq!(self.flannel_pod, None, "both networks run: {self:?}");
            }
            NodeStep::Label(other) => panic!("unknown label: {other}"),
            NodeStep::Goal(goal) => {
                assert!(Goal_::of(*goal) > self.goal, "goal went back: {self:?}");
                assert!(
                    self.label >= Label::Neither,
                    "a goal for a node on flannel: {self:?}"
                );
                if goal.phase() >= Some(Phase::Detached) {
                    assert!(
                        !is_on_flannel(self.workload),
                        "the network of a running pod is removed: {self:?}"
                    );
                    assert!(
                        !is_on_flannel(self.daemon),
                        "the network of a DaemonSet's pod is removed: {self:?}"
                    );
                }
                if goal.phase() == Some(Phase::Calico) {
                    assert!(
                        self.calico_ready == Some(true) || self.serves,
                        "no dead man's switch, and no network: {self:?}"
                    );
                }
            }
            NodeStep::CreateProbePod => assert_eq!(self.phase, Phase::Calico, "probed too early: {self:?}"),
            NodeStep::Uncordon => {
                assert!(
                    matches!(self.cordon, Cordon::Replumb | Cordon::Lifted),
                    "the cordon of the user is removed: {self:?}"
                );
                assert!(self.node_ready, "a NotReady node is done: {self:?}");
                assert_eq!(self.probe, Probe::Reached, "uncordoned without a probe: {self:?}");
                assert_eq!(self.phase, Phase::Calico, "uncordoned before Calico: {self:?}");
            }
            NodeStep::Complete => {
                assert_ne!(
                    self.cordon,
                    Cordon::Replumb,
                    "the cordon of replumb stays: {self:?}"
                );
                assert_eq!(self.probe, Probe::Reached, "done without a probe: {self:?}");
            }
            NodeStep::Import(_) | NodeStep::Release(_) => {
                panic!("no pod keeps its address in a drain: {self:?}")
            }
            NodeStep::Return => panic!("a rollback was not requested: {self:?}"),
        }
    }

    fn performed(mut self, stage: Stage, step: &NodeStep) -> Self {
        self.stage = Some(stage);
        match step {
            NodeStep::Cordon => self.cordon = Cordon::Replumb,
            NodeStep::Evict(pods) => {
                for pod in pods {
                    match pod.name.as_str() {
                        "workload" => self.workload = Life::Terminates,
                        "daemon" => self.daemon = Life::Terminates,
                        other => panic!("evicted {other}"),
                    }
                }
            }
            NodeStep::Label(value) => {
                if self.record.write(value) {
                    self.label = Label::read(value);
                }
            }
            NodeStep::Goal(goal) => self.goal = Goal_::of(*goal),
            NodeStep::CreateProbePod => self.probe = Probe::Starting,
            NodeStep::Uncordon => self.cordon = Cordon::None,
            NodeStep::Complete => {
                self.done = true;
                self.record.end();
            }
            NodeStep::Import(_) | NodeStep::Release(_) | NodeStep::Return => {}
        }
        self
    }

    /// The events that may happen next, in any order.
    fn events(self) -> Vec<Self> {
        // On a NotReady node nothing changes, but the node may become Ready again.
        if !self.node_ready {
            let mut world = self;
            world.node_ready = true;
            return vec![world];
        }
        [self.events_of_host(), self.events_of_programs()].concat()
    }

    /// Adds the world after this change, if the change is possible.
    fn add(self, all: &mut Vec<Self>, possible: bool, change: &dyn Fn(&mut Self)) {
        if possible {
            let mut world = self;
            change(&mut world);
            all.push(world);
        }
    }

    /// Events of the node, its pods, its agent and calico-node.
    fn events_of_host(self) -> Vec<Self> {
        let mut all = Vec::new();
        let mut add = |possible: bool, change: &dyn Fn(&mut Self)| self.add(&mut all, possible, change);
        add(!self.done, &|world| world.node_ready = false);
        add(self.agent_ready, &|world| world.agent_ready = false);
        add(!self.agent_ready, &|world| world.agent_ready = true);
        add(self.cordon == Cordon::Replumb, &|world| {
            world.cordon = Cordon::Lifted;
        });
        add(self.workload == Life::Terminates, &|world| {
            world.workload = Life::Moved;
        });
        add(self.daemon == Life::Terminates, &|world| {
            // Pods of a DaemonSet tolerate the cordon. If the network accepts new pods, the new pod runs.
            world.daemon = if world.phase == Phase::Flannel {
                Life::Runs
            } else {
                Life::Moved
            };
        });
        add(
            self.label >= Label::Neither && self.flannel_pod == Some(DaemonPodState::Ready),
            &|world| world.flannel_pod = Some(DaemonPodState::Terminating),
        );
        add(self.flannel_pod == Some(DaemonPodState::Terminating), &|world| {
            world.flannel_pod = None;
        });
        let agent_moves =
            self.agent_ready && self.goal.goal().phase().is_some_and(|wanted| self.phase < wanted);
        let host_allows = match self.phase {
            // flanneld ends before its pod is gone.
            Phase::Flannel => self.flannel_pod != Some(DaemonPodState::Ready),
            Phase::Held => self.workload == Life::Moved && self.daemon == Life::Moved,
            // Calico's conflist and tunnel exist before calico-node is Ready.
            Phase::Detached => self.calico_ready.is_some(),
            Phase::Swapped | Phase::Mixed | Phase::Calico => false,
        };
        add(agent_moves && host_allows, &|world| {
            world.phase = match world.phase {
                Phase::Flannel => Phase::Held,
                Phase::Held => Phase::Detached,
                Phase::Swapped | Phase::Mixed | Phase::Detached | Phase::Calico => Phase::Calico,
            };
        });
        add(
            self.label == Label::Calico && self.calico_ready.is_none(),
            &|world| world.calico_ready = Some(false),
        );
        add(self.calico_ready.is_some() && !self.serves, &|world| {
            world.serves = true;
        });
        add(self.calico_ready == Some(false), &|world| {
            world.calico_ready = Some(true);
        });
        // calico-node restarts, and the coordinator has to wait again.
        add(self.calico_ready == Some(true) && !self.done, &|world| {
            world.calico_ready = Some(false);
        });
        all
    }

    /// Events of the probe pod, of evictions, of the coordinator and of other clients.
    fn events_of_programs(self) -> Vec<Self> {
        let mut all = Vec::new();
        let mut add = |possible: bool, change: &dyn Fn(&mut Self)| self.add(&mut all, possible, change);
        add(self.probe == Probe::Starting, &|world| world.probe = Probe::Runs);
        add(matches!(self.probe, Probe::Runs | Probe::Unreached), &|world| {
            world.probe = Probe::Reached;
        });
        add(matches!(self.probe, Probe::Runs | Probe::Reached), &|world| {
            world.probe = Probe::Unreached;
        });
        // Another client deletes the probe pod.
        add(matches!(self.probe, Probe::Starting | Probe::Runs), &|world| {
            world.probe = Probe::None;
        });
        add(self.workload == Life::Runs && !self.refused, &|world| {
            world.refused = true;
        });
        add(self.refused, &|world| world.refused = false);
        // The coordinator is killed, and loses what it has not written.
        add(self.refused || self.stage.is_some(), &|world| {
            world.refused = false;
            world.stage = None;
        });
        // The pods of a DaemonSet follow the label, whichever client wrote it.
        add(
            self.label == Label::Flannel && self.flannel_pod.is_none(),
            &|world| {
                world.flannel_pod = Some(DaemonPodState::Ready);
            },
        );
        add(
            self.label != Label::Calico && self.calico_ready.is_some(),
            &|world| (world.calico_ready, world.serves) = (None, false),
        );
        for label in [Label::Missing, Label::Flannel, Label::Neither, Label::Calico] {
            add(self.flip == Flip::Possible && label != self.label, &|world| {
                (world.label, world.flip) = (label, Flip::Happened);
            });
        }
        all
    }

    fn coordinator(self) -> Option<Self> {
        let mut record = self.record;
        if let Some(kept) = record.keep(self.label.value(), self.flip) {
            return Some(Self {
                label: Label::read(kept),
                record,
                ..self
            });
        }
        if self.done {
            return None;
        }
        match self.decide() {
            (stage, Decision::Run(step)) => {
                self.assert_safe(&step);
                Some(self.performed(stage, &step))
            }
            (stage, Decision::Wait(wait)) => {
                assert!(
                    !wait.message.is_empty() && wait.message.contains('a'),
                    "a wait does not name the node: {wait:?}"
                );
                if self.node_ready {
                    assert_ne!(
                        wait.reason,
                        WaitReason::NodeNotReady,
                        "the node is Ready: {self:?}"
                    );
                } else {
                    assert_eq!(wait.reason, WaitReason::NodeNotReady, "{self:?}");
                    assert!(wait.until.is_some(), "a wait without a deadline: {self:?}");
                }
                let mut world = self;
                world.stage = Some(stage);
                (world != self).then_some(world)
            }
            (_, Decision::Settled) => panic!("settled before it was done: {self:?}"),
            (_, Decision::Halt(halt)) => panic!("halted without a cause: {halt:?} in {self:?}"),
        }
    }
}

/// All states that are reachable from these.
fn reachable(starts: Vec<World>) -> States<World> {
    explore::states(starts, |world| {
        Follows::own(world.events().into_iter().chain(world.coordinator()))
    })
}

#[test]
fn every_reachable_state_is_safe_and_leads_to_the_end_state() {
    let starts: Vec<World> = [Cordon::None, Cordon::User]
        .into_iter()
        .flat_map(|cordon| [Label::Missing, Label::Flannel].map(|label| World::start(cordon, label)))
        .collect();
    let states = reachable(starts);
    states.assert_more_than(1000);
    states.assert_each_leads_to(|world| world.done);
    for world in states.iter().filter(|world| world.done) {
        assert_ne!(world.cordon, Cordon::Replumb, "{world:?}");
        assert_eq!(
            (world.phase, world.label),
            (Phase::Calico, Label::Calico),
            "{world:?}"
        );
    }
}

/// Any other label at any time: no step is unsafe, the label is written again, and the end state is reached.
#[test]
fn a_label_of_another_client_is_replaced() {
    let start = World {
        flip: Flip::Possible,
        ..World::start(Cordon::None, Label::Flannel)
    };
    let states = reachable(vec![start]);
    let is_end = |world: &World| world.done && (world.phase, world.label) == (Phase::Calico, Label::Calico);
    states.assert_each_leads_to(is_end);
}

#[test]
fn a_cordon_of_the_user_is_never_removed() {
    for world in reachable(vec![World::start(Cordon::User, Label::Flannel)]).iter() {
        assert_eq!(world.cordon, Cordon::User, "{world:?}");
    }
}

#[test]
fn after_the_deadline_on_blocked_decides() {
    let mut world = World::start(Cordon::Replumb, Label::Flannel);
    world.refused = true;
    world.stage = Some(Stage::Drain);
    let pods = world.pods();
    let refusal = Refusal {
        since: at(0),
        next_try: at(100_000),
        by_budget: true,
        message: "budget".to_owned(),
    };
    let refusals = BTreeMap::from([("workload-Runs".to_owned(), refusal)]);
    let view = NodeView {
        ready_changed: Some(at(0)),
        unschedulable: true,
        cordoned_by_replumb: true,
        agent: AgentReport {
            ready: true,
            phase: Some(Phase::Flannel),
            ..AgentReport::default()
        },
        residents: residents(&pods, "a"),
        stage: Some((Stage::Drain, at(0))),
        ..node(&refusals)
    };
    let decision = |on_blocked, resumed_at, now| {
        decide(
            &view,
            &Policy {
                on_blocked,
                resumed_at,
                ..POLICY
            },
            at(now),
        )
        .decision
    };
    let wait_until = |decision: Decision<NodeStep>| match decision {
        Decision::Wait(wait) => wait.until,
        Decision::Run(_) | Decision::Settled | Decision::Halt(_) => panic!("{decision:?}"),
    };
    assert_eq!(wait_until(decision(OnBlocked::Pause, None, 899)), Some(at(900)));
    assert!(matches!(decision(OnBlocked::Pause, None, 900), Decision::Halt(_)));
    let is_released = |on_blocked| {
        let policy = Policy { on_blocked, ..POLICY };
        release_reason(&view, &policy, &decision(on_blocked, None, 900)).is_some()
    };
    assert!(is_released(OnBlocked::Skip));
    assert!(!is_released(OnBlocked::Pause) && !is_released(OnBlocked::Wait));
    assert_eq!(wait_until(decision(OnBlocked::Wait, None, 900)), None);
    // The user resumes at 850: the time limit starts again.
    assert_eq!(
        wait_until(decision(OnBlocked::Pause, Some(at(850)), 1749)),
        Some(at(1750))
    );
    assert!(matches!(
        decision(OnBlocked::Pause, Some(at(850)), 1750),
        Decision::Halt(_)
    ));
}

/// Two nodes that use the disruptions of two budgets in different orders would wait for each other.
#[test]
fn pods_of_several_budgets_are_evicted_in_one_order() {
    let world = World {
        phase: Phase::Held,
        goal: Goal_::of(Goal::Held),
        flannel_pod: None,
        ..World::start(Cordon::Replumb, Label::Neither)
    };
    let refusals = BTreeMap::new();
    let pods = world.pods();
    let one = pods.iter().find(|pod| pod.of_daemon_set()).unwrap().clone();
    let named = |name: &str| Pod {
        name: name.to_owned(),
        uid: name.to_owned(),
        labels: [("app", name)].into(),
        ..one.clone()
    };
    let budget = |app: &str| Budget {
        namespace: one.namespace.clone(),
        name: app.to_owned(),
        selector: Some(Selector {
            match_labels: [("app".to_owned(), app.to_owned())].into(),
            ..Selector::default()
        }),
        disruptions_allowed: 1,
        ..Budget::default()
    };
    let budgets = [budget("second"), budget("first")];
    let evicted = |names: &[&str]| -> Vec<String> {
        let pods: Pods = names.iter().map(|name| named(name)).collect();
        let view = NodeView {
            budgets: &budgets,
            ..world.view(&pods, &refusals)
        };
        match decide(&view, &POLICY, at(10)).decision {
            Decision::Run(NodeStep::Evict(pods)) => pods.into_iter().map(|pod| pod.name).collect(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(evicted(&["first", "free", "second"]), ["first", "free"]);
    assert_eq!(evicted(&["second"]), ["second"]);
}

/// A late pod that terminates on the cordoned node is handled with the pods of `DaemonSet`s, like a late pod that runs.
#[test]
fn a_terminating_late_pod_does_not_block_the_drain() {
    let mut world = World::start(Cordon::Replumb, Label::Flannel);
    world.workload = Life::Terminates;
    world.stage = Some(Stage::Drain);
    let refusals = BTreeMap::new();
    let step = |made: i64| {
        let mut pods = world.pods();
        pods.retain(|pod| !pod.of_daemon_set());
        for pod in pods.iter_mut() {
            pod.made_at = Some(at(made));
        }
        decide(&world.view(&pods, &refusals), &POLICY, at(made + 1)).decision
    };
    let Decision::Wait(wait) = step(20) else {
        panic!("{:?}", step(20));
    };
    assert_eq!(wait.reason, WaitReason::PodsTerminating);
    assert_eq!(step(40), Decision::Run(NodeStep::Label("none")));
}

/// A pod that terminates with a longer grace period than the user allows is evicted once more.
#[test]
fn a_longer_grace_period_is_shortened_by_a_second_eviction() {
    let mut world = World::start(Cordon::Replumb, Label::Flannel);
    world.workload = Life::Terminates;
    world.stage = Some(Stage::Drain);
    let refusals = BTreeMap::new();
    let step = |given: Option<i64>, grace_period_seconds| {
        let mut pods = world.pods();
        pods.retain(|pod| !pod.of_daemon_set());
        for pod in pods.iter_mut() {
            pod.deletion_grace_seconds = given;
        }
        let policy = Policy {
            grace_period_seconds,
            ..POLICY
        };
        decide(&world.view(&pods, &refusals), &policy, at(10)).decision
    };
    assert!(matches!(
        step(Some(86_400), Some(30)),
        Decision::Run(NodeStep::Evict(pods)) if pods.len() == 1
    ));
    for (given, allowed) in [
        (Some(86_400), None),
        (Some(30), Some(30)),
        (Some(0), Some(30)),
        // A grace period has at least 1 second: the eviction would be repeated for ever.
        (Some(1), Some(0)),
        (None, Some(30)),
    ] {
        let Decision::Wait(wait) = step(given, allowed) else {
            panic!("{given:?}, {allowed:?}");
        };
        assert_eq!(wait.reason, WaitReason::PodsTerminating);
    }
}

/// A budget of all pods of the namespace.
fn budget_of_all(pods: &Pods, allowed: i32) -> Budget {
    Budget {
        namespace: pods.iter().next().unwrap().namespace.clone(),
        name: "all".to_owned(),
        selector: Some(Selector::default()),
        disruptions_allowed: allowed,
        current_healthy: 3,
        desired_healthy: 3,
        expected_pods: 3,
        always_allows_unhealthy: false,
    }
}

/// A late pod is evicted together with the pods of `DaemonSet`s.
fn assert_waits_for_late_pod(world: World, pods: &Pods) {
    let refusals = BTreeMap::new();
    let mut late = pods.clone();
    let mut bare = pods.iter().next().unwrap().clone();
    (bare.name, bare.uid, bare.controller) = ("bare".to_owned(), "bare".to_owned(), None);
    bare.made_at = Some(at(40));
    late.push(bare);
    let Decision::Wait(wait) = decide(&world.view(&late, &refusals), &POLICY, at(50)).decision else {
        panic!("the late pod could not be evicted later");
    };
    assert!(wait.message.contains("bare"), "{}", wait.message);
}

/// A pod of a `DaemonSet` that could not be evicted later keeps its node on the old network, where the node can be released.
#[test]
fn a_pod_that_could_not_be_evicted_later_blocks_the_change_of_the_network() {
    let mut world = World::start(Cordon::Replumb, Label::Flannel);
    world.stage = Some(Stage::Drain);
    let refusals = BTreeMap::new();
    let mut pods = world.pods();
    pods.retain(Pod::of_daemon_set);
    for pod in pods.iter_mut() {
        pod.ready = true;
    }
    let budget = |allowed| budget_of_all(&pods, allowed);
    let step = |pods: &Pods, allowed| {
        let budgets = [budget(allowed)];
        let view = NodeView {
            budgets: &budgets,
            ..world.view(pods, &refusals)
        };
        decide(&view, &POLICY, at(10))
    };
    let continues = Decision::Run(NodeStep::Label("none"));
    assert_eq!(step(&pods, 1).decision, continues);
    let held = step(&pods, 0);
    let Decision::Wait(wait) = held.decision else {
        panic!("{held:?}");
    };
    assert_eq!(
        (held.stage, wait.reason),
        (Stage::Drain, WaitReason::DisruptionBudget)
    );
    assert!(wait.message.contains("/all"), "{}", wait.message);
    // The budget may allow the eviction of an unready pod, and a pod without an address has no network to lose.
    let with = |change: fn(&mut Pod)| {
        let mut pods = pods.clone();
        pods.iter_mut().for_each(change);
        pods
    };
    assert_eq!(step(&with(|pod| pod.ready = false), 0).decision, continues);
    assert_eq!(step(&with(|pod| pod.addresses.clear()), 0).decision, continues);
    let decide_with_unready_pod = |allowed, healthy| {
        let budgets = [Budget {
            current_healthy: healthy,
            ..budget(allowed)
        }];
        let pods = with(|pod| pod.ready = false);
        let view = NodeView {
            budgets: &budgets,
            ..world.view(&pods, &refusals)
        };
        decide(&view, &POLICY, at(10)).decision
    };
    assert!(
        matches!(decide_with_unready_pod(0, 2), Decision::Wait(_)),
        "too few pods are Ready"
    );
    assert_eq!(decide_with_unready_pod(1, 2), continues);
    // The pods are evicted at the same time, and no new pod is Ready before all are evicted.
    let mut two = pods.clone();
    let mut other = pods.iter().next().unwrap().clone();
    (other.name, other.uid) = ("other".to_owned(), "other".to_owned());
    two.push(other);
    assert!(matches!(step(&two, 1).decision, Decision::Wait(_)));
    assert_eq!(step(&two, 2).decision, continues);
    let budgets = [
        budget(1),
        Budget {
            name: "second".to_owned(),
            ..budget(1)
        },
    ];
    let view = NodeView {
        budgets: &budgets,
        ..world.view(&pods, &refusals)
    };
    let Decision::Wait(wait) = decide(&view, &POLICY, at(10)).decision else {
        panic!("the API server does not evict a pod with two budgets");
    };
    assert!(wait.message.contains("all, second"), "{}", wait.message);
    assert_waits_for_late_pod(world, &pods);
    let full = with(|pod| pod.empty_dirs = vec!["cache".to_owned()]);
    let Decision::Wait(wait) = step(&full, 1).decision else {
        panic!("{:?}", step(&full, 1));
    };
    assert_eq!(wait.reason, WaitReason::EvictionRefused);
}

/// A pod that is evicted later, with a grace period longer than the drain timeout, keeps its node on the old network, too.
#[test]
fn a_grace_period_longer_than_the_timeout_blocks_the_change_of_the_network() {
    let mut world = World::start(Cordon::Replumb, Label::Flannel);
    world.stage = Some(Stage::Drain);
    let refusals = BTreeMap::new();
    let of_daemon_set = |grace_seconds| {
        let mut pods = world.pods();
        pods.retain(Pod::of_daemon_set);
        for pod in pods.iter_mut() {
            pod.grace_seconds = grace_seconds;
        }
        pods
    };
    // A late pod that is bound to the node by name, and is deleted with this grace period.
    let late = |deletion_grace_seconds| {
        let mut pods = world.pods();
        pods.retain(|pod| !pod.of_daemon_set());
        for pod in pods.iter_mut() {
            pod.made_at = Some(at(40));
            pod.deleted_at = Some(at(45));
            pod.deletion_grace_seconds = Some(deletion_grace_seconds);
        }
        pods
    };
    let step = |pods: &Pods, grace_period_seconds| {
        let policy = Policy {
            grace_period_seconds,
            ..POLICY
        };
        decide(&world.view(pods, &refusals), &policy, at(50))
    };
    let endless = i64::from(i32::MAX);
    for (pods, grace_period_seconds, is_held) in [
        (of_daemon_set(30), None, false),
        (of_daemon_set(900), None, false),
        (of_daemon_set(901), None, true),
        (of_daemon_set(u32::MAX), None, true),
        (of_daemon_set(u32::MAX), Some(30), false),
        (of_daemon_set(30), Some(901), true),
        (late(30), None, false),
        (late(endless), None, true),
        // A second eviction shortens it.
        (late(endless), Some(30), false),
        (late(30), Some(901), false),
    ] {
        let next = step(&pods, grace_period_seconds);
        let name = pods.iter().next().unwrap().key();
        match next.decision {
            Decision::Wait(wait) => {
                assert!(is_held, "{wait:?}");
                assert_eq!(
                    (next.stage, wait.reason),
                    (Stage::Drain, WaitReason::EvictionRefused)
                );
                for words in [
                    name.as_str(),
                    "drain.timeoutSeconds (900)",
                    "drain.gracePeriodSeconds",
                ] {
                    assert!(wait.message.contains(words), "{}", wait.message);
                }
            }
            decision => {
                assert_eq!(decision, Decision::Run(NodeStep::Label("none")));
                assert!(!is_held, "{pods:?}");
            }
        }
    }
    // The node is not cordoned, and can be released.
    let pods = of_daemon_set(u32::MAX);
    let view = NodeView {
        unschedulable: false,
        cordoned_by_replumb: false,
        ..world.view(&pods, &refusals)
    };
    assert!(matches!(
        decide(&view, &POLICY, at(50)).decision,
        Decision::Wait(_)
    ));
    let skip = Policy {
        on_blocked: OnBlocked::Skip,
        ..POLICY
    };
    let overdue = decide(&view, &skip, at(900)).decision;
    assert!(release_reason(&view, &skip, &overdue).is_some(), "{overdue:?}");
}

/// A pod that tolerates the cordon is created again after each eviction: the drain continues without it, and it is evicted when
/// new pods wait.
#[test]
fn a_late_pod_does_not_block_the_drain() {
    let mut world = World::start(Cordon::Replumb, Label::Flannel);
    world.stage = Some(Stage::Drain);
    let mut pods = world.pods();
    let refusals = BTreeMap::new();
    let step = |pods: &Pods, made: i64, label: Label| {
        let mut pods = pods.clone();
        for pod in pods.iter_mut() {
            pod.made_at = Some(at(made));
        }
        let world = match label {
            Label::Neither => World {
                label,
                phase: Phase::Held,
                goal: Goal_::of(Goal::Held),
                flannel_pod: None,
                ..world
            },
            Label::Missing | Label::Flannel | Label::Calico => World { label, ..world },
        };
        decide(&world.view(&pods, &refusals), &POLICY, at(made + 1)).decision
    };
    pods.retain(|pod| !pod.of_daemon_set());
    assert!(matches!(
        step(&pods, 20, Label::Flannel),
        Decision::Run(NodeStep::Evict(_))
    ));
    assert_eq!(
        step(&pods, 40, Label::Flannel),
        Decision::Run(NodeStep::Label("none"))
    );
    assert!(matches!(
        step(&pods, 40, Label::Neither),
        Decision::Run(NodeStep::Evict(_))
    ));
}

/// A node that becomes NotReady during a long drain has the time limit of a step from then on, and halts after it.
#[test]
fn a_not_ready_node_has_the_deadline_of_a_step() {
    let mut world = World::start(Cordon::Replumb, Label::Flannel);
    world.workload = Life::Terminates;
    world.stage = Some(Stage::Drain);
    let pods = world.pods();
    let refusals = BTreeMap::new();
    let mut view = world.view(&pods, &refusals);
    view.ready = false;
    view.ready_changed = Some(at(800));
    let decision = |now| decide(&view, &POLICY, at(now)).decision;
    let Decision::Wait(wait) = decision(950) else {
        panic!("{:?}", decision(950));
    };
    assert_eq!(
        (wait.reason, wait.until),
        (WaitReason::NodeNotReady, Some(at(1400)))
    );
    let Decision::Halt(halt) = decision(1400) else {
        panic!("{:?}", decision(1400));
    };
    assert_eq!(halt.reason, HaltReason::DeadlineExceeded);
    assert!(halt.message.contains("NotReady since"), "{}", halt.message);
    // The clock of the writer is an hour ahead, so the time of the stage applies.
    view.ready_changed = Some(at(4400));
    assert!(matches!(
        decide(&view, &POLICY, at(599)).decision,
        Decision::Wait(_)
    ));
    assert!(matches!(
        decide(&view, &POLICY, at(600)).decision,
        Decision::Halt(_)
    ));
}
