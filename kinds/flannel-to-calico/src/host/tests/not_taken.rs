//! Pods whose links calico-node does not take return to `cni0`, with a crash in the middle of each step, and stay there until the
//! migration is resumed.

use std::collections::BTreeSet;

use super::adopt::{assert_lossless, dual_stack, felix_acts, in_order, start, states};
use super::back::Machine;
use super::*;

const FIRST: &str = "of-veth1";

/// The states of a host in phase Mixed whose agent has recorded that calico-node has not taken these pods.
fn without_felix(start: &Machine, sandboxes: &[&str]) -> Vec<Machine> {
    let mut states = states(start);
    states.retain(|state| phase(&state.facts, &state.settings) == Phase::Mixed);
    for state in &mut states {
        state.remembered.not_taken = sandboxes.iter().map(|sandbox| (*sandbox).to_owned()).collect();
        for pod in &mut state.facts.legacy_pods {
            if let Some(link) = pod
                .pod_link
                .as_mut()
                .filter(|_| sandboxes.contains(&pod.sandbox.as_str()))
            {
                link.taken = false;
            }
        }
    }
    assert!(states.len() > 20, "{}", states.len());
    states
}

/// All states on the way to the end, and the message of the last wait.
fn drive(from: &Machine) -> (Vec<Machine>, String) {
    let mut all = vec![from.clone()];
    for _ in 0..60 {
        let now = all.last().unwrap().clone();
        match decide(&now.facts, &now.settings, Goal::Calico, &now.remembered) {
            HostDecision::Run(step) => {
                assert_lossless(&step, &now.facts);
                all.push(now.performed(&step, true));
                all.push(now.performed(&step, false));
            }
            HostDecision::Wait(message) => {
                let mut after = now.clone();
                if !felix_acts(&mut after.facts, &after.remembered.not_taken) {
                    return (all, message);
                }
                all.push(after);
            }
            other => panic!("{other:?}: {now:?}"),
        }
    }
    panic!("too many steps: {:?}", all.last());
}

/// The host in phase Mixed without a step of the adoption.
fn mixed(start: &Machine) -> HostFacts {
    let mut machine = start.clone();
    machine.settings.adopt_pods = false;
    for goal in [Goal::Held, Goal::Swapped, Goal::Mixed] {
        machine = machine.states_to(goal).pop().unwrap();
    }
    machine.facts
}

#[test]
fn a_pod_that_is_not_taken_returns_and_the_other_is_adopted_whatever_step_is_cut() {
    for start in [start(), dual_stack()] {
        return_one(&start);
    }
}

fn return_one(start: &Machine) {
    let mixed = mixed(start);
    let mut returned = 0;
    for state in without_felix(start, &[FIRST]) {
        let (way, message) = drive(&state);
        let end = way.last().unwrap();
        assert!(message.contains("pod shop/of-veth1"), "{message}");
        assert!(
            message.contains("cali1111 within 60 s") && !message.contains("of-veth2"),
            "{message}"
        );
        assert_eq!(end.facts.legacy_pods[0], mixed.legacy_pods[0]);
        assert!(end.facts.legacy_pods[1].is_adopted() && !end.facts.legacy_pods[1].waits_for_felix());
        assert_eq!(end.facts.firewall, mixed.firewall, "flannel serves the pod");
        assert_eq!(end.facts.calico.kept_addresses, Vec::<IpAddr>::new());
        let reported = end.remembered.complete(&end.facts, &end.settings);
        let stay = pods_that_stay(&reported, &end.settings);
        assert!(
            stay.len() == 1 && stay[0].contains("kubectl replumb resume"),
            "{stay:?}"
        );
        for cut in way
            .iter()
            .filter(|machine| machine.remembered.interrupted.is_some())
        {
            let (again, _) = drive(cut);
            assert_eq!(again.last().unwrap().facts, end.facts, "{cut:?}");
        }
        returned += way.len();
    }
    assert!(returned > 300, "{returned}");
}

#[test]
fn without_calico_node_the_host_is_as_before_the_adoption() {
    let starts = [start(), dual_stack()];
    let states = starts.iter().flat_map(|start| {
        let mixed = mixed(start);
        let states = without_felix(start, &[FIRST, "of-veth2"]);
        states.into_iter().map(move |state| (state, mixed.clone()))
    });
    for (state, mixed) in states {
        let (way, _) = drive(&state);
        let end = way.last().unwrap();
        assert_eq!(end.facts, mixed);
        let adopted = end
            .remembered
            .unreverted
            .iter()
            .filter(|step| matches!(step, HostStep::ChangePods(_)));
        assert_eq!(adopted.count(), 0, "{:?}", end.remembered.unreverted);
    }
}

#[test]
fn no_step_follows_until_the_migration_is_resumed() {
    let (way, message) = drive(&without_felix(&start(), &[FIRST])[0]);
    let mut end = way.last().unwrap().clone();
    let again = decide(&end.facts, &end.settings, Goal::Calico, &end.remembered);
    assert_eq!(again, HostDecision::Wait(message));
    end.remembered.not_taken = BTreeSet::new();
    let resumed = end.states_to(Goal::Calico);
    let last = resumed.last().unwrap();
    assert_eq!(phase(&last.facts, &last.settings), Phase::Calico);
    assert!(last.facts.legacy_pods.iter().all(LegacyPod::is_adopted));
}

#[test]
fn while_a_pod_waits_or_returns_no_pod_counts_as_staying() {
    for state in without_felix(&dual_stack(), &[FIRST]) {
        let facts = state.remembered.complete(&state.facts, &state.settings);
        let is_waiting = facts
            .legacy_pods
            .iter()
            .any(|pod| pod.waits_for_felix() || !pod.attached && !pod.is_adopted());
        if is_waiting {
            assert_eq!(pods_that_stay(&facts, &state.settings), Vec::<String>::new());
        }
    }
}

#[test]
fn a_rollback_from_any_state_restores_the_host() {
    for (start, sandboxes) in [(start(), &[FIRST][..]), (dual_stack(), &[FIRST, "of-veth2"])] {
        for state in without_felix(&start, sandboxes) {
            for machine in drive(&state).0 {
                let back = machine.states_to(Goal::Flannel);
                let end = back.last().unwrap();
                let expected = HostFacts {
                    flanneld_running: end.facts.flanneld_running,
                    ..start.facts.clone()
                };
                assert_eq!(in_order(&end.facts), in_order(&expected), "from {machine:?}");
            }
        }
    }
}

fn take_name(pod: &mut LegacyPod) {
    pod.pod_link.as_mut().unwrap().name_taken = true;
}

/// Another link gets the name that Calico gives to the link of the first pod, in the middle of the adoption.
#[test]
fn a_pod_whose_name_is_taken_in_the_middle_returns() {
    let mixed = mixed(&start());
    let mut returned = 0;
    for mut state in without_felix(&start(), &[]) {
        if state.facts.legacy_pods[0].is_adopted() {
            continue;
        }
        take_name(&mut state.facts.legacy_pods[0]);
        let (way, message) = drive(&state);
        let end = way.last().unwrap();
        assert!(
            message.contains("another link has the name cali1111"),
            "{message}"
        );
        let mut expected = mixed.legacy_pods[0].clone();
        take_name(&mut expected);
        assert_eq!(end.facts.legacy_pods[0], expected);
        assert!(end.facts.legacy_pods[1].is_adopted() && !end.facts.bridge.is_absent());
        returned += u32::from(state.facts.legacy_pods[0].is_between());
    }
    assert!(returned > 0, "no state between");
}

#[test]
fn without_a_way_back_in_the_journal_the_bridge_of_a_pod_stays() {
    let mut states = without_felix(&start(), &[]);
    let state = states
        .iter_mut()
        .find(|state| state.facts.legacy_pods.iter().all(LegacyPod::is_between));
    let state = state.unwrap();
    state.facts.legacy_pods.iter_mut().for_each(take_name);
    state.remembered.unreverted.clear();
    match decide(&state.facts, &state.settings, Goal::Calico, &state.remembered) {
        HostDecision::Wait(why) => assert!(why.contains("veth1 of pod shop/of-veth1"), "{why}"),
        other => panic!("{other:?}"),
    }
}
