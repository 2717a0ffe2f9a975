//! The way back, from every state of the way there.

use super::*;

/// A host with its journal, as both are after each step.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    settings: HostSettings,
    pub(super) facts: HostFacts,
    remembered: Remembered,
}

impl Machine {
    fn flannel() -> Self {
        Self {
            settings: settings(),
            facts: flannel_host(),
            remembered: Remembered::default(),
        }
    }

    /// The same host with pods of both families.
    pub(super) fn dual_stack() -> Self {
        Self {
            settings: ipv6::settings(),
            facts: ipv6::flannel_host(),
            remembered: Remembered::default(),
        }
    }

    /// The journal, as the agent keeps it.
    fn performed(&self, step: &HostStep, cut: bool) -> Self {
        let mut after = Self {
            settings: self.settings.clone(),
            facts: perform(step, &self.facts, cut),
            remembered: self.remembered.clone(),
        };
        after.remembered.interrupted = cut.then(|| step.clone());
        let standing = &mut after.remembered.standing;
        standing.retain(|change| change != step && (cut || !step.takes_back(change)));
        if matches!(step.undo(), Undo::By(_)) {
            standing.push(step.clone());
        }
        after
    }

    /// flannel's pod ends, Calico's comes with everything that Felix makes, pods go.
    fn world(&self, goal: Goal) -> Self {
        let mut after = self.clone();
        if goal == Goal::Flannel {
            after.facts.calico.node_running = false;
            after.facts.calico.pods.clear();
            return after;
        }
        let evicted = !matches!(goal, Goal::Swapped | Goal::Mixed);
        if after.facts.flanneld_running || (evicted && after.facts.legacy_pods.iter().any(|pod| pod.attached))
        {
            after.facts = world_moves_on(&after.facts, &self.settings);
            return after;
        }
        after.facts = world_moves_on(
            &HostFacts {
                bridge: Found::Absent,
                ..after.facts.clone()
            },
            &self.settings,
        );
        after.facts.bridge = self.facts.bridge.clone();
        after.facts.calico = CalicoTraces {
            node_running: true,
            pods: vec!["cali1".to_owned()],
            firewall: vec![
                chain(FirewallBackend::IptablesNft, "filter", ""),
                chain(FirewallBackend::Nftables, "ip calico", ""),
            ],
            sets: 3,
            blackholes: 4,
            records: 1,
            ..after.facts.calico
        };
        after
    }

    /// Every machine on the way to the goal, the last one last.
    pub(super) fn way(&self, goal: Goal) -> Vec<Self> {
        let mut all = vec![self.clone()];
        for _ in 0..60 {
            let now = all.last().unwrap().clone();
            match decide(&now.facts, &self.settings, goal, &now.remembered) {
                HostDecision::Run(step) => {
                    if goal == Goal::Flannel {
                        assert_safe_back(&step, &now.facts);
                    }
                    all.push(now.performed(&step, true));
                    all.push(now.performed(&step, false));
                }
                HostDecision::Wait(_) => all.push(now.world(goal)),
                HostDecision::Settled => return all,
                HostDecision::Halt(why) => panic!("{why}: {now:?}"),
            }
        }
        panic!("no end in sight: {:?}", all.last());
    }
}

fn assert_safe_back(step: &HostStep, facts: &HostFacts) {
    assert!(!facts.calico.node_running, "Felix would make it again: {step:?}");
    let folder_only = matches!(
        step,
        HostStep::RestoreConflist(_) | HostStep::RemoveCalicoConflist(_)
    );
    assert!(
        folder_only || facts.calico.pods.is_empty(),
        "a living pod: {step:?}"
    );
    match step {
        HostStep::RemoveCalicoConflist(_) => assert!(
            facts.cni.files.iter().any(CniFile::is_flannel),
            "an empty folder turns the node NotReady"
        ),
        HostStep::UnrouteLegacyPods => {
            assert_eq!(facts.calico.blackholes, 0, "living pods would be blackholed");
        }
        HostStep::RestoreSubnetEnvironment => {
            assert_eq!(facts.calico.blackholes, 0, "new pods would be blackholed");
            let mut left = facts.calico.clone();
            // Of flannel's routes there are as many as of nodes.
            left.subnet_routes.missing = 0;
            assert_eq!(left, CalicoTraces::default(), "something of Calico's is left");
        }
        HostStep::ReturnVxlanDevice { from, .. } => {
            let routes = facts.vxlan(from).map_or(0, |device| device.block_routes);
            assert_eq!(routes, 0, "flannel's routes are laid first");
        }
        _ => {}
    }
}

/// What cannot come back with the pods that have gone.
fn without_the_gone(facts: &HostFacts) -> HostFacts {
    let mut facts = facts.clone();
    facts.flanneld_running = false;
    facts.legacy_pods.retain(|pod| pod.attached);
    if facts.legacy_pods.is_empty() {
        (facts.bridge, facts.leases, facts.delegates) = (Found::Absent, 0, 0);
    }
    facts
        .vxlan_devices
        .sort_by(|left, right| left.name.cmp(&right.name));
    facts
}

#[test]
fn from_every_step_of_every_way_the_host_is_as_it_was() {
    for start in [Machine::flannel(), Machine::dual_stack()] {
        walk_there_and_back(&start);
    }
}

fn walk_there_and_back(start: &Machine) {
    let mut walked = 0;
    for goal in GOALS.into_iter().filter(|goal| goal.is_forward()) {
        for machine in start.way(goal) {
            let back = machine.way(Goal::Flannel);
            let end = &back.last().unwrap();
            let mut expected = start.facts.clone();
            expected.legacy_pods.retain(|pod| {
                let mut there = end.facts.legacy_pods.iter();
                there.any(|other| other.sandbox == pod.sandbox && other.attached)
            });
            assert_eq!(
                without_the_gone(&end.facts),
                without_the_gone(&expected),
                "back from {:?} on the way to {goal:?}",
                machine.facts
            );
            assert_eq!(
                changes(&end.facts, &start.settings, &end.remembered.standing),
                Vec::<String>::new()
            );
            assert_eq!(phase(&end.facts, &start.settings), Phase::Flannel);
            // Dying in the middle of any step of it changes nothing.
            for cut in back
                .iter()
                .filter(|machine| machine.remembered.interrupted.is_some())
            {
                let again = cut.way(Goal::Flannel);
                let again = again.last().unwrap();
                assert_eq!(
                    without_the_gone(&again.facts),
                    without_the_gone(&end.facts),
                    "{cut:?}"
                );
            }
            walked += back.len();
        }
    }
    assert!(walked > 500, "{walked} states say little");
}

#[test]
fn there_and_back_and_there_again() {
    let there = Machine::flannel().way(Goal::Mixed);
    let mixed = there.last().unwrap();
    let back = mixed.way(Goal::Flannel);
    let again = back.last().unwrap().way(Goal::Mixed);
    assert_eq!(
        again.last().unwrap().facts.vxlan_devices,
        mixed.facts.vxlan_devices
    );
}

#[test]
fn a_host_on_which_nothing_was_done_has_no_changes() {
    assert_eq!(changes(&flannel_host(), &settings(), &[]), Vec::<String>::new());
    assert_eq!(
        decide(
            &flannel_host(),
            &settings(),
            Goal::Flannel,
            &Remembered::default()
        ),
        HostDecision::Settled
    );
}

#[test]
fn without_any_conflist_of_flannels_the_folder_is_not_emptied() {
    let mut host = flannel_host();
    host.flanneld_running = false;
    host.cni = folder(&[("10-calico.conflist", CALICO_CONFLIST)]);
    match decide(&host, &settings(), Goal::Flannel, &Remembered::default()) {
        HostDecision::Halt(why) => assert!(why.contains("cni-conf.json"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_change_has_an_undo_that_takes_it_back_or_a_reason() {
    for machine in Machine::dual_stack().way(Goal::Mixed) {
        for change in &machine.remembered.standing {
            let Undo::By(undo) = change.undo() else {
                panic!("{change:?} stands and has no undo")
            };
            assert!(undo.takes_back(change), "{undo:?} of {change:?}");
            assert!(!undo.takes_back(&undo), "{undo:?}");
        }
    }
}

/// A host that was led to this goal and goes back by itself: calico-node has not come.
fn alone(goal: Goal) -> Machine {
    let mut machine = Machine::flannel().way(goal).last().unwrap().clone();
    machine.facts.calico = CalicoTraces::default();
    machine.remembered.alone = true;
    machine
}

/// Each of these steps may be refused for ever: a set that a rule of another program uses, a plugin that hangs.
#[test]
fn alone_what_no_new_pod_needs_is_not_waited_for() {
    let mut machine = alone(Goal::Swapped);
    (machine.facts.calico.sets, machine.facts.calico.records) = (3, 1);
    machine.facts.legacy_pods[0].attached = false;
    for _ in 0..60 {
        let HostDecision::Run(step) = decide(
            &machine.facts,
            &machine.settings,
            Goal::Flannel,
            &machine.remembered,
        ) else {
            panic!("{machine:?}");
        };
        if let HostStep::ForgetLegacyPod(sandbox) = &step {
            assert_eq!(sandbox, "of-veth1");
            assert_eq!(phase(&machine.facts, &machine.settings), Phase::Flannel);
            return;
        }
        assert!(
            !matches!(step, HostStep::DeleteCalicoSets | HostStep::RemoveCalicoRecords),
            "the coordinator takes notice first"
        );
        machine = machine.performed(&step, false);
    }
    panic!("no end in sight: {machine:?}");
}

#[test]
fn alone_it_waits_for_a_calico_node_that_has_begun_and_for_no_other() {
    let mut machine = alone(Goal::Swapped);
    machine.facts.calico.node_running = true;
    machine.facts.cni = folder(&[
        ("10-calico.conflist", CALICO_CONFLIST),
        ("10-flannel.conflist", FLANNEL_CONFLIST),
    ]);
    let next = |machine: &Machine| {
        decide(
            &machine.facts,
            &machine.settings,
            Goal::Flannel,
            &machine.remembered,
        )
    };
    let first = HostStep::RemoveCalicoConflist("10-calico.conflist".to_owned());
    assert_eq!(next(&machine), HostDecision::Run(first));
    machine.facts.calico.blackholes = 1;
    let HostDecision::Wait(why) = next(&machine) else {
        panic!("{:?}", next(&machine));
    };
    assert!(why.contains("calico-node still runs"), "{why}");
    // With the coordinator's order nothing of it is hurried either.
    machine.facts.calico.blackholes = 0;
    machine.remembered.alone = false;
    assert!(matches!(next(&machine), HostDecision::Wait(_)));
}

/// Calico's installer has written its conflist, and calico-node runs, before the goal is there: a host that works is not put back.
#[test]
fn a_host_that_calico_serves_is_not_between_the_networks() {
    for goal in [Goal::Swapped, Goal::Detached] {
        let mut machine = alone(goal);
        let is_between = |machine: &Machine| match service(&machine.facts, &machine.settings) {
            Service::Neither => true,
            Service::Calico => false,
            Service::Steady => panic!("{machine:?}"),
        };
        assert!(is_between(&machine), "{goal:?}");
        machine.facts.cni = folder(&[
            ("10-calico.conflist", CALICO_CONFLIST),
            ("10-flannel.conflist", FLANNEL_CONFLIST),
        ]);
        machine.facts.vxlan_devices = vec![device(CALICO_DEVICE)];
        assert!(
            is_between(&machine),
            "without calico-node its plugin does nothing"
        );
        machine.facts.calico.node_running = true;
        assert!(is_between(&machine), "it may never become Ready");
        machine.facts.calico.blackholes = 1;
        assert!(!is_between(&machine), "{goal:?}: {:?}", machine.facts);
        let working = machine.clone();
        machine.facts.vxlan_devices[0].addresses.clear();
        assert!(is_between(&machine), "no tunnel");
        machine = working;
        machine.facts.cni = folder(&[("05-flannel.conflist", FLANNEL_CONFLIST)]);
        assert!(is_between(&machine), "another conflist wins");
    }
}
