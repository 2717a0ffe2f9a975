//! Content of the store after lists and events in any order.

use serde_json::{Value, json};

use super::*;

fn typed<K: DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).unwrap()
}

fn of_deployment(name: &str, replicas: u32) -> Read {
    let object = json!({
        "metadata": { "namespace": "shop", "name": name }, "spec": { "replicas": replicas, "selector": {}, "template": {} },
    });
    all_of(deployment(&typed(object)))
}

fn of_replica_set(name: &str, owner: Option<&str>) -> Read {
    let owners: Vec<Value> = owner
        .iter()
        .map(|owner| json!({ "apiVersion": "apps/v1", "kind": "Deployment", "name": owner, "uid": owner }))
        .collect();
    let object = json!({
        "metadata": { "namespace": "shop", "name": name, "ownerReferences": owners }, "spec": { "replicas": 2, "selector": {} },
    });
    replica_set(&typed(object))
}

fn wanted(watched: &Watched) -> Vec<(String, usize)> {
    let workloads = lock(&watched.workloads);
    let known = workloads.known.iter();
    known
        .map(|(workload, facts)| (workload.name.clone(), facts.wanted))
        .collect()
}

#[test]
fn a_change_of_unused_fields_wakes_no_pass() {
    let watched = Watched::default();
    assert!(!watched.keep(Event::Init));
    assert!(!watched.keep(Event::InitApply(of_deployment("web", 3))));
    assert_eq!(wanted(&watched), [], "the list is not complete");
    assert!(watched.keep(Event::InitDone));
    assert_eq!(wanted(&watched), [("web".to_owned(), 3)]);
    assert!(
        !watched.keep(Event::Apply(of_deployment("web", 3))),
        "only its status changed"
    );
    assert!(watched.keep(Event::Apply(of_deployment("web", 4))));
    // The watch failed, and its new list is equal.
    assert!(!watched.keep(Event::Init));
    assert!(!watched.keep(Event::InitApply(of_deployment("web", 4))));
    assert!(!watched.keep(Event::InitDone));
    // One workload is gone in the next list.
    assert!(!watched.keep(Event::Init));
    assert!(!watched.keep(Event::InitApply(of_deployment("db", 1))));
    assert_eq!(wanted(&watched), [("web".to_owned(), 4)]);
    assert!(watched.keep(Event::InitDone));
    assert_eq!(wanted(&watched), [("db".to_owned(), 1)]);
    assert!(watched.keep(Event::Delete(of_deployment("db", 1))));
    assert_eq!(wanted(&watched), []);
}

#[test]
fn a_replica_set_counts_while_no_deployment_owns_it() {
    let watched = Watched::default();
    assert!(!watched.keep(Event::Apply(of_replica_set("web-1", Some("web")))));
    assert!(watched.keep(Event::Apply(of_replica_set("alone", None))));
    assert_eq!(wanted(&watched), [("alone".to_owned(), 2)]);
    assert!(watched.keep(Event::Apply(of_replica_set("alone", Some("web")))));
    assert_eq!(wanted(&watched), []);
    assert!(!watched.keep(Event::Delete(of_replica_set("web-1", Some("web")))));
}

/// A client of an unreachable API server.
fn without_answer() -> Client {
    let unreachable = tower::service_fn(|_: http::Request<kube::client::Body>| async {
        Err::<http::Response<kube::client::Body>, _>(std::io::Error::from(
            std::io::ErrorKind::ConnectionRefused,
        ))
    });
    Client::new(unreachable, "default")
}

#[tokio::test(start_paused = true)]
async fn a_missing_list_yields_none_and_stop_forgets_all() {
    let (store, changed) = (WorkloadStore::default(), Arc::new(Notify::new()));
    for watched in [&store.0.deployments, &store.0.stateful_sets] {
        watched.keep(Event::Init);
        watched.keep(Event::InitDone);
    }
    store.0.deployments.keep(Event::Apply(of_deployment("web", 3)));
    // All kinds or none: pods of other workloads would not wait for an unknown workload.
    assert_eq!(store.workloads(&without_answer(), &changed).await, None);
    store.0.replica_sets.keep(Event::Init);
    store.0.replica_sets.keep(Event::InitDone);
    let known = store.workloads(&without_answer(), &changed).await.unwrap();
    assert_eq!(known.len(), 1);
    store.stop();
    assert_eq!(store.workloads(&without_answer(), &changed).await, None);
}
