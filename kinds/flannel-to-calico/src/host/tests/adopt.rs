//! Adoption of running pods, with a crash in the middle of each step, and the rollback from every state.

use std::collections::BTreeSet;

use ipnet::Ipv6Net;

use super::back::Machine;
use super::*;
use crate::facts::PodLink;

const CALICO_LINKS: [&str; 2] = ["cali1111", "cali2222"];

/// The facts after an adoption step. `cut` is a crash after the first pod or object.
pub(super) fn perform(step: &HostStep, facts: &mut HostFacts, cut: bool) {
    match step {
        HostStep::OpenBridge | HostStep::CloseBridge => {
            let open = *step == HostStep::OpenBridge;
            let Found::Present(bridge) = &mut facts.bridge else {
                return;
            };
            // The reverse path filter first, then the rule.
            bridge.open = open && !cut;
            if !cut {
                set_rule(facts, BRIDGE, open);
            }
        }
        HostStep::ChangePods(change) => change_pods(change, true, facts, cut),
        HostStep::RevertPods(change) => change_pods(change, false, facts, cut),
        HostStep::KeepBridgeAddresses(addresses) if !cut => facts.calico.kept_addresses.clone_from(addresses),
        HostStep::DropBridgeAddresses(_) if !cut => facts.calico.kept_addresses.clear(),
        HostStep::RemoveFrameRules(rules) if !cut => {
            facts.calico.frame_rules.retain(|rule| !rules.contains(rule));
            if let Found::Present(bridge) = &mut facts.bridge {
                bridge.open &= !rules.iter().any(|rule| rule == BRIDGE);
            }
            for pod in &mut facts.legacy_pods {
                let rule = PodEnd::of(pod).map(|end| end.frame_rule());
                if let Some(link) = &mut pod.pod_link {
                    link.accepts_frames &= !rule.is_some_and(|rule| rules.contains(&rule));
                }
            }
        }
        HostStep::RestoreBridge => {
            if facts.bridge.is_absent() {
                facts.bridge = bridge(&[]);
                add_ipv6_to_bridge(facts);
            }
            let Found::Present(bridge) = &mut facts.bridge else {
                return;
            };
            bridge.answers_for_pods = true;
            bridge.open = !cut;
            if !cut {
                set_rule(facts, BRIDGE, true);
                for pod in &mut facts.legacy_pods {
                    if let Some(link) = &mut pod.pod_link {
                        link.frame_delivery = true;
                    }
                }
            }
        }
        _ => {}
    }
}

/// The IPv6 parts of a bridge that was created again: its address, and answers for the pods that are to return.
fn add_ipv6_to_bridge(facts: &mut HostFacts) {
    let adopted = facts.legacy_pods.iter().filter(|pod| pod.is_adopted());
    let answered: Vec<Ipv6Net> = adopted
        .flat_map(LegacyPod::ipv6_addresses)
        .map(Ipv6Net::from)
        .collect();
    if let Found::Present(bridge) = &mut facts.bridge
        && !answered.is_empty()
    {
        bridge.addresses.push("fd00:10:244:1::1/64".parse().unwrap());
        bridge.answered = Ipv6Net::aggregate(&answered);
    }
}

fn set_rule(facts: &mut HostFacts, rule: &str, exists: bool) {
    facts.calico.frame_rules.retain(|other| other != rule);
    if exists {
        facts.calico.frame_rules.push(rule.to_owned());
        facts.calico.frame_rules.sort();
    }
}

fn change_pods(change: &PodChange, forward: bool, facts: &mut HostFacts, cut: bool) {
    let number = if cut { 1 } else { change.pods.len() };
    for end in change.pods.iter().take(number) {
        let mut rule = None;
        let mut pods = facts.legacy_pods.iter_mut();
        let Some(pod) = pods.find(|pod| pod.sandbox == end.sandbox) else {
            continue;
        };
        let Some(link) = &mut pod.pod_link else { continue };
        match change.action {
            PodAction::Loosen => link.loose = forward,
            PodAction::Route => (link.routed, pod.routed) = (forward, !forward),
            PodAction::Answer => link.answers = forward,
            PodAction::Accept => {
                link.accepts_frames = forward;
                rule = Some(end.frame_rule());
            }
            PodAction::Detach => {
                link.frame_delivery = forward;
                pod.attached = !forward;
                if let Found::Present(bridge) = &mut facts.bridge {
                    bridge.ports.retain(|port| *port != end.link);
                    if !forward {
                        bridge.ports.push(end.link.clone());
                        bridge.ports.sort();
                    }
                }
            }
            PodAction::Rename => {
                link.taken &= forward;
                link.name
                    .clone_from(if forward { &end.calico_link } else { &end.link });
            }
        }
        if let Some(rule) = rule {
            set_rule(facts, &rule, forward);
        }
    }
}

/// A change of the facts.
type Change = fn(&mut HostFacts);

/// A host with two pods that can be adopted.
pub(super) fn start() -> Machine {
    adopting(Machine::flannel())
}

/// The same with pods of both families.
pub(super) fn dual_stack() -> Machine {
    let mut machine = adopting(Machine::dual_stack());
    for (pod, last) in machine.facts.legacy_pods.iter_mut().zip(2..) {
        pod.addresses.retain(IpAddr::is_ipv4);
        pod.addresses
            .push(format!("fd00:10:244:1::{last}").parse().unwrap());
    }
    machine
}

fn adopting(mut machine: Machine) -> Machine {
    machine.settings.adopt_pods = true;
    for (pod, calico_name) in machine.facts.legacy_pods.iter_mut().zip(CALICO_LINKS) {
        pod.mac = "0a:58:0a:f4:01:02".to_owned();
        pod.pod_link = Some(PodLink {
            name: pod.link.clone(),
            calico_name: calico_name.to_owned(),
            ..PodLink::default()
        });
    }
    machine
}

/// The facts with links in the order of their names, as the agent reports them.
pub(super) fn in_order(facts: &HostFacts) -> HostFacts {
    let mut facts = facts.clone();
    facts
        .vxlan_devices
        .sort_by(|left, right| left.name.cmp(&right.name));
    facts
}

/// All states of an adoption, from the swap of the tunnel to phase Calico.
pub(super) fn states(start: &Machine) -> Vec<Machine> {
    let mut states = vec![start.clone()];
    for goal in [Goal::Held, Goal::Swapped, Goal::Mixed, Goal::Calico] {
        let from = states.last().unwrap().clone();
        states.extend(from.states_to(goal));
    }
    states
}

/// Felix takes the links of adopted pods, except those with these sandboxes. Returns whether there were any.
pub(super) fn felix_acts(facts: &mut HostFacts, except: &BTreeSet<String>) -> bool {
    let is_taken = |pod: &&mut LegacyPod| pod.is_adopted() && !except.contains(&pod.sandbox);
    let mut pods = facts.legacy_pods.iter_mut().filter(is_taken);
    let links = pods.by_ref().filter_map(|pod| pod.pod_link.as_mut());
    let untaken: Vec<&mut PodLink> = links.filter(|link| !link.taken).collect();
    let any = !untaken.is_empty();
    for link in untaken {
        link.taken = true;
    }
    any
}

/// Asserts that `cni0` answers for the IPv6 addresses of these pods: pods on the bridge ask there.
fn assert_answered(facts: &HostFacts, pods: &[PodEnd]) {
    let Some(bridge) = facts.bridge.present() else {
        return;
    };
    for address in pods.iter().flat_map(|end| &end.addresses) {
        let IpAddr::V6(address) = address else { continue };
        let mut answered = bridge.answered.iter();
        assert!(
            answered.any(|network| network.contains(address)),
            "{address}: {facts:?}"
        );
    }
}

/// Asserts that no packet is lost by a step.
pub(super) fn assert_lossless(step: &HostStep, facts: &HostFacts) {
    let is_changed = |pod: &&LegacyPod| match step {
        HostStep::ChangePods(change) | HostStep::RevertPods(change) => {
            change.pods.iter().any(|end| end.sandbox == pod.sandbox)
        }
        _ => true,
    };
    let links = || {
        let pods = facts.legacy_pods.iter().filter(is_changed);
        pods.filter_map(|pod| Some((pod, pod.pod_link.as_ref()?)))
    };
    let open = facts.bridge.present().is_none_or(|bridge| bridge.open);
    match step {
        HostStep::ChangePods(change) if change.action == PodAction::Route => {
            assert!(open, "cni0 would drop frames whose way back is the link");
            assert!(links().all(|(_, link)| link.loose), "the link would drop them");
        }
        HostStep::ChangePods(change) if change.action == PodAction::Detach => {
            let ready = |link: &PodLink| link.routed && link.answers && link.accepts_frames;
            assert!(open && links().all(|(_, link)| ready(link)), "{facts:?}");
            assert_answered(facts, &change.pods);
        }
        HostStep::ChangePods(change) if change.action == PodAction::Rename => {
            assert!(links().all(|(pod, _)| !pod.attached), "{facts:?}");
        }
        HostStep::DeleteBridge => {
            assert!(facts.bridge.present().unwrap().ports.is_empty());
            assert!(
                !facts.calico.kept_addresses.is_empty(),
                "pods would lose their gateway"
            );
        }
        HostStep::RemoveLeases => panic!("the address of an adopted pod would be assigned again"),
        HostStep::RevertPods(change) if change.action == PodAction::Detach => {
            assert!(
                open && !facts.bridge.is_absent(),
                "cni0 would drop frames whose way back is the link"
            );
        }
        HostStep::RevertPods(change) if [PodAction::Accept, PodAction::Answer].contains(&change.action) => {
            assert!(links().all(|(pod, _)| pod.attached), "{facts:?}");
        }
        _ => {}
    }
}

#[test]
fn pods_are_adopted_without_loss_whatever_step_is_cut() {
    for start in [start(), dual_stack()] {
        adopt_without_loss(&start);
    }
}

fn adopt_without_loss(start: &Machine) {
    let states = states(start);
    let end = states.last().unwrap();
    assert_eq!(phase(&end.facts, &end.settings), Phase::Calico);
    assert!(end.facts.bridge.is_absent());
    assert!(end.facts.legacy_pods.iter().all(LegacyPod::is_adopted));
    assert_eq!(leftovers(&end.facts, &end.settings), Vec::<String>::new());
    assert_eq!(
        (end.facts.leases, end.facts.delegates),
        (2, 2),
        "flannel's plugins need them"
    );
    for machine in &states {
        if let HostDecision::Run(step) = decide(
            &machine.facts,
            &machine.settings,
            Goal::Calico,
            &machine.remembered,
        ) && phase(&machine.facts, &machine.settings) == Phase::Mixed
        {
            assert_lossless(&step, &machine.facts);
        }
    }
}

/// On a host that waits in phase Mixed, everything is done that keeps the pods on the bridge. Before, nothing: the way back of a host
/// without a coordinator has no more steps.
#[test]
fn an_adoption_is_prepared_in_phase_mixed() {
    for start in [start(), dual_stack()] {
        let mut machine = start;
        for goal in [Goal::Held, Goal::Swapped, Goal::Mixed] {
            let states = machine.states_to(goal);
            let early = states.iter().filter(|state| {
                let links = state
                    .facts
                    .legacy_pods
                    .iter()
                    .filter_map(|pod| pod.pod_link.as_ref());
                let begun = links.filter(|link| link.loose).count() > 0;
                begun && phase(&state.facts, &state.settings) != Phase::Mixed
            });
            assert_eq!(early.count(), 0, "{goal:?}");
            machine = states.last().unwrap().clone();
        }
        for pod in &machine.facts.legacy_pods {
            let link = pod.pod_link.as_ref().unwrap();
            assert!(pod.attached && link.loose && link.routed && link.answers && link.accepts_frames);
            assert!(!link.frame_delivery && link.name == pod.link, "{link:?}");
        }
        let message = decide(
            &machine.facts,
            &machine.settings,
            Goal::Mixed,
            &machine.remembered,
        );
        assert_eq!(message, HostDecision::Settled);
    }
}

#[test]
fn a_rollback_from_any_step_of_an_adoption_restores_the_host() {
    for start in [start(), dual_stack()] {
        roll_back_from_every_state(&start);
    }
}

fn roll_back_from_every_state(before: &Machine) {
    let mut reverted = 0;
    for machine in states(before) {
        let back = machine.states_to(Goal::Flannel);
        for state in &back {
            if let HostDecision::Run(step) =
                decide(&state.facts, &state.settings, Goal::Flannel, &state.remembered)
            {
                assert_lossless(&step, &state.facts);
                reverted += u32::from(matches!(step, HostStep::RevertPods(_)));
            }
        }
        let end = back.last().unwrap();
        let expected = HostFacts {
            flanneld_running: end.facts.flanneld_running,
            ..before.facts.clone()
        };
        let expected = in_order(&expected);
        assert_eq!(in_order(&end.facts), expected, "from {:?}", machine.facts);
        let is_cut = |state: &&Machine| state.remembered.interrupted.is_some();
        for cut in back.iter().filter(is_cut) {
            let again = cut.states_to(Goal::Flannel).pop().unwrap();
            assert_eq!(in_order(&again.facts), expected, "from {cut:?}");
        }
    }
    assert!(reverted > 100, "{reverted}");
}

#[test]
fn a_pod_that_cannot_be_adopted_is_named_and_the_others_are_adopted() {
    let mut machine = states(&start())
        .into_iter()
        .find(|state| phase(&state.facts, &state.settings) == Phase::Mixed);
    let machine = machine.as_mut().unwrap();
    let cases: [(Change, &str); 5] = [
        (|facts| facts.legacy_pods[0].mac.clear(), "no MAC address"),
        (
            |facts| facts.legacy_pods[0].pod_link = None,
            "does not match the record",
        ),
        (
            |facts| facts.legacy_pods[0].obstacle = Some("CNI plugin tuning".to_owned()),
            "CNI plugin tuning",
        ),
        (
            |facts| facts.legacy_pods[0].addresses.push("fd00::2".parse().unwrap()),
            "fd00::2 is in no IPAM block",
        ),
        (
            |facts| facts.legacy_pods[0].pod_link.as_mut().unwrap().name_taken = true,
            "another link has the name cali1111",
        ),
    ];
    for (change, words) in cases {
        let mut facts = machine.facts.clone();
        change(&mut facts);
        for _ in 0..40 {
            match decide(&facts, &machine.settings, Goal::Calico, &JournalState::default()) {
                HostDecision::Run(step) => facts = super::perform(&step, &facts, false),
                HostDecision::Wait(message) if felix_acts(&mut facts, &BTreeSet::new()) => {
                    assert!(message.contains("calico-node has not taken"), "{message}");
                }
                HostDecision::Wait(message) => {
                    assert!(
                        message.contains(words) && message.contains("pod shop/of-veth1"),
                        "{message}"
                    );
                    assert!(!message.contains("of-veth2"), "{message}");
                    break;
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(facts.legacy_pods[1].is_adopted(), "{facts:?}");
        assert!(
            facts.legacy_pods[0].attached && !facts.bridge.is_absent(),
            "{facts:?}"
        );
    }
}

#[test]
fn the_end_of_the_last_adopted_pod_removes_the_rest() {
    for start in [start(), dual_stack()] {
        end_every_pod(&start);
    }
}

fn end_every_pod(start: &Machine) {
    let mut facts = states(start).pop().unwrap().facts;
    let settings = start.settings.clone();
    for pod in &mut facts.legacy_pods {
        pod.pod_link = None;
    }
    for _ in 0..20 {
        match decide(&facts, &settings, Goal::Calico, &JournalState::default()) {
            HostDecision::Run(step) => facts = super::perform(&step, &facts, false),
            other => {
                assert_eq!(other, HostDecision::Settled);
                break;
            }
        }
    }
    assert_eq!((facts.leases, facts.delegates), (0, 0));
    assert_eq!(facts.calico.kept_addresses, Vec::<IpAddr>::new());
    assert_eq!(facts.calico.frame_rules, Vec::<String>::new());
    assert_eq!(facts.legacy_pods, Vec::new());
}
