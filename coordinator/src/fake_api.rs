//! A fake API server for tests, in memory: it stores objects, merges patches, and refuses a stale resourceVersion, an
//! eviction of another UID and, in strict writes, unknown fields; it records every change, and can become unreachable
//! after any of them. Defaults and admission are missing: tests against the real API server have those.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use api::MigrationStatus;
pub use api::merge::apply as merge;
use http::{Method, StatusCode};
use kube::Client;
use memory_api::{Answer, Call, Objects, as_merge, failure, failure_of};
use runtime::client::StrictLayer;
use serde_json::{Value, json};

use crate::cache::Cache;
use crate::context::Context;
use crate::events::EventRecorder;
use crate::fake_json_patch;
use crate::fake_schema::{unknown_fields, without};
use crate::metrics::Metrics;
use crate::obstacles::Obstacles;
use crate::offline;
use crate::words::MessagePace;

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

struct State {
    objects: Objects,
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

impl Default for State {
    fn default() -> Self {
        Self {
            objects: Objects::serving(SERVED),
            changes: Vec::new(),
            reads: Vec::new(),
            events: Vec::new(),
            refused: BTreeMap::new(),
            denials: Vec::new(),
            unreadable: BTreeMap::new(),
            hung: None,
            hanging: 0,
            grace_periods: BTreeMap::new(),
            meddling: None,
            restless: Vec::new(),
            expires_pages: 0,
            budget: None,
        }
    }
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
        state.objects.put(path, object);
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
        state.objects.put(path, object);
    }

    /// Gives every object unreadable times, in each field where a client may write one, as the API server returns
    /// `9999-12-31T23:59:59-01:00`.
    pub fn put_unreadable_times(&self) {
        let times = json!([{ "manager": "odd", "operation": "Update", "time": "10000-01-01T00:59:59Z" }]);
        let mut state = self.state.lock().unwrap();
        let untouched: Vec<String> = state
            .objects
            .all()
            .filter(|(_, object)| {
                object["metadata"]["name"].is_string() && object["metadata"]["managedFields"] != times
            })
            .map(|(path, _)| path.to_owned())
            .collect();
        for path in untouched {
            let mut object = state.objects.get(&path).unwrap().clone();
            object["metadata"]["managedFields"] = times.clone();
            if object["spec"]["template"].is_object() {
                let time = &times[0]["time"];
                merge(
                    &mut object["spec"]["template"]["metadata"],
                    &json!({ "managedFields": times, "creationTimestamp": time, "deletionTimestamp": time }),
                );
            }
            state.objects.put(&path, object);
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
        self.state.lock().unwrap().objects.below(path).cloned().collect()
    }

    /// Every object without its version counters, for a comparison of two runs.
    pub fn everything(&self) -> BTreeMap<String, Value> {
        let state = self.state.lock().unwrap();
        let all = state.objects.all();
        let mut all: BTreeMap<String, Value> = all
            .map(|(path, object)| (path.to_owned(), object.clone()))
            .collect();
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
        self.state.lock().unwrap().answer(Call {
            method: method.clone(),
            path: path.to_owned(),
            query: String::new(),
            body: if body.is_empty() {
                Value::Null
            } else {
                serde_json::from_slice(body).expect("JSON")
            },
        })
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
            pace: MessagePace::AT_ONCE,
            watching: client.clone(),
            background: client.clone(),
            client: client.clone(),
            config: kube::Config::new("http://192.0.2.1".parse().unwrap()),
            asks_other_servers: true,
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
            let client = memory_api::client(move |call| serve(Arc::clone(&state), call))
                .with_layer(&StrictLayer::new(Arc::new(metrics.api.clone())))
                .build();
            Tools { client, metrics }
        })
    }

    /// Stores in the state that watches would have filled.
    pub fn cache(&self) -> Cache {
        let state = self.state.lock().unwrap();
        offline::cache(&state.objects, "replumb-system").expect("objects of their kinds")
    }
}

async fn serve(state: Arc<Mutex<State>>, call: Call) -> std::io::Result<Answer> {
    if state.lock().unwrap().hangs(&call.method, &call.path) {
        std::future::pending::<()>().await;
    }
    let answer = state.lock().unwrap().answer(call);
    answer.ok_or_else(|| std::io::ErrorKind::ConnectionRefused.into())
}

impl State {
    /// `None` while the server is unreachable.
    fn answer(&mut self, mut call: Call) -> Option<Answer> {
        if self.budget == Some(0) {
            return None;
        }
        // The content as a merge patch, for checks and the record of changes.
        let mut body = match call.body.as_array() {
            Some(operations) => as_merge(operations),
            None => call.body.clone(),
        };
        let (method, path) = (call.method.clone(), call.path.clone());
        if ![Method::GET, Method::DELETE].contains(&method) {
            let unknown = unknown_fields(&path, &body);
            if !unknown.is_empty() && call.query.contains("fieldValidation=Strict") {
                let named: Vec<String> = unknown
                    .iter()
                    .map(|field| format!("unknown field {field:?}"))
                    .collect();
                let message = format!("strict decoding error: {}", named.join(", "));
                return Some(failure_of(StatusCode::BAD_REQUEST, "BadRequest", &message));
            }
            body = without(&body, &unknown);
        }
        if !call.body.is_array() {
            call.body.clone_from(&body);
        }
        if method == Method::GET {
            return Some(self.read(&call));
        }
        if path.contains("/events") {
            self.events.push((format!("{method} {path}"), body.clone()));
            return Some((StatusCode::CREATED, body));
        }
        if path.ends_with("/selfsubjectaccessreviews") {
            return Some(self.objects.answer(&call));
        }
        if call.query.contains("dryRun=All") {
            let before = self.objects.clone();
            let answer = self.change(&call, &body);
            self.objects = before;
            self.reads.push(format!("TRY {method} {path}"));
            return Some(answer);
        }
        let answer = self.change(&call, &body);
        if answer.0.is_success() {
            let call = format!("{method} {path}");
            if let Some((_, path, patch)) = self.meddling.take_if(|(after, ..)| call.starts_with(&**after)) {
                let mut object = self.objects.get(&path).unwrap().clone();
                merge(&mut object, &patch);
                self.objects.put(&path, object);
            }
            self.changes.push((call, body));
            if let Some(budget) = &mut self.budget {
                *budget -= 1;
            }
        }
        Some(answer)
    }

    fn read(&mut self, call: &Call) -> Answer {
        let Call { path, query, .. } = call;
        let mut unreadable = self.unreadable.iter();
        if let Some((_, words)) = unreadable.find(|(begin, _)| path.starts_with(&***begin)) {
            return failure_of(StatusCode::FORBIDDEN, "Forbidden", words);
        }
        if let Some(items) = policies(path) {
            return (StatusCode::OK, json!({ "metadata": {}, "items": items }));
        }
        let is_list = self.objects.is_list(path);
        self.reads.push(if is_list {
            format!("LIST {path}?{query}")
        } else {
            format!("GET {path}")
        });
        if is_list && self.expires_pages > 0 && query.contains("continue=") {
            self.expires_pages -= 1;
            return failure(StatusCode::GONE, "Expired");
        }
        self.objects.answer(call)
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
                self.objects.put(path, object);
            }
        }
    }

    /// `body` has what the call writes as a merge patch.
    fn change(&mut self, call: &Call, body: &Value) -> Answer {
        let Call { method, path, .. } = call;
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
        if let Some(operations) = call.body.as_array() {
            fake_json_patch::refuse_blind(operations);
        }
        if *method != Method::POST {
            let object = ["/status", "/scale"]
                .iter()
                .find_map(|part| path.strip_suffix(part))
                .unwrap_or(path);
            self.let_owners_edit(method, object);
        }
        let answer = self.objects.answer(&Call {
            query: String::new(),
            ..call.clone()
        });
        if let Some(pod) = path.strip_suffix("/eviction").filter(|_| answer.0.is_success())
            && let Some(grace_period) = body["deleteOptions"]["gracePeriodSeconds"].as_i64()
        {
            self.grace_periods.insert(pod.to_owned(), grace_period);
        }
        answer
    }

    fn hangs(&mut self, method: &Method, path: &str) -> bool {
        let hangs = *method != Method::GET && self.hung.as_ref().is_some_and(|hung| path.starts_with(hung));
        self.hanging += usize::from(hangs);
        hangs
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

/// The collections that are listed.
const SERVED: [&str; 26] = [
    "/api/v1/namespaces",
    "/api/v1/nodes",
    "/api/v1/services",
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "/apis/apps/v1/daemonsets",
    "/apis/apps/v1/deployments",
    "/apis/apps/v1/replicasets",
    "/apis/apps/v1/statefulsets",
    "/apis/crd.projectcalico.org/v1/blockaffinities",
    "/apis/crd.projectcalico.org/v1/felixconfigurations",
    "/apis/crd.projectcalico.org/v1/globalnetworkpolicies",
    "/apis/crd.projectcalico.org/v1/globalnetworksets",
    "/apis/crd.projectcalico.org/v1/ipamblocks",
    "/apis/crd.projectcalico.org/v1/ipamconfigs",
    "/apis/crd.projectcalico.org/v1/ipamhandles",
    "/apis/crd.projectcalico.org/v1/ippools",
    "/apis/crd.projectcalico.org/v1/ipreservations",
    "/apis/crd.projectcalico.org/v1/networkpolicies",
    "/apis/crd.projectcalico.org/v1/networksets",
    "/apis/crd.projectcalico.org/v1/nodes",
    "/apis/discovery.k8s.io/v1/endpointslices",
    "/apis/networking.k8s.io/v1/networkpolicies",
    "/apis/networking.k8s.io/v1/servicecidrs",
    "/apis/replumb.dev/v1alpha1/connectionsamples",
    "/apis/replumb.dev/v1alpha1/migrationrecords",
];
