//! An in-memory API server for the tests: it stores objects, lists by labels, merges patches, and refuses writes
//! based on an old version.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

/// Path of Calico's objects.
pub const CALICO: &str = "/apis/crd.projectcalico.org/v1";

/// The server. Clones share it.
#[derive(Clone, Default)]
pub struct FakeApi {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Objects by path: `/api/v1/nodes/a`.
    objects: BTreeMap<String, Value>,
    version: u64,
}

impl FakeApi {
    /// Stores an object at its path, replacing an earlier one.
    pub fn put(&self, path: &str, mut object: Value) {
        let name = path.rsplit('/').next().unwrap();
        object["metadata"]["name"] = json!(name);
        self.state.lock().unwrap().store(path, object);
    }

    /// The object at this path.
    pub fn get(&self, path: &str) -> Option<Value> {
        self.state.lock().unwrap().objects.get(path).cloned()
    }

    /// Removes an object.
    pub fn remove(&self, path: &str) {
        self.state.lock().unwrap().objects.remove(path);
    }

    /// Changes an object as another client would.
    pub fn edit(&self, path: &str, patch: &Value) {
        let mut object = self.get(path).unwrap_or_else(|| panic!("there is no {path}"));
        merge(&mut object, patch);
        self.put(path, object);
    }

    /// Names of the objects of a collection.
    pub fn names(&self, path: &str) -> Vec<String> {
        let state = self.state.lock().unwrap();
        let below = state.objects.keys().filter_map(|key| key.strip_prefix(path));
        below
            .map(|name| name.trim_start_matches('/').to_owned())
            .collect()
    }

    /// A client of the server.
    pub fn client(&self) -> Client {
        let server = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let server = server.clone();
            async move {
                let (parts, body) = request.into_parts();
                let body = body.collect_bytes().await.expect("a body in memory");
                let body = if body.is_empty() {
                    Value::Null
                } else {
                    serde_json::from_slice(&body).expect("JSON")
                };
                let query = parts.uri.query().unwrap_or_default();
                let mut state = server.state.lock().unwrap();
                let (status, value) = state.answer(&parts.method, parts.uri.path(), query, &body);
                let response = Response::builder().status(status);
                Ok::<_, std::io::Error>(response.body(Body::from(value.to_string().into_bytes())).unwrap())
            }
        });
        Client::new(service, "default")
    }
}

impl State {
    fn store(&mut self, path: &str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        object["metadata"]["uid"] = json!(format!("uid-of-{path}"));
        self.objects.insert(path.to_owned(), object);
    }

    fn answer(&mut self, method: &Method, path: &str, query: &str, body: &Value) -> (StatusCode, Value) {
        let path = path.strip_suffix("/status").unwrap_or(path);
        if *method == Method::POST {
            let path = format!("{path}/{}", body["metadata"]["name"].as_str().expect("a name"));
            if self.objects.contains_key(&path) {
                return failure(StatusCode::CONFLICT, "AlreadyExists");
            }
            self.store(&path, body.clone());
            return (StatusCode::CREATED, self.objects[&path].clone());
        }
        let Some(found) = self.objects.get(path).cloned() else {
            // Every collection's name is a plural, and no object of the tests has a plural name.
            return if *method == Method::GET && path.ends_with('s') {
                (
                    StatusCode::OK,
                    json!({ "metadata": {}, "items": self.list(path, query) }),
                )
            } else {
                failure(StatusCode::NOT_FOUND, "NotFound")
            };
        };
        if *method == Method::GET {
            return (StatusCode::OK, found);
        }
        let known = &found["metadata"]["resourceVersion"];
        let expected = if *method == Method::DELETE {
            &body["preconditions"]["resourceVersion"]
        } else {
            &body["metadata"]["resourceVersion"]
        };
        if !expected.is_null() && expected != known {
            return failure(StatusCode::CONFLICT, "Conflict");
        }
        if *method == Method::DELETE {
            self.objects.remove(path);
            return (StatusCode::OK, found);
        }
        let mut object = found.clone();
        if *method == Method::PATCH {
            merge(&mut object, body);
        } else {
            object = body.clone();
        }
        self.store(path, object);
        (StatusCode::OK, self.objects[path].clone())
    }

    fn list(&self, path: &str, query: &str) -> Vec<Value> {
        let wanted = query
            .split('&')
            .find_map(|part| part.strip_prefix("labelSelector="))
            .unwrap_or_default()
            .replace("%2F", "/")
            .replace("%2C", ",")
            .replace("%3D", "=");
        let matches = |object: &Value| {
            let labels = &object["metadata"]["labels"];
            wanted
                .split(',')
                .filter_map(|pair| pair.split_once('='))
                .all(|(name, value)| labels[name] == value)
        };
        let is_below = |key: &str| {
            key.strip_prefix(path)
                .and_then(|rest| rest.strip_prefix('/'))
                .is_some_and(|name| !name.contains('/'))
        };
        self.objects
            .iter()
            .filter(|(key, object)| is_below(key) && matches(object))
            .map(|(_, object)| object.clone())
            .collect()
    }
}

fn failure(status: StatusCode, reason: &str) -> (StatusCode, Value) {
    let body = json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "metadata": {},
        "reason": reason, "message": reason, "code": status.as_u16(),
    });
    (status, body)
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
    let target = target.as_object_mut().unwrap();
    for (key, value) in patch {
        if value.is_null() {
            target.remove(key);
        } else {
            merge(target.entry(key.clone()).or_insert(Value::Null), value);
        }
    }
}
