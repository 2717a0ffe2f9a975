//! An API server in memory that asks a cluster for what it does not have, once, and records it. Writes stay in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use http::{Method, Request, StatusCode};
use kube::Client;
use memory_api::{Answer, Call, Objects, failure_of, parse, path_of};
use serde_json::{Value, json};
use thiserror::Error;
use tokio::sync::Notify;

use crate::lock::lock;
use crate::paths::{MIGRATIONS, NODE_MIGRATIONS};

/// Objects of a list in one request.
const PAGE: usize = 500;
/// Where replumb's own objects are: those of the run in memory are not the cluster's.
const OWN: &str = "/apis/replumb.dev/";
/// The one of them that is read: what agents have seen of connections.
const SAMPLES: &str = "/apis/replumb.dev/v1alpha1/connectionsamples";
/// Leases of the coordinator.
const LEASES: &str = "/apis/coordination.k8s.io/";
/// The only groups whose resources a check lists.
const DISCOVERY: &str = "/apis/";

/// The API server of the cluster refuses a read, or does not answer.
#[derive(Debug, Error)]
#[error("reading {path}: {source}")]
pub struct ReadFailed {
    /// Path of the request.
    path: String,
    /// The answer.
    #[source]
    source: Box<kube::Error>,
}

/// The API server. Clones share it.
#[derive(Clone)]
pub struct Source {
    cluster: Client,
    objects: Arc<Mutex<Objects>>,
    state: Arc<Mutex<State>>,
    failed: Arc<Notify>,
}

#[derive(Default)]
struct State {
    /// What the cluster has answered, by path.
    recorded: BTreeMap<String, Value>,
    /// Requests that the cluster has answered.
    read: BTreeSet<String>,
    /// Resources by group and version, as discovery has them.
    served: BTreeMap<String, Option<BTreeSet<String>>>,
    /// The first failure.
    failure: Option<ReadFailed>,
}

impl Source {
    /// An API server that has read nothing of the cluster yet.
    pub fn of(cluster: Client) -> Self {
        let objects = Objects::serving([
            SAMPLES,
            "/apis/replumb.dev/v1alpha1/migrationrecords",
            MIGRATIONS,
            NODE_MIGRATIONS,
        ]);
        Self {
            cluster,
            objects: Arc::new(Mutex::new(objects)),
            state: Arc::default(),
            failed: Arc::default(),
        }
    }

    /// Reads the collections that a coordinator watches.
    ///
    /// # Errors
    ///
    /// The API server refuses a read, or does not answer.
    pub async fn read_stores(&self) -> Result<(), ReadFailed> {
        for collection in coordinator::offline::WATCHED {
            let call = Call {
                method: Method::GET,
                path: collection.to_owned(),
                query: String::new(),
                body: Value::Null,
            };
            self.read(&call).await?;
        }
        Ok(())
    }

    /// Answers a request of the coordinator.
    pub async fn answer(&self, call: Call) -> Answer {
        let path = call.path.as_str();
        let is_own = path.starts_with(LEASES) || (path.starts_with(OWN) && path != SAMPLES);
        if call.method == Method::GET
            && !is_own
            && let Err(error) = self.read(&call).await
        {
            let message = error.to_string();
            self.lock().failure.get_or_insert(error);
            self.failed.notify_one();
            return failure_of(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", &message);
        }
        lock(&self.objects).answer(&call)
    }

    /// The first read that fails.
    pub async fn failure(&self) -> ReadFailed {
        loop {
            self.failed.notified().await;
            if let Some(error) = self.lock().failure.take() {
                return error;
            }
        }
    }

    /// Whether the object at this path was read.
    pub fn has(&self, path: &str) -> bool {
        self.lock().recorded.contains_key(path)
    }

    /// The objects that were read, in the order of their paths.
    pub fn recorded(&self) -> Vec<Value> {
        self.lock().recorded.values().cloned().collect()
    }

    /// The groups whose resources were listed, with these.
    pub fn served(&self) -> BTreeMap<String, Option<BTreeSet<String>>> {
        self.lock().served.clone()
    }

    /// The objects, for the coordinator's stores and for writes of the run in memory.
    pub fn objects(&self) -> Arc<Mutex<Objects>> {
        Arc::clone(&self.objects)
    }

    /// Reads from the cluster what the request is for, unless that was read before.
    async fn read(&self, call: &Call) -> Result<(), ReadFailed> {
        let place = parse(&call.path);
        let labels = form_urlencoded::parse(call.query.as_bytes())
            .find_map(|(key, value)| (key == "labelSelector").then(|| value.into_owned()));
        let request = match &labels {
            Some(labels) => format!("{}?{}", call.path, query(&[("labelSelector", labels)])),
            None => call.path.clone(),
        };
        {
            let read = &self.lock().read;
            let is_in_a_list = place
                .as_ref()
                .is_some_and(|place| read.contains(&place.collection()));
            if is_in_a_list || read.contains(&request) {
                return Ok(());
            }
        }
        match place {
            Some(place) if place.plural == "secrets" => {}
            Some(place) if place.name.is_none() => self.list(&call.path, labels.as_deref()).await?,
            Some(_) => {
                if let Some(object) = self.ask(&call.path, &call.path).await? {
                    self.record(&call.path, object);
                }
            }
            None => self.discover(&call.path).await?,
        }
        self.lock().read.insert(request);
        Ok(())
    }

    async fn list(&self, path: &str, labels: Option<&str>) -> Result<(), ReadFailed> {
        let mut next = String::new();
        let limit = PAGE.to_string();
        loop {
            let mut fields = vec![("limit", limit.as_str())];
            fields.extend(labels.map(|labels| ("labelSelector", labels)));
            fields.extend(Some(("continue", next.as_str())).filter(|(_, token)| !token.is_empty()));
            let uri = format!("{path}?{}", query(&fields));
            let Some(mut page) = self.ask(path, &uri).await? else {
                return Ok(());
            };
            page["metadata"]["continue"]
                .as_str()
                .unwrap_or_default()
                .clone_into(&mut next);
            if let Some(place) = parse(path) {
                lock(&self.objects).serve([place.collection().as_str()]);
            }
            let items = page["items"].take();
            let kind = page["kind"].as_str().and_then(|kind| kind.strip_suffix("List"));
            let Value::Array(items) = items else { return Ok(()) };
            for mut item in items {
                // Objects of a list have no type of their own.
                if item["kind"].is_null() {
                    item["apiVersion"] = page["apiVersion"].clone();
                    item["kind"] = json!(kind);
                }
                if let Some(path) = path_of(path, &item) {
                    self.record(&path, item);
                }
            }
            if next.is_empty() {
                return Ok(());
            }
        }
    }

    /// The resources of a group.
    async fn discover(&self, path: &str) -> Result<(), ReadFailed> {
        let Some(answer) = self.ask(path, path).await? else {
            return Ok(());
        };
        if let Some(version) = path.strip_prefix(DISCOVERY) {
            let resources = answer["resources"].as_array().into_iter().flatten();
            let names = resources.filter_map(|resource| resource["name"].as_str());
            let names = names.filter(|name| !name.contains('/')).map(str::to_owned);
            let names = Some(names.collect());
            self.lock().served.insert(version.to_owned(), names);
        }
        lock(&self.objects).put(path, answer);
        Ok(())
    }

    /// The cluster's answer; none for an object or a collection that does not exist.
    async fn ask(&self, path: &str, uri: &str) -> Result<Option<Value>, ReadFailed> {
        let failed = |source| ReadFailed {
            path: path.to_owned(),
            source: Box::new(source),
        };
        let request = Request::get(uri)
            .body(Vec::new())
            .map_err(|error| failed(kube::Error::HttpError(error)))?;
        match self.cluster.request::<Value>(request).await {
            Ok(answer) => Ok(Some(answer)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    fn record(&self, path: &str, object: Value) {
        let mut state = self.lock();
        if !state.recorded.contains_key(path) {
            lock(&self.objects).put(path, object.clone());
            state.recorded.insert(path.to_owned(), object);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn query(fields: &[(&str, &str)]) -> String {
    form_urlencoded::Serializer::new(String::new())
        .extend_pairs(fields)
        .finish()
}
