//! Tests of snapshots.

use super::*;

fn parse(text: &str) -> Result<Snapshot, SnapshotError> {
    Snapshot::parse(&format!(
        "apiVersion: replumb.dev/v1alpha1\nkind: ClusterSnapshot\n{text}"
    ))
}

#[test]
fn pods_and_reports_of_the_base_are_derived() {
    let (objects, reports) = parse("base: good-flannel-cluster").unwrap().complete().unwrap();
    let agents = objects.below("/api/v1/namespaces/replumb-system/pods").count();
    let web: Vec<&Value> = objects.below("/api/v1/namespaces/shop/pods").collect();
    assert_eq!((agents, web.len(), reports.len()), (3, 3, 3));
    let facts = &reports["worker-1"]["flannelToCalico"]["facts"];
    assert_eq!(facts["subnetEnvironment"]["present"]["subnet"], "10.244.1.1/24");
    let pods = facts["legacyPods"].as_array().unwrap();
    assert_eq!(
        facts["bridge"]["present"]["ports"].as_array().unwrap().len(),
        pods.len()
    );
    let own: Vec<&Value> = web
        .iter()
        .filter(|pod| pod["spec"]["nodeName"] == "worker-1")
        .map(|pod| &pod["status"]["podIP"])
        .collect();
    assert!(pods.iter().any(|pod| pod["addresses"][0] == *own[0]), "{pods:?}");
}

#[test]
fn objects_and_hosts_are_changed_replaced_and_removed() {
    let text = "
base: good-flannel-cluster
patches:
  - object: {kind: Node, name: worker-1}
    patch: {status: {nodeInfo: {kernelVersion: 5.4.0}}}
absent:
  - {kind: Deployment, namespace: shop, name: web}
hosts:
  worker-2: null
served:
  crd.projectcalico.org/v1: null
";
    let (objects, reports) = parse(text).unwrap().complete().unwrap();
    assert_eq!(
        objects.get("/api/v1/nodes/worker-1").unwrap()["status"]["nodeInfo"]["kernelVersion"],
        "5.4.0"
    );
    assert_eq!(objects.below("/api/v1/namespaces/shop/pods").count(), 0);
    assert_eq!(reports.keys().collect::<Vec<_>>(), ["control-1", "worker-1"]);
    assert!(objects.get("/apis/crd.projectcalico.org/v1").is_none());
}

#[test]
fn a_wrong_document_is_refused_with_its_place() {
    let words = |text: &str| match parse(text).and_then(Snapshot::complete) {
        Ok(_) => panic!("accepted: {text}"),
        Err(error) => error.to_string(),
    };
    assert!(words("base: best-cluster").contains("\"best-cluster\", needed one of good-flannel-cluster"));
    assert!(words("bases: x").contains("bases"));
    let patch = "base: good-flannel-cluster\npatches: [{object: {kind: Node, name: worker-9}, patch: {}}]";
    assert_eq!(words(patch), "patches: no object matches Node */worker-9");
    let absent = "base: good-flannel-cluster\nabsent: [{kind: Pod, namespace: shop, name: web}]";
    assert_eq!(words(absent), "absent: no object matches Pod shop/web");
    let host = "base: good-flannel-cluster\nhosts: {worker-9: {}}";
    assert_eq!(
        words(host),
        "hosts: report of node worker-9: the snapshot has no such Node"
    );
    let fact =
        "base: good-flannel-cluster\nhosts: {worker-1: {flannelToCalico: {facts: {flanneldRunning: maybe}}}}";
    assert!(words(fact).contains("report of node worker-1"), "{}", words(fact));
    let placeholder = "base: good-flannel-cluster\nhosts: {worker-1: {message: \"{{ colour }}\"}}";
    assert!(
        words(placeholder).contains("{{ colour }}"),
        "{}",
        words(placeholder)
    );
    assert!(
        Snapshot::parse("kind: Node")
            .unwrap_err()
            .to_string()
            .contains("needed kind ClusterSnapshot")
    );
}
