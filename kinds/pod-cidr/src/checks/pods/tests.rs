use rstest::rstest;

use super::super::fixture::{self, allocation, alone, budget, judge, judge_with, only, pod};
use super::*;
use crate::ipam::Allocation;
use engine::check::Verdict::{self, Fail, Pass, Unknown, Warn};
use engine::drain::{Budget, Permissions};
use engine::evict::OnBlocked;

fn pod_mut<'facts>(facts: &'facts mut ClusterFacts, name: &str) -> &'facts mut Pod {
    facts.pods.iter_mut().find(|pod| pod.name == name).unwrap()
}

#[rstest]
#[case::never_allows(budget("web", 0, 2, 2, 2), Fail)]
#[case::now_unhealthy(budget("web", 0, 1, 1, 2), Fail)]
#[case::not_counted(budget("web", 0, 0, 0, 0), Unknown)]
#[case::allows(budget("web", 1, 2, 1, 2), Pass)]
#[case::other_namespace(Budget { namespace: "bank".to_owned(), ..budget("web", 0, 2, 2, 2) }, Pass)]
fn a_budget_that_allows_no_disruption_is_reported(#[case] budget: Budget, #[case] expected: Verdict) {
    let found = alone(
        &judge(|facts| facts.budgets = vec![budget]),
        CheckName::DisruptionBudgets,
    );
    assert_eq!((found.len(), found[0].verdict), (1, expected), "{found:?}");
    if expected != Pass {
        assert_eq!(found[0].object, "PodDisruptionBudget shop/web");
        assert!(
            found[0].found.contains("selects shop/web-1, shop/web-2"),
            "{found:?}"
        );
    }
}

#[test]
fn a_pod_with_two_budgets_fails() {
    let checks = judge(|facts| facts.budgets.push(budget("all", 1, 2, 1, 2)));
    let check = only(&checks, CheckName::DisruptionBudgets);
    assert_eq!(
        (check.verdict, check.object.as_str(), check.found.as_str()),
        (
            Fail,
            "Pods shop/web-1, shop/web-2",
            "selected by two or more PodDisruptionBudgets: web, all"
        )
    );
}

#[rstest]
#[case::refused(false, Fail)]
#[case::allowed(true, Warn)]
fn a_pod_with_an_empty_dir_is_reported(#[case] delete_empty_dir_data: bool, #[case] expected: Verdict) {
    let policy = CheckPolicy {
        permissions: Permissions {
            delete_empty_dir_data,
            force: false,
        },
        ..CheckPolicy::default()
    };
    let checks = judge_with(
        |facts| pod_mut(facts, "web-1").empty_dirs = vec!["cache".to_owned()],
        policy,
    );
    let check = only(&checks, CheckName::EmptyDir);
    assert_eq!(
        (check.verdict, check.object.as_str(), check.found.as_str()),
        (expected, "Pod shop/web-1", "emptyDir volumes cache")
    );
}

/// With `onBlocked` `Wait` or `Skip`, a blocked pod does not refuse the whole migration.
#[rstest]
#[case::pause(OnBlocked::Pause, Fail)]
#[case::wait(OnBlocked::Wait, Warn)]
#[case::skip(OnBlocked::Skip, Warn)]
fn a_blocked_pod_refuses_only_with_on_blocked_pause(
    #[case] on_blocked: OnBlocked,
    #[case] expected: Verdict,
) {
    let policy = CheckPolicy {
        on_blocked,
        ..CheckPolicy::default()
    };
    let checks = judge_with(
        |facts| {
            facts.budgets = vec![budget("web", 0, 2, 2, 2)];
            pod_mut(facts, "web-1").empty_dirs = vec!["cache".to_owned()];
        },
        policy,
    );
    for name in [CheckName::DisruptionBudgets, CheckName::EmptyDir] {
        let check = checks.iter().find(|check| check.name == name.as_str()).unwrap();
        assert_eq!(check.verdict, expected, "{check:?}");
        assert_eq!(
            check.fix.contains("stage Verify waits for this one"),
            expected == Warn,
            "{check:?}"
        );
    }
}

/// Pods that are not evicted lose no data, and need no disruption budget.
#[rstest]
#[case::new_address(|pod: &mut Pod| pod.addresses = vec!["10.200.0.7".parse().unwrap()])]
#[case::host_network(|pod: &mut Pod| pod.host_network = true)]
#[case::finished(|pod: &mut Pod| pod.finished = true)]
#[case::terminates(|pod: &mut Pod| pod.deleted_at = Some("2026-01-01T00:00:00Z".parse().unwrap()))]
#[case::no_address_yet(|pod: &mut Pod| pod.addresses.clear())]
#[case::of_a_job(|pod: &mut Pod| pod.controller = Some(("Job".to_owned(), "report".to_owned())))]
#[case::bare(|pod: &mut Pod| pod.controller = None)]
fn pods_that_are_not_evicted_pass(#[case] change: fn(&mut Pod)) {
    let checks = judge(|facts| {
        let web = pod_mut(facts, "web-1");
        web.empty_dirs = vec!["cache".to_owned()];
        web.labels = [("app", "alone"), ("pod-template-hash", "5d8f")].into();
        change(web);
        let mut never = budget("alone", 0, 1, 1, 1);
        never.selector.as_mut().unwrap().match_labels = [("app".to_owned(), "alone".to_owned())].into();
        facts.budgets.push(never);
    });
    let of = |name: CheckName| -> Vec<Verdict> {
        let of_name = checks.iter().filter(|check| check.name == name.as_str());
        of_name.map(|check| check.verdict).collect()
    };
    assert_eq!(of(CheckName::EmptyDir), [Pass], "{checks:#?}");
    assert_eq!(of(CheckName::DisruptionBudgets), [Pass], "{checks:#?}");
}

#[test]
fn a_bare_pod_that_may_be_deleted_is_checked_for_empty_dirs() {
    let policy = CheckPolicy {
        delete_bare_pods: true,
        ..CheckPolicy::default()
    };
    let checks = judge_with(
        |facts| {
            facts.pods.push(Pod {
                empty_dirs: vec!["cache".to_owned()],
                ..pod("lonely", "", "a", "10.244.1.40")
            });
        },
        policy,
    );
    let verdicts: Vec<(&str, Verdict)> = checks
        .iter()
        .filter(|check| check.verdict != Pass)
        .map(|check| (check.name.as_str(), check.verdict))
        .collect();
    assert_eq!(verdicts, [("EmptyDir", Fail), ("BarePods", Warn)]);
}

#[rstest]
#[case::kept(false, "delete it when the migration waits for it")]
#[case::deleted(true, "allows its eviction, which comes last")]
fn a_pod_without_a_controller_is_a_warning(#[case] delete_bare_pods: bool, #[case] fix: &str) {
    let policy = CheckPolicy {
        delete_bare_pods,
        ..CheckPolicy::default()
    };
    let checks = judge_with(
        |facts| facts.pods.push(pod("lonely", "", "a", "10.244.1.40")),
        policy,
    );
    let check = only(&checks, CheckName::BarePods);
    assert_eq!((check.verdict, check.object.as_str()), (Warn, "Pod shop/lonely"));
    assert!(check.fix.contains(fix), "{}", check.fix);
}

fn static_pod(address: &str) -> Pod {
    Pod {
        mirror: true,
        controller: Some(("Node".to_owned(), "a".to_owned())),
        ..pod("static-a", "", "a", address)
    }
}

#[test]
fn a_static_pod_with_an_old_address_fails() {
    let checks = judge(|facts| facts.pods.push(static_pod("10.244.1.40")));
    let check = only(&checks, CheckName::StaticPods);
    assert_eq!(
        (check.verdict, check.object.as_str(), check.found.as_str()),
        (
            Fail,
            "Pod shop/static-a",
            "a static pod on node a with 10.244.1.40"
        )
    );
}

#[rstest]
#[case::host_network(Pod { host_network: true, ..static_pod("10.244.1.40") })]
#[case::another_range(static_pod("10.200.1.40"))]
#[case::finished(Pod { finished: true, ..static_pod("10.244.1.40") })]
#[case::no_static_pod(Pod { mirror: false, ..pod("db-2", "StatefulSet db", "c", "10.244.3.40") })]
fn other_static_pods_pass(#[case] pod: Pod) {
    let found = alone(&judge(|facts| facts.pods.push(pod)), CheckName::StaticPods);
    assert_eq!(found[0].verdict, Pass);
}

fn with_allocation(allocation: Allocation) -> Vec<Check> {
    judge(|facts| facts.blocks[0].allocations.push(allocation))
}

#[rstest]
#[case::leak(allocation("10.244.1.50", &[("namespace", "shop"), ("pod", "web-0")]), "ipam release --ip=10.244.1.50")]
#[case::finished(allocation("10.244.1.15", &[("namespace", "shop"), ("pod", "report-1")]), "kubectl delete pod -n shop report-1")]
#[case::load_balancer(
    allocation("10.244.1.51", &[("service", "shop/web"), ("type", "LoadBalancer")]), "Service shop/web: its load balancer has 10.244.1.51")]
#[case::unknown(allocation("10.244.1.52", &[]), "10.244.1.52 (handle k8s-pod-network.10.244.1.52) has an unknown holder")]
fn a_holder_that_is_no_running_pod_is_a_warning(#[case] allocation: Allocation, #[case] words: &str) {
    let check = only(&with_allocation(allocation), CheckName::AddressesStillAllocated);
    assert_eq!(
        (check.verdict, check.object.as_str()),
        (Warn, "range 10.244.0.0/16")
    );
    assert!(check.found.contains(words), "{}", check.found);
}

/// 11 pods and 3 tunnels.
#[test]
fn addresses_of_running_pods_and_tunnels_pass() {
    let found = alone(&judge(|_| {}), CheckName::AddressesStillAllocated);
    assert_eq!(
        (found[0].verdict, found[0].object.as_str()),
        (Pass, "14 allocated addresses of 10.244.0.0/16 in Calico's IPAM")
    );
}

#[test]
fn blocks_of_another_range_are_ignored() {
    let checks = judge(|facts| {
        facts.blocks[0].range = "10.99.0.0/26".parse().unwrap();
        facts.blocks[0].allocations = vec![allocation("10.99.0.7", &[])];
    });
    let found = alone(&checks, CheckName::AddressesStillAllocated);
    assert_eq!(found[0].verdict, Pass);
    assert!(
        found[0].object.starts_with("9 allocated addresses"),
        "{}",
        found[0].object
    );
}

#[test]
fn pods_of_another_pool_do_not_move() {
    let facts = {
        let mut facts = fixture::cluster();
        let other = fixture::pool("other", "172.16.0.0/16");
        facts.pools.insert(other.name.clone(), other);
        pod_mut(&mut facts, "web-1").addresses = vec!["172.16.0.7".parse().unwrap()];
        facts
    };
    let settings = fixture::settings(&facts);
    let workloads = engine::residents::workloads_of(&facts.pods);
    let needed = facts.needed();
    let residents = engine::residents::residents(&facts.pods, &workloads, &needed, None);
    let found = leaving(&settings, &facts, &residents);
    let leaving: Vec<&str> = found.iter().map(|resident| resident.pod.name.as_str()).collect();
    assert_eq!(
        leaving,
        [
            "web-2", "db-0", "db-1", "log-a", "log-b", "log-c", "dns-1", "dns-2", "guard-1", "guard-2"
        ]
    );
}
