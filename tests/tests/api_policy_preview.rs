//! The preview of network policies on the real API server, with the coordinator's loop and token: schema, rights, and the start that
//! is refused until the user accepts. Hollow agents report hosts; the test writes what they have seen.
//!
//! Run by `cargo lab test`, or `cargo test -p lab --test api_policy_preview -- --ignored`.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test says that it failed by a panic"
)]

use std::sync::Arc;
use std::time::Duration;

use api::{ConnectionSample, Migration, MigrationStatus, names};
use coordinator::cache::Cache;
use coordinator::context::Context;
use coordinator::events::EventRecorder;
use coordinator::health::Health;
use coordinator::metrics::Metrics;
use coordinator::obstacles::Obstacles;
use coordinator::words::MessagePace;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{ConfigMap, Node, Pod};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt};
use lab::apilab::ApiLab;
use lab::cluster::wait::{Observation, until};
use lab::scale::hollow::Fleet;
use runtime::client::Limit;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

const NAME: &str = "flannel-to-calico";
const NODES: [&str; 2] = ["first", "second"];
/// The preview makes a round every 30 s; on a slow machine ten times the duration of a round, at most 5 minutes.
const STEP: Duration = Duration::from_mins(7);
const RATE: Limit = Limit {
    requests: 100,
    period: Duration::from_secs(1),
};

/// Creates an object of a namespace, and its status.
async fn create<K>(client: &Client, namespace: &str, object: &Value)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Serialize
        + DeserializeOwned
        + std::fmt::Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), namespace);
    let made: K = serde_json::from_value(object.clone()).unwrap();
    let made = api.create(&PostParams::default(), &made).await.unwrap();
    if let Some(status) = object.get("status") {
        let status = Patch::Merge(json!({ "status": status }));
        api.patch_status(&made.name_any(), &PatchParams::default(), &status)
            .await
            .unwrap();
    }
}

async fn create_node(client: &Client, name: &str, number: u8) {
    let range = format!("10.244.{number}.0/24");
    let address = format!("192.0.2.{number}");
    let node = json!({
        "metadata": { "name": name, "annotations": {
            "flannel.alpha.coreos.com/backend-type": "vxlan",
            "flannel.alpha.coreos.com/backend-data": format!("{{\"VNI\":1,\"VtepMAC\":\"0a:00:00:00:00:{number:02x}\"}}"),
            "flannel.alpha.coreos.com/public-ip": address,
            "flannel.alpha.coreos.com/kube-subnet-manager": "true",
        } },
        "spec": { "podCIDR": range, "podCIDRs": [range] },
    });
    let nodes: Api<Node> = Api::all(client.clone());
    let node: Node = serde_json::from_value(node).unwrap();
    nodes.create(&PostParams::default(), &node).await.unwrap();
    let status = json!({ "status": {
        "conditions": [{ "type": "Ready", "status": "True", "reason": "Test", "message": "", "lastHeartbeatTime": null,
            "lastTransitionTime": null }],
        "addresses": [{ "type": "InternalIP", "address": address }],
        "allocatable": { "cpu": "4", "memory": "8Gi", "pods": "110" },
        "nodeInfo": {
            "architecture": "amd64", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
            "kubeletVersion": "", "machineID": "", "operatingSystem": "linux", "osImage": "", "systemUUID": "",
        },
    } });
    nodes
        .patch_status(name, &PatchParams::default(), &Patch::Merge(status))
        .await
        .unwrap();
}

async fn create_pod(client: &Client, namespace: &str, app: &str, node: &str, address: &str, owner: &str) {
    let pod = json!({
        "metadata": {
            "name": format!("{app}-{node}"), "labels": { "app": app },
            "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": owner, "uid": owner, "controller": true }],
        },
        "spec": {
            "nodeName": node, "hostNetwork": owner == names::AGENT, "automountServiceAccountToken": false,
            "containers": [{ "name": "main", "image": "none" }],
        },
        "status": {
            "phase": "Running", "podIP": address, "podIPs": [{ "ip": address }],
            "conditions": [{ "type": "Ready", "status": "True" }],
        },
    });
    create::<Pod>(client, namespace, &pod).await;
}

async fn create_networks(client: &Client) {
    let status = |pods: u32| {
        json!({
            "observedGeneration": 1, "desiredNumberScheduled": pods, "updatedNumberScheduled": pods, "numberAvailable": pods,
            "numberReady": pods, "currentNumberScheduled": pods, "numberMisscheduled": 0,
        })
    };
    let labels = json!({ "app": "network" });
    let set = |name: &str, template: Value, pods: u32| {
        json!({
            "metadata": { "name": name },
            "spec": {
                "selector": { "matchLabels": labels },
                "template": { "metadata": { "labels": labels }, "spec": template },
            },
            "status": status(pods),
        })
    };
    let flannel = json!({
        "hostNetwork": true,
        "containers": [{
            "name": "kube-flannel", "image": "ghcr.io/flannel-io/flannel:v0.28.4", "command": ["/opt/bin/flanneld"],
            "args": ["--ip-masq", "--kube-subnet-mgr"],
        }],
        "volumes": [{ "name": "cfg", "configMap": { "name": "kube-flannel-cfg" } }],
    });
    create::<DaemonSet>(client, "kube-flannel", &set("kube-flannel-ds", flannel, 2)).await;
    let from = |name: &str, key: &str| json!({ "name": name, "valueFrom": { "configMapKeyRef": { "name": "calico-config", "key": key } } });
    let calico = json!({
        "hostNetwork": true,
        "nodeSelector": { names::NODE_NETWORK_LABEL: names::NETWORK_CALICO },
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
    });
    create::<DaemonSet>(client, "kube-system", &set("calico-node", calico, 0)).await;
    let net_conf = r#"{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}"#;
    for (namespace, name, data) in [
        (
            "kube-flannel",
            "kube-flannel-cfg",
            json!({ "net-conf.json": net_conf }),
        ),
        (
            "kube-system",
            "calico-config",
            json!({ "calico_backend": "vxlan", "veth_mtu": "0" }),
        ),
    ] {
        let object = json!({ "metadata": { "name": name }, "data": data });
        create::<ConfigMap>(client, namespace, &object).await;
    }
}

/// Two nodes on flannel, Calico's definitions and manifest, and pods of two workloads.
async fn cluster(lab: &ApiLab) -> Client {
    let definitions = concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/calico-crds.yaml");
    lab.kubectl(&["apply", "--server-side", "-f", definitions])
        .unwrap();
    lab.kubectl(&[
        "wait",
        "--for=condition=Established",
        "--timeout=60s",
        "-f",
        definitions,
    ])
    .unwrap();
    let client = lab.admin().await.unwrap();
    for namespace in ["kube-flannel", "shop", "crm"] {
        lab.namespace(namespace).await.unwrap();
        // No controller creates it here.
        lab.kubectl(&["create", "serviceaccount", "default", "-n", namespace])
            .unwrap();
    }
    let _ = lab.kubectl(&["create", "serviceaccount", "default", "-n", names::NAMESPACE]);
    for (number, node) in (1..).zip(NODES) {
        create_node(&client, node, number).await;
        create_pod(
            &client,
            names::NAMESPACE,
            "agent",
            node,
            &format!("192.0.2.{number}"),
            names::AGENT,
        )
        .await;
    }
    create_networks(&client).await;
    create_pod(&client, "crm", "cli", "first", "10.244.1.21", "cli").await;
    create_pod(&client, "shop", "db", "second", "10.244.2.20", "db").await;
    client
}

/// The coordinator's loop with its own token, as the leader.
async fn run_coordinator(lab: &ApiLab) {
    let token = lab
        .token(names::NAMESPACE, names::COORDINATOR, None)
        .await
        .unwrap();
    let metrics = Arc::new(Metrics::new().unwrap());
    let mut config = lab.config_with_token(&token).await.unwrap();
    config.default_retry = false;
    let client = runtime::client::client(config.clone(), Arc::new(metrics.api.clone()), RATE).unwrap();
    let context = Context {
        client: client.clone(),
        background: client.clone(),
        watching: client.clone(),
        config,
        namespace: names::NAMESPACE.to_owned(),
        node_name: "second".to_owned(),
        asks_other_servers: true,
        agent_image: "none".to_owned(),
        metrics,
        events: EventRecorder::new(client.clone(), "coordinator"),
        obstacles: Obstacles::default(),
        pace: MessagePace::FOR_USERS,
    };
    let mut tasks = JoinSet::new();
    let cache = Cache::start(&client, names::NAMESPACE, &mut tasks);
    cache.ready().await;
    let (_leader, leading) = watch::channel(true);
    let health = Arc::new(Health::starting());
    Box::pin(coordinator::pass::run(&context, &cache, &health, &leading)).await;
}

async fn status(client: &Client) -> MigrationStatus {
    let migrations: Api<Migration> = Api::all(client.clone());
    migrations.get(NAME).await.unwrap().status.unwrap_or_default()
}

/// Waits until the first line of the check has this text.
async fn until_found(client: &Client, text: &str) -> MigrationStatus {
    let logs = ApiLab::shared().unwrap().folder();
    until(text, STEP, logs, async || {
        let status = status(client).await;
        let check = status.checks.iter().find(|check| check.name == "PolicyPreview");
        let found = check.map(|check| check.found.clone()).unwrap_or_default();
        Ok(if found.contains(text) {
            Observation::Done(status)
        } else {
            Observation::NotYet(format!("{found:?}; {:?}: {}", status.phase, status.message))
        })
    })
    .await
    .unwrap()
}

async fn until_phase(client: &Client, phase: &str) -> MigrationStatus {
    let logs = ApiLab::shared().unwrap().folder();
    until(phase, STEP, logs, async || {
        let status = status(client).await;
        Ok(if status.phase.as_str() == phase {
            Observation::Done(status)
        } else {
            Observation::NotYet(format!("{}: {}", status.phase.as_str(), status.message))
        })
    })
    .await
    .unwrap()
}

async fn until_samples(client: &Client, count: usize) -> Vec<ConnectionSample> {
    let logs = ApiLab::shared().unwrap().folder();
    let samples: Api<ConnectionSample> = Api::all(client.clone());
    until(&format!("{count} samples"), STEP, logs, async || {
        let found = samples.list(&ListParams::default()).await?.items;
        Ok(if found.len() == count {
            Observation::Done(found)
        } else {
            Observation::NotYet(format!("{} samples", found.len()))
        })
    })
    .await
    .unwrap()
}

/// The error of the API server about this change of the spec.
async fn refusal(client: &Client, change: Value) -> String {
    let migrations: Api<Migration> = Api::all(client.clone());
    let patch = Patch::Merge(json!({ "spec": { "flannelToCalico": change } }));
    match migrations.patch(NAME, &PatchParams::default(), &patch).await {
        Ok(_) => panic!("the change was accepted"),
        Err(error) => error.to_string(),
    }
}

async fn change(client: &Client, spec: Value) {
    let migrations: Api<Migration> = Api::all(client.clone());
    migrations
        .patch(
            NAME,
            &PatchParams::default(),
            &Patch::Merge(json!({ "spec": spec })),
        )
        .await
        .unwrap();
}

/// Only `shop/api` may connect to `shop/db`.
async fn create_policy(client: &Client) {
    let policy = json!({
        "metadata": { "name": "db-only-api" },
        "spec": {
            "podSelector": { "matchLabels": { "app": "db" } },
            "ingress": [{ "from": [{ "podSelector": { "matchLabels": { "app": "api" } } }] }],
        },
    });
    create::<NetworkPolicy>(client, "shop", &policy).await;
}

async fn cases(client: &Client) {
    let migrations: Api<Migration> = Api::all(client.clone());
    let migration: Migration = serde_json::from_value(json!({
        "apiVersion": "replumb.dev/v1alpha1", "kind": "Migration", "metadata": { "name": NAME },
        "spec": { "flannelToCalico": { "strategy": "InPlace" }, "gates": { "traffic": "Ignore" } },
    }))
    .unwrap();
    let created = migrations
        .create(&PostParams::default(), &migration)
        .await
        .unwrap();
    let preview = &created.spec.flannel_to_calico.unwrap().policy_preview;
    assert_eq!(preview.observe_seconds, 600, "the default of the schema");

    // Without policies, the plan is there at once, and no agent samples anything.
    until_phase(client, "Planned").await;
    until_found(client, "no policy begins to hold").await;
    until_samples(client, 0).await;

    create_policy(client).await;
    until_found(client, "observed 0 s of 600 s").await;
    until_phase(client, "Refused").await;
    let samples = until_samples(client, 1).await;
    assert_eq!(samples[0].spec.node_name, "second");
    assert_eq!(
        samples[0].spec.ingress,
        ["10.244.2.20".parse::<std::net::IpAddr>().unwrap()]
    );
    let seen = json!({ "status": {
        "since": "2026-01-01T00:00:00Z", "last": "2026-01-01T00:10:00Z", "clientPorts": { "first": 32768, "last": 60999 },
        "connections": [{
            "protocol": 6, "source": "10.244.1.21", "destination": "10.244.2.20", "port": 5432, "count": 214, "replied": 214,
            "first": jiff::Timestamp::now(), "last": jiff::Timestamp::now(),
        }],
    } });
    let all: Api<ConnectionSample> = Api::all(client.clone());
    all.patch_status("second", &PatchParams::default(), &Patch::Merge(seen))
        .await
        .unwrap();
    let words = "would be refused: crm/cli → shop/db:5432 TCP, seen 214 times; policy shop/db-only-api";
    let status = until_found(client, words).await;
    let shown = status.flannel_to_calico.unwrap().policy_preview.unwrap();
    assert_eq!((shown.policies, shown.connections.refused), (1, 214));
    assert_eq!(shown.refused[0].client, "crm/cli");

    for (bad, text) in [
        (
            json!({ "policyPreview": { "acceptedDenials": ["shop/DB"] } }),
            "acceptedDenials",
        ),
        (
            json!({ "policyPreview": { "acceptedDenials": ["a/b/c"] } }),
            "acceptedDenials",
        ),
        (
            json!({ "policyPreview": { "observeSeconds": 604_801 } }),
            "604800",
        ),
        (
            json!({ "strategy": "Drain" }),
            "except policyPreview, rollbackNodes",
        ),
    ] {
        let error = refusal(client, bad).await;
        assert!(error.contains(text), "{error}");
    }
    let accepted = json!({ "policyPreview": { "acceptedDenials": ["shop/db-only-api"] } });
    change(client, json!({ "flannelToCalico": accepted })).await;
    until_phase(client, "Planned").await;
    change(client, json!({ "desired": "Run" })).await;
    let started = until_phase(client, "Preparing").await;
    let kept = started.flannel_to_calico.unwrap().policy_preview.unwrap();
    assert!(kept.refused[0].is_accepted);
    until_samples(client, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "starts an API server: cargo lab test"]
async fn a_dormant_policy_refuses_the_start_until_its_denial_is_accepted() {
    let lab = ApiLab::shared().unwrap();
    let client = cluster(lab).await;
    let agents = Fleet::new(client.clone(), "10.244.0.0/16".parse().unwrap());
    tokio::select! {
        () = run_coordinator(lab) => panic!("the coordinator's loop ended"),
        ended = agents.run() => panic!("the agents ended: {ended:?}"),
        () = cases(&client) => {}
    }
}
