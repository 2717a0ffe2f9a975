//! Writes to the API: patches of single fields, each with the resourceVersion that the decision was made on; of Nodes and
//! `DaemonSet`s, or of a later version in which nothing but the status differs; and of our own specs, with the generation.

use datastore::error::StoreError;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use thiserror::Error;

use crate::tell;

/// A read or write of an object that failed.
#[derive(Debug, Error)]
pub enum WriteError {
    /// The object changed since the decision. The next pass decides again.
    #[error("{attempt} {object}: it changed since it was read")]
    Conflict {
        /// What was attempted.
        attempt: String,
        /// The object.
        object: String,
    },
    /// The API server refused, or did not answer.
    #[error("{attempt} {object}")]
    Api {
        /// What was attempted.
        attempt: String,
        /// The object.
        object: String,
        /// What it answered.
        #[source]
        source: kube::Error,
    },
    /// etcd refused, or did not answer.
    #[error(transparent)]
    Etcd(#[from] StoreError),
}

impl WriteError {
    /// The error of an attempt on an object; a conflict is told apart.
    pub fn of(attempt: impl Into<String>, object: impl Into<String>, source: kube::Error) -> Self {
        match source {
            kube::Error::Api(status) if status.is_conflict() => Self::Conflict {
                attempt: attempt.into(),
                object: object.into(),
            },
            source => Self::Api {
                attempt: attempt.into(),
                object: object.into(),
                source,
            },
        }
    }

    /// The API server's words, where it has looked at the write and says no: not where it could not answer, or knows better by now.
    pub fn refusal(&self) -> Option<&str> {
        match self {
            Self::Api {
                source: kube::Error::Api(status),
                ..
            } if [400, 403, 422].contains(&status.code) => Some(&status.message),
            Self::Api { .. } | Self::Conflict { .. } | Self::Etcd(_) => None,
        }
    }

    /// What was attempted on which object, and why it failed, in the API server's own words.
    pub fn words(&self) -> String {
        match self {
            Self::Api {
                source: kube::Error::Api(status),
                ..
            } => format!("{self}: {}", status.message),
            Self::Api { .. } | Self::Conflict { .. } | Self::Etcd(_) => tell::chain(self),
        }
    }

    /// Whether the object changed since the decision.
    pub fn is_conflict(&self) -> bool {
        match self {
            Self::Conflict { .. } => true,
            Self::Api { .. } | Self::Etcd(_) => false,
        }
    }

    /// Whether this object cannot be written, and another perhaps can: the API server refused it, or something behind this one
    /// request did not answer in time. Of an API server that is out of reach that is not so.
    pub fn is_of_the_object(&self) -> bool {
        match self {
            Self::Conflict { .. }
            | Self::Api {
                source: kube::Error::Api(_),
                ..
            } => true,
            Self::Api { source, .. } => timed_out(source),
            Self::Etcd(_) => false,
        }
    }

    /// Whether the object that was to be made is there already.
    pub fn is_there_already(&self) -> bool {
        match self {
            Self::Api {
                source: kube::Error::Api(status),
                ..
            } => status.reason == "AlreadyExists",
            Self::Api { .. } | Self::Conflict { .. } | Self::Etcd(_) => false,
        }
    }

    /// A label for metrics.
    pub fn category(&self) -> &'static str {
        match self {
            Self::Conflict { .. } => "Conflict",
            Self::Api {
                source: kube::Error::Api(_),
                ..
            }
            | Self::Etcd(StoreError::Answer { .. }) => "Refused",
            Self::Api { .. } | Self::Etcd(_) => "Unreachable",
        }
    }
}

/// Whether the time for the answer was over. An admission webhook has up to 30 s, a request of ours less.
fn timed_out(error: &kube::Error) -> bool {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = source {
        let io = error.downcast_ref::<std::io::Error>();
        if io.is_some_and(|error| error.kind() == std::io::ErrorKind::TimedOut) {
            return true;
        }
        source = error.source();
    }
    false
}

/// `Kind namespace/name` or `Kind name`.
pub fn describe<K: Resource<DynamicType: Default>>(object: &K) -> String {
    let kind = K::kind(&K::DynamicType::default()).into_owned();
    match object.namespace() {
        Some(namespace) => format!("{kind} {namespace}/{}", object.name_any()),
        None => format!("{kind} {}", object.name_any()),
    }
}

/// Creates an object; `what` says in errors which.
pub async fn create<K>(api: &Api<K>, what: &str, object: &K) -> Result<(), WriteError>
where
    K: Serialize + Clone + DeserializeOwned + std::fmt::Debug,
{
    match api.create(&post_parameters(), object).await {
        Ok(_) => Ok(()),
        // Made by an earlier pass that the store has not seen yet, or about to go: the next look tells.
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
        Err(source) => Err(WriteError::of("creating", what, source)),
    }
}

/// Deletes this very object, by its UID; one that is gone is deleted. `propagation` is what becomes of what it owns.
pub async fn delete<K>(
    api: &Api<K>,
    read: &K,
    propagation: Option<PropagationPolicy>,
) -> Result<(), WriteError>
where
    K: Resource<DynamicType: Default> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let parameters = DeleteParams {
        propagation_policy: propagation,
        preconditions: Some(Preconditions {
            uid: read.uid(),
            resource_version: None,
        }),
        ..DeleteParams::default()
    };
    match api.delete(&read.name_any(), &parameters).await {
        // It is answered with the object, which may be one that is not understood.
        Ok(_) | Err(kube::Error::SerdeError(_)) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(source) => Err(WriteError::of("deleting", describe(read), source)),
    }
}

/// Merge-patches an object as it was read, its status included: `change` is the patch without metadata.resourceVersion.
pub async fn patch_as_read<K>(api: &Api<K>, read: &K, attempt: &str, change: Value) -> Result<K, WriteError>
where
    K: Resource<DynamicType: Default> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let change = with_version(change, read);
    api.patch(&read.name_any(), &parameters(), &Patch::Merge(change))
        .await
        .map_err(|source| WriteError::of(attempt, describe(read), source))
}

/// How often a patch is sent again of an object whose status alone has changed.
const AGAIN: usize = 4;

/// Merge-patches an object on whose status nothing was decided that has to hold still, a Node or a `DaemonSet`: `change` is the patch
/// without metadata.resourceVersion. Kubelets write the status of their Nodes every few seconds; where nothing else has changed, the patch
/// is sent again. Otherwise who looks for longer than that would never write.
pub async fn patch<K>(api: &Api<K>, read: &K, attempt: &str, change: Value) -> Result<K, WriteError>
where
    K: Resource<DynamicType: Default> + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    match patch_as_read(api, read, attempt, change.clone()).await {
        Err(WriteError::Conflict { .. }) => Box::pin(patch_again(api, read, attempt, change)).await,
        patched => patched,
    }
}

async fn patch_again<K>(api: &Api<K>, read: &K, attempt: &str, change: Value) -> Result<K, WriteError>
where
    K: Resource<DynamicType: Default> + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    for _ in 0..AGAIN {
        let now = api
            .get(&read.name_any())
            .await
            .map_err(|source| WriteError::of(attempt, describe(read), source))?;
        if but_status(&now) != but_status(read) {
            break;
        }
        match patch_as_read(api, &now, attempt, change.clone()).await {
            Err(WriteError::Conflict { .. }) => {}
            patched => return patched,
        }
    }
    Err(WriteError::Conflict {
        attempt: attempt.to_owned(),
        object: describe(read),
    })
}

/// What a decision can rest on: all but the status, and what the API server writes with every change.
fn but_status<K: Serialize>(object: &K) -> Value {
    // An object of the API always serializes.
    let mut object = serde_json::to_value(object).unwrap_or_default();
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.remove("resourceVersion");
        metadata.remove("managedFields");
    }
    object
}

/// Writes the status of an object as it was read; nothing is sent when it is the same.
pub async fn patch_status<K, S>(api: &Api<K>, read: &K, old: Option<&S>, new: &S) -> Result<bool, WriteError>
where
    K: Resource<DynamicType: Default> + Clone + DeserializeOwned + std::fmt::Debug,
    S: Serialize + Sync,
{
    let Some(change) = change(old, new) else {
        return Ok(false);
    };
    let change = with_version(json!({ "status": change }), read);
    api.patch_status(&read.name_any(), &parameters(), &Patch::Merge(change))
        .await
        .map_err(|source| WriteError::of("writing the status of", describe(read), source))?;
    Ok(true)
}

/// Writes what differs in the spec of an object of ours, and returns its metadata as they are then; nothing is sent when it is the same.
///
/// The object has to be the one that was read, with the spec that it had: a write of its status, which agents make all the time, changes
/// no `metadata.generation`. What an agent says between look and write it could as well say after the write.
pub async fn patch_spec<K, S>(
    api: &Api<K>,
    read: &K,
    old: &S,
    new: &S,
) -> Result<Option<ObjectMeta>, WriteError>
where
    K: Resource<DynamicType: Default> + Clone + DeserializeOwned + std::fmt::Debug,
    S: Serialize + Sync,
{
    let Some(operations) = operations(read, old, new) else {
        return Ok(None);
    };
    let attempt = "writing the spec of";
    let failed = |source| WriteError::of(attempt, describe(read), source);
    let patch: Patch<()> = serde_json::from_value(operations)
        .map(Patch::Json)
        .map_err(|source| failed(kube::Error::SerdeError(source)))?;
    // The answer is metadata alone: a status that is not understood keeps no spec from being written.
    match api.patch_metadata(&read.name_any(), &parameters(), &patch).await {
        Ok(written) => Ok(Some(written.metadata)),
        // A test that fails is answered like an object that is not valid, and without its words.
        Err(kube::Error::Api(status)) if status.code == 422 && has_another_spec(api, read).await? => {
            Err(WriteError::Conflict {
                attempt: attempt.to_owned(),
                object: describe(read),
            })
        }
        Err(source) => Err(failed(source)),
    }
}

/// The JSON patch (RFC 6902) that writes each field of the spec that differs, if the object has the UID and the generation that were read.
fn operations<K: Resource, S: Serialize>(read: &K, old: &S, new: &S) -> Option<Value> {
    let change = change(Some(old), new)?;
    let [old, new] = [old, new].map(|spec| serde_json::to_value(spec).unwrap_or_default());
    let mut operations = vec![
        json!({ "op": "test", "path": "/metadata/uid", "value": read.meta().uid }),
        json!({ "op": "test", "path": "/metadata/generation", "value": read.meta().generation }),
    ];
    for (field, change) in fields(&change) {
        // Of what is there, the fields that differ; what is new comes as a whole.
        let parts: Vec<String> = match (&old[field], &new[field]) {
            (Value::Object(_), Value::Object(_)) => fields(change)
                .map(|(part, _)| format!("/{field}/{}", escaped(part)))
                .collect(),
            _ => vec![format!("/{field}")],
        };
        operations.extend(parts.into_iter().map(|part| match new.pointer(&part) {
            Some(value) => json!({ "op": "add", "path": format!("/spec{part}"), "value": value }),
            None => json!({ "op": "remove", "path": format!("/spec{part}") }),
        }));
    }
    Some(Value::Array(operations))
}

/// A part of a JSON pointer (RFC 6901).
fn escaped(part: &str) -> String {
    part.replace('~', "~0").replace('/', "~1")
}

fn fields(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

/// Whether the object is not the one that was read any more, or has another spec.
async fn has_another_spec<K>(api: &Api<K>, read: &K) -> Result<bool, WriteError>
where
    K: Resource<DynamicType: Default> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let now = api
        .get_metadata_opt(&read.name_any())
        .await
        .map_err(|source| WriteError::of("looking again at", describe(read), source))?;
    let read = read.meta();
    Ok(now.is_none_or(|now| (&now.metadata.uid, now.metadata.generation) != (&read.uid, read.generation)))
}

/// Parameters of every patch of ours.
pub fn parameters() -> PatchParams {
    PatchParams {
        field_manager: Some(api::names::COORDINATOR_FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

/// The same of what is created.
pub fn post_parameters() -> PostParams {
    PostParams {
        field_manager: parameters().field_manager,
        ..PostParams::default()
    }
}

fn with_version<K: Resource>(mut change: Value, read: &K) -> Value {
    if let Some(version) = &read.meta().resource_version {
        change["metadata"]["resourceVersion"] = json!(version);
    }
    change
}

fn change<S: Serialize>(old: Option<&S>, new: &S) -> Option<Value> {
    // Both are our own types with string keys: they always serialize.
    let old = old.map_or_else(
        || json!({}),
        |old| serde_json::to_value(old).unwrap_or(Value::Null),
    );
    let new = serde_json::to_value(new).unwrap_or(Value::Null);
    api::merge::difference(&old, &new)
}

#[cfg(test)]
mod tests {
    use api::NodeMigration;
    use k8s_openapi::api::core::v1::Node;
    use plan::flannel_to_calico::phase::Goal;

    use super::*;
    use crate::fake_api::FakeApi;

    const PATH: &str = "/api/v1/nodes/a";

    fn labelled() -> Value {
        json!({ "metadata": { "labels": { "network": "calico" } } })
    }

    /// Somebody else writes this between our look and our write.
    async fn patched_after(meanwhile: &[Value]) -> (FakeApi, Result<Node, WriteError>) {
        let server = FakeApi::default();
        server.put(
            PATH,
            json!({ "metadata": { "name": "a" }, "spec": { "podCIDR": "10.244.1.0/24" } }),
        );
        let api: Api<Node> = Api::all(server.client());
        let read = api.get("a").await.unwrap();
        for patch in meanwhile {
            server.edit(PATH, patch);
        }
        let result = patch(&api, &read, "labelling", labelled()).await;
        (server, result)
    }

    #[tokio::test]
    async fn a_heartbeat_between_look_and_write_keeps_nobody_from_writing() {
        let beat = |time: &str| json!({ "status": { "conditions": [{ "type": "Ready", "status": "True", "lastHeartbeatTime": time }] } });
        let beats = [beat("2026-01-01T00:00:05Z"), beat("2026-01-01T00:00:10Z")];
        let (server, result) = patched_after(&beats).await;
        assert_eq!(result.unwrap().labels()["network"], "calico");
        let node = server.get(PATH).unwrap();
        assert_eq!(
            node["status"], beats[1]["status"],
            "what the kubelet wrote is still there"
        );
    }

    #[tokio::test]
    async fn what_was_decided_on_is_the_same_or_nothing_is_written() {
        for meanwhile in [
            json!({ "spec": { "unschedulable": true } }),
            json!({ "metadata": { "annotations": { "replumb.dev/cordoned-by": "another" } } }),
            json!({ "metadata": { "labels": { "network": "none" } } }),
            // Deleted, and made again with the same name.
            json!({ "metadata": { "uid": "another" } }),
        ] {
            let (server, result) = patched_after(std::slice::from_ref(&meanwhile)).await;
            let error = result.unwrap_err();
            assert!(
                matches!(error, WriteError::Conflict { .. }),
                "{meanwhile}: {error}"
            );
            assert_eq!(
                error.to_string(),
                "labelling Node a: it changed since it was read"
            );
            assert!(server.take_changes().is_empty(), "{meanwhile}");
        }
    }

    const NODE_MIGRATION: &str = "/apis/replumb.dev/v1alpha1/nodemigrations/a";

    /// Somebody else merges this into a NodeMigration between our look and our write of its goal.
    async fn goal_after(meanwhile: &Value) -> (FakeApi, Result<Option<ObjectMeta>, WriteError>) {
        let server = FakeApi::default();
        server.put(
            NODE_MIGRATION,
            json!({
                "metadata": { "name": "a" },
                "spec": { "nodeName": "a", "migration": "m", "returnedAt": "2026-01-01T00:00:00Z" },
            }),
        );
        let api: Api<NodeMigration> = Api::all(server.client());
        let read = api.get("a").await.unwrap();
        server.edit(NODE_MIGRATION, meanwhile);
        let mut spec = read.spec.clone();
        spec.goal = Goal::Held;
        spec.returned_at = None;
        let written = patch_spec(&api, &read, &read.spec, &spec).await;
        (server, written)
    }

    #[tokio::test]
    async fn a_report_of_an_agent_is_no_conflict_of_a_spec() {
        let (server, written) = goal_after(&json!({ "status": { "message": "works" } })).await;
        let object = server.get(NODE_MIGRATION).unwrap();
        assert_eq!(object["spec"]["goal"], "Held");
        assert_eq!(
            json!(written.unwrap().unwrap().generation),
            object["metadata"]["generation"]
        );
        assert_eq!(object["status"]["message"], "works");
        assert_eq!(
            object["spec"].get("returnedAt"),
            None,
            "what is gone is taken away"
        );
    }

    #[tokio::test]
    async fn another_spec_or_another_object_is_a_conflict() {
        for meanwhile in [
            json!({ "spec": { "goal": "Flannel" } }),
            json!({ "metadata": { "uid": "another" } }),
        ] {
            let (server, written) = goal_after(&meanwhile).await;
            let error = written.unwrap_err();
            assert!(error.is_conflict(), "{meanwhile}: {error}");
            assert!(server.take_changes().is_empty(), "{meanwhile}");
        }
    }

    #[tokio::test]
    async fn a_spec_that_is_not_valid_is_refused_and_no_conflict() {
        let server = FakeApi::default();
        server.put(
            NODE_MIGRATION,
            json!({ "metadata": { "name": "a" }, "spec": { "nodeName": "a", "migration": "m" } }),
        );
        let api: Api<NodeMigration> = Api::all(server.client());
        let read = api.get("a").await.unwrap();
        server.deny_as_invalid(NODE_MIGRATION, "spec.goal: Invalid value");
        let mut spec = read.spec.clone();
        spec.goal = Goal::Held;
        let error = patch_spec(&api, &read, &read.spec, &spec).await.unwrap_err();
        assert_eq!(error.refusal(), Some("spec.goal: Invalid value"));
        assert!(!error.is_conflict());
    }

    #[tokio::test]
    async fn what_was_decided_on_a_status_waits_for_a_look_at_another() {
        let server = FakeApi::default();
        server.put(PATH, json!({ "metadata": { "name": "a" } }));
        let api: Api<Node> = Api::all(server.client());
        let read = api.get("a").await.unwrap();
        server.edit(PATH, &json!({ "status": { "phase": "Terminated" } }));
        let error = patch_as_read(&api, &read, "labelling", labelled())
            .await
            .unwrap_err();
        assert!(matches!(error, WriteError::Conflict { .. }), "{error}");
        assert!(server.take_changes().is_empty());
    }

    #[tokio::test]
    async fn who_is_gone_is_told_with_what_was_attempted() {
        let server = FakeApi::default();
        server.put(PATH, json!({ "metadata": { "name": "a" } }));
        let api: Api<Node> = Api::all(server.client());
        let read = api.get("a").await.unwrap();
        server.remove(PATH);
        let error = patch(&api, &read, "labelling", labelled()).await.unwrap_err();
        assert!(matches!(error, WriteError::Api { .. }), "{error}");
        assert_eq!(error.to_string(), "labelling Node a");
    }
}
