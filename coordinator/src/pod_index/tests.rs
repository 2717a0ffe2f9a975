use api::names;
use serde_json::{Value, json};

use super::*;

fn pod(name: &str, node: &str) -> Value {
    json!({
        "metadata": { "namespace": "shop", "name": name, "uid": name, "labels": { "app": "web" } },
        "spec": { "nodeName": node, "containers": [] },
        "status": { "phase": "Running" },
    })
}

fn own(name: &str, component: &str) -> Value {
    json!({
        "metadata": {
            "namespace": "replumb-system", "name": name, "uid": name, "labels": { names::COMPONENT_LABEL: component },
        },
        "spec": { "nodeName": "a", "containers": [] },
    })
}

fn from(value: &Value) -> Lenient<Pod> {
    serde_json::from_value(value.clone()).unwrap()
}

fn store(pods: &[Value]) -> PodStore {
    PodStore::of("replumb-system", pods.iter().map(from))
}

fn names_on(index: &Index, node: &str) -> Vec<String> {
    index.on(node).iter().map(|pod| pod.name.clone()).collect()
}

#[test]
fn pods_are_grouped_by_node_and_sorted_by_name() {
    let index = store(&[pod("c", "a"), pod("b", "b"), pod("a", "a"), pod("d", "")]).index();
    assert_eq!(names_on(&index, "a"), ["a", "c"]);
    assert_eq!(names_on(&index, "b"), ["b"]);
    assert_eq!(names_on(&index, "nowhere"), [""; 0]);
    let all: Vec<String> = index.pods().iter().map(|pod| pod.name.clone()).collect();
    assert_eq!(all, ["d", "a", "c", "b"]);
}

#[test]
fn a_bound_pod_is_listed_on_its_node_only() {
    let store = store(&[pod("a", "")]);
    assert!(store.keep(Event::Apply(from(&pod("a", "n")))));
    let index = store.index();
    assert_eq!((names_on(&index, "").len(), names_on(&index, "n").len()), (0, 1));
    assert!(store.keep(Event::Delete(from(&pod("a", "n")))));
    assert!(store.index().pods().is_empty());
    assert!(!store.keep(Event::Delete(from(&pod("a", "n")))));
}

#[test]
fn a_change_of_unused_fields_wakes_no_pass() {
    let store = store(&[pod("a", "n")]);
    let mut again = pod("a", "n");
    again["metadata"]["resourceVersion"] = json!("2");
    again["metadata"]["annotations"] = json!({ "note": "x" });
    again["status"]["startTime"] = json!("2026-01-01T00:00:00Z");
    assert!(!store.keep(Event::Apply(from(&again))));
    again["status"]["phase"] = json!("Failed");
    assert!(store.keep(Event::Apply(from(&again))));
    assert!(store.index().pods()[0].finished);
}

#[test]
fn a_taken_index_does_not_change() {
    let store = store(&[pod("a", "n"), pod("b", "m")]);
    let before = store.index();
    store.keep(Event::Delete(from(&pod("a", "n"))));
    store.keep(Event::Apply(from(&pod("c", "n"))));
    assert_eq!(names_on(&before, "n"), ["a"]);
    assert_eq!(names_on(&store.index(), "n"), ["c"]);
    // An unchanged node is shared.
    assert!(Arc::ptr_eq(&before.by_node["m"], &store.index().by_node["m"]));
}

/// A pod whose `metadata.managedFields` has a time that the types cannot read, as the API server returns it.
fn with_unreadable_time(mut pod: Value) -> Lenient<Pod> {
    pod["metadata"]["managedFields"] = json!([{ "manager": "odd", "time": "10000-01-01T00:59:59Z" }]);
    assert!(serde_json::from_value::<Pod>(pod.clone()).is_err());
    serde_json::from_value(pod).unwrap()
}

#[test]
fn a_pod_with_an_unreadable_time_is_updated_and_deleted() {
    let store = store(&[pod("a", "n"), pod("b", "n")]);
    let mut finished = pod("a", "n");
    finished["status"]["phase"] = json!("Failed");
    assert!(store.keep(Event::Apply(with_unreadable_time(finished.clone()))));
    let index = store.index();
    assert!(index.on("n").iter().next().unwrap().finished);
    assert_eq!(
        index.unreadable().count(),
        0,
        "all fields that decisions read are readable"
    );
    assert!(store.keep(Event::Delete(with_unreadable_time(finished))));
    assert_eq!(names_on(&store.index(), "n"), ["b"]);
    store.keep(Event::Init);
    store.keep(Event::InitApply(with_unreadable_time(pod("c", "m"))));
    assert!(store.keep(Event::InitDone));
    assert_eq!(names_on(&store.index(), "m"), ["c"]);
}

#[test]
fn a_pod_with_an_unreadable_node_is_kept_once_and_deleted() {
    let unreadable = || {
        let mut pod = pod("a", "n");
        pod["spec"]["nodeName"] = json!(7);
        serde_json::from_value::<Lenient<Pod>>(pod).unwrap()
    };
    let store = store(&[pod("a", "n")]);
    assert!(store.keep(Event::Apply(unreadable())));
    let index = store.index();
    assert_eq!((names_on(&index, "n").len(), names_on(&index, "").len()), (0, 1));
    let odd: Vec<String> = index
        .unreadable()
        .map(|pod| pod.not_understood[0].to_string())
        .collect();
    assert_eq!(
        odd,
        [
            "spec.nodeName: found invalid type: integer `7`, expected a string, needed a value that the coordinator can read"
        ]
    );
    // The last event has no readable node, unlike the one before.
    store.keep(Event::Apply(from(&pod("a", "n"))));
    assert!(store.keep(Event::Delete(unreadable())));
    assert!(store.index().pods().is_empty());
    assert_eq!(store.index().unreadable().count(), 0);
}

#[test]
fn a_pod_missed_by_the_watch_is_forgotten_by_its_uid() {
    let store = store(&[pod("a", "n")]);
    let name = |uid: &str| PodName {
        namespace: "shop".to_owned(),
        name: "a".to_owned(),
        uid: uid.to_owned(),
    };
    assert!(
        !store.forget(&name("another")),
        "a pod of the same name is another pod"
    );
    assert!(store.forget(&name("a")));
    assert!(store.index().pods().is_empty());
    assert!(!store.forget(&name("a")));
}

#[test]
fn a_new_list_shares_known_pods_and_drops_missing_ones() {
    let store = store(&[pod("a", "n"), pod("b", "n"), pod("c", "n")]);
    let before = store.index();
    assert!(!store.keep(Event::Init));
    let mut other = pod("b", "n");
    other["metadata"]["uid"] = json!("another");
    for pod in [pod("a", "n"), other] {
        assert!(!store.keep(Event::InitApply(from(&pod))));
    }
    assert_eq!(store.index().pods().len(), 3, "the list is not complete");
    assert!(store.keep(Event::InitDone));
    let after = store.index();
    assert_eq!(names_on(&after, "n"), ["a", "b"]);
    let at = |index: &Index, place| Arc::clone(index.on("n").shared().nth(place).unwrap());
    assert!(Arc::ptr_eq(&at(&before, 0), &at(&after, 0)));
    assert_eq!(at(&after, 1).uid, "another");
    // An equal list wakes no pass.
    store.keep(Event::Init);
    for pod in &after.pods() {
        let mut same = self::pod(&pod.name, "n");
        same["metadata"]["uid"] = json!(pod.uid);
        store.keep(Event::InitApply(from(&same)));
    }
    assert!(!store.keep(Event::InitDone));
}

#[test]
fn an_interrupted_list_is_ignored() {
    let store = store(&[pod("a", "n")]);
    store.keep(Event::Init);
    store.keep(Event::InitApply(from(&pod("b", "n"))));
    store.keep(Event::Init);
    store.keep(Event::InitApply(from(&pod("c", "n"))));
    store.keep(Event::InitDone);
    assert_eq!(names_on(&store.index(), "n"), ["c"]);
}

#[test]
fn probe_and_traffic_pods_are_kept_apart() {
    let ours = own("traffic", names::TRAFFIC_COMPONENT);
    let store = store(&[ours.clone(), own("agent", "agent")]);
    let index = store.index();
    assert_eq!(names_on(&index, "a"), ["agent"]);
    assert_eq!(index.own().count(), 1);
    // Without the label it is a pod like any other.
    let mut plain = ours;
    plain["metadata"]["labels"] = json!({});
    store.keep(Event::Apply(from(&plain)));
    let index = store.index();
    assert_eq!(names_on(&index, "a"), ["agent", "traffic"]);
    assert_eq!(index.own().count(), 0);
}

#[test]
fn a_foreign_pod_with_the_component_label_is_foreign() {
    let mut pod = pod("x", "n");
    pod["metadata"]["labels"] = json!({ names::COMPONENT_LABEL: names::PROBE_COMPONENT });
    let index = store(&[pod]).index();
    assert_eq!((index.own().count(), names_on(&index, "n").len()), (0, 1));
}

/// An ordinary pod: two containers with 14 variables each and probes; about 12 KB of JSON.
fn ordinary(number: usize) -> Vec<u8> {
    let variables: Vec<Value> = (0..14)
            .map(|index| json!({ "name": format!("SETTING_NUMBER_{index}"), "value": format!("https://service-{index}.shop.svc:8443/path") }))
            .collect();
    let probe =
        json!({ "httpGet": { "path": "/healthz", "port": 8080 }, "periodSeconds": 10, "timeoutSeconds": 1 });
    let container = |name: &str| {
        json!({
            "name": name, "image": format!("registry.example.com/shop/{name}:1.27.3"), "env": variables,
            "livenessProbe": probe, "readinessProbe": probe, "startupProbe": probe,
            "resources": { "requests": { "cpu": "250m", "memory": "256Mi" }, "limits": { "memory": "512Mi" } },
            "volumeMounts": [{ "name": "cache", "mountPath": "/cache" }],
        })
    };
    let fields: Value = (0..60)
        .map(|index| (format!("f:field-{index}"), json!({ "f:value": {}, ".": {} })))
        .collect();
    let workload = format!("web-{}-5d8f7c9b6d", number / 20);
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "namespace": format!("team-{}", number / 200), "name": format!("{workload}-{number:05}"),
            "uid": format!("0f0e0d0c-0b0a-4908-8706-{number:012}"), "resourceVersion": number.to_string(),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": { "app.kubernetes.io/name": "web", "app.kubernetes.io/instance": workload, "pod-template-hash": "5d8f7c9b6d" },
            "ownerReferences": [{
                "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": workload, "uid": "u", "controller": true }],
            "managedFields": [{ "manager": "kubelet", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": fields }],
        },
        "spec": {
            "nodeName": format!("ip-10-0-{}-{}.eu-west-1.compute.internal", number / 30 / 250, number / 30 % 250),
            "containers": [container("web"), container("side")],
            "volumes": [{ "name": "cache", "emptyDir": {} }, { "name": "token", "projected": { "sources": [] } }],
        },
        "status": {
            "phase": "Running", "podIP": "10.244.1.5", "podIPs": [{ "ip": "10.244.1.5" }],
            "conditions": [{ "type": "Ready", "status": "True" }, { "type": "PodScheduled", "status": "True" }],
        },
    });
    serde_json::to_vec(&pod).unwrap()
}

/// Anonymous memory of this process.
fn anonymous() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))
        .unwrap();
    line.trim()
        .trim_end_matches("kB")
        .trim()
        .parse::<usize>()
        .unwrap()
        * 1024
}

/// `cargo test -p coordinator --lib pod_index::tests::memory -- --ignored --nocapture --exact`; docs/limits.md has the results.
#[test]
#[ignore = "a benchmark that needs memory and time"]
fn memory() {
    let store = PodStore::new("replumb-system");
    let before = anonymous();
    store.keep(Event::Init);
    let mut count = 0;
    for next in [4_000, 150_000] {
        while count < next {
            store.keep(Event::InitApply(
                serde_json::from_slice(&ordinary(count)).unwrap(),
            ));
            count += 1;
        }
        let more = anonymous() - before;
        println!(
            "{count} pods: {} MiB, {} bytes each; JSON of one: {} bytes",
            more >> 20,
            more / count,
            ordinary(0).len()
        );
    }
    store.keep(Event::InitDone);
    store.keep(Event::Init);
    for number in 0..count {
        store.keep(Event::InitApply(
            serde_json::from_slice(&ordinary(number)).unwrap(),
        ));
    }
    assert!(!store.keep(Event::InitDone), "an equal list wakes no pass");
    let more = anonymous() - before;
    println!("after a repeated list: {} MiB", more >> 20);
    let started = std::time::Instant::now();
    let index = store.index();
    println!("reading the index: {:?}; all pods as a list: ", started.elapsed());
    let pods = index.pods();
    println!("{:?} for {}", started.elapsed(), pods.len());
    assert!(more < 200 << 20, "{} MiB", more >> 20);
}
