use std::collections::BTreeSet;

use super::fixture::{self, verdicts};
use super::*;
use engine::check::{Verdict, worst};

#[test]
fn a_healthy_cluster_passes_every_check_once() {
    let checks = check(&fixture::settings(), &fixture::cluster(), &fixture::policy());
    assert_eq!(worst(&checks), Verdict::Pass, "{checks:#?}");
    let mut found: Vec<&str> = verdicts(&checks).iter().map(|(name, _)| *name).collect();
    found.sort_unstable();
    let mut every: Vec<&str> = CheckName::ALL.iter().map(|name| name.as_str()).collect();
    every.sort_unstable();
    assert_eq!(found, every);
}

#[test]
fn names_are_unique() {
    let names: BTreeSet<&str> = CheckName::ALL.iter().map(|name| name.as_str()).collect();
    assert_eq!(names.len(), CheckName::ALL.len());
}

#[test]
fn a_cluster_without_facts_is_refused() {
    let checks = check(&fixture::settings(), &ClusterFacts::default(), &fixture::policy());
    assert_eq!(worst(&checks), Verdict::Fail);
    let unknown = ["AgentMissing", "NodeLabels", "Permissions"];
    for name in unknown {
        let of_name = checks.iter().filter(|check| check.name == name);
        assert_eq!(
            worst(&of_name.cloned().collect::<Vec<_>>()),
            Verdict::Unknown,
            "{name}"
        );
    }
}

/// Each check that does not pass says what was found, what is needed and how to fix it.
#[test]
fn a_check_that_does_not_pass_has_every_text() {
    let mut broken = fixture::cluster();
    for node in broken.nodes.values_mut() {
        node.annotations.clear();
        node.pod_cidrs.clear();
        node.operating_system.clear();
    }
    for host in broken.hosts.values_mut() {
        host.vxlan_devices.clear();
        host.cni.files.clear();
        host.bridge_nf_call_iptables = None;
    }
    broken.daemon_sets.clear();
    broken.permissions.clear();
    broken.calico_resources.clear();
    for facts in [ClusterFacts::default(), broken] {
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

/// In place, no pod is evicted, so the prerequisites of a drain do not apply.
#[test]
fn in_place_skips_the_checks_of_a_drain() {
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
