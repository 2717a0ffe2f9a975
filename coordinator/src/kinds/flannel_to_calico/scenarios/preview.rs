//! The preview of network policies through whole passes: policies and samples refuse the start, and the user accepts a denial.

use std::collections::BTreeMap;

use engine::check::Check;
use engine::cni::CniDirectory;
use flannel_to_calico::facts::{Bridge, CalicoObjects, Found, HostFacts, ReversePathFilter, VxlanDevice};
use flannel_to_calico::flannel::SubnetEnvironment;
use serde_json::{Value, json};

use super::{CALICO, FLANNEL, MIGRATION, NODES, node_migration, number_of, put_node, put_pod};
use crate::fake_api::FakeApi;
use crate::kinds::flannel_to_calico::preview::PreviewMemory;
use crate::memory::Memory;
use crate::pass::pass;

const SAMPLES: &str = "/apis/replumb.dev/v1alpha1/connectionsamples";
const POLICIES: &str = "/apis/networking.k8s.io/v1/namespaces";
/// Most passes until something is so.
const PASSES: usize = 200;

fn host(node: &str) -> Value {
    let number = number_of(node);
    let address = |text: String| text.parse().unwrap();
    let conflist =
        br#"{"name":"cbr0","cniVersion":"0.3.1","plugins":[{"type":"flannel"},{"type":"portmap"}]}"#;
    let facts = HostFacts {
        foreign_rules: Some(flannel_to_calico::foreign_rules::ForeignRules::default()),
        runtime: None,
        lacks_nf_tables: false,
        plugin: Some(flannel_to_calico::plugin::FlannelPlugin::usual(
            "10-flannel.conflist",
        )),
        cni: CniDirectory::read(
            "/etc/cni/net.d",
            vec![("10-flannel.conflist".to_owned(), conflist.to_vec())],
        ),
        vxlan_devices: vec![VxlanDevice {
            name: "flannel.1".to_owned(),
            vni: 1,
            port: 8472,
            mtu: 1450,
            local: Some(address(format!("192.168.0.{number}"))),
            parent: Some("eth0".to_owned()),
            learning: false,
            mac: format!("0a:00:00:00:00:{number:02x}"),
            up: true,
            addresses: vec![format!("10.244.{number}.0/32").parse().unwrap()],
            routes: 1,
            block_routes: 0,
            neighbours: 1,
            forwarding_entries: 1,
        }],
        bridge: Found::Present(Bridge {
            name: "cni0".to_owned(),
            mtu: 1450,
            addresses: vec![format!("10.244.{number}.1/24").parse().unwrap()],
            ports: Vec::new(),
            answers_for_pods: false,
            answered: Vec::new(),
            open: false,
        }),
        legacy_pods: Vec::new(),
        legacy_problems: Vec::new(),
        calico: CalicoObjects::default(),
        direct_routes: Vec::new(),
        reverse_path_filter: ReversePathFilter {
            all: 1,
            interfaces: BTreeMap::from([("eth0".to_owned(), 1), ("flannel.1".to_owned(), 1)]),
        },
        subnet_environment: Found::Present(SubnetEnvironment {
            network: "10.244.0.0/16".parse().unwrap(),
            subnet: format!("10.244.{number}.1/24").parse().unwrap(),
            mtu: 1450,
            ip_masquerade: true,
            ipv6: None,
        }),
        flanneld_running: true,
        unread_processes: Vec::new(),
        firewall: Vec::new(),
        unread_tables: Vec::new(),
        leases: 0,
        delegates: 0,
        detected_address: Some(address(format!("192.168.0.{number}"))),
        detected_ipv6_address: None,
        uplink: Some("eth0".to_owned()),
        bridge_nf_call_iptables: Some(true),
    };
    serde_json::to_value(facts).unwrap()
}

/// Two nodes on flannel, Calico's manifest, and a Migration that has not started. Every check passes.
fn planned() -> FakeApi {
    let api = FakeApi::default();
    for (node, number) in [("a", 1), ("b", 2)] {
        put_node(&api, node, number);
        let ready = json!({ "status": {
            "allocatable": { "cpu": "4", "memory": "8Gi", "pods": "110" },
        } });
        api.edit(&format!("{NODES}/{node}"), &ready);
    }
    put_sets(&api);
    let resources: Vec<Value> = [
        "blockaffinities",
        "clusterinformations",
        "felixconfigurations",
        "ipamblocks",
        "ipamconfigs",
        "ipamhandles",
        "ippools",
    ]
    .map(|name| json!({ "name": name, "singularName": "", "namespaced": false, "kind": "X", "verbs": ["list"] }))
    .into();
    api.put(
        "/apis/crd.projectcalico.org/v1",
        json!({ "kind": "APIResourceList", "groupVersion": "crd.projectcalico.org/v1", "resources": resources }),
    );
    for (namespace, labels) in [
        ("shop", json!({ "team": "a" })),
        ("crm", json!({})),
        ("default", json!({})),
    ] {
        api.put(
            &format!("/api/v1/namespaces/{namespace}"),
            json!({ "metadata": { "name": namespace, "labels": labels } }),
        );
    }
    put_workload(&api, "shop", "web", "a", "10.244.1.20");
    put_workload(&api, "shop", "db", "b", "10.244.2.20");
    put_workload(&api, "crm", "cli", "a", "10.244.1.21");
    api.put_migration(
        &json!({ "flannelToCalico": { "strategy": "InPlace" }, "desired": "Plan", "gates": { "traffic": "Ignore" } }),
        &api::MigrationStatus::default(),
    );
    api.take_changes();
    api
}

fn put_sets(api: &FakeApi) {
    let status = |pods: u32| {
        json!({
            "observedGeneration": 1, "desiredNumberScheduled": pods, "updatedNumberScheduled": pods,
            "numberAvailable": pods, "numberReady": pods, "currentNumberScheduled": pods, "numberMisscheduled": 0,
        })
    };
    api.put(
        FLANNEL,
        json!({
            "metadata": { "name": "kube-flannel-ds", "namespace": "kube-flannel", "generation": 1 },
            "spec": { "selector": {}, "template": { "spec": {
                "hostNetwork": true,
                "containers": [{
                    "name": "kube-flannel", "image": "ghcr.io/flannel-io/flannel:v0.28.4",
                    "command": ["/opt/bin/flanneld"], "args": ["--ip-masq", "--kube-subnet-mgr"],
                }],
                "volumes": [{ "name": "cfg", "configMap": { "name": "kube-flannel-cfg" } }],
            } } },
            "status": status(2),
        }),
    );
    let from = |name: &str, key: &str| json!({ "name": name, "valueFrom": { "configMapKeyRef": { "name": "calico-config", "key": key } } });
    api.put(
        CALICO,
        json!({
            "metadata": { "name": "calico-node", "namespace": "kube-system", "generation": 1 },
            "spec": { "selector": {}, "template": { "spec": {
                "hostNetwork": true,
                "nodeSelector": { "projectcalico.org/node-network-during-migration": "calico" },
                "initContainers": [{
                    "name": "install-cni", "image": "quay.io/calico/cni:v3.31.7",
                    "env": [{ "name": "CNI_CONF_NAME", "value": "10-calico.conflist" }],
                }],
                "containers": [{
                    "name": "calico-node", "image": "quay.io/calico/node:v3.31.7",
                    "env": [
                        { "name": "DATASTORE_TYPE", "value": "kubernetes" }, { "name": "IP", "value": "autodetect" },
                        { "name": "FELIX_DEFAULTENDPOINTTOHOSTACTION", "value": "ACCEPT" },
                        from("CALICO_NETWORKING_BACKEND", "calico_backend"), from("FELIX_VXLANMTU", "veth_mtu"),
                    ],
                }],
            } } },
            "status": status(0),
        }),
    );
    for (namespace, name, data) in [
        (
            "kube-flannel",
            "kube-flannel-cfg",
            json!({ "net-conf.json": r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"# }),
        ),
        (
            "kube-system",
            "calico-config",
            json!({ "calico_backend": "vxlan", "veth_mtu": "0" }),
        ),
    ] {
        api.put(
            &format!("/api/v1/namespaces/{namespace}/configmaps/{name}"),
            json!({ "metadata": { "namespace": namespace, "name": name }, "data": data }),
        );
    }
}

/// A running pod of a Deployment.
fn put_workload(api: &FakeApi, namespace: &str, app: &str, node: &str, address: &str) {
    let name = format!("{app}-{}", address.rsplit('.').next().unwrap());
    put_pod(api, namespace, &name, node, app, false, Some(address));
    let labels = json!({ "app": app, "pod-template-hash": "5d8f" });
    let owner = json!([{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{app}-5d8f"), "uid": app, "controller": true }]);
    api.edit(
        &format!("/api/v1/namespaces/{namespace}/pods/{name}"),
        &json!({ "metadata": {
            "labels": labels, "ownerReferences": owner, "creationTimestamp": "2026-01-01T00:00:00Z",
        } }),
    );
}

/// Only `shop/web` may connect to `shop/db`.
fn put_policy(api: &FakeApi) {
    let spec = json!({
        "podSelector": { "matchLabels": { "app": "db" } },
        "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "app": "web" } } }] }],
    });
    put_policy_of(api, "shop", "db-only-web", &spec);
}

fn put_policy_of(api: &FakeApi, namespace: &str, name: &str, spec: &Value) {
    api.put(
        &format!("{POLICIES}/{namespace}/networkpolicies/{name}"),
        json!({ "metadata": { "namespace": namespace, "name": name }, "spec": spec }),
    );
}

/// TCP connections to the port 5432.
fn connection(source: &str, destination: &str, count: u64) -> Value {
    json!({
        "protocol": 6, "source": source, "destination": destination, "port": 5432, "count": count, "replied": count,
        "first": "2026-06-01T00:00:00Z", "last": "2026-06-01T00:09:00Z",
    })
}

/// The agents have observed for so long, and have seen these connections on their nodes.
fn agents_saw(api: &FakeApi, seconds: i64, seen: &[(&str, Vec<Value>)]) {
    let since: jiff::Timestamp = "2026-06-01T00:00:00Z".parse().unwrap();
    let last = since + jiff::SignedDuration::from_secs(seconds);
    for sample in api.below(SAMPLES) {
        let node = sample["metadata"]["name"].as_str().unwrap();
        let connections = seen.iter().find(|(name, _)| *name == node);
        let connections = connections.map(|(_, connections)| connections.clone());
        api.edit(
            &format!("{SAMPLES}/{node}"),
            &json!({
                "metadata": { "creationTimestamp": "2026-06-01T00:00:00Z" },
                "status": { "since": since, "last": last, "connections": connections.unwrap_or_default() },
            }),
        );
    }
}

/// The coordinator with its memory, and agents that report their hosts.
struct Run {
    api: FakeApi,
    memory: Memory,
}

impl Run {
    fn of(api: FakeApi) -> Self {
        let mut memory = Memory::default();
        memory.kinds.of::<PreviewMemory>().set_pause(false);
        Self { api, memory }
    }

    async fn pass(&mut self) {
        // The cluster is read again without a pause.
        self.memory.checked_at = None;
        pass(&self.api.context(), &self.api.cache(), &mut self.memory)
            .await
            .unwrap();
        for node in ["a", "b"] {
            let path = node_migration(node);
            if let Some(object) = self.api.get(&path)
                && object["status"]["flannelToCalico"]["facts"].is_null()
            {
                let checks =
                    json!([{ "name": "HostReadable", "verdict": "Pass", "object": format!("Node {node}") }]);
                let report = json!({ "facts": host(node), "phase": "Flannel", "checks": checks });
                self.api.edit(
                    &path,
                    &json!({ "status": { "message": "", "flannelToCalico": report } }),
                );
            }
        }
        // A round is beside the passes.
        tokio::time::sleep(std::time::Duration::from_millis(2)).await;
    }

    fn status(&self) -> Value {
        self.api.get(MIGRATION).unwrap()["status"].clone()
    }

    fn phase(&self) -> String {
        self.status()["phase"].as_str().unwrap_or_default().to_owned()
    }

    fn preview(&self) -> Value {
        self.status()["flannelToCalico"]["policyPreview"].clone()
    }

    /// The lines of the check.
    fn checks(&self) -> Vec<Check> {
        let all: Vec<Check> = serde_json::from_value(self.status()["checks"].clone()).unwrap_or_default();
        let is_of_preview = |check: &Check| check.name == "PolicyPreview";
        all.into_iter().filter(is_of_preview).collect()
    }

    /// The first line of the check.
    fn found(&self) -> String {
        self.checks()
            .first()
            .map(|check| check.found.clone())
            .unwrap_or_default()
    }

    async fn until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        for _ in 0..PASSES {
            self.pass().await;
            if is_so(self) {
                return;
            }
        }
        panic!("not {what} after {PASSES} passes: {:#}", self.status());
    }

    /// Until rounds have seen everything that was put before.
    async fn until_found(&mut self, text: &str) {
        self.until(text, |run| run.found().contains(text)).await;
    }
}

#[tokio::test]
async fn a_cluster_without_policies_is_planned_and_not_sampled() {
    let mut run = Run::of(planned());
    run.until("Planned", |run| run.phase() == "Planned").await;
    assert_eq!(run.found(), "no policy begins to hold");
    assert_eq!(run.preview()["policies"], 0);
    run.api.edit(
        MIGRATION,
        &json!({ "spec": { "desired": "Run" }, "metadata": { "generation": 2 } }),
    );
    run.until("Preparing", |run| run.phase() == "Preparing").await;
    let changes = run.api.take_changes();
    assert!(
        !changes.iter().any(|(call, _)| call.contains("connectionsamples")),
        "{changes:?}"
    );
}

#[tokio::test]
async fn the_first_read_plans_a_cluster_without_policies_at_once() {
    let mut run = Run::of(planned());
    run.pass().await;
    run.pass().await;
    assert_eq!(run.phase(), "Planned", "{:#}", run.status());
}

#[tokio::test]
async fn a_connection_that_would_be_refused_refuses_the_start_until_it_is_accepted() {
    let api = planned();
    put_policy(&api);
    let mut run = Run::of(api);
    run.until_found("observed 0 s of 600 s").await;
    run.until("sampled", |run| !run.api.below(SAMPLES).is_empty())
        .await;
    assert_eq!(run.phase(), "Refused");
    let samples = run.api.below(SAMPLES);
    assert_eq!(samples.len(), 1, "only node b has a pod that the policy selects");
    assert_eq!(samples[0]["spec"]["ingress"], json!(["10.244.2.20"]));

    let web = connection("10.244.1.20", "10.244.2.20", 50);
    agents_saw(&run.api, 40, &[("b", vec![web.clone()])]);
    run.until_found("observed 40 s of 600 s").await;
    let cli = connection("10.244.1.21", "10.244.2.20", 214);
    agents_saw(&run.api, 600, &[("b", vec![web, cli])]);
    run.until_found("would be refused: crm/cli → shop/db:5432 TCP, seen 214 times; policy shop/db-only-web")
        .await;
    assert_eq!(run.phase(), "Refused");
    let preview = run.preview();
    assert_eq!(
        (&preview["policies"], &preview["selectedPods"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(
        preview["connections"],
        json!({ "allowed": 50, "refused": 214, "unknown": 0, "unanswered": 0 })
    );
    assert_eq!(preview["refused"][0]["client"], "crm/cli");
    assert_eq!(preview["observedSeconds"], 600);
    let metrics = run.api.context().metrics;
    let refused = metrics.preview_connections.with_label_values(&["Refused"]).get();
    assert_eq!((refused, metrics.dormant_policies.get()), (214, 1));

    // The start is refused, too.
    run.api.edit(MIGRATION, &json!({ "spec": { "desired": "Run" } }));
    run.pass().await;
    run.until("judged again", |run| run.phase() != "Planning").await;
    assert_eq!(run.phase(), "Refused");
    let accepted = json!({ "policyPreview": { "acceptedDenials": ["shop/db-only-web"] } });
    run.api
        .edit(MIGRATION, &json!({ "spec": { "flannelToCalico": accepted } }));
    run.until("Preparing", |run| run.phase() == "Preparing").await;
    assert_eq!(run.preview()["refused"][0]["isAccepted"], true);
    run.until("without samples", |run| run.api.below(SAMPLES).is_empty())
        .await;
}

#[tokio::test]
async fn a_policy_that_was_created_just_before_the_start_refuses_it() {
    let mut run = Run::of(planned());
    run.until("Planned", |run| run.phase() == "Planned").await;
    run.memory.kinds.of::<PreviewMemory>().set_pause(true);
    put_policy(&run.api);
    run.pass().await;
    assert_eq!(
        run.found(),
        "no policy begins to hold",
        "the next round is 30 s away"
    );
    run.api.edit(
        MIGRATION,
        &json!({ "spec": { "desired": "Run" }, "metadata": { "generation": 2 } }),
    );
    run.until("Refused", |run| run.phase() == "Refused").await;
    assert!(run.found().contains("observed 0 s of 600 s"), "{}", run.found());
}

#[tokio::test]
async fn a_list_that_is_refused_is_not_an_empty_one() {
    for path in [
        "/apis/networking.k8s.io/v1/networkpolicies",
        "/apis/policy.networking.k8s.io/v1alpha1/adminnetworkpolicies",
        "/apis/crd.projectcalico.org/v1/globalnetworkpolicies",
    ] {
        let api = planned();
        api.deny_reading(path, "denied by RBAC");
        let mut run = Run::of(api);
        run.until_found("denied by RBAC").await;
        assert_eq!(run.phase(), "Refused");
        assert_eq!(run.checks()[0].verdict.as_str(), "Unknown");
        assert!(
            run.preview()["unread"][0]
                .as_str()
                .unwrap()
                .contains("denied by RBAC")
        );
        run.api.allow_reading(path);
        run.until("Planned", |run| run.phase() == "Planned").await;
    }
}

#[tokio::test]
async fn what_was_observed_survives_a_failed_list_and_pods_that_are_away() {
    let api = planned();
    put_policy(&api);
    let mut run = Run::of(api);
    run.until("sampled", |run| !run.api.below(SAMPLES).is_empty())
        .await;
    agents_saw(&run.api, 600, &[]);
    run.until("Planned", |run| run.phase() == "Planned").await;
    let path = "/apis/networking.k8s.io/v1/networkpolicies";
    run.api.deny_reading(path, "timeout");
    run.until_found("timeout").await;
    run.api.allow_reading(path);
    run.until("Planned", |run| run.phase() == "Planned").await;
    run.api.remove("/api/v1/namespaces/shop/pods/db-20");
    run.until_found("1 policy begins to hold, for no pod").await;
    put_workload(&run.api, "shop", "db", "b", "10.244.2.22");
    run.until_found("1 policy begins to hold, for 1 pod; of 0 connections in 600 s none would be refused")
        .await;
    assert_eq!(
        run.api.below(SAMPLES)[0]["spec"]["ingress"],
        json!(["10.244.2.22"])
    );
    run.api
        .remove(&format!("{POLICIES}/shop/networkpolicies/db-only-web"));
    run.until("without samples", |run| run.api.below(SAMPLES).is_empty())
        .await;
}

#[tokio::test]
async fn samples_that_cannot_be_read_or_created_refuse() {
    let api = planned();
    put_policy(&api);
    api.deny(SAMPLES, "denied by a policy");
    let mut run = Run::of(api);
    run.until_found("connections cannot be observed").await;
    assert!(run.found().contains("denied by a policy"), "{}", run.found());
    run.api.refuse(None);
    run.api.deny_reading(SAMPLES, "denied by RBAC");
    run.until_found("denied by RBAC").await;
    assert_eq!(run.phase(), "Refused");
}

#[tokio::test]
async fn an_agent_that_cannot_observe_refuses_unless_nothing_is_to_be_observed() {
    let api = planned();
    put_policy(&api);
    let mut run = Run::of(api);
    run.until("sampled", |run| !run.api.below(SAMPLES).is_empty())
        .await;
    run.api.edit(
        &format!("{SAMPLES}/b"),
        &json!({ "status": { "problem": "operation not permitted" } }),
    );
    run.until_found("operation not permitted").await;
    assert_eq!(run.checks()[0].verdict.as_str(), "Unknown");
    let nothing = json!({ "flannelToCalico": { "policyPreview": { "observeSeconds": 0 } } });
    run.api.edit(MIGRATION, &json!({ "spec": nothing }));
    run.until("Planned", |run| run.phase() == "Planned").await;
    assert_eq!(run.checks()[0].verdict.as_str(), "Warn");
    run.until("without samples", |run| run.api.below(SAMPLES).is_empty())
        .await;
}

#[tokio::test]
async fn policies_for_no_pod_and_policies_of_other_namespaces_change_nothing() {
    let api = planned();
    put_policy_of(&api, "empty", "deny", &json!({ "podSelector": {} }));
    put_policy_of(
        &api,
        "shop",
        "none",
        &json!({ "podSelector": { "matchLabels": { "app": "x" } } }),
    );
    let mut run = Run::of(api);
    run.until("Planned", |run| run.phase() == "Planned").await;
    assert_eq!(run.found(), "2 policies begin to hold, for no pod");
    assert!(run.api.below(SAMPLES).is_empty());
}

#[tokio::test]
async fn connections_of_a_pod_that_ended_count_for_it_and_not_for_its_successor() {
    let api = planned();
    put_policy(&api);
    let mut run = Run::of(api);
    run.until("sampled", |run| !run.api.below(SAMPLES).is_empty())
        .await;
    let of_cli = json!({
        "protocol": 6, "source": "10.244.1.21", "destination": "10.244.2.20", "port": 5432, "count": 3, "replied": 3,
        "first": "2026-06-01T00:00:00Z", "last": "2026-06-01T00:00:10Z",
    });
    agents_saw(&run.api, 600, &[("b", vec![of_cli])]);
    run.until_found("would be refused: crm/cli").await;
    // The client ends, and a pod that may connect gets its address.
    run.api.remove("/api/v1/namespaces/crm/pods/cli-21");
    run.pass().await;
    put_workload(&run.api, "shop", "web", "a", "10.244.1.21");
    let now = jiff::Timestamp::now();
    run.api.edit(
        "/api/v1/namespaces/shop/pods/web-21",
        &json!({ "metadata": { "creationTimestamp": now } }),
    );
    for _ in 0..10 {
        run.pass().await;
        assert!(
            run.found().starts_with("would be refused: crm/cli"),
            "{}",
            run.found()
        );
    }
}

#[tokio::test]
async fn a_policy_that_cannot_be_read_is_unknown_for_its_namespace() {
    let api = planned();
    put_policy_of(
        &api,
        "shop",
        "odd",
        &json!({ "podSelector": { "matchLabels": "all" } }),
    );
    let mut run = Run::of(api);
    run.until("sampled", |run| run.api.below(SAMPLES).len() == 2)
        .await;
    let web = connection("10.244.1.20", "10.244.2.20", 5);
    agents_saw(&run.api, 600, &[("a", vec![web.clone()]), ("b", vec![web])]);
    run.until("Planned", |run| run.phase() == "Planned").await;
    run.until_found(
        "not known whether 10 connections would be refused: a field of the policy cannot be read",
    )
    .await;
    assert_eq!(run.preview()["unknown"][0]["reason"], "UnreadablePolicy");
}

#[tokio::test]
async fn many_policies_are_listed_by_the_number_of_their_pods() {
    let api = planned();
    for number in 0..300 {
        put_policy_of(
            &api,
            "idle",
            &format!("p-{number}"),
            &json!({ "podSelector": {} }),
        );
    }
    put_policy(&api);
    let mut run = Run::of(api);
    run.until("sampled", |run| !run.api.below(SAMPLES).is_empty())
        .await;
    agents_saw(&run.api, 600, &[]);
    run.until("Planned", |run| run.phase() == "Planned").await;
    let preview = run.preview();
    assert_eq!(preview["policies"], 301);
    assert_eq!(preview["dormantPolicies"].as_array().unwrap().len(), 30);
    assert_eq!(
        preview["dormantPolicies"][0]["policy"],
        "NetworkPolicy shop/db-only-web"
    );
}
