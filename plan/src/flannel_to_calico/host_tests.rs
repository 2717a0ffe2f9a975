//! Walks a host from every combination of what can be on it, towards every goal, with a crash after each step.

use std::collections::BTreeMap;

use super::*;
use crate::cni::CniFile;
use crate::flannel::SubnetEnvironment;
use crate::flannel_to_calico::facts::{Bridge, ReversePathFilter};
use crate::flannel_to_calico::host_fixture::{device, folder, settings};

const GOALS: [Goal; 4] = [Goal::Hold, Goal::Held, Goal::Detached, Goal::Calico];
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
    })
}

fn chain(backend: FirewallBackend, table: &str, chain: &str) -> FirewallObject {
    FirewallObject {
        backend,
        table: table.to_owned(),
        chain: chain.to_owned(),
    }
}

/// A host in full work under flannel.
fn flannel_host() -> HostFacts {
    HostFacts {
        cni: folder(&[("10-flannel.conflist", FLANNEL_CONFLIST)]),
        vxlan_devices: vec![device("flannel.1")],
        bridge: bridge(&["veth1", "veth2"]),
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
        }),
        flanneld_running: true,
        firewall: vec![
            chain(FirewallBackend::IptablesNft, "nat", "FLANNEL-POSTRTG"),
            chain(FirewallBackend::IptablesLegacy, "filter", "FLANNEL-FWD"),
        ],
        leases: 2,
        delegates: 2,
        detected_address: None,
        uplink: Some("eth0".to_owned()),
        bridge_nf_call_iptables: Some(true),
    }
}

/// Every combination of what can be on a host, the nonsensical ones too.
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
        vec![device("somebody-elses")],
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
                                hosts.push(HostFacts {
                                    cni: cni.clone(),
                                    vxlan_devices: vxlan_devices.clone(),
                                    bridge: bridge.clone(),
                                    subnet_environment: subnet_environment.clone(),
                                    flanneld_running,
                                    firewall: firewall.clone(),
                                    leases,
                                    delegates,
                                    ..flannel_host()
                                });
                            }
                        }
                    }
                }
            }
        }
    }
    hosts
}

/// What a step does to the host. `cut` is a crash in the middle of it.
fn perform(step: &HostStep, facts: &HostFacts, cut: bool) -> HostFacts {
    let mut facts = facts.clone();
    match step {
        // One system call each: a crash comes before or after.
        _ if cut && !matches!(step, HostStep::RemoveLeases) => {}
        HostStep::WithdrawSubnetEnvironment => facts.subnet_environment = Found::Absent,
        HostStep::DeleteVxlanDevice(name) => facts.vxlan_devices.retain(|device| &device.name != name),
        HostStep::DeleteBridge => facts.bridge = Found::Absent,
        HostStep::DeleteFirewallObject(object) => facts.firewall.retain(|other| other != object),
        HostStep::RemoveLeases => {
            // Leases first, then delegate files.
            (facts.leases, facts.delegates) = if cut {
                (facts.leases / 2, facts.delegates)
            } else {
                (0, 0)
            };
        }
        HostStep::RemoveConflist(name) => facts.cni.files.retain(|file| &file.name != name),
    }
    facts
}

/// What must be true of every step, wherever it is taken.
fn assert_allowed(step: &HostStep, facts: &HostFacts, goal: Goal) {
    assert_ne!(
        goal,
        Goal::Hold,
        "a host that is only looked at is not changed: {step:?}"
    );
    assert!(!step.is_done(facts), "{step:?} has nothing to do");
    let pods = facts
        .bridge
        .present()
        .is_some_and(|bridge| !bridge.ports.is_empty());
    match step {
        HostStep::WithdrawSubnetEnvironment => {
            assert!(!facts.flanneld_running, "flanneld would write it again");
        }
        HostStep::DeleteVxlanDevice(name) => {
            assert!(name.starts_with("flannel"), "{name} is somebody else's");
            assert!(!pods, "a pod would lose its network");
            assert!(facts.firewall.is_empty(), "the masquerade jump goes first");
        }
        HostStep::DeleteBridge | HostStep::RemoveLeases => assert!(!pods, "a pod would lose its network"),
        HostStep::DeleteFirewallObject(_) => assert!(!pods, "a pod would lose its masquerade"),
        HostStep::RemoveConflist(name) => {
            let after = perform(step, facts, false);
            let winner = after
                .cni
                .winner()
                .expect("an empty folder turns the node NotReady");
            assert!(winner.is_calico() || winner.is_flannel(), "{winner:?}");
            assert!(
                after.cni.files.iter().any(CniFile::is_calico),
                "Calico's conflist has to be there first"
            );
            assert!(name.contains("flannel"), "{name} is somebody else's");
        }
    }
    if goal < Goal::Calico {
        assert!(!matches!(step, HostStep::RemoveConflist(_)), "not asked for");
    }
    if goal < Goal::Detached {
        assert_eq!(*step, HostStep::WithdrawSubnetEnvironment, "not asked for");
    }
}

impl PartialOrd for Goal {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        self.phase().partial_cmp(&other.phase())
    }
}

/// The rest of the world does what is waited for: flannel's pod goes, pods leave, Calico comes.
fn world_moves_on(facts: &HostFacts) -> HostFacts {
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
        return facts;
    }
    // Calico's installer writes its own file, and a person mends or removes the broken one.
    let mut files = vec![("10-calico.conflist", CALICO_CONFLIST)];
    for name in ["05-flannel.conflist", "10-flannel.conflist"] {
        if facts.cni.files.iter().any(|file| file.name == name) {
            files.push((name, FLANNEL_CONFLIST));
        }
    }
    facts.cni = folder(&files);
    facts.vxlan_devices.retain(|device| device.name != CALICO_DEVICE);
    facts.vxlan_devices.push(device(CALICO_DEVICE));
    facts
}

/// Drives one host to its goal. With `crash_at`, the process dies in the middle of that step, and starts again.
fn drive(mut facts: HostFacts, goal: Goal, crash_at: Option<usize>) -> (HostFacts, usize) {
    let settings = settings();
    let mut steps = 0;
    let mut waits = 0;
    loop {
        let before = phase(&facts, &settings);
        match decide(&facts, &settings, goal) {
            HostDecision::Run(step) => {
                assert_allowed(&step, &facts, goal);
                let after = perform(&step, &facts, crash_at == Some(steps));
                if crash_at != Some(steps) {
                    assert!(step.is_done(&after), "{step:?}");
                    assert_eq!(perform(&step, &after, false), after, "twice is once: {step:?}");
                }
                facts = after;
                steps += 1;
                assert!(
                    phase(&facts, &settings) >= before,
                    "a step leads forward: {step:?}"
                );
                assert!(steps < 40, "no end in sight: {facts:?}");
            }
            HostDecision::Wait(what) => {
                assert!(!what.is_empty());
                facts = world_moves_on(&facts);
                waits += 1;
                assert!(waits < 6, "{what}: waits for ever: {facts:?}");
            }
            HostDecision::Settled => return (facts, steps),
            HostDecision::Halt(why) => panic!("{why}: {facts:?}"),
        }
    }
}

#[test]
fn every_host_reaches_every_goal() {
    let hosts = every_host();
    assert!(hosts.len() > 5000);
    for host in &hosts {
        for goal in GOALS {
            let (end, steps) = drive(host.clone(), goal, None);
            if let Some(wanted) = goal.phase() {
                assert!(phase(&end, &settings()) >= wanted);
            } else {
                assert_eq!((&end, steps), (host, 0), "Hold changes nothing");
            }
            if goal == Goal::Calico {
                assert_eq!(leftovers(&end, &settings()), Vec::<String>::new());
            }
        }
    }
}

#[test]
fn a_crash_in_any_step_leads_to_the_same_end() {
    for host in every_host().into_iter().step_by(7).chain([flannel_host()]) {
        for goal in GOALS {
            let (end, steps) = drive(host.clone(), goal, None);
            for crash_at in 0..steps {
                let (after_crash, _) = drive(host.clone(), goal, Some(crash_at));
                assert_eq!(after_crash, end, "crash in step {crash_at}, goal {goal:?}");
            }
        }
    }
}

#[test]
fn a_host_that_is_further_than_its_goal_is_left_there() {
    let (calico, _) = drive(flannel_host(), Goal::Calico, None);
    for goal in GOALS {
        assert_eq!(
            decide(&calico, &settings(), goal),
            HostDecision::Settled,
            "{goal:?}"
        );
    }
}

#[test]
fn a_link_of_the_bridges_name_that_is_not_flannels_stops_the_agent() {
    let facts = HostFacts {
        subnet_environment: Found::Absent,
        flanneld_running: false,
        bridge: Found::Malformed("link cni0 is of kind \"dummy\", needed a bridge".to_owned()),
        ..flannel_host()
    };
    let HostDecision::Halt(why) = decide(&facts, &settings(), Goal::Detached) else {
        panic!("somebody else's link must not be deleted");
    };
    assert!(why.contains("dummy") && why.contains("rename"), "{why}");
}

#[test]
fn what_would_win_without_flannel_decides_when_its_conflist_goes() {
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
fn a_living_pod_keeps_its_network_and_is_named() {
    let facts = HostFacts {
        subnet_environment: Found::Absent,
        flanneld_running: false,
        ..flannel_host()
    };
    let HostDecision::Wait(what) = decide(&facts, &settings(), Goal::Detached) else {
        panic!("pods are on the bridge");
    };
    assert!(what.contains("veth1, veth2"), "{what}");
}

#[test]
fn what_comes_back_after_the_end_is_named() {
    let (mut end, _) = drive(flannel_host(), Goal::Calico, None);
    end.vxlan_devices.push(device("flannel.1"));
    end.firewall = vec![chain(FirewallBackend::IptablesLegacy, "nat", "POSTROUTING")];
    let found = leftovers(&end, &settings());
    assert_eq!(
        found,
        [
            "link flannel.1",
            "iptables (legacy) rules of flannel's in chain POSTROUTING of table nat"
        ]
    );
    assert_eq!(phase(&end, &settings()), Phase::Held);
}

#[test]
fn every_step_names_itself_and_its_object() {
    let steps = [
        HostStep::WithdrawSubnetEnvironment,
        HostStep::DeleteVxlanDevice("flannel.1".to_owned()),
        HostStep::DeleteBridge,
        HostStep::DeleteFirewallObject(chain(FirewallBackend::Nftables, "ip flannel-ipv4", "")),
        HostStep::RemoveLeases,
        HostStep::RemoveConflist("10-flannel.conflist".to_owned()),
    ];
    let objects: Vec<String> = steps.iter().map(HostStep::object).collect();
    assert_eq!(objects[3], "nftables table ip flannel-ipv4");
    let names: std::collections::BTreeSet<&str> = steps.iter().map(HostStep::name).collect();
    assert_eq!(names.len(), steps.len());
}
