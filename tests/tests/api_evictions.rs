//! Evictions on the real API server, with the coordinator's own code and token: the API server follows the request.
//!
//! Run by `cargo lab test`, or `cargo test -p lab --test api_evictions -- --ignored`.

#![expect(clippy::unwrap_used, reason = "a test says that it failed by a panic")]

use std::sync::Arc;
use std::time::Duration;

use api::names;
use coordinator::context::Context;
use coordinator::events::EventRecorder;
use coordinator::evict::{collect, evict};
use coordinator::memory::Memory;
use coordinator::metrics::Metrics;
use coordinator::obstacles::Obstacles;
use coordinator::read;
use coordinator::words::MessagePace;
use engine::evict::PodName;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{ApiResource, DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Config, ResourceExt};
use lab::apilab::ApiLab;
use runtime::client::Limit;
use serde_json::json;
use tokio::sync::OnceCell;

const NODE: &str = "first";
const NAMESPACE: &str = "shop";
/// Longer than the API server takes to answer an eviction.
const LIMIT: Duration = Duration::from_secs(40);

const RATE: Limit = Limit {
    requests: 100,
    period: Duration::from_secs(1),
};

/// The API server with a Node and a tenant's namespace.
async fn lab() -> &'static ApiLab {
    static READY: OnceCell<()> = OnceCell::const_new();
    let lab = ApiLab::shared().unwrap();
    READY
        .get_or_init(|| async {
            lab.kubectl(&["create", "namespace", NAMESPACE]).unwrap();
            // No controller creates it here.
            lab.kubectl(&["create", "serviceaccount", "default", "-n", NAMESPACE])
                .unwrap();
            lab.node(NODE).await.unwrap();
        })
        .await;
    lab
}

/// The coordinator with its own token, and the client that every program of replumb uses.
async fn context(lab: &ApiLab) -> Context {
    let token = lab
        .token(names::NAMESPACE, names::COORDINATOR, None)
        .await
        .unwrap();
    let metrics = Arc::new(Metrics::new().unwrap());
    let mut config = lab.config_with_token(&token).await.unwrap();
    // As in the coordinator: a refused eviction is a 429, and is returned at once.
    config.default_retry = false;
    let client = runtime::client::client(config, Arc::new(metrics.api.clone()), RATE).unwrap();
    Context {
        client: client.clone(),
        background: client.clone(),
        watching: client.clone(),
        config: Config::new(http::Uri::from_static("https://127.0.0.1")),
        namespace: names::NAMESPACE.to_owned(),
        node_name: NODE.to_owned(),
        asks_other_servers: true,
        agent_image: String::new(),
        metrics,
        events: EventRecorder::new(client, "coordinator"),
        obstacles: Obstacles::default(),
        pace: MessagePace::FOR_USERS,
    }
}

/// Pods of the tenant. Each is bound to the Node: without a kubelet it stays while it terminates.
async fn pods(lab: &ApiLab) -> Api<Pod> {
    Api::namespaced(lab.admin().await.unwrap(), NAMESPACE)
}

async fn create(pods: &Api<Pod>, name: &str) -> PodName {
    let pod = serde_json::from_value(json!({
        "metadata": { "name": name },
        "spec": {
            "nodeName": NODE,
            "terminationGracePeriodSeconds": 30,
            "containers": [{ "name": "main", "image": "registry.example/main:1" }],
        },
    }))
    .unwrap();
    let made = pods.create(&PostParams::default(), &pod).await.unwrap();
    PodName {
        namespace: NAMESPACE.to_owned(),
        name: name.to_owned(),
        uid: made.uid().unwrap(),
    }
}

fn counted(context: &Context, result: &str) -> u64 {
    context.metrics.evictions.with_label_values(&[result]).get()
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn an_eviction_has_the_requested_grace_period() {
    let lab = lab().await;
    let (context, pods, mut memory) = (context(lab).await, pods(lab).await, Memory::default());
    for (name, asked, expected) in [("asked", Some(7), 7), ("own", None, 30)] {
        let pod = create(&pods, name).await;
        evict(&context, &[pod], asked, &mut memory).await;
        let metadata = pods.get(name).await.unwrap().metadata;
        assert!(metadata.deletion_timestamp.is_some(), "{name} terminates");
        assert_eq!(metadata.deletion_grace_period_seconds, Some(expected), "{name}");
    }
    assert_eq!(counted(&context, "evicted"), 2);
    assert_eq!(context.metrics.api_warnings(), 0, "no field was dropped");
}

/// A tenant's pod that terminates for a day blocks its node: the user's grace period ends that, without a check of budgets.
#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn a_second_eviction_shortens_the_grace_period_despite_a_budget() {
    let lab = lab().await;
    let (context, pods) = (context(lab).await, pods(lab).await);
    let (long, held) = (create(&pods, "long").await, create(&pods, "held").await);
    // Budgets do not apply to a Pending pod, either.
    for name in ["long", "held"] {
        let running = Patch::Merge(json!({ "status": { "phase": "Running" } }));
        pods.patch_status(name, &PatchParams::default(), &running)
            .await
            .unwrap();
    }
    let day = DeleteParams {
        grace_period_seconds: Some(86_400),
        ..DeleteParams::default()
    };
    pods.delete("long", &day).await.unwrap();
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(lab.admin().await.unwrap(), NAMESPACE);
    let budget = serde_json::from_value(json!({
        "metadata": { "name": "every-pod" },
        "spec": { "maxUnavailable": 0, "selector": {} },
    }))
    .unwrap();
    budgets.create(&PostParams::default(), &budget).await.unwrap();
    let mut memory = Memory::default();
    evict(&context, &[long, held], Some(7), &mut memory).await;
    // The budget blocks the pod that has not begun to terminate.
    let answered = tokio::time::timeout(LIMIT, async {
        while counted(&context, "refused_by_budget") == 0 {
            tokio::time::sleep(Duration::from_millis(200)).await;
            collect(&context.metrics, &mut memory);
        }
    });
    answered.await.unwrap();
    budgets
        .delete("every-pod", &DeleteParams::default())
        .await
        .unwrap();
    let metadata = pods.get("long").await.unwrap().metadata;
    assert_eq!(metadata.deletion_grace_period_seconds, Some(7));
    assert_eq!(counted(&context, "evicted"), 1);
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn a_new_pod_of_the_same_name_is_not_evicted_in_place_of_the_observed_pod() {
    let lab = lab().await;
    let (context, pods, mut memory) = (context(lab).await, pods(lab).await, Memory::default());
    // Like the controller of a StatefulSet: the pod is deleted, and another one gets its name.
    let seen = create(&pods, "web-0").await;
    let at_once = DeleteParams {
        grace_period_seconds: Some(0),
        ..DeleteParams::default()
    };
    pods.delete("web-0", &at_once).await.unwrap();
    let successor = create(&pods, "web-0").await;
    assert_ne!(seen.uid, successor.uid);

    evict(&context, std::slice::from_ref(&seen), Some(1), &mut memory).await;
    // The API server retries an eviction with a conflict for ten seconds before it answers: no pass waits for that.
    let answered = tokio::time::timeout(LIMIT, async {
        while counted(&context, "replaced") == 0 {
            tokio::time::sleep(Duration::from_millis(200)).await;
            collect(&context.metrics, &mut memory);
        }
    });
    answered.await.unwrap();
    let there = pods.get("web-0").await.unwrap();
    assert_eq!(there.uid().as_ref(), Some(&successor.uid));
    assert_eq!(
        there.metadata.deletion_timestamp, None,
        "the new pod is not deleted"
    );
    assert_eq!(
        (counted(&context, "evicted"), counted(&context, "replaced")),
        (0, 1)
    );
    assert!(memory.refusals.is_empty(), "no refusal remains");

    // The same request sent directly: the API server refuses it by the UID.
    let body = serde_json::to_string(&coordinator::evict::body(&seen, None)).unwrap();
    let uri = format!("/api/v1/namespaces/{NAMESPACE}/pods/web-0/eviction");
    let request = http::Request::post(uri).body(body.into_bytes()).unwrap();
    let refused = context.client.request::<serde_json::Value>(request).await;
    let Err(kube::Error::Api(status)) = refused else {
        unreachable!("{refused:?}");
    };
    assert_eq!(status.code, 409, "{}", status.message);
    assert!(status.message.contains(&successor.uid), "{}", status.message);
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn an_unknown_field_is_refused_by_the_api_server() {
    let lab = lab().await;
    let context = context(lab).await;
    let pod = create(&pods(lab).await, "strict").await;
    // The form that kube-core 5.0.0 writes.
    let body = json!({
        "metadata": { "name": pod.name, "namespace": NAMESPACE },
        "delete_options": { "preconditions": { "uid": pod.uid } },
    });
    let uri = format!("/api/v1/namespaces/{NAMESPACE}/pods/strict/eviction");
    let request = http::Request::post(uri)
        .body(body.to_string().into_bytes())
        .unwrap();
    let refused = context.client.request::<serde_json::Value>(request).await;
    let Err(kube::Error::Api(status)) = refused else {
        unreachable!("{refused:?}");
    };
    assert_eq!(status.code, 400, "{}", status.message);
    assert!(
        status.message.contains("unknown field \"delete_options\""),
        "{}",
        status.message
    );
}

/// The API server keeps a client's time and returns it in UTC: with a year of five digits, which replumb's types cannot parse.
#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn objects_with_an_invalid_time_are_read() {
    let lab = lab().await;
    let context = context(lab).await;
    let deployments: Api<DynamicObject> = Api::namespaced_with(
        lab.admin().await.unwrap(),
        NAMESPACE,
        &ApiResource::erase::<Deployment>(&()),
    );
    for name in ["odd", "plain"] {
        let object = serde_json::from_value(json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name },
            "spec": {
                "replicas": 0,
                "selector": { "matchLabels": { "app": name } },
                "template": {
                    "metadata": { "labels": { "app": name } },
                    "spec": { "containers": [{ "name": "main", "image": "registry.example/main:1" }] },
                },
            },
        }))
        .unwrap();
        deployments.create(&PostParams::default(), &object).await.unwrap();
    }
    let managed = json!([{
        "manager": "odd", "operation": "Update", "apiVersion": "apps/v1", "time": "9999-12-31T23:59:59-01:00", "fieldsType": "FieldsV1",
        "fieldsV1": { "f:spec": { "f:replicas": {} } },
    }]);
    let patch = json!({
        "metadata": { "managedFields": managed },
        "spec": { "template": { "metadata": { "creationTimestamp": "9999-12-31T23:59:59-01:00" } } },
    });
    let uri = format!("/apis/apps/v1/namespaces/{NAMESPACE}/deployments/odd");
    let request = http::Request::patch(uri.as_str())
        .header(http::header::CONTENT_TYPE, "application/merge-patch+json")
        .body(patch.to_string().into_bytes())
        .unwrap();
    // Replumb's types cannot parse the answer: as text it shows the API server's form of the time.
    let admin = lab.admin().await.unwrap();
    let told = admin.request_text(request).await.unwrap();
    assert!(
        told.contains("10000-01-01T00:59:59Z"),
        "the API server no longer returns such a time: {told}"
    );
    let strict: Api<Deployment> = Api::namespaced(admin, NAMESPACE);
    assert!(
        strict.get("odd").await.is_err(),
        "the types can parse the time now"
    );

    let of_namespace = |object: Deployment| {
        let replicas = object.spec.as_ref().and_then(|spec| spec.replicas);
        (object.namespace().as_deref() == Some(NAMESPACE)).then(|| (object.name_any(), replicas))
    };
    let mut found = read::each(&context, "Deployments", of_namespace).await.unwrap();
    found.retain(|(name, _)| ["odd", "plain"].contains(&name.as_str()));
    let expected = ["odd", "plain"].map(|name| (name.to_owned(), Some(0)));
    assert_eq!(found, expected);
}
