use rstest::rstest;

use super::super::fixture::{self, alone, judge, only};
use super::*;
use crate::checks::CheckPolicy;
use crate::detect::detect;
use crate::mentions::Needs;
use engine::check::Verdict::{self, Fail, Pass, Unknown, Warn};

#[test]
fn who_has_to_know_both_ranges_first() {
    let checks = judge(|facts| fixture::say(facts, &["10.244.0.0/16"], Needs::Both));
    let check = only(&checks, CheckName::Configuration);
    assert_eq!(
        check.line(),
        "Configuration: ConfigMap kube-system/place: range: found 10.244.0.0/16, needed 10.244.0.0/16 and 10.200.0.0/16, or one range \
         that holds both. Fix: write 10.244.0.0/16 and 10.200.0.0/16, or one range that holds both; do it now, or when the migration \
         waits for it (stage Widen): before any pod moves"
    );
    assert_eq!(check.verdict, Warn);
}

#[test]
fn who_has_to_say_the_new_range_last() {
    let checks = judge(|facts| fixture::say(facts, &["10.244.0.0/16"], Needs::New));
    let check = only(&checks, CheckName::Configuration);
    assert_eq!(check.verdict, Warn);
    assert_eq!(
        (check.needed.as_str(), check.fix.as_str()),
        (
            "10.200.0.0/16",
            "write 10.200.0.0/16; do it when the migration waits for it (stage FollowUp): not before every pod has moved"
        )
    );
}

#[test]
fn a_tenants_object_is_named_and_not_waited_for() {
    let checks = judge(|facts| fixture::let_a_tenant_say(facts, &["10.244.0.0/16"]));
    let check = only(&checks, CheckName::Configuration);
    assert_eq!(
        check.line(),
        "Configuration: NetworkPolicy shop/narrow: found 10.244.0.0/16, needed 10.244.0.0/16 and 10.200.0.0/16, or one range that holds \
         both. Fix: write 10.244.0.0/16 and 10.200.0.0/16, or one range that holds both; do it now, with its owner: nothing waits for \
         that, and until then what it says leaves out pods that have an address of 10.200.0.0/16"
    );
    assert_eq!(check.verdict, Warn);
    // However many a tenant has, the cluster's are told first.
    let checks = judge(|facts| {
        for _ in 0..1000 {
            fixture::let_a_tenant_say(facts, &["10.244.0.0/16"]);
        }
        fixture::say(facts, &["10.244.0.0/16"], Needs::Both);
    });
    let first = &alone(&checks, CheckName::Configuration)[0];
    assert!(first.object.contains("kube-system/place"), "{first:?}");
}

#[test]
fn who_has_to_do_both_is_told_both() {
    let checks = judge(|facts| fixture::say(facts, &["10.244.0.0/16"], Needs::BothThenNew));
    let found = alone(&checks, CheckName::Configuration);
    let stages: Vec<bool> = found
        .iter()
        .map(|check| check.fix.contains("stage Widen"))
        .collect();
    assert_eq!(stages, [true, false]);
}

#[test]
fn who_says_neither_is_left_alone() {
    let checks = judge(|facts| fixture::say(facts, &["192.168.0.0/16"], Needs::BothThenNew));
    let found = alone(&checks, CheckName::Configuration);
    assert_eq!(
        (found[0].verdict, found[0].found.as_str()),
        (Pass, "none has to be changed from 10.244.0.0/16")
    );
}

fn manager(ranges: Option<&[&str]>, allocates: bool) -> ControllerManager {
    ControllerManager {
        pod: "kube-system/kube-controller-manager-a".to_owned(),
        ranges: ranges.map(|ranges| ranges.iter().map(|text| text.parse().unwrap()).collect()),
        allocates,
    }
}

/// Every Node keeps its podCIDR: 10.244.1.0/24 to 10.244.3.0/24.
#[rstest]
#[case::as_it_was(manager(Some(&["10.244.0.0/16"]), true), Pass)]
#[case::around_both(manager(Some(&["10.0.0.0/8"]), true), Pass)]
#[case::changed_too_soon(manager(Some(&["10.200.0.0/16"]), true), Fail)]
#[case::holds_one_node_only(manager(Some(&["10.244.2.0/23"]), true), Fail)]
#[case::allocates_nothing(manager(Some(&["10.200.0.0/16"]), false), Pass)]
#[case::a_clouds_allocator(manager(Some(&[]), true), Pass)]
#[case::not_understood(manager(None, true), Unknown)]
fn a_controller_manager_that_ends_over_a_podcidr(
    #[case] manager: ControllerManager,
    #[case] expected: Verdict,
) {
    let checks = judge(|facts| facts.controller_managers = vec![manager]);
    let found = alone(&checks, CheckName::ControllerManager);
    assert_eq!((found.len(), found[0].verdict), (1, expected), "{found:?}");
    if expected != Pass {
        assert!(
            found[0]
                .object
                .starts_with("Pod kube-system/kube-controller-manager-a"),
            "{found:?}"
        );
    }
}

#[test]
fn the_nodes_are_named() {
    let checks = judge(|facts| facts.controller_managers = vec![manager(Some(&["10.244.2.0/23"]), true)]);
    assert_eq!(
        only(&checks, CheckName::ControllerManager).found,
        "--cluster-cidr=10.244.2.0/23 with --allocate-node-cidrs, and podCIDRs outside of it: a 10.244.1.0/24"
    );
}

/// Where pods have two families, each podCIDR needs a range of its own: without one a controller manager ends as well.
#[rstest]
#[case::both(&["10.244.0.0/16", "fd00:10:244::/56"], Pass)]
#[case::the_other_one_changed(&["10.244.0.0/16", "fd00:10:200::/56"], Fail)]
#[case::the_other_one_gone(&["10.244.0.0/16"], Fail)]
fn of_two_families(#[case] ranges: &[&str], #[case] expected: Verdict) {
    for options in [fixture::options(), fixture::ipv6_options()] {
        let mut facts = fixture::dual_stack();
        facts.controller_managers = vec![manager(Some(ranges), true)];
        let settings = detect(&options, &facts).unwrap();
        let checks = super::super::check(&settings, &facts, CheckPolicy::default());
        let found = alone(&checks, CheckName::ControllerManager);
        assert_eq!(found[0].verdict, expected, "{options:?}: {found:?}");
    }
}

/// k3s, RKE2 and managed clusters: nobody can look, and the podCIDRs say what would happen.
#[test]
fn no_controller_manager_is_seen() {
    let checks = judge(|facts| facts.controller_managers.clear());
    let check = only(&checks, CheckName::ControllerManager);
    assert_eq!(check.verdict, Warn);
    assert!(
        check.fix.contains("a 10.244.1.0/24, b 10.244.2.0/24"),
        "{}",
        check.fix
    );
    for podcidrs in [
        Vec::new(),
        vec!["10.200.1.0/24".to_owned(), "fd00::/64".to_owned()],
    ] {
        let checks = judge(|facts| {
            facts.controller_managers.clear();
            for node in facts.nodes.values_mut() {
                node.pod_cidrs.clone_from(&podcidrs);
            }
        });
        let found = alone(&checks, CheckName::ControllerManager);
        assert_eq!(
            (found[0].verdict, found[0].found.as_str()),
            (
                Pass,
                "not seen as a pod; no Node has a podCIDR outside 10.200.0.0/16"
            )
        );
    }
}
