use std::collections::BTreeMap;

use super::*;
use crate::facts::{Bridge, CalicoObjects, DirectRoute, Found, ReversePathFilter, VxlanDevice};
use crate::fixture::{device, folder, settings};
use crate::flannel::SubnetEnvironment;
use crate::host;
use crate::host::CALICO_DEVICE;
use engine::check::worst;

const FLANNEL: (&str, &str) = (
    "10-flannel.conflist",
    r#"{"name":"cbr0","plugins":[{"type":"flannel"},{"type":"portmap"}]}"#,
);
const CALICO: (&str, &str) = (
    "10-calico.conflist",
    r#"{"name":"k8s-pod-network","plugins":[{"type":"calico"}]}"#,
);

/// A healthy host on flannel.
fn healthy() -> HostFacts {
    HostFacts {
        plugin: None,
        foreign_rules: None,
        runtime: None,
        lacks_nf_tables: false,
        cni: folder(&[FLANNEL]),
        vxlan_devices: vec![device("flannel.1")],
        bridge: Found::Present(Bridge {
            name: "cni0".to_owned(),
            mtu: 1450,
            addresses: Vec::new(),
            ports: vec!["veth1".to_owned()],
            answers_for_pods: false,
            answered: Vec::new(),
            open: false,
        }),
        legacy_pods: Vec::new(),
        legacy_problems: Vec::new(),
        calico: CalicoObjects::default(),
        direct_routes: Vec::new(),
        reverse_path_filter: ReversePathFilter {
            all: 1,
            interfaces: BTreeMap::from([("eth0".to_owned(), 0)]),
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
        firewall: Vec::new(),
        leases: 1,
        delegates: 1,
        detected_address: Some("192.0.2.11".parse().unwrap()),
        detected_ipv6_address: None,
        uplink: Some("eth0".to_owned()),
        bridge_nf_call_iptables: Some(true),
    }
}

/// A healthy host on Calico.
fn migrated() -> HostFacts {
    HostFacts {
        cni: folder(&[CALICO]),
        vxlan_devices: vec![device(CALICO_DEVICE)],
        bridge: Found::Absent,
        subnet_environment: Found::Absent,
        flanneld_running: false,
        leases: 0,
        delegates: 0,
        calico: CalicoObjects {
            node_running: true,
            ..CalicoObjects::default()
        },
        ..healthy()
    }
}

fn judge(facts: &HostFacts, goal: Goal) -> Vec<Check> {
    let settings = settings();
    checks(Subject {
        node: "a",
        facts,
        settings: &settings,
        settings_are_known: true,
        phase: host::phase(facts, &settings),
        goal,
    })
}

/// The only result of the check with this name.
fn verdict(facts: &HostFacts, goal: Goal, check: HostCheck) -> Check {
    let found: Vec<Check> = judge(facts, goal)
        .into_iter()
        .filter(|each| each.name == check.as_str())
        .collect();
    assert_eq!(found.len(), 1, "{check:?}: {found:?}");
    found.into_iter().next().unwrap()
}

#[track_caller]
fn assert_refused(facts: &HostFacts, check: HostCheck, expected: Verdict, words: &[&str]) {
    let found = verdict(facts, Goal::Hold, check);
    assert_eq!(found.verdict, expected, "{}", found.line());
    assert!(found.object.contains("Node a"), "{}", found.line());
    assert!(
        !found.found.is_empty() && !found.needed.is_empty() && !found.fix.is_empty(),
        "{}",
        found.line()
    );
    for word in words {
        assert!(
            found.line().contains(word),
            "missing {word:?} in {}",
            found.line()
        );
    }
}

#[test]
fn a_healthy_host_passes_before_and_after_the_migration() {
    assert_eq!(
        worst(&judge(&healthy(), Goal::Hold)),
        Verdict::Pass,
        "{:?}",
        judge(&healthy(), Goal::Hold)
    );
    assert_eq!(
        worst(&judge(&migrated(), Goal::Calico)),
        Verdict::Pass,
        "{:?}",
        judge(&migrated(), Goal::Calico)
    );
    assert_eq!(worst(&judge(&migrated(), Goal::Hold)), Verdict::Pass);
}

#[test]
fn an_unreadable_host_is_unknown() {
    assert_eq!(worst(&unreadable("a", "no netlink socket")), Verdict::Unknown);
}

#[test]
fn a_journal_that_cannot_be_written_is_refused() {
    let folder = std::path::Path::new("/var/lib/replumb");
    assert_eq!(journal("a", folder, &Ok(())).verdict, Verdict::Pass);
    let check = journal(
        "a",
        folder,
        &Err("could not write: No space left on device".to_owned()),
    );
    assert!(
        !check.verdict.allows() && check.line().contains("No space left"),
        "{}",
        check.line()
    );
}

#[test]
fn check_names_are_unique() {
    let names: std::collections::BTreeSet<&str> = HostCheck::ALL.iter().map(|check| check.as_str()).collect();
    assert_eq!(names.len(), HostCheck::ALL.len());
}

#[test]
fn the_first_cni_file_decides_the_verdict() {
    use HostCheck::CniConfiguration;
    let with = |files: &[(&str, &str)]| HostFacts {
        cni: folder(files),
        ..healthy()
    };
    assert_refused(
        &with(&[]),
        CniConfiguration,
        Verdict::Fail,
        &["no CNI configuration"],
    );
    assert_refused(
        &with(&[("00-half.conflist", "{\"name\":"), FLANNEL]),
        CniConfiguration,
        Verdict::Fail,
        &["00-half.conflist", "not JSON"],
    );
    assert_refused(
        &with(&[CALICO, FLANNEL]),
        CniConfiguration,
        Verdict::Fail,
        &["node selector", "10-calico"],
    );
    let multus = ("00-multus.conf", r#"{"name":"multus","type":"multus"}"#);
    assert_refused(
        &with(&[multus, FLANNEL]),
        CniConfiguration,
        Verdict::Fail,
        &["00-multus.conf"],
    );
    assert_refused(
        &with(&[FLANNEL, ("99-half.conf", "{")]),
        CniConfiguration,
        Verdict::Warn,
        &["99-half.conf"],
    );
    let migrating = verdict(&with(&[CALICO, FLANNEL]), Goal::Calico, CniConfiguration);
    assert_eq!(migrating.verdict, Verdict::Pass, "{}", migrating.line());
}

#[test]
fn missing_or_malformed_host_state_does_not_pass() {
    use HostCheck::SubnetEnvironment;
    let broken = HostFacts {
        subnet_environment: Found::Malformed("subnet.env: key FLANNEL_MTU is missing".to_owned()),
        ..healthy()
    };
    assert_refused(&broken, SubnetEnvironment, Verdict::Fail, &["FLANNEL_MTU"]);
    assert_refused(
        &broken,
        HostCheck::DirectRouting,
        Verdict::Unknown,
        &["not known"],
    );
    let absent = HostFacts {
        subnet_environment: Found::Absent,
        ..healthy()
    };
    assert_refused(&absent, SubnetEnvironment, Verdict::Fail, &["no such file"]);
    let hangs = HostFacts {
        flanneld_running: false,
        unread_processes: vec!["could not read process 7 (java) within 2 s".to_owned()],
        ..healthy()
    };
    assert_refused(
        &hangs,
        HostCheck::FlannelProcess,
        Verdict::Unknown,
        &["process 7 (java)"],
    );
    let changed_by_nft = HostFacts {
        unread_tables: vec![
            "chain FLANNEL-POSTRTG is in table ip nat, which iptables cannot read".to_owned(),
        ],
        ..healthy()
    };
    assert_refused(
        &changed_by_nft,
        HostCheck::HostReadable,
        Verdict::Unknown,
        &["FLANNEL-POSTRTG", "table ip nat"],
    );
    // Neither flanneld nor its file, with goal Hold.
    let stopped = HostFacts {
        flanneld_running: false,
        ..absent
    };
    assert_refused(&stopped, SubnetEnvironment, Verdict::Fail, &["no such file"]);
    assert_refused(&stopped, HostCheck::FlannelProcess, Verdict::Warn, &["flanneld"]);
}

#[test]
fn a_device_that_differs_from_the_settings_does_not_pass() {
    use HostCheck::FlannelDevice;
    let with = |change: fn(&mut VxlanDevice)| {
        let mut facts = healthy();
        change(&mut facts.vxlan_devices[0]);
        facts
    };
    assert_refused(
        &with(|device| device.name = "flannel.7".to_owned()),
        FlannelDevice,
        Verdict::Fail,
        &["flannel.7"],
    );
    assert_refused(
        &with(|device| device.vni = 7),
        FlannelDevice,
        Verdict::Fail,
        &["VNI 7", "VNI 1"],
    );
    assert_refused(
        &with(|device| device.port = 4789),
        FlannelDevice,
        Verdict::Fail,
        &["4789", "8472"],
    );
    assert_refused(
        &with(|device| device.mtu = 1400),
        FlannelDevice,
        Verdict::Fail,
        &["1400", "1450"],
    );
    assert_refused(
        &with(|device| device.up = false),
        FlannelDevice,
        Verdict::Fail,
        &["down"],
    );
    assert_refused(
        &with(|device| device.learning = true),
        FlannelDevice,
        Verdict::Warn,
        &["Learning"],
    );
    let none = HostFacts {
        vxlan_devices: Vec::new(),
        ..healthy()
    };
    assert_refused(&none, FlannelDevice, Verdict::Fail, &["no VXLAN link"]);
}

#[test]
fn a_device_is_not_checked_before_the_settings_are_known() {
    let mut facts = healthy();
    facts.vxlan_devices[0].name = "flannel.4096".to_owned();
    let settings = settings();
    let judged = checks(Subject {
        node: "a",
        facts: &facts,
        settings: &settings,
        settings_are_known: false,
        phase: Phase::Flannel,
        goal: Goal::Hold,
    });
    assert_eq!(worst(&judged), Verdict::Pass, "{judged:?}");
}

#[test]
fn a_direct_route_fails_with_its_destination() {
    let facts = HostFacts {
        direct_routes: vec![DirectRoute {
            destination: "10.244.2.0/24".parse().unwrap(),
            gateway: "192.0.2.12".parse().unwrap(),
            link: "eth0".to_owned(),
        }],
        ..healthy()
    };
    assert_refused(
        &facts,
        HostCheck::DirectRouting,
        Verdict::Fail,
        &["10.244.2.0/24 via 192.0.2.12 dev eth0", "DirectRouting"],
    );
}

#[test]
fn the_larger_reverse_path_filter_value_applies() {
    use HostCheck::ReversePathFilter as Check;
    let with = |all: u8, own: u8| HostFacts {
        reverse_path_filter: ReversePathFilter {
            all,
            interfaces: BTreeMap::from([("eth0".to_owned(), own)]),
        },
        ..healthy()
    };
    for (all, own) in [(1, 0), (0, 1), (1, 1)] {
        assert_eq!(
            verdict(&with(all, own), Goal::Hold, Check).verdict,
            Verdict::Pass,
            "{all} {own}"
        );
    }
    for (all, own, effective) in [(0, 0, "0"), (2, 1, "2"), (1, 2, "2")] {
        assert_refused(
            &with(all, own),
            Check,
            Verdict::Warn,
            &["eth0", &format!("found {effective}")],
        );
    }
    let unlisted = HostFacts {
        uplink: Some("eth9".to_owned()),
        ..healthy()
    };
    assert_refused(&unlisted, Check, Verdict::Unknown, &["eth9"]);
    assert_refused(
        &HostFacts {
            uplink: None,
            ..healthy()
        },
        Check,
        Verdict::Unknown,
        &["no interface"],
    );
}

#[test]
fn bridge_netfilter_and_missing_address_have_a_fix() {
    for (value, word) in [(Some(false), "sysctl"), (None, "modprobe")] {
        let facts = HostFacts {
            bridge_nf_call_iptables: value,
            ..healthy()
        };
        assert_refused(&facts, HostCheck::BridgeNetfilter, Verdict::Warn, &[word]);
    }
    let facts = HostFacts {
        detected_address: None,
        ..healthy()
    };
    assert_refused(
        &facts,
        HostCheck::HostAddress,
        Verdict::Fail,
        &["IP_AUTODETECTION_METHOD"],
    );
}

#[test]
fn calicos_device_and_leftovers_are_checked_only_for_calico() {
    let names = |facts: &HostFacts, goal| -> Vec<String> {
        judge(facts, goal).into_iter().map(|check| check.name).collect()
    };
    assert!(!names(&healthy(), Goal::Hold).contains(&"CalicoDevice".to_owned()));
    let mut narrow = migrated();
    narrow.vxlan_devices[0].mtu = 1400;
    assert_refused(
        &narrow,
        HostCheck::CalicoDevice,
        Verdict::Fail,
        &["1400", "vxlanMTU"],
    );
    let absent = HostFacts {
        vxlan_devices: Vec::new(),
        ..migrated()
    };
    let check = verdict(&absent, Goal::Calico, HostCheck::CalicoDevice);
    assert_eq!(check.verdict, Verdict::Fail, "{}", check.line());
    for goal in [Goal::Mixed, Goal::Calico] {
        let starting = HostFacts {
            calico: CalicoObjects::default(),
            ..absent.clone()
        };
        let early = names(&starting, goal);
        assert!(
            !early
                .iter()
                .any(|name| ["CalicoDevice", "Leftovers"].contains(&name.as_str())),
            "calico-node has not started yet: {early:?}"
        );
    }
    let mut again = migrated();
    again.vxlan_devices.push(device("flannel.1"));
    let check = verdict(&again, Goal::Calico, HostCheck::Leftovers);
    assert!(
        check.verdict == Verdict::Fail && check.found.contains("link flannel.1"),
        "{}",
        check.line()
    );
}

#[test]
fn a_link_named_cni0_that_is_no_bridge_fails() {
    let facts = HostFacts {
        bridge: Found::Malformed("link cni0 is of kind \"dummy\"".to_owned()),
        ..healthy()
    };
    assert_refused(
        &facts,
        HostCheck::FlannelBridge,
        Verdict::Fail,
        &["dummy", "rename"],
    );
    let facts = HostFacts {
        bridge: Found::Absent,
        ..healthy()
    };
    assert_eq!(
        verdict(&facts, Goal::Hold, HostCheck::FlannelBridge).verdict,
        Verdict::Pass
    );
}
