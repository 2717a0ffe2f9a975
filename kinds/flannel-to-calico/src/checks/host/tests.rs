use rstest::rstest;

use super::super::fixture::{self, verdicts};
use super::*;
use crate::facts::HostFacts;
use crate::flannel::{Ipv6Subnet, SubnetEnvironment};
use engine::check::Verdict::{Fail, Pass, Unknown, Warn};
use engine::cni::CniDirectory;

fn with_host(change: impl FnOnce(&mut HostFacts)) -> ClusterFacts {
    let mut facts = fixture::cluster();
    change(facts.hosts.get_mut("b").unwrap());
    facts
}

#[test]
fn healthy_hosts_pass() {
    assert_eq!(
        verdicts(&check(
            &fixture::settings(),
            &fixture::cluster(),
            Some(&fixture::calico())
        )),
        [
            ("SubnetEnvironment", Pass),
            ("ConflistMalformed", Pass),
            ("ReversePathFilter", Pass),
            ("BridgeNetfilter", Pass),
        ]
    );
}

#[test]
fn a_host_without_facts_is_unknown_in_each_check() {
    let mut facts = fixture::cluster();
    facts.hosts.remove("b");
    let checks = check(&fixture::settings(), &facts, Some(&fixture::calico()));
    assert!(checks.iter().all(|check| check.verdict == Unknown), "{checks:?}");
    assert_eq!(checks.len(), 4);
}

fn environment(change: impl FnOnce(&mut SubnetEnvironment)) -> Found<SubnetEnvironment> {
    let mut environment = SubnetEnvironment {
        network: "10.244.0.0/16".parse().unwrap(),
        subnet: "10.244.2.1/24".parse().unwrap(),
        mtu: 1450,
        ip_masquerade: true,
        ipv6: None,
    };
    change(&mut environment);
    Found::Present(environment)
}

#[rstest]
#[case::absent(Found::Absent, "not found")]
#[case::malformed(Found::Malformed("subnet.env: line 1".to_owned()), "subnet.env: line 1")]
#[case::network(
    environment(|found| found.network = "10.0.0.0/16".parse().unwrap()),
    "FLANNEL_NETWORK 10.0.0.0/16"
)]
#[case::mtu(environment(|found| found.mtu = 1400), "FLANNEL_MTU 1400")]
#[case::masquerade(environment(|found| found.ip_masquerade = false), "FLANNEL_IPMASQ false")]
#[case::subnet(
    environment(|found| found.subnet = "10.244.9.1/24".parse().unwrap()),
    "FLANNEL_SUBNET 10.244.9.1/24"
)]
#[case::length(
    environment(|found| found.subnet = "10.244.2.1/25".parse().unwrap()),
    "FLANNEL_SUBNET 10.244.2.1/25"
)]
fn a_subnet_environment_that_differs_fails(#[case] file: Found<SubnetEnvironment>, #[case] found: &str) {
    let checks = subnet_environment(
        &fixture::settings(),
        &with_host(|host| host.subnet_environment = file),
    );
    assert_eq!(verdicts(&checks), [("SubnetEnvironment", Fail)]);
    assert_eq!(
        (checks[0].object.as_str(), checks[0].found.as_str()),
        ("Node b: /run/flannel/subnet.env", found)
    );
}

const FLANNEL: &str = r#"{"name":"cbr0","plugins":[{"type":"flannel"}]}"#;
const CALICO: &str = r#"{"name":"k8s-pod-network","plugins":[{"type":"calico"}]}"#;

#[rstest]
#[case::empty("/etc/cni/net.d", &[], Fail, "no file")]
#[case::broken("/etc/cni/net.d", &[("10-flannel.conflist", "{")], Fail, "10-flannel.conflist: not JSON")]
#[case::another_wins(
    "/etc/cni/net.d", &[("10-calico.conflist", CALICO), ("10-flannel.conflist", FLANNEL)],
    Fail, "10-calico.conflist is in use (plugins calico)")]
#[case::broken_later(
    "/etc/cni/net.d", &[("10-flannel.conflist", FLANNEL), ("99-old.conf", "x")], Warn, "99-old.conf: not JSON")]
#[case::same_directory("/etc/cni/net.d/", &[("10-flannel.conflist", FLANNEL)], Pass, "flannel's conflist is in use")]
#[case::other_directory(
    "/opt/cni", &[("10-flannel.conflist", FLANNEL)], Unknown, "the agent has read /opt/cni")]
fn the_first_cni_file_decides_the_verdict(
    #[case] path: &str,
    #[case] files: &[(&str, &str)],
    #[case] expected: Verdict,
    #[case] found: &str,
) {
    let files = files
        .iter()
        .map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec()))
        .collect();
    let facts = with_host(|host| host.cni = CniDirectory::read(path, files));
    let checks = conflist(&fixture::settings(), &facts);
    assert_eq!(verdicts(&checks), [("ConflistMalformed", expected)], "{checks:?}");
    assert!(checks[0].found.starts_with(found), "{}", checks[0].found);
}

#[rstest]
#[case::old_strict("calico/node:v3.10.4", 1, Pass)]
#[case::old_loose("calico/node:v3.11.3", 2, Fail)]
#[case::old_off("calico/node:v3.10.4", 0, Fail)]
#[case::new_loose("calico/node:v3.12.0", 2, Pass)]
#[case::new_off("calico/node:v3.31.7", 0, Pass)]
#[case::unknown_strict("calico/node:latest", 1, Pass)]
#[case::unknown_loose("calico/node:latest", 2, Unknown)]
fn a_reverse_path_filter_is_judged_by_calicos_version(
    #[case] image: &str,
    #[case] all: u8,
    #[case] expected: Verdict,
) {
    let facts = with_host(|host| host.reverse_path_filter.all = all);
    let mut calico = fixture::calico();
    image.clone_into(&mut calico.containers[1].image);
    let checks = reverse_path_filter(&facts, Some(&calico));
    assert_eq!(verdicts(&checks), [("ReversePathFilter", expected)], "{checks:?}");
    if expected != Pass {
        assert_eq!(checks[0].object, "Node b: net.ipv4.conf.all.rp_filter");
    }
}

#[rstest]
#[case::on(Some(true), Pass)]
#[case::off(Some(false), Warn)]
#[case::not_loaded(None, Warn)]
fn unfiltered_bridged_packets_warn(#[case] value: Option<bool>, #[case] expected: Verdict) {
    let checks = bridge_netfilter(&with_host(|host| host.bridge_nf_call_iptables = value));
    assert_eq!(verdicts(&checks), [("BridgeNetfilter", expected)]);
}

#[rstest]
#[case::same(|_: &mut Option<Ipv6Subnet>| {}, "")]
#[case::absent(|ipv6: &mut Option<Ipv6Subnet>| *ipv6 = None, "FLANNEL_IPV6_NETWORK missing")]
#[case::network(
    |ipv6: &mut Option<Ipv6Subnet>| ipv6.as_mut().unwrap().network = "fd00:99::/56".parse().unwrap(),
    "FLANNEL_IPV6_NETWORK fd00:99::/56")]
#[case::subnet(
    |ipv6: &mut Option<Ipv6Subnet>| ipv6.as_mut().unwrap().subnet = "fd00:10:244:9::1/64".parse().unwrap(),
    "FLANNEL_IPV6_SUBNET fd00:10:244:9::1/64")]
fn an_ipv6_subnet_environment_that_differs_fails(
    #[case] change: fn(&mut Option<Ipv6Subnet>),
    #[case] found: &str,
) {
    let (settings, mut facts) = fixture::dual_stack();
    let Found::Present(environment) = &mut facts.hosts.get_mut("b").unwrap().subnet_environment else {
        panic!("the fixture has the file")
    };
    change(&mut environment.ipv6);
    let checks = subnet_environment(&settings, &facts);
    let expected = if found.is_empty() { Pass } else { Fail };
    assert_eq!(checks[0].verdict, expected, "{checks:?}");
    assert!(checks[0].found.contains(found), "{checks:?}");
}
