use std::collections::BTreeSet;

use super::fixture::{self, judge, only};
use super::*;
use crate::detect::detect;
use engine::check::worst;
use engine::cluster::Malformed;

#[test]
fn a_good_cluster_passes_every_check_once() {
    let checks = judge(|_| {});
    assert_eq!(worst(&checks), Verdict::Pass, "{checks:#?}");
    let mut found: Vec<&str> = checks.iter().map(|check| check.name.as_str()).collect();
    found.sort_unstable();
    assert_eq!(found, every_name());
}

fn every_name() -> Vec<&'static str> {
    CheckName::ALL.iter().map(|name| name.as_str()).collect()
}

#[test]
fn check_names_are_unique_and_sorted() {
    let names: BTreeSet<&str> = CheckName::ALL.iter().map(|name| name.as_str()).collect();
    assert_eq!(names.len(), CheckName::ALL.len());
    let sorted: Vec<&str> = names.into_iter().collect();
    assert_eq!(sorted, every_name());
}

#[test]
fn both_families_of_a_dual_stack_cluster_pass_every_check() {
    let facts = fixture::dual_stack();
    for options in [fixture::options(), fixture::ipv6_options()] {
        let settings = detect(&options, &facts).unwrap();
        let checks = check(&settings, &facts, CheckPolicy::default());
        assert_eq!(worst(&checks), Verdict::Pass, "{options:?}: {checks:#?}");
        let room = checks
            .iter()
            .find(|check| check.name == "InsufficientAddresses")
            .unwrap();
        let expected = if options.from.addr().is_ipv4() {
            "needs 3 of 1024 blocks"
        } else {
            "needs 3 of 2^64 or more blocks"
        };
        assert_eq!(room.found, expected);
    }
}

#[test]
fn a_cluster_without_facts_is_refused() {
    let settings = fixture::settings(&fixture::cluster());
    let checks = check(&settings, &ClusterFacts::default(), CheckPolicy::default());
    for (name, expected) in [
        ("AgentMissing", Verdict::Unknown),
        ("Permissions", Verdict::Unknown),
        ("Ipam", Verdict::Fail),
        ("CalicoNodes", Verdict::Fail),
        ("OldPool", Verdict::Fail),
        ("SchedulableNodes", Verdict::Fail),
        ("Ranges", Verdict::Warn),
    ] {
        let of_name: Vec<Check> = checks
            .iter()
            .filter(|check| check.name == name)
            .cloned()
            .collect();
        assert_eq!(worst(&of_name), expected, "{name}");
    }
}

#[test]
fn every_check_that_does_not_pass_has_object_found_needed_and_fix() {
    let mut broken = fixture::cluster();
    let settings = fixture::settings(&broken);
    broken.hosts.remove("a");
    broken.permissions.clear();
    broken.calico_resources.clear();
    broken.controller_managers.clear();
    broken.services.clear();
    broken.webhooks[0].backends.clear();
    broken.workloads.clear();
    for node in broken.nodes.values_mut() {
        node.unschedulable = true;
    }
    for pod in broken.pods.iter_mut() {
        pod.controller = None;
        pod.empty_dirs = vec!["cache".to_owned()];
    }
    for mention in &mut broken.mentions {
        mention.ranges = vec!["10.244.0.0/16".parse().unwrap()];
    }
    let mut told = BTreeSet::new();
    for facts in [ClusterFacts::default(), broken] {
        for check in check(&settings, &facts, CheckPolicy::default()) {
            assert!(
                !check.object.trim().is_empty() && !check.found.is_empty(),
                "{check:?}"
            );
            if check.verdict != Verdict::Pass {
                assert!(!check.needed.is_empty() && !check.fix.is_empty(), "{check:?}");
                told.insert(check.name);
            }
        }
    }
    assert!(told.len() > 10, "{told:?}");
}

#[test]
fn an_unparsable_object_refuses() {
    let checks = judge(|facts| {
        facts.malformed.push(Malformed {
            object: "IPAMBlock 10-244-9-0-26".to_owned(),
            problem: "spec.cidr: found 1, needed a range".to_owned(),
        });
    });
    let check = only(&checks, CheckName::MalformedObjects);
    assert_eq!(check.verdict, Verdict::Unknown);
    assert_eq!(check.object, "object IPAMBlock 10-244-9-0-26");
    assert_eq!(check.found, "spec.cidr: found 1, needed a range");
}

#[test]
fn every_missing_permission_refuses() {
    for permission in PERMISSIONS {
        let key = permission.key();
        let checks = judge(|facts| {
            facts.permissions.insert(key.clone(), false);
        });
        let check = only(&checks, CheckName::Permissions);
        assert_eq!(
            (check.verdict, check.object),
            (Verdict::Fail, format!("permission {key}"))
        );
        let checks = judge(|facts| {
            facts.permissions.remove(&key);
        });
        assert_eq!(only(&checks, CheckName::Permissions).verdict, Verdict::Unknown);
    }
}
