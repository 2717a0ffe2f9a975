use std::collections::BTreeSet;

use super::fixture::{self, verdicts};
use super::*;
use engine::check::worst;

#[test]
fn a_good_cluster_passes_every_check_once() {
    let checks = check(&fixture::settings(), &fixture::cluster(), &fixture::policy());
    assert_eq!(worst(&checks), Verdict::Pass, "{checks:#?}");
    let mut found: Vec<&str> = verdicts(&checks).iter().map(|(name, _)| *name).collect();
    found.sort_unstable();
    let mut every: Vec<&str> = CheckName::ALL.iter().map(|name| name.as_str()).collect();
    every.sort_unstable();
    assert_eq!(found, every);
}

#[test]
fn names_are_told_apart() {
    let names: BTreeSet<&str> = CheckName::ALL.iter().map(|name| name.as_str()).collect();
    assert_eq!(names.len(), CheckName::ALL.len());
}

#[test]
fn a_cluster_that_was_not_looked_at_is_refused() {
    let checks = check(&fixture::settings(), &ClusterFacts::default(), &fixture::policy());
    assert_eq!(worst(&checks), Verdict::Fail);
    let not_looked_at = ["AgentMissing", "NodeLabels", "Permissions"];
    for name in not_looked_at {
        let of_name = checks.iter().filter(|check| check.name == name);
        assert_eq!(
            worst(&of_name.cloned().collect::<Vec<_>>()),
            Verdict::Unknown,
            "{name}"
        );
    }
}

/// Whatever does not pass says what was found, what is needed and what to do.
#[test]
fn whatever_does_not_pass_says_all_of_it() {
    let mut spoilt = fixture::cluster();
    for node in spoilt.nodes.values_mut() {
        node.annotations.clear();
        node.pod_cidrs.clear();
        node.operating_system.clear();
    }
    for host in spoilt.hosts.values_mut() {
        host.vxlan_devices.clear();
        host.cni.files.clear();
        host.bridge_nf_call_iptables = None;
    }
    spoilt.daemon_sets.clear();
    spoilt.permissions.clear();
    spoilt.calico_resources.clear();
    for facts in [ClusterFacts::default(), spoilt] {
        for check in check(&fixture::settings(), &facts, &fixture::policy()) {
            assert!(
                !check.object.trim().is_empty() && !check.found.is_empty(),
                "{check:?}"
            );
            if check.verdict != Verdict::Pass {
                assert!(!check.needed.is_empty() && !check.fix.is_empty(), "{check:?}");
            }
        }
    }
}

/// In place nobody leaves a node: what a drain needs is not asked for.
#[test]
fn in_place_the_checks_of_a_drain_are_not_made() {
    let policy = CheckPolicy {
        strategy: Strategy::InPlace,
        ..fixture::policy()
    };
    let checks = check(&fixture::settings(), &fixture::cluster(), &policy);
    assert_eq!(worst(&checks), Verdict::Pass, "{checks:#?}");
    let found: BTreeSet<&str> = verdicts(&checks).iter().map(|(name, _)| *name).collect();
    let every: BTreeSet<&str> = CheckName::ALL.iter().map(|name| name.as_str()).collect();
    let missing: Vec<&&str> = every.difference(&found).collect();
    assert_eq!(
        missing,
        [
            &"BarePods",
            &"Capacity",
            &"DisruptionBudgets",
            &"EmptyDir",
            &"GracePeriods",
            &"SchedulableNodes",
            &"StaticPods",
            &"Webhooks"
        ]
    );
}
