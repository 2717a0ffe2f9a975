//! Calico's objects in etcd v3: each is one key, written or deleted only at the revision that was read.

use calico::etcd::{Id, Layout, uid};
use datastore::etcd3::{Change, Condition, Entry, Etcd3};
use kube::api::DynamicObject;
use kube::{ResourceExt, core::ObjectMeta};
use serde_json::Value;

use super::error::CalicoStoreError;
use super::{BLOCK_AFFINITY, Created, IPAM_BLOCK, IPAM_CONFIG, IPAM_HANDLE, Kind, NODE};
use crate::clock;
use crate::write::WriteError;

fn layout(kind: Kind) -> Layout {
    match kind {
        IPAM_BLOCK => Layout::Blocks,
        BLOCK_AFFINITY => Layout::Affinities,
        IPAM_HANDLE => Layout::Handles,
        IPAM_CONFIG => Layout::IpamConfig,
        Kind(name, plural) => Layout::Resources(name, plural),
    }
}

/// Collects what `choose` returns for each object of the kind.
pub(super) async fn each<T>(
    store: &Etcd3,
    kind: Kind,
    mut choose: impl FnMut(DynamicObject) -> Option<T>,
) -> Result<Vec<T>, CalicoStoreError> {
    let layout = layout(kind);
    let choose = |entry| choose(object(layout, &entry));
    Ok(store.each(&layout.prefix(), choose).await?)
}

/// One object, if it exists.
pub(super) async fn get(
    store: &Etcd3,
    kind: Kind,
    id: &Id,
) -> Result<Option<DynamicObject>, CalicoStoreError> {
    let layout = layout(kind);
    let found = store.get(&layout.key(id)).await?;
    Ok(found.map(|entry| object(layout, &entry)))
}

/// The id of this object.
pub(super) fn id(kind: Kind, read: &DynamicObject) -> Id {
    // An object that was made of JSON always serializes.
    layout(kind).id(&serde_json::to_value(read).unwrap_or_default())
}

/// Creates the object; an existing object is not an error.
pub(super) async fn create(store: &Etcd3, kind: Kind, object: &Value) -> Result<Created, CalicoStoreError> {
    let layout = layout(kind);
    let key = layout.key(&layout.id(object));
    let now = clock::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let value = layout.created(object, &uid(&key, &clock::now().to_string()), &now);
    let conditions = [Condition::Created {
        key: key.clone(),
        at: 0,
    }];
    let attempt = format!("creating {} {}", kind.0, layout.id(object).name());
    let is_made = store.commit(&attempt, &conditions, &[put(key, &value)]).await?;
    Ok(if is_made { Created::Now } else { Created::Before })
}

/// Merges `change` into the spec of the object as read. Unknown fields of the value stay.
pub(super) async fn patch_spec(
    store: &Etcd3,
    kind: Kind,
    read: &DynamicObject,
    change: &Value,
) -> Result<(), CalicoStoreError> {
    let layout = layout(kind);
    let (entry, before) = as_read(store, kind, read).await?;
    let mut spec = object(layout, &entry).data["spec"].take();
    api::merge::apply(&mut spec, change);
    let value = layout.with_spec(&before, &spec);
    write(store, kind, read, &entry, value).await
}

/// Collects what `choose` returns for each of Calico's Nodes, which exist in etcd only.
///
/// # Errors
///
/// etcd does not answer, refuses the read, or sends an answer that cannot be read.
pub async fn each_node<T>(
    store: &Etcd3,
    choose: impl FnMut(DynamicObject) -> Option<T>,
) -> Result<Vec<T>, CalicoStoreError> {
    each(store, NODE, choose).await
}

/// The Node of this name.
///
/// # Errors
///
/// etcd does not answer, refuses the read, or sends an answer that cannot be read.
pub async fn node(store: &Etcd3, name: &str) -> Result<Option<DynamicObject>, CalicoStoreError> {
    get(store, NODE, &Id::Named(name.to_owned())).await
}

/// Merges `change`, of metadata and spec, into a Node as read.
///
/// # Errors
///
/// The Node changed since it was read, or etcd does not answer or refuses the write.
pub async fn patch_node(store: &Etcd3, read: &DynamicObject, change: &Value) -> Result<(), CalicoStoreError> {
    let (entry, mut value) = as_read(store, NODE, read).await?;
    api::merge::apply(&mut value, change);
    write(store, NODE, read, &entry, value).await
}

/// The entry of an object and its value, if it was not written since it was read.
async fn as_read(
    store: &Etcd3,
    kind: Kind,
    read: &DynamicObject,
) -> Result<(Entry, Value), CalicoStoreError> {
    let conflict = || conflict("writing", kind, read);
    let key = layout(kind).key(&id(kind, read));
    let entry = store.get(&key).await?.ok_or_else(conflict)?;
    if read.metadata.resource_version.as_deref() != Some(entry.revision.to_string().as_str()) {
        return Err(conflict());
    }
    // An object was read at this revision, so the value is JSON.
    let value = entry.json().map_err(|_| conflict())?;
    Ok((entry, value))
}

/// Writes the value, if the entry was not written since it was read.
async fn write(
    store: &Etcd3,
    kind: Kind,
    read: &DynamicObject,
    entry: &Entry,
    value: Value,
) -> Result<(), CalicoStoreError> {
    let attempt = format!("writing {} {}", kind.0, read.name_any());
    let conditions = [Condition::Modified {
        key: entry.key.clone(),
        at: entry.revision,
    }];
    if store
        .commit(&attempt, &conditions, &[put(entry.key.clone(), &value)])
        .await?
    {
        Ok(())
    } else {
        Err(conflict("writing", kind, read))
    }
}

/// Deletes the object as read; a missing object is not an error.
pub(super) async fn delete(store: &Etcd3, kind: Kind, read: &DynamicObject) -> Result<(), CalicoStoreError> {
    let key = layout(kind).key(&id(kind, read));
    let revision = read.metadata.resource_version.as_deref();
    let at = revision
        .and_then(|revision| revision.parse().ok())
        .ok_or_else(|| conflict("deleting", kind, read))?;
    let attempt = format!("deleting {} {}", kind.0, read.name_any());
    let conditions = [Condition::Modified { key: key.clone(), at }];
    let change = Change::Delete { key: key.clone() };
    if store.commit(&attempt, &conditions, &[change]).await? || store.get(&key).await?.is_none() {
        Ok(())
    } else {
        Err(conflict("deleting", kind, read))
    }
}

fn put(key: String, value: &Value) -> Change {
    Change::Put {
        key,
        value: value.to_string().into_bytes(),
        lease: None,
    }
}

fn conflict(attempt: &str, kind: Kind, read: &DynamicObject) -> CalicoStoreError {
    CalicoStoreError::Write(WriteError::Conflict {
        attempt: attempt.to_owned(),
        object: format!("{} {}", kind.0, read.name_any()),
    })
}

/// An entry as an object; its resource version is the revision of its last write.
fn object(layout: Layout, entry: &Entry) -> DynamicObject {
    let read = layout.object(&entry.key, &entry.value);
    let name = read["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    // Unreadable metadata hides no object: the facts are in its spec.
    let mut metadata: ObjectMeta =
        serde_json::from_value(read["metadata"].clone()).unwrap_or_else(|_| ObjectMeta {
            name: Some(name),
            ..ObjectMeta::default()
        });
    metadata.resource_version = Some(entry.revision.to_string());
    DynamicObject {
        types: None,
        metadata,
        data: serde_json::json!({ "spec": read["spec"] }),
    }
}

#[cfg(test)]
mod tests;
