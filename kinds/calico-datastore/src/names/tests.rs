use proptest::prelude::*;
use rstest::rstest;

use super::*;
use crate::network::cidr;
use crate::validate::text::is_subdomain;

#[rstest]
#[case("abc", "abc")]
#[case("ABC", "abc")]
#[case("abc---def", "abc---def")]
#[case("abc.-.def", "abc.def")]
#[case("a..b", "a.b")]
#[case("a.-b", "a.b")]
#[case("a/b", "a.b")]
#[case("a_b", "a-b")]
#[case("a___b", "a-b")]
#[case("a_-_b", "a---b")]
#[case("a_._b", "a.b")]
#[case("-.a.-", "a")]
#[case("___", "")]
#[case("Node1.Example", "node1.example")]
#[case("\u{212a}\u{130}x", "kix")]
#[case("aüb", "a-b")]
fn a_name_of_a_node_is_normalized(#[case] original: &str, #[case] wanted: &str) {
    assert_eq!(node(original), wanted);
}

// printf %s NAME | sha1sum
#[rstest]
#[case("Team.A/web", "team-a-web-8f80a781")]
#[case("allow-tcp-6379", "allow-tcp-6379")]
#[case("a.b", "a-b-69f6642c")]
fn a_name_of_a_policy_has_no_dots(#[case] original: &str, #[case] wanted: &str) {
    assert_eq!(name_without_dots(original), wanted);
}

#[rstest]
#[case("Mesos", "mesos-e3d4373f")]
#[case("My_Task", "my-task-70be8f60")]
#[case("myhost2.Eth0/1", "myhost2.eth0.1-5f5bd1df")]
#[case("a.b", "a.b")]
#[case("", "")]
fn a_changed_name_gets_a_hash(#[case] original: &str, #[case] wanted: &str) {
    assert_eq!(name(original), wanted);
}

#[test]
fn a_profile_of_a_namespace_gets_the_prefix_of_v3() {
    assert_eq!(profile("k8s_ns.default"), "kns.default");
    assert_eq!(profile("prof1"), "prof1");
    assert_eq!(profile("k8s_ns.A"), name("kns.A"));
}

#[test]
fn addresses_and_networks_become_parts_of_names() {
    assert_eq!(address("192.168.9.9".parse().ok()), "192-168-9-9");
    assert_eq!(
        address("aa:bb::ff".parse().ok()),
        "00aa-00bb-0000-0000-0000-0000-0000-00ff"
    );
    assert_eq!(address(None), "");
    let named = |text: &str| network(&cidr(text).unwrap().1);
    assert_eq!(named("10.1.0.0/16"), "10-1-0-0-16");
    assert_eq!(named("fd80:24e2:f998:72d6::/64"), "fd80-24e2-f998-72d6---64");
}

#[test]
fn the_name_of_a_workload_endpoint_has_all_parts() {
    let segments = [
        ("node", "rack1-host1"),
        ("orchestrator", "k8s"),
        ("pod", "web-1"),
        ("endpoint", "eth0"),
    ];
    assert_eq!(
        workload_endpoint(&segments).unwrap(),
        "rack1--host1-k8s-web--1-eth0"
    );
}

#[rstest]
#[case("")]
#[case("-a")]
#[case("a-")]
fn an_ambiguous_part_is_refused(#[case] pod: &str) {
    let cause = workload_endpoint(&[("node", "a"), ("pod", pod)]).unwrap_err();
    let report = cause.to_string();
    assert!(
        report.contains("pod") && report.contains(&format!("{pod:?}")),
        "{report}"
    );
}

proptest! {
    #[test]
    fn a_normalized_name_does_not_change(original in "\\PC{0,24}") {
        let once = normal(&original);
        prop_assert_eq!(normal(&once), once.clone());
        prop_assert_eq!(name(&once), once);
    }

    #[test]
    fn every_name_is_valid_in_v3(original in "[a-zA-Z0-9./_ -]{1,40}") {
        let original = format!("x{original}");
        for name in [node(&original), name(&original), name_without_dots(&original)] {
            prop_assert!(is_subdomain(&name), "{}", name);
        }
        prop_assert!(!name_without_dots(&original).contains('.'));
    }

    #[test]
    fn two_different_names_stay_different(one in "[aA._/-]{1,6}", other in "[aA._/-]{1,6}") {
        prop_assume!(one != other);
        prop_assert_ne!(name(&one), name(&other));
        prop_assert_ne!(name_without_dots(&one), name_without_dots(&other));
    }

    #[test]
    fn two_different_workload_endpoints_have_different_names(
        one in prop::array::uniform3("[ab]|[ab][ab-]{0,3}[ab]"),
        other in prop::array::uniform3("[ab]|[ab][ab-]{0,3}[ab]"),
    ) {
        prop_assume!(one != other);
        let name = |parts: &[String; 3]| {
            workload_endpoint(&[("a", parts[0].as_str()), ("b", parts[1].as_str()), ("c", parts[2].as_str())])
        };
        prop_assert_ne!(name(&one).unwrap(), name(&other).unwrap());
    }
}
