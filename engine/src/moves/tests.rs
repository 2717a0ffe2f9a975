use ipnet::IpNet;
use jiff::SignedDuration;
use rstest::rstest;

use super::*;

const OLD: &str = "10.244.0.7";
const NEW: &str = "10.200.0.7";

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn targets() -> Vec<IpNet> {
    vec!["10.200.0.0/16".parse().unwrap()]
}

const WORDS: MoverWords = MoverWords {
    source: "the old range",
    why: "have addresses of the old range",
    created_after_close: "the old pool was closed, and still has an address of it: check ipAddrs",
    bare_pods_field: "kind.deleteBarePods",
};

fn movers(targets: &[IpNet]) -> Movers<'_> {
    Movers {
        chosen: Chosen::OutOf(targets),
        words: &WORDS,
    }
}

fn workload(kind: &str, name: &str) -> Workload {
    Workload {
        kind: kind.to_owned(),
        namespace: "default".to_owned(),
        name: name.to_owned(),
    }
}

fn pod(name: &str, address: &str) -> Pod {
    Pod {
        namespace: "default".to_owned(),
        name: name.to_owned(),
        uid: format!("{name}@{address}"),
        node: "a".to_owned(),
        controller: Some(("ReplicaSet".to_owned(), name.to_owned())),
        ready: true,
        addresses: address.parse().into_iter().collect(),
        ..Pod::default()
    }
}

fn unready(name: &str, address: &str) -> Pod {
    Pod {
        ready: false,
        ..pod(name, address)
    }
}

const POLICY: Policy = Policy {
    pods_at_once: 10,
    permissions: Permissions {
        delete_empty_dir_data: false,
        force: false,
    },
    delete_bare_pods: false,
};

/// A cluster that answers evictions: a replacement pod gets an address of the new range, and is Ready one step later.
struct World {
    pods: Vec<(Pod, Option<Workload>)>,
    workloads: BTreeMap<Workload, Health>,
    made_since: BTreeSet<String>,
    refusals: BTreeMap<String, Refusal>,
    policy: Policy,
}

impl World {
    fn of(pods: Vec<(Pod, Option<Workload>)>) -> Self {
        let mut workloads: BTreeMap<Workload, Health> = BTreeMap::new();
        for (pod, workload) in &pods {
            if let Some(workload) = workload
                && !pod.finished
            {
                workloads.entry(workload.clone()).or_default().wanted += 1;
            }
        }
        Self {
            pods,
            workloads,
            made_since: BTreeSet::new(),
            refusals: BTreeMap::new(),
            policy: POLICY,
        }
    }

    fn next(&self, now: Timestamp) -> Option<evict::Next> {
        let residents: Vec<Resident<'_>> = self
            .pods
            .iter()
            .map(|(pod, workload)| Resident {
                pod,
                workload: workload.as_ref(),
                role: match pod.name.split('-').next() {
                    Some("replumb") => Role::Coordinator,
                    Some("coredns") => Role::NameServer,
                    Some("webhook") => Role::Admission,
                    _ => Role::Any,
                },
                created_after_close: self.made_since.contains(&pod.name),
            })
            .collect();
        let targets = targets();
        let view = View {
            residents: &residents,
            movers: movers(&targets),
            budgets: &[],
            refusals: &self.refusals,
            workloads: &self.workloads,
            only: None,
        };
        next(&view, &self.policy, now)
    }

    fn evicts(&self) -> Vec<String> {
        match self.next(at(0)) {
            Some(evict::Next::Evict(pods)) => pods.into_iter().map(|pod| pod.name).collect(),
            other => panic!("no pod is evicted: {other:?}"),
        }
    }

    fn waits(&self) -> Wait {
        match self.next(at(0)) {
            Some(evict::Next::Wait(wait)) => wait,
            other => panic!("there is no wait: {other:?}"),
        }
    }

    /// Marks these pods as terminating.
    fn evict(&mut self, names: &[String]) {
        for (pod, _) in &mut self.pods {
            if names.contains(&pod.name) && pod.addresses[0].to_string() == OLD {
                pod.deleted_at = Some(at(0));
            }
        }
    }

    /// Replaces terminating pods by new ones, and makes pods Ready that were new before.
    fn advance(&mut self) {
        for (pod, _) in &mut self.pods {
            if pod.deleted_at.take().is_some() {
                *pod = Pod {
                    ready: false,
                    ..self::pod(&pod.name.clone(), NEW)
                };
            } else if !pod.ready && pod.addresses[0].to_string() == NEW {
                pod.ready = true;
            }
        }
    }
}

#[rstest]
#[case::in_the_old_range(pod("a", OLD), true)]
#[case::in_the_new_range(pod("a", NEW), false)]
#[case::host_network(Pod { host_network: true, ..pod("a", OLD) }, false)]
#[case::finished(Pod { finished: true, ..pod("a", OLD) }, false)]
#[case::mirror_of_a_static_pod(Pod { mirror: true, ..pod("a", OLD) }, false)]
#[case::without_an_address_yet(pod("a", ""), false)]
#[case::of_another_family(pod("a", "fd00::7"), false)]
fn a_pod_moves_if_its_address_is_in_no_target_pool(#[case] pod: Pod, #[case] moves: bool) {
    assert_eq!(movers(&targets()).has(&pod), moves);
}

/// All pods move, in the order of the waves, one of each workload at a time; no other pod moves while one is not Ready.
#[test]
fn all_pods_move_and_no_workload_lacks_two() {
    let deployment = |name: &str| Some(workload("Deployment", name));
    let mut pods = vec![
        (pod("replumb-1", OLD), deployment("replumb")),
        (pod("webhook-1", OLD), deployment("webhook")),
        (pod("webhook-2", OLD), deployment("webhook")),
    ];
    for number in 0..3 {
        pods.push((pod(&format!("coredns-{number}"), OLD), deployment("coredns")));
        pods.push((
            pod(&format!("log-{number}"), OLD),
            Some(workload("DaemonSet", "log")),
        ));
        pods.push((pod(&format!("web-{number}"), OLD), deployment("web")));
        pods.push((
            pod(&format!("db-{number}"), OLD),
            Some(workload("StatefulSet", "db")),
        ));
    }
    let mut world = World::of(pods);
    let mut order = Vec::new();
    for _ in 0..200 {
        match world.next(at(0)) {
            None => break,
            Some(evict::Next::Evict(pods)) => {
                let names: Vec<String> = pods.into_iter().map(|pod| pod.name).collect();
                order.extend(names.clone());
                world.evict(&names);
                for kind in ["coredns", "log", "web", "db"] {
                    let lacking = world
                        .pods
                        .iter()
                        .filter(|(pod, _)| pod.name.starts_with(kind))
                        .filter(|(pod, _)| pod.deleted_at.is_some() || !pod.ready)
                        .count();
                    assert!(lacking <= 1, "{kind}: {lacking} are unavailable");
                }
            }
            Some(evict::Next::Wait(wait)) => {
                assert!(
                    matches!(
                        wait.reason,
                        WaitReason::MovedPodsNotReady | WaitReason::PodsTerminating
                    ),
                    "{wait:?}"
                );
                world.advance();
            }
        }
    }
    assert_eq!(world.next(at(0)), None, "the moves end");
    assert_eq!(
        order,
        [
            "replumb-1",
            "coredns-0",
            "coredns-1",
            "coredns-2",
            "webhook-1",
            "webhook-2",
            "log-0",
            "log-1",
            "log-2",
            "web-0",
            "web-1",
            "web-2",
            "db-2",
            "db-1",
            "db-0"
        ]
    );
}

#[test]
fn no_more_pods_move_at_once_than_allowed() {
    let pods = (0..30)
        .map(|number| {
            let name = format!("web-{number}");
            (pod(&name, OLD), Some(workload("Deployment", &name)))
        })
        .collect();
    let mut world = World::of(pods);
    let first = world.evicts();
    assert_eq!(first.len(), 10);
    world.evict(&first);
    assert_eq!(world.waits().reason, WaitReason::MovedPodsNotReady);
    world.advance();
    assert_eq!(world.waits().reason, WaitReason::MovedPodsNotReady);
    world.advance();
    assert_eq!(world.evicts().len(), 10);
}

/// A budget that allows no disruption holds only its own pods, and is named once no other pod can move.
#[test]
fn a_refused_pod_delays_no_other_pod() {
    let web = |name: &str| Some(workload("Deployment", name));
    let mut world = World::of(vec![(pod("a-1", OLD), web("a")), (pod("b-1", OLD), web("b"))]);
    world.refusals.insert(
        format!("a-1@{OLD}"),
        Refusal {
            since: at(0),
            next_try: at(5),
            by_budget: true,
            message: "budget".to_owned(),
        },
    );
    assert_eq!(world.evicts(), ["b-1"]);
    world.pods.pop();
    let wait = world.waits();
    assert_eq!(wait.reason, WaitReason::DisruptionBudget);
    assert!(wait.message.contains("default/a-1"), "{}", wait.message);
    let later = world.next(at(0) + SignedDuration::from_secs(5));
    assert!(matches!(later, Some(evict::Next::Evict(_))), "{later:?}");
}

/// A pod that was unready before the first pod moved is not waited for; a pod that became unready later is.
#[test]
fn a_pod_that_was_unready_before_the_start_is_not_waited_for() {
    let dns = workload("Deployment", "coredns");
    let mut world = World::of(vec![
        (unready("coredns-1", NEW), Some(dns.clone())),
        (pod("web-1", OLD), Some(workload("Deployment", "web"))),
    ]);
    let wait = world.waits();
    assert_eq!(wait.reason, WaitReason::MovedPodsNotReady);
    assert!(
        wait.message
            .contains("Deployment default/coredns, pod default/coredns-1 is not Ready"),
        "{}",
        wait.message
    );
    world.workloads.get_mut(&dns).unwrap().unready_before_start = 1;
    assert_eq!(world.evicts(), ["web-1"]);
    // The workload was created after the start: no pod waits for it.
    world.workloads.remove(&dns);
    assert_eq!(world.evicts(), ["web-1"]);
}

/// An unready pod does not allow to evict the others at once.
#[test]
fn a_workload_with_an_unready_pod_loses_at_most_one_more() {
    let web = || workload("Deployment", "web");
    let pods = (0..5).map(|number| (pod(&format!("web-{number}"), OLD), Some(web())));
    let unready = (unready("web-9", NEW), Some(web()));
    let mut world = World::of(pods.chain([unready]).collect());
    assert_eq!(world.waits().reason, WaitReason::MovedPodsNotReady);
    world.workloads.get_mut(&web()).unwrap().unready_before_start = 1;
    let first = world.evicts();
    assert_eq!(first.len(), 1);
    world.evict(&first);
    assert_eq!(
        world.waits().reason,
        WaitReason::MovedPodsNotReady,
        "the pod is terminating"
    );
    world.pods.retain(|(pod, _)| pod.deleted_at.is_none());
    let wait = world.waits();
    assert!(wait.message.contains("5 of 6 pods exist"), "{}", wait.message);
}

/// A `StatefulSet` or `DaemonSet` creates the new pod once the old one is gone: in between no existing pod is unready.
#[test]
fn a_pod_that_does_not_exist_yet_is_waited_for() {
    for kind in ["StatefulSet", "DaemonSet", "Deployment"] {
        let pods = (0..3).map(|number| {
            let name = format!("db-{number}");
            (pod(&name, OLD), Some(workload(kind, "db")))
        });
        let mut world = World::of(pods.collect());
        world.pods.pop();
        assert_eq!(world.waits().reason, WaitReason::MovedPodsNotReady, "{kind}");
    }
}

/// Finished pods that a controller keeps are never Ready.
#[test]
fn a_finished_pod_delays_no_other_pod() {
    let web = || Some(workload("Deployment", "web"));
    let ended = Pod {
        finished: true,
        ready: false,
        ..pod("web-0", OLD)
    };
    let world = World::of(vec![(ended, web()), (pod("web-1", OLD), web())]);
    assert_eq!(world.evicts(), ["web-1"]);
}

/// An evicted pod would get an address of the same range again, without end.
#[test]
fn a_pod_created_in_the_closed_pool_is_named_and_not_evicted() {
    let mut world = World::of(vec![(pod("web-1", OLD), Some(workload("Deployment", "web")))]);
    world.made_since.insert("web-1".to_owned());
    let wait = world.waits();
    assert!(
        wait.message.contains("default/web-1") && wait.message.contains("ipAddrs"),
        "{}",
        wait.message
    );
}

#[test]
fn the_moves_are_not_done_while_a_pod_terminates() {
    let mut world = World::of(vec![
        (pod("a-1", OLD), Some(workload("Deployment", "a"))),
        (pod("b-1", OLD), Some(workload("Deployment", "b"))),
    ]);
    world.workloads.clear();
    world.evict(&["a-1".to_owned()]);
    assert_eq!(world.evicts(), ["b-1"]);
    world.evict(&["b-1".to_owned()]);
    assert_eq!(world.waits().reason, WaitReason::PodsTerminating);
    world.policy.pods_at_once = 0;
    world.pods[0].0.deleted_at = None;
    assert_eq!(world.evicts(), ["a-1"], "a limit of 0 counts as 1");
}

/// Unready pods of one workload in the old range need not wait for each other, but a quorum may need them all.
#[test]
fn unready_pods_move_at_once_except_in_a_stateful_set() {
    let of = |kind: &str| {
        let owner = || Some(workload(kind, "web"));
        World::of(vec![
            (unready("web-1", OLD), owner()),
            (unready("web-2", OLD), owner()),
            (pod("web-3", OLD), owner()),
        ])
    };
    assert_eq!(of("Deployment").evicts(), ["web-1", "web-2"]);
    assert_eq!(of("StatefulSet").evicts(), ["web-2"]);
}

#[test]
fn pods_of_jobs_are_not_evicted_and_bare_pods_only_if_allowed() {
    let job = World::of(vec![(pod("sum-1", OLD), Some(workload("Job", "sum")))]);
    assert!(
        job.waits().message.contains("default/sum-1"),
        "{}",
        job.waits().message
    );
    let bare = Pod {
        controller: None,
        ..pod("shell", OLD)
    };
    let mut world = World::of(vec![(bare, None)]);
    let wait = world.waits();
    assert!(
        wait.message.contains("default/shell") && wait.message.contains("deleteBarePods"),
        "{}",
        wait.message
    );
    world.policy.delete_bare_pods = true;
    assert_eq!(world.evicts(), ["shell"]);
}

/// A `DaemonSet` with a pod on each of these nodes, of which `at_once` may be unavailable.
fn daemons(nodes: &[&str], at_once: usize) -> World {
    let log = workload("DaemonSet", "log");
    let on = |node: &&str| {
        let pod = Pod {
            node: (*node).to_owned(),
            controller: Some(("DaemonSet".to_owned(), "log".to_owned())),
            ..pod(&format!("log-{node}"), OLD)
        };
        (pod, Some(log.clone()))
    };
    let mut world = World::of(nodes.iter().map(on).collect());
    world.workloads.entry(log).or_default().at_once = at_once;
    world
}

#[rstest]
#[case::unset(0, 10, &["log-a"])]
#[case::one(1, 10, &["log-a"])]
#[case::several(3, 10, &["log-a", "log-b", "log-c"])]
#[case::no_more_than_pods_at_once(3, 2, &["log-a", "log-b"])]
#[case::all(9, 10, &["log-a", "log-b", "log-c", "log-d"])]
fn as_many_pods_of_a_daemon_set_move_as_may_be_unavailable(
    #[case] at_once: usize,
    #[case] pods_at_once: usize,
    #[case] expected: &[&str],
) {
    let mut world = daemons(&["a", "b", "c", "d"], at_once);
    world.policy.pods_at_once = pods_at_once;
    assert_eq!(world.evicts(), expected);
}

#[test]
fn unavailable_pods_of_a_daemon_set_count() {
    let mut world = daemons(&["a", "b", "c", "d"], 3);
    world.policy.pods_at_once = 10;
    // The pod serves no traffic, so it moves at no cost.
    world.pods[3].0.ready = false;
    assert_eq!(world.evicts(), ["log-a", "log-b", "log-d"]);
    world.evict(&["log-a".to_owned(), "log-b".to_owned()]);
    // Two pods are moving, and the third is not Ready: only the third may move.
    assert_eq!(world.evicts(), ["log-d"]);
}

#[test]
fn no_two_pods_of_a_daemon_set_leave_one_node_at_once() {
    let mut world = daemons(&["a", "b"], 3);
    world.policy.pods_at_once = 10;
    let twin = Pod {
        name: "log-a2".to_owned(),
        uid: "log-a2".to_owned(),
        ..world.pods[0].0.clone()
    };
    let workload = world.pods[0].1.clone();
    world.pods.push((twin, workload));
    assert_eq!(world.evicts(), ["log-a", "log-b"]);
    world.evict(&["log-a2".to_owned()]);
    assert_eq!(world.evicts(), ["log-b"]);
}

#[test]
fn pods_of_a_deployment_move_one_by_one_whatever_the_limit() {
    let web = workload("Deployment", "web");
    let pods = ["web-1", "web-2"].map(|name| (pod(name, OLD), Some(web.clone())));
    let mut world = World::of(pods.into());
    world.policy.pods_at_once = 10;
    world.workloads.entry(web).or_default().at_once = 2;
    assert_eq!(world.evicts(), ["web-1"]);
}

fn in_namespace(namespace: &str, kind: &str, name: &str, address: &str) -> (Pod, Option<Workload>) {
    let pod = Pod {
        namespace: namespace.to_owned(),
        uid: format!("{namespace}/{name}"),
        ..pod(name, address)
    };
    let workload = Workload {
        namespace: namespace.to_owned(),
        ..workload(kind, name)
    };
    (pod, Some(workload))
}

fn refuse(world: &mut World, uid: &str, since: Timestamp, next_try: Timestamp) {
    let refusal = Refusal {
        since,
        next_try,
        by_budget: true,
        message: "budget".to_owned(),
    };
    world.refusals.insert(uid.to_owned(), refusal);
}

/// Each of these pods belongs to one tenant, and is in an earlier wave than the pods of others.
#[test]
fn a_pod_that_cannot_move_delays_no_later_wave() {
    let others = || {
        vec![
            in_namespace("shop", "Deployment", "web", OLD),
            in_namespace("shop", "StatefulSet", "db-0", OLD),
        ]
    };
    let (daemon, owner) = in_namespace("tenant", "DaemonSet", "log", OLD);
    let with_data = Pod {
        empty_dirs: vec!["scratch".to_owned()],
        ..daemon.clone()
    };
    for (pod, is_refused, is_made_since) in [
        (daemon.clone(), true, false),
        (with_data, false, false),
        (daemon, false, true),
    ] {
        let mut pods = vec![(pod.clone(), owner.clone())];
        pods.extend(others());
        let mut world = World::of(pods);
        if is_refused {
            refuse(&mut world, &pod.uid, at(-60), at(5));
        }
        if is_made_since {
            world.made_since.insert(pod.name.clone());
        }
        let mut gone = Vec::new();
        for _ in 0..2 {
            let names = world.evicts();
            gone.extend(names.clone());
            world.evict(&names);
            world.advance();
            world.advance();
        }
        assert_eq!(gone, ["web", "db-0"], "{pod:?}");
        let wait = world.waits();
        assert!(wait.message.contains("tenant/log"), "{}", wait.message);
    }
}

/// A pod that is refused for a short time still moves before the next wave.
#[test]
fn a_budget_that_is_used_up_for_a_short_time_keeps_the_order() {
    let mut world = World::of(vec![
        in_namespace("tenant", "DaemonSet", "log", OLD),
        in_namespace("shop", "Deployment", "web", OLD),
    ]);
    refuse(&mut world, "tenant/log", at(-59), at(5));
    assert_eq!(world.waits().reason, WaitReason::DisruptionBudget);
    refuse(&mut world, "tenant/log", at(-60), at(5));
    assert_eq!(world.evicts(), ["web"]);
    // The eviction is tried again beside the others, and when no other pod remains.
    refuse(&mut world, "tenant/log", at(-90), at(0));
    assert_eq!(world.evicts(), ["web", "log"]);
    world.pods.pop();
    assert_eq!(world.evicts(), ["log"]);
}

#[test]
fn name_servers_and_webhooks_move_before_all_others_however_long_they_are_refused() {
    for name in ["coredns-1", "webhook-1", "replumb-1"] {
        let mut world = World::of(vec![
            in_namespace("kube-system", "Deployment", name, OLD),
            in_namespace("shop", "Deployment", "web", OLD),
        ]);
        refuse(&mut world, &format!("kube-system/{name}"), at(-900), at(5));
        assert_eq!(world.waits().reason, WaitReason::DisruptionBudget);
        refuse(&mut world, &format!("kube-system/{name}"), at(-900), at(0));
        assert_eq!(world.evicts(), [name]);
    }
}

/// 1000 pods with a budget that allows no disruption come before others by name.
#[test]
fn refused_pods_take_no_slot_of_other_pods() {
    let mut pods: Vec<(Pod, Option<Workload>)> = (0..1000)
        .map(|number| in_namespace("a-tenant", "Deployment", &format!("many-{number}"), OLD))
        .collect();
    pods.push(in_namespace("shop", "Deployment", "web", OLD));
    let mut world = World::of(pods);
    for number in 0..1000 {
        refuse(&mut world, &format!("a-tenant/many-{number}"), at(-10), at(0));
    }
    assert_eq!(world.evicts()[0], "web");
    assert_eq!(world.evicts().len(), 10);
}

/// The workload has more replicas than a quota allows, or than any cluster can run.
#[test]
fn a_workload_takes_one_slot_whatever_its_number_of_replicas() {
    for wanted in [10, usize::try_from(i32::MAX).unwrap()] {
        let mut world = World::of(vec![
            in_namespace("tenant", "StatefulSet", "db-0", OLD),
            in_namespace("shop", "StatefulSet", "web-0", OLD),
        ]);
        let (_, owner) = in_namespace("tenant", "StatefulSet", "db-0", OLD);
        world.workloads.get_mut(&owner.unwrap()).unwrap().wanted = wanted;
        world.policy.pods_at_once = 2;
        assert_eq!(world.evicts(), ["web-0"]);
        world.policy.pods_at_once = 1;
        let wait = world.waits();
        let expected = format!(
            "moved pods not Ready: {}; the first: StatefulSet tenant/db-0, 1 of {wanted} pods exist",
            wanted - 1
        );
        assert_eq!(wait.message, expected);
    }
}

#[test]
fn a_stalled_workload_is_not_waited_for() {
    let mut world = World::of(vec![
        in_namespace("tenant", "DaemonSet", "log", NEW),
        in_namespace("shop", "Deployment", "web", OLD),
    ]);
    world.pods[0].0.ready = false;
    world.policy.pods_at_once = 1;
    assert_eq!(world.waits().reason, WaitReason::MovedPodsNotReady);
    for health in world.workloads.values_mut() {
        health.stalled = true;
    }
    assert_eq!(world.evicts(), ["web"]);
    world.pods.pop();
    assert_eq!(world.next(at(0)), None);
}

/// A tenant deletes its own pods and decides when they end: by a finalizer, or by an endless grace period.
#[test]
fn bare_pods_that_never_end_take_no_slot_forever() {
    let stuck = (0..10).map(|number| {
        let bare = Pod {
            controller: None,
            deleted_at: Some(at(0)),
            ..pod(&format!("stuck-{number}"), OLD)
        };
        (bare, None)
    });
    let web = workload("Deployment", "web");
    let world = World::of(stuck.chain([(pod("web-1", OLD), Some(web))]).collect());
    let asked = |second: i64| match world.next(at(second)) {
        Some(evict::Next::Evict(pods)) => pods.into_iter().map(|pod| pod.name).collect(),
        Some(evict::Next::Wait(_)) | None => Vec::new(),
    };
    assert_eq!(asked(299), Vec::<String>::new());
    assert_eq!(asked(300), ["web-1"]);
}
