use rstest::rstest;

use super::super::fixture::{self, verdicts};
use super::*;
use crate::detect::NETWORK_LABEL;
use engine::check::Verdict::{Fail, Pass, Unknown, Warn};
use engine::drain::{Budget, Permissions, Selector};

fn judge(pods: Vec<Pod>, budgets: Vec<Budget>, permissions: Permissions) -> Vec<Check> {
    let facts = ClusterFacts {
        pods: pods.into(),
        budgets,
        ..fixture::cluster()
    };
    check(
        &facts,
        &CheckPolicy {
            permissions,
            ..fixture::policy()
        },
    )
}

fn of(checks: &[Check], name: &str) -> Vec<Check> {
    checks
        .iter()
        .filter(|check| check.name == name)
        .cloned()
        .collect()
}

fn verdict_of(checks: &[Check], name: &str) -> Vec<Verdict> {
    of(checks, name).iter().map(|check| check.verdict).collect()
}

fn budget(name: &str, allowed: i32, healthy: i32, desired: i32, expected: i32) -> Budget {
    Budget {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        selector: Some(Selector {
            match_labels: [("app".to_owned(), "web".to_owned())].into(),
            ..Selector::default()
        }),
        disruptions_allowed: allowed,
        current_healthy: healthy,
        desired_healthy: desired,
        expected_pods: expected,
        always_allows_unhealthy: false,
    }
}

#[test]
fn a_pod_with_a_controller_and_a_budget_passes() {
    let checks = judge(
        vec![fixture::pod("web-1", "a")],
        vec![budget("web", 1, 2, 1, 2)],
        Permissions::default(),
    );
    assert_eq!(
        verdicts(&checks),
        [
            ("DisruptionBudgets", Pass),
            ("BarePods", Pass),
            ("EmptyDir", Pass),
            ("StaticPods", Pass)
        ]
    );
    assert_eq!(
        checks[0].found,
        "1 with pods that have to leave, each allows a disruption"
    );
}

#[rstest]
#[case::never_yields(budget("web", 0, 2, 2, 2), Fail)]
#[case::now_unhealthy(budget("web", 0, 1, 1, 2), Fail)]
#[case::not_counted(budget("web", 0, 0, 0, 0), Unknown)]
#[case::yields(budget("web", 1, 2, 1, 2), Pass)]
#[case::other_namespace(Budget { namespace: "bank".to_owned(), ..budget("web", 0, 2, 2, 2) }, Pass)]
#[case::selects_nothing(Budget { selector: None, ..budget("web", 0, 2, 2, 2) }, Pass)]
fn a_budget_without_disruptions_is_refused(#[case] budget: Budget, #[case] expected: Verdict) {
    let checks = judge(
        vec![fixture::pod("web-1", "a")],
        vec![budget],
        Permissions::default(),
    );
    assert_eq!(verdict_of(&checks, "DisruptionBudgets"), [expected]);
    if expected != Pass {
        let check = &of(&checks, "DisruptionBudgets")[0];
        assert_eq!(check.object, "PodDisruptionBudget shop/web");
        assert!(check.found.contains("shop/web-1"), "{}", check.found);
    }
}

#[test]
fn a_pod_with_two_budgets_fails() {
    let budgets = vec![budget("web", 1, 2, 1, 2), budget("all", 1, 2, 1, 2)];
    let checks = judge(vec![fixture::pod("web-1", "a")], budgets, Permissions::default());
    let found = of(&checks, "DisruptionBudgets");
    assert_eq!(
        (found[0].verdict, found[0].object.as_str()),
        (Fail, "Pod shop/web-1")
    );
    assert_eq!(
        found[0].found,
        "selected by two or more PodDisruptionBudgets: web, all"
    );
}

/// A pod for which the user has chosen to wait, or to skip its node, does not refuse the migration.
#[rstest]
#[case::pause(OnBlocked::Pause, Strategy::Drain, Fail, "")]
#[case::wait(
    OnBlocked::Wait,
    Strategy::Drain,
    Warn,
    "counts as unavailable for maxUnavailable"
)]
#[case::skip(OnBlocked::Skip, Strategy::Drain, Warn, "the node is skipped")]
#[case::in_place(OnBlocked::Skip, Strategy::InPlace, Warn, "stays in phase Mixed")]
fn a_blocked_pod_fails_or_warns_by_on_blocked(
    #[case] on_blocked: OnBlocked,
    #[case] strategy: Strategy,
    #[case] expected: Verdict,
    #[case] says: &str,
) {
    let with = |name: &str, app: &str| Pod {
        labels: [("app", app)].into(),
        ..fixture::pod(name, "a")
    };
    let never = |name: &str, app: &str| {
        let mut budget = budget(name, 0, 2, 2, 2);
        budget.selector.as_mut().unwrap().match_labels = [("app".to_owned(), app.to_owned())].into();
        budget
    };
    let mut uncounted = never("uncounted", "other");
    uncounted.expected_pods = 0;
    let facts = ClusterFacts {
        pods: vec![
            with("web-1", "web"),
            with("other-1", "other"),
            with("two-1", "two"),
            Pod {
                controller: None,
                ..with("lonely", "lonely")
            },
            Pod {
                empty_dirs: vec!["cache".to_owned()],
                ..with("full", "full")
            },
        ]
        .into(),
        budgets: vec![
            never("web", "web"),
            uncounted,
            Budget {
                disruptions_allowed: 1,
                ..never("first", "two")
            },
            Budget {
                disruptions_allowed: 1,
                ..never("second", "two")
            },
        ],
        ..fixture::cluster()
    };
    let checks = check(
        &facts,
        &CheckPolicy {
            strategy,
            on_blocked,
            ..fixture::policy()
        },
    );
    let all: Vec<Check> = checks.iter().flat_map(Check::in_full).cloned().collect();
    let is_uncounted = |check: &Check| check.object.ends_with("uncounted");
    let of_held: Vec<&Check> = all.iter().filter(|check| check.name != "StaticPods").collect();
    assert_eq!(of_held.len(), 5, "{of_held:#?}");
    for check in of_held {
        let expected = if expected == Fail && is_uncounted(check) {
            Unknown
        } else {
            expected
        };
        assert_eq!(check.verdict, expected, "{check:?}");
        assert!(check.fix.contains(says), "{check:?}");
    }
}

#[rstest]
#[case::usual(30, None, Pass)]
#[case::as_long_as_a_drain(900, None, Pass)]
#[case::endless(u32::MAX, None, Warn)]
#[case::overridden(u32::MAX, Some(30), Pass)]
#[case::made_longer(30, Some(901), Warn)]
fn a_grace_period_longer_than_the_drain_timeout_warns(
    #[case] grace_seconds: u32,
    #[case] overridden: Option<u32>,
    #[case] expected: Verdict,
) {
    let facts = ClusterFacts {
        pods: vec![Pod {
            grace_seconds,
            ..fixture::pod("slow", "a")
        }]
        .into(),
        ..fixture::cluster()
    };
    let mut policy = fixture::policy();
    policy.time.grace_period_seconds = overridden;
    let found = grace_periods(&facts, &policy);
    assert_eq!(verdicts(&found), [("GracePeriods", expected)]);
    if expected == Warn {
        assert_eq!(found[0].object, "Pod shop/slow");
        assert!(
            found[0].fix.contains("spec.drain.gracePeriodSeconds"),
            "{found:?}"
        );
    }
}

#[rstest]
#[case::refused(false, Fail)]
#[case::allowed(true, Warn)]
fn a_bare_pod_warns_only_with_force(#[case] force: bool, #[case] expected: Verdict) {
    let pod = Pod {
        controller: None,
        ..fixture::pod("lonely", "a")
    };
    let permissions = Permissions {
        force,
        ..Permissions::default()
    };
    let checks = judge(vec![pod], Vec::new(), permissions);
    assert_eq!(verdict_of(&checks, "BarePods"), [expected]);
    assert_eq!(of(&checks, "BarePods")[0].object, "Pod shop/lonely");
}

#[rstest]
#[case::refused(false, Fail)]
#[case::allowed(true, Warn)]
fn data_in_an_empty_dir_warns_only_if_its_deletion_is_allowed(
    #[case] delete_empty_dir_data: bool,
    #[case] expected: Verdict,
) {
    let pod = Pod {
        empty_dirs: vec!["cache".to_owned()],
        ..fixture::pod("web-1", "a")
    };
    let permissions = Permissions {
        delete_empty_dir_data,
        ..Permissions::default()
    };
    let checks = judge(vec![pod], Vec::new(), permissions);
    assert_eq!(verdict_of(&checks, "EmptyDir"), [expected]);
    assert_eq!(of(&checks, "EmptyDir")[0].found, "emptyDir volumes cache");
}

#[test]
fn a_static_pod_on_the_pod_network_fails() {
    let mut pod = Pod {
        mirror: true,
        controller: None,
        ..fixture::pod("static-a", "a")
    };
    // Any user can write the annotation, but no kubelet runs such a pod.
    let checks = judge(vec![pod.clone()], Vec::new(), Permissions::default());
    assert_eq!(verdict_of(&checks, "StaticPods"), [Pass]);
    pod.addresses = vec!["10.244.1.9".parse().unwrap()];
    let checks = judge(vec![pod], Vec::new(), Permissions::default());
    assert_eq!(
        verdicts(&checks),
        [
            ("DisruptionBudgets", Pass),
            ("BarePods", Pass),
            ("EmptyDir", Pass),
            ("StaticPods", Fail)
        ]
    );
    assert_eq!(checks[3].object, "Pod shop/static-a");
}

#[rstest]
#[case::host_network(|pod: &mut Pod| pod.host_network = true)]
#[case::finished(|pod: &mut Pod| pod.finished = true)]
#[case::terminating(|pod: &mut Pod| pod.deleted_at = Some("2026-01-01T00:00:00Z".parse().unwrap()))]
#[case::pending(|pod: &mut Pod| pod.node = String::new())]
#[case::on_a_migrated_node(|pod: &mut Pod| pod.node = "b".to_owned())]
fn a_pod_that_is_not_evicted_needs_no_check(#[case] change: fn(&mut Pod)) {
    let mut pod = Pod {
        controller: None,
        empty_dirs: vec!["x".to_owned()],
        mirror: true,
        ..fixture::pod("x", "a")
    };
    change(&mut pod);
    let mut facts = ClusterFacts {
        pods: vec![pod].into(),
        ..fixture::cluster()
    };
    let done = facts.nodes.get_mut("b").unwrap();
    done.labels.insert(NETWORK_LABEL.to_owned(), "calico".to_owned());
    assert!(leaving(&facts).is_empty());
}
