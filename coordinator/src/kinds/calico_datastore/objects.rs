//! Calico's objects in the cluster, read and written as they are stored: every field is kept.

use calico_datastore::cluster::manifest::Name;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch};
use serde_json::{Value, json};

use crate::context::Context;
use crate::lenient_requests;
use crate::read_error::ReadError;
use crate::write::{WriteError, parameters};

/// API of `DaemonSet`s and Deployments, regardless of the version in an old manifest.
const APPS: &str = "apps/v1";

/// The name of a `DaemonSet`, a Deployment or a `ConfigMap`, with the version in which the API server serves it.
pub fn current(name: &Name) -> Name {
    let version = if name.kind == "ConfigMap" { "v1" } else { APPS };
    Name {
        version: version.to_owned(),
        ..name.clone()
    }
}

/// The object of this kind with the key `namespace/name`; `None` when the key has no slash.
pub fn named(kind: &str, key: &str) -> Option<Name> {
    let (namespace, name) = key.split_once('/')?;
    Some(current(&Name {
        version: String::new(),
        kind: kind.to_owned(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }))
}

fn api(context: &Context, name: &Name) -> Api<DynamicObject> {
    let (group, version) = name.version.rsplit_once('/').unwrap_or(("", &name.version));
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &name.kind));
    if name.namespace.is_empty() {
        Api::all_with(context.client.clone(), &kind)
    } else {
        Api::namespaced_with(context.client.clone(), &name.namespace, &kind)
    }
}

/// The object as it is stored; `None` when the object or its kind does not exist.
pub async fn get(context: &Context, name: &Name) -> Result<Option<Value>, ReadError> {
    match lenient_requests::get_opt(&api(context, name), &name.name).await {
        // Objects of the API server always serialize.
        Ok(found) => Ok(found.map(|object| serde_json::to_value(&object).unwrap_or_default())),
        // For an unknown kind the API server answers in plain text, without the reason NotFound.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(source) => Err(ReadError::of("reading", name.display(), source)),
    }
}

/// Merge-patches an object as it was read. With `dry_run` nothing is stored, and the result of the patch is returned.
pub async fn patch(
    context: &Context,
    read: &Value,
    change: Value,
    dry_run: bool,
) -> Result<Value, WriteError> {
    let name = current(&Name::of(read));
    let mut change = change;
    // With the version that was read: after another change the object is read again first.
    change["metadata"]["resourceVersion"] = read["metadata"]["resourceVersion"].clone();
    let mut parameters = parameters();
    parameters.dry_run = dry_run;
    let patched = lenient_requests::patch(
        &api(context, &name),
        &name.name,
        &parameters,
        &Patch::Merge(change),
    )
    .await
    .map_err(|source| WriteError::of("writing", name.display(), source))?;
    Ok(serde_json::to_value(&patched).unwrap_or_default())
}

/// The patch that sets these fields of an object's spec, and deletes the keys in them that `wanted` does not have.
pub fn spec_change(read: &Value, wanted: &[(&str, &Value)]) -> Value {
    let mut change = json!({ "spec": {} });
    for (field, value) in wanted {
        if let Some(difference) = ::api::merge::difference(&read["spec"][*field], value) {
            change["spec"][*field] = difference;
        }
    }
    change
}
