//! A fake API server for tests, in memory: it stores objects, merges patches, and refuses a stale resourceVersion, an
//! eviction of another UID and, in strict writes, unknown fields; it records every change, and can become unreachable
//! after any of them. Defaults and admission are missing: tests against the real API server have those.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, OnceLock};

use api::MigrationStatus;
use http::{Method, Request, Response, StatusCode};
use k8s_openapi::api::core::v1::Pod;
use kube::Client;
use kube::client::{Body, ClientBuilder};
use runtime::client::StrictLayer;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::cache::{Cache, Stores};
use crate::context::Context;
use crate::events::EventRecorder;
use crate::fake_json_patch;
use crate::fake_lists::page;
use crate::fake_schema::{unknown_fields, without};
use crate::guarded::NodeMigrations;
use crate::kind_stores::KindStores;
use crate::kinds::service_cidr::service_index::ServiceStore;
use crate::lenient::Lenient;
use crate::metrics::Metrics;
use crate::obstacles::Obstacles;
use crate::pod_index::PodStore;
use crate::store::{Store, Stored};
use crate::words::MessagePace;
use crate::workload_store::WorkloadStore;

/// Prefix of the paths of replumb's objects.
const OUR_GROUP: &str = "/apis/replumb.dev/";
/// The path of the active Migration.
pub const MIGRATION: &str = "/apis/replumb.dev/v1alpha1/migrations/m";

/// Most passes of a walk.
const PASSES: usize = 200;
/// Most moves of other components until their writes are finished.
const MOVES: usize = 50;

/// The edit of an owner of an object: a merge patch (RFC 7386) from the number of the edit.
pub type Edit = fn(usize) -> Value;

/// The server. Clones share it.
#[derive(Clone, Default)]
pub struct FakeApi {
    state: Arc<Mutex<State>>,
    /// Created once: a test that crashes after each write runs thousands of passes.
    tools: Arc<OnceLock<Tools>>,
}

/// State that a coordinator keeps between passes.
struct Tools {
    client: Client,
    metrics: Arc<Metrics>,
}

#[derive(Default)]
struct State {
    /// Objects by path: `/api/v1/nodes/a`.
    objects: BTreeMap<String, Value>,
    version: u64,
    /// Changes in order: `PATCH /api/v1/nodes/a {"metadata":…}`.
    changes: Vec<(String, Value)>,
    /// Reads in order: `GET /api/v1/nodes/a`, and for a collection `LIST /api/v1/nodes?labelSelector=…`.
    reads: Vec<String>,
    /// Events, kept apart from changes.
    events: Vec<(String, Value)>,
    /// Prefixes of paths whose changes are refused, each with a message.
    refused: BTreeMap<String, String>,
    /// The same, limited to some of the changes.
    denials: Vec<Denial>,
    /// Prefixes of paths whose reads are refused, each with a message.
    unreadable: BTreeMap<String, String>,
    /// Prefixes of paths whose requests get no answer; and the number of such requests.
    hung: Option<String>,
    hanging: usize,
    /// Grace periods of requested evictions, by path of the pod.
    grace_periods: BTreeMap<String, i64>,
    /// Once, right after a change with this prefix, another writer makes a change: path and patch.
    meddling: Option<(String, String, Value)>,
    /// Owners who edit an object right before each change of it: path, number of changes so far, and the next edit.
    restless: Vec<(String, usize, Edit)>,
    /// How often a list is expired when its next page is requested.
    expires_pages: usize,
    /// Changes until the server becomes unreachable.
    budget: Option<usize>,
}

/// Refusal of changes with a prefix, if `is_meant` accepts the patch.
#[derive(Clone)]
struct Denial {
    path: String,
    words: String,
    is_meant: fn(&Value) -> bool,
    answer: (StatusCode, &'static str),
}

impl FakeApi {
    /// Puts an object at its path.
    pub fn put(&self, path: &str, object: Value) {
        let mut state = self.state.lock().unwrap();
        state.store(path, object);
    }

    /// Puts the active Migration.
    pub fn put_migration(&self, spec: &Value, status: &MigrationStatus) {
        self.put(
            MIGRATION,
            json!({
                "apiVersion": "replumb.dev/v1alpha1", "kind": "Migration",
                "metadata": { "name": "m", "uid": "m-1", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z" },
                "spec": spec, "status": status,
            }),
        );
    }

    /// The object at this path.
    pub fn get(&self, path: &str) -> Option<Value> {
        self.state.lock().unwrap().objects.get(path).cloned()
    }

    /// Changes an object like another writer.
    pub fn edit(&self, path: &str, patch: &Value) {
        let mut state = self.state.lock().unwrap();
        let mut object = state
            .objects
            .get(path)
            .cloned()
            .unwrap_or_else(|| panic!("{path}: not found"));
        merge(&mut object, patch);
        state.store(path, object);
    }

    /// Gives every object unreadable times, in each field where a client may write one, as the API server returns
    /// `9999-12-31T23:59:59-01:00`.
    pub fn put_unreadable_times(&self) {
        let times = json!([{ "manager": "odd", "operation": "Update", "time": "10000-01-01T00:59:59Z" }]);
        let mut state = self.state.lock().unwrap();
        let untouched: Vec<String> = state
            .objects
            .iter()
            .filter(|(_, object)| {
                object["metadata"]["name"].is_string() && object["metadata"]["managedFields"] != times
            })
            .map(|(path, _)| path.clone())
            .collect();
        for path in untouched {
            let mut object = state.objects[&path].clone();
            object["metadata"]["managedFields"] = times.clone();
            if object["spec"]["template"].is_object() {
                let time = &times[0]["time"];
                merge(
                    &mut object["spec"]["template"]["metadata"],
                    &json!({ "managedFields": times, "creationTimestamp": time, "deletionTimestamp": time }),
                );
            }
            state.store(&path, object);
        }
    }

    /// Written Events, each with its call.
    pub fn events(&self) -> Vec<(String, Value)> {
        self.state.lock().unwrap().events.clone()
    }

    /// Once, right after a change with this prefix (`PATCH /api/v1/nodes/a`), another writer merges this into another object.
    pub fn edit_after(&self, after: &str, path: &str, patch: Value) {
        self.state.lock().unwrap().meddling = Some((after.to_owned(), path.to_owned(), patch));
    }

    /// From now on an owner edits this object right before each change of it, and before each second deletion: no change finds
    /// the version that was read. `edit` gets the number of the edit, and returns a merge patch. A deletion has no fields to
    /// test, only the version: edits before each deletion would prevent it.
    pub fn edit_before_each_change(&self, path: &str, edit: Edit) {
        let mut state = self.state.lock().unwrap();
        state.restless.push((path.to_owned(), 0, edit));
    }

    /// Refuses changes of paths with this prefix; `None` for no refusals.
    pub fn refuse(&self, path: Option<&str>) {
        let refused = path.map(|path| (path.to_owned(), "Forbidden".to_owned()));
        let mut state = self.state.lock().unwrap();
        state.refused = refused.into_iter().collect();
        state.denials.clear();
    }

    /// Refuses patches of paths with this prefix that `is_meant` accepts, like a policy for single fields.
    pub fn deny_where(&self, path: &str, words: &str, is_meant: fn(&Value) -> bool) {
        self.state.lock().unwrap().denials.push(Denial {
            path: path.to_owned(),
            words: words.to_owned(),
            is_meant,
            answer: (StatusCode::FORBIDDEN, "Forbidden"),
        });
    }

    /// Refuses changes of paths with this prefix, like schema validation.
    pub fn deny_as_invalid(&self, path: &str, words: &str) {
        self.state.lock().unwrap().denials.push(Denial {
            path: path.to_owned(),
            words: words.to_owned(),
            is_meant: |_| true,
            answer: (StatusCode::UNPROCESSABLE_ENTITY, "Invalid"),
        });
    }

    /// Refuses changes of paths with this prefix with a 404, as an admission webhook may.
    pub fn deny_as_not_found(&self, path: &str, words: &str) {
        self.state.lock().unwrap().denials.push(Denial {
            path: path.to_owned(),
            words: words.to_owned(),
            is_meant: |_| true,
            answer: (StatusCode::NOT_FOUND, "NotFound"),
        });
    }

    /// Answers changes of paths with this prefix as if the object had changed since it was read.
    pub fn deny_as_changed(&self, path: &str) {
        self.state.lock().unwrap().denials.push(Denial {
            path: path.to_owned(),
            words: "the object has been modified".to_owned(),
            is_meant: |_| true,
            answer: (StatusCode::CONFLICT, "Conflict"),
        });
    }

    /// Refuses changes of paths with this prefix with this message, like a policy engine.
    pub fn deny(&self, path: &str, words: &str) {
        let mut state = self.state.lock().unwrap();
        state.refused.insert(path.to_owned(), words.to_owned());
    }

    /// Answers this number of requests for a next page with an expired list.
    pub fn expire_pages(&self, times: usize) {
        self.state.lock().unwrap().expires_pages = times;
    }

    /// Refuses reads of paths with this prefix with this message, like missing rights.
    pub fn deny_reading(&self, path: &str, words: &str) {
        let mut state = self.state.lock().unwrap();
        state.unreadable.insert(path.to_owned(), words.to_owned());
    }

    /// Ends the refusal of reads of paths with this prefix.
    pub fn allow_reading(&self, path: &str) {
        self.state.lock().unwrap().unreadable.remove(path);
    }

    /// Leaves changes of paths with this prefix without an answer, and holds the connection open.
    pub fn hang(&self, path: &str) {
        self.state.lock().unwrap().hung = Some(path.to_owned());
    }

    /// Number of requests without an answer.
    pub fn hanging(&self) -> usize {
        self.state.lock().unwrap().hanging
    }

    /// The grace period of the requested eviction of the pod at this path; `None` without one.
    pub fn grace_period(&self, path: &str) -> Option<i64> {
        self.state.lock().unwrap().grace_periods.get(path).copied()
    }

    /// Removes an object like another writer.
    pub fn remove(&self, path: &str) {
        self.state.lock().unwrap().objects.remove(path);
    }

    /// Every object below a path.
    pub fn below(&self, path: &str) -> Vec<Value> {
        self.state.lock().unwrap().below(path)
    }

    /// Every object without its version counters, for a comparison of two runs.
    pub fn everything(&self) -> BTreeMap<String, Value> {
        let mut all = self.state.lock().unwrap().objects.clone();
        for (path, object) in &mut all {
            let metadata = object["metadata"].as_object_mut().unwrap();
            metadata.remove("resourceVersion");
            if path.starts_with(OUR_GROUP) {
                metadata.remove("generation");
            }
        }
        all
    }

    /// The changes since the last call, in order: method and path, body.
    pub fn take_changes(&self) -> Vec<(String, Value)> {
        std::mem::take(&mut self.state.lock().unwrap().changes)
    }

    /// The reads since the last call, in order, with the query of lists; and dry-run
    /// changes.
    pub fn take_reads(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().reads)
    }

    /// Accepts this number of changes and then becomes unreachable; `None` for no limit.
    pub fn allow(&self, changes: Option<usize>) {
        self.state.lock().unwrap().budget = changes;
    }

    /// The server becomes unreachable after this number of changes, and the coordinator dies and loses its memory. Other
    /// components react until no further change follows; then the server is back.
    pub async fn crash_after(
        &self,
        changes: usize,
        mut turn: impl AsyncFnMut(&Self),
        world_moves: impl Fn(&Self),
    ) {
        self.allow(Some(changes));
        for _ in 0..PASSES {
            if self.is_away() {
                break;
            }
            turn(self).await;
        }
        assert!(
            self.is_away(),
            "the API server was not unreachable after {changes} changes"
        );
        self.settle(world_moves);
        self.allow(None);
    }

    fn is_away(&self) -> bool {
        self.state.lock().unwrap().budget == Some(0)
    }

    fn settle(&self, world_moves: impl Fn(&Self)) {
        for _ in 0..MOVES {
            let before = self.everything();
            world_moves(self);
            if self.everything() == before {
                return;
            }
        }
        panic!("other components still write after {MOVES} moves");
    }

    /// The answer to a request; `None` while the server is unreachable.
    pub fn ask(&self, method: &Method, path: &str, body: &[u8]) -> Option<(StatusCode, Value)> {
        self.state.lock().unwrap().answer(method, path, "", body)
    }

    /// A client of the server. It belongs to the runtime of the first call.
    pub fn client(&self) -> Client {
        self.tools().client.clone()
    }

    /// The context of a pass on this server.
    pub fn context(&self) -> Context {
        let Tools { client, metrics } = self.tools();
        Context {
            events: EventRecorder::new(client.clone(), "coordinator-0"),
            obstacles: Obstacles::default(),
            pace: MessagePace::OF_TESTS,
            watching: client.clone(),
            background: client.clone(),
            client: client.clone(),
            config: kube::Config::new("http://192.0.2.1".parse().unwrap()),
            namespace: "replumb-system".to_owned(),
            node_name: "c".to_owned(),
            agent_image: "replumb.dev/agent:test".to_owned(),
            metrics: Arc::clone(metrics),
        }
    }

    fn tools(&self) -> &Tools {
        self.tools.get_or_init(|| {
            let metrics = Arc::new(Metrics::new().unwrap());
            // The client shares the state, and not the tools, which contain the client.
            let state = Arc::clone(&self.state);
            let service = tower::service_fn(move |request| serve(Arc::clone(&state), request));
            let client = ClientBuilder::new(service, "default")
                .with_layer(&StrictLayer::new(Arc::new(metrics.api.clone())))
                .build();
            Tools { client, metrics }
        })
    }

    /// Stores in the state that watches would have filled.
    pub fn cache(&self) -> Cache {
        let kinds = KindStores::default();
        kinds.put(ServiceStore::of(
            self.objects("/api/v1/namespaces/*/services/"),
            self.objects("/apis/discovery.k8s.io/v1/namespaces/*/endpointslices/"),
        ));
        Cache::of(Stores {
            migrations: self.store("/apis/replumb.dev/v1alpha1/migrations/"),
            node_migrations: NodeMigrations::in_store(
                self.store("/apis/replumb.dev/v1alpha1/nodemigrations/"),
            ),
            nodes: self.store("/api/v1/nodes/"),
            pods: PodStore::of(
                "replumb-system",
                self.objects::<Lenient<Pod>>("/api/v1/namespaces/*/pods/"),
            ),
            daemon_sets: self.store("/apis/apps/v1/namespaces/*/daemonsets/"),
            budgets: self.store("/apis/policy/v1/namespaces/*/poddisruptionbudgets/"),
            workloads: WorkloadStore::of(
                self.objects("/apis/apps/v1/namespaces/*/deployments/"),
                self.objects("/apis/apps/v1/namespaces/*/statefulsets/"),
                self.objects("/apis/apps/v1/namespaces/*/replicasets/"),
            ),
            kinds,
        })
    }

    fn store<K: Stored + DeserializeOwned>(&self, path: &str) -> Store<K> {
        Store::of(self.objects(path))
    }

    fn objects<K: DeserializeOwned>(&self, path: &str) -> Vec<K> {
        let state = self.state.lock().unwrap();
        let objects = state.each_below(path);
        objects
            .map(|object| {
                Lenient::<K>::deserialize(object)
                    .expect("an object of its kind")
                    .object
            })
            .collect()
    }
}

async fn serve(state: Arc<Mutex<State>>, request: Request<Body>) -> std::io::Result<Response<Body>> {
    let (parts, body) = request.into_parts();
    if state.lock().unwrap().hangs(&parts.method, parts.uri.path()) {
        std::future::pending::<()>().await;
    }
    let body = body.collect_bytes().await.expect("a body in memory");
    let response = state.lock().unwrap().answer(
        &parts.method,
        parts.uri.path(),
        parts.uri.query().unwrap_or_default(),
        &body,
    );
    match response {
        Some((status, value)) => Ok(Response::builder()
            .status(status)
            .body(Body::from(serde_json::to_vec(&value).unwrap()))
            .unwrap()),
        None => Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused)),
    }
}

impl State {
    fn store(&mut self, path: &str, mut object: Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(format!("uid-of-{path}"));
        }
        if path.starts_with(OUR_GROUP) {
            // A change of the spec increments the generation, a change of the status does not.
            let former = self.objects.get(path);
            let generation = match former {
                Some(former) => {
                    let last = former["metadata"]["generation"].as_i64().unwrap_or(1);
                    last + i64::from(former["spec"] != object["spec"])
                }
                None => object["metadata"]["generation"].as_i64().unwrap_or(1),
            };
            object["metadata"]["generation"] = json!(generation);
        }
        self.objects.insert(path.to_owned(), object);
    }

    /// `*` matches one part of the path.
    fn below(&self, path: &str) -> Vec<Value> {
        self.each_below(path).cloned().collect()
    }

    /// In the order of their paths; `*` matches one part.
    fn each_below<'a>(&'a self, path: &'a str) -> impl Iterator<Item = &'a Value> {
        let wanted = path.trim_end_matches('/');
        let beginning = wanted.split('*').next().unwrap_or_default();
        self.objects
            .range::<str, _>((Bound::Included(beginning), Bound::Unbounded))
            .take_while(move |(key, _)| key.starts_with(beginning))
            .filter(move |(key, _)| is_below(key, wanted))
            .map(|(_, object)| object)
    }

    /// Objects of a collection, in every namespace if the path has none.
    fn collection(&self, path: &str) -> Vec<Value> {
        let (group, plural) = path.rsplit_once('/').unwrap_or_default();
        let mut objects = self.below(path);
        objects.extend(self.below(&format!("{group}/namespaces/*/{plural}")));
        objects
    }

    /// `None` while the server is unreachable.
    fn answer(
        &mut self,
        method: &Method,
        path: &str,
        query: &str,
        body: &[u8],
    ) -> Option<(StatusCode, Value)> {
        if self.budget == Some(0) {
            return None;
        }
        let mut body: Value = if body.is_empty() {
            Value::Null
        } else {
            serde_json::from_slice(body).expect("JSON")
        };
        // The content as a merge patch, for checks and the record of changes.
        let operations = body.as_array().cloned();
        if let Some(operations) = &operations {
            body = fake_json_patch::as_merge(operations);
        }
        if ![Method::GET, Method::DELETE].contains(method) {
            let unknown = unknown_fields(path, &body);
            if !unknown.is_empty() && query.contains("fieldValidation=Strict") {
                let named: Vec<String> = unknown
                    .iter()
                    .map(|field| format!("unknown field {field:?}"))
                    .collect();
                let message = format!("strict decoding error: {}", named.join(", "));
                return Some(failure_of(StatusCode::BAD_REQUEST, "BadRequest", &message));
            }
            body = without(&body, &unknown);
        }
        let unreadable = self
            .unreadable
            .iter()
            .find(|(begin, _)| path.starts_with(&***begin));
        if let Some((_, words)) = unreadable.filter(|_| *method == Method::GET) {
            return Some(failure_of(StatusCode::FORBIDDEN, "Forbidden", words));
        }
        if *method == Method::GET
            && let Some(items) = policies(path)
        {
            return Some((StatusCode::OK, json!({ "metadata": {}, "items": items })));
        }
        if *method == Method::GET {
            return Some(self.get_or_list(path, query));
        }
        if path.contains("/events") {
            self.events.push((format!("{method} {path}"), body.clone()));
            return Some((StatusCode::CREATED, body));
        }
        if path.ends_with("/selfsubjectaccessreviews") {
            let mut body = body;
            body["status"] = json!({ "allowed": true });
            return Some((StatusCode::CREATED, body));
        }
        if query.contains("dryRun=All") {
            let before = (self.objects.clone(), self.version);
            let answer = self.change(method, path, &body, operations.as_deref());
            (self.objects, self.version) = before;
            self.reads.push(format!("TRY {method} {path}"));
            return Some(answer);
        }
        let answer = self.change(method, path, &body, operations.as_deref());
        if answer.0.is_success() {
            let call = format!("{method} {path}");
            if let Some((_, path, patch)) = self.meddling.take_if(|(after, ..)| call.starts_with(&**after)) {
                let mut object = self.objects[&path].clone();
                merge(&mut object, &patch);
                self.store(&path, object);
            }
            self.changes.push((call, body));
            if let Some(budget) = &mut self.budget {
                *budget -= 1;
            }
        }
        Some(answer)
    }

    fn get_or_list(&mut self, path: &str, query: &str) -> (StatusCode, Value) {
        let is_list = !self.objects.contains_key(path) && is_collection(path);
        self.reads.push(if is_list {
            format!("LIST {path}?{query}")
        } else {
            format!("GET {path}")
        });
        match self.objects.get(path) {
            Some(object) => (StatusCode::OK, object.clone()),
            None if is_list && self.expires_pages > 0 && query.contains("continue=") => {
                self.expires_pages -= 1;
                failure(StatusCode::GONE, "Expired")
            }
            None if is_list => (StatusCode::OK, page(self.collection(path), query)),
            None => failure(StatusCode::NOT_FOUND, "NotFound"),
        }
    }

    fn let_owners_edit(&mut self, method: &Method, path: &str) {
        let mut edits = Vec::new();
        for (edited, number, edit) in &mut self.restless {
            if edited == path {
                *number += 1;
                if *method != Method::DELETE || number.is_multiple_of(2) {
                    edits.push(edit(*number));
                }
            }
        }
        for edit in edits {
            if let Some(mut object) = self.objects.get(path).cloned() {
                merge(&mut object, &edit);
                self.store(path, object);
            }
        }
    }

    fn change(
        &mut self,
        method: &Method,
        path: &str,
        body: &Value,
        operations: Option<&[Value]>,
    ) -> (StatusCode, Value) {
        let refused = self
            .refused
            .iter()
            .find(|(refused, _)| path.starts_with(&***refused));
        if let Some((_, words)) = refused {
            return failure_of(StatusCode::FORBIDDEN, "Forbidden", words);
        }
        let mut denials = self.denials.iter();
        if let Some(denial) = denials.find(|denial| path.starts_with(&denial.path) && (denial.is_meant)(body))
        {
            let (status, reason) = denial.answer;
            let (status, mut answer) = failure_of(status, reason, &denial.words);
            if status == StatusCode::UNPROCESSABLE_ENTITY {
                let field = denial.words.split(':').next();
                answer["details"] = json!({ "causes": [{ "field": field, "message": denial.words }] });
            }
            return (status, answer);
        }
        if let Some(pod) = path.strip_suffix("/eviction") {
            return self.evict(pod, body);
        }
        if *method == Method::POST {
            let name = body["metadata"]["name"].as_str().expect("a name");
            let path = format!("{path}/{name}");
            if self.objects.contains_key(&path) {
                return failure(StatusCode::CONFLICT, "AlreadyExists");
            }
            self.store(&path, body.clone());
            return (StatusCode::CREATED, self.objects[&path].clone());
        }
        let path = ["/status", "/scale"]
            .iter()
            .find_map(|part| path.strip_suffix(part))
            .unwrap_or(path);
        self.let_owners_edit(method, path);
        let Some(found) = self.objects.get(path).cloned() else {
            return failure(StatusCode::NOT_FOUND, "NotFound");
        };
        if *method == Method::DELETE {
            let wanted = &body["preconditions"];
            for field in ["uid", "resourceVersion"] {
                if !wanted[field].is_null() && wanted[field] != found["metadata"][field] {
                    return failure(StatusCode::CONFLICT, "Conflict");
                }
            }
            self.objects.remove(path);
            return (StatusCode::OK, found);
        }
        let version = &body["metadata"]["resourceVersion"];
        if operations.is_none() && !version.is_null() && *version != found["metadata"]["resourceVersion"] {
            return failure(StatusCode::CONFLICT, "Conflict");
        }
        let mut object = found;
        match operations {
            Some(operations) if !fake_json_patch::apply(&mut object, operations) => {
                let words = "the server rejected our request due to an error in our request";
                return failure_of(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", words);
            }
            Some(_) => {}
            None => merge(&mut object, body),
        }
        give_up_addresses(path, &mut object);
        self.store(path, object);
        (StatusCode::OK, self.objects[path].clone())
    }
}

impl State {
    fn hangs(&mut self, method: &Method, path: &str) -> bool {
        let hangs = *method != Method::GET && self.hung.as_ref().is_some_and(|hung| path.starts_with(hung));
        self.hanging += usize::from(hangs);
        hangs
    }

    fn evict(&mut self, pod: &str, body: &Value) -> (StatusCode, Value) {
        let Some(found) = self.objects.get(pod) else {
            return failure(StatusCode::NOT_FOUND, "NotFound");
        };
        let options = &body["deleteOptions"];
        let wanted = &options["preconditions"]["uid"];
        let uid = &found["metadata"]["uid"];
        if !wanted.is_null() && wanted != uid {
            let message =
                format!("the UID in the precondition ({wanted}) does not match the UID in record ({uid})");
            return failure_of(StatusCode::CONFLICT, "Conflict", &message);
        }
        if let Some(grace_period) = options["gracePeriodSeconds"].as_i64() {
            self.grace_periods.insert(pod.to_owned(), grace_period);
        }
        self.objects.remove(pod);
        (
            StatusCode::CREATED,
            json!({ "kind": "Status", "status": "Success" }),
        )
    }
}

/// The policies of `deploy/base` or their bindings: present by default.
fn policies(path: &str) -> Option<Vec<Value>> {
    let plural = path.strip_prefix("/apis/admissionregistration.k8s.io/v1/")?;
    let spec: fn(&str) -> Value = match plural {
        "validatingadmissionpolicies" => |_| json!({}),
        "validatingadmissionpolicybindings" => {
            |name: &str| json!({ "policyName": name, "validationActions": ["Deny"] })
        }
        _ => return None,
    };
    let named = |name: &str| json!({ "metadata": { "name": name }, "spec": spec(name) });
    Some(engine::check::policies::POLICIES.map(named).into())
}

/// Whether a path is one part below another: `/api/v1/namespaces/a/pods/b` is below `/api/v1/namespaces/*/pods`.
fn is_below(key: &str, path: &str) -> bool {
    let Some((collection, _)) = key.rsplit_once('/') else {
        return false;
    };
    let mut parts = collection.split('/');
    path.split('/')
        .all(|wanted| parts.next().is_some_and(|part| wanted == "*" || wanted == part))
        && parts.next().is_none()
}

/// A path without an object is a collection if its last part is a known plural.
fn is_collection(path: &str) -> bool {
    const PLURALS: [&str; 24] = [
        "connectionsamples",
        "daemonsets",
        "deployments",
        "endpointslices",
        "globalnetworkpolicies",
        "globalnetworksets",
        "migrationrecords",
        "namespaces",
        "networkpolicies",
        "networksets",
        "nodes",
        "replicasets",
        "servicecidrs",
        "statefulsets",
        "ippools",
        "ipreservations",
        "ipamblocks",
        "ipamhandles",
        "blockaffinities",
        "ipamconfigs",
        "felixconfigurations",
        "services",
        "validatingwebhookconfigurations",
        "mutatingwebhookconfigurations",
    ];
    PLURALS.iter().any(|plural| path.ends_with(plural))
}

/// A Service of type `ExternalName` loses its addresses.
fn give_up_addresses(path: &str, object: &mut Value) {
    let is_service = path.starts_with("/api/v1/namespaces/") && path.contains("/services/");
    if is_service && object["spec"]["type"] == "ExternalName" {
        let spec = object["spec"].as_object_mut().expect("a spec");
        spec.retain(|field, _| !["clusterIP", "clusterIPs"].contains(&field.as_str()));
    }
}

fn failure(status: StatusCode, reason: &str) -> (StatusCode, Value) {
    failure_of(status, reason, reason)
}

fn failure_of(status: StatusCode, reason: &str, message: &str) -> (StatusCode, Value) {
    (
        status,
        json!({
            "kind": "Status", "apiVersion": "v1", "status": "Failure", "metadata": {},
            "reason": reason, "message": message, "code": status.as_u16(),
        }),
    )
}

/// RFC 7386.
pub fn merge(target: &mut Value, patch: &Value) {
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
