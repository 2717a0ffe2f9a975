//! Drives a host from every combination of its facts to every goal, with a crash after each step.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::device::flannel_devices;
use super::*;
use crate::facts::{
    Bridge, CalicoObjects, FirewallBackend, FirewallObject, Found, LegacyPod, ReversePathFilter,
    SubnetRoutes, VxlanDevice,
};
use crate::fixture::{device, folder, settings};
use crate::flannel::SubnetEnvironment;

const GOALS: [Goal; 6] = [
    Goal::Hold,
    Goal::Held,
    Goal::Swapped,
    Goal::Mixed,
    Goal::Detached,
    Goal::Calico,
];
const FLANNEL_CONFLIST: &str =
    r#"{"name":"cbr0","cniVersion":"0.3.1","plugins":[{"type":"flannel"},{"type":"portmap"}]}"#;
const CALICO_CONFLIST: &str =
    r#"{"name":"k8s-pod-network","cniVersion":"0.3.1","plugins":[{"type":"calico"},{"type":"portmap"}]}"#;

fn bridge(ports: &[&str]) -> Found<Bridge> {
    Found::Present(Bridge {
        name: BRIDGE.to_owned(),
        mtu: 1450,
        addresses: vec!["10.244.1.1/24".parse().unwrap()],
        ports: ports.iter().map(|port| (*port).to_owned()).collect(),
        answers_for_pods: false,
        answered: Vec::new(),
        open: false,
    })
}

fn chain(backend: FirewallBackend, table: &str, chain: &str) -> FirewallObject {
    FirewallObject {
        backend,
        table: table.to_owned(),
        chain: chain.to_owned(),
    }
}

/// A host with a working flannel and two pods.
fn flannel_host() -> HostFacts {
    HostFacts {
        plugin: None,
        foreign_rules: None,
        runtime: None,
        lacks_nf_tables: false,
        cni: folder(&[("10-flannel.conflist", FLANNEL_CONFLIST)]),
        vxlan_devices: vec![device("flannel.1")],
        bridge: bridge(&["veth1", "veth2"]),
        legacy_pods: vec![
            legacy_pod("of-veth1", "veth1", "10.244.1.2"),
            legacy_pod("of-veth2", "veth2", "10.244.1.3"),
        ],
        legacy_problems: Vec::new(),
        calico: CalicoObjects::default(),
        direct_routes: Vec::new(),
        reverse_path_filter: ReversePathFilter {
            all: 1,
            interfaces: BTreeMap::new(),
        },
        subnet_environment: Found::Present(SubnetEnvironment {
            network: "10.244.0.0/16".parse().unwrap(),
            subnet: "10.244.1.1/24".parse().unwrap(),
            mtu: 1450,
            ip_masquerade: true,
            ipv6: None,
        }),
        flanneld_running: true,
        unread_processes: Vec::new(),
        unread_tables: Vec::new(),
        firewall: vec![
            chain(FirewallBackend::IptablesNft, "nat", "FLANNEL-POSTRTG"),
            chain(FirewallBackend::IptablesLegacy, "filter", "FLANNEL-FWD"),
        ],
        leases: 2,
        delegates: 2,
        detected_address: None,
        detected_ipv6_address: None,
        uplink: Some("eth0".to_owned()),
        bridge_nf_call_iptables: Some(true),
    }
}

fn legacy_pod(sandbox: &str, link: &str, address: &str) -> LegacyPod {
    LegacyPod {
        other_link: None,
        namespace: "shop".to_owned(),
        name: sandbox.to_owned(),
        sandbox: sandbox.to_owned(),
        link: link.to_owned(),
        addresses: vec![address.parse().unwrap()],
        attached: true,
        routed: false,
        mac: String::new(),
        pod_link: None,
        obstacle: None,
        not_taken_within: None,
    }
}

/// Possible records of pods for this bridge: none, those of attached pods, and also that of a deleted pod.
fn legacy_pods(bridge: &Found<Bridge>) -> Vec<Vec<LegacyPod>> {
    let deleted = LegacyPod {
        attached: false,
        ..legacy_pod("gone", "veth9", "10.244.1.9")
    };
    let ports = bridge
        .present()
        .map(|bridge| bridge.ports.clone())
        .unwrap_or_default();
    let mut all: Vec<LegacyPod> = (2_u8..)
        .zip(&ports)
        .map(|(last, port)| legacy_pod(&format!("of-{port}"), port, &format!("10.244.1.{last}")))
        .collect();
    let attached = all.clone();
    all.push(deleted);
    vec![Vec::new(), attached, all]
}

/// Number of nodes that the IPv6 tunnel leads to.
const OTHER_NODES: u32 = 2;

/// Every combination of the facts about a host, including impossible ones.
fn every_host() -> Vec<HostFacts> {
    let mut hosts = Vec::new();
    let environments = [
        Found::Absent,
        flannel_host().subnet_environment,
        Found::Malformed("no FLANNEL_NETWORK".to_owned()),
    ];
    let mut wrong = device(CALICO_DEVICE);
    wrong.port = 4789;
    let mut bare = device(CALICO_DEVICE);
    bare.addresses.clear();
    let devices = [
        vec![],
        vec![device("flannel.1")],
        vec![device("flannel-v6.1"), device("flannel.1"), device("flannel.7")],
        vec![device("another-vxlan")],
        vec![device(CALICO_DEVICE)],
        vec![wrong],
        vec![bare],
    ];
    let bridges = [Found::Absent, bridge(&[]), bridge(&["veth1"])];
    let firewalls = [Vec::new(), flannel_host().firewall];
    let folders = [
        folder(&[]),
        folder(&[("10-flannel.conflist", FLANNEL_CONFLIST)]),
        folder(&[("10-calico.conflist", CALICO_CONFLIST)]),
        folder(&[
            ("10-calico.conflist", CALICO_CONFLIST),
            ("10-flannel.conflist", FLANNEL_CONFLIST),
        ]),
        folder(&[
            ("05-flannel.conflist", FLANNEL_CONFLIST),
            ("10-calico.conflist", CALICO_CONFLIST),
        ]),
        folder(&[
            ("00-broken.conflist", "{"),
            ("10-flannel.conflist", FLANNEL_CONFLIST),
        ]),
    ];
    for subnet_environment in &environments {
        for flanneld_running in [false, true] {
            for vxlan_devices in &devices {
                for bridge in &bridges {
                    for firewall in &firewalls {
                        for (leases, delegates) in [(0, 0), (3, 0), (0, 2), (3, 2)] {
                            for cni in &folders {
                                hosts.extend(legacy_pods(bridge).into_iter().map(|legacy_pods| HostFacts {
                                    legacy_pods,
                                    cni: cni.clone(),
                                    vxlan_devices: vxlan_devices.clone(),
                                    bridge: bridge.clone(),
                                    subnet_environment: subnet_environment.clone(),
                                    flanneld_running,
                                    firewall: firewall.clone(),
                                    leases,
                                    delegates,
                                    ..flannel_host()
                                }));
                            }
                        }
                    }
                }
            }
        }
    }
    hosts
}

fn route_legacy_pods(addresses: &[IpAddr], facts: &mut HostFacts, cut: bool) {
    let done = addresses.len() - usize::from(cut);
    for pod in &mut facts.legacy_pods {
        pod.routed |= pod
            .addresses
            .iter()
            .all(|address| addresses[..done].contains(address));
    }
    let routed = facts.legacy_pods.iter().filter(|pod| pod.routed).count();
    facts.calico.pod_routes = u32::try_from(routed).unwrap();
}

/// Renames a link. After a cut, the old link is gone and the new one does not exist yet.
fn rename(from: &str, to: &str, is_forward: bool, facts: &mut HostFacts, cut: bool) {
    let found = facts.vxlan_devices.iter().position(|device| device.name == from);
    let mut renamed = found.map_or_else(|| device(to), |at| facts.vxlan_devices.remove(at));
    // Forward, the routes of Felix are added beside flannel's; in a rollback, they are already deleted.
    if is_forward {
        renamed.block_routes = 8;
    }
    if !cut {
        to.clone_into(&mut renamed.name);
        facts.vxlan_devices.push(renamed);
    }
}

/// The facts after a step. `cut` means a crash in the middle of the step.
fn perform(step: &HostStep, facts: &HostFacts, cut: bool) -> HostFacts {
    let mut facts = facts.clone();
    match step {
        HostStep::RouteLegacyPods(addresses) => route_legacy_pods(addresses, &mut facts, cut),
        HostStep::RenameVxlanDevice { to, .. } | HostStep::ReturnVxlanDevice { to, .. }
            if facts.vxlan(to).is_some() => {}
        HostStep::RenameVxlanDevice { from, to, .. } | HostStep::ReturnVxlanDevice { from, to } => {
            let is_forward = matches!(step, HostStep::RenameVxlanDevice { .. });
            rename(from, to, is_forward, &mut facts, cut);
        }
        HostStep::AnswerForAddresses(_)
        | HostStep::StopAnsweringForAddresses
        | HostStep::RouteSubnets { .. }
        | HostStep::UnrouteSubnets => ipv6::perform(step, &mut facts, cut),
        HostStep::OpenBridge
        | HostStep::CloseBridge
        | HostStep::ChangePods(_)
        | HostStep::RevertPods(_)
        | HostStep::KeepBridgeAddresses(_)
        | HostStep::DropBridgeAddresses(_)
        | HostStep::RemoveFrameRules(_)
        | HostStep::RestoreBridge => adopt::perform(step, &mut facts, cut),
        // These steps are single system calls: a crash happens before or after them.
        _ if cut && !matches!(step, HostStep::RemoveLeases) => {}
        HostStep::AnswerForPods | HostStep::StopAnsweringForPods => {
            if let Found::Present(bridge) = &mut facts.bridge {
                bridge.answers_for_pods = *step == HostStep::AnswerForPods;
            }
        }
        HostStep::ForgetLegacyPod(sandbox) => facts.legacy_pods.retain(|pod| &pod.sandbox != sandbox),
        HostStep::WithdrawSubnetEnvironment => facts.subnet_environment = Found::Absent,
        HostStep::DeleteVxlanDevice(name) => delete_device(name, &mut facts),
        HostStep::DeleteBridge => facts.bridge = Found::Absent,
        HostStep::DeleteFirewallObject(object) => facts.firewall.retain(|other| other != object),
        HostStep::RemoveLeases => {
            // The agent removes leases first, then delegate files.
            (facts.leases, facts.delegates) = if cut {
                (facts.leases / 2, facts.delegates)
            } else {
                (0, 0)
            };
        }
        HostStep::RemoveConflist(name) | HostStep::RemoveCalicoConflist(name) => {
            facts.cni.files.retain(|file| &file.name != name);
        }
        HostStep::RestoreConflist(name) => {
            let mut files = folder(&[(name, FLANNEL_CONFLIST)]).files;
            facts.cni.files.append(&mut files);
            facts.cni.files.sort_by(|left, right| left.name.cmp(&right.name));
        }
        HostStep::DeleteCalicoFirewall(object) => {
            facts.calico.firewall.retain(|other| other != object);
        }
        HostStep::DeleteCalicoSets => facts.calico.sets = 0,
        HostStep::RestoreFirewallObject(object) => {
            facts.firewall.push(object.clone());
            facts.firewall.sort();
        }
        HostStep::DeleteBlackholes => facts.calico.blackholes = 0,
        HostStep::RestoreNodeRoutes { link, .. } => {
            let devices = facts.vxlan_devices.iter_mut();
            for device in devices.filter(|device| &device.name == link) {
                device.block_routes = 0;
            }
        }
        HostStep::RestoreVxlanDevice(name) => restore_device(name, &mut facts),
        HostStep::UnrouteLegacyPods => {
            facts.calico.pod_routes = 0;
            for pod in &mut facts.legacy_pods {
                pod.routed = false;
            }
        }
        HostStep::RemoveCalicoRecords => facts.calico.records = 0,
        HostStep::RestoreSubnetEnvironment => {
            facts.subnet_environment = flannel_host().subnet_environment;
        }
    }
    facts
}

fn delete_device(name: &str, facts: &mut HostFacts) {
    facts.vxlan_devices.retain(|device| device.name != name);
    // The routes of the link are deleted with it.
    if name.starts_with("flannel-v6.") {
        facts.calico.subnet_routes.found = 0;
        facts.calico.subnet_routes.missing = 0;
    }
}

fn restore_device(name: &str, facts: &mut HostFacts) {
    if facts.vxlan(name).is_none() {
        facts.vxlan_devices.push(device(name));
    }
    if name.starts_with("flannel-v6.") {
        facts.calico.subnet_routes.missing = OTHER_NODES;
    }
}

fn has_pods_on_bridge(facts: &HostFacts) -> bool {
    let bridge = facts.bridge.present();
    bridge.is_some_and(|bridge| !bridge.ports.is_empty())
}

/// Asserts that a step is safe for these facts and requested by this goal.
fn assert_allowed(step: &HostStep, facts: &HostFacts, goal: Goal) {
    assert_ne!(goal, Goal::Hold, "a host with goal Hold is changed: {step:?}");
    assert!(!step.is_done(facts), "{step:?} has nothing to do");
    let pods = has_pods_on_bridge(facts);
    match step {
        HostStep::WithdrawSubnetEnvironment => {
            assert!(!facts.flanneld_running, "flanneld would write the file again");
            assert!(
                facts.unread_processes.is_empty(),
                "an unread process may be flanneld"
            );
        }
        HostStep::DeleteVxlanDevice(name) => {
            assert!(name.starts_with("flannel"), "{name} is not flannel's");
            assert!(!pods, "a pod would lose its network");
            assert!(
                facts.firewall.is_empty(),
                "the masquerade jump must be deleted first"
            );
        }
        HostStep::DeleteBridge | HostStep::RemoveLeases => assert!(!pods, "a pod would lose its network"),
        HostStep::DeleteFirewallObject(_) => assert!(!pods, "a pod would lose its masquerade"),
        HostStep::RouteLegacyPods(addresses) => {
            let is_in_use = |address| {
                let mut pods = facts.legacy_pods.iter();
                pods.any(|pod| pod.attached && pod.addresses.contains(address))
            };
            assert!(
                addresses.iter().all(is_in_use),
                "a route to an unused address: {addresses:?}"
            );
        }
        HostStep::AnswerForPods => assert!(pods, "no pod on the bridge"),
        HostStep::AnswerForAddresses(_) | HostStep::RouteSubnets { .. } => ipv6::assert_allowed(step, facts),
        HostStep::RenameVxlanDevice { from, .. } => {
            assert!(from.starts_with("flannel"), "{from} is not flannel's");
            assert!(!facts.flanneld_running, "flanneld would create the link again");
            assert!(
                facts.unread_processes.is_empty(),
                "an unread process may be flanneld"
            );
            let is_routed = |pod: &LegacyPod| pod.routed || !pod.attached;
            assert!(
                facts.legacy_pods.iter().all(is_routed),
                "Felix would blackhole a pod"
            );
            assert!(
                links_without_known_pod(facts).is_empty(),
                "a link without a known pod"
            );
            ipv6::assert_allowed(step, facts);
        }
        HostStep::ForgetLegacyPod(sandbox) => {
            let is_allowed = |pod: &LegacyPod| &pod.sandbox != sandbox || !pod.attached;
            assert!(
                facts.legacy_pods.iter().all(is_allowed),
                "a running pod is forgotten"
            );
        }
        HostStep::RemoveConflist(name) => {
            let after = perform(step, facts, false);
            let winner = after
                .cni
                .winner()
                .expect("with an empty directory the node becomes NotReady");
            assert!(cni::is_calico(winner) || cni::is_flannel(winner), "{winner:?}");
            assert!(
                after.cni.files.iter().any(cni::is_calico),
                "Calico's conflist must exist first"
            );
            assert!(name.contains("flannel"), "{name} is not flannel's");
        }
        other => panic!("{other:?} is a step of a rollback, which was not requested"),
    }
    let allowed_goals = goals_of(step, facts);
    assert!(
        allowed_goals.contains(&goal),
        "{step:?} does not belong to goal {goal:?}"
    );
}

/// The goals that request a step.
fn goals_of(step: &HostStep, facts: &HostFacts) -> Vec<Goal> {
    match step {
        HostStep::WithdrawSubnetEnvironment
        | HostStep::RouteLegacyPods(_)
        | HostStep::AnswerForPods
        | HostStep::AnswerForAddresses(_)
        | HostStep::RouteSubnets { .. }
        | HostStep::ForgetLegacyPod(_) => GOALS[1..].to_vec(),
        HostStep::RenameVxlanDevice { .. } => GOALS[2..].to_vec(),
        HostStep::RemoveConflist(_) => vec![Goal::Mixed, Goal::Calico],
        HostStep::DeleteVxlanDevice(_)
        | HostStep::DeleteBridge
        | HostStep::DeleteFirewallObject(_)
        | HostStep::RemoveLeases => {
            let no_pods = !facts.legacy_pods.iter().any(|pod| pod.attached);
            if no_pods && flannel_devices(facts, &settings()).next().is_none() {
                GOALS[2..].to_vec()
            } else {
                vec![Goal::Detached, Goal::Calico]
            }
        }
        other => panic!("{other:?} is a step of a rollback, which was not requested"),
    }
}

/// The other programs do what the agent waits for: flannel's pod ends, pods are evicted, Calico starts.
fn others_act(facts: &HostFacts, settings: &HostSettings) -> HostFacts {
    let mut facts = facts.clone();
    if facts.flanneld_running {
        facts.flanneld_running = false;
        return facts;
    }
    if facts
        .bridge
        .present()
        .is_some_and(|bridge| !bridge.ports.is_empty())
    {
        facts.bridge = bridge(&[]);
        for pod in &mut facts.legacy_pods {
            pod.attached = false;
        }
        return facts;
    }
    // install-cni writes Calico's conflist, and the user removes a broken file.
    let mut files = vec![("10-calico.conflist", CALICO_CONFLIST)];
    for name in ["05-flannel.conflist", "10-flannel.conflist"] {
        if facts.cni.files.iter().any(|file| file.name == name) {
            files.push((name, FLANNEL_CONFLIST));
        }
    }
    facts.cni = folder(&files);
    for tunnel in settings.tunnels() {
        let is_new = facts.vxlan(tunnel.calico_name).is_none();
        facts
            .vxlan_devices
            .retain(|device| device.name != tunnel.calico_name);
        facts.vxlan_devices.push(VxlanDevice {
            block_routes: 8,
            ..device(tunnel.calico_name)
        });
        if is_new && tunnel.calico_name == CALICO_DEVICE_V6 {
            facts.calico.subnet_routes.missing = OTHER_NODES;
        }
    }
    facts
}

/// Drives one host to its goal. With `crash_at`, the agent crashes in the middle of that step, and restarts.
fn drive(facts: HostFacts, goal: Goal, crash_at: Option<usize>) -> (HostFacts, usize) {
    drive_by(&settings(), facts, goal, crash_at)
}

/// The same with other settings.
fn drive_by(
    settings: &HostSettings,
    mut facts: HostFacts,
    goal: Goal,
    crash_at: Option<usize>,
) -> (HostFacts, usize) {
    let mut steps = 0;
    let mut waits = 0;
    let mut remembered = JournalState::default();
    loop {
        let before = phase(&facts, settings);
        match decide(&facts, settings, goal, &remembered) {
            HostDecision::Run(step) => {
                if remembered.interrupted.as_ref() != Some(&step) {
                    assert_allowed(&step, &facts, goal);
                }
                let after = perform(&step, &facts, crash_at == Some(steps));
                remembered.interrupted = (crash_at == Some(steps)).then(|| step.clone());
                if crash_at != Some(steps) {
                    assert!(step.is_done(&after), "{step:?}");
                    assert_eq!(perform(&step, &after, false), after, "not idempotent: {step:?}");
                }
                facts = after;
                steps += 1;
                assert!(
                    phase(&facts, settings) >= before,
                    "a step lowers the phase: {step:?}"
                );
                assert!(steps < 40, "too many steps: {facts:?}");
            }
            HostDecision::Wait(what) => {
                assert!(!what.is_empty());
                facts = others_act(&facts, settings);
                waits += 1;
                assert!(waits < 6, "{what}: too many waits: {facts:?}");
            }
            HostDecision::Settled => return (facts, steps),
            HostDecision::Halt(why) => panic!("{why}: {facts:?}"),
        }
    }
}

/// In place, one link must exist to be renamed, or be renamed already, or no pod may need it.
fn is_possible(host: &HostFacts, goal: Goal) -> bool {
    let in_place = matches!(goal, Goal::Swapped | Goal::Mixed);
    let flannels: Vec<String> = flannel_devices(host, &settings()).collect();
    let no_pods = !host.legacy_pods.iter().any(|pod| pod.attached);
    !in_place
        || flannels == ["flannel.1"]
        || (flannels.is_empty() && (no_pods || host.vxlan(CALICO_DEVICE).is_some()))
}

/// After a power cut between the swap and the start of Calico, links, routes and files in /run are gone, but records on disk
/// are not.
#[test]
fn in_place_a_host_that_has_restarted_continues() {
    let mut deleted = flannel_host().legacy_pods;
    for pod in &mut deleted {
        pod.attached = false;
    }
    let host = HostFacts {
        subnet_environment: Found::Absent,
        flanneld_running: false,
        vxlan_devices: Vec::new(),
        bridge: Found::Absent,
        firewall: Vec::new(),
        legacy_pods: deleted,
        ..flannel_host()
    };
    let (end, steps) = drive(host, Goal::Mixed, None);
    assert_eq!(phase(&end, &settings()), Phase::Calico);
    assert!(steps >= 3, "two records of pods, and the conflist: {steps}");
}

#[test]
fn in_place_no_tunnel_link_or_two_halt_the_agent() {
    let with = |devices: &[&str]| HostFacts {
        subnet_environment: Found::Absent,
        flanneld_running: false,
        vxlan_devices: devices.iter().map(|name| device(name)).collect(),
        ..flannel_host()
    };
    for (devices, word) in [
        (vec![], "nothing to rename"),
        (vec!["flannel.1", CALICO_DEVICE], "both exist"),
        (vec!["flannel.1", "flannel.7"], "flannel.7"),
    ] {
        match decide(
            &with(&devices),
            &settings(),
            Goal::Swapped,
            &JournalState::default(),
        ) {
            HostDecision::Halt(why) => assert!(why.contains(word), "{why}"),
            other => panic!("{devices:?}: {other:?}"),
        }
    }
}

#[test]
fn in_place_a_link_without_a_known_pod_waits() {
    let facts = HostFacts {
        subnet_environment: Found::Absent,
        flanneld_running: false,
        legacy_pods: vec![legacy_pod("of-veth1", "veth1", "10.244.1.2")],
        ..flannel_host()
    };
    match decide(&facts, &settings(), Goal::Swapped, &JournalState::default()) {
        HostDecision::Wait(what) => assert!(what.contains("veth2"), "{what}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn in_place_a_late_pod_gets_its_route_and_a_deleted_pod_is_forgotten() {
    let host = HostFacts {
        subnet_environment: Found::Absent,
        flanneld_running: false,
        ..flannel_host()
    };
    let (mut swapped, _) = drive(host, Goal::Swapped, None);
    assert_eq!(phase(&swapped, &settings()), Phase::Swapped);
    swapped.legacy_pods[0].routed = false;
    swapped.legacy_pods[1].attached = false;
    let steps = ["RouteLegacyPods", "ForgetLegacyPod"].map(|name| {
        let HostDecision::Run(step) = decide(&swapped, &settings(), Goal::Swapped, &JournalState::default())
        else {
            panic!("no step for {swapped:?}");
        };
        swapped = perform(&step, &swapped, false);
        assert_eq!(step.name(), name);
    });
    assert_eq!(steps.len(), 2);
    assert_eq!(
        decide(&swapped, &settings(), Goal::Swapped, &JournalState::default()),
        HostDecision::Settled
    );
}

#[test]
fn every_host_reaches_every_goal() {
    let hosts = every_host();
    assert!(hosts.len() > 5000);
    for host in &hosts {
        for goal in GOALS.into_iter().filter(|goal| is_possible(host, *goal)) {
            let (end, steps) = drive(host.clone(), goal, None);
            if let Some(wanted) = goal.phase() {
                assert!(phase(&end, &settings()).reaches(wanted));
            } else {
                assert_eq!((&end, steps), (host, 0), "Hold has changed the host");
            }
            if goal == Goal::Calico {
                assert_eq!(leftovers(&end, &settings()), Vec::<String>::new());
            }
        }
    }
}

#[test]
fn a_crash_in_any_step_gives_the_same_end_state() {
    for host in every_host().into_iter().step_by(7).chain([flannel_host()]) {
        for goal in GOALS.into_iter().filter(|goal| is_possible(&host, *goal)) {
            explore::crash_in_each_step(format_args!("goal {goal:?}"), |crash_at| {
                drive(host.clone(), goal, crash_at)
            });
        }
    }
}

#[test]
fn a_host_past_its_goal_is_not_changed() {
    let (calico, _) = drive(flannel_host(), Goal::Calico, None);
    for goal in GOALS {
        assert_eq!(
            decide(&calico, &settings(), goal, &JournalState::default()),
            HostDecision::Settled,
            "{goal:?}"
        );
    }
}

#[test]
fn the_tunnel_of_each_address_family_is_renamed_and_needed() {
    let settings = HostSettings {
        ipv6: Some(Ipv6HostSettings {
            mtu: 1430,
            block_size: 122,
            node_range_length: 64,
            flannel_pods: true,
        }),
        ..settings()
    };
    let next = |devices: &[&str]| {
        let facts = HostFacts {
            subnet_environment: Found::Absent,
            flanneld_running: false,
            bridge: bridge(&[]),
            legacy_pods: Vec::new(),
            vxlan_devices: devices.iter().map(|name| device(name)).collect(),
            ..flannel_host()
        };
        decide(&facts, &settings, Goal::Swapped, &JournalState::default())
    };
    let rename = |from: &str, to: &str, block_size: u8| {
        HostDecision::Run(HostStep::RenameVxlanDevice {
            from: from.to_owned(),
            to: to.to_owned(),
            block_size,
        })
    };
    assert_eq!(
        next(&["flannel-v6.1", "flannel.1"]),
        rename("flannel.1", CALICO_DEVICE, 26)
    );
    assert_eq!(
        next(&["flannel-v6.1", CALICO_DEVICE]),
        rename("flannel-v6.1", CALICO_DEVICE_V6, 122)
    );
    assert_eq!(next(&[CALICO_DEVICE, CALICO_DEVICE_V6]), HostDecision::Settled);
    let HostDecision::Halt(why) = next(&["flannel-v6.1", CALICO_DEVICE_V6, CALICO_DEVICE]) else {
        panic!("the link that carries packets is ambiguous")
    };
    assert!(why.contains("flannel-v6.1 and vxlan-v6.calico"), "{why}");
    let facts = HostFacts {
        vxlan_devices: vec![device(CALICO_DEVICE)],
        ..flannel_host()
    };
    assert_eq!(
        calico_device_problem(&facts, &settings).as_deref(),
        Some("link vxlan-v6.calico does not exist yet")
    );
}

#[test]
fn a_link_named_cni0_that_is_no_bridge_halts_the_agent() {
    let facts = HostFacts {
        subnet_environment: Found::Absent,
        flanneld_running: false,
        bridge: Found::Malformed("link cni0 is of kind \"dummy\", needed a bridge".to_owned()),
        ..flannel_host()
    };
    let HostDecision::Halt(why) = decide(&facts, &settings(), Goal::Detached, &JournalState::default())
    else {
        panic!("a link that is not flannel's must not be deleted");
    };
    assert!(why.contains("dummy") && why.contains("rename"), "{why}");
}

#[test]
fn flannels_conflist_is_removed_only_if_calicos_is_next() {
    let mut host = flannel_host();
    (host, _) = drive(host, Goal::Detached, None);
    host.vxlan_devices = vec![device(CALICO_DEVICE)];
    let decide_with = |files: &[(&str, &str)]| {
        decide(
            &HostFacts {
                cni: folder(files),
                ..host.clone()
            },
            &settings(),
            Goal::Calico,
            &JournalState::default(),
        )
    };
    let calico = ("10-calico.conflist", CALICO_CONFLIST);
    assert_eq!(
        decide_with(&[("05-flannel.conflist", FLANNEL_CONFLIST), calico]),
        HostDecision::Run(HostStep::RemoveConflist("05-flannel.conflist".to_owned()))
    );
    for (name, text, word) in [
        ("00-half.conflist", "{", "not JSON"),
        (
            "00-multus.conf",
            r#"{"name":"m","type":"multus"}"#,
            "another network",
        ),
    ] {
        let decision = decide_with(&[(name, text), ("05-flannel.conflist", FLANNEL_CONFLIST), calico]);
        assert!(
            matches!(&decision, HostDecision::Wait(what) if what.contains(name) && what.contains(word)),
            "{decision:?}"
        );
    }
}

#[test]
fn a_running_pod_keeps_its_network_and_is_named() {
    let facts = HostFacts {
        subnet_environment: Found::Absent,
        flanneld_running: false,
        ..flannel_host()
    };
    let HostDecision::Wait(what) = decide(&facts, &settings(), Goal::Detached, &JournalState::default())
    else {
        panic!("pods are on the bridge");
    };
    assert!(what.contains("veth1, veth2"), "{what}");
}

#[test]
fn leftovers_that_appear_again_are_named() {
    let (mut end, _) = drive(flannel_host(), Goal::Calico, None);
    end.vxlan_devices.push(device("flannel.1"));
    end.firewall = vec![chain(FirewallBackend::IptablesLegacy, "nat", "POSTROUTING")];
    let found = leftovers(&end, &settings());
    assert_eq!(
        found,
        [
            "link flannel.1",
            "iptables (legacy) rules of flannel in chain POSTROUTING of table nat"
        ]
    );
    assert_eq!(phase(&end, &settings()), Phase::Held);
}

#[test]
fn each_step_has_its_own_name_and_an_object() {
    let steps = [
        HostStep::WithdrawSubnetEnvironment,
        HostStep::DeleteVxlanDevice("flannel.1".to_owned()),
        HostStep::DeleteBridge,
        HostStep::DeleteFirewallObject(chain(FirewallBackend::Nftables, "ip flannel-ipv4", "")),
        HostStep::RemoveLeases,
        HostStep::RemoveConflist("10-flannel.conflist".to_owned()),
        HostStep::RouteLegacyPods(vec!["10.244.1.2".parse().unwrap()]),
        HostStep::AnswerForPods,
        HostStep::RenameVxlanDevice {
            from: "flannel.1".to_owned(),
            to: CALICO_DEVICE.to_owned(),
            block_size: 26,
        },
        HostStep::ForgetLegacyPod("16cc".to_owned()),
    ];
    let objects: Vec<String> = steps.iter().map(HostStep::object).collect();
    assert_eq!(objects[3], "nftables table ip flannel-ipv4");
    let names: std::collections::BTreeSet<&str> = steps.iter().map(HostStep::name).collect();
    assert_eq!(names.len(), steps.len());
}

mod adopt;
mod back;
mod ipv6;
mod not_taken;

/// An unread process may be flanneld, so the agent does not take a step that needs the end of flanneld. A running flanneld is
/// named itself.
#[test]
fn an_unread_process_blocks_steps_that_need_the_end_of_flanneld() {
    let unread = vec!["could not read process 7 (java) within 2 s".to_owned()];
    let with = |flanneld_running, host: HostFacts| HostFacts {
        flanneld_running,
        unread_processes: unread.clone(),
        ..host
    };
    let waits = |facts: &HostFacts, goal| match decide(facts, &settings(), goal, &JournalState::default()) {
        HostDecision::Wait(what) => what,
        other => panic!("{other:?}"),
    };
    let held = HostFacts {
        subnet_environment: Found::Absent,
        ..flannel_host()
    };
    for (host, goal) in [
        (flannel_host(), Goal::Held),
        (held.clone(), Goal::Swapped),
        (held, Goal::Detached),
    ] {
        let what = waits(&with(false, host), goal);
        assert!(
            what.contains("process 7 (java)") && what.contains("may be flanneld"),
            "{what}"
        );
    }
    let what = waits(&with(true, flannel_host()), Goal::Held);
    assert!(what.contains("flanneld still runs"), "{what}");
}
