//! Limits of the coordinator's token beyond RBAC: objects and their fields.
//!
//! Each case makes the writes of the coordinator, and the related writes that a thief of its token would make.
//! Run by `cargo lab test`, or `cargo test -p lab --test api_bounds -- --ignored`.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test says that it failed by a panic"
)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use api::{Migration, names};
use coordinator::context::Context;
use coordinator::events::EventRecorder;
use coordinator::metrics::Metrics;
use coordinator::{cordon, probe, traffic};
use engine::evict::PodName;
use engine::traffic::Generation;
use flannel_to_calico::objects::{FELIX_CONFIGURATION_FIELDS, IPAM_CONFIG_FIELDS};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Node, Pod, Secret, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::ServiceCIDR;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::api::{ApiResource, DeleteParams, DynamicObject, GroupVersionKind, Patch, PatchParams, PostParams};
use kube::{Api, Client, Config};
use lab::apilab::ApiLab;
use lab::cluster::wait::{Observation, until};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use service_cidr::exchange::Write;
use service_cidr::objects::{BridgeFacts, Objects, Request, Spare};
use service_cidr::side::{Side, Sides};
use tokio::sync::{OnceCell, RwLock};

const LABEL: &str = names::NODE_NETWORK_LABEL;
const LIMIT: Duration = Duration::from_mins(1);

/// While a case has a running Migration, the coordinator makes no writes for other Migrations.
static MIGRATION: RwLock<()> = RwLock::const_new(());

/// The coordinator's own token.
async fn coordinator() -> Client {
    let lab = ApiLab::shared().unwrap();
    let token = lab
        .token(names::NAMESPACE, names::COORDINATOR, None)
        .await
        .unwrap();
    lab.with_token(&token).await.unwrap()
}

/// The API server with the objects of every case. The policies are enforced already.
async fn bounds() -> &'static ApiLab {
    static READY: OnceCell<()> = OnceCell::const_new();
    let lab = ApiLab::shared().unwrap();
    READY
        .get_or_init(|| async {
            for namespace in ["default", "kube-system", names::NAMESPACE] {
                // No controller creates it here; another test's namespace may have it.
                lab.kubectl(&["create", "serviceaccount", "default", "-n", namespace])
                    .ok();
            }
            lab.node("first").await.unwrap();
        })
        .await;
    lab
}

fn merge(change: Value) -> Patch<Value> {
    Patch::Merge(change)
}

fn dry() -> PatchParams {
    PatchParams {
        dry_run: true,
        ..PatchParams::default()
    }
}

fn dry_post() -> PostParams {
    PostParams {
        dry_run: true,
        ..PostParams::default()
    }
}

/// The message of the refusal by this policy; panics without a refusal or with another one.
fn refused<T: std::fmt::Debug>(answer: Result<T, kube::Error>, policy: &str, what: &str) -> String {
    let policy = format!("replumb-coordinator-bounds-{policy}");
    match answer {
        Err(kube::Error::Api(status)) if status.is_forbidden() && status.message.contains(&policy) => {
            status.message.clone()
        }
        other => panic!("{what}: wanted a refusal by {policy}, got {other:?}"),
    }
}

async fn make<K>(api: &Api<K>, object: Value) -> K
where
    K: Clone + Serialize + DeserializeOwned + std::fmt::Debug,
{
    api.create(&PostParams::default(), &serde_json::from_value(object).unwrap())
        .await
        .unwrap()
}

/// A client with the coordinator's token, for writes by its own code.
async fn context() -> Context {
    let lab = bounds().await;
    let client = coordinator().await;
    Context {
        client: client.clone(),
        background: client.clone(),
        watching: client.clone(),
        config: Config::new(http::Uri::from_static("https://127.0.0.1")),
        namespace: names::NAMESPACE.to_owned(),
        node_name: "first".to_owned(),
        asks_other_servers: true,
        agent_image: agent_image(lab),
        metrics: Arc::new(Metrics::new().unwrap()),
        obstacles: coordinator::obstacles::Obstacles::default(),
        pace: coordinator::words::MessagePace::FOR_USERS,
        events: EventRecorder::new(client, "coordinator"),
    }
}

fn agent_image(lab: &ApiLab) -> String {
    let path = "jsonpath={.spec.template.spec.containers[0].image}";
    lab.kubectl(&[
        "get",
        "daemonset",
        names::AGENT,
        "-n",
        names::NAMESPACE,
        "-o",
        path,
    ])
    .unwrap()
}

/// The spec of a Service in the form that the coordinator saves before it takes the address.
fn before_of(service: &Service) -> String {
    serde_json::to_value(&service.spec).unwrap().to_string()
}

/// A Migration as read from the API; it is not stored.
fn migration() -> Migration {
    serde_json::from_value(json!({
        "apiVersion": "replumb.dev/v1alpha1", "kind": "Migration", "metadata": { "name": "bounds", "uid": "m-1" },
        "spec": { "flannelToCalico": {} },
    }))
    .unwrap()
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn a_node_accepts_the_cordon_and_replumbs_labels_and_annotations_only() {
    let lab = bounds().await;
    let context = context().await;
    let nodes: Api<Node> = Api::all(context.client.clone());
    let node = lab.node("bounded").await.unwrap();
    let of_admin: Api<Node> = Api::all(lab.admin().await.unwrap());
    let theirs = json!({ "metadata": { "labels": { "team": "a" }, "annotations": { "team": "a" } } });
    of_admin
        .patch("bounded", &PatchParams::default(), &merge(theirs))
        .await
        .unwrap();

    // Writes of the coordinator, by its own code.
    let read = nodes.get("bounded").await.unwrap();
    cordon::cordon(&context, &migration(), &read).await.unwrap();
    let read = nodes.get("bounded").await.unwrap();
    assert!(cordon::is_unschedulable(&read) && cordon::is_by(&read, "bounds"));
    for change in [
        json!({ "metadata": { "labels": { LABEL: "flannel" } } }),
        json!({ "metadata": { "labels": { names::OFF_POOL_LABEL: "x" } } }),
        json!({ "metadata": { "annotations": { "projectcalico.org/IPv4VXLANTunnelAddr": "10.244.1.0",
            names::PREPARED_BY_ANNOTATION: "m-1" } } }),
        json!({ "metadata": { "labels": { LABEL: null }, "annotations": { "projectcalico.org/IPv4VXLANTunnelAddr": null } } }),
    ] {
        nodes
            .patch("bounded", &PatchParams::default(), &merge(change))
            .await
            .unwrap();
    }
    let read = nodes.get("bounded").await.unwrap();
    cordon::uncordon(&context, &migration(), &read).await.unwrap();
    assert!(!cordon::is_unschedulable(&nodes.get("bounded").await.unwrap()));

    // Writes that the coordinator does not make.
    for (change, named) in [
        (json!({ "metadata": { "labels": { "team": "b" } } }), "label team"),
        (
            json!({ "metadata": { "labels": { "team": null } } }),
            "label team",
        ),
        (
            json!({ "metadata": { "labels": { "node-role.kubernetes.io/control-plane": "" } } }),
            "label node-role",
        ),
        (
            json!({ "metadata": { "annotations": { "team": "b" } } }),
            "annotation team",
        ),
        (
            json!({ "metadata": { "annotations": { "volumes.kubernetes.io/x": "b" } } }),
            "annotation volumes",
        ),
        (
            json!({ "metadata": { "finalizers": ["a.b/c"] } }),
            "metadata.finalizers",
        ),
        (
            json!({ "spec": { "taints": [{ "key": "a", "effect": "NoExecute" }] } }),
            "spec.taints",
        ),
        (
            json!({ "spec": { "podCIDR": "10.9.0.0/24", "podCIDRs": ["10.9.0.0/24"] } }),
            "spec.podCIDR",
        ),
        (json!({ "spec": { "providerID": "x://y" } }), "spec.providerID"),
    ] {
        let words = refused(
            nodes.patch("bounded", &dry(), &merge(change.clone())).await,
            "nodes",
            &change.to_string(),
        );
        assert!(
            words.contains("Node bounded") && words.contains(named),
            "{change}: {words}"
        );
    }
    assert_eq!(
        node.metadata.uid,
        nodes.get("bounded").await.unwrap().metadata.uid
    );
}

/// The address to which other nodes send packets: one of the node's own addresses, as reported by its kubelet or flannel.
#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn a_tunnel_annotation_accepts_only_an_address_of_the_node() {
    let lab = bounds().await;
    let nodes: Api<Node> = Api::all(coordinator().await);
    let of_admin: Api<Node> = Api::all(lab.admin().await.unwrap());
    lab.node("addressed").await.unwrap();
    let addresses = json!({ "status": { "addresses": [
        { "type": "InternalIP", "address": "192.0.2.11" }, { "type": "InternalIP", "address": "fd00:172::b" },
    ] } });
    of_admin
        .patch_status("addressed", &PatchParams::default(), &merge(addresses))
        .await
        .unwrap();
    let annotated = |key: &str, value: &str| json!({ "metadata": { "annotations": { key: value } } });
    let (ipv4, ipv6) = ("projectcalico.org/IPv4Address", "projectcalico.org/IPv6Address");
    for change in [
        annotated("flannel.alpha.coreos.com/public-ip", "192.0.2.12"),
        annotated("example.com/blue-public-ipv6", "fd00:172::c"),
        annotated(ipv6, "fd00:172::99/64"),
    ] {
        of_admin
            .patch("addressed", &PatchParams::default(), &merge(change))
            .await
            .unwrap();
    }
    for change in [
        annotated(ipv4, "192.0.2.11/32"),
        annotated(ipv4, "192.0.2.12/24"),
        annotated("projectcalico.org/IPv4VXLANTunnelAddr", "10.244.1.0"),
        annotated("replumb.dev/public-ip", "203.0.113.1"),
        annotated(ipv6, "fd00:172:0::b"),
        annotated(ipv6, "fd00:172::c/128"),
        json!({ "metadata": { "annotations": { ipv4: null, ipv6: null } } }),
    ] {
        nodes
            .patch("addressed", &PatchParams::default(), &merge(change))
            .await
            .unwrap();
    }
    for (key, value) in [
        (ipv4, "203.0.113.1"),
        (ipv4, "203.0.113.1/32"),
        (ipv4, "192.0.2.110/32"),
        (ipv4, ""),
        (ipv6, "fd00:172::99/64"),
    ] {
        let answer = nodes
            .patch("addressed", &dry(), &merge(annotated(key, value)))
            .await;
        let words = refused(answer, "nodes", value);
        assert!(
            words.contains(&format!("annotation {key} to {value}")) && words.contains("192.0.2.11, "),
            "{words}"
        );
    }
}

fn daemon_set(name: &str, container: &Value, selector: &Value) -> Value {
    json!({
        "metadata": { "name": name },
        "spec": {
            "selector": { "matchLabels": { "app": name } },
            "template": {
                "metadata": { "labels": { "app": name } },
                "spec": { "nodeSelector": selector, "containers": [container] },
            },
        },
    })
}

fn selects(value: &Value) -> Value {
    json!({ "spec": { "template": { "spec": { "nodeSelector": { LABEL: value } } } } })
}

fn runs(container: &str, image: &str) -> Patch<Value> {
    Patch::Strategic(
        json!({ "spec": { "template": { "spec": { "containers": [{ "name": container, "image": image }] } } } }),
    )
}

/// The DaemonSets of the three cases, in a separate namespace.
async fn sets(lab: &ApiLab, namespace: &str) -> Api<DaemonSet> {
    lab.namespace(namespace).await.unwrap();
    let sets: Api<DaemonSet> = Api::namespaced(lab.admin().await.unwrap(), namespace);
    for (name, container, selector) in [
        (
            "kube-proxy",
            json!({ "name": "kube-proxy", "image": "registry.k8s.io/kube-proxy:v1.36.3" }),
            json!({}),
        ),
        (
            "kube-flannel-ds",
            json!({ "name": "net", "image": "ghcr.io/flannel-io/flannel:v0.28.4@sha256:00" }),
            json!({ "kubernetes.io/os": "linux" }),
        ),
        (
            "calico-node",
            json!({ "name": "calico-node", "image": "calico/node:v3.31.0" }),
            json!({ LABEL: "calico" }),
        ),
    ] {
        make(&sets, daemon_set(name, &container, &selector)).await;
    }
    Api::namespaced(coordinator().await, namespace)
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
#[expect(clippy::too_many_lines, reason = "a table of requests, each with its answer")]
async fn a_daemonset_of_a_network_accepts_a_change_of_its_selector_only() {
    let lab = bounds().await;
    let _turn = MIGRATION.read().await;
    let sets = sets(lab, "of-sets").await;
    for (name, value) in [
        ("kube-flannel-ds", json!("flannel")),
        ("kube-flannel-ds", Value::Null),
        ("calico-node", Value::Null),
        ("calico-node", json!("calico")),
    ] {
        sets.patch(name, &PatchParams::default(), &merge(selects(&value)))
            .await
            .unwrap_or_else(|error| panic!("{name} {value}: {error}"));
    }
    let annotated = json!({ "spec": { "template": { "metadata": { "annotations": { "a": "b" } } } } });
    for (name, change, named) in [
        (
            "kube-proxy",
            merge(selects(&json!("flannel"))),
            "neither flanneld nor calico-node",
        ),
        (
            "kube-proxy",
            runs("kube-proxy", "evil"),
            "neither flanneld nor calico-node",
        ),
        // After the change the DaemonSet would be flannel's.
        (
            "kube-proxy",
            runs("kube-proxy", "flannel:v0.28.4"),
            "neither flanneld nor calico-node",
        ),
        (
            "kube-flannel-ds",
            runs("net", "evil/flannel:v1"),
            "spec.template.spec.containers",
        ),
        (
            "calico-node",
            runs("calico-node", "evil"),
            "spec.template.spec.containers",
        ),
        ("calico-node", merge(annotated), "spec.template.metadata"),
        (
            "calico-node",
            merge(json!({ "spec": { "updateStrategy": { "type": "OnDelete", "rollingUpdate": null } } })),
            "spec.updateStrategy",
        ),
        (
            "calico-node",
            merge(json!({ "spec": { "template": { "spec": { "hostPID": true } } } })),
            "spec.template.spec.hostPID",
        ),
        (
            "kube-flannel-ds",
            merge(
                json!({ "spec": { "template": { "spec": { "nodeSelector": { "kubernetes.io/os": "none" } } } } }),
            ),
            "nodeSelector kubernetes.io/os",
        ),
        (
            "kube-flannel-ds",
            merge(selects(&json!("nowhere"))),
            "nodeSelector",
        ),
        (
            "kube-flannel-ds",
            merge(json!({ "metadata": { "labels": { "a": "b" } } })),
            "metadata.labels",
        ),
        (
            "kube-flannel-ds",
            merge(json!({ "metadata": { "annotations": { "a": "b" } } })),
            "annotation a",
        ),
        (
            "kube-flannel-ds",
            merge(
                json!({ "metadata": { "ownerReferences": [{ "apiVersion": "v1", "kind": "Pod", "name": "a", "uid": "b" }] } }),
            ),
            "metadata.ownerReferences",
        ),
    ] {
        let what = format!("{name} {change:?}");
        let words = refused(sets.patch(name, &dry(), &change).await, "daemonsets", &what);
        let object = format!("DaemonSet of-sets/{name}");
        assert!(
            words.contains(&object) && words.contains(named),
            "{what}: {words}"
        );
    }
    for name in ["kube-proxy", "calico-node"] {
        let words = refused(
            sets.delete(name, &DeleteParams::default()).await,
            "daemonsets",
            name,
        );
        assert!(words.contains(&format!("DaemonSet of-sets/{name}")), "{words}");
    }
    let agents: Api<DaemonSet> = Api::namespaced(coordinator().await, names::NAMESPACE);
    refused(
        agents.delete(names::AGENT, &DeleteParams::default()).await,
        "daemonsets",
        "the agents",
    );
    sets.delete("kube-flannel-ds", &DeleteParams::default())
        .await
        .unwrap();
}

/// RBAC grants the right to change calico-node's pod template, by name; DaemonSets without the right stay unchanged.
#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn calico_nodes_template_is_changed_only_with_the_right_of_rbac() {
    let lab = bounds().await;
    let _turn = MIGRATION.read().await;
    let sets = sets(lab, "convert").await;
    let image = runs("calico-node", "calico/node:v3.8.9");
    refused(
        sets.patch("calico-node", &dry(), &image).await,
        "daemonsets",
        "without the right",
    );
    for arguments in [
        &[
            "create",
            "role",
            "convert",
            "--verb=get,patch,convert",
            "--resource=daemonsets.apps",
            "--resource-name=calico-node",
        ][..],
        &[
            "create",
            "rolebinding",
            "convert",
            "--role=convert",
            "--serviceaccount=replumb-system:replumb-coordinator",
        ],
    ] {
        lab.kubectl(&[arguments, &["-n", "convert"]].concat()).unwrap();
    }
    until("the right to be known", LIMIT, Path::new("/"), async || {
        Ok(match sets.patch("calico-node", &dry(), &image).await {
            Ok(_) => Observation::Done(()),
            Err(error) => Observation::NotYet(error.to_string()),
        })
    })
    .await
    .unwrap();
    let strategy = json!({ "spec": { "updateStrategy": { "type": "OnDelete", "rollingUpdate": null } } });
    sets.patch("calico-node", &dry(), &merge(strategy)).await.unwrap();
    // Neither another DaemonSet nor another part of this one may be changed.
    refused(
        sets.patch("kube-flannel-ds", &dry(), &runs("net", "flannel:v1"))
            .await,
        "daemonsets",
        "flannel's pods",
    );
    refused(
        sets.patch("kube-proxy", &dry(), &runs("kube-proxy", "evil"))
            .await,
        "daemonsets",
        "kube-proxy's pods",
    );
    let labelled = json!({ "metadata": { "labels": { "a": "b" } } });
    refused(
        sets.patch("calico-node", &dry(), &merge(labelled)).await,
        "daemonsets",
        "a label",
    );
    refused(
        sets.delete("calico-node", &DeleteParams::default()).await,
        "daemonsets",
        "deleting it",
    );
}

/// A pod of the coordinator, with this change.
fn pod(change: &Value) -> Pod {
    let mut pod = json!({
        "metadata": { "name": "replumb-traffic-x", "labels": { names::COMPONENT_LABEL: names::TRAFFIC_COMPONENT } },
        "spec": {
            "nodeName": "first", "automountServiceAccountToken": false,
            "containers": [{
                "name": "traffic", "image": agent_image(ApiLab::shared().unwrap()), "args": ["traffic"],
                "securityContext": {
                    "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": { "drop": ["ALL"] },
                },
                "volumeMounts": [{ "name": "run", "mountPath": "/run/replumb", "readOnly": true }],
                "resources": { "requests": { "cpu": "20m", "memory": "8Mi" }, "limits": { "cpu": "500m", "memory": "32Mi" } },
            }],
            "volumes": [{ "name": "run", "hostPath": { "path": "/run/replumb" } }],
        },
    });
    apply(&mut pod, change);
    serde_json::from_value(pod).unwrap()
}

/// A merge patch in which a list with this number of items changes each of them.
fn apply(object: &mut Value, change: &Value) {
    match (object, change) {
        (Value::Object(fields), Value::Object(changes)) => {
            for (name, change) in changes {
                if change.is_null() || change == &json!({}) {
                    fields.remove(name);
                } else {
                    apply(fields.entry(name.clone()).or_insert(Value::Null), change);
                }
            }
        }
        (Value::Array(items), Value::Array(changes)) if items.len() == changes.len() => {
            items
                .iter_mut()
                .zip(changes)
                .for_each(|(item, change)| apply(item, change));
        }
        (object, change) => *object = change.clone(),
    }
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
#[expect(clippy::too_many_lines, reason = "a table of requests, each with its answer")]
async fn only_the_coordinators_own_pods_without_privileges_are_created() {
    let lab = bounds().await;
    let context = context().await;
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), names::NAMESPACE);
    // Pods that the coordinator creates, by its own code, and deletes again.
    let of_admin: Api<Pod> = Api::namespaced(lab.admin().await.unwrap(), names::NAMESPACE);
    let node = lab.node("of-pods").await.unwrap();
    probe::create(&context, &migration(), &node).await.unwrap();
    let network = |name| traffic::Network {
        name,
        ..traffic::Network::default()
    };
    let networks = traffic::Networks {
        old: network("flannel"),
        new: network("calico"),
    };
    traffic::create(&context, &migration(), &networks, "of-pods", Generation::Old)
        .await
        .unwrap();
    let made = of_admin.list(&kube::api::ListParams::default()).await.unwrap();
    let made: Vec<&str> = made
        .items
        .iter()
        .filter(|pod| {
            pod.spec
                .as_ref()
                .is_some_and(|spec| spec.node_name.as_deref() == Some("of-pods"))
        })
        .filter_map(|pod| pod.metadata.name.as_deref())
        .collect();
    assert_eq!(made.len(), 2, "{made:?}");
    for name in made {
        pods.delete(name, &DeleteParams::default()).await.unwrap();
    }
    pods.create(&dry_post(), &pod(&json!({}))).await.unwrap();
    let of_pool = json!({ "metadata": { "annotations": { "cni.projectcalico.org/ipv4pools": "[\"new\"]", "policies.kyverno.io/last-applied-patches": "a webhook's" } } });
    pods.create(&dry_post(), &pod(&of_pool)).await.unwrap();
    // Fields that a cluster adds to every pod: a priority that is not critical, disk space, an annotation of a webhook.
    let everyones = json!({ "metadata": { "name": "everyones" }, "value": 1000, "globalDefault": true });
    let classes: Api<PriorityClass> = Api::all(lab.admin().await.unwrap());
    classes
        .create(
            &PostParams::default(),
            &serde_json::from_value(everyones).unwrap(),
        )
        .await
        .unwrap();
    let given = json!({
        "metadata": { "annotations": { "example.com/network-zone": "a" } },
        "spec": { "containers": [{ "resources": { "requests": { "ephemeral-storage": "100Mi" } } }] },
    });
    let answer = pods.create(&dry_post(), &pod(&given)).await;
    classes
        .delete("everyones", &DeleteParams::default())
        .await
        .unwrap();
    let class = answer.unwrap().spec.unwrap().priority_class_name;
    assert_eq!(class.as_deref(), Some("everyones"), "the class exists");

    let critical = |name: &str, network: &str| {
        let labels = json!({ names::TRAFFIC_NETWORK_LABEL: network });
        json!({ "metadata": { "name": name, "labels": labels }, "spec": { "priorityClassName": "system-node-critical" } })
    };
    let container = |change: Value| json!({ "spec": { "containers": [change] } });
    let volume = |source: Value| {
        let mut change = json!({ "name": "run", "hostPath": null });
        apply(&mut change, &source);
        change["hostPath"] = source.get("hostPath").cloned().unwrap_or(Value::Null);
        json!({ "spec": { "volumes": [change] } })
    };
    for (change, named) in [
        (
            json!({ "metadata": { "labels": { names::COMPONENT_LABEL: "x" } } }),
            "component",
        ),
        (
            json!({ "metadata": { "finalizers": ["a.b/c"] } }),
            "no finalizer a.b/c",
        ),
        (
            json!({ "metadata": { "annotations": { "cni.projectcalico.org/ipAddrsNoIpam": "[\"10.244.1.5\"]" } } }),
            "no annotation cni.projectcalico.org/ipAddrsNoIpam",
        ),
        (
            json!({ "metadata": { "annotations": { "k8s.v1.cni.cncf.io/networks": "x" } } }),
            "no annotation k8s.v1",
        ),
        (
            json!({ "spec": { "hostNetwork": true } }),
            "no namespace of its host",
        ),
        (json!({ "spec": { "hostPID": true } }), "no namespace of its host"),
        (json!({ "spec": { "hostIPC": true } }), "no namespace of its host"),
        (
            json!({ "spec": { "automountServiceAccountToken": true } }),
            "no token",
        ),
        (
            json!({ "spec": { "automountServiceAccountToken": null } }),
            "no token",
        ),
        (
            volume(json!({ "secret": { "secretName": "s" } })),
            "no volume but",
        ),
        (volume(json!({ "configMap": { "name": "s" } })), "no volume but"),
        (volume(json!({ "hostPath": { "path": "/" } })), "no volume but"),
        (
            volume(json!({ "hostPath": { "path": "/run/replumb/../.." } })),
            "",
        ),
        (
            volume(json!({ "projected": { "sources": [{ "serviceAccountToken": { "path": "t" } }] } })),
            "no volume but",
        ),
        (
            container(json!({ "securityContext": { "privileged": true, "allowPrivilegeEscalation": true } })),
            "no privileges",
        ),
        (
            container(json!({ "securityContext": { "allowPrivilegeEscalation": null } })),
            "no privileges",
        ),
        (
            container(json!({ "securityContext": { "capabilities": { "add": ["NET_ADMIN"] } } })),
            "no privileges",
        ),
        (
            container(json!({ "securityContext": { "capabilities": null } })),
            "no privileges",
        ),
        (
            container(json!({ "securityContext": { "readOnlyRootFilesystem": null } })),
            "no privileges",
        ),
        (
            container(json!({ "volumeMounts": [{ "readOnly": false }] })),
            "no privileges",
        ),
        (
            container(json!({ "ports": [{ "containerPort": 80, "hostPort": 80 }] })),
            "no port of its host",
        ),
        (
            container(json!({ "image": "evil" })),
            "as DaemonSet replumb-agent does",
        ),
        (
            container(json!({ "command": ["sh"] })),
            "runs `echo` or `traffic`",
        ),
        (
            container(json!({ "args": ["agent"] })),
            "runs `echo` or `traffic`",
        ),
        (container(json!({ "args": null })), "runs `echo` or `traffic`"),
        (
            container(json!({ "envFrom": [{ "secretRef": { "name": "s" } }] })),
            "no Secret",
        ),
        (
            container(
                json!({ "env": [{ "name": "A", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } }] }),
            ),
            "no Secret",
        ),
        (
            container(
                json!({ "env": [{ "name": "A", "valueFrom": { "configMapKeyRef": { "name": "s", "key": "k" } } }] }),
            ),
            "no Secret",
        ),
        (
            container(json!({ "lifecycle": { "postStart": { "exec": { "command": ["sh"] } } } })),
            "runs `echo`",
        ),
        (
            container(json!({ "livenessProbe": { "exec": { "command": ["sh"] } } })),
            "runs `echo`",
        ),
        (
            json!({ "spec": { "initContainers": [{ "name": "i", "image": "evil" }] } }),
            "one container",
        ),
        // A kubelet takes the resources of other pods for these.
        (
            container(json!({ "resources": { "requests": { "cpu": "1" }, "limits": { "cpu": "1" } } })),
            "asks for 50m of cpu",
        ),
        (
            container(
                json!({ "resources": { "requests": { "memory": "1Gi" }, "limits": { "memory": "1Gi" } } }),
            ),
            "asks for 50m of cpu",
        ),
        (
            container(json!({ "resources": { "requests": { "ephemeral-storage": "1Gi" } } })),
            "asks for 50m of cpu",
        ),
        (
            container(json!({ "resources": { "requests": null } })),
            "asks for 50m of cpu",
        ),
        (
            container(json!({ "resources": { "limits": null } })),
            "asks for 50m of cpu",
        ),
        (container(json!({ "resources": null })), "asks for 50m of cpu"),
        (
            json!({ "spec": { "priorityClassName": "system-cluster-critical" } }),
            "priorityClassName",
        ),
        (
            json!({
                "metadata": { "labels": { names::COMPONENT_LABEL: names::PROBE_COMPONENT } },
                "spec": { "priorityClassName": "system-node-critical" },
            }),
            "priorityClassName",
        ),
        (critical("replumb-traffic-x", "calico"), "priorityClassName"),
    ] {
        match pods.create(&dry_post(), &pod(&change)).await {
            Err(kube::Error::Api(status)) => {
                assert!(status.message.contains(named), "{change}: {}", status.message);
                assert!(
                    status.message.contains("replumb-traffic-x"),
                    "{change}: {}",
                    status.message
                );
            }
            other => panic!("{change}: wanted a refusal, got {other:?}"),
        }
    }
    // A pod of another owner in the coordinator's namespace cannot be deleted, either.
    let agent = lab
        .pod_on(names::NAMESPACE, names::AGENT, "of-pods")
        .await
        .unwrap();
    let words = refused(
        pods.delete(agent.metadata.name.as_deref().unwrap(), &DeleteParams::default())
            .await,
        "pods",
        "an agent",
    );
    assert!(words.contains("replumb-agent-of-pods"), "{words}");
    // The policy refuses the same writes as RBAC, whatever roles the account has.
    lab.kubectl(&[
        "create",
        "clusterrole",
        "pods-anywhere",
        "--verb=create",
        "--resource=pods",
    ])
    .unwrap();
    lab.namespace("of-strangers").await.unwrap();
    lab.kubectl(&["create", "serviceaccount", "default", "-n", "of-strangers"])
        .unwrap();
    lab.kubectl(&[
        "create",
        "rolebinding",
        "pods-anywhere",
        "-n",
        "of-strangers",
        "--clusterrole=pods-anywhere",
        "--serviceaccount=replumb-system:replumb-coordinator",
    ])
    .unwrap();
    let elsewhere: Api<Pod> = Api::namespaced(context.client.clone(), "of-strangers");
    until("the role to be known", LIMIT, Path::new("/"), async || {
        let words = match elsewhere.create(&dry_post(), &pod(&json!({}))).await {
            Err(kube::Error::Api(status)) => status.message.clone(),
            other => panic!("a pod elsewhere: {other:?}"),
        };
        Ok(if words.contains("in its own namespace alone") {
            Observation::Done(())
        } else {
            Observation::NotYet(words)
        })
    })
    .await
    .unwrap();
}

/// Without a grace period the eviction would be a deletion that waits for no process.
#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn other_pods_can_only_be_evicted_with_a_grace_period() {
    let lab = bounds().await;
    lab.namespace("of-evictions").await.unwrap();
    lab.kubectl(&["create", "serviceaccount", "default", "-n", "of-evictions"])
        .unwrap();
    let of_admin: Api<Pod> = Api::namespaced(lab.admin().await.unwrap(), "of-evictions");
    let client = coordinator().await;
    let pod = json!({ "metadata": { "name": "web" }, "spec": { "nodeName": "first", "containers": [{ "name": "a", "image": "a" }] } });
    let pod = make(&of_admin, pod).await;
    let name = PodName {
        namespace: "of-evictions".to_owned(),
        name: "web".to_owned(),
        uid: pod.metadata.uid.unwrap(),
    };
    let evict = async |seconds: Option<i64>| {
        let mut body = serde_json::to_value(coordinator::evict::body(&name, None)).unwrap();
        body["deleteOptions"]["dryRun"] = json!(["All"]);
        body["deleteOptions"]["gracePeriodSeconds"] = json!(seconds);
        let uri = "/api/v1/namespaces/of-evictions/pods/web/eviction";
        let request = http::Request::post(uri).body(body.to_string().into_bytes());
        client.request::<Value>(request.unwrap()).await
    };
    for seconds in [None, Some(1), Some(30)] {
        evict(seconds).await.unwrap();
    }
    let words = refused(evict(Some(0)).await, "evictions", "at once");
    assert!(
        words.contains("pod of-evictions/web") && words.contains("not of 0"),
        "{words}"
    );
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
#[expect(clippy::too_many_lines, reason = "a table of requests, each with its answer")]
async fn a_users_service_accepts_only_the_changes_of_an_exchange() {
    let lab = bounds().await;
    let _turn = MIGRATION.read().await;
    lab.namespace("of-services").await.unwrap();
    let of_admin: Api<Service> = Api::namespaced(lab.admin().await.unwrap(), "of-services");
    let services: Api<Service> = Api::namespaced(coordinator().await, "of-services");
    let web = make(
        &of_admin,
        json!({ "metadata": { "name": "web" }, "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80, "name": "h" }] } }),
    )
    .await;
    for (change, named) in [
        (json!({ "metadata": { "labels": { "a": "b" } } }), "label a"),
        (
            json!({ "metadata": { "labels": { "replumb.dev/address": "new", "replumb.dev/service": "web",
                "app.kubernetes.io/managed-by": "replumb" } }, "spec": { "selector": { "app": "evil" } } }),
            "may not change its",
        ),
        (
            json!({ "metadata": { "annotations": { "a": "b" } } }),
            "annotation a",
        ),
        (
            json!({ "metadata": { "finalizers": ["a.b/c"] } }),
            "metadata.finalizers",
        ),
        (
            json!({ "spec": { "selector": { "app": "evil" } } }),
            "spec.selector",
        ),
        (json!({ "spec": { "selector": null } }), "spec.selector"),
        (
            json!({ "spec": { "externalIPs": ["192.0.2.1"] } }),
            "spec.externalIPs",
        ),
        (
            json!({ "spec": { "sessionAffinity": "ClientIP" } }),
            "spec.sessionAffinity",
        ),
        (
            json!({ "spec": { "publishNotReadyAddresses": true } }),
            "spec.publishNotReadyAddresses",
        ),
        (
            json!({ "spec": { "ports": [{ "port": 80, "name": "h", "targetPort": 81 }] } }),
            "spec.ports",
        ),
        (
            json!({ "spec": { "ports": [{ "port": 80, "name": "h" }, { "port": 81, "name": "x" }] } }),
            "spec.ports",
        ),
        (
            json!({ "spec": { "type": "NodePort" } }),
            "no NodePort of what is ClusterIP",
        ),
        (
            json!({ "spec": { "type": "LoadBalancer" } }),
            "may not change its",
        ),
        // Without the record of the earlier spec.
        (
            json!({ "spec": { "type": "ExternalName", "externalName": "web-replumb-new.of-services.svc.cluster.local" } }),
            "no ExternalName of what is ClusterIP",
        ),
        (
            json!({ "metadata": { "annotations": { "replumb.dev/service-before": before_of(&web) } },
                "spec": { "type": "ExternalName", "externalName": "evil.example.com" } }),
            "not to evil.example.com",
        ),
        (
            json!({ "metadata": { "annotations": { "replumb.dev/service-before": before_of(&web) } },
                "spec": { "type": "ExternalName", "externalName": "web-replumb-new.elsewhere.svc.cluster.local" } }),
            "not to web-replumb-new.elsewhere",
        ),
        // A domain of the thief, whose name server answers for it.
        (
            json!({ "metadata": { "annotations": { "replumb.dev/service-before": before_of(&web) } },
                "spec": { "type": "ExternalName", "externalName": "web-replumb-new.of-services.svc.evil.example" } }),
            "not to web-replumb-new.of-services.svc.evil.example",
        ),
        (
            json!({ "metadata": { "annotations": { "replumb.dev/service-before": before_of(&web) } },
                "spec": { "type": "ExternalName", "externalName": "web-replumb-new.of-services.svc.cluster.local.evil.example" } }),
            "cluster.local.evil.example",
        ),
    ] {
        let words = refused(
            services.patch("web", &dry(), &merge(change.clone())).await,
            "services",
            &change.to_string(),
        );
        assert!(
            words.contains("Service of-services/web") && words.contains(named),
            "{change}: {words}"
        );
    }
    // This status of a load balancer directs all traffic to that address. The node port could be one that another
    // case has released.
    let spec =
        json!({ "type": "LoadBalancer", "allocateLoadBalancerNodePorts": false, "ports": [{ "port": 80 }] });
    let balanced = json!({ "metadata": { "name": "balanced" }, "spec": spec });
    make(&of_admin, balanced).await;
    let answered = json!({ "status": { "loadBalancer": { "ingress": [{ "ip": "192.0.2.1" }] } } });
    let words = refused(
        services.patch_status("balanced", &dry(), &merge(answered)).await,
        "services",
        "its status",
    );
    assert!(words.contains("Service of-services/balanced"), "{words}");
    let words = refused(
        services.delete("web", &DeleteParams::default()).await,
        "services",
        "web",
    );
    assert!(words.contains("Service of-services/web"), "{words}");

    // Helpers have a name, labels and an owner.
    let helper = |change: Value| -> Service {
        let mut helper = json!({
            "metadata": {
                "name": "web-replumb-new",
                "labels": { "replumb.dev/address": "new", "replumb.dev/service": "web", "app.kubernetes.io/managed-by": "replumb" },
                "ownerReferences": [{ "apiVersion": "v1", "kind": "Service", "name": "web", "uid": web.metadata.uid }],
            },
            "spec": { "selector": { "app": "web" }, "ports": [{ "port": 80, "name": "h" }] },
        });
        apply(&mut helper, &change);
        serde_json::from_value(helper).unwrap()
    };
    services.create(&dry_post(), &helper(json!({}))).await.unwrap();
    let bridge = |change: Value| {
        let mut bridge = json!({
            "metadata": { "name": "web-replumb-bridge", "labels": { "replumb.dev/address": "bridge" } },
            "spec": { "type": "LoadBalancer", "loadBalancerClass": "replumb.dev/bridge", "allocateLoadBalancerNodePorts": false },
        });
        apply(&mut bridge, &change);
        bridge
    };
    services
        .create(&PostParams::default(), &helper(bridge(json!({}))))
        .await
        .unwrap();
    let answers = async |address: &str| {
        let status = json!({ "status": { "loadBalancer": { "ingress": [{ "ip": "10.96.0.9" }, { "ip": address }] } } });
        services
            .patch_status("web-replumb-bridge", &dry(), &merge(status))
            .await
    };
    for address in ["192.0.2.1", "fd00:172::b"] {
        answers(address).await.unwrap();
    }
    for address in ["169.254.169.254", "127.0.0.1", "fe80::1", "::1"] {
        let words = refused(answers(address).await, "services", address);
        assert!(words.contains(&format!("to themselves: {address}")), "{words}");
    }
    let word = json!({ "service.kubernetes.io/topology-mode": "Auto" });
    let said = json!({ "replumb.dev/addresses": "10.96.0.9", "replumb.dev/service-before": "{}" });
    for change in [
        json!({ "metadata": { "labels": word, "annotations": word } }),
        json!({ "metadata": { "annotations": said } }),
    ] {
        services.create(&dry_post(), &helper(change)).await.unwrap();
    }
    let owner = |kind: &str, name: &str| json!({ "apiVersion": "v1", "kind": kind, "name": name, "uid": web.metadata.uid });
    for change in [
        json!({ "metadata": { "annotations": { "external-dns.alpha.kubernetes.io/hostname": "www.example.com" } } }),
        json!({ "metadata": { "labels": { "team": "a" } } }),
        json!({ "metadata": { "finalizers": ["a.b/c"] } }),
        json!({ "metadata": { "ownerReferences": [owner("Service", "web"), owner("Pod", "web")] } }),
        bridge(json!({ "spec": { "ports": [{ "port": 80, "name": "h", "nodePort": 30053 }] } })),
        bridge(json!({ "metadata": { "name": "web-replumb-x", "labels": { "replumb.dev/address": "x" } } })),
        json!({ "metadata": { "name": "another" } }),
        json!({ "metadata": { "labels": { "replumb.dev/address": null } } }),
        json!({ "metadata": { "labels": { "replumb.dev/service": "another" } } }),
        json!({ "metadata": { "ownerReferences": null } }),
        json!({ "spec": { "type": "NodePort" } }),
        json!({ "spec": { "type": "LoadBalancer" } }),
        json!({ "spec": { "externalIPs": ["192.0.2.1"] } }),
        json!({ "spec": { "type": "ExternalName", "externalName": "evil.example.com" } }),
    ] {
        let words = refused(
            services.create(&dry_post(), &helper(change.clone())).await,
            "services",
            &change.to_string(),
        );
        assert!(words.contains("Service of-services/"), "{change}: {words}");
    }
}

/// The coordinator's writes of this Service, by its own code.
fn written(service: &Service, write: Write) -> Value {
    let service = serde_json::to_value(service).unwrap();
    let address = service["spec"]["clusterIP"].as_str().unwrap_or_default();
    let addresses = Sides::each(|_| address.parse().into_iter().collect());
    let objects = Objects {
        domain: "cluster.local",
        service: &service,
        addresses: &addresses,
        spare: &Spare::default(),
        ground: &BridgeFacts::default(),
    };
    match objects.request(write) {
        Some(Request::PatchService(change)) => change,
        other => panic!("{other:?}"),
    }
}

/// A thief who removes a Service's record could turn the Service into another one: of another type, or with other node ports.
#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
#[expect(clippy::too_many_lines, reason = "a table of requests, each with its answer")]
async fn a_service_is_restored_with_its_type_and_node_ports_only() {
    let lab = bounds().await;
    let _turn = MIGRATION.read().await;
    lab.namespace("of-types").await.unwrap();
    let of_admin: Api<Service> = Api::namespaced(lab.admin().await.unwrap(), "of-types");
    let services: Api<Service> = Api::namespaced(coordinator().await, "of-types");
    let inner = make(
        &of_admin,
        json!({ "metadata": { "name": "inner" }, "spec": { "selector": { "type": "NodePort" }, "ports": [{ "port": 80 }] } }),
    )
    .await;
    let ports = json!([
        { "name": "dns", "port": 53, "protocol": "UDP", "nodePort": 30054 },
        { "name": "dns-tcp", "port": 53, "nodePort": 30054 },
        { "name": "http", "port": 80, "nodePort": 30055, "appProtocol": "http" },
    ]);
    let outer = make(
        &of_admin,
        json!({ "metadata": { "name": "outer" }, "spec": { "type": "NodePort", "ports": ports } }),
    )
    .await;
    let said = |service: &Service, from: &str, to: &str| {
        let mut away = written(service, Write::ServiceAway(Side::New));
        let before = before_of(service);
        assert!(before.contains(from), "{before}");
        away["metadata"]["annotations"]["replumb.dev/service-before"] = json!(before.replace(from, to));
        away
    };
    let marked =
        |text: Option<&str>| json!({ "metadata": { "annotations": { "replumb.dev/service-before": text } } });
    let at = |number: usize, node_port: u16| {
        let mut ports = ports.clone();
        ports[number]["nodePort"] = json!(node_port);
        json!({ "spec": { "ports": ports } })
    };
    let refuses = async |name: &str, change: Value, named: &str| {
        let words = refused(
            services.patch(name, &dry(), &merge(change.clone())).await,
            "services",
            &change.to_string(),
        );
        assert!(
            words.contains(&format!("Service of-types/{name}")) && words.contains(named),
            "{change}: {words}"
        );
    };
    let of_type = "no ExternalName of what is";
    refuses(
        "inner",
        said(&inner, "\"type\":\"ClusterIP\"", "\"type\":\"NodePort\""),
        of_type,
    )
    .await;
    refuses(
        "outer",
        said(&outer, "\"type\":\"NodePort\"", "\"type\":\"ClusterIP\""),
        of_type,
    )
    .await;
    refuses(
        "outer",
        said(&outer, "30055", "30053"),
        "has to say its node ports",
    )
    .await;
    refuses(
        "inner",
        said(&inner, "\"port\":80", "\"nodePort\":30053,\"port\":80"),
        "has to say its node ports",
    )
    .await;
    refuses("outer", at(2, 30053), "no node port but those").await;
    refuses(
        "inner",
        marked(Some(&before_of(&outer))),
        "annotation replumb.dev/service-before",
    )
    .await;
    // An ExternalName keeps a node port in its spec, but does not own it.
    let mut hidden = written(&outer, Write::ServiceAway(Side::New));
    apply(&mut hidden, &at(2, 30053));
    refuses("outer", hidden, "no node port but those").await;

    let patch = async |name: &str, change: Value| {
        let patched = services
            .patch(name, &PatchParams::default(), &merge(change))
            .await;
        patched.unwrap()
    };
    let mut away = Vec::new();
    for service in [&inner, &outer] {
        let name = service.metadata.name.as_deref().unwrap();
        let gone = patch(name, written(service, Write::ServiceAway(Side::New))).await;
        assert_eq!(gone.spec.as_ref().unwrap().type_.as_deref(), Some("ExternalName"));
        away.push(patch(name, written(&gone, Write::ServiceAway(Side::Old))).await);
        refuses(name, marked(None), "annotation replumb.dev/service-before").await;
        refuses(name, marked(Some("{}")), "annotation replumb.dev/service-before").await;
    }
    let changed = |service: &Service, change: Value| {
        let mut at = written(service, Write::ServiceAt(Side::New));
        apply(&mut at, &change);
        at
    };
    let of_type = |kind: &str| json!({ "spec": { "type": kind } });
    refuses(
        "inner",
        changed(&away[0], of_type("NodePort")),
        "no NodePort of what is ExternalName",
    )
    .await;
    let mut other = changed(&away[1], of_type("ClusterIP"));
    apply(
        &mut other,
        &json!({ "spec": { "externalTrafficPolicy": null, "ports": null } }),
    );
    refuses("outer", other, "no ClusterIP of what is ExternalName").await;
    refuses("outer", changed(&away[1], at(0, 30053)), "no node port but those").await;
    refuses("outer", changed(&away[1], at(2, 30057)), "no node port but those").await;

    // The owner adds a port, renames one, and changes the node port of one.
    let edited = json!([
        { "name": "more", "port": 81 }, { "name": "udp", "port": 53, "protocol": "UDP" }, { "name": "dns-tcp", "port": 53 },
        { "name": "http", "port": 80, "nodePort": 30056, "appProtocol": "http" },
    ]);
    let edited = merge(json!({ "spec": { "ports": edited } }));
    let edited = of_admin
        .patch("outer", &PatchParams::default(), &edited)
        .await
        .unwrap();
    let back = patch("outer", written(&edited, Write::ServiceAt(Side::New))).await;
    let node_ports: Vec<i32> = back
        .spec
        .unwrap()
        .ports
        .unwrap()
        .iter()
        .filter_map(|port| port.node_port)
        .collect();
    assert_eq!(node_ports.len(), 4, "{node_ports:?}");
    assert_eq!(node_ports[2..], [30054, 30056]);
    let back = patch("inner", written(&away[0], Write::ServiceAt(Side::New))).await;
    assert_eq!(back.spec, inner.spec);
    // A Service with this number of ports does not exceed the policy's cost limit.
    let ports: Vec<Value> = (1..=300)
        .map(|port| json!({ "name": format!("p{port}"), "port": port }))
        .collect();
    let many = json!({ "metadata": { "name": "many" }, "spec": { "type": "NodePort", "ports": ports } });
    let many = make(&of_admin, many).await;
    let away = patch("many", written(&many, Write::ServiceAway(Side::New))).await;
    let back = patch("many", written(&away, Write::ServiceAt(Side::New))).await;
    assert_eq!(back.spec, many.spec);
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn only_copies_of_endpoint_slices_for_helpers_are_created() {
    let lab = bounds().await;
    let _turn = MIGRATION.read().await;
    lab.namespace("of-slices").await.unwrap();
    let of_admin: Api<EndpointSlice> = Api::namespaced(lab.admin().await.unwrap(), "of-slices");
    let slices: Api<EndpointSlice> = Api::namespaced(coordinator().await, "of-slices");
    let slice = |name: &str, of: &str, writer: &str| {
        json!({
            "metadata": {
                "name": name,
                "labels": { "kubernetes.io/service-name": of, "endpointslice.kubernetes.io/managed-by": writer,
                    "replumb.dev/service": "web" },
                "ownerReferences": [{ "apiVersion": "v1", "kind": "Service", "name": of, "uid": "u-1" }],
            },
            "addressType": "IPv4", "endpoints": [{ "addresses": ["10.244.1.5"] }], "ports": [],
        })
    };
    let made = make(&slices, slice("copy", "web-replumb-old", "replumb.dev")).await;
    slices
        .replace("copy", &PostParams::default(), &made)
        .await
        .unwrap();
    for (name, of, writer) in [
        ("a", "web", "replumb.dev"),
        ("b", "web-replumb-old", "endpointslice-controller.k8s.io"),
        ("c", "web-replumb-oldest", "replumb.dev"),
    ] {
        let object = serde_json::from_value(slice(name, of, writer)).unwrap();
        let words = refused(slices.create(&dry_post(), &object).await, "endpointslices", name);
        assert!(
            words.contains(&format!("EndpointSlice of-slices/{name}")),
            "{words}"
        );
    }
    let (theirs_too, uid) = (json!({ "a": "b" }), "u-1");
    for (change, named) in [
        (json!({ "labels": theirs_too }), "no label a"),
        (json!({ "annotations": theirs_too }), "no annotation a"),
        (json!({ "finalizers": ["a.b/c"] }), "no finalizer a.b/c"),
        (
            json!({ "ownerReferences": [
                { "apiVersion": "v1", "kind": "Service", "name": "web-replumb-old", "uid": uid },
                { "apiVersion": "v1", "kind": "Pod", "name": "web", "uid": uid },
            ] }),
            "no owner besides",
        ),
    ] {
        let mut more = slice("more", "web-replumb-old", "replumb.dev");
        apply(&mut more["metadata"], &change);
        let object = serde_json::from_value(more).unwrap();
        let words = refused(slices.create(&dry_post(), &object).await, "endpointslices", named);
        assert!(
            words.contains("EndpointSlice of-slices/more") && words.contains(named),
            "{words}"
        );
    }
    let theirs = make(&of_admin, slice("theirs", "web", "another-owner")).await;
    let mut stolen = theirs.clone();
    stolen.endpoints[0].addresses = vec!["10.244.6.6".to_owned()];
    refused(
        slices.replace("theirs", &PostParams::default(), &stolen).await,
        "endpointslices",
        "a stranger's",
    );
    // Adding replumb's labels with the same write does not help.
    let mut marked: EndpointSlice =
        serde_json::from_value(slice("theirs", "web-replumb-old", "replumb.dev")).unwrap();
    marked.metadata.resource_version = theirs.metadata.resource_version;
    refused(
        slices.replace("theirs", &PostParams::default(), &marked).await,
        "endpointslices",
        "a stranger's, marked",
    );
    // A copy cannot be given to another Service.
    let mut moved = made;
    moved
        .metadata
        .labels
        .as_mut()
        .unwrap()
        .insert("kubernetes.io/service-name".to_owned(), "web".to_owned());
    refused(
        slices.replace("copy", &PostParams::default(), &moved).await,
        "endpointslices",
        "a copy for another",
    );
    refused(
        slices.delete("theirs", &DeleteParams::default()).await,
        "endpointslices",
        "a stranger's",
    );
    slices.delete("copy", &DeleteParams::default()).await.unwrap();
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn a_deployment_accepts_one_more_replica_and_a_secret_only_a_backup() {
    let lab = bounds().await;
    lab.namespace("of-scale").await.unwrap();
    let of_admin: Api<Deployment> = Api::namespaced(lab.admin().await.unwrap(), "of-scale");
    let deployments: Api<Deployment> = Api::namespaced(coordinator().await, "of-scale");
    for (name, replicas) in [("one", 1), ("five", 5), ("none", 0)] {
        let mut object = daemon_set(name, &json!({ "name": "a", "image": "a" }), &json!({}));
        object["spec"]["replicas"] = json!(replicas);
        make(&of_admin, object).await;
    }
    let to = |replicas: u32| merge(json!({ "spec": { "replicas": replicas } }));
    for replicas in [2, 1] {
        deployments
            .patch_scale("one", &PatchParams::default(), &to(replicas))
            .await
            .unwrap();
    }
    for (name, replicas) in [
        ("one", 0),
        ("one", 3),
        ("one", 500),
        ("five", 1),
        ("five", 0),
        ("none", 1),
    ] {
        let words = refused(
            deployments.patch_scale(name, &dry(), &to(replicas)).await,
            "scale",
            &format!("{name} to {replicas}"),
        );
        assert!(words.contains(&format!("Deployment of-scale/{name}")), "{words}");
    }

    // The coordinator may create Secrets only with deploy/calico-datastore.
    lab.kubectl(&[
        "create",
        "role",
        "secrets",
        "--verb=create",
        "--resource=secrets",
        "-n",
        names::NAMESPACE,
    ])
    .unwrap();
    lab.kubectl(&[
        "create",
        "rolebinding",
        "secrets",
        "--role=secrets",
        "-n",
        names::NAMESPACE,
        "--serviceaccount=replumb-system:replumb-coordinator",
    ])
    .unwrap();
    let secrets: Api<Secret> = Api::namespaced(coordinator().await, names::NAMESPACE);
    let secret = |name: &str, kind: &str, immutable: bool| -> Secret {
        serde_json::from_value(json!({
            "metadata": { "name": name, "annotations": { "kubernetes.io/service-account.name": names::AGENT } },
            "type": kind, "immutable": immutable,
        }))
        .unwrap()
    };
    let backup = secret("replumb-calico-datastore-1-000", "Opaque", true);
    until("the role to be known", LIMIT, Path::new("/"), async || {
        Ok(match secrets.create(&dry_post(), &backup).await {
            Ok(_) => Observation::Done(()),
            Err(error) => Observation::NotYet(error.to_string()),
        })
    })
    .await
    .unwrap();
    for (name, kind, immutable) in [
        (
            "replumb-calico-datastore-1-000",
            "kubernetes.io/service-account-token",
            true,
        ),
        ("replumb-calico-datastore-1-000", "Opaque", false),
        ("another", "Opaque", true),
    ] {
        let words = refused(
            secrets.create(&dry_post(), &secret(name, kind, immutable)).await,
            "secrets",
            name,
        );
        assert!(
            words.contains(&format!("Secret replumb-system/{name}")),
            "{words}"
        );
    }
}

/// One field of Felix can change a whole cluster: the destinations of pods, the programs that see their packets, the
/// metadata server.
#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn calicos_settings_accept_only_the_fields_of_both_networks() {
    let lab = bounds().await;
    let definitions = concat!(env!("CARGO_MANIFEST_DIR"), "/manifests/calico-crds.yaml");
    lab.kubectl(&["apply", "--server-side", "-f", definitions])
        .unwrap();
    let established = "--for=condition=Established";
    lab.kubectl(&["wait", established, "--timeout=60s", "-f", definitions])
        .unwrap();
    let client = coordinator().await;
    for (kind, plural, fields) in [
        (
            "FelixConfiguration",
            "felixconfigurations",
            &FELIX_CONFIGURATION_FIELDS[..],
        ),
        ("IPAMConfig", "ipamconfigs", &IPAM_CONFIG_FIELDS[..]),
    ] {
        let resource = GroupVersionKind::gvk("crd.projectcalico.org", "v1", kind);
        let resource = ApiResource::from_gvk_with_plural(&resource, plural);
        let ours: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let theirs: Api<DynamicObject> = Api::all_with(lab.admin().await.unwrap(), &resource);
        let object = |name: &str, spec: &Value| -> DynamicObject {
            let object = json!({ "apiVersion": "crd.projectcalico.org/v1", "kind": kind, "metadata": { "name": name }, "spec": spec });
            serde_json::from_value(object).unwrap()
        };
        let value = |field: &str| match field {
            "vxlanVNI" | "vxlanPort" | "vxlanMTU" | "vxlanMTUV6" => json!(4096),
            "ipv6Support" | "vxlanEnabled" | "strictAffinity" | "autoAllocateBlocks" => json!(true),
            _ => json!("Enabled"),
        };
        let spec: serde_json::Map<String, Value> = fields
            .iter()
            .map(|field| ((*field).to_owned(), value(field)))
            .collect();
        let spec = json!(spec);
        let (mut more, other) = (spec.clone(), object("node.first", &spec));
        more["metadataAddr"] = json!("192.0.2.1");
        let mut held = object("default", &spec);
        held.metadata.finalizers = Some(vec!["a.b/c".to_owned()]);
        for (object, named) in [
            (object("default", &more), "spec.metadataAddr"),
            (other, "default alone"),
            (held, "metadata.finalizers"),
        ] {
            let words = refused(ours.create(&dry_post(), &object).await, "calico", named);
            assert!(words.contains(kind) && words.contains(named), "{words}");
        }
        if kind == "FelixConfiguration" {
            let mut defaulted = spec.clone();
            defaulted["nftablesMode"] = json!("Auto");
            let object_of = |spec: &Value| object("default", spec);
            ours.create(&dry_post(), &object_of(&defaulted)).await.unwrap();
            defaulted["nftablesMode"] = json!("Enabled");
            let answer = ours.create(&dry_post(), &object_of(&defaulted)).await;
            refused(answer, "calico", "it is no default");
        }
        ours.create(&PostParams::default(), &object("default", &spec))
            .await
            .unwrap();
        let theirs_too = json!({ "spec": { "prometheusMetricsEnabled": true } });
        theirs
            .patch("default", &PatchParams::default(), &merge(theirs_too))
            .await
            .unwrap();
        for field in fields {
            let other = value(field).as_bool().map_or(Value::Null, |value| json!(!value));
            let change = json!({ "spec": { *field: other } });
            ours.patch("default", &dry(), &merge(change)).await.unwrap();
        }
        for (change, named) in [
            (
                json!({ "spec": { "dataplaneDriver": "/evil" } }),
                "spec.dataplaneDriver",
            ),
            (
                json!({ "spec": { "prometheusMetricsEnabled": null } }),
                "spec.prometheus",
            ),
            (
                json!({ "metadata": { "finalizers": ["a.b/c"] } }),
                "metadata.finalizers",
            ),
        ] {
            let words = refused(
                ours.patch("default", &dry(), &merge(change)).await,
                "calico",
                named,
            );
            assert!(words.contains(named), "{words}");
        }
        theirs
            .create(&PostParams::default(), &object("node.first", &spec))
            .await
            .unwrap();
        let deletion = ours.delete("node.first", &DeleteParams::default()).await;
        refused(deletion, "calico", "another one");
        ours.delete("default", &DeleteParams::default()).await.unwrap();
    }
}

fn range(name: &str, label: &str, ranges: &[&str]) -> ServiceCIDR {
    let object = json!({
        "metadata": { "name": name, "labels": { "app.kubernetes.io/managed-by": label } }, "spec": { "cidrs": ranges },
    });
    serde_json::from_value(object).unwrap()
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn a_service_cidr_must_be_the_coordinators_own_and_within_the_ranges_of_hosts() {
    let lab = bounds().await;
    let ranges: Api<ServiceCIDR> = Api::all(coordinator().await);
    for (name, cidrs) in [
        ("replumb-old", &["10.121.0.0/16"][..]),
        ("replumb-new-again", &["10.121.0.0/16", "fd00:121::/108"]),
        ("replumb-keep-10-121-0-4-30", &["10.121.0.4/30"]),
    ] {
        ranges
            .create(&dry_post(), &range(name, "replumb", cidrs))
            .await
            .unwrap();
    }
    let mut held = range("replumb-new", "replumb", &["10.121.0.0/16"]);
    held.metadata.finalizers = Some(vec!["a.b/c".to_owned()]);
    for (range, named) in [
        (held, "without finalizers"),
        (
            range("another", "replumb", &["10.121.0.0/16"]),
            "makes replumb-old",
        ),
        (range("replumb-new", "a-person", &["10.121.0.0/16"]), "with label"),
        (
            range("replumb-new", "replumb", &["169.254.169.0/24"]),
            "169.254.169.0/24",
        ),
        (range("replumb-new", "replumb", &["126.0.0.0/7"]), "126.0.0.0/7"),
        (
            range("replumb-new", "replumb", &["10.121.0.0/16", "fe80::/64"]),
            "fe80::/64",
        ),
    ] {
        let words = refused(ranges.create(&dry_post(), &range).await, "servicecidrs", named);
        assert!(words.contains(named), "{words}");
    }
    // The coordinator has no right to change a range; the policy holds with any roles.
    lab.kubectl(&[
        "create",
        "clusterrole",
        "ranges",
        "--verb=patch",
        "--resource=servicecidrs.networking.k8s.io",
    ])
    .unwrap();
    lab.kubectl(&[
        "create",
        "clusterrolebinding",
        "ranges",
        "--clusterrole=ranges",
        "--serviceaccount=replumb-system:replumb-coordinator",
    ])
    .unwrap();
    let labelled = merge(json!({ "metadata": { "labels": { "a": "b" } } }));
    until("the role to be known", LIMIT, Path::new("/"), async || {
        let words = match ranges.patch("kubernetes", &dry(), &labelled).await {
            Err(kube::Error::Api(status)) => status.message.clone(),
            other => panic!("a range is changed: {other:?}"),
        };
        Ok(if words.contains("may only make and delete it") {
            Observation::Done(())
        } else {
            Observation::NotYet(words)
        })
    })
    .await
    .unwrap();
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn during_a_change_of_ranges_no_other_range_is_created() {
    let lab = bounds().await;
    let _turn = MIGRATION.write().await;
    let migrations: Api<Migration> = Api::all(lab.admin().await.unwrap());
    make(
        &migrations,
        json!({ "apiVersion": "replumb.dev/v1alpha1", "kind": "Migration", "metadata": { "name": "ranges" },
            "spec": { "serviceCidr": { "to": ["10.122.0.0/24"] } } }),
    )
    .await;
    let sourced = |value: Value| json!({ "value": value, "source": "default" });
    let status = json!({
        "phase": "Rolling", "startedAt": "2026-03-01T10:00:00Z",
        "serviceCidr": { "settings": {
            "from": sourced(json!(["10.96.0.0/16"])), "to": sourced(json!(["10.122.0.0/24"])),
            "domain": sourced(json!("cluster.local")), "bridgePolicy": sourced(json!("Cluster")),
        } },
    });
    migrations
        .patch_status(
            "ranges",
            &PatchParams::default(),
            &merge(json!({ "status": status })),
        )
        .await
        .unwrap();
    let ranges: Api<ServiceCIDR> = Api::all(coordinator().await);
    let make = async |name: &str, cidr: &str| {
        let range = range(name, "replumb", &[cidr]);
        ranges.create(&PostParams::default(), &range).await
    };
    until("the Migration to be known", LIMIT, Path::new("/"), async || {
        Ok(match make("replumb-keep-other", "10.123.0.0/30").await {
            Ok(_) => {
                ranges
                    .delete("replumb-keep-other", &DeleteParams::default())
                    .await
                    .unwrap();
                Observation::NotYet("another range was made".to_owned())
            }
            Err(error) => {
                let words = error.to_string();
                let known = "makes no range 10.123.0.0/30: it is within none of 10.122.0.0/24, 10.96.0.0/16";
                // The change before is not known everywhere yet.
                if words.contains("AlreadyExists") {
                    Observation::NotYet(words)
                } else {
                    assert!(words.contains(known), "{words}");
                    Observation::Done(())
                }
            }
        })
    })
    .await
    .unwrap();
    for (name, cidr) in [
        ("replumb-new", "10.122.0.0/24"),
        ("replumb-keep-10-96-0-4-30", "10.96.0.4/30"),
    ] {
        make(name, cidr).await.unwrap();
        ranges.delete(name, &DeleteParams::default()).await.unwrap();
    }
    let wide = make("replumb-keep-10-96-0-0-15", "10.96.0.0/15").await;
    refused(wide, "migration", "more than the old range");
    let over = merge(json!({ "status": { "phase": "Completed" } }));
    migrations
        .patch_status("ranges", &PatchParams::default(), &over)
        .await
        .unwrap();
    until(
        "the Migration to be finished",
        LIMIT,
        Path::new("/"),
        async || {
            Ok(match make("replumb-keep-after", "10.123.0.4/30").await {
                Ok(_) => Observation::Done(()),
                Err(error) => Observation::NotYet(error.to_string()),
            })
        },
    )
    .await
    .unwrap();
    ranges
        .delete("replumb-keep-after", &DeleteParams::default())
        .await
        .unwrap();
    migrations
        .delete("ranges", &DeleteParams::default())
        .await
        .unwrap();
}

/// While a Migration is running, objects that it does not name cannot be changed.
#[expect(clippy::too_many_lines, reason = "one table of bounds")]
#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn a_running_migration_permits_only_writes_of_the_objects_that_it_names() {
    let lab = bounds().await;
    let _turn = MIGRATION.write().await;
    let sets = sets(lab, "named").await;
    let of_admin: Api<DaemonSet> = Api::namespaced(lab.admin().await.unwrap(), "named");
    make(
        &of_admin,
        daemon_set(
            "kube-flannel-ds-arm64",
            &json!({ "name": "kube-flannel", "image": "a" }),
            &json!({}),
        ),
    )
    .await;
    let migrations: Api<Migration> = Api::all(lab.admin().await.unwrap());
    make(
        &migrations,
        json!({ "apiVersion": "replumb.dev/v1alpha1", "kind": "Migration", "metadata": { "name": "named" },
            "spec": { "flannelToCalico": {} } }),
    )
    .await;
    // A Migration that has not started names no object, and restricts no write.
    let other = merge(selects(&json!("flannel")));
    sets.patch("kube-flannel-ds-arm64", &dry(), &other).await.unwrap();
    let status = async |phase: &str| {
        let mut status = full_settings();
        status["phase"] = json!(phase);
        status["startedAt"] = json!("2026-03-01T10:00:00Z");
        migrations
            .patch_status(
                "named",
                &PatchParams::default(),
                &merge(json!({ "status": status })),
            )
            .await
            .unwrap();
    };
    status("Rolling").await;
    // Dry runs are not refused here, so the test makes real writes.
    let selector = async |name: &str, value: &Value| {
        sets.patch(name, &PatchParams::default(), &merge(selects(value)))
            .await
    };
    until("the Migration to be known", LIMIT, Path::new("/"), async || {
        Ok(match selector("kube-flannel-ds-arm64", &json!("flannel")).await {
            Ok(_) => {
                selector("kube-flannel-ds-arm64", &Value::Null).await.ok();
                Observation::NotYet("another flannel was written".to_owned())
            }
            Err(error) => {
                let words = error.to_string();
                assert!(
                    words.contains("daemonsets named/kube-flannel-ds-arm64: Migration named is under way, and does not name it"),
                    "{words}"
                );
                Observation::Done(())
            }
        })
    })
    .await
    .unwrap();
    selector("kube-flannel-ds", &json!("flannel")).await.unwrap();
    selector("calico-node", &Value::Null).await.unwrap();
    refused(
        sets.delete("kube-flannel-ds-arm64", &DeleteParams::default())
            .await,
        "migration",
        "another flannel",
    );
    // A flannelToCalico migration does not change Services.
    let services: Api<Service> = Api::namespaced(coordinator().await, "named");
    let service = json!({ "metadata": { "name": "web", "labels": {} }, "spec": { "selector": { "a": "b" }, "ports": [{ "port": 80 }] } });
    let of_services: Api<Service> = Api::namespaced(lab.admin().await.unwrap(), "named");
    let web = make(&of_services, service).await;
    let away = json!({ "metadata": { "annotations": { "replumb.dev/service-before": before_of(&web) } },
        "spec": { "type": "ExternalName", "externalName": "web-replumb-new.named.svc.cluster.local" } });
    services.patch("web", &dry(), &merge(away.clone())).await.unwrap();
    let words = refused(
        services.patch("web", &PatchParams::default(), &merge(away)).await,
        "migration",
        "a Service",
    );
    assert!(
        words.contains("flannelToCalico writes none of this kind"),
        "{words}"
    );

    sets.delete("kube-flannel-ds", &DeleteParams::default())
        .await
        .unwrap();
    status("Completed").await;
    until(
        "the Migration to be finished",
        LIMIT,
        Path::new("/"),
        async || {
            Ok(match selector("kube-flannel-ds-arm64", &json!("flannel")).await {
                Ok(_) => Observation::Done(()),
                Err(error) => Observation::NotYet(error.to_string()),
            })
        },
    )
    .await
    .unwrap();
    migrations
        .delete("named", &DeleteParams::default())
        .await
        .unwrap();
}

/// Detected settings that name the two DaemonSets.
fn full_settings() -> Value {
    let sourced = |value: Value| json!({ "value": value, "source": "default" });
    json!({ "flannelToCalico": { "settings": {
        "flannelNetwork": sourced(json!("10.244.0.0/16")), "flannelDaemonSetName": sourced(json!("kube-flannel-ds")),
        "flannelDaemonSetNamespace": sourced(json!("named")), "flannelMtu": sourced(json!(1450)),
        "flannelIpMasquerade": sourced(json!(true)), "flannelSubnetLength": sourced(json!(24)),
        "flannelAnnotationPrefix": sourced(json!("flannel.alpha.coreos.com")), "flannelVni": sourced(json!(1)),
        "flannelPort": sourced(json!(8472)), "calicoDaemonSetName": sourced(json!("calico-node")),
        "calicoDaemonSetNamespace": sourced(json!("named")), "cniConfigurationDirectory": sourced(json!("/etc/cni/net.d")),
        "ipPoolBlockSize": sourced(json!(26)),
    } } })
}
