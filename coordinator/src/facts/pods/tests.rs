use std::collections::BTreeMap;

use rstest::rstest;
use serde_json::json;

use calico::NODE_CONTAINER;

use super::details::LONGEST;
use super::*;

fn from(value: serde_json::Value) -> Pod {
    serde_json::from_value(value).unwrap()
}

#[test]
fn every_field() {
    let found = pod(&from(serde_json::json!({
        "metadata": {
            "namespace": "shop", "name": "web-1", "uid": "u1", "labels": {"app": "web"},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Other", "name": "x", "uid": "o"},
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "o", "controller": true},
            ],
            "deletionTimestamp": "2026-01-01T00:00:30Z", "deletionGracePeriodSeconds": 30,
        },
        "spec": {
            "nodeName": "a",
            "priorityClassName": "high",
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "250m", "memory": "64Mi"}}}],
            "volumes": [{"name": "cache", "emptyDir": {}}, {"name": "token", "projected": {}}],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.244.1.5",
            "podIPs": [{"ip": "10.244.1.5"}, {"ip": "fd00::5"}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })));
    assert_eq!(found.key(), "shop/web-1");
    assert_eq!(
        found.controller,
        Some(("ReplicaSet".to_owned(), "web".to_owned()))
    );
    assert_eq!(found.deleted_at, Some("2026-01-01T00:00:00Z".parse().unwrap()));
    assert_eq!(found.empty_dirs, ["cache"]);
    assert_eq!((found.cpu_millis, found.memory_bytes), (250, 64 << 20));
    assert_eq!(found.addresses.len(), 2);
    assert!(found.ready && !found.finished && !found.mirror && !found.host_network);
    assert_eq!(
        (found.node.as_str(), found.priority_class.as_str()),
        ("a", "high")
    );
}

#[test]
fn a_static_pod_has_the_node_as_its_controller() {
    let found = pod(&from(serde_json::json!({
        "metadata": {
            "namespace": "kube-system", "name": "etcd-a", "annotations": {"kubernetes.io/config.mirror": "x"},
            "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "a", "uid": "o", "controller": true}],
        },
        "spec": {"hostNetwork": true, "containers": []},
        "status": {"phase": "Succeeded"},
    })));
    assert!(found.mirror && found.host_network && found.finished && !found.ready);
}

#[test]
fn requests_as_the_scheduler_counts_them() {
    let container =
        |name: &str, cpu: &str| serde_json::json!({"name": name, "resources": {"requests": {"cpu": cpu}}});
    let side_car = |name: &str, cpu: &str| {
        let mut value = container(name, cpu);
        value["restartPolicy"] = "Always".into();
        value
    };
    let cpu = |spec: serde_json::Value| {
        pod(&from(
            serde_json::json!({"metadata": {"name": "p"}, "spec": spec}),
        ))
        .cpu_millis
    };
    assert_eq!(
        cpu(serde_json::json!({"containers": [container("a", "100m"), container("b", "1")]})),
        1100
    );
    assert_eq!(
        cpu(serde_json::json!({
            "containers": [container("a", "100m")],
            "initContainers": [container("i", "2"), container("j", "1")],
        })),
        2000
    );
    assert_eq!(
        cpu(serde_json::json!({
            "containers": [container("a", "500m")],
            "initContainers": [side_car("s", "200m"), container("i", "400m")],
            "overhead": {"cpu": "10m"},
        })),
        710
    );
    assert_eq!(
        cpu(serde_json::json!({
            "containers": [container("a", "500m")],
            "resources": {"requests": {"cpu": "3"}},
        })),
        3000
    );
}

#[rstest]
#[case::large("1P", 1_000_000_000_000_000_000, None)]
#[case::peta("20P", 0, Some(Needed::SmallerQuantity))]
#[case::exponent("1e99", 0, Some(Needed::SmallerQuantity))]
#[case::exbi("16Ei", 0, Some(Needed::SmallerQuantity))]
#[case::negative("-1", 0, Some(Needed::Quantity))]
#[case::word("abc", 0, Some(Needed::Quantity))]
#[case::empty("", 0, Some(Needed::Quantity))]
#[case::unicode("\u{ff11}", 0, Some(Needed::Quantity))]
fn an_unreadable_request_affects_that_request_only(
    #[case] text: &str,
    #[case] amount: u64,
    #[case] needed: Option<Needed>,
) {
    let of = |value: serde_json::Value| pod(&from(value));
    let request = json!({"cpu": text, "memory": "1Mi"});
    for (spec, field) in [
        (
            json!({"containers": [{"name": "c", "resources": {"requests": request}}]}),
            "container c: resources.requests.cpu",
        ),
        (
            json!({"containers": [], "initContainers": [{"name": "i", "resources": {"requests": request}}]}),
            "container i: resources.requests.cpu",
        ),
        (
            json!({"containers": [], "resources": {"requests": request}}),
            "resources.requests.cpu",
        ),
        (json!({"containers": [], "overhead": request}), "overhead.cpu"),
    ] {
        let pod = of(json!({"metadata": {"namespace": "n", "name": "p", "uid": "u"}, "spec": spec}));
        assert_eq!((pod.cpu_millis, pod.memory_bytes), (amount, 1 << 20), "{field}");
        assert_eq!((pod.key().as_str(), pod.uid.as_str()), ("n/p", "u"));
        let expected = needed.map(|needed| NotUnderstood {
            field: field.to_owned(),
            found: format!("{text:?}"),
            needed,
        });
        assert_eq!(pod.not_understood, Vec::from_iter(expected));
    }
}

#[test]
fn an_uncountable_request_does_not_affect_others() {
    let container = |name: &str, cpu: &str| json!({"name": name, "resources": {"requests": {"cpu": cpu}}});
    let found = pod(&from(json!({"metadata": {"name": "p"}, "spec": {
        "containers": [container("a", "20P"), container("b", "2")],
    }})));
    assert_eq!(found.cpu_millis, 2000);
}

#[rstest]
#[case::no_quantity("abc", 2000)]
#[case::more_than_the_scheduler_counts("20P", 0)]
fn a_valid_pod_level_request_replaces_the_sum_of_containers(#[case] cpu: &str, #[case] millis: u64) {
    let found = pod(&from(json!({"metadata": {"name": "p"}, "spec": {
        "containers": [{"name": "c", "resources": {"requests": {"cpu": "2"}}}], "resources": {"requests": {"cpu": cpu}},
    }})));
    assert_eq!(found.cpu_millis, millis);
}

#[test]
fn sums_of_requests_saturate() {
    let container =
        |name: &str| json!({"name": name, "resources": {"requests": {"cpu": "9P", "memory": "7Ei"}}});
    let found = pod(&from(json!({"metadata": {"name": "p"}, "spec": {
        "containers": [container("a"), container("b"), container("c")], "initContainers": [container("i")], "overhead": {"cpu": "9P"},
    }})));
    assert_eq!((found.cpu_millis, found.memory_bytes), (u64::MAX, u64::MAX));
}

#[rstest]
#[case::not_said(None, 30)]
#[case::said(Some(0), 0)]
#[case::negative(Some(-1), 0)]
#[case::without_an_end(Some(i64::from(i32::MAX)), 2_147_483_647)]
#[case::the_largest(Some(i64::MAX), u32::MAX)]
fn a_grace_period_saturates(#[case] said: Option<i64>, #[case] seconds: u32) {
    let spec = PodSpec {
        termination_grace_period_seconds: said,
        ..PodSpec::default()
    };
    assert_eq!(grace_seconds(Some(&spec)), seconds);
}

#[test]
fn an_invalid_address_is_skipped_and_named() {
    let found = pod(&from(json!({
        "metadata": {"name": "p"}, "status": {"podIPs": [{"ip": "10.244.1.5"}, {"ip": "x"}]},
    })));
    assert_eq!(found.addresses, ["10.244.1.5".parse::<IpAddr>().unwrap()]);
    let [not_understood] = found.not_understood.as_slice() else {
        panic!("{found:?}")
    };
    assert_eq!(
        (not_understood.field.as_str(), not_understood.needed),
        ("status.podIPs", Needed::Address)
    );
}

#[test]
fn a_long_unreadable_value_is_shortened() {
    let text = "\u{e9}".repeat(5_000_000);
    let found = pod(&from(
        json!({"metadata": {"name": "p"}, "status": {"podIP": text}}),
    ));
    let told = &found.not_understood[0].found;
    assert!(
        told.len() < 256 && told.ends_with("… (10000000 bytes in total)"),
        "{told}"
    );
}

#[test]
fn labels_above_the_limit_are_dropped_and_reported() {
    let labels: BTreeMap<String, String> = (0..20_000)
        .map(|number| (format!("key-{number:05}"), "v".repeat(40)))
        .collect();
    let found = pod(&from(json!({"metadata": {"name": "p", "labels": labels}})));
    let bytes: usize = found
        .labels
        .iter()
        .map(|(key, value)| key.len() + value.len())
        .sum();
    assert!(bytes <= LABEL_BYTES && bytes > LABEL_BYTES - 64, "{bytes}");
    assert_eq!(
        found.not_understood[0].to_string(),
        "metadata.labels: found 20000 labels, needed at most 16 KiB of labels"
    );
}

#[test]
fn programs_count_in_kube_system_only() {
    let pod = |namespace: &str| {
        let argument = format!("--note={}", "x".repeat(100_000));
        from(json!({
            "metadata": {"namespace": namespace, "name": "kube-apiserver-a"},
            "spec": {"containers": [{"name": "c", "command": ["kube-apiserver", argument]}]},
        }))
    };
    assert_eq!(details(&pod("kube-system")).unwrap().programs.len(), 1);
    assert_eq!(details(&pod("shop")), None);
}

#[test]
fn a_long_image_name_is_cut() {
    let found = details(&from(json!({
        "metadata": {"namespace": "shop", "name": "p"},
        "spec": {"containers": [{"name": NODE_CONTAINER, "image": "x".repeat(1_000_000)}]},
    })));
    assert_eq!(found.unwrap().calico_image.unwrap().len(), LONGEST);
}

#[test]
fn budgets() {
    let found = budget(
        &serde_json::from_value(serde_json::json!({
            "metadata": {"namespace": "shop", "name": "web"},
            "spec": {"unhealthyPodEvictionPolicy": "AlwaysAllow", "selector": {
                "matchLabels": {"app": "web"},
                "matchExpressions": [{"key": "tier", "operator": "In", "values": ["a", "b"]}],
            }},
            "status": {"disruptionsAllowed": 1, "currentHealthy": 3, "desiredHealthy": 2, "expectedPods": 3},
        }))
        .unwrap(),
    );
    assert_eq!(
        (
            found.disruptions_allowed,
            found.desired_healthy,
            found.expected_pods
        ),
        (1, 2, 3)
    );
    assert!(found.always_allows_unhealthy);
    let labels = |pairs: &[(&str, &str)]| {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    };
    let selector = found.selector.unwrap();
    assert!(selector.matches(&labels(&[("app", "web"), ("tier", "b")])));
    assert!(!selector.matches(&labels(&[("app", "web")])));
}

#[test]
fn a_budget_without_selector_or_status_selects_nothing() {
    let found = budget(&serde_json::from_value(serde_json::json!({"metadata": {"name": "x"}})).unwrap());
    assert_eq!((found.selector, found.disruptions_allowed), (None, 0));
}

#[test]
fn ports_of_all_containers_are_kept_up_to_a_limit() {
    let port =
        |number: u32| json!({ "name": format!("p{number}"), "containerPort": number, "protocol": "UDP" });
    let with = |ports: Vec<serde_json::Value>| {
        pod(&from(json!({
            "spec": { "containers": [{ "name": "a", "ports": ports }], "initContainers": [{ "name": "b", "ports": [port(9)] }] },
        })))
    };
    let few = with(vec![port(80)]);
    let found: Vec<(Option<&str>, u16, bool)> = few
        .ports
        .iter()
        .map(|port| (port.name.as_deref(), port.number, port.is_init))
        .collect();
    assert_eq!(found, [(Some("p80"), 80, false), (Some("p9"), 9, true)]);
    let many = with((1..=300).map(port).collect());
    assert_eq!(many.ports.len(), 256);
    let [field] = many.not_understood.as_slice() else {
        panic!("{:?}", many.not_understood)
    };
    assert_eq!(
        (field.found.as_str(), field.needed),
        ("301 ports", Needed::FewerPorts)
    );
}
