//! Tests of what kube-proxy is told.

use k8s_openapi::api::core::v1::Pod;
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::lenient::Lenient;
use crate::pod_index::PodStore;

fn map(name: &str, key: &str, text: &str) -> ConfigMap {
    let metadata = json!({ "namespace": "kube-system", "name": name });
    serde_json::from_value(json!({ "metadata": metadata, "data": { key: text } })).unwrap()
}

fn set(arguments: &[&str]) -> DaemonSet {
    DaemonSet {
        namespace: "kube-system".to_owned(),
        name: "kube-proxy".to_owned(),
        containers: vec![Container {
            name: "kube-proxy".to_owned(),
            arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
            ..Container::default()
        }],
        config_maps: vec!["kube-proxy".to_owned(), "kube-proxy-config".to_owned()],
        desired: 3,
        ..DaemonSet::default()
    }
}

/// Static pods of this command line on two nodes.
fn static_pods(namespace: &str, arguments: &[&str]) -> PodStore {
    let pod = |node: &str| -> Lenient<Pod> {
        serde_json::from_value(json!({
            "metadata": {
                "namespace": namespace, "name": format!("kube-proxy-{node}"),
                "annotations": { "kubernetes.io/config.mirror": "1" },
                "ownerReferences": [{ "apiVersion": "v1", "kind": "Node", "name": node, "uid": node, "controller": true }],
            },
            "spec": { "nodeName": node, "hostNetwork": true, "containers": [{ "name": "kube-proxy", "command": arguments }] },
        }))
        .unwrap()
    };
    PodStore::of("replumb-system", vec![pod("a").object, pod("b").object])
}

fn said(found: &KubeProxies) -> Vec<(String, Vec<String>)> {
    let uses = found.uses.iter();
    uses.map(|found| {
        (
            found.object.clone(),
            found.ranges.iter().map(ToString::to_string).collect(),
        )
    })
    .collect()
}

const YAML: &str = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nclusterCIDR: 10.244.0.0/16\n";

#[rstest]
#[case::kubeadm("kube-proxy", "config.conf", YAML.to_owned(), &["10.244.0.0/16"])]
#[case::eks("kube-proxy-config", "config", YAML.to_owned(), &["10.244.0.0/16"])]
#[case::one_line("kube-proxy", "config.conf", r#"{"kind":"KubeProxyConfiguration","clusterCIDR":"10.244.0.0/16"}"#.to_owned(), &["10.244.0.0/16"])]
#[case::explicit("kube-proxy", "config.conf", format!("{YAML}detectLocalMode: ClusterCIDR\n"), &["10.244.0.0/16"])]
#[case::other_mode("kube-proxy", "config.conf", format!("{YAML}detectLocalMode: InterfaceNamePrefix\n"), &[])]
#[case::empty("kube-proxy", "config.conf", YAML.replace("10.244.0.0/16", "\"\""), &[])]
fn a_configuration_is_read_under_any_name(
    #[case] name: &str,
    #[case] key: &str,
    #[case] text: String,
    #[case] expected: &[&str],
) {
    let sets = [set(&["kube-proxy", "--config=/var/lib/kube-proxy/config.conf"])];
    assert!(config_maps(&sets).contains(&("kube-system".to_owned(), name.to_owned())));
    let found = observe(
        &[map(name, key, &text)],
        &sets,
        &PodStore::new("replumb-system").index(),
    );
    assert!(found.is_known);
    let ranges: Vec<String> = said(&found).into_iter().flat_map(|(_, ranges)| ranges).collect();
    assert_eq!(ranges, expected);
}

/// kops#12607.
#[test]
fn flags_of_static_pods_are_one_use() {
    let pods = static_pods(
        "kube-system",
        &["/usr/local/bin/kube-proxy", "--cluster-cidr=10.244.0.0/16"],
    );
    let found = observe(&[], &[], &pods.index());
    assert!(found.is_known);
    let [(object, ranges)] = &said(&found)[..] else {
        panic!("{found:?}")
    };
    assert!(
        object.contains("kube-system/kube-proxy-a") && object.contains("kube-proxy-b"),
        "{object}"
    );
    assert_eq!(ranges, &["10.244.0.0/16"]);
    assert!(found.uses[0].fix.contains("spec.kubeProxy.clusterCIDR"));
    // A tenant's program is not the cluster's.
    let pods = static_pods("shop", &["kube-proxy", "--cluster-cidr=10.244.0.0/16"]);
    assert_eq!(observe(&[], &[], &pods.index()), KubeProxies::default());
}

#[test]
fn flags_of_a_daemon_set_count_unless_a_file_overrides_them() {
    let none = PodStore::new("replumb-system").index();
    let flags = [set(&[
        "kube-proxy",
        "--cluster-cidr=10.244.0.0/16,fd00:10:244::/56",
    ])];
    let found = observe(&[], &flags, &none);
    assert_eq!(
        said(&found)[0].0,
        "DaemonSet kube-system/kube-proxy: --cluster-cidr of kube-proxy"
    );
    assert!(
        found.uses[0].fix.contains("change only the one of this family"),
        "{}",
        found.uses[0].fix
    );
    let other = [set(&[
        "kube-proxy",
        "--cluster-cidr=10.244.0.0/16",
        "--detect-local-mode=NodeCIDR",
    ])];
    let found = observe(&[], &other, &none);
    assert!(found.is_known && found.uses.is_empty());
    let value = [set(&["kube-proxy", "--cluster-cidr=$(CLUSTER_CIDR)"])];
    assert_eq!(
        observe(&[], &value, &none),
        KubeProxies::default(),
        "the value is not known"
    );
    let file = [set(&[
        "kube-proxy",
        "--config=/etc/kube-proxy.yaml",
        "--cluster-cidr=10.244.0.0/16",
    ])];
    assert_eq!(
        observe(&[], &file, &none),
        KubeProxies::default(),
        "the file is on the host"
    );
}

/// A ConfigMap of a kube-proxy that was removed says nothing of the program that replaced it.
#[test]
fn a_configuration_without_a_kube_proxy_is_not_known() {
    let none = PodStore::new("replumb-system").index();
    let maps = [map("kube-proxy", "config.conf", YAML)];
    assert_eq!(observe(&maps, &[], &none), KubeProxies::default());
    let mut removed = set(&["kube-proxy", "--config=/var/lib/kube-proxy/config.conf"]);
    removed.desired = 0;
    assert_eq!(observe(&maps, &[removed], &none), KubeProxies::default());
}
