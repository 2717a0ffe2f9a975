use rstest::rstest;

use super::super::fixture::{self, alone, calico_mut, judge, only};
use super::*;
use crate::host::Conflist;
use engine::check::Verdict::{Fail, Pass, Unknown};
use engine::found::Found;

#[test]
fn calico_ready_on_every_node_passes() {
    let found = alone(&judge(|_| {}), CheckName::CalicoNodes);
    assert_eq!(found[0].object, "DaemonSet kube-system/calico-node");
    assert_eq!(
        found[0].found,
        "3 of 3 pods Ready, image quay.io/calico/node:v3.31.7"
    );
}

/// A rollout in progress, or an unfinished update with `OnDelete`, means two versions.
#[rstest]
#[case::not_ready(|set: &mut DaemonSet| set.ready = 2, "2 of 3 pods Ready")]
#[case::two_versions(
    |set: &mut DaemonSet| set.rolled_out = false,
    "3 of 3 pods Ready, rollout in progress: not every pod has the newest template")]
#[case::not_everywhere(
    |set: &mut DaemonSet| (set.desired, set.ready) = (2, 2), "pods for 2 of 3 nodes")]
#[case::nowhere(|set: &mut DaemonSet| (set.desired, set.ready) = (0, 0), "pods for 0 of 3 nodes")]
fn calico_that_is_not_ready_on_every_node_in_one_version_fails(
    #[case] change: fn(&mut DaemonSet),
    #[case] found: &str,
) {
    let check = only(&judge(|facts| change(calico_mut(facts))), CheckName::CalicoNodes);
    assert_eq!(
        (check.verdict, check.object.as_str(), check.found.as_str()),
        (Fail, "DaemonSet kube-system/calico-node", found)
    );
}

#[test]
fn a_missing_calico_daemon_set_fails() {
    let check = only(&judge(|facts| facts.daemon_sets.clear()), CheckName::CalicoNodes);
    assert_eq!(
        (check.verdict, check.object.as_str(), check.found.as_str()),
        (Fail, "DaemonSet kube-system/calico-node", "missing")
    );
}

fn pinned(annotation: &str, value: &str) -> Vec<Check> {
    judge(|facts| {
        facts.pins.push(Pin {
            object: "Pod shop/web-1".to_owned(),
            annotation: format!("cni.projectcalico.org/{annotation}"),
            value: value.to_owned(),
        });
    })
}

#[rstest]
#[case::by_name("ipv4pools", r#"["default-ipv4-ippool"]"#)]
#[case::by_range("ipv4pools", r#"["10.244.0.0/16"]"#)]
#[case::by_range_with_host_bits("ipv4pools", r#"["10.244.0.1/16"]"#)]
#[case::one_of_several("ipv4pools", r#"["10.200.0.0/16", "10.244.0.0/16"]"#)]
#[case::address("ipAddrs", r#"["10.244.1.10"]"#)]
#[case::address_past_ipam("ipAddrsNoIpam", r#"["10.244.1.10"]"#)]
#[case::address_outside("ipAddrsNoIpam", r#"["192.168.7.7"]"#)]
#[case::floating("floatingIPs", r#"["10.244.1.10"]"#)]
fn a_pin_to_the_old_pool_fails(#[case] annotation: &str, #[case] value: &str) {
    let check = only(&pinned(annotation, value), CheckName::Pins);
    let object = format!("Pod shop/web-1: cni.projectcalico.org/{annotation}");
    assert_eq!(
        (check.verdict, check.object, check.found.as_str()),
        (Fail, object, value)
    );
}

#[rstest]
#[case::new_pool("ipv4pools", r#"["10.200.0.0/16"]"#)]
#[case::another_pool("ipv4pools", r#"["other"]"#)]
#[case::new_address("ipAddrs", r#"["10.200.0.9"]"#)]
#[case::floating_outside("floatingIPs", r#"["192.168.7.7"]"#)]
#[case::other_family("ipAddrsNoIpam", r#"["fd00::7"]"#)]
#[case::nothing("ipv4pools", "[]")]
#[case::empty("ipv4pools", "")]
fn other_pins_pass(#[case] annotation: &str, #[case] value: &str) {
    assert_eq!(
        alone(&pinned(annotation, value), CheckName::Pins)[0].verdict,
        Pass
    );
}

#[rstest]
#[case::no_list("default-ipv4-ippool")]
#[case::cut(r#"["default-ipv4-ippool""#)]
#[case::no_texts("[1]")]
fn an_unparsable_pin_is_unknown(#[case] value: &str) {
    let check = only(&pinned("ipv4pools", value), CheckName::Pins);
    assert_eq!(check.verdict, Unknown);
    assert!(check.found.starts_with(value), "{}", check.found);
}

#[test]
fn a_pin_of_a_namespace_fails() {
    let checks = judge(|facts| {
        facts.pins.push(Pin {
            object: "Namespace shop".to_owned(),
            annotation: "cni.projectcalico.org/ipv4pools".to_owned(),
            value: r#"["10.244.0.0/16"]"#.to_owned(),
        });
    });
    let check = only(&checks, CheckName::Pins);
    assert_eq!(check.object, "Namespace shop: cni.projectcalico.org/ipv4pools");
}

fn with_pools(change: impl FnOnce(&mut Conflist)) -> Vec<Check> {
    judge(|facts| change(fixture::conflist_mut(facts)))
}

#[test]
fn pools_in_the_cni_configuration_fail() {
    let pools = |names: &[&str]| Found::Present(names.iter().map(|name| (*name).to_owned()).collect());
    let check = only(
        &with_pools(|conflist| conflist.ipv4_pools = pools(&["10.244.0.0/16"])),
        CheckName::Pins,
    );
    assert_eq!((check.verdict, check.found.as_str()), (Fail, "10.244.0.0/16"));
    assert!(check.object.starts_with("Node b: "), "{}", check.object);
    // Pools of the other family do not matter.
    let other = with_pools(|conflist| conflist.ipv6_pools = pools(&["fd00::/48"]));
    assert_eq!(alone(&other, CheckName::Pins)[0].verdict, Pass);
}

/// The plugin is parsed and its pools are not: no other check reports this.
#[test]
fn unparsable_pools_in_the_cni_configuration_are_unknown() {
    let problem = "ipam.ipv4_pools: found a string, needed a list of strings";
    let checks = with_pools(|conflist| conflist.ipv4_pools = Found::Malformed(problem.to_owned()));
    let check = only(&checks, CheckName::Pins);
    assert_eq!(check.verdict, Unknown);
    assert!(check.found.ends_with(problem), "{}", check.found);
}
