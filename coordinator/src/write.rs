//! Writes to the API: patches of single fields. A patch requires that the fields on which it was decided are as read; for an
//! object that other programs rarely write, that its resourceVersion is.

mod error;

use api::names;
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

pub use self::error::WriteError;
use crate::lenient_requests;
use crate::read_error::ReadError;

/// `Kind namespace/name` or `Kind name`.
pub fn describe<K: Resource<DynamicType: Default>>(object: &K) -> String {
    let kind = K::kind(&K::DynamicType::default()).into_owned();
    match object.namespace() {
        Some(namespace) => format!("{kind} {namespace}/{}", object.name_any()),
        None => format!("{kind} {}", object.name_any()),
    }
}

/// Creates an object; `what` names it in errors.
///
/// # Errors
///
/// The API server refuses the write or does not answer.
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
///
/// # Errors
///
/// The object of this name has another UID, or the API server refuses the deletion or does not answer.
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
///
/// # Errors
///
/// The object changed since it was read, or the API server refuses the write or does not answer.
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
///
/// # Errors
///
/// The object changed since it was read, or the API server refuses the write or does not answer.
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
///
/// # Errors
///
/// The object changed since it was read, or the API server refuses the write or does not answer.
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
///
/// # Errors
///
/// The object changed since it was read, or the API server refuses the write or does not answer.
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
    let now = now.map_err(|source| ReadError::of("reading", object, source))?;
    // An object of the API always serializes.
    let now = now.map(|now| serde_json::to_value(now).unwrap_or_default());
    let merge = now.and_then(|now| patch.merge(&now));
    merge.map(Patch::Merge).ok_or_else(|| WriteError::Conflict {
        attempt: attempt.to_owned(),
        object: object.to_owned(),
    })
}

/// Writes the status of an object as read; nothing is sent if it is equal.
///
/// # Errors
///
/// The object changed since it was read, or the API server refuses the write or does not answer.
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
///
/// # Errors
///
/// The object changed since it was read, or the API server refuses the write or does not answer.
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
            let now = now.map_err(|source| ReadError::of("reading", &object, source))?;
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
mod tests;
