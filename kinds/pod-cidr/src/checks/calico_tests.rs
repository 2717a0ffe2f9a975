use rstest::rstest;

use super::super::fixture::{self, alone, calico_mut, judge, only};
use super::*;
use crate::host::Conflist;
use engine::check::Verdict::{Fail, Pass, Unknown};
use engine::found::Found;

#[test]
fn calico_on_every_node() {
    let found = alone(&judge(|_| {}), CheckName::CalicoNodes);
    assert_eq!(found[0].object, "DaemonSet kube-system/calico-node");
    assert_eq!(found[0].found, "3 pods Ready, of quay.io/calico/node:v3.31.7");
}

/// A roll in its middle, or `OnDelete` that nobody finished, is two versions.
#[rstest]
#[case::not_ready(|set: &mut DaemonSet| set.ready = 2, "2 of 3 pods Ready")]
#[case::two_versions(
    |set: &mut DaemonSet| set.rolled_out = false,
    "3 of 3 pods Ready, in the middle of a roll: not every one of them is of its newest template")]
#[case::not_everywhere(
    |set: &mut DaemonSet| (set.desired, set.ready) = (2, 2), "it has a pod on 2 of 3 nodes")]
#[case::nowhere(|set: &mut DaemonSet| (set.desired, set.ready) = (0, 0), "it has a pod on 0 of 3 nodes")]
fn calico_that_is_not_ready_everywhere_in_one_version(
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
fn no_calico() {
    let check = only(&judge(|facts| facts.daemon_sets.clear()), CheckName::CalicoNodes);
    assert_eq!(
        (check.verdict, check.object.as_str(), check.found.as_str()),
        (Fail, "DaemonSet kube-system/calico-node", "not there")
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
#[case::by_range_written_otherwise("ipv4pools", r#"["10.244.0.1/16"]"#)]
#[case::one_of_several("ipv4pools", r#"["10.200.0.0/16", "10.244.0.0/16"]"#)]
#[case::address("ipAddrs", r#"["10.244.1.10"]"#)]
#[case::address_past_ipam("ipAddrsNoIpam", r#"["10.244.1.10"]"#)]
#[case::address_outside("ipAddrsNoIpam", r#"["192.168.7.7"]"#)]
#[case::floating("floatingIPs", r#"["10.244.1.10"]"#)]
fn pins_that_do_not_outlive_the_old_pool(#[case] annotation: &str, #[case] value: &str) {
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
fn pins_that_may_stay(#[case] annotation: &str, #[case] value: &str) {
    assert_eq!(
        alone(&pinned(annotation, value), CheckName::Pins)[0].verdict,
        Pass
    );
}

#[rstest]
#[case::no_list("default-ipv4-ippool")]
#[case::cut(r#"["default-ipv4-ippool""#)]
#[case::no_texts("[1]")]
fn a_pin_that_is_not_understood(#[case] value: &str) {
    let check = only(&pinned("ipv4pools", value), CheckName::Pins);
    assert_eq!(check.verdict, Unknown);
    assert!(check.found.starts_with(value), "{}", check.found);
}

#[test]
fn a_namespace_pins_all_of_its_pods() {
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
fn pools_in_the_configuration_of_a_host() {
    let pools = |names: &[&str]| Found::Present(names.iter().map(|name| (*name).to_owned()).collect());
    let check = only(
        &with_pools(|conflist| conflist.ipv4_pools = pools(&["10.244.0.0/16"])),
        CheckName::Pins,
    );
    assert_eq!((check.verdict, check.found.as_str()), (Fail, "10.244.0.0/16"));
    assert!(check.object.starts_with("Node b: "), "{}", check.object);
    // Of the other family it may say what it likes.
    let other = with_pools(|conflist| conflist.ipv6_pools = pools(&["fd00::/48"]));
    assert_eq!(alone(&other, CheckName::Pins)[0].verdict, Pass);
}

/// The plugin was understood, and its pools were not: no other check says so.
#[test]
fn pools_of_a_host_that_are_not_understood() {
    let problem = "ipam.ipv4_pools: found a string, needed a list of strings";
    let checks = with_pools(|conflist| conflist.ipv4_pools = Found::Malformed(problem.to_owned()));
    let check = only(&checks, CheckName::Pins);
    assert_eq!(check.verdict, Unknown);
    assert!(check.found.ends_with(problem), "{}", check.found);
}
