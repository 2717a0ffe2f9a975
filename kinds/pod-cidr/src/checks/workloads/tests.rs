use rstest::rstest;

use super::super::fixture::{alone, judge, only, pod, workload_mut};
use super::*;
use engine::check::Verdict::{self, Fail, Pass, Warn};
use engine::drain::Pod;

fn add(facts: &mut ClusterFacts, pod: Pod) {
    facts.pods.push(pod);
}

#[rstest]
#[case::one_pod(
    |facts: &mut ClusterFacts| workload_mut(facts, "Deployment web").wanted = 1, "Deployment shop/web", "1 replica")]
#[case::one_of_a_stateful_set(
    |facts: &mut ClusterFacts| workload_mut(facts, "StatefulSet db").wanted = 1, "StatefulSet shop/db", "1 replica")]
#[case::on_delete(
    |facts: &mut ClusterFacts| workload_mut(facts, "DaemonSet log").on_delete = true,
    "DaemonSet shop/log: spec.updateStrategy", "OnDelete")]
#[case::job(
    |facts: &mut ClusterFacts| add(facts, pod("sum-1", "Job sum", "c", "10.244.3.40")), "Job shop/sum", "a running Job")]
#[case::unknown_replicas(
    |facts: &mut ClusterFacts| add(facts, pod("x-1", "CloneSet x", "c", "10.244.3.40")),
    "CloneSet shop/x", "its number of replicas is unknown")]
#[case::of_no_pool(
    |facts: &mut ClusterFacts| add(facts, pod("web-9", "Deployment web", "c", "192.168.7.7")),
    "addresses of no IPPool", "shop/web-9 192.168.7.7")]
fn a_workload_that_needs_attention_is_a_warning(
    #[case] change: fn(&mut ClusterFacts),
    #[case] object: &str,
    #[case] found: &str,
) {
    let check = only(&judge(change), CheckName::Workloads);
    assert_eq!(
        (check.verdict, check.object.as_str(), check.found.as_str()),
        (Warn, object, found)
    );
}

#[rstest]
#[case::daemon_set_on_one_node(|facts: &mut ClusterFacts| workload_mut(facts, "DaemonSet log").wanted = 1)]
#[case::finished_job(|facts: &mut ClusterFacts| add(facts, Pod { finished: true, ..pod("sum-1", "Job sum", "c", "10.244.3.40") }))]
#[case::moved_already(|facts: &mut ClusterFacts| add(facts, pod("x-1", "CloneSet x", "c", "10.200.3.40")))]
#[case::a_family_without_a_pool(|facts: &mut ClusterFacts| facts.pods[0].addresses.push("fd00::7".parse().unwrap()))]
#[case::name_server_is_scaled_up(|facts: &mut ClusterFacts| {
    workload_mut(facts, "Deployment dns").wanted = 1;
    facts.pods.retain(|pod| pod.name != "dns-2");
    facts.blocks[2].allocations.retain(|allocation| allocation.attributes.get("pod").is_none_or(|pod| pod != "dns-2"));
})]
#[case::webhook_is_scaled_up(|facts: &mut ClusterFacts| {
    workload_mut(facts, "Deployment guard").wanted = 1;
    facts.webhooks[0].backends.truncate(1);
})]
fn other_workloads_pass(#[case] change: fn(&mut ClusterFacts)) {
    let checks = judge(change);
    let wrong: Vec<String> = checks
        .iter()
        .filter(|check| check.verdict != Pass)
        .map(Check::line)
        .collect();
    assert_eq!(wrong, [""; 0]);
}

/// With a single node for pods, no workload is scaled up.
#[test]
fn a_single_name_server_with_a_single_node_is_a_warning() {
    let checks = judge(|facts| {
        workload_mut(facts, "Deployment dns").wanted = 1;
        for name in ["b", "c"] {
            facts.nodes.get_mut(name).unwrap().taints = vec!["gpu=:NoSchedule".to_owned()];
        }
    });
    let check = only(&checks, CheckName::Workloads);
    assert_eq!(
        (check.object.as_str(), check.found.as_str()),
        ("Deployment shop/dns", "1 replica")
    );
}

#[test]
fn a_webhook_without_pods_fails() {
    let checks = judge(|facts| facts.webhooks[0].backends.clear());
    let check = only(&checks, CheckName::Webhooks);
    assert_eq!(
        (check.verdict, check.object.as_str(), check.found.as_str()),
        (
            Fail,
            "ValidatingWebhookConfiguration guard, webhook pods.example",
            "failurePolicy Fail, and no pod behind Service shop/guard"
        )
    );
}

/// A `StatefulSet` is not scaled by the migration.
#[rstest]
#[case::moves(false, false, Warn)]
#[case::host_network(true, false, Pass)]
#[case::two_pods(false, true, Pass)]
fn a_webhook_with_a_single_moving_pod_is_a_warning(
    #[case] host_network: bool,
    #[case] another: bool,
    #[case] expected: Verdict,
) {
    let checks = judge(|facts| {
        let backend = |name: &str| ("shop".to_owned(), name.to_owned(), "a".to_owned(), !host_network);
        facts.webhooks[0].backends = vec![backend("db-0")];
        if another {
            facts.webhooks[0].backends.push(backend("db-1"));
        }
        let pod = facts.pods.iter_mut().find(|pod| pod.name == "db-0").unwrap();
        pod.host_network = host_network;
    });
    let found: Vec<&Check> = checks.iter().filter(|check| check.name == "Webhooks").collect();
    assert_eq!((found.len(), found[0].verdict), (1, expected), "{found:?}");
    if expected == Warn {
        assert!(found[0].found.ends_with("shop/db-0"), "{found:?}");
    }
}

#[test]
fn a_webhook_for_other_resources_passes_without_pods() {
    let checks = judge(|facts| {
        facts.webhooks[0].backends.clear();
        facts.webhooks[0].covers_pods_or_nodes = false;
    });
    assert_eq!(alone(&checks, CheckName::Webhooks)[0].verdict, Pass);
}

#[test]
fn a_cluster_without_a_node_for_pods_fails() {
    let checks = judge(|facts| {
        for node in facts.nodes.values_mut() {
            node.taints = vec!["gpu=:NoSchedule".to_owned()];
        }
    });
    let check = only(&checks, CheckName::SchedulableNodes);
    assert_eq!(
        (check.verdict, check.found.as_str()),
        (Fail, "none of 3 accepts pods")
    );
}

/// Pods of a `DaemonSet` are replaced on a cordoned node; others are not.
#[test]
fn a_cordoned_node_with_moving_pods_is_a_warning() {
    let checks = judge(|facts| facts.nodes.get_mut("b").unwrap().unschedulable = true);
    let check = only(&checks, CheckName::SchedulableNodes);
    assert_eq!(
        (check.verdict, check.object.as_str(), check.found.as_str()),
        (
            Warn,
            "Node b: spec.unschedulable",
            "cordoned, pods that have to move: 3"
        )
    );
    let checks = judge(|facts| {
        facts.nodes.get_mut("b").unwrap().unschedulable = true;
        facts.pods.retain(|pod| pod.node != "b" || pod.of_daemon_set());
        facts.blocks[1]
            .allocations
            .retain(|allocation| allocation.address.to_string() == "10.244.2.12");
    });
    assert_eq!(alone(&checks, CheckName::SchedulableNodes)[0].verdict, Pass);
}
