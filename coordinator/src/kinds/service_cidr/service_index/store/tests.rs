//! The index after events in any order, and after writes of this process that the watch delivers later.

use serde_json::json;

use super::*;

fn service(name: &str, version: u32, address: &str) -> Value {
    json!({
        "metadata": { "namespace": "shop", "name": name, "resourceVersion": version.to_string(), "uid": name },
        "spec": { "type": "NodePort", "clusterIP": address, "clusterIPs": [address], "ports": [{ "port": 80, "nodePort": 30080 }] },
    })
}

fn typed(value: Value) -> Service {
    serde_json::from_value(value).unwrap()
}

fn slice(name: &str, of: &str, version: u32, is_ready: bool) -> EndpointSlice {
    serde_json::from_value(json!({
        "metadata": {
            "namespace": "shop", "name": name, "resourceVersion": version.to_string(),
            "labels": { "kubernetes.io/service-name": of },
        },
        "addressType": "IPv4", "endpoints": [{ "addresses": ["10.244.0.9"], "conditions": { "ready": is_ready, "serving": is_ready } }],
    }))
    .unwrap()
}

fn named(name: &str) -> Name {
    ("shop".to_owned(), name.to_owned())
}

fn holder(store: &ServiceStore, address: &str) -> Option<String> {
    let index = Arc::clone(&store.state().index);
    index.holder(&address.parse().unwrap()).map(Entry::key)
}

#[test]
fn an_address_moves_from_one_service_to_another() {
    let store = ServiceStore::default();
    assert!(store.keep_service(Event::Apply(typed(service("web", 1, "10.96.0.5")))));
    assert_eq!(holder(&store, "10.96.0.5").as_deref(), Some("shop/web"));
    store.keep_service(Event::Apply(typed(service("web", 2, "172.30.0.5"))));
    assert_eq!(holder(&store, "10.96.0.5"), None);
    store.keep_service(Event::Apply(typed(service("web-replumb-old", 3, "10.96.0.5"))));
    assert_eq!(
        holder(&store, "10.96.0.5").as_deref(),
        Some("shop/web-replumb-old")
    );
    store.keep_service(Event::Delete(typed(service("web", 4, "172.30.0.5"))));
    assert_eq!(holder(&store, "172.30.0.5"), None);
    let index = Arc::clone(&store.state().index);
    let port = ("TCP".to_owned(), 30080);
    let has_it = index.has_node_port(&port).map(Entry::key);
    assert_eq!(has_it.as_deref(), Some("shop/web-replumb-old"));
}

#[test]
fn own_writes_are_known_at_once_and_earlier_events_are_ignored() {
    let store = ServiceStore::default();
    store.keep_service(Event::Apply(typed(service("web", 10, "10.96.0.5"))));
    store.wrote(&service("web", 12, "172.30.0.5"));
    assert!(!store.keep_service(Event::Apply(typed(service("web", 11, "10.96.0.5")))));
    assert!(
        !store.keep_service(Event::Apply(typed(service("web", 12, "172.30.0.5")))),
        "the event starts no pass"
    );
    assert_eq!(holder(&store, "172.30.0.5").as_deref(), Some("shop/web"));
    assert!(store.keep_service(Event::Apply(typed(service("web", 13, "172.30.0.6")))));
    assert_eq!(holder(&store, "172.30.0.6").as_deref(), Some("shop/web"));
}

#[test]
fn an_own_deletion_is_not_undone_by_an_earlier_event() {
    let store = ServiceStore::default();
    store.keep_service(Event::Apply(typed(service("web", 10, "10.96.0.5"))));
    store.deleted(&service("web", 11, "10.96.0.5"));
    assert!(!store.keep_service(Event::Apply(typed(service("web", 11, "10.96.0.5")))));
    assert_eq!(holder(&store, "10.96.0.5"), None);
    // A Service of the same name is another Service.
    assert!(store.keep_service(Event::Apply(typed(service("web", 13, "10.96.0.7")))));
    // The watch delivers the deletion late.
    store.keep_service(Event::Delete(typed(service("web", 12, "10.96.0.5"))));
    assert_eq!(holder(&store, "10.96.0.7").as_deref(), Some("shop/web"));
    // The watch has delivered the deletion before this process records it: nothing is remembered.
    store.keep_service(Event::Delete(typed(service("web", 14, "10.96.0.7"))));
    store.deleted(&service("web", 13, "10.96.0.7"));
    assert!(store.state().deleted.is_empty());
}

#[test]
fn a_new_list_drops_deleted_services_and_keeps_later_writes() {
    let store = ServiceStore::default();
    store.keep_service(Event::Apply(typed(service("gone", 1, "10.96.0.4"))));
    store.keep_service(Event::Apply(typed(service("web", 2, "10.96.0.5"))));
    store.keep_service(Event::Init);
    store.keep_service(Event::InitApply(typed(service("web", 2, "10.96.0.5"))));
    store.wrote(&service("web", 5, "172.30.0.5"));
    store.keep_service(Event::InitDone);
    assert_eq!(holder(&store, "10.96.0.4"), None);
    assert_eq!(holder(&store, "172.30.0.5").as_deref(), Some("shop/web"));
}

#[test]
fn after_a_restore_of_etcd_a_list_of_earlier_versions_is_kept() {
    let store = ServiceStore::default();
    store.keep_service(Event::Apply(typed(service("web", 900, "172.30.0.5"))));
    store.keep_service(Event::Init);
    store.keep_service(Event::InitApply(typed(service("web", 100, "10.96.0.5"))));
    store.keep_service(Event::InitDone);
    assert_eq!(holder(&store, "10.96.0.5").as_deref(), Some("shop/web"));
    assert_eq!(holder(&store, "172.30.0.5"), None);
}

#[test]
fn a_service_is_served_while_a_slice_has_a_serving_endpoint() {
    let store = ServiceStore::default();
    let served = |name: &str| store.state().index.is_served(&named(name));
    assert!(store.keep_slice(Event::Apply(slice("web-1", "web", 1, false))));
    assert!(!served("web"));
    assert!(store.keep_slice(Event::Apply(slice("web-2", "web", 2, true))));
    assert!(served("web") && !served("db"));
    assert!(
        !store.keep_slice(Event::Apply(slice("web-2", "web", 2, true))),
        "the event starts no pass"
    );
    // The owner moves the slice to another Service.
    store.keep_slice(Event::Apply(slice("web-2", "db", 3, true)));
    assert!(!served("web") && served("db"));
    store.keep_slice(Event::Init);
    store.keep_slice(Event::InitApply(slice("web-1", "web", 4, true)));
    store.keep_slice(Event::InitDone);
    assert!(served("web") && !served("db"));
    store.keep_slice(Event::Delete(slice("web-1", "web", 5, true)));
    assert!(!served("web"));
}

#[test]
fn helpers_are_found_by_their_service_until_deleted() {
    let store = ServiceStore::default();
    let mut helper = service("web-replumb-old", 1, "10.96.0.5");
    helper["metadata"]["labels"] = json!({ "replumb.dev/address": "old", "replumb.dev/service": "web" });
    store.wrote(&helper);
    let helpers = || -> Vec<String> {
        let index = Arc::clone(&store.state().index);
        index.helpers(&named("web")).map(Entry::key).collect()
    };
    assert_eq!(helpers(), ["shop/web-replumb-old"]);
    store.deleted(&helper);
    assert_eq!(helpers(), Vec::<String>::new());
}
