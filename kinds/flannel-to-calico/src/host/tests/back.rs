//! Rollback from every state of the migration.

use super::*;
use crate::facts::Found;

/// A host and its journal.
#[derive(Clone, Debug)]
pub(super) struct Machine {
    pub(super) settings: HostSettings,
    pub(super) facts: HostFacts,
    pub(super) remembered: JournalState,
}

impl Machine {
    pub(super) fn flannel() -> Self {
        Self {
            settings: settings(),
            facts: flannel_host(),
            remembered: JournalState::default(),
        }
    }

    /// The same host with dual-stack pods.
    pub(super) fn dual_stack() -> Self {
        Self {
            settings: ipv6::settings(),
            facts: ipv6::flannel_host(),
            remembered: JournalState::default(),
        }
    }

    /// The host and its journal after a step. `cut` means a crash in the middle of the step.
    pub(super) fn performed(&self, step: &HostStep, cut: bool) -> Self {
        let mut after = Self {
            settings: self.settings.clone(),
            facts: perform(step, &self.facts, cut),
            remembered: self.remembered.clone(),
        };
        after.remembered.interrupted = cut.then(|| step.clone());
        let standing = &mut after.remembered.unreverted;
        standing.retain(|change| change != step);
        if !cut {
            *standing = standing
                .iter()
                .filter_map(|change| step.remainder(change))
                .collect();
        }
        if matches!(step.undo(), Undo::By(_)) {
            standing.push(step.clone());
        }
        after
    }

    /// The other programs act: flannel's pod ends, Calico's pod starts and Felix writes to the host, pods end.
    fn world(&self, goal: Goal) -> Self {
        let mut after = self.clone();
        if goal == Goal::Calico && adopt::felix_acts(&mut after.facts, &after.remembered.not_taken) {
            return after;
        }
        if goal == Goal::Flannel {
            after.facts.calico.node_running = false;
            after.facts.calico.pods.clear();
            return after;
        }
        let evicted = !matches!(goal, Goal::Swapped | Goal::Mixed);
        if after.facts.flanneld_running || (evicted && after.facts.legacy_pods.iter().any(|pod| pod.attached))
        {
            after.facts = others_act(&after.facts, &self.settings);
            return after;
        }
        after.facts = others_act(
            &HostFacts {
                bridge: Found::Absent,
                ..after.facts.clone()
            },
            &self.settings,
        );
        after.facts.bridge = self.facts.bridge.clone();
        after.facts.calico = CalicoObjects {
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

    /// All states on the path to the goal, in order.
    pub(super) fn states_to(&self, goal: Goal) -> Vec<Self> {
        let mut all = vec![self.clone()];
        for _ in 0..60 {
            let now = all.last().unwrap().clone();
            match decide(&now.facts, &self.settings, goal, &now.remembered) {
                HostDecision::Run(step) => {
                    // A bridge that a crash has left half-made is completed first; Felix does not touch it.
                    if goal == Goal::Flannel && step != HostStep::RestoreBridge {
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
        panic!("too many steps: {:?}", all.last());
    }
}

fn assert_safe_back(step: &HostStep, facts: &HostFacts) {
    assert!(
        !facts.calico.node_running,
        "Felix would revert the step: {step:?}"
    );
    let conflist_only = matches!(
        step,
        HostStep::RestoreConflist(_) | HostStep::RemoveCalicoConflist(_)
    );
    assert!(
        conflist_only || facts.calico.pods.is_empty(),
        "pods on Calico run: {step:?}"
    );
    match step {
        HostStep::RemoveCalicoConflist(_) => assert!(
            facts.cni.files.iter().any(cni::is_flannel),
            "with an empty directory the node becomes NotReady"
        ),
        HostStep::UnrouteLegacyPods => {
            assert_eq!(facts.calico.blackholes, 0, "running pods would be blackholed");
        }
        HostStep::RestoreSubnetEnvironment => {
            assert_eq!(facts.calico.blackholes, 0, "new pods would be blackholed");
            let mut remaining = facts.calico.clone();
            // flannel has one route for each node.
            remaining.subnet_routes.missing = 0;
            assert_eq!(remaining, CalicoObjects::default(), "something of Calico is left");
        }
        HostStep::ReturnVxlanDevice { from, .. } => {
            let routes = facts.vxlan(from).map_or(0, |device| device.block_routes);
            assert_eq!(routes, 0, "flannel's routes must be added first");
        }
        _ => {}
    }
}

/// The facts without those that a rollback cannot restore because their pods have ended.
fn without_deleted_pods(facts: &HostFacts) -> HostFacts {
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
fn by_drain_the_tunnel_exists_at_every_moment() {
    for start in [Machine::flannel(), Machine::dual_stack()] {
        let states = start.states_to(Goal::Calico);
        let back = states.last().unwrap().states_to(Goal::Flannel);
        let is_complete = |machine: &&Machine| machine.remembered.interrupted.is_none();
        for machine in states.iter().chain(&back).filter(is_complete) {
            for tunnel in start.settings.tunnels() {
                assert!(tunnel.name(&machine.facts).is_some(), "{machine:?}");
            }
        }
    }
}

#[test]
fn a_rollback_from_any_step_restores_the_host() {
    for start in [Machine::flannel(), Machine::dual_stack()] {
        roll_back_from_every_state(&start);
    }
}

fn roll_back_from_every_state(start: &Machine) {
    let mut walked = 0;
    for goal in GOALS.into_iter().filter(|goal| goal.is_forward()) {
        for machine in start.states_to(goal) {
            let back = machine.states_to(Goal::Flannel);
            let end = &back.last().unwrap();
            let mut expected = start.facts.clone();
            expected.legacy_pods.retain(|pod| {
                let mut there = end.facts.legacy_pods.iter();
                there.any(|other| other.sandbox == pod.sandbox && other.attached)
            });
            assert_eq!(
                without_deleted_pods(&end.facts),
                without_deleted_pods(&expected),
                "rollback from {:?} with goal {goal:?}",
                machine.facts
            );
            assert_eq!(
                changes(&end.facts, &start.settings, &end.remembered.unreverted),
                Vec::<String>::new()
            );
            assert_eq!(phase(&end.facts, &start.settings), Phase::Flannel);
            // A crash in the middle of any step of the rollback gives the same end state.
            for cut in back
                .iter()
                .filter(|machine| machine.remembered.interrupted.is_some())
            {
                let again = cut.states_to(Goal::Flannel);
                let again = again.last().unwrap();
                assert_eq!(
                    without_deleted_pods(&again.facts),
                    without_deleted_pods(&end.facts),
                    "{cut:?}"
                );
            }
            walked += back.len();
        }
    }
    assert!(walked > 500, "too few states: {walked}");
}

#[test]
fn a_migration_after_a_rollback_gives_the_same_devices() {
    let there = Machine::flannel().states_to(Goal::Mixed);
    let mixed = there.last().unwrap();
    let back = mixed.states_to(Goal::Flannel);
    let again = back.last().unwrap().states_to(Goal::Mixed);
    assert_eq!(
        again.last().unwrap().facts.vxlan_devices,
        mixed.facts.vxlan_devices
    );
}

#[test]
fn an_unchanged_host_has_no_changes() {
    assert_eq!(changes(&flannel_host(), &settings(), &[]), Vec::<String>::new());
    assert_eq!(
        decide(
            &flannel_host(),
            &settings(),
            Goal::Flannel,
            &JournalState::default()
        ),
        HostDecision::Settled
    );
}

#[test]
fn calicos_conflist_is_not_removed_without_flannels() {
    let mut host = flannel_host();
    host.flanneld_running = false;
    host.cni = folder(&[("10-calico.conflist", CALICO_CONFLIST)]);
    match decide(&host, &settings(), Goal::Flannel, &JournalState::default()) {
        HostDecision::Halt(why) => assert!(why.contains("cni-conf.json"), "{why}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_change_in_the_journal_has_an_undo_that_reverts_it() {
    for machine in Machine::dual_stack().states_to(Goal::Mixed) {
        for change in &machine.remembered.unreverted {
            let Undo::By(undo) = change.undo() else {
                panic!("{change:?} is in the journal and has no undo")
            };
            assert!(undo.reverts(change), "{undo:?} of {change:?}");
            assert!(!undo.reverts(&undo), "{undo:?}");
        }
    }
}

/// A host that has reached this goal, and that the agent rolls back without the coordinator: calico-node has not started.
fn alone(goal: Goal) -> Machine {
    let mut machine = Machine::flannel().states_to(goal).last().unwrap().clone();
    machine.facts.calico = CalicoObjects::default();
    machine.remembered.without_coordinator = true;
    machine
}

/// Some steps may fail for ever: an IP set that a rule of another program uses, a plugin that hangs.
#[test]
fn alone_steps_that_no_new_pod_needs_come_last() {
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
            "the coordinator must know of the rollback first"
        );
        machine = machine.performed(&step, false);
    }
    panic!("too many steps: {machine:?}");
}

#[test]
fn alone_only_a_calico_node_that_has_written_to_the_host_is_waited_for() {
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
    // With the goal from the coordinator, any running calico-node is waited for.
    machine.facts.calico.blackholes = 0;
    machine.remembered.without_coordinator = false;
    assert!(matches!(next(&machine), HostDecision::Wait(_)));
}

/// If install-cni has written Calico's conflist and calico-node runs before the goal allows it, the host works and is not
/// rolled back.
#[test]
fn a_host_with_a_working_calico_is_not_between_the_networks() {
    for goal in [Goal::Swapped, Goal::Detached] {
        let mut machine = alone(goal);
        let is_between = |machine: &Machine| match service(&machine.facts, &machine.settings) {
            PodNetworkService::Neither => true,
            PodNetworkService::Calico => false,
            PodNetworkService::Steady => panic!("{machine:?}"),
        };
        assert!(is_between(&machine), "{goal:?}");
        machine.facts.cni = folder(&[
            ("10-calico.conflist", CALICO_CONFLIST),
            ("10-flannel.conflist", FLANNEL_CONFLIST),
        ]);
        machine.facts.vxlan_devices = vec![device(CALICO_DEVICE)];
        assert!(
            is_between(&machine),
            "without calico-node, Calico's plugin does not work"
        );
        machine.facts.calico.node_running = true;
        assert!(is_between(&machine), "calico-node may never become Ready");
        machine.facts.calico.blackholes = 1;
        assert!(!is_between(&machine), "{goal:?}: {:?}", machine.facts);
        let working = machine.clone();
        machine.facts.vxlan_devices[0].addresses.clear();
        assert!(is_between(&machine), "no tunnel");
        machine = working;
        machine.facts.cni = folder(&[("05-flannel.conflist", FLANNEL_CONFLIST)]);
        assert!(is_between(&machine), "another conflist is in use");
    }
}
