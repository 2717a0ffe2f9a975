use serde_json::json;

use super::fixture::documents;
use super::*;

#[test]
fn the_manifest_of_kops_is_split_into_its_parts() {
    let manifest = read(&documents()).unwrap();
    assert_eq!(manifest.image(), "calico/node:v3.8.9");
    assert_eq!(manifest.etcd.endpoints, ["http://10.0.0.1:2379"]);
    assert!(manifest.controllers.is_some() && manifest.configuration.is_some());
    let others: Vec<String> = manifest
        .others
        .iter()
        .map(|object| Name::of(object).display())
        .collect();
    assert_eq!(others, ["ServiceAccount kube-system/calico-node"]);
    assert_eq!(
        manifest.omitted,
        [
            "Job kube-system/calico-complete-upgrade-v331",
            "ServiceAccount kube-system/calico-upgrade-job",
            "DaemonSet kube-system/calico-node, init container migrate",
            "Deployment kube-system/calico-kube-controllers, init container migrate",
        ]
    );
    let first = manifest.daemon_set["spec"]["template"]["spec"]["initContainers"]
        .as_array()
        .unwrap();
    assert_eq!(first.len(), 1, "install-cni stays");
}

#[test]
fn each_problem_of_a_manifest_is_reported() {
    let with = |change: &dyn Fn(&mut Vec<Value>)| {
        let mut all = documents();
        change(&mut all);
        read(&all).unwrap_err().join("; ")
    };
    assert!(read(&[]).unwrap_err()[0].contains("DaemonSet with a container calico-node: 0, needed 1"));
    let secret = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "namespace": "kube-system", "name": "calico-etcd-secrets" }, "data": { "etcd-key": "eA==" } });
    assert!(
        with(&|all| all.push(secret.clone())).contains("Secret kube-system/calico-etcd-secrets has data")
    );
    assert!(with(&|all| all[0]["data"] = json!({})).contains("etcd_endpoints"));
    assert!(with(&|all| all.push(all[2].clone())).contains("calico-node: 2, needed 1"));
    assert!(with(&|all| all.push(json!({ "spec": {} }))).contains("no kind"));
}

#[test]
fn file_modes_are_read_as_octal_numbers() {
    let mut all = documents();
    all[2]["spec"]["template"]["spec"]["volumes"] = json!([{ "name": "etcd-certs", "secret": { "secretName": "s", "defaultMode": "0400",
        "items": [{ "key": "k", "path": "p", "mode": "0644" }] } }, { "name": "b", "configMap": { "name": "c", "defaultMode": 256 } }]);
    let manifest = read(&all).unwrap();
    let volumes = &manifest.daemon_set["spec"]["template"]["spec"]["volumes"];
    assert_eq!(volumes[0]["secret"]["defaultMode"], 256);
    assert_eq!(volumes[0]["secret"]["items"][0]["mode"], 0o644);
    assert_eq!(volumes[1]["configMap"]["defaultMode"], 256);
}

#[test]
fn the_first_difference_from_the_manifest_is_named() {
    let role = |rules: Value| json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "rules": rules });
    let wanted = role(json!([{ "apiGroups": [""], "resources": ["pods"], "verbs": ["get"] }]));
    let mut found = wanted.clone();
    found["apiVersion"] = json!("rbac.authorization.k8s.io/v1beta1");
    found["metadata"] = json!({ "uid": "x" });
    assert_eq!(difference(&wanted, &found), None);
    found["rules"][0]["verbs"] = json!(["list"]);
    assert_eq!(
        difference(&wanted, &found).as_deref(),
        Some("rules[0].verbs[0] differs")
    );
    let empty = json!({ "kind": "Secret", "data": {} });
    assert_eq!(
        difference(&empty, &json!({ "kind": "Secret", "type": "Opaque" })),
        None
    );
}

#[test]
fn the_version_is_read_from_the_tag() {
    for (image, version) in [
        ("calico/node:v3.8.9", Some((3, 8))),
        ("registry:5000/calico/node:v2.6.12", Some((2, 6))),
        ("quay.io/calico/node:v3.31.7@sha256:ab", Some((3, 31))),
        ("registry:5000/calico/node", None),
        ("calico/node:latest", None),
    ] {
        assert_eq!(version_of(image), version, "{image}");
    }
}
