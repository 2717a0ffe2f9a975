use rstest::rstest;

use super::super::fixture::{self, alone, judge, only};
use super::*;
use crate::checks::CheckPolicy;
use crate::detect::detect;
use crate::hardcoded_range::Needs;
use engine::check::Verdict::{self, Fail, Pass, Unknown, Warn};

#[test]
fn an_object_that_needs_both_ranges_is_reported_for_stage_widen() {
    let checks = judge(|facts| fixture::say(facts, &["10.244.0.0/16"], Needs::Both));
    let check = only(&checks, CheckName::Configuration);
    assert_eq!(
        check.line(),
        "Configuration: ConfigMap kube-system/place: range: found 10.244.0.0/16, needed 10.244.0.0/16 and 10.200.0.0/16, or one \
         range that contains both. Fix: write 10.244.0.0/16 and 10.200.0.0/16, or one range that contains both (now, or when \
         the migration waits for it in stage Widen, before any pod moves)"
    );
    assert_eq!(check.verdict, Warn);
}

#[test]
fn an_object_that_needs_the_new_range_is_reported_for_stage_follow_up() {
    let checks = judge(|facts| fixture::say(facts, &["10.244.0.0/16"], Needs::New));
    let check = only(&checks, CheckName::Configuration);
    assert_eq!(check.verdict, Warn);
    assert_eq!(
        (check.needed.as_str(), check.fix.as_str()),
        (
            "10.200.0.0/16",
            "write 10.200.0.0/16 (when the migration waits for it in stage FollowUp, not before every pod has moved)"
        )
    );
}

#[test]
fn an_object_of_a_tenant_is_a_warning_after_those_of_the_cluster() {
    let checks = judge(|facts| fixture::let_a_tenant_say(facts, &["10.244.0.0/16"]));
    let check = only(&checks, CheckName::Configuration);
    assert_eq!(
        check.line(),
        "Configuration: NetworkPolicy shop/narrow: found 10.244.0.0/16, needed 10.244.0.0/16 and 10.200.0.0/16, or one range \
         that contains both. Fix: write 10.244.0.0/16 and 10.200.0.0/16, or one range that contains both (now, with its owner); \
         the migration does not wait for this change, and until then the object does not cover pods with an address of \
         10.200.0.0/16"
    );
    assert_eq!(check.verdict, Warn);
    // Objects of the cluster come first, however many a tenant has.
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
fn an_object_that_changes_twice_is_reported_for_both_stages() {
    let checks = judge(|facts| fixture::say(facts, &["10.244.0.0/16"], Needs::BothThenNew));
    let found = alone(&checks, CheckName::Configuration);
    let stages: Vec<bool> = found
        .iter()
        .map(|check| check.fix.contains("stage Widen"))
        .collect();
    assert_eq!(stages, [true, false]);
}

#[test]
fn an_object_with_neither_range_passes() {
    let checks = judge(|facts| fixture::say(facts, &["192.168.0.0/16"], Needs::BothThenNew));
    let found = alone(&checks, CheckName::Configuration);
    assert_eq!(
        (found[0].verdict, found[0].found.as_str()),
        (Pass, "no object needs a change from 10.244.0.0/16")
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
#[case::unchanged(manager(Some(&["10.244.0.0/16"]), true), Pass)]
#[case::around_both(manager(Some(&["10.0.0.0/8"]), true), Pass)]
#[case::changed_before_podcidrs(manager(Some(&["10.200.0.0/16"]), true), Fail)]
#[case::contains_one_podcidr_only(manager(Some(&["10.244.2.0/23"]), true), Fail)]
#[case::allocates_nothing(manager(Some(&["10.200.0.0/16"]), false), Pass)]
#[case::cloud_allocator(manager(Some(&[]), true), Pass)]
#[case::unparsable(manager(None, true), Unknown)]
fn a_controller_manager_with_a_podcidr_outside_its_range_fails(
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
fn nodes_outside_the_cluster_cidr_are_named() {
    let checks = judge(|facts| facts.controller_managers = vec![manager(Some(&["10.244.2.0/23"]), true)]);
    assert_eq!(
        only(&checks, CheckName::ControllerManager).found,
        "--cluster-cidr=10.244.2.0/23 with --allocate-node-cidrs, and podCIDRs outside it: a 10.244.1.0/24"
    );
}

/// With two address families each podCIDR needs a range of its family: without one, a controller manager exits as well.
#[rstest]
#[case::both(&["10.244.0.0/16", "fd00:10:244::/56"], Pass)]
#[case::ipv6_changed(&["10.244.0.0/16", "fd00:10:200::/56"], Fail)]
#[case::ipv6_missing(&["10.244.0.0/16"], Fail)]
fn a_controller_manager_needs_a_range_of_each_family(#[case] ranges: &[&str], #[case] expected: Verdict) {
    for options in [fixture::options(), fixture::ipv6_options()] {
        let mut facts = fixture::dual_stack();
        facts.controller_managers = vec![manager(Some(ranges), true)];
        let settings = detect(&options, &facts).unwrap();
        let checks = super::super::check(&settings, &facts, CheckPolicy::default());
        let found = alone(&checks, CheckName::ControllerManager);
        assert_eq!(found[0].verdict, expected, "{options:?}: {found:?}");
    }
}

/// k3s, RKE2 and managed clusters: the command line is not visible, and the podCIDRs show what would happen.
#[test]
fn without_a_controller_manager_pod_podcidrs_decide() {
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
                "no pod of it in the API; no Node has a podCIDR outside 10.200.0.0/16"
            )
        );
    }
}

/// kops#12607: a kube-proxy that nothing shows was taken for one that needs no range.
#[test]
fn a_kube_proxy_that_is_not_found_is_unknown_until_the_user_has_checked() {
    let judge = |checked| {
        let mut facts = fixture::cluster();
        facts.kube_proxy_is_known = false;
        let policy = CheckPolicy {
            local_ranges_checked: checked,
            ..CheckPolicy::default()
        };
        let checks = check(&fixture::settings(&facts), &facts, policy);
        let of_proxy = checks.into_iter().find(|check| check.object == "kube-proxy");
        of_proxy.map(|check| (check.verdict, check.fix.contains("localRangesChecked")))
    };
    assert_eq!(judge(false), Some((Verdict::Unknown, true)));
    assert_eq!(judge(true), None);
}
