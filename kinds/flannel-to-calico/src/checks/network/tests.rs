use rstest::rstest;

use super::super::fixture::{self, verdicts};
use super::*;
use crate::detect::NETWORK_LABEL;
use crate::facts::{DirectRoute, HostFacts, VxlanDevice};
use crate::host::CALICO_DEVICE;
use engine::check::Verdict::{self, Fail, Pass, Unknown, Warn};
use engine::cluster::Node;

fn with_host(change: impl FnOnce(&mut HostFacts)) -> ClusterFacts {
    let mut facts = fixture::cluster();
    change(facts.hosts.get_mut("b").unwrap());
    facts
}

fn judge(facts: &ClusterFacts) -> Vec<Check> {
    check(
        &fixture::settings(),
        facts,
        Some(&fixture::flannel()),
        Some(&fixture::calico()),
    )
}

#[test]
fn healthy_hosts_pass() {
    assert_eq!(
        verdicts(&judge(&fixture::cluster())),
        [
            ("NetworkConfigurationMatchesDevice", Pass),
            ("DirectRouting", Pass),
            ("PublicAddress", Pass)
        ]
    );
}

#[test]
fn a_host_without_facts_is_unknown_in_each_check() {
    let mut facts = fixture::cluster();
    facts.hosts.remove("b");
    facts.hosts.remove("c");
    let checks = judge(&facts);
    assert_eq!(
        verdicts(&checks),
        [
            ("NetworkConfigurationMatchesDevice", Unknown),
            ("DirectRouting", Unknown),
            ("PublicAddress", Unknown)
        ]
    );
    assert_eq!(checks[0].object, "Nodes b, c: host");
}

#[test]
fn a_host_on_calico_is_not_checked() {
    let mut facts = with_host(|host| host.vxlan_devices.clear());
    let node = facts.nodes.get_mut("b").unwrap();
    node.labels.insert(NETWORK_LABEL.to_owned(), "calico".to_owned());
    assert_eq!(
        verdicts(&devices(&fixture::settings(), &facts)),
        [("NetworkConfigurationMatchesDevice", Pass)]
    );
}

#[rstest]
#[case::vni(|device: &mut VxlanDevice| device.vni = 2, "VNI 2", "VNI 1, default")]
#[case::port(|device: &mut VxlanDevice| device.port = 4789, "port 4789", "port 8472, default")]
#[case::mtu(|device: &mut VxlanDevice| device.mtu = 1400, "MTU 1400", "MTU 1450, default")]
#[case::down(|device: &mut VxlanDevice| device.up = false, "down", "up")]
#[case::subnet(
    |device: &mut VxlanDevice| device.addresses = vec!["10.244.9.0/32".parse().unwrap()],
    "address 10.244.9.0/32", "address 10.244.2.0, the first of spec.podCIDR 10.244.2.0/24")]
#[case::no_address(
    |device: &mut VxlanDevice| device.addresses.clear(),
    "no address", "address 10.244.2.0, the first of spec.podCIDR 10.244.2.0/24")]
fn a_device_that_differs_fails(
    #[case] change: fn(&mut VxlanDevice),
    #[case] found: &str,
    #[case] needed: &str,
) {
    let facts = with_host(|host| change(&mut host.vxlan_devices[0]));
    let checks = devices(&fixture::settings(), &facts);
    assert_eq!(verdicts(&checks), [("NetworkConfigurationMatchesDevice", Fail)]);
    assert_eq!(
        (
            checks[0].object.as_str(),
            checks[0].found.as_str(),
            checks[0].needed.as_str()
        ),
        ("Node b: link flannel.1", found, needed)
    );
}

#[rstest]
#[case::none(|host: &mut HostFacts| host.vxlan_devices.clear(), "not found")]
#[case::another(
    |host: &mut HostFacts| {
        host.vxlan_devices[0].name = "flannel.7".to_owned();
        host.vxlan_devices[0].vni = 7;
    },
    "not found; existing links: flannel.7 (VNI 7, port 8472)")]
fn a_missing_device_fails(#[case] change: fn(&mut HostFacts), #[case] found: &str) {
    let checks = devices(&fixture::settings(), &with_host(change));
    assert_eq!(verdicts(&checks), [("NetworkConfigurationMatchesDevice", Fail)]);
    assert_eq!(checks[0].found, found);
}

#[test]
fn a_calico_device_beside_flannels_warns() {
    let facts = with_host(|host| {
        let calico = VxlanDevice {
            name: CALICO_DEVICE.to_owned(),
            vni: 4096,
            ..host.vxlan_devices[0].clone()
        };
        host.vxlan_devices.push(calico);
    });
    assert_eq!(
        verdicts(&devices(&fixture::settings(), &facts)),
        [("NetworkConfigurationMatchesDevice", Warn)]
    );
}

#[test]
fn direct_routing_in_the_configuration_fails() {
    let mut facts = fixture::cluster();
    let text = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","DirectRouting":true}}"#;
    let key = ("kube-flannel".to_owned(), "kube-flannel-cfg".to_owned());
    facts
        .config_maps
        .get_mut(&key)
        .unwrap()
        .insert("net-conf.json".to_owned(), text.to_owned());
    let checks = direct_routing(&facts, Some(&fixture::flannel()));
    assert_eq!(verdicts(&checks), [("DirectRouting", Fail)]);
    assert_eq!(
        checks[0].object,
        "ConfigMap kube-flannel/kube-flannel-cfg: net-conf.json: Backend.DirectRouting"
    );
}

#[test]
fn a_direct_route_on_a_host_fails() {
    let facts = with_host(|host| {
        host.direct_routes.push(DirectRoute {
            destination: "10.244.1.0/24".parse().unwrap(),
            gateway: "192.168.0.1".parse().unwrap(),
            link: "eth0".to_owned(),
        });
    });
    let checks = direct_routing(&facts, Some(&fixture::flannel()));
    assert_eq!(verdicts(&checks), [("DirectRouting", Fail)]);
    assert_eq!(checks[0].found, "10.244.1.0/24 via 192.168.0.1 dev eth0");
}

#[rstest]
#[case::tunnel(|facts: &mut ClusterFacts| {
    facts.hosts.get_mut("b").unwrap().vxlan_devices[0].local = Some("10.0.0.9".parse().unwrap());
}, "Node b: local address of flannel.1", "10.0.0.9")]
#[case::detected(|facts: &mut ClusterFacts| {
    facts.hosts.get_mut("b").unwrap().detected_address = Some("10.0.0.9".parse().unwrap());
}, "Node b: address that Calico detects (first-found)", "10.0.0.9")]
#[case::none_detected(|facts: &mut ClusterFacts| {
    facts.hosts.get_mut("b").unwrap().detected_address = None;
}, "Node b: address that Calico detects (first-found)", "none")]
#[case::translated(|facts: &mut ClusterFacts| {
    let key = "flannel.alpha.coreos.com/public-ip-overwrite".to_owned();
    facts.nodes.get_mut("b").unwrap().annotations.insert(key, "203.0.113.2".to_owned());
}, "Node b: annotation flannel.alpha.coreos.com/public-ip-overwrite", "203.0.113.2")]
fn an_address_that_differs_fails(
    #[case] change: fn(&mut ClusterFacts),
    #[case] object: &str,
    #[case] found: &str,
) {
    let mut facts = fixture::cluster();
    change(&mut facts);
    let checks = public_address(&fixture::settings(), &facts, Some(&fixture::calico()));
    assert_eq!(verdicts(&checks), [("PublicAddress", Fail)]);
    assert_eq!(
        (checks[0].object.as_str(), checks[0].found.as_str()),
        (object, found)
    );
}

#[rstest]
#[case::internal(&[("IP", "autodetect"), ("IP_AUTODETECTION_METHOD", "kubernetes-internal-ip")], Pass)]
#[case::kept(&[("IP", "")], Pass)]
#[case::other(&[("IP", "autodetect"), ("IP_AUTODETECTION_METHOD", "can-reach=1.1.1.1")], Warn)]
#[case::first_found(&[("IP", "autodetect"), ("IP_AUTODETECTION_METHOD", "first-found")], Fail)]
fn the_detection_method_decides_the_verdict(#[case] environment: &[(&str, &str)], #[case] expected: Verdict) {
    // The method first-found would choose another address than flannel.
    let facts = with_host(|host| host.detected_address = Some("10.0.0.9".parse().unwrap()));
    let mut calico = fixture::calico();
    for (key, value) in environment {
        calico.containers[1].environment.set(key, value);
    }
    let checks = public_address(&fixture::settings(), &facts, Some(&calico));
    assert_eq!(verdicts(&checks), [("PublicAddress", expected)], "{checks:?}");
}

#[test]
fn a_different_internal_address_fails() {
    let mut facts = fixture::cluster();
    facts.nodes.get_mut("b").unwrap().internal_addresses = vec!["10.0.0.9".parse().unwrap()];
    let mut calico = fixture::calico();
    calico.containers[1]
        .environment
        .set("IP_AUTODETECTION_METHOD", "kubernetes-internal-ip");
    let checks = public_address(&fixture::settings(), &facts, Some(&calico));
    assert_eq!(verdicts(&checks), [("PublicAddress", Fail)]);
    assert_eq!(checks[0].object, "Node b: address of type InternalIP");
}

fn judge_dual_stack(change: impl FnOnce(&mut Node, &mut HostFacts)) -> Vec<Check> {
    let (settings, mut facts) = fixture::dual_stack();
    change(
        facts.nodes.get_mut("b").unwrap(),
        facts.hosts.get_mut("b").unwrap(),
    );
    let mut calico = fixture::calico();
    let environment = &mut calico.containers[1].environment;
    environment.set("IP6", "autodetect");
    check(&settings, &facts, Some(&fixture::flannel()), Some(&calico))
}

#[test]
fn healthy_dual_stack_hosts_pass() {
    let checks = judge_dual_stack(|_, _| {});
    assert!(checks.iter().all(|check| check.verdict == Pass), "{checks:?}");
    assert_eq!(checks[0].object, "link flannel.1 and flannel-v6.1 of 3 hosts");
    assert_eq!(
        checks[0].found,
        "VNI 1, port 8472, MTU 1450 and 1430, the subnet of the node"
    );
}

#[rstest]
#[case::mtu(
    |_: &mut Node, host: &mut HostFacts| host.vxlan_devices[1].mtu = 1450,
    "Node b: link flannel-v6.1", "MTU 1450", "MTU 1430, 20 less than MTU 1450 (default)")]
#[case::subnet(
    |_: &mut Node, host: &mut HostFacts| host.vxlan_devices[1].addresses = vec!["fd00:10:244:9::/128".parse().unwrap()],
    "Node b: link flannel-v6.1", "address fd00:10:244:9::/128",
    "address fd00:10:244:2::, the first of spec.podCIDR fd00:10:244:2::/64")]
#[case::no_device(
    |_: &mut Node, host: &mut HostFacts| host.vxlan_devices.truncate(1),
    "Node b: link flannel-v6.1", "not found; existing links: flannel.1 (VNI 1, port 8472)",
    "flannel's device with VNI 1, default")]
#[case::direct(
    |_: &mut Node, host: &mut HostFacts| host.direct_routes.push(DirectRoute {
        destination: "fd00:10:244:3::/64".parse().unwrap(),
        gateway: "fd00:192::3".parse().unwrap(),
        link: "eth0".to_owned(),
    }),
    "Node b: routes", "fd00:10:244:3::/64 via fd00:192::3 dev eth0",
    "only routes through the tunnel to pods of other nodes")]
#[case::local(
    |_: &mut Node, host: &mut HostFacts| host.vxlan_devices[1].local = Some("fd00:192::99".parse().unwrap()),
    "Node b: local address of flannel-v6.1", "fd00:192::99", "fd00:192::2, flannel's public-ipv6")]
#[case::detected(
    |_: &mut Node, host: &mut HostFacts| host.detected_ipv6_address = None,
    "Node b: address that Calico detects (first-found)", "none", "fd00:192::2, flannel's public-ipv6")]
#[case::no_annotation(
    |node: &mut Node, _: &mut HostFacts| {
        for key in ["public-ipv6", "backend-v6-data"] {
            node.annotations.remove(&format!("flannel.alpha.coreos.com/{key}"));
        }
    },
    "Node b: annotation flannel.alpha.coreos.com/public-ipv6", "missing", "the node's address of flannel's tunnel")]
#[case::translated(
    |node: &mut Node, _: &mut HostFacts| {
        let key = "flannel.alpha.coreos.com/public-ipv6-overwrite".to_owned();
        node.annotations.insert(key, "2001:db8::2".to_owned());
    },
    "Node b: annotation flannel.alpha.coreos.com/public-ipv6-overwrite", "2001:db8::2", "no such annotation")]
fn a_difference_in_ipv6_only_fails(
    #[case] change: fn(&mut Node, &mut HostFacts),
    #[case] object: &str,
    #[case] found: &str,
    #[case] needed: &str,
) {
    let checks = judge_dual_stack(change);
    let failed: Vec<&Check> = checks.iter().filter(|check| check.verdict != Pass).collect();
    assert_eq!(failed.len(), 1, "{checks:?}");
    assert_eq!(
        (
            failed[0].verdict,
            failed[0].object.as_str(),
            failed[0].found.as_str(),
            failed[0].needed.as_str()
        ),
        (Fail, object, found, needed)
    );
}
