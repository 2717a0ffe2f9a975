use super::*;

fn pod(name: &str, is_bare: bool) -> Pod {
    Pod {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: name.to_owned(),
        controller: (!is_bare).then(|| ("ReplicaSet".to_owned(), "web".to_owned())),
        ..Pod::default()
    }
}

#[test]
fn a_pod_that_cannot_be_evicted_delays_no_other_and_each_is_named() {
    let pods = [pod("bare", true), pod("first", false), pod("second", false)];
    let of = |names: &[&str]| -> Vec<&Pod> {
        pods.iter()
            .filter(|pod| names.contains(&pod.name.as_str()))
            .collect()
    };
    let step = |names: &[&str], refusals: &BTreeMap<String, Refusal>, overdue| {
        let leaving = Leaving {
            place: "node a",
            pods: &of(names),
            terminating: &[],
            static_pods: &[],
            budgets: &[],
            refusals,
            permissions: Permissions::default(),
            grace_period_seconds: None,
            overdue,
        };
        next(&leaving, Timestamp::UNIX_EPOCH)
    };
    let none = BTreeMap::new();
    let refusal = Refusal {
        since: Timestamp::UNIX_EPOCH,
        next_try: Timestamp::MAX,
        by_budget: true,
        message: "too few are healthy".to_owned(),
    };
    let refused = BTreeMap::from([("first".to_owned(), refusal)]);
    let evicted = |next: Option<Next>| match next {
        Some(Next::Evict(pods)) => pods.into_iter().map(|pod| pod.name).collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    };
    let waits = |next: Option<Next>| match next {
        Some(Next::Wait(wait)) => wait,
        other => panic!("{other:?}"),
    };
    let all = ["bare", "first", "second"];
    assert_eq!(evicted(step(&all, &none, false)), ["first", "second"]);
    assert_eq!(evicted(step(&all, &refused, false)), ["second"]);
    let wait = waits(step(&["bare", "first"], &refused, false));
    assert_eq!(wait.reason, WaitReason::EvictionRefused);
    assert!(
        wait.message.contains("pod shop/bare has no controller"),
        "{wait:?}"
    );
    assert!(
        wait.message.contains("eviction of pod shop/first refused"),
        "{wait:?}"
    );
    let wait = waits(step(&["first"], &refused, false));
    assert_eq!(wait.reason, WaitReason::DisruptionBudget);
    let wait = waits(step(&["bare", "second"], &none, true));
    assert!(wait.message.contains("pod shop/bare"), "{wait:?}");
}
