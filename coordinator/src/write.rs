//! Writes to the API: patches of single fields, each with the resourceVersion that the decision was made on.

use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions, PropagationPolicy};
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use thiserror::Error;

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
            Self::Api { .. } | Self::Conflict { .. } => None,
        }
    }

    /// Whether the object that was to be made is there already.
    pub fn is_there_already(&self) -> bool {
        match self {
            Self::Api {
                source: kube::Error::Api(status),
                ..
            } => status.reason == "AlreadyExists",
            Self::Api { .. } | Self::Conflict { .. } => false,
        }
    }

    /// A label for metrics.
    pub fn category(&self) -> &'static str {
        match self {
            Self::Conflict { .. } => "Conflict",
            Self::Api {
                source: kube::Error::Api(_),
                ..
            } => "Refused",
            Self::Api { .. } => "Unreachable",
        }
    }
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
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(source) => Err(WriteError::of("deleting", describe(read), source)),
    }
}

/// Merge-patches an object as it was read: `change` is the patch without metadata.resourceVersion.
pub async fn patch<K>(api: &Api<K>, read: &K, attempt: &str, change: Value) -> Result<K, WriteError>
where
    K: Resource<DynamicType: Default> + Clone + DeserializeOwned + std::fmt::Debug,
{
    let change = with_version(change, read);
    api.patch(&read.name_any(), &parameters(), &Patch::Merge(change))
        .await
        .map_err(|source| WriteError::of(attempt, describe(read), source))
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

/// Writes the spec of an object as it was read; nothing is sent when it is the same.
pub async fn patch_spec<K, S>(api: &Api<K>, read: &K, old: &S, new: &S) -> Result<bool, WriteError>
where
    K: Resource<DynamicType: Default> + Clone + DeserializeOwned + std::fmt::Debug,
    S: Serialize + Sync,
{
    let Some(change) = change(Some(old), new) else {
        return Ok(false);
    };
    patch(api, read, "writing the spec of", json!({ "spec": change })).await?;
    Ok(true)
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
