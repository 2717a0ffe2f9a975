//! Complete turns of the loop on a real host with a fake API server: the exact API calls.

use std::fs;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use agent::health::Health;
use agent::host::folders::FolderWatch;
use agent::host::netlink;
use agent::host_thread::{HostThread, Parts};
use agent::kinds::service_cidr::expected::WatchedRecord;
use agent::kinds::{HostParts, Kinds, Watched};
use agent::metrics::Metrics;
use agent::traffic::hub::Hub;
use agent::turn::Agent;
use agent::watched_object::WatchedObject;
use api::NodeMigration;
use axum::http::{Method, Request, Response, StatusCode};
use flannel_to_calico::phase::Goal;
use kube::client::Body;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tower_test::mock;

use crate::host::{Host, in_namespace, run};

/// Longer than the pauses of the loop while the node has no goal, shorter than the pause without events.
const SILENCE: Duration = Duration::from_secs(4);
const PATIENCE: Duration = Duration::from_secs(20);

/// A fake API server that holds one object and checks the requests.
pub struct Server {
    calls: mock::Handle<Request<Body>, Response<Body>>,
    goals: watch::Sender<WatchedObject>,
    /// The question to all agents.
    pub questions: watch::Sender<WatchedRecord>,
    pub object: Value,
}

impl Server {
    /// Sends the object to the watch.
    pub fn announce(&self) {
        let object: NodeMigration = serde_json::from_value(self.object.clone()).unwrap();
        self.goals.send(WatchedObject::Present(Arc::new(object))).unwrap();
    }

    /// The coordinator sets a goal.
    pub fn set_goal(&mut self, goal: Goal) {
        self.object["spec"]["flannelToCalico"]["goal"] = serde_json::to_value(goal).unwrap();
        self.object["metadata"]["generation"] =
            json!(self.object["metadata"]["generation"].as_i64().unwrap() + 1);
        self.bump();
        self.announce();
    }

    pub fn bump(&mut self) {
        let version: u64 = self.object["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap();
        self.object["metadata"]["resourceVersion"] = json!((version + 1).to_string());
    }

    /// Expects a patch of this object's status as the next call, and answers with this status code.
    pub async fn patch(&mut self, answer: StatusCode) -> Value {
        let (request, send) = tokio::time::timeout(PATIENCE, self.calls.next_request())
            .await
            .expect("no call within the time limit")
            .expect("the agent has ended");
        assert_eq!(request.method(), Method::PATCH);
        assert_eq!(
            request.uri().path(),
            "/apis/replumb.dev/v1alpha1/nodemigrations/a/status"
        );
        assert!(
            request
                .uri()
                .query()
                .unwrap_or_default()
                .contains("fieldManager=replumb-agent")
        );
        assert_eq!(request.headers()["content-type"], "application/merge-patch+json");
        let body = request.into_body().collect_bytes().await.unwrap();
        let patch: Value = serde_json::from_slice(&body).unwrap();
        let fields: Vec<&String> = patch.as_object().unwrap().keys().collect();
        assert_eq!(fields, ["metadata", "status"], "an agent writes only its status");
        assert_eq!(patch["metadata"], json!({ "uid": "u-1" }));
        let body = if answer == StatusCode::OK {
            merge(&mut self.object["status"], &patch["status"]);
            self.bump();
            self.object.clone()
        } else {
            json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": answer.as_u16(),
                    "reason": "InternalError", "message": "played" })
        };
        send.send_response(
            Response::builder()
                .status(answer)
                .body(Body::from(serde_json::to_vec(&body).unwrap()))
                .unwrap(),
        );
        patch["status"].clone()
    }

    /// Answers patches until the status has this phase.
    pub async fn phase(&mut self, phase: &str) {
        for _ in 0..8 {
            if self.object["status"]["flannelToCalico"]["phase"] == phase {
                return;
            }
            self.patch(StatusCode::OK).await;
        }
        panic!("phase {phase} is not reached: {}", self.object["status"]);
    }

    /// Expects no call.
    pub async fn silence(&mut self) {
        let call = tokio::time::timeout(SILENCE, self.calls.next_request()).await;
        assert!(
            call.is_err(),
            "unnecessary call: {:?}",
            call.map(|call| call.map(|(request, _)| request))
        );
    }
}

/// RFC 7386.
fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        *target = patch.clone();
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(key);
        } else {
            merge(&mut target[key.as_str()], value);
        }
    }
}

/// An agent of this host, and its API server. Dropping the future kills the agent.
pub fn start(host: &Host, object: Value) -> (Server, impl Future<Output = ()> + use<>) {
    let known: NodeMigration = serde_json::from_value(object.clone()).unwrap();
    start_with(host, object, WatchedObject::Present(Arc::new(known)))
}

/// The same with an API server that was not reached yet.
pub fn start_without_api_server(host: &Host, object: Value) -> (Server, impl Future<Output = ()> + use<>) {
    start_with(host, object, WatchedObject::Unknown)
}

/// The host thread observes immediately, with the object that is known at its start.
fn start_with(
    host: &Host,
    object: Value,
    known: WatchedObject,
) -> (Server, impl Future<Output = ()> + use<>) {
    let (service, calls) = mock::pair::<Request<Body>, Response<Body>>();
    let client = Client::new(service, "default");
    let (questions, expected) = watch::channel(crate::service_cidr::watched_record(443));
    let (goals, seen) = watch::channel(known);
    let metrics = Arc::new(Metrics::new().unwrap());
    let health = Arc::new(Health::starting());
    // Without a goal no kind watches anything.
    let (_, no_goals) = watch::channel(WatchedObject::Unknown);
    let (mut watched, _) = Watched::start(&client, &no_goals);
    watched.service_cidr = expected;
    let paths = host.paths.clone();
    let state = host.state();
    let parts = {
        let (metrics, health) = (Arc::clone(&metrics), Arc::clone(&health));
        move || -> Result<Parts, std::io::Error> {
            let changed = Arc::new(Notify::new());
            let watching = netlink::watch(Arc::clone(&changed));
            let folders = Arc::new(FolderWatch::start(Arc::clone(&changed)));
            let parts = HostParts {
                node: "a".to_owned(),
                paths,
                state,
                pod_uid: String::new(),
                config: kube::Config::new("http://192.0.2.1".parse().unwrap()),
                folders,
                metrics,
                health,
            };
            Ok(Parts {
                kinds: Kinds::start(&parts, watched).unwrap(),
                changed,
                watching,
            })
        }
    };
    let thread = HostThread::start(parts, seen.clone(), Arc::clone(&metrics), health).unwrap();
    let hub = Hub::listen("a", &host.folder.path().join("run")).unwrap();
    let agent = Agent::new(thread, Api::all(client), seen, hub, metrics);
    let server = Server {
        calls,
        goals,
        questions,
        object,
    };
    (server, agent.run())
}

pub fn object(host: &Host) -> Value {
    json!({
        "apiVersion": "replumb.dev/v1alpha1",
        "kind": "NodeMigration",
        "metadata": { "name": "a", "uid": "u-1", "generation": 1, "resourceVersion": "10" },
        "spec": { "nodeName": "a", "migration": "m", "flannelToCalico": { "host": host.settings() } },
    })
}

/// Runs an agent beside a scenario, and ends it with the scenario.
/// Boxed: the agent's future contains a complete observation of the host.
pub fn beside<'both>(
    agent: impl Future<Output = ()> + 'both,
    scenario: impl Future<Output = ()> + 'both,
) -> Pin<Box<dyn Future<Output = ()> + 'both>> {
    Box::pin(async {
        tokio::select! {
            () = agent => panic!("the agent's loop ended"),
            () = scenario => {}
        }
    })
}

#[test]
#[ignore = "needs root and network namespaces"]
fn an_unchanged_status_is_not_written_again() {
    in_namespace(|| async {
        let host = Host::new();
        let (mut server, agent) = start(&host, object(&host));
        beside(agent, async {
            let first = server.patch(StatusCode::OK).await;
            assert_eq!(
                (&first["flannelToCalico"]["phase"], &first["observedGeneration"]),
                (&json!("Flannel"), &json!(1))
            );
            assert!(
                first["flannelToCalico"]["checks"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .any(|check| check["name"] == "Journal")
            );
            server.silence().await;
            // An irrelevant change of the host.
            run("ip link add docker1 type bridge");
            server.silence().await;
            // The watch sends the known object again.
            server.announce();
            server.silence().await;
        })
        .await;
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn goals_are_reached_and_reported_with_their_generation() {
    in_namespace(|| async {
        let host = Host::new();
        Host::firewall("iptables-nft");
        let (mut server, agent) = start(&host, object(&host));
        beside(agent, async {
            server.phase("Flannel").await;
            server.set_goal(Goal::Held);
            let status = server.patch(StatusCode::OK).await;
            assert_eq!(
                (&status["flannelToCalico"]["phase"], &status["observedGeneration"]),
                (&json!("Held"), &json!(2))
            );
            assert!(!host.paths.subnet_environment().exists());
            server.set_goal(Goal::Detached);
            let status = server.patch(StatusCode::OK).await;
            assert!(
                status["message"].as_str().unwrap().contains("vethpod1"),
                "{status}"
            );
            // The kernel announces the end of the pod.
            Host::delete_last_pod();
            server.phase("Detached").await;
            server.set_goal(Goal::Calico);
            let status = server.patch(StatusCode::OK).await;
            assert!(
                status["message"]
                    .as_str()
                    .unwrap()
                    .contains("10-flannel.conflist is in use"),
                "{status}"
            );
            host.install_calico();
            server.phase("Calico").await;
            assert_eq!(server.object["status"]["flannelToCalico"]["leftovers"], json!([]));
            assert_eq!(server.object["status"]["observedGeneration"], 4);
            server.silence().await;
        })
        .await;
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn an_unreachable_api_server_stops_no_step_and_gets_the_status_later() {
    in_namespace(|| async {
        let host = Host::new();
        let (mut server, agent) = start(&host, object(&host));
        beside(agent, async {
            server.phase("Flannel").await;
            server.set_goal(Goal::Held);
            for _ in 0..2 {
                server.patch(StatusCode::INTERNAL_SERVER_ERROR).await;
            }
            assert!(
                !host.paths.subnet_environment().exists(),
                "the step did not wait for the API"
            );
            let status = server.patch(StatusCode::OK).await;
            assert_eq!(status["flannelToCalico"]["phase"], "Held");
            server.silence().await;
        })
        .await;
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn a_goal_without_settings_changes_nothing() {
    in_namespace(|| async {
        let host = Host::new();
        let mut object = object(&host);
        object["spec"]["flannelToCalico"] = json!({ "goal": "Detached" });
        let (mut server, agent) = start(&host, object);
        beside(agent, async {
            server.patch(StatusCode::OK).await;
            let failure = &server.object["status"]["failure"];
            assert_eq!(failure["category"], "SettingsMissing", "{failure}");
            assert!(host.paths.subnet_environment().exists());
        })
        .await;
    });
}

#[test]
#[ignore = "needs root and network namespaces"]
fn an_unreadable_host_is_reported_and_recovers() {
    in_namespace(|| async {
        let host = Host::new();
        let moved = host.folder.path().join("moved");
        fs::rename(&host.paths.cni_configuration, &moved).unwrap();
        let (mut server, agent) = start(&host, object(&host));
        beside(agent, async {
            let status = server.patch(StatusCode::OK).await;
            assert_eq!(
                (
                    &status["flannelToCalico"]["phase"],
                    &status["flannelToCalico"]["facts"]
                ),
                (&Value::Null, &Value::Null)
            );
            assert_eq!(status["flannelToCalico"]["checks"][0]["verdict"], "Unknown");
            assert!(
                status["failure"]["message"]
                    .as_str()
                    .unwrap()
                    .contains("etc/cni/net.d"),
                "{status}"
            );
            fs::rename(&moved, &host.paths.cni_configuration).unwrap();
            let status = server.patch(StatusCode::OK).await;
            assert_eq!(
                (&status["flannelToCalico"]["phase"], &status["failure"]),
                (&json!("Flannel"), &Value::Null)
            );
        })
        .await;
    });
}
