//! Writes to the API: patches of single fields. A patch requires that the fields on which it was decided are as read; for an
//! object that other programs rarely write, that its resourceVersion is.

use api::names;
use datastore::error::StoreError;
use engine::field_patch::{Basis, FieldPatch, pointer};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::core::Status;
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use thiserror::Error;

use crate::lenient_requests;

/// A read or write of an object that failed.
#[derive(Debug, Error)]
pub enum WriteError {
    /// The object changed since the decision. The next pass decides again.
    #[error("{attempt} {object}: the object changed since it was read")]
    Conflict {
        /// The attempt.
        attempt: String,
        /// The object.
        object: String,
    },
    /// The API server refused, or did not answer.
    #[error("{attempt} {object}")]
    Api {
        /// The attempt.
        attempt: String,
        /// The object.
        object: String,
        /// The error of the API client.
        #[source]
        source: kube::Error,
    },
    /// etcd refused, or did not answer.
    #[error(transparent)]
    Etcd(#[from] StoreError),
}

impl WriteError {
    /// The error of an attempt on an object; a conflict becomes its own variant.
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

    /// The message of a final refusal by the API server; `None` if it could not answer, or the object changed.
    pub fn refusal(&self) -> Option<&str> {
        match self {
            Self::Api {
                source: kube::Error::Api(status),
                ..
            } if [400, 403, 422].contains(&status.code) => Some(&status.message),
            Self::Api { .. } | Self::Conflict { .. } | Self::Etcd(_) => None,
        }
    }

    /// The attempt, the object, and the cause, as a message with the API server's text.
    pub fn message(&self) -> String {
        match self {
            Self::Api {
                source: kube::Error::Api(status),
                ..
            } => format!("{self}: {}", status.message),
            Self::Api { .. } | Self::Conflict { .. } | Self::Etcd(_) => runtime::error::chain(self),
        }
    }

    /// Whether the object changed since the decision.
    pub fn is_conflict(&self) -> bool {
        match self {
            Self::Conflict { .. } => true,
            Self::Api { .. } | Self::Etcd(_) => false,
        }
    }

    /// Whether the error concerns this object only: the API server refused it, or sent an unreadable answer, or a component
    /// behind this request did not answer in time. An unreachable API server concerns all objects.
    pub fn concerns_one_object(&self) -> bool {
        match self {
            Self::Conflict { .. }
            | Self::Api {
                source: kube::Error::Api(_) | kube::Error::SerdeError(_),
                ..
            } => true,
            Self::Api { source, .. } => timed_out(source),
            Self::Etcd(_) => false,
        }
    }

    /// Whether the object to be created exists already.
    pub fn already_exists(&self) -> bool {
        match self {
            Self::Api {
                source: kube::Error::Api(status),
                ..
            } => status.reason == "AlreadyExists",
            Self::Api { .. } | Self::Conflict { .. } | Self::Etcd(_) => false,
        }
    }

    /// Label for metrics.
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

/// Whether the request timed out. An admission webhook has up to 30 s, a request of the coordinator less.
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

/// Creates an object; `what` names it in errors.
pub async fn create<K>(api: &Api<K>, what: &str, object: &K) -> Result<(), WriteError>
where
    K: Serialize + Clone + DeserializeOwned + std::fmt::Debug,
{
    match api.create(&post_parameters(), object).await {
        Ok(_) => Ok(()),
        // Created by an earlier pass and not in the store yet, or being deleted: the next pass decides.
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
        Err(source) => Err(WriteError::of("creating", what, source)),
    }
}

/// Deletes the object with this UID; a missing object is not an error. `propagation` is the policy for objects that it owns.
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
    match lenient_requests::delete(api, &read.name_any(), &parameters).await {
        Ok(()) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(source) => Err(WriteError::of("deleting", describe(read), source)),
    }
}

/// Applies a merge patch to an object as read, including its status: `change` is the patch without metadata.resourceVersion.
pub async fn patch_as_read<K>(api: &Api<K>, read: &K, attempt: &str, change: Value) -> Result<K, WriteError>
where
    K: Resource<DynamicType: Default> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let change = with_version(change, read);
    lenient_requests::patch(api, &read.name_any(), &parameters(), &Patch::Merge(change))
        .await
        .map_err(|source| WriteError::of(attempt, describe(read), source))
}

/// Kinds whose objects many programs write: a decision about one of them depends on some of its fields.
pub trait DecidedBy {
    /// Those fields.
    fn basis() -> Basis;
}

impl DecidedBy for Node {
    fn basis() -> Basis {
        let spec = ["unschedulable", "podCIDR", "podCIDRs"].map(|field| pointer(["spec", field]));
        let annotations = [
            names::CORDONED_BY_ANNOTATION,
            names::PREPARED_BY_ANNOTATION,
            names::SCALE_DOWN_DISABLED_ANNOTATION,
            names::SCALE_DOWN_DISABLED_BY_ANNOTATION,
        ]
        .map(|name| pointer(["metadata", "annotations", name]));
        let label = pointer(["metadata", "labels", names::NODE_NETWORK_LABEL]);
        Basis {
            fields: spec.into_iter().chain(annotations).chain([label]).collect(),
            members: &[],
        }
    }
}

impl DecidedBy for DaemonSet {
    fn basis() -> Basis {
        Basis {
            fields: vec![pointer(["metadata", "generation"])],
            members: &[],
        }
    }
}

/// Applies the merge patch `change` to an object, if the written fields and those on which decisions about its kind depend are as
/// read. Other concurrent writes are not a conflict.
pub async fn patch<K>(api: &Api<K>, read: &K, attempt: &str, change: &Value) -> Result<K, WriteError>
where
    K: Resource<DynamicType: Default> + DecidedBy + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    // An object of the API always serializes.
    let found = serde_json::to_value(read).unwrap_or_default();
    let patch = FieldPatch::new(&found, &K::basis(), change);
    patch_fields(api, &read.name_any(), (attempt, &describe(read)), &patch).await
}

/// Sends a patch of an object of this name; `attempt` is the attempt and the object for errors. A patch whose tests fail is a
/// conflict.
pub async fn patch_fields<K>(
    api: &Api<K>,
    name: &str,
    attempt: (&str, &str),
    patch: &FieldPatch,
) -> Result<K, WriteError>
where
    K: Resource + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    let parameters = parameters();
    match lenient_requests::patch(api, name, &parameters, &json_patch(attempt, patch)?).await {
        Err(kube::Error::Api(status)) if may_be_a_failed_test(&status) => {
            let merge = merge_patch(api, name, attempt, patch).await?;
            lenient_requests::patch(api, name, &parameters, &merge).await
        }
        answer => answer,
    }
    .map_err(|source| WriteError::of(attempt.0, attempt.1, source))
}

/// The same for the status.
pub async fn patch_status_fields<K>(
    api: &Api<K>,
    name: &str,
    attempt: (&str, &str),
    patch: &FieldPatch,
) -> Result<K, WriteError>
where
    K: Resource + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    let parameters = parameters();
    match lenient_requests::patch_status(api, name, &parameters, &json_patch(attempt, patch)?).await {
        Err(kube::Error::Api(status)) if may_be_a_failed_test(&status) => {
            let merge = merge_patch(api, name, attempt, patch).await?;
            lenient_requests::patch_status(api, name, &parameters, &merge).await
        }
        answer => answer,
    }
    .map_err(|source| WriteError::of(attempt.0, attempt.1, source))
}

fn json_patch((attempt, object): (&str, &str), patch: &FieldPatch) -> Result<Patch<()>, WriteError> {
    serde_json::from_value(patch.operations())
        .map(Patch::Json)
        .map_err(|source| WriteError::of(attempt, object, kube::Error::SerdeError(source)))
}

/// Whether the API server may have refused a JSON patch because of a failed test. A failed test is answered like an invalid
/// object, but without a field: for an invalid object the answer names each invalid field. That answer is final
/// ("spec.clusterIPs: provided IP is already allocated"): a merge patch would only add a conflict.
fn may_be_a_failed_test(status: &Status) -> bool {
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 422 && causes.all(|cause| cause.field.is_empty())
}

/// The second attempt after a refusal without a cause: a field has changed, which is a conflict; or the API server compares a
/// field in another form; or the new value is invalid. A merge patch on the current object tells the last two apart.
async fn merge_patch<K>(
    api: &Api<K>,
    name: &str,
    (attempt, object): (&str, &str),
    patch: &FieldPatch,
) -> Result<Patch<Value>, WriteError>
where
    K: Resource + Clone + DeserializeOwned + Serialize + std::fmt::Debug,
{
    let now = lenient_requests::get_opt(api, name).await;
    let now = now.map_err(|source| WriteError::of("reading", object, source))?;
    // An object of the API always serializes.
    let now = now.map(|now| serde_json::to_value(now).unwrap_or_default());
    let merge = now.and_then(|now| patch.merge(&now));
    merge.map(Patch::Merge).ok_or_else(|| WriteError::Conflict {
        attempt: attempt.to_owned(),
        object: object.to_owned(),
    })
}

/// Writes the status of an object as read; nothing is sent if it is equal.
pub async fn patch_status<K, S>(api: &Api<K>, read: &K, old: Option<&S>, new: &S) -> Result<bool, WriteError>
where
    K: Resource<DynamicType: Default> + Clone + DeserializeOwned + std::fmt::Debug,
    S: Serialize + Sync,
{
    let Some(change) = change(old, new) else {
        return Ok(false);
    };
    let change = with_version(json!({ "status": change }), read);
    lenient_requests::patch_status(api, &read.name_any(), &parameters(), &Patch::Merge(change))
        .await
        .map_err(|source| WriteError::of("writing the status of", describe(read), source))?;
    Ok(true)
}

/// Writes the differences in the spec of a replumb object, and returns its metadata after the write; nothing is sent if it is
/// equal.
///
/// The object must have the UID and the spec that were read: frequent status writes of agents do not change
/// `metadata.generation`. A report of an agent between read and write could as well come after the write.
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
    let Some(change) = change(Some(old), new) else {
        return Ok(None);
    };
    let attempt = "writing the spec of";
    let object = describe(read);
    let found = json!({ "metadata": read.meta(), "spec": old });
    let basis = Basis {
        fields: vec![pointer(["metadata", "generation"])],
        members: &[],
    };
    let patch = FieldPatch::new(&found, &basis, &json!({ "spec": change }));
    let json = json_patch((attempt, &object), &patch)?;
    let (name, parameters) = (read.name_any(), parameters());
    // The answer is metadata only: an unreadable status does not prevent writes of the spec.
    let answer = match lenient_requests::patch_metadata(api, &name, &parameters, &json).await {
        Err(kube::Error::Api(status)) if may_be_a_failed_test(&status) => {
            let now = lenient_requests::get_metadata_opt(api, &name).await;
            let now = now.map_err(|source| WriteError::of("reading", &object, source))?;
            let merge = now.and_then(|now| patch.merge(&json!({ "metadata": now.metadata })));
            match merge {
                Some(merge) => {
                    lenient_requests::patch_metadata(api, &name, &parameters, &Patch::Merge(merge)).await
                }
                None => {
                    return Err(WriteError::Conflict {
                        attempt: attempt.to_owned(),
                        object,
                    });
                }
            }
        }
        answer => answer,
    };
    match answer {
        Ok(written) => Ok(Some(written.metadata)),
        Err(source) => Err(WriteError::of(attempt, object, source)),
    }
}

/// Parameters of every patch.
pub fn parameters() -> PatchParams {
    PatchParams {
        field_manager: Some(api::names::COORDINATOR_FIELD_MANAGER.to_owned()),
        ..PatchParams::default()
    }
}

/// Parameters of every creation.
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
    // Both are types of replumb with string keys: they always serialize.
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
    use flannel_to_calico::phase::Goal;

    use super::*;
    use crate::fake_api::FakeApi;

    const PATH: &str = "/api/v1/nodes/a";

    fn labelled() -> Value {
        json!({ "metadata": { "labels": { "network": "calico" } } })
    }

    /// Another writer applies this between read and write.
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
        let result = patch(&api, &read, "labelling", &labelled()).await;
        (server, result)
    }

    #[tokio::test]
    async fn a_heartbeat_between_read_and_write_is_not_a_conflict() {
        let beat = |time: &str| json!({ "status": { "conditions": [{ "type": "Ready", "status": "True", "lastHeartbeatTime": time }] } });
        let beats = [beat("2026-01-01T00:00:05Z"), beat("2026-01-01T00:00:10Z")];
        let (server, result) = patched_after(&beats).await;
        assert_eq!(result.unwrap().labels()["network"], "calico");
        let node = server.get(PATH).unwrap();
        assert_eq!(node["status"], beats[1]["status"], "the kubelet's write is kept");
    }

    #[tokio::test]
    async fn changes_of_unused_fields_before_each_write_are_not_a_conflict() {
        let server = FakeApi::default();
        server.put(
            PATH,
            json!({ "metadata": { "name": "a" }, "spec": { "podCIDR": "10.244.1.0/24" } }),
        );
        server.edit_before_each_change(PATH, |number| {
            json!({ "metadata": { "labels": { "stranger": number.to_string() }, "annotations": { "b": number.to_string() } } })
        });
        let api: Api<Node> = Api::all(server.client());
        // The first read has neither labels nor annotations.
        let read = api.get("a").await.unwrap();
        assert!(
            patch(&api, &read, "labelling", &labelled())
                .await
                .unwrap_err()
                .is_conflict()
        );
        for network in ["calico", "flannel"] {
            let read = api.get("a").await.unwrap();
            let change = json!({ "metadata": { "labels": { "network": network } } });
            let written = patch(&api, &read, "labelling", &change).await.unwrap();
            assert_eq!(written.labels()["network"], network);
        }
        assert_eq!(server.get(PATH).unwrap()["metadata"]["labels"]["stranger"], "3");
    }

    #[tokio::test]
    async fn a_change_of_a_decisive_field_is_a_conflict() {
        for meanwhile in [
            json!({ "spec": { "unschedulable": true } }),
            json!({ "metadata": { "annotations": { "replumb.dev/cordoned-by": "another" } } }),
            json!({ "metadata": { "labels": { "network": "none" } } }),
            // Deleted and created again with the same name.
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
                "labelling Node a: the object changed since it was read"
            );
            assert!(server.take_changes().is_empty(), "{meanwhile}");
        }
    }

    const NODE_MIGRATION: &str = "/apis/replumb.dev/v1alpha1/nodemigrations/a";

    /// Another writer merges this into a NodeMigration between read and write of its goal.
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
        spec.flannel_to_calico.get_or_insert_default().goal = Goal::Held;
        spec.returned_at = None;
        let written = patch_spec(&api, &read, &read.spec, &spec).await;
        (server, written)
    }

    #[tokio::test]
    async fn a_report_of_an_agent_is_not_a_conflict_with_the_spec() {
        let (server, written) = goal_after(&json!({ "status": { "message": "works" } })).await;
        let object = server.get(NODE_MIGRATION).unwrap();
        assert_eq!(object["spec"]["flannelToCalico"]["goal"], "Held");
        assert_eq!(
            json!(written.unwrap().unwrap().generation),
            object["metadata"]["generation"]
        );
        assert_eq!(object["status"]["message"], "works");
        assert_eq!(
            object["spec"].get("returnedAt"),
            None,
            "a removed field is removed"
        );
    }

    #[tokio::test]
    async fn another_spec_or_another_object_is_a_conflict() {
        for meanwhile in [
            json!({ "spec": { "flannelToCalico": { "goal": "Flannel" } } }),
            json!({ "metadata": { "uid": "another" } }),
        ] {
            let (server, written) = goal_after(&meanwhile).await;
            let error = written.unwrap_err();
            assert!(error.is_conflict(), "{meanwhile}: {error}");
            assert!(server.take_changes().is_empty(), "{meanwhile}");
        }
    }

    #[tokio::test]
    async fn an_invalid_spec_is_a_refusal_and_not_a_conflict() {
        let server = FakeApi::default();
        server.put(
            NODE_MIGRATION,
            json!({ "metadata": { "name": "a" }, "spec": { "nodeName": "a", "migration": "m" } }),
        );
        let api: Api<NodeMigration> = Api::all(server.client());
        let read = api.get("a").await.unwrap();
        server.deny_as_invalid(NODE_MIGRATION, "spec.goal: Invalid value");
        let mut spec = read.spec.clone();
        spec.flannel_to_calico.get_or_insert_default().goal = Goal::Held;
        let error = patch_spec(&api, &read, &read.spec, &spec).await.unwrap_err();
        assert_eq!(error.refusal(), Some("spec.goal: Invalid value"));
        assert!(!error.is_conflict());
    }

    #[tokio::test]
    async fn a_patch_as_read_conflicts_after_a_status_change() {
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
    async fn a_patch_of_a_missing_object_is_an_error_with_the_attempt() {
        let server = FakeApi::default();
        server.put(PATH, json!({ "metadata": { "name": "a" } }));
        let api: Api<Node> = Api::all(server.client());
        let read = api.get("a").await.unwrap();
        server.remove(PATH);
        let error = patch(&api, &read, "labelling", &labelled()).await.unwrap_err();
        assert!(matches!(error, WriteError::Api { .. }), "{error}");
        assert_eq!(error.to_string(), "labelling Node a");
    }

    /// A Node's own kubelet may write such a time.
    #[tokio::test]
    async fn an_object_with_an_unreadable_time_is_patched_and_deleted() {
        let server = FakeApi::default();
        let path = "/api/v1/nodes/a";
        let times = json!([{ "manager": "odd", "time": "10000-01-01T00:59:59Z" }]);
        server.put(
            path,
            json!({ "metadata": { "name": "a", "managedFields": times } }),
        );
        let api: Api<Node> = Api::all(server.client());
        let read = lenient_requests::get_opt(&api, "a").await.unwrap().unwrap();
        let change = json!({ "spec": { "unschedulable": true } });
        let written = patch(&api, &read, "cordoning", &change).await.unwrap();
        assert_eq!(written.spec.unwrap().unschedulable, Some(true));
        let written = patch_as_read(&api, &read, "cordoning", change).await;
        assert!(written.unwrap_err().is_conflict(), "the version has changed");
        delete(&api, &read, None).await.unwrap();
        assert_eq!(server.get(path), None);
    }

    /// The API server has answered: other objects may be readable, and the status names this one.
    #[test]
    fn an_unreadable_answer_concerns_its_object_only() {
        let source = serde_json::from_value::<Node>(json!({ "metadata": 7 })).unwrap_err();
        let error = WriteError::of("listing", "Nodes", kube::Error::SerdeError(source));
        assert!(error.concerns_one_object());
    }
}
