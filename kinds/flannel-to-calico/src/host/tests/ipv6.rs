//! The same host with dual-stack pods: the additional steps for IPv6.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv6Net};

use super::*;
use crate::facts::Found;

pub(super) fn settings() -> HostSettings {
    HostSettings {
        ipv6: Some(Ipv6HostSettings {
            mtu: 1430,
            block_size: 122,
            node_range_length: 64,
            flannel_pods: true,
        }),
        ..super::settings()
    }
}

/// A host with a working flannel and two pods, in a cluster with two other nodes.
pub(super) fn flannel_host() -> HostFacts {
    let mut host = super::flannel_host();
    host.vxlan_devices.push(device("flannel-v6.1"));
    host.calico.subnet_routes.missing = OTHER_NODES;
    if let Found::Present(bridge) = &mut host.bridge {
        bridge.addresses.push("fd00:10:244:1::1/64".parse().unwrap());
    }
    // The second pod started after many others: host-local assigns ascending addresses.
    for (pod, address) in host
        .legacy_pods
        .iter_mut()
        .zip(["fd00:10:244:1::2", "fd00:10:244:1::1f07"])
    {
        pod.addresses.push(address.parse().unwrap());
    }
    host
}

/// The facts after one of these steps. `cut` means a crash in the middle of the step.
pub(super) fn perform(step: &HostStep, facts: &mut HostFacts, cut: bool) {
    let routes = &mut facts.calico.subnet_routes;
    match (step, &mut facts.bridge) {
        (HostStep::AnswerForAddresses(networks), Found::Present(bridge)) => {
            let done = networks.len() - usize::from(cut);
            bridge.answered = networks[..done].to_vec();
        }
        (HostStep::StopAnsweringForAddresses, Found::Present(bridge)) => {
            bridge.answered.truncate(usize::from(cut));
        }
        (HostStep::RouteSubnets { .. }, _) => {
            let nodes = routes.found + routes.missing;
            let missing = u32::from(cut);
            *routes = SubnetRoutes {
                found: nodes - missing,
                missing,
                looked_up: !cut,
            };
        }
        // The agent deletes the rule first.
        (HostStep::UnrouteSubnets, _) => {
            routes.looked_up = false;
            if !cut {
                routes.missing += std::mem::take(&mut routes.found);
            }
        }
        (other, _) => panic!("{other:?} is no IPv6 step, or there is no bridge"),
    }
}

/// Asserts that one of these steps is safe for these facts.
pub(super) fn assert_allowed(step: &HostStep, facts: &HostFacts) {
    match step {
        HostStep::AnswerForAddresses(networks) => {
            let running: Vec<&LegacyPod> = facts.legacy_pods.iter().filter(|pod| pod.attached).collect();
            assert!(!running.is_empty(), "no running pod");
            let is_answered = |address: &IpAddr| {
                let mut all = networks.iter().copied().map(IpNet::V6);
                all.any(|network| network.contains(address))
            };
            let mut addresses = running.iter().flat_map(|pod| &pod.addresses);
            assert_eq!(
                addresses.find(|address| is_answered(address)),
                None,
                "the bridge would answer for a running pod"
            );
        }
        HostStep::RouteSubnets { link, .. } => {
            assert!(facts.vxlan(link).is_some(), "the link does not exist");
        }
        HostStep::RenameVxlanDevice { from, .. } => assert!(
            !from.starts_with("flannel-v6.") || facts.calico.subnet_routes.is_complete(),
            "Felix would delete flannel's routes to whole subnets"
        ),
        other => panic!("{other:?} is no IPv6 step"),
    }
}

fn swapped() -> HostFacts {
    drive_by(&settings(), flannel_host(), Goal::Swapped, None).0
}

fn answered(facts: &HostFacts) -> Vec<Ipv6Net> {
    facts.bridge.present().unwrap().answered.clone()
}

fn answers_for(facts: &HostFacts, address: &str) -> bool {
    let address: std::net::Ipv6Addr = address.parse().unwrap();
    answered(facts).iter().any(|network| network.contains(&address))
}

#[test]
fn a_crash_in_any_step_gives_the_same_end_state() {
    for goal in GOALS {
        explore::crash_in_each_step(format_args!("goal {goal:?}"), |crash_at| {
            drive_by(&settings(), flannel_host(), goal, crash_at)
        });
    }
}

#[test]
fn the_bridge_answers_for_addresses_of_calico_and_not_of_running_pods() {
    let host = swapped();
    for address in ["fd00:10:244:1::", "fd00:10:244:1::3", "fd00:10:244:1::ff"] {
        assert!(answers_for(&host, address), "{address}: {:?}", answered(&host));
    }
    // The addresses of the bridge and of a running pod, and an address after the claimed blocks.
    for address in ["fd00:10:244:1::1", "fd00:10:244:1::2", "fd00:10:244:1::100"] {
        assert!(!answers_for(&host, address), "{address}: {:?}", answered(&host));
    }
}

#[test]
fn the_bridge_answers_for_the_address_of_a_deleted_pod() {
    let mut host = swapped();
    host.legacy_pods[0].attached = false;
    if let Found::Present(bridge) = &mut host.bridge {
        bridge.ports.remove(0);
    }
    let (host, _) = drive_by(&settings(), host, Goal::Swapped, None);
    assert!(answers_for(&host, "fd00:10:244:1::2"), "{:?}", answered(&host));
}

#[test]
fn the_bridge_does_not_answer_for_a_late_flannel_pod() {
    let mut host = swapped();
    let late = LegacyPod {
        addresses: vec!["fd00:10:244:1::3".parse().unwrap()],
        ..legacy_pod("of-veth3", "veth3", "10.244.1.4")
    };
    host.legacy_pods.push(late);
    if let Found::Present(bridge) = &mut host.bridge {
        bridge.ports.push("veth3".to_owned());
    }
    let (host, _) = drive_by(&settings(), host, Goal::Swapped, None);
    assert!(!answers_for(&host, "fd00:10:244:1::3"), "{:?}", answered(&host));
    assert!(answers_for(&host, "fd00:10:244:1::4"), "{:?}", answered(&host));
}

#[test]
fn a_node_that_joins_gets_a_route() {
    let mut host = swapped();
    assert!(host.calico.subnet_routes.is_complete());
    host.calico.subnet_routes.missing = 1;
    let decision = decide(&host, &settings(), Goal::Mixed, &JournalState::default());
    assert_eq!(
        decision,
        HostDecision::Run(HostStep::RouteSubnets {
            link: CALICO_DEVICE_V6.to_owned(),
            length: 64
        })
    );
}

#[test]
fn the_routes_are_deleted_when_no_flannel_pod_runs_anywhere() {
    let (calico, _) = drive_by(&settings(), flannel_host(), Goal::Calico, None);
    assert_eq!(phase(&calico, &settings()), Phase::Calico);
    assert!(
        calico.calico.subnet_routes.is_complete(),
        "flannel pods may still run on other nodes"
    );
    let mut settings = settings();
    settings.ipv6.as_mut().unwrap().flannel_pods = false;
    let remaining = leftovers(&calico, &settings);
    assert!(
        remaining.len() == 1 && remaining[0].contains("2 routes"),
        "{remaining:?}"
    );
    assert_eq!(
        decide(&calico, &settings, Goal::Calico, &JournalState::default()),
        HostDecision::Run(HostStep::UnrouteSubnets)
    );
    let end = super::perform(&HostStep::UnrouteSubnets, &calico, false);
    assert_eq!(leftovers(&end, &settings), Vec::<String>::new());
    assert_eq!(
        decide(&end, &settings, Goal::Calico, &JournalState::default()),
        HostDecision::Settled
    );
}
