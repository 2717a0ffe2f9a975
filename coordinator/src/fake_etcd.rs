//! A fake etcd for tests: its JSON gateway in front of Calico's objects in [`FakeApi`]. A test that plays Calico there plays it
//! with etcd, too: every write becomes the same change with the same version check, and both become unreachable at the same
//! moment.

use std::future::IntoFuture as _;

use axum::Router;
use axum::extract::State;
use axum::routing::{get, post};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use calico::etcd::Layout;
use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::fake_api::FakeApi;

const GROUP: &str = "/apis/crd.projectcalico.org/v1";
/// The layout of each kind, with its plural name.
const KINDS: [(Layout, &str); 11] = [
    (Layout::Resources("Node", "nodes"), "nodes"),
    (Layout::Resources("IPPool", "ippools"), "ippools"),
    (
        Layout::Resources("IPReservation", "ipreservations"),
        "ipreservations",
    ),
    (
        Layout::Resources("NetworkPolicy", "networkpolicies"),
        "networkpolicies",
    ),
    (
        Layout::Resources("GlobalNetworkPolicy", "globalnetworkpolicies"),
        "globalnetworkpolicies",
    ),
    (Layout::Resources("NetworkSet", "networksets"), "networksets"),
    (
        Layout::Resources("GlobalNetworkSet", "globalnetworksets"),
        "globalnetworksets",
    ),
    (Layout::Blocks, "ipamblocks"),
    (Layout::Affinities, "blockaffinities"),
    (Layout::Handles, "ipamhandles"),
    (Layout::IpamConfig, "ipamconfigs"),
];

/// Result of a request: an answer, or an error while etcd is unreachable.
type Answer = Result<String, StatusCode>;

/// Serves until the test ends; returns the URL.
pub(crate) async fn serve(api: &FakeApi) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = Router::new()
        .route("/version", get(version))
        .route("/v3/kv/range", post(range))
        .route("/v3/kv/txn", post(commit))
        .with_state(api.clone());
    tokio::spawn(axum::serve(listener, router).into_future());
    url
}

/// An object, its collection and its layout.
struct Place {
    layout: Layout,
    collection: String,
    object: Value,
}

impl Place {
    fn key(&self) -> String {
        self.layout.key(&self.layout.id(&self.object))
    }

    fn path(&self) -> String {
        format!(
            "{}/{}",
            self.collection,
            self.object["metadata"]["name"].as_str().unwrap()
        )
    }

    fn version(&self) -> &str {
        self.object["metadata"]["resourceVersion"].as_str().unwrap()
    }

    fn pair(&self) -> Value {
        let mut value = self.layout.created(&self.object, "u", "2026-01-01T00:00:00Z");
        if self.object["metadata"]["labels"].is_object() {
            value["metadata"]["labels"] = self.object["metadata"]["labels"].clone();
        }
        json!({
            "key": STANDARD.encode(self.key()), "value": STANDARD.encode(value.to_string()), "mod_revision": self.version(),
        })
    }
}

/// Every object of Calico.
fn places(api: &FakeApi) -> Result<Vec<Place>, StatusCode> {
    let mut all = Vec::new();
    for (layout, plural) in KINDS {
        let collection = format!("{GROUP}/{plural}");
        let list = ask(api, &Method::GET, &collection, &Value::Null)?;
        all.extend(list["items"].as_array().unwrap().iter().map(|object| Place {
            layout,
            collection: collection.clone(),
            object: object.clone(),
        }));
    }
    Ok(all)
}

fn ask(api: &FakeApi, method: &Method, path: &str, body: &Value) -> Result<Value, StatusCode> {
    let body = if body.is_null() {
        Vec::new()
    } else {
        body.to_string().into_bytes()
    };
    match api.ask(method, path, &body) {
        Some((status, value)) if status.is_success() => Ok(value),
        Some((status, value)) => panic!("{method} {path}: {status} {value}"),
        None => Err(StatusCode::SERVICE_UNAVAILABLE),
    }
}

async fn version() -> String {
    json!({ "etcdserver": "3.4.23", "etcdcluster": "3.4.0" }).to_string()
}

fn text(value: &Value) -> String {
    String::from_utf8(STANDARD.decode(value.as_str().unwrap()).unwrap()).unwrap()
}

async fn range(State(api): State<FakeApi>, body: String) -> Answer {
    let body: Value = serde_json::from_str(&body).unwrap();
    let (first, end) = (
        text(&body["key"]),
        body.get("range_end").filter(|end| !end.is_null()).map(text),
    );
    let is_meant = |key: &str| match &end {
        Some(end) => key >= first.as_str() && key < end.as_str(),
        None => key == first,
    };
    let mut found = places(&api)?;
    found.retain(|place| is_meant(&place.key()));
    found.sort_by_key(Place::key);
    let pairs: Vec<Value> = found.iter().map(Place::pair).collect();
    Ok(json!({ "header": { "revision": "1" }, "count": pairs.len().to_string(), "kvs": pairs }).to_string())
}

async fn commit(State(api): State<FakeApi>, body: String) -> Answer {
    let body: Value = serde_json::from_str(&body).unwrap();
    let found = places(&api)?;
    let at = |key: &str| found.iter().find(|place| place.key() == key);
    let is_so = body["compare"].as_array().unwrap().iter().all(|condition| {
        let version = match condition["target"].as_str().unwrap() {
            "CREATE" => "create_revision",
            _ => "mod_revision",
        };
        let wanted = condition[version].as_str().unwrap();
        at(&text(&condition["key"])).map_or("0", Place::version) == wanted
    });
    if !is_so {
        return Ok(json!({ "header": {} }).to_string());
    }
    for change in body["success"].as_array().unwrap() {
        let put = &change["request_put"];
        if put.is_null() {
            let place = at(&text(&change["request_delete_range"]["key"])).expect("a key");
            ask(&api, &Method::DELETE, &place.path(), &Value::Null)?;
            continue;
        }
        let (key, value) = (text(&put["key"]), text(&put["value"]));
        if let Some(place) = at(&key) {
            let told = place.layout.object(&key, value.as_bytes());
            let change = api::merge::difference(&place.object["spec"], &told["spec"]).unwrap_or(json!({}));
            let labels =
                api::merge::difference(&place.object["metadata"]["labels"], &told["metadata"]["labels"]);
            let mut patch = json!({ "metadata": { "resourceVersion": place.version() }, "spec": change });
            if let Some(labels) = labels {
                patch["metadata"]["labels"] = labels;
            }
            ask(&api, &Method::PATCH, &place.path(), &patch)?;
        } else {
            let (layout, plural) = KINDS
                .into_iter()
                .find(|(layout, _)| key.starts_with(&layout.prefix()))
                .expect("a kind of Calico's");
            let told = layout.object(&key, value.as_bytes());
            ask(&api, &Method::POST, &format!("{GROUP}/{plural}"), &told)?;
        }
    }
    Ok(json!({ "header": {}, "succeeded": true }).to_string())
}
