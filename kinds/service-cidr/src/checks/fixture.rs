//! A small good cluster for tests: two workers, Services of most classes, and pods that have received their addresses.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{CheckName, CheckPolicy, PERMISSIONS, check};
use crate::detect::detect;
use crate::facts::{ApiServer, ClusterFacts};
use crate::host::{HostFacts, ProxyMode};
use crate::ranges::{DEFAULT, ServiceCidr};
use crate::settings::Settings;
use engine::check::{Check, Verdict};
use engine::cluster::Node;
use engine::drain::Pod;
use engine::found::Found;
use engine::local_traffic::LocalTraffic;

/// The old range.
pub(crate) const FROM: &str = "10.96.0.0/16";
/// The new range.
pub(crate) const TO: &str = "172.31.0.0/16";

/// Settings detected from these facts.
pub(crate) fn settings(facts: &ClusterFacts) -> Settings {
    settings_to(TO, facts)
}

pub(crate) fn settings_to(to: &str, facts: &ClusterFacts) -> Settings {
    detect(&[to.parse().unwrap()], facts).unwrap()
}

/// The default options of the user.
pub(crate) fn policy() -> CheckPolicy {
    CheckPolicy {
        keep_load_balancers: true,
        services_at_once: 10,
        ..CheckPolicy::default()
    }
}

/// Every check of the good cluster after a change.
pub(crate) fn judge(change: impl FnOnce(&mut ClusterFacts)) -> Vec<Check> {
    judge_with(change, &policy())
}

pub(crate) fn judge_with(change: impl FnOnce(&mut ClusterFacts), policy: &CheckPolicy) -> Vec<Check> {
    let mut facts = cluster();
    change(&mut facts);
    check(&settings(&facts), &facts, policy)
}

/// The only line of one check that does not pass; every other check has to pass.
pub(crate) fn only(checks: &[Check], name: CheckName) -> Check {
    let wrong: Vec<&Check> = checks
        .iter()
        .filter(|check| check.verdict != Verdict::Pass)
        .collect();
    let [wrong] = wrong.as_slice() else {
        panic!("{wrong:#?}");
    };
    assert_eq!(wrong.name, name.as_str());
    assert!(
        !wrong.found.is_empty() && !wrong.needed.is_empty() && !wrong.fix.is_empty(),
        "{wrong:#?}"
    );
    (*wrong).clone()
}

fn node(name: &str, index: u8) -> Node {
    Node {
        name: name.to_owned(),
        pod_cidrs: vec![format!("10.244.{index}.0/24")],
        ready: true,
        internal_addresses: vec![format!("192.168.0.{index}").parse().unwrap()],
        operating_system: "linux".to_owned(),
        kernel_version: "6.18.0".to_owned(),
        ..Node::default()
    }
}

fn host() -> HostFacts {
    HostFacts {
        proxy_mode: Found::Present(ProxyMode::Iptables),
        missing_ports: Found::Present(Vec::new()),
        local_traffic: Found::Present(LocalTraffic {
            ranges: vec!["10.244.0.0/16".parse().unwrap()],
            links: Vec::new(),
        }),
        cluster_dns: Found::Present(vec!["10.96.0.10".parse().unwrap()]),
        api_server: "192.168.0.100".to_owned(),
        ..HostFacts::default()
    }
}

/// The host of node b.
pub(crate) fn host_mut(facts: &mut ClusterFacts) -> &mut HostFacts {
    facts.hosts.get_mut("b").unwrap()
}

/// A Service as stored; `spec` is merged into a minimal one.
pub(crate) fn service(name: &str, address: &str, spec: &Value) -> Value {
    let (namespace, name) = name.split_once('/').unwrap();
    let mut service = json!({
        "metadata": { "namespace": namespace, "name": name, "uid": name, "resourceVersion": "7" },
        "spec": {
            "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address],
            "ports": [{ "name": "http", "port": 80, "protocol": "TCP" }],
        },
    });
    for (field, value) in spec.as_object().unwrap() {
        service["spec"][field] = value.clone();
    }
    service
}

/// A pod of a Deployment of namespace shop.
pub(crate) fn pod(name: &str) -> Pod {
    Pod {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: name.to_owned(),
        node: "a".to_owned(),
        labels: [("pod-template-hash".to_owned(), "5d8f".to_owned())].into(),
        controller: Some(("ReplicaSet".to_owned(), "web-5d8f".to_owned())),
        ready: true,
        ..Pod::default()
    }
}

/// Nodes a and b, with which every check passes.
pub(crate) fn cluster() -> ClusterFacts {
    let names = [("a", 1), ("b", 2)];
    let plain = json!({});
    let mut name_service = service("kube-system/kube-dns", "10.96.0.10", &plain);
    name_service["metadata"]["labels"] = json!({ "k8s-app": "kube-dns" });
    ClusterFacts {
        api_version: Some("v1".to_owned()),
        ranges: vec![ServiceCidr {
            name: DEFAULT.to_owned(),
            ranges: vec![FROM.parse().unwrap()],
            ready: true,
            terminating: false,
        }],
        services: vec![
            service("default/kubernetes", "10.96.0.1", &plain),
            name_service,
            service("shop/web", "10.96.3.7", &plain),
            service(
                "shop/door",
                "10.96.3.8",
                &json!({ "type": "NodePort", "sessionAffinity": "ClientIP", "ports": [{ "port": 80, "nodePort": 30080 }] }),
            ),
            service(
                "shop/near",
                "10.96.3.9",
                &json!({ "internalTrafficPolicy": "Local" }),
            ),
            service("shop/front", "10.96.200.9", &json!({ "type": "LoadBalancer" })),
            service("shop/peers", "None", &plain),
            service(
                "shop/other",
                "",
                &json!({ "type": "ExternalName", "externalName": "example.org" }),
            ),
        ],
        nodes: names
            .map(|(name, index)| (name.to_owned(), node(name, index)))
            .into(),
        hosts: names.map(|(name, _)| (name.to_owned(), host())).into(),
        pod_ranges: vec![("Node a".to_owned(), "10.244.1.0/24".parse().unwrap())],
        api_servers: [(
            "192.168.0.100".parse().unwrap(),
            ApiServer {
                ranges: Ok(vec![FROM.parse().unwrap()]),
                addresses: Ok(vec!["10.96.0.1".parse().unwrap(), "172.31.0.1".parse().unwrap()]),
            },
        )]
        .into(),
        corefiles: vec![(
            "ConfigMap kube-system/coredns".to_owned(),
            ".:53 {\n health {\n  lameduck 5s\n }\n kubernetes cluster.local in-addr.arpa {\n }\n}"
                .to_owned(),
        )],
        policies: engine::check::policies::all_bound(),
        permissions: PERMISSIONS
            .iter()
            .map(|permission| (permission.key(), true))
            .collect::<BTreeMap<_, _>>(),
        pods: vec![pod("web-1"), pod("web-2")].into(),
        own_path: "192.168.0.100".to_owned(),
        ..ClusterFacts::default()
    }
}
