//! The objects of the server, and its answers.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;

use http::{Method, StatusCode};
use serde_json::{Value, json};

use crate::answer::{Answer, failure, failure_of};
use crate::json_patch::{self, Refusal};
use crate::list::page;
use crate::path::{is_below, parse};
use crate::request::Call;

/// Paths of the objects whose generation counts the changes of their spec, as for every custom resource.
const COUNTED: &str = "/apis/replumb.dev/";

/// The objects of a server, by path: `/api/v1/nodes/a`.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    /// A clone shares them: a snapshot for each pass is cheap.
    stored: BTreeMap<String, Arc<Value>>,
    version: u64,
    /// Collections of all namespaces that may be listed: `/api/v1/pods`.
    served: BTreeSet<String>,
}

impl Objects {
    /// A server without objects, which lists these collections: `/api/v1/pods`, `/apis/apps/v1/daemonsets`.
    pub fn serving<'path>(collections: impl IntoIterator<Item = &'path str>) -> Self {
        let mut objects = Self::default();
        objects.serve(collections);
        objects
    }

    /// Lists these collections too.
    pub fn serve<'path>(&mut self, collections: impl IntoIterator<Item = &'path str>) {
        self.served.extend(collections.into_iter().map(str::to_owned));
    }

    /// Puts an object at its path, with the next version. An object without a UID gets one.
    pub fn put(&mut self, path: &str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(format!("uid-of-{path}"));
        }
        if path.starts_with(COUNTED) {
            // A change of the spec increments the generation, a change of the status does not.
            let generation = match self.stored.get(path) {
                Some(former) => {
                    let last = former["metadata"]["generation"].as_i64().unwrap_or(1);
                    last + i64::from(former["spec"] != object["spec"])
                }
                None => object["metadata"]["generation"].as_i64().unwrap_or(1),
            };
            object["metadata"]["generation"] = json!(generation);
        }
        self.stored.insert(path.to_owned(), Arc::new(object));
    }

    /// The version of the last change.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The object at this path.
    pub fn get(&self, path: &str) -> Option<&Value> {
        self.stored.get(path).map(AsRef::as_ref)
    }

    /// Removes the object at this path.
    pub fn remove(&mut self, path: &str) -> Option<Value> {
        self.version += 1;
        self.stored.remove(path).map(Arc::unwrap_or_clone)
    }

    /// Every object, with its path, in the order of the paths.
    pub fn all(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.stored
            .iter()
            .map(|(path, object)| (path.as_str(), object.as_ref()))
    }

    /// The objects one part below a path, in the order of their paths; `*` matches one part.
    pub fn below<'a>(&'a self, path: &'a str) -> impl Iterator<Item = &'a Value> {
        let wanted = path.trim_end_matches('/');
        let beginning = wanted.split('*').next().unwrap_or_default();
        self.stored
            .range::<str, _>((Bound::Included(beginning), Bound::Unbounded))
            .take_while(move |(key, _)| key.starts_with(beginning))
            .filter(move |(key, _)| is_below(key, wanted))
            .map(|(_, object)| object.as_ref())
    }

    /// Whether a request of this path is one for a list.
    pub fn is_list(&self, path: &str) -> bool {
        let is_served = |path: &str| {
            parse(path).is_some_and(|place| place.name.is_none() && self.served.contains(&place.collection()))
        };
        !self.stored.contains_key(path) && is_served(path)
    }

    /// The answer to a request, after which the objects are as it says; a dry run changes nothing.
    pub fn answer(&mut self, call: &Call) -> Answer {
        let Call {
            method,
            path,
            query,
            body,
        } = call;
        if *method == Method::GET {
            return self.read(path, query);
        }
        if path.ends_with("/selfsubjectaccessreviews") {
            let mut review = body.clone();
            review["status"] = json!({ "allowed": true });
            return (StatusCode::CREATED, review);
        }
        if query.contains("dryRun=All") {
            return self.clone().change(method, path, body);
        }
        self.change(method, path, body)
    }

    fn read(&self, path: &str, query: &str) -> Answer {
        if let Some(object) = self.get(path) {
            return (StatusCode::OK, object.clone());
        }
        if !self.is_list(path) {
            return failure(StatusCode::NOT_FOUND, "NotFound");
        }
        match page(self.collection(path), query) {
            Ok(page) => (StatusCode::OK, page),
            Err(problem) => failure_of(StatusCode::BAD_REQUEST, "BadRequest", &problem),
        }
    }

    /// Objects of a collection, in every namespace if the path has none.
    fn collection(&self, path: &str) -> Vec<Value> {
        let (group, plural) = path.rsplit_once('/').unwrap_or_default();
        let mut objects: Vec<Value> = self.below(path).cloned().collect();
        let namespaced = format!("{group}/namespaces/*/{plural}");
        objects.extend(self.below(&namespaced).cloned());
        objects
    }

    fn change(&mut self, method: &Method, path: &str, body: &Value) -> Answer {
        if let Some(pod) = path.strip_suffix("/eviction") {
            return self.evict(pod, body);
        }
        if *method == Method::POST {
            return self.create(path, body);
        }
        let path = ["/status", "/scale"]
            .iter()
            .find_map(|part| path.strip_suffix(part))
            .unwrap_or(path);
        let Some(found) = self.get(path).cloned() else {
            return failure(StatusCode::NOT_FOUND, "NotFound");
        };
        if *method == Method::DELETE {
            return self.delete(path, found, body);
        }
        self.patch(path, found, body)
    }

    fn create(&mut self, path: &str, body: &Value) -> Answer {
        let Some(name) = body["metadata"]["name"].as_str() else {
            return failure_of(
                StatusCode::UNPROCESSABLE_ENTITY,
                "Invalid",
                "metadata.name: required",
            );
        };
        let path = format!("{path}/{name}");
        if self.stored.contains_key(&path) {
            return failure(StatusCode::CONFLICT, "AlreadyExists");
        }
        self.put(&path, body.clone());
        (StatusCode::CREATED, Value::clone(&self.stored[&path]))
    }

    fn delete(&mut self, path: &str, found: Value, body: &Value) -> Answer {
        let wanted = &body["preconditions"];
        for field in ["uid", "resourceVersion"] {
            if !wanted[field].is_null() && wanted[field] != found["metadata"][field] {
                return failure(StatusCode::CONFLICT, "Conflict");
            }
        }
        self.remove(path);
        (StatusCode::OK, found)
    }

    fn patch(&mut self, path: &str, found: Value, body: &Value) -> Answer {
        let mut object = found;
        if let Some(operations) = body.as_array() {
            match json_patch::apply(&mut object, operations) {
                Ok(()) => {}
                Err(Refusal::Differs) => {
                    let words = "the server rejected our request due to an error in our request";
                    return failure_of(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", words);
                }
                Err(Refusal::NotKnown(operation)) => {
                    let words = format!("operation {operation}: not known to this server");
                    return failure_of(StatusCode::BAD_REQUEST, "BadRequest", &words);
                }
            }
        } else {
            let version = &body["metadata"]["resourceVersion"];
            if !version.is_null() && *version != object["metadata"]["resourceVersion"] {
                return failure(StatusCode::CONFLICT, "Conflict");
            }
            ::json_patch::merge(&mut object, body);
        }
        give_up_addresses(path, &mut object);
        self.put(path, object);
        (StatusCode::OK, Value::clone(&self.stored[path]))
    }

    fn evict(&mut self, pod: &str, body: &Value) -> Answer {
        let Some(found) = self.stored.get(pod) else {
            return failure(StatusCode::NOT_FOUND, "NotFound");
        };
        let wanted = &body["deleteOptions"]["preconditions"]["uid"];
        let uid = &found["metadata"]["uid"];
        if !wanted.is_null() && wanted != uid {
            let message =
                format!("the UID in the precondition ({wanted}) does not match the UID in record ({uid})");
            return failure_of(StatusCode::CONFLICT, "Conflict", &message);
        }
        self.remove(pod);
        (
            StatusCode::CREATED,
            json!({ "kind": "Status", "status": "Success" }),
        )
    }
}

/// A Service of type `ExternalName` loses its addresses.
fn give_up_addresses(path: &str, object: &mut Value) {
    let is_service = path.starts_with("/api/v1/namespaces/") && path.contains("/services/");
    if is_service
        && object["spec"]["type"] == "ExternalName"
        && let Some(spec) = object["spec"].as_object_mut()
    {
        spec.retain(|field, _| !["clusterIP", "clusterIPs"].contains(&field.as_str()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POD: &str = "/api/v1/namespaces/shop/pods/web";

    fn call(method: Method, path: &str, body: Value) -> Call {
        Call {
            method,
            path: path.to_owned(),
            query: String::new(),
            body,
        }
    }

    fn shop() -> Objects {
        let mut objects = Objects::serving(["/api/v1/pods"]);
        objects.put(POD, json!({ "metadata": { "name": "web", "uid": "1" } }));
        objects
    }

    #[test]
    fn a_collection_is_listed_in_one_namespace_or_all_if_it_is_served() {
        let mut objects = shop();
        let mut count = |path: &str| {
            let (status, body) = objects.answer(&call(Method::GET, path, Value::Null));
            (status.as_u16(), body["items"].as_array().map(Vec::len))
        };
        assert_eq!(count("/api/v1/pods"), (200, Some(1)));
        assert_eq!(count("/api/v1/namespaces/shop/pods"), (200, Some(1)));
        assert_eq!(count("/api/v1/namespaces/bank/pods"), (200, Some(0)));
        assert_eq!(count("/api/v1/services"), (404, None));
        assert_eq!(count(POD), (200, None));
    }

    #[test]
    fn a_stale_version_an_other_uid_and_a_second_object_of_a_name_conflict() {
        let mut objects = shop();
        let mut status = |method, path: &str, body| objects.answer(&call(method, path, body)).0.as_u16();
        let stale = json!({ "metadata": { "resourceVersion": "0" } });
        assert_eq!(status(Method::PATCH, POD, stale), 409);
        let other = json!({ "preconditions": { "uid": "2" } });
        assert_eq!(status(Method::DELETE, POD, other.clone()), 409);
        let eviction = json!({ "deleteOptions": other });
        assert_eq!(status(Method::POST, &format!("{POD}/eviction"), eviction), 409);
        let same = json!({ "metadata": { "name": "web" } });
        assert_eq!(status(Method::POST, "/api/v1/namespaces/shop/pods", same), 409);
        assert_eq!(status(Method::POST, &format!("{POD}/eviction"), Value::Null), 201);
        assert_eq!(status(Method::DELETE, POD, Value::Null), 404);
    }

    #[test]
    fn a_dry_run_changes_nothing() {
        let mut objects = shop();
        let mut patch = call(Method::PATCH, POD, json!({ "spec": { "a": 1 } }));
        patch.query = "dryRun=All".to_owned();
        assert_eq!(objects.answer(&patch).1["spec"]["a"], 1);
        assert_eq!(objects.get(POD).unwrap()["spec"], Value::Null);
    }
}
