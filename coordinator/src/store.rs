//! Objects of one kind from a watch, without fields that no decision reads.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use api::{Migration, names};
use engine::owner::KUBE_SYSTEM;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Node, PodSpec, PodTemplateSpec};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ManagedFieldsEntry, ObjectMeta};
use kube::Resource;
use kube::core::DeserializeGuard;
use kube::runtime::watcher::Event;
use tokio::sync::watch;

use crate::facts;

/// A kind of object that is stored.
pub trait Stored: Resource<DynamicType = ()> {
    /// Drops fields that no decision reads.
    fn prune(&mut self);

    /// Whether decisions read the same from both objects: then a pass is not woken.
    fn has_same_content(&self, other: &Self) -> bool;
}

/// The objects. Clones share them.
pub struct Store<K>(Arc<Shared<K>>);

struct Shared<K> {
    objects: RwLock<Objects<K>>,
    filled: watch::Sender<bool>,
}

/// Namespace and name.
type Name = (String, String);

struct Objects<K> {
    known: BTreeMap<Name, Arc<K>>,
    /// Objects of an incomplete list. An unchanged one is shared with `known`.
    listed: Option<BTreeMap<Name, Arc<K>>>,
}

impl<K> Clone for Store<K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<K> Default for Store<K> {
    fn default() -> Self {
        Self(Arc::new(Shared {
            objects: RwLock::new(Objects {
                known: BTreeMap::new(),
                listed: None,
            }),
            filled: watch::Sender::new(false),
        }))
    }
}

impl<K: Stored> Store<K> {
    /// A store with these objects.
    pub fn of(objects: impl IntoIterator<Item = K>) -> Self {
        let store = Self::default();
        for object in objects {
            store.apply(Event::Apply(object));
        }
        store
    }

    /// The objects in the order of namespace and name.
    pub fn state(&self) -> Vec<Arc<K>> {
        self.read().known.values().cloned().collect()
    }

    /// Waits until the first list is complete.
    pub async fn filled(&self) {
        // The sender lives as long as the store.
        let _ = self.0.filled.subscribe().wait_for(|filled| *filled).await;
    }

    /// Applies an event of the watch. Returns whether decisions may read something new.
    pub fn apply(&self, event: Event<K>) -> bool {
        let mut objects = self.write();
        match event {
            Event::Init => {
                objects.listed = Some(BTreeMap::new());
                false
            }
            Event::InitApply(mut object) => {
                object.prune();
                let name = name(&object);
                let object = match objects.known.get(&name) {
                    Some(known) if is_the_same_version(known.as_ref(), &object) => Arc::clone(known),
                    Some(_) | None => Arc::new(object),
                };
                objects.listed.get_or_insert_default().insert(name, object);
                false
            }
            Event::InitDone => {
                let Some(listed) = objects.listed.take() else {
                    return false;
                };
                let is_first = !self.0.filled.send_replace(true);
                let is_same = listed.len() == objects.known.len()
                    && listed.iter().all(|(name, listed)| {
                        let known = objects.known.get(name);
                        known
                            .is_some_and(|known| Arc::ptr_eq(known, listed) || listed.has_same_content(known))
                    });
                objects.known = listed;
                is_first || !is_same
            }
            Event::Apply(mut object) => {
                object.prune();
                let name = name(&object);
                let known = objects.known.get(&name);
                let is_same = known.is_some_and(|known| object.has_same_content(known));
                objects.known.insert(name, Arc::new(object));
                !is_same
            }
            Event::Delete(object) => objects.known.remove(&name(&object)).is_some(),
        }
    }

    // No code panics while holding the lock: data behind a poisoned lock is consistent.
    fn read(&self) -> RwLockReadGuard<'_, Objects<K>> {
        self.0.objects.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Objects<K>> {
        self.0.objects.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn name<K: Resource<DynamicType = ()>>(object: &K) -> Name {
    let metadata = object.meta();
    (
        metadata.namespace.clone().unwrap_or_default(),
        metadata.name.clone().unwrap_or_default(),
    )
}

fn is_the_same_version<K: Resource<DynamicType = ()>>(one: &K, other: &K) -> bool {
    let (one, other) = (one.meta(), other.meta());
    one.uid == other.uid && one.resource_version.is_some() && one.resource_version == other.resource_version
}

/// Whether metadata is equal, apart from the version, and the time and author of writes.
pub fn same_metadata(one: &ObjectMeta, other: &ObjectMeta) -> bool {
    one.uid == other.uid
        && one.labels == other.labels
        && one.annotations == other.annotations
        && one.generation == other.generation
        && one.deletion_timestamp == other.deletion_timestamp
        && one.finalizers == other.finalizers
        && one.owner_references == other.owner_references
}

impl Stored for Node {
    fn prune(&mut self) {
        self.metadata.managed_fields = None;
        let Some(status) = &mut self.status else { return };
        status.capacity = None;
        status.config = None;
        status.daemon_endpoints = None;
        status.features = None;
        status.images = None;
        status.runtime_handlers = None;
        status.volumes_attached = None;
        status.volumes_in_use = None;
        let conditions = status.conditions.take().unwrap_or_default();
        let ready = conditions
            .into_iter()
            .find(|condition| condition.type_ == "Ready");
        // A heartbeat confirms an unchanged condition.
        status.conditions = ready.map(|mut ready| {
            ready.last_heartbeat_time = None;
            vec![ready]
        });
    }

    fn has_same_content(&self, other: &Self) -> bool {
        same_metadata(&self.metadata, &other.metadata)
            && self.spec == other.spec
            && self.status == other.status
    }
}

/// Largest template kept of a `DaemonSet` outside kube-system, in bytes of JSON. Templates of network plugins have at most half
/// of that.
const LARGEST_TEMPLATE: usize = 32 * 1024;
/// Longest value kept of labels and annotations, in bytes; and most labels, annotations and names of managers.
const LONGEST_VALUE: usize = 1024;
const MOST: usize = 64;

impl Stored for DaemonSet {
    /// Tenants create `DaemonSet`s, too: what a network plugin may have is kept, and larger content is dropped.
    fn prune(&mut self) {
        let metadata = &mut self.metadata;
        metadata.finalizers = None;
        metadata.owner_references = None;
        metadata.labels.as_mut().map(prune_values);
        metadata.annotations.as_mut().map(prune_values);
        // Only the names of managers are read, not their fields.
        let managers = metadata.managed_fields.iter().flatten().take(MOST);
        let managers = managers.map(|entry| ManagedFieldsEntry {
            manager: entry.manager.clone(),
            operation: entry.operation.clone(),
            subresource: entry.subresource.clone(),
            ..ManagedFieldsEntry::default()
        });
        metadata.managed_fields = Some(managers.collect()).filter(|managers: &Vec<_>| !managers.is_empty());
        let namespace = metadata.namespace.as_deref();
        if let Some(status) = &mut self.status {
            status.conditions = None;
        }
        let Some(spec) = &mut self.spec else { return };
        spec.selector = LabelSelector::default();
        spec.template.metadata = None;
        if namespace == Some(KUBE_SYSTEM) || bytes(&spec.template) <= LARGEST_TEMPLATE {
            return;
        }
        // Keep the label that replumb writes and removes in the node selector.
        let node_selector = spec.template.spec.take().and_then(|pod| pod.node_selector);
        let node_selector = node_selector.map(|mut labels| {
            labels.retain(|key, _| key == names::NODE_NETWORK_LABEL);
            labels
        });
        spec.template.spec = Some(PodSpec {
            node_selector,
            ..PodSpec::default()
        });
    }

    fn has_same_content(&self, other: &Self) -> bool {
        same_metadata(&self.metadata, &other.metadata)
            && self.metadata.managed_fields == other.metadata.managed_fields
            && self.spec == other.spec
            && self.status == other.status
    }
}

fn prune_values(values: &mut BTreeMap<String, String>) {
    let mut kept = 0;
    values.retain(|_, value| {
        kept += usize::from(value.len() <= LONGEST_VALUE);
        value.len() <= LONGEST_VALUE && kept <= MOST
    });
}

/// Length of the template as JSON.
fn bytes(template: &PodTemplateSpec) -> usize {
    // An object of the API always serializes.
    serde_json::to_vec(template).map_or(usize::MAX, |json| json.len())
}

impl Stored for PodDisruptionBudget {
    fn prune(&mut self) {
        let metadata = &mut self.metadata;
        metadata.managed_fields = None;
        metadata.labels = None;
        metadata.annotations = None;
        metadata.finalizers = None;
        metadata.owner_references = None;
        let spec = self.spec.as_mut();
        if let Some(selector) = spec.and_then(|spec| spec.selector.as_mut()) {
            let kept = facts::pods::selector(selector).limited();
            if kept.is_too_long() {
                *selector = facts::pods::label_selector(kept);
            }
        }
        if let Some(status) = &mut self.status {
            status.conditions = None;
            status.disrupted_pods = None;
        }
    }

    fn has_same_content(&self, other: &Self) -> bool {
        same_metadata(&self.metadata, &other.metadata)
            && self.spec == other.spec
            && self.status == other.status
    }
}

impl Stored for DeserializeGuard<Migration> {
    fn prune(&mut self) {
        self.meta_mut().managed_fields = None;
    }

    fn has_same_content(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Ok(one), Ok(other)) => {
                same_metadata(&one.metadata, &other.metadata)
                    && one.spec == other.spec
                    && one.status == other.status
            }
            (Ok(_) | Err(_), _) => false,
        }
    }
}

#[cfg(test)]
mod tests;
