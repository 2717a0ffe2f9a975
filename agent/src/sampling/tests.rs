//! Sampling against an API server that the test plays, on a host whose parameters cannot be read: each reading has a problem.
//! `tests/netns` has the tests with connections.

use http::{Method, Request, Response};
use http_body_util::BodyExt as _;
use kube::client::Body;
use prometheus::{Registry, TextEncoder};
use serde_json::{Value, json};
use tokio::sync::{Mutex, mpsc};
use tower_test::mock;

use super::*;

const PATH: &str = "/apis/replumb.dev/v1alpha1/connectionsamples";

/// How many hold the metrics without an object: the test and the task. The thread and the writer are two more.
const HOLDERS: usize = 2;

fn object(uid: &str, version: u32) -> Value {
    json!({
        "apiVersion": "replumb.dev/v1alpha1", "kind": "ConnectionSample",
        "metadata": { "name": "a", "uid": uid, "resourceVersion": version.to_string() },
        "spec": { "nodeName": "a", "migration": "m", "capacity": 9, "ingress": ["10.244.1.7"] },
    })
}

fn list(objects: &[Value]) -> (u16, Value) {
    let list = json!({
        "apiVersion": "replumb.dev/v1alpha1", "kind": "ConnectionSampleList",
        "metadata": { "resourceVersion": "7" }, "items": objects,
    });
    (200, list)
}

fn event(kind: &str, object: &Value) -> (u16, Value) {
    (200, json!({ "type": kind, "object": object }))
}

fn failure(code: u16, reason: &str) -> (u16, Value) {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code, "reason": reason,
        "message": reason,
    });
    (code, status)
}

fn text(metrics: &SamplingMetrics) -> String {
    let registry = Registry::new();
    for collector in metrics.collectors() {
        registry.register(collector).unwrap();
    }
    TextEncoder::new().encode_to_string(&registry.gather()).unwrap()
}

/// The sampling of a test.
struct Case {
    /// Answers to lists and watches, one for each.
    answers: mpsc::UnboundedSender<(u16, Value)>,
    /// Answers to patches.
    patched: mpsc::UnboundedSender<(u16, Value)>,
    patches: mpsc::UnboundedReceiver<Value>,
    metrics: Arc<SamplingMetrics>,
    task: JoinHandle<()>,
}

impl Case {
    fn start() -> Self {
        let (service, mut calls) = mock::pair::<Request<Body>, Response<Body>>();
        let (answers, to_reads) = mpsc::unbounded_channel();
        let (patched, to_patches) = mpsc::unbounded_channel();
        let (sender, patches) = mpsc::unbounded_channel();
        let (to_reads, to_patches) = (Arc::new(Mutex::new(to_reads)), Arc::new(Mutex::new(to_patches)));
        tokio::spawn(async move {
            while let Some((request, respond)) = calls.next_request().await {
                let (head, body) = request.into_parts();
                let asked = head.uri.to_string();
                let answers = if head.method == Method::GET {
                    assert!(
                        asked.starts_with(&format!("{PATH}?")) && asked.contains("metadata.name%3Da"),
                        "no other object: {asked}"
                    );
                    Arc::clone(&to_reads)
                } else {
                    assert!(asked.starts_with(&format!("{PATH}/a/status?")), "{asked}");
                    let body = body.collect().await.unwrap().to_bytes();
                    sender.send(serde_json::from_slice(&body).unwrap()).unwrap();
                    Arc::clone(&to_patches)
                };
                tokio::spawn(async move {
                    let Some((code, answer)) = answers.lock().await.recv().await else {
                        return;
                    };
                    let body = format!("{answer}\n").into_bytes();
                    respond.send_response(Response::builder().status(code).body(Body::from(body)).unwrap());
                });
            }
        });
        let metrics = Arc::new(SamplingMetrics::new().unwrap());
        let client = Client::new(service, "default");
        let task = super::start(Parts {
            node: "a".to_owned(),
            watching: client.clone(),
            client,
            proc: "/nowhere".into(),
            metrics: Arc::clone(&metrics),
        });
        Self {
            answers,
            patched,
            patches,
            metrics,
            task,
        }
    }

    fn answer(&self, answer: (u16, Value)) {
        self.answers.send(answer).unwrap();
    }

    /// The next patch, which gets this answer.
    async fn patch(&mut self, answer: (u16, Value)) -> Value {
        self.patched.send(answer).unwrap();
        tokio::time::timeout(Duration::from_secs(20), self.patches.recv())
            .await
            .expect("no patch")
            .unwrap()
    }

    /// Waits until so many hold the metrics: the thread and the writer have freed what they had.
    async fn holders(&self, number: usize) {
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        while Arc::strong_count(&self.metrics) != number {
            assert!(
                std::time::Instant::now() < deadline,
                "{}, needed {number}",
                Arc::strong_count(&self.metrics)
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(!self.task.is_finished());
    }
}

#[tokio::test]
async fn the_thread_lives_as_long_as_the_object() {
    let mut case = Case::start();
    case.holders(HOLDERS).await;
    case.answer(list(&[object("u1", 7)]));
    let patch = case.patch((200, object("u1", 8))).await;
    case.holders(HOLDERS + 2).await;
    assert_eq!(patch["metadata"], json!({ "uid": "u1" }));
    let problem = patch["status"]["problem"].as_str().unwrap();
    assert!(
        problem.contains("could not read /nowhere/sys/net/ipv4/ip_local_port_range"),
        "{problem}"
    );
    assert!(
        patch["status"].get("last").is_none(),
        "no reading is complete: {patch}"
    );
    let text = text(&case.metrics);
    assert!(
        text.contains("replumb_agent_connection_readings_total{outcome=\"refused\"} 1"),
        "{text}"
    );
    case.answer(event("DELETED", &object("u1", 9)));
    case.holders(HOLDERS).await;
}

#[tokio::test]
async fn an_object_in_place_of_another_one_starts_from_nothing() {
    let mut case = Case::start();
    case.answer(list(&[object("u1", 7)]));
    case.patch((200, object("u1", 8))).await;
    case.answer(event("MODIFIED", &object("u2", 9)));
    let patch = case.patch((200, object("u2", 10))).await;
    assert_eq!(patch["metadata"], json!({ "uid": "u2" }));
    case.holders(HOLDERS + 2).await;
}

#[tokio::test]
async fn a_refused_write_is_repeated() {
    let mut case = Case::start();
    case.answer(list(&[object("u1", 7)]));
    let first = case.patch(failure(500, "InternalError")).await;
    let began = std::time::Instant::now();
    let again = case.patch((200, object("u1", 8))).await;
    assert_eq!(first, again);
    assert!(began.elapsed() >= Duration::from_millis(400), "without a pause");
    let text = text(&case.metrics);
    assert!(
        text.contains("replumb_agent_connection_sample_writes_total{outcome=\"error\"} 1"),
        "{text}"
    );
}

#[tokio::test]
async fn an_installation_without_the_kind_costs_nothing_and_ends_nothing() {
    let mut case = Case::start();
    case.answer(failure(404, "NotFound"));
    case.answer(failure(403, "Forbidden"));
    case.answer(failure(404, "NotFound"));
    tokio::time::sleep(Duration::from_secs(2)).await;
    case.holders(HOLDERS).await;
    // The kind is installed.
    case.answer(list(&[object("u1", 7)]));
    case.patch((200, object("u1", 8))).await;
    // The kind is removed with its objects.
    case.answer(failure(410, "Expired"));
    case.answer(failure(404, "NotFound"));
    case.holders(HOLDERS).await;
}

#[tokio::test]
async fn an_unreachable_api_server_ends_no_sampling() {
    let mut case = Case::start();
    case.answer(list(&[object("u1", 7)]));
    case.patch((200, object("u1", 8))).await;
    case.answer(failure(410, "Expired"));
    case.answer(failure(503, "ServiceUnavailable"));
    tokio::time::sleep(Duration::from_secs(1)).await;
    case.holders(HOLDERS + 2).await;
}

#[tokio::test]
async fn a_thread_that_ends_is_a_problem_and_starts_again() {
    let metrics = Arc::new(SamplingMetrics::new().unwrap());
    let (sender, seen) = watch::channel(WatchedSample::Unknown);
    let client = {
        let (service, _) = mock::pair::<Request<Body>, Response<Body>>();
        Client::new(service, "default")
    };
    let object: ConnectionSample = serde_json::from_value(object("u1", 7)).unwrap();
    sender.send_replace(WatchedSample::Present(Arc::new(object)));
    let mut sampling = Sampling {
        parts: Parts {
            node: "a".to_owned(),
            watching: client.clone(),
            client,
            proc: "/nowhere".into(),
            metrics,
        },
        seen,
        running: None,
        failures: Backoff::default(),
        not_before: None,
    };
    sampling.turn().await;
    assert!(sampling.running.as_ref().unwrap().sampler.is_some());
    sampling.fail("the thread that reads connection tracking has ended");
    let running = sampling.running.as_ref().unwrap();
    assert!(running.sampler.is_none());
    let began = std::time::Instant::now();
    while sampling.running.as_ref().unwrap().sampler.is_none() {
        let pause = sampling.turn().await;
        tokio::time::sleep(pause.min(Duration::from_millis(100))).await;
        assert!(began.elapsed() < Duration::from_secs(5), "not started again");
    }
    assert!(began.elapsed() >= Duration::from_millis(400), "without a pause");
}
