//! The ports that kube-proxy has to know. The settings name the `MigrationRecord` with the ports for all nodes, and the agent
//! watches it.

use std::pin::pin;
use std::sync::Arc;

use api::{MigrationRecord, NodeMigration};
use futures::StreamExt;
use kube::runtime::watcher::watch_object;
use kube::{Api, Client};
use runtime::error::chain;
use service_cidr::host::{ExpectedPortsReference, Question};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::backoff::{Backoff, LONGEST_PAUSE_ON_WATCH};
use crate::host::random;
use crate::watched_object::WatchedObject;

/// State of the watched record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum WatchedRecord {
    /// The settings name no record.
    #[default]
    NotRequested,
    /// Name of the record, and the reason why its content is unknown.
    Unknown(String, String),
    /// Name of the record, and its last known content.
    Question(String, Arc<Question>),
}

impl WatchedRecord {
    /// The question that these settings name; `None` if they name no record.
    ///
    /// # Errors
    /// The reason why the question is unknown: the operation and the record.
    pub fn question(&self, named: Option<&ExpectedPortsReference>) -> Option<Result<Arc<Question>, String>> {
        let ExpectedPortsReference { record } = named?;
        Some(match self {
            Self::Question(of, question) if of == record => Ok(Arc::clone(question)),
            Self::Unknown(of, why) if of == record => Err(why.clone()),
            Self::NotRequested | Self::Unknown(..) | Self::Question(..) => Err(not_read(record)),
        })
    }
}

fn not_read(record: &str) -> String {
    format!("MigrationRecord {record} has not been read yet")
}

/// Follows the record that the newest settings name, until the process ends.
pub fn follow(
    client: Client,
    mut goals: watch::Receiver<WatchedObject>,
) -> (watch::Receiver<WatchedRecord>, JoinHandle<()>) {
    let (sender, receiver) = watch::channel(WatchedRecord::NotRequested);
    let task = tokio::spawn(async move {
        loop {
            let named = named(&goals.borrow_and_update());
            let is_another = async { goals.wait_for(|seen| self::named(seen) != named).await.is_ok() };
            tokio::select! {
                is_open = is_another => if !is_open { return },
                () = watch_record(&client, named.as_deref(), &sender) => {}
            }
        }
    });
    (receiver, task)
}

fn named(seen: &WatchedObject) -> Option<String> {
    let of = |object: &NodeMigration| {
        let settings = object.spec.service_cidr.as_ref()?;
        settings.expected_ports.as_ref().map(|named| named.record.clone())
    };
    match seen {
        WatchedObject::Present(object) => of(object),
        WatchedObject::Unknown | WatchedObject::Absent => None,
    }
}

/// Watches the record with this name, and sends its content until the task is cancelled.
async fn watch_record(client: &Client, record: Option<&str>, sender: &watch::Sender<WatchedRecord>) {
    let send = |news: WatchedRecord| {
        sender.send_if_modified(|held| {
            let is_news = *held != news;
            *held = news;
            is_news
        })
    };
    let Some(record) = record else {
        send(WatchedRecord::NotRequested);
        return std::future::pending().await;
    };
    let unknown = |why: String| WatchedRecord::Unknown(record.to_owned(), why);
    send(unknown(not_read(record)));
    let mut objects = pin!(watch_object(Api::<MigrationRecord>::all(client.clone()), record));
    let mut failures = Backoff::default();
    while let Some(object) = objects.next().await {
        let held = match object {
            Ok(object) => match object.and_then(|object| object.spec.expected_ports) {
                Some(question) => WatchedRecord::Question(record.to_owned(), Arc::new(question)),
                None => unknown(format!("MigrationRecord {record} not found")),
            },
            Err(error) => {
                let why = format!("watching MigrationRecord {record}: {}", chain(&error));
                tracing::warn!(error = why, "watching the MigrationRecord failed; retrying");
                // A known question stays valid: each answer names its question.
                if !matches!(*sender.borrow(), WatchedRecord::Question(..)) {
                    send(unknown(why));
                }
                let random = random::number().unwrap_or_default();
                tokio::time::sleep(failures.after_failure(LONGEST_PAUSE_ON_WATCH, random)).await;
                continue;
            }
        };
        failures.succeeded();
        send(held);
    }
}

#[cfg(test)]
mod tests {
    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};
    use service_cidr::host::{ExpectedPorts, ServicePort};
    use tower_test::mock;

    use super::*;

    const RECORD: &str = "m-1-expected-ports-0";

    fn question(port: u16) -> Question {
        Question {
            asked_at: "2026-01-01T00:00:00Z".parse().unwrap(),
            ports: ExpectedPorts {
                service_ports: vec![ServicePort {
                    address: "172.30.0.5".parse().unwrap(),
                    protocol: "TCP".to_owned(),
                    port,
                }],
                load_balancer_ports: Vec::new(),
            },
        }
    }

    fn asked(record: Option<&str>) -> WatchedObject {
        let expected = record.map(|record| json!({ "record": record }));
        let object = json!({
            "apiVersion": "replumb.dev/v1alpha1", "kind": "NodeMigration", "metadata": { "name": "a" },
            "spec": { "nodeName": "a", "migration": "m", "serviceCidr": { "source": [], "target": [], "expectedPorts": expected } },
        });
        WatchedObject::Present(Arc::new(serde_json::from_value(object).unwrap()))
    }

    fn record(port: u16) -> Value {
        let spec = json!({ "migration": "m", "content": "ExpectedPorts", "part": 0, "expectedPorts": question(port) });
        json!({
            "apiVersion": "replumb.dev/v1alpha1", "kind": "MigrationRecord",
            "metadata": { "name": RECORD, "resourceVersion": "7" }, "spec": spec,
        })
    }

    fn list(records: &[Value]) -> (u16, Value) {
        (
            200,
            json!({
                "apiVersion": "replumb.dev/v1alpha1", "kind": "MigrationRecordList",
                "metadata": { "resourceVersion": "7" }, "items": records,
            }),
        )
    }

    fn event(kind: &str, record: &Value) -> (u16, Value) {
        (200, json!({ "type": kind, "object": record }))
    }

    fn refusal() -> (u16, Value) {
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": 403, "reason": "Forbidden",
            "message": "no such right",
        });
        (403, status)
    }

    /// Follows an API server with these answers, one per request, and no answers afterwards.
    fn following(
        answers: Vec<(u16, Value)>,
    ) -> (watch::Sender<WatchedObject>, watch::Receiver<WatchedRecord>) {
        let (service, mut calls) = mock::pair::<Request<Body>, Response<Body>>();
        tokio::spawn(async move {
            let mut unanswered = Vec::new();
            let mut answers = answers.into_iter();
            while let Some((request, respond)) = calls.next_request().await {
                let asked = request.uri().to_string();
                assert!(
                    asked.starts_with("/apis/replumb.dev/v1alpha1/migrationrecords?")
                        && asked.contains(&format!("metadata.name%3D{RECORD}")),
                    "no other record: {asked}"
                );
                let Some((code, answer)) = answers.next() else {
                    unanswered.push(respond);
                    continue;
                };
                let body = format!("{answer}\n").into_bytes();
                respond.send_response(Response::builder().status(code).body(Body::from(body)).unwrap());
            }
        });
        let (goals, seen) = watch::channel(WatchedObject::Unknown);
        let (held, _) = follow(Client::new(service, "default"), seen);
        (goals, held)
    }

    async fn until(held: &mut watch::Receiver<WatchedRecord>, is_it: impl FnMut(&WatchedRecord) -> bool) {
        let found = tokio::time::timeout(std::time::Duration::from_secs(20), held.wait_for(is_it)).await;
        let is_found = matches!(found, Ok(Ok(_)));
        drop(found);
        assert!(is_found, "not reached: {:?}", *held.borrow());
    }

    fn is_unknown(held: &WatchedRecord, words: &str) -> bool {
        let named = ExpectedPortsReference {
            record: RECORD.to_owned(),
        };
        matches!(held.question(Some(&named)), Some(Err(why)) if why.contains(words))
    }

    fn holds(held: &WatchedRecord, port: u16) -> bool {
        let named = ExpectedPortsReference {
            record: RECORD.to_owned(),
        };
        held.question(Some(&named)) == Some(Ok(Arc::new(question(port))))
    }

    #[tokio::test]
    async fn the_record_in_the_settings_is_followed() {
        let (goals, mut held) = following(vec![list(&[record(80)]), event("MODIFIED", &record(81))]);
        assert_eq!(held.borrow().question(None), None);
        assert!(is_unknown(&held.borrow(), "has not been read yet"));
        goals.send_replace(asked(Some(RECORD)));
        until(&mut held, |held| holds(held, 81)).await;
        let another = ExpectedPortsReference {
            record: "m-2-expected-ports-0".to_owned(),
        };
        assert!(matches!(
            held.borrow().question(Some(&another)),
            Some(Err(why)) if why.contains("m-2-expected-ports-0 has not been read yet")
        ));
        goals.send_replace(asked(None));
        until(&mut held, |held| *held == WatchedRecord::NotRequested).await;
    }

    #[tokio::test]
    async fn an_unreadable_record_has_a_reason() {
        let (goals, mut held) = following(vec![refusal(), list(&[])]);
        goals.send_replace(asked(Some(RECORD)));
        until(&mut held, |held| is_unknown(held, "no such right")).await;
        until(&mut held, |held| is_unknown(held, "not found")).await;
    }

    #[tokio::test]
    async fn a_known_question_stays_valid_while_the_api_server_fails() {
        let (goals, mut held) = following(vec![list(&[record(80)]), refusal(), refusal()]);
        goals.send_replace(asked(Some(RECORD)));
        until(&mut held, |held| holds(held, 80)).await;
        tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        assert!(holds(&held.borrow(), 80), "{:?}", *held.borrow());
    }
}
