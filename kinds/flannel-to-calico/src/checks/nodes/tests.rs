use rstest::rstest;

use super::super::fixture::{self, verdicts};
use super::*;
use engine::check::Verdict::{self, Fail, Pass, Unknown, Warn};

fn with_node(change: impl FnOnce(&mut Node)) -> ClusterFacts {
    let mut facts = fixture::cluster();
    change(facts.nodes.get_mut("b").unwrap());
    facts
}

fn annotate(node: &mut Node, key: &str, value: &str) {
    node.annotations
        .insert(format!("flannel.alpha.coreos.com/{key}"), value.to_owned());
}

#[test]
fn healthy_nodes_pass() {
    let checks = check(&fixture::settings(), &fixture::cluster());
    assert_eq!(
        verdicts(&checks),
        [
            ("NodeLabels", Pass),
            ("MigrationController", Pass),
            ("OperatingSystem", Pass),
            ("NodeAnnotations", Pass),
            ("PodCidr", Pass),
        ]
    );
}

#[rstest]
#[case::flannel("flannel", Pass)]
#[case::neither("none", Warn)]
#[case::calico("calico", Warn)]
#[case::foreign("cilium", Fail)]
fn a_label_value_decides_the_verdict(#[case] value: &str, #[case] expected: Verdict) {
    let facts = with_node(|node| {
        node.labels.insert(NETWORK_LABEL.to_owned(), value.to_owned());
    });
    assert_eq!(verdicts(&labels(&facts)), [("NodeLabels", expected)]);
}

#[rstest]
#[case::denied(Some(false), Fail)]
#[case::not_known(None, Unknown)]
fn a_missing_permission_for_labels_does_not_pass(#[case] answer: Option<bool>, #[case] expected: Verdict) {
    let mut facts = fixture::cluster();
    facts.permissions.remove("patch nodes");
    facts
        .permissions
        .extend(answer.map(|answer| ("patch nodes".to_owned(), answer)));
    assert_eq!(verdicts(&labels(&facts)), [("NodeLabels", expected)]);
}

#[test]
fn an_in_progress_label_of_calicos_controller_warns() {
    let facts = with_node(|node| {
        node.labels
            .insert(IN_PROGRESS_LABEL.to_owned(), "true".to_owned());
    });
    let checks = labels(&facts);
    assert_eq!(verdicts(&checks), [("NodeLabels", Warn)]);
    assert_eq!(checks[0].object, format!("Node b: label {IN_PROGRESS_LABEL}"));
}

#[test]
fn a_pod_of_calicos_controller_fails() {
    let mut facts = fixture::cluster();
    let mut pod = fixture::pod("flannel-migration-x", "a");
    pod.labels = [("k8s-app".to_owned(), "flannel-migration-controller".to_owned())].into();
    facts.pods.push(pod);
    let checks = migration_controller(&facts);
    assert_eq!(verdicts(&checks), [("MigrationController", Fail)]);
    assert_eq!(checks[0].object, "Pod shop/flannel-migration-x");
}

#[rstest]
#[case::unknown("", true, Unknown)]
#[case::on_flannel("windows", true, Fail)]
#[case::not_on_flannel("windows", false, Warn)]
fn a_node_that_does_not_run_linux_does_not_pass(
    #[case] system: &str,
    #[case] annotated: bool,
    #[case] expected: Verdict,
) {
    let facts = with_node(|node| {
        system.clone_into(&mut node.operating_system);
        if !annotated {
            node.annotations.clear();
        }
    });
    let checks = operating_system(&fixture::settings(), &facts);
    assert_eq!(verdicts(&checks), [("OperatingSystem", expected)]);
    assert_eq!(checks[0].object, "Node b: status.nodeInfo.operatingSystem");
}

#[rstest]
#[case::none(|node: &mut Node| node.annotations.clear(), "none")]
#[case::not_json(|node: &mut Node| annotate(node, "backend-data", "{"), "not a JSON object")]
#[case::no_address(|node: &mut Node| annotate(node, "public-ip", "x"), "found \"x\"")]
#[case::backend(|node: &mut Node| annotate(node, "backend-type", "host-gw"), "backend-type host-gw")]
#[case::manager(|node: &mut Node| annotate(node, "kube-subnet-manager", "false"), "kube-subnet-manager is not true")]
#[case::vni(
    |node: &mut Node| annotate(node, "backend-data", r#"{"VNI":7,"VtepMAC":"aa:bb:cc:00:00:02"}"#),
    "backend-data with VNI 7")]
fn an_annotation_that_does_not_fit_fails(#[case] change: fn(&mut Node), #[case] found: &str) {
    let checks = annotations(&fixture::settings(), &with_node(change));
    assert_eq!(verdicts(&checks), [("NodeAnnotations", Fail)]);
    assert_eq!(checks[0].object, "Node b: annotations flannel.alpha.coreos.com");
    assert!(checks[0].found.contains(found), "{}", checks[0].found);
}

#[test]
fn a_node_on_calico_needs_no_flannel_annotations() {
    let facts = with_node(|node| {
        node.annotations.clear();
        node.labels.insert(NETWORK_LABEL.to_owned(), "calico".to_owned());
    });
    assert_eq!(
        verdicts(&annotations(&fixture::settings(), &facts)),
        [("NodeAnnotations", Pass)]
    );
}

#[rstest]
#[case::missing(&[], "none")]
#[case::not_ipv4(&["fd00::/64"], "fd00::/64")]
#[case::outside(&["10.99.2.0/24"], "10.99.2.0/24")]
#[case::length(&["10.244.2.0/25"], "10.244.2.0/25")]
#[case::twice(&["10.244.1.0/24"], "10.244.1.0/24 overlaps 10.244.1.0/24 of Node a")]
fn a_pod_cidr_that_does_not_fit_fails(#[case] cidrs: &[&str], #[case] found: &str) {
    let facts = with_node(|node| node.pod_cidrs = cidrs.iter().map(|cidr| (*cidr).to_owned()).collect());
    let checks = pod_cidr(&fixture::settings(), &facts);
    assert_eq!(verdicts(&checks), [("PodCidr", Fail)], "{checks:?}");
    assert_eq!(
        (checks[0].object.as_str(), checks[0].found.as_str()),
        ("Node b: spec.podCIDR", found)
    );
}

#[test]
fn a_missing_ipv6_subnet_fails() {
    let mut settings = fixture::settings();
    settings.ipv6 = Some(fixture::ipv6_settings());
    let mut facts = fixture::cluster();
    for (index, node) in facts.nodes.values_mut().enumerate() {
        node.pod_cidrs.push(format!("fd00:10:244:{index}::/64"));
    }
    assert_eq!(verdicts(&pod_cidr(&settings, &facts)), [("PodCidr", Pass)]);
    facts.nodes.get_mut("b").unwrap().pod_cidrs.pop();
    let checks = pod_cidr(&settings, &facts);
    assert_eq!(verdicts(&checks), [("PodCidr", Fail)]);
    assert!(checks[0].needed.contains("an IPv6 subnet"), "{checks:?}");
}

#[test]
fn overlapping_subnets_fail_in_any_order() {
    for (first, second) in [
        ("10.244.4.0/23", "10.244.5.0/24"),
        ("10.244.5.0/24", "10.244.4.0/23"),
    ] {
        let mut facts = fixture::cluster();
        facts.nodes.get_mut("a").unwrap().pod_cidrs = vec![first.to_owned()];
        facts.nodes.get_mut("b").unwrap().pod_cidrs = vec![second.to_owned()];
        let checks = pod_cidr(&fixture::settings(), &facts);
        assert!(
            checks.iter().any(|check| check.found.contains("overlaps")),
            "{checks:?}"
        );
    }
}

#[rstest]
#[case::three(|_: &mut ClusterFacts| {}, false, vec![Pass], "3 schedulable")]
#[case::cordoned(
    |facts: &mut ClusterFacts| facts.nodes.get_mut("a").unwrap().unschedulable = true,
    false, vec![Pass], "2 schedulable; not: a (cordoned)")]
#[case::one(
    |facts: &mut ClusterFacts| {
        facts.nodes.get_mut("a").unwrap().unschedulable = true;
        facts.nodes.get_mut("b").unwrap().taints = vec!["gpu=:NoSchedule".to_owned()];
    },
    false, vec![Fail], "1 schedulable; not: a (cordoned), b (taint gpu=:NoSchedule)")]
#[case::one_and_allowed(
    |facts: &mut ClusterFacts| facts.nodes.retain(|name, _| name == "a"),
    true, vec![Warn], "1 schedulable")]
#[case::none(|facts: &mut ClusterFacts| facts.nodes.clear(), true, vec![Fail], "0 schedulable")]
#[case::not_ready(
    |facts: &mut ClusterFacts| facts.nodes.get_mut("c").unwrap().ready = false,
    false, vec![Warn], "not True")]
fn fewer_than_two_schedulable_nodes_do_not_pass(
    #[case] change: fn(&mut ClusterFacts),
    #[case] allow_single_node: bool,
    #[case] expected: Vec<Verdict>,
    #[case] found: &str,
) {
    let mut facts = fixture::cluster();
    change(&mut facts);
    let checks = schedulable(
        &facts,
        &CheckPolicy {
            allow_single_node,
            ..fixture::policy()
        },
    );
    assert_eq!(
        checks.iter().map(|check| check.verdict).collect::<Vec<_>>(),
        expected
    );
    assert_eq!(checks[0].found, found);
}
