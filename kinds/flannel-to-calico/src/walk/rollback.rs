//! Walk of a node through its rollback, from every state of the migration: each step of the decision, each event around it in
//! any order, a crash after each step. No running pod may lose its network, flannel must not start on a host before the host is
//! restored, and every state leads to the end state.

use std::collections::BTreeMap;

use explore::Follows;
use jiff::SignedDuration;

use super::super::node::{AgentReport, Direction, NetworkLabel, NodeStep, NodeView, Stage, decide, upkeep};
use super::super::phase::{Goal, Phase};
use super::fixture::{
    LEGACY, POLICY, calico_pods, flannel_pods, legacy_pod, node, now, probe_pod, probers, readiness,
};
use super::{Flip, LabelRecord};
use engine::decision::{Decision, WaitReason};
use engine::drain::{Pod, residents};
use engine::evict::Refusal;
use engine::pods::Pods;

/// A pod with an address of Calico.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Life {
    Runs,
    Terminates,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Cordon {
    None,
    Replumb,
    User,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct World {
    label: &'static str,
    goal: u8,
    /// The phase of the host.
    phase: Phase,
    /// Whether the host is different from before the migration.
    changed: bool,
    /// Whether the agent has reported that it acts on the goal.
    reported: bool,
    cordon: Cordon,
    workload: Life,
    daemon: Life,
    flannel: Option<bool>,
    calico: bool,
    probe: u8,
    agent_ready: bool,
    node_ready: bool,
    proved: bool,
    returned: bool,
    record: LabelRecord,
    flip: Flip,
}

const GOALS: [Goal; 7] = [
    Goal::Hold,
    Goal::Flannel,
    Goal::Held,
    Goal::Swapped,
    Goal::Mixed,
    Goal::Detached,
    Goal::Calico,
];

fn pod(name: &str, owner: &str, life: Life, address: &str) -> Option<Pod> {
    (life != Life::Gone).then(|| Pod {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: name.to_owned(),
        node: "a".to_owned(),
        controller: Some((owner.to_owned(), name.to_owned())),
        addresses: vec![address.parse().unwrap()],
        deleted_at: (life == Life::Terminates).then(now),
        ..Pod::default()
    })
}

impl World {
    /// A node that has not begun.
    fn on_flannel() -> Self {
        Self {
            label: "flannel",
            goal: 0,
            phase: Phase::Flannel,
            changed: false,
            reported: false,
            cordon: Cordon::None,
            workload: Life::Gone,
            daemon: Life::Gone,
            flannel: Some(true),
            calico: false,
            probe: 0,
            agent_ready: true,
            node_ready: true,
            proved: false,
            returned: false,
            record: LabelRecord::of(Some("flannel")),
            flip: Flip::Never,
        }
    }

    /// The possible states of the migration: label, goal and host that fit together, with pods on Calico if they can exist.
    fn starts() -> Vec<Self> {
        let base = Self::on_flannel();
        let mut all = Vec::new();
        for cordon in [Cordon::None, Cordon::Replumb, Cordon::User] {
            all.push(Self { cordon, ..base });
            let between = Self {
                label: "none",
                cordon,
                ..base
            };
            all.push(between);
            for (goal, phase) in [
                (2, Phase::Flannel),
                (2, Phase::Held),
                (3, Phase::Held),
                (3, Phase::Swapped),
                (5, Phase::Held),
                (5, Phase::Detached),
            ] {
                all.push(Self {
                    goal,
                    phase,
                    changed: phase != Phase::Flannel,
                    flannel: None,
                    ..between
                });
            }
            for (goal, phase) in [
                (3, Phase::Swapped),
                (4, Phase::Mixed),
                (5, Phase::Detached),
                (6, Phase::Calico),
            ] {
                for (workload, daemon) in [
                    (Life::Gone, Life::Gone),
                    (Life::Runs, Life::Runs),
                    (Life::Terminates, Life::Runs),
                ] {
                    let has_pods = matches!(phase, Phase::Mixed | Phase::Calico);
                    if has_pods || workload == Life::Gone {
                        all.push(Self {
                            label: "calico",
                            goal,
                            phase,
                            changed: true,
                            flannel: None,
                            calico: true,
                            workload,
                            daemon,
                            ..between
                        });
                    }
                }
            }
        }
        // A crash may have happened while the label was being written. The next step follows when the label is known.
        let half = all.iter().filter_map(|world| {
            let record = match (world.label, world.goal()) {
                ("flannel" | "none", Goal::Hold) => LabelRecord::announced("flannel", "none"),
                ("calico", Goal::Swapped | Goal::Detached) => LabelRecord::announced("none", "calico"),
                _ => return None,
            };
            Some(Self { record, ..*world })
        });
        let whole = all.iter().map(|world| Self {
            record: LabelRecord::of(Some(world.label)),
            ..*world
        });
        whole.chain(half).collect()
    }

    fn goal(self) -> Goal {
        GOALS[usize::from(self.goal)]
    }

    fn calico_pods_are_gone(self) -> bool {
        self.workload == Life::Gone && self.daemon == Life::Gone
    }

    fn new_pods_use_calico(self) -> bool {
        matches!(self.phase, Phase::Mixed | Phase::Calico)
    }

    fn pods(self) -> Pods {
        [
            pod("workload", "ReplicaSet", self.workload, "10.244.1.20"),
            pod("daemon", "DaemonSet", self.daemon, "10.244.1.21"),
            pod("legacy", "ReplicaSet", Life::Runs, LEGACY),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    fn view<'pods>(self, pods: &'pods Pods, refusals: &'pods BTreeMap<String, Refusal>) -> NodeView<'pods> {
        NodeView {
            direction: Direction::Rollback,
            ready: self.node_ready,
            unschedulable: self.cordon != Cordon::None,
            cordoned_by_replumb: self.cordon == Cordon::Replumb,
            network: NetworkLabel::read(Some(self.label)),
            goal: self.goal(),
            agent: AgentReport {
                ready: self.agent_ready,
                phase: Some(self.phase),
                goal: self.reported.then(|| self.goal()),
                has_calico_pods: !self.calico_pods_are_gone(),
                changes: self
                    .changed
                    .then(|| "link vxlan.calico".to_owned())
                    .into_iter()
                    .collect(),
                ..AgentReport::default()
            },
            residents: residents(pods, "a"),
            flannel_pods: flannel_pods(self.flannel.map(readiness)),
            calico_pods: calico_pods(self.calico.then_some(true)),
            legacy_pods: vec![legacy_pod("legacy", LEGACY, true)],
            probe_pod: (self.probe > 0).then(|| probe_pod(true)),
            probers: probers(Some(self.probe == 2)),
            ..node(refusals)
        }
    }

    fn assert_safe(self, step: &NodeStep) {
        match step {
            NodeStep::Cordon => assert_eq!(self.cordon, Cordon::None, "{self:?}"),
            NodeStep::Evict(pods) => {
                assert!(
                    pods.iter().all(|pod| pod.name != "legacy"),
                    "a legacy pod is evicted: {self:?}"
                );
                let daemon = pods.iter().any(|pod| pod.name == "daemon");
                assert!(
                    !daemon || !self.new_pods_use_calico(),
                    "a new pod would use Calico: {self:?}"
                );
                let workload = pods.iter().any(|pod| pod.name == "workload");
                assert!(
                    !workload || self.cordon != Cordon::None,
                    "a new pod would use Calico: {self:?}"
                );
            }
            NodeStep::Label("none") => {
                assert_eq!(self.label, "calico", "{self:?}");
                assert_eq!(
                    self.workload,
                    Life::Gone,
                    "Calico would end before its pod: {self:?}"
                );
            }
            NodeStep::Label("flannel") => {
                assert!(!self.calico, "both networks run: {self:?}");
                assert!(!self.changed, "flanneld would find Calico's link: {self:?}");
            }
            NodeStep::Label(other) => panic!("{other} is no label of a rollback: {self:?}"),
            NodeStep::Goal(goal) => {
                assert_eq!(*goal, Goal::Flannel, "{self:?}");
                assert!(!self.calico, "Felix would revert the changes: {self:?}");
            }
            NodeStep::CreateProbePod | NodeStep::Uncordon => {
                assert!(self.label == "flannel" && !self.changed, "{self:?}");
            }
            NodeStep::Return => {
                assert!(
                    self.calico_pods_are_gone(),
                    "the address of a running pod is released: {self:?}"
                );
                assert!(
                    self.label == "flannel" && !self.changed && self.cordon != Cordon::Replumb,
                    "{self:?}"
                );
                assert!(
                    self.proved || self.goal() == Goal::Hold,
                    "rolled back without a probe: {self:?}"
                );
            }
            NodeStep::Import(_) | NodeStep::Release(_) | NodeStep::Complete => {
                panic!("{step:?} is no step of a rollback: {self:?}")
            }
        }
    }

    fn performed(mut self, step: &NodeStep) -> Self {
        self.assert_safe(step);
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
                    self.label = value;
                }
            }
            NodeStep::Goal(goal) => {
                self.goal = u8::try_from(GOALS.iter().position(|known| known == goal).unwrap()).unwrap();
                self.reported = false;
            }
            NodeStep::CreateProbePod => self.probe = 1,
            NodeStep::Uncordon => self.cordon = Cordon::None,
            NodeStep::Return => {
                self.returned = true;
                self.record.end();
            }
            NodeStep::Import(_) | NodeStep::Release(_) | NodeStep::Complete => {}
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
        let (pods, refusals) = (self.pods(), BTreeMap::new());
        let view = self.view(&pods, &refusals);
        if self.returned {
            return None;
        }
        assert_eq!(upkeep(&view), None, "an import during a rollback");
        let next = decide(&view, &POLICY, now());
        match next.decision {
            Decision::Run(step) => Some(self.performed(&step)),
            Decision::Wait(wait) => {
                assert!(wait.until.is_some(), "a wait without a deadline: {wait:?}");
                assert_eq!(
                    wait.reason == WaitReason::NodeNotReady,
                    !self.node_ready,
                    "{self:?}"
                );
                None
            }
            Decision::Settled => panic!("settled before it was rolled back: {self:?}"),
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
        add(!self.returned, &|world| world.node_ready = !world.node_ready);
        if !self.node_ready {
            return all;
        }
        add(self.workload == Life::Terminates, &|world| {
            world.workload = Life::Gone;
        });
        add(self.daemon == Life::Terminates, &|world| {
            world.daemon = if world.new_pods_use_calico() {
                Life::Runs
            } else {
                Life::Gone
            };
        });
        add(self.label != "calico" && self.calico, &|world| {
            world.calico = false;
        });
        add(self.label != "flannel" && self.flannel.is_some(), &|world| {
            world.flannel = None;
        });
        add(self.label == "flannel" && self.flannel.is_none(), &|world| {
            world.flannel = Some(false);
        });
        add(self.flannel == Some(false), &|world| world.flannel = Some(true));
        let agent = self.agent_ready && self.goal() == Goal::Flannel;
        add(agent && !self.reported, &|world| world.reported = true);
        // The CNI directory first: Calico's conflist is removed, and new pods wait.
        add(agent && !self.calico && self.new_pods_use_calico(), &|world| {
            world.phase = if world.phase == Phase::Mixed {
                Phase::Swapped
            } else {
                Phase::Detached
            };
        });
        let free = !self.new_pods_use_calico() && self.calico_pods_are_gone();
        add(
            agent && !self.calico && free && (self.changed || self.phase != Phase::Flannel),
            &|world| {
                (world.phase, world.changed) = (Phase::Flannel, false);
            },
        );
        add(self.probe == 1 && self.flannel == Some(true), &|world| {
            (world.probe, world.proved) = (2, true);
        });
        // The pods of a DaemonSet follow the label, whichever client wrote it.
        add(self.label == "calico" && !self.calico, &|world| {
            world.calico = true;
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
fn a_rollback_from_every_state_is_safe_and_leads_to_the_end_state() {
    let states = explore::states(World::starts(), |world| {
        Follows::own(world.events().into_iter().chain(world.coordinator()))
    });
    states.assert_more_than(500);
    states.assert_each_leads_to(|world| world.returned);
    for world in states.iter() {
        assert!(
            !world.returned || (world.phase, world.label) == (Phase::Flannel, "flannel"),
            "{world:?}"
        );
    }
}

/// Any other label at any time: the label is written again, and the node is rolled back.
#[test]
fn a_label_of_another_client_is_replaced() {
    let starts = World::starts().into_iter().map(|world| World {
        flip: Flip::Possible,
        ..world
    });
    let states = explore::states(starts, |world| {
        Follows::own(world.events().into_iter().chain(world.coordinator()))
    });
    let is_end = |world: &World| world.returned && (world.phase, world.label) == (Phase::Flannel, "flannel");
    states.assert_each_leads_to(is_end);
    let odd = |world: &&World| world.label == "odd";
    assert!(
        states.iter().filter(odd).count() > 100,
        "{} states",
        states.count()
    );
}

#[test]
fn a_cordon_of_the_user_is_never_removed() {
    let starts = World::starts();
    let cordoned = starts.into_iter().filter(|world| world.cordon == Cordon::User);
    let states = explore::states(cordoned, |world| {
        Follows::own(world.events().into_iter().chain(world.coordinator()))
    });
    for world in states.iter() {
        assert_eq!(world.cordon, Cordon::User, "{world:?}");
    }
}

#[test]
fn each_budget_that_blocks_a_pod_is_named() {
    let world = World::starts()
        .into_iter()
        .find(|world| world.workload == Life::Runs)
        .unwrap();
    let world = World {
        cordon: Cordon::Replumb,
        ..world
    };
    let refusal = |message: &str| Refusal {
        since: now(),
        next_try: now() + SignedDuration::from_secs(5),
        by_budget: true,
        message: message.to_owned(),
    };
    let mut pods = world.pods();
    let mut other = pods.iter().find(|pod| pod.uid == "workload").unwrap().clone();
    (other.name, other.uid) = ("other".to_owned(), "other".to_owned());
    pods.push(other);
    let refusals = BTreeMap::from([
        ("workload".to_owned(), refusal("the first budget")),
        ("other".to_owned(), refusal("the second budget")),
    ]);
    let next = decide(&world.view(&pods, &refusals), &POLICY, now());
    let Decision::Wait(wait) = next.decision else {
        panic!("{next:?}");
    };
    for words in [
        "shop/workload",
        "the first budget",
        "shop/other",
        "the second budget",
    ] {
        assert!(wait.message.contains(words), "{}", wait.message);
    }
}

/// The leftovers of a legacy pod contain an address that Calico has assigned to another pod since: that pod is evicted.
#[test]
fn a_pod_with_the_address_of_a_deleted_pod_is_evicted() {
    let world = World::starts()
        .into_iter()
        .find(|world| world.workload == Life::Runs && world.phase == Phase::Mixed)
        .unwrap();
    let world = World {
        cordon: Cordon::Replumb,
        ..world
    };
    let (pods, refusals) = (world.pods(), BTreeMap::new());
    let mut view = world.view(&pods, &refusals);
    view.legacy_pods.push(legacy_pod("gone", "10.244.1.20", false));
    let evicted = |view: &NodeView<'_>| match decide(view, &POLICY, now()).decision {
        Decision::Run(NodeStep::Evict(pods)) => pods.into_iter().map(|pod| pod.name).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    assert_eq!(evicted(&view), ["workload"]);
    // Later, when new pods wait, the pod of a DaemonSet is evicted, too.
    let world = World {
        label: "none",
        goal: 1,
        phase: Phase::Swapped,
        reported: true,
        calico: false,
        workload: Life::Gone,
        ..world
    };
    let pods = world.pods();
    let mut view = world.view(&pods, &refusals);
    view.legacy_pods.push(legacy_pod("gone", "10.244.1.21", false));
    assert_eq!(evicted(&view), ["daemon"]);
}

/// A terminating flannel pod is not on Calico, although its link may be gone already.
#[test]
fn a_terminating_flannel_pod_is_not_waited_for() {
    let world = World::starts()
        .into_iter()
        .find(|world| world.phase == Phase::Mixed && world.calico_pods_are_gone())
        .unwrap();
    let (mut pods, refusals) = (world.pods(), BTreeMap::new());
    for pod in pods.iter_mut() {
        pod.deleted_at = Some(now());
    }
    for attached in [true, false] {
        let mut view = world.view(&pods, &refusals);
        view.legacy_pods = vec![legacy_pod("legacy", LEGACY, attached)];
        let next = decide(&view, &POLICY, now());
        assert_eq!(
            next.decision,
            Decision::Run(NodeStep::Label("none")),
            "{attached}"
        );
    }
}

#[test]
fn a_wait_for_a_budget_names_the_pod_and_keeps_calico() {
    let mut world = World::starts()
        .into_iter()
        .find(|world| world.workload == Life::Runs)
        .unwrap();
    world.cordon = Cordon::Replumb;
    let refusal = Refusal {
        since: now(),
        next_try: now() + SignedDuration::from_secs(5),
        by_budget: true,
        message: "Cannot evict pod".to_owned(),
    };
    let refusals = BTreeMap::from([("workload".to_owned(), refusal)]);
    let pods = world.pods();
    let next = decide(&world.view(&pods, &refusals), &POLICY, now());
    let Decision::Wait(wait) = next.decision else {
        panic!("{next:?}");
    };
    assert_eq!(
        (next.stage, wait.reason),
        (Stage::Drain, WaitReason::DisruptionBudget)
    );
    assert!(wait.message.contains("shop/workload"), "{}", wait.message);
}
