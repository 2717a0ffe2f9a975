//! Walk of a node with strategy `InPlace` through all reachable states: each step of the decision, each event around it in any
//! order, a crash after each step. No running pod may lose its network or its address, and every state leads to the end state.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use explore::Follows;
use jiff::SignedDuration;

use super::super::facts::LegacyPod;
use super::super::import::{ImportedAddress, imported_as};
use super::super::node::{
    AgentReport, NetworkLabel, Next, NodeStep, NodeView, Stage, decide, restart, upkeep,
};
use super::super::objects::Allocation;
use super::super::phase::{Goal, Phase};
use super::fixture::{LEGACY, POLICY, calico_pods, flannel_pods, legacy_pod, node, now, probe_pod, probers};
use super::{Flip, LabelRecord};
use engine::daemon_pod::DaemonPodState;
use engine::decision::{Decision, WaitReason};

/// A flannel pod with address 10.244.1.7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Pod {
    /// Not created yet: the runtime may have called ADD.
    Starting,
    Runs,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct World {
    label: &'static str,
    goal: u8,
    phase: Phase,
    pod: Pod,
    imported: bool,
    flannel_pod: Option<DaemonPodState>,
    calico_ready: Option<bool>,
    /// calico-node has written to the host, Ready or not.
    serves: bool,
    probe: u8,
    agent_ready: bool,
    done: bool,
    released: bool,
    record: LabelRecord,
    flip: Flip,
}

const GOALS: [Goal; 5] = [Goal::Hold, Goal::Held, Goal::Swapped, Goal::Mixed, Goal::Calico];
const NONE: BTreeMap<String, engine::evict::Refusal> = BTreeMap::new();

fn allocation() -> Allocation {
    Allocation {
        address: Ipv4Addr::new(10, 244, 1, 7).into(),
        handle: "k8s-pod-network.s1".to_owned(),
        attributes: BTreeMap::new(),
    }
}

impl World {
    const START: Self = Self {
        label: "flannel",
        goal: 0,
        phase: Phase::Flannel,
        pod: Pod::Runs,
        imported: false,
        flannel_pod: Some(DaemonPodState::Ready),
        calico_ready: None,
        serves: false,
        probe: 0,
        agent_ready: true,
        done: false,
        released: false,
        record: LabelRecord::of(Some("flannel")),
        flip: Flip::Never,
    };

    fn goal(self) -> Goal {
        GOALS[usize::from(self.goal)]
    }

    fn view(self, refusals: &BTreeMap<String, engine::evict::Refusal>) -> NodeView<'_> {
        let runs = self.pod == Pod::Runs;
        let imported: Vec<ImportedAddress> = self
            .imported
            .then(|| imported_as(&allocation()))
            .into_iter()
            .collect();
        NodeView {
            network: NetworkLabel::read(Some(self.label)),
            goal: self.goal(),
            agent: AgentReport {
                ready: self.agent_ready,
                phase: Some(self.phase),
                is_served_by_calico: self.serves,
                ..AgentReport::default()
            },
            flannel_pods: flannel_pods(self.flannel_pod),
            calico_pods: calico_pods(self.calico_ready),
            to_import: (runs && !self.imported).then(allocation).into_iter().collect(),
            to_release: if runs { Vec::new() } else { imported },
            legacy_pods: runs
                .then(|| legacy_pod("old", LEGACY, true))
                .into_iter()
                .collect(),
            probe_pod: (self.probe > 0).then(|| probe_pod(true)),
            probers: probers(Some(self.probe == 2)),
            ..node(refusals)
        }
    }

    fn assert_safe(self, step: &NodeStep) {
        match step {
            NodeStep::Cordon | NodeStep::Uncordon | NodeStep::Evict(_) | NodeStep::Return => {
                panic!("not a step in place: {step:?}")
            }
            NodeStep::Label("none") => assert_eq!(self.label, "flannel", "{self:?}"),
            NodeStep::Label("calico") => {
                assert!(
                    self.phase >= Phase::Swapped,
                    "Felix would find flannel's link: {self:?}"
                );
                assert_eq!(self.flannel_pod, None, "both networks run: {self:?}");
                assert!(
                    self.pod != Pod::Runs || self.imported,
                    "its address could be assigned to another pod: {self:?}"
                );
            }
            NodeStep::Label(other) => panic!("unknown label: {other}"),
            NodeStep::Goal(goal) => {
                assert_ne!(
                    *goal,
                    Goal::Detached,
                    "the agent would wait for a running pod: {self:?}"
                );
                assert!(goal.phase() > self.goal().phase(), "goal went back: {self:?}");
                assert_ne!(
                    self.flannel_pod,
                    Some(DaemonPodState::Ready),
                    "flanneld would create its link again: {self:?}"
                );
                if *goal == Goal::Swapped {
                    assert!(
                        self.pod != Pod::Runs || self.imported,
                        "swapped before the import: {self:?}"
                    );
                }
                if *goal == Goal::Mixed {
                    assert!(
                        self.calico_ready == Some(true) || self.serves,
                        "no dead man's switch, and no network: {self:?}"
                    );
                }
                if *goal == Goal::Calico {
                    assert_ne!(
                        self.pod,
                        Pod::Runs,
                        "the bridge of a running pod is deleted: {self:?}"
                    );
                }
            }
            NodeStep::Import(allocations) => {
                assert_eq!(allocations.len(), 1);
                assert!(self.phase >= Phase::Held, "more pods may start: {self:?}");
            }
            NodeStep::Release(_) => {
                assert_ne!(
                    self.pod,
                    Pod::Runs,
                    "the address of a running pod is released: {self:?}"
                );
            }
            NodeStep::CreateProbePod => assert!(self.phase >= Phase::Mixed, "probed too early: {self:?}"),
            NodeStep::Complete => assert_eq!(self.probe, 2, "done without a probe: {self:?}"),
        }
    }

    fn performed(mut self, step: &NodeStep) -> Self {
        self.assert_safe(step);
        match step {
            NodeStep::Label(value) => {
                if self.record.write(value) {
                    self.label = value;
                }
            }
            NodeStep::Goal(goal) => {
                self.goal = u8::try_from(GOALS.iter().position(|known| known == goal).unwrap()).unwrap();
            }
            NodeStep::Import(_) => self.imported = true,
            NodeStep::Release(_) => (self.imported, self.released) = (false, true),
            NodeStep::CreateProbePod => self.probe = 1,
            NodeStep::Complete => {
                self.done = true;
                self.record.end();
            }
            NodeStep::Cordon | NodeStep::Uncordon | NodeStep::Evict(_) | NodeStep::Return => {}
        }
        self
    }

    /// The state after the label was handled, which comes before anything else.
    fn label_handled(mut self) -> Option<Self> {
        self.label = self.record.keep(Some(self.label), self.flip)?;
        Some(self)
    }

    fn coordinator(self) -> Option<Self> {
        if let Some(handled) = self.label_handled() {
            return Some(handled);
        }
        if let Some(step) = upkeep(&self.view(&NONE)) {
            return Some(self.performed(&step));
        }
        if self.done {
            return None;
        }
        let next = decide(&self.view(&NONE), &POLICY, now());
        match next.decision {
            Decision::Run(step) => Some(self.performed(&step)),
            Decision::Wait(wait) => {
                assert_ne!(wait.reason, WaitReason::NodeNotReady);
                assert!(
                    wait.until.is_some(),
                    "a wait without a deadline in {}: {wait:?}",
                    Stage::as_str(next.stage)
                );
                None
            }
            Decision::Settled => panic!("settled before it was done: {self:?}"),
            Decision::Halt(halt) => panic!("halted without a cause: {halt:?} in {self:?}"),
        }
    }

    fn events(self) -> Vec<Self> {
        let mut all = Vec::new();
        let mut add = |possible: bool, change: &dyn Fn(&mut Self)| {
            if possible {
                let mut world = self;
                change(&mut world);
                all.push(world);
            }
        };
        add(true, &|world| world.agent_ready = !world.agent_ready);
        // An ADD that read subnet.env before the file was moved ends late.
        add(self.pod == Pod::Starting && self.phase <= Phase::Held, &|world| {
            world.pod = Pod::Runs;
        });
        add(self.pod == Pod::Runs, &|world| world.pod = Pod::Gone);
        add(self.pod == Pod::Starting, &|world| world.pod = Pod::Gone);
        add(
            self.label != "flannel" && self.flannel_pod == Some(DaemonPodState::Ready),
            &|world| world.flannel_pod = Some(DaemonPodState::Terminating),
        );
        add(self.flannel_pod == Some(DaemonPodState::Terminating), &|world| {
            world.flannel_pod = None;
        });
        let wanted = self.goal().phase().filter(|_| self.agent_ready);
        let host = match self.phase {
            // flanneld ends before its pod is gone.
            Phase::Flannel => (self.flannel_pod != Some(DaemonPodState::Ready)).then_some(Phase::Held),
            Phase::Held => Some(Phase::Swapped),
            // Calico's conflist and tunnel exist before calico-node is Ready.
            Phase::Swapped => self.calico_ready.is_some().then_some(Phase::Mixed),
            Phase::Mixed => (self.pod == Pod::Gone).then_some(Phase::Calico),
            Phase::Detached | Phase::Calico => None,
        };
        add(
            wanted.is_some_and(|wanted| !self.phase.reaches(wanted)) && host.is_some(),
            &|world| world.phase = host.unwrap(),
        );
        add(self.label == "calico" && self.calico_ready.is_none(), &|world| {
            world.calico_ready = Some(false);
        });
        add(self.calico_ready.is_some() && !self.serves, &|world| {
            world.serves = true;
        });
        add(self.calico_ready.is_some() && !self.done, &|world| {
            world.calico_ready = world.calico_ready.map(|ready| !ready);
        });
        add(self.probe == 1, &|world| world.probe = 2);
        // The pods of a DaemonSet follow the label, whichever client wrote it.
        add(self.label == "flannel" && self.flannel_pod.is_none(), &|world| {
            world.flannel_pod = Some(DaemonPodState::Ready);
        });
        add(self.label != "calico" && self.calico_ready.is_some(), &|world| {
            (world.calico_ready, world.serves) = (None, false);
        });
        for label in ["flannel", "none", "calico", "odd"] {
            add(self.flip == Flip::Possible && label != self.label, &|world| {
                (world.label, world.flip) = (label, Flip::Happened);
            });
        }
        all
    }
}

#[test]
fn every_reachable_state_is_safe_and_leads_to_the_end_state() {
    let starts = [Pod::Starting, Pod::Runs, Pod::Gone].map(|pod| World { pod, ..World::START });
    // A crash after a step is no separate event: only the world contains the result of the step.
    let states = explore::states(starts, |world| {
        Follows::own(world.events().into_iter().chain(world.coordinator()))
    });
    states.assert_more_than(200);

    let is_end = |world: &World| world.done && world.phase == Phase::Calico && !world.imported;
    states.assert_each_leads_to(is_end);
}

/// Any other label at any time: no step is unsafe, the label is written again, and the end state is reached.
#[test]
fn a_label_of_another_client_is_replaced() {
    let starts = [Pod::Starting, Pod::Runs, Pod::Gone].map(|pod| World {
        pod,
        flip: Flip::Possible,
        ..World::START
    });
    let states = explore::states(starts, |world| {
        Follows::own(world.events().into_iter().chain(world.coordinator()))
    });
    let is_end = |world: &World| {
        world.done && world.label == "calico" && world.phase == Phase::Calico && !world.imported
    };
    states.assert_each_leads_to(is_end);
    let odd = |world: &&World| world.label == "odd";
    assert!(
        states.iter().filter(odd).count() > 100,
        "{} states",
        states.count()
    );
}

/// The end of flanneld is before that of its pod, and calico-node serves new pods before it is Ready.
#[test]
fn steps_follow_before_pods_are_gone_or_ready() {
    let next = |world: World| match decide(&world.view(&NONE), &POLICY, now()) {
        Next {
            stage,
            decision: Decision::Run(step),
        } => (stage, Ok(step)),
        Next {
            stage,
            decision: Decision::Wait(wait),
        } => (stage, Err(wait.reason)),
        other => panic!("{other:?}"),
    };
    let mut world = World {
        label: "none",
        flannel_pod: Some(DaemonPodState::NotReady),
        ..World::START
    };
    assert_eq!(
        next(world),
        (Stage::StopFlannel, Err(WaitReason::FlannelPodRunning))
    );
    world.flannel_pod = Some(DaemonPodState::Terminating);
    assert_eq!(next(world), (Stage::HoldNewPods, Ok(NodeStep::Goal(Goal::Held))));
    world.goal = 1;
    assert_eq!(next(world), (Stage::HoldNewPods, Err(WaitReason::AgentWorking)));
    world.phase = Phase::Held;
    let import = NodeStep::Import(vec![allocation()]);
    assert_eq!(next(world), (Stage::Import, Ok(import)));
    (world.imported, world.phase, world.goal) = (true, Phase::Swapped, 2);
    assert_eq!(next(world), (Stage::Swap, Err(WaitReason::FlannelPodRunning)));
    (world.flannel_pod, world.label, world.calico_ready) = (None, "calico", Some(false));
    let waits = (Stage::StartCalico, Err(WaitReason::CalicoNodeNotReady));
    assert_eq!(next(world), waits);
    world.serves = true;
    assert_eq!(next(world), (Stage::StartCalico, Ok(NodeStep::Goal(Goal::Mixed))));
    world.goal = 3;
    assert_eq!(next(world), waits);
    world.phase = Phase::Mixed;
    assert_eq!(next(world), (Stage::StartCalico, Ok(NodeStep::CreateProbePod)));
    world.probe = 1;
    assert_eq!(next(world), waits);
    (world.calico_ready, world.probe) = (Some(true), 0);
    assert_eq!(
        next(world),
        (Stage::Probe, Ok(NodeStep::CreateProbePod)),
        "the stage and its deadline do not begin again"
    );
}

/// Legacy pods are evicted and pods on Calico stay. The wait for a budget names the pod.
#[test]
fn legacy_pods_are_restarted_within_their_budgets() {
    let pod = |name: &str, address: &str| engine::drain::Pod {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: name.to_owned(),
        node: "a".to_owned(),
        controller: Some(("ReplicaSet".to_owned(), "web".to_owned())),
        addresses: vec![address.parse().unwrap()],
        ..engine::drain::Pod::default()
    };
    let pods: engine::pods::Pods = [pod("old", "10.244.1.7"), pod("new", "10.244.1.20")].into();
    let mut world = World::START;
    world.phase = Phase::Mixed;
    let none = NONE;
    let mut view = world.view(&none);
    view.residents = engine::drain::residents(&pods, "a");
    let Some(Decision::Run(NodeStep::Evict(due))) = restart(&view, &POLICY, now()) else {
        panic!("no pod is evicted");
    };
    assert_eq!(
        due.iter().map(|pod| pod.name.as_str()).collect::<Vec<_>>(),
        ["old"]
    );
    let refusal = engine::evict::Refusal {
        since: now(),
        next_try: now() + SignedDuration::from_secs(5),
        by_budget: true,
        message: "Cannot evict pod".to_owned(),
    };
    let refusals = BTreeMap::from([("old".to_owned(), refusal)]);
    view.refusals = &refusals;
    let Some(Decision::Wait(wait)) = restart(&view, &POLICY, now()) else {
        panic!("the budget is ignored");
    };
    assert_eq!(wait.reason, WaitReason::DisruptionBudget);
    assert!(wait.message.contains("shop/old"), "{}", wait.message);
    view.legacy_pods.clear();
    assert_eq!(restart(&view, &POLICY, now()), None);
}

/// The leftovers of a deleted pod contain an address that Calico has assigned to another pod since.
#[test]
fn a_pod_with_the_address_of_a_deleted_pod_is_no_legacy_pod() {
    let pod = |name: &str| engine::drain::Pod {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: name.to_owned(),
        node: "a".to_owned(),
        controller: Some(("ReplicaSet".to_owned(), "web".to_owned())),
        addresses: vec![allocation().address],
        ..engine::drain::Pod::default()
    };
    let mut world = World::START;
    (world.phase, world.pod) = (Phase::Mixed, Pod::Gone);
    let none = NONE;
    let mut view = world.view(&none);
    let is_evicted = |view: &NodeView<'_>| restart(view, &POLICY, now()).is_some();
    let pods: engine::pods::Pods = [pod("new")].into();
    view.residents = engine::drain::residents(&pods, "a");
    for attached in [true, false] {
        view.legacy_pods = vec![legacy_pod("old", LEGACY, attached)];
        assert!(!is_evicted(&view), "{attached}");
        assert_eq!(upkeep(&view), None, "leftovers of the deleted pod exist");
        view.legacy_pods = vec![legacy_pod("new", LEGACY, attached)];
        assert!(is_evicted(&view), "{attached}");
        // The runtime has not recorded the name of the pod.
        view.legacy_pods = vec![legacy_pod("", LEGACY, attached)];
        assert!(is_evicted(&view), "{attached}");
        view.legacy_pods = vec![LegacyPod {
            namespace: "bank".to_owned(),
            ..legacy_pod("new", LEGACY, attached)
        }];
        assert!(!is_evicted(&view), "{attached}");
    }
}
