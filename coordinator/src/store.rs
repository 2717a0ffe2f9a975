//! Objects of one kind as a watch tells of them, without what no decision reads.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use api::Migration;
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::DeserializeGuard;
use kube::runtime::watcher::Event;
use tokio::sync::watch;

/// A kind that is kept.
pub trait Kept: Resource<DynamicType = ()> {
    /// Drops what no decision reads.
    fn prune(&mut self);

    /// Whether decisions read the same from both: one that was only written again wakes no pass.
    fn says_the_same(&self, other: &Self) -> bool;
}

/// The objects. Cloning shares them.
pub struct Store<K>(Arc<Shared<K>>);

struct Shared<K> {
    objects: RwLock<Objects<K>>,
    filled: watch::Sender<bool>,
}

/// Namespace and name.
type Name = (String, String);

struct Objects<K> {
    known: BTreeMap<Name, Arc<K>>,
    /// Those of a list that has not come to its end. One that is known already is shared with `known`.
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

impl<K: Kept> Store<K> {
    /// Objects that somebody else has.
    pub fn of(objects: impl IntoIterator<Item = K>) -> Self {
        let store = Self::default();
        for object in objects {
            store.keep(Event::Apply(object));
        }
        store
    }

    /// The objects in order of namespace and name.
    pub fn state(&self) -> Vec<Arc<K>> {
        self.read().known.values().cloned().collect()
    }

    /// Waits until the first list has come to its end.
    pub async fn filled(&self) {
        // The sender lives as long as the store does.
        let _ = self.0.filled.subscribe().wait_for(|filled| *filled).await;
    }

    /// Takes in what the watch tells. Whether decisions may read something else now.
    pub fn keep(&self, event: Event<K>) -> bool {
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
                        known.is_some_and(|known| Arc::ptr_eq(known, listed) || listed.says_the_same(known))
                    });
                objects.known = listed;
                is_first || !is_same
            }
            Event::Apply(mut object) => {
                object.prune();
                let name = name(&object);
                let known = objects.known.get(&name);
                let is_same = known.is_some_and(|known| object.says_the_same(known));
                objects.known.insert(name, Arc::new(object));
                !is_same
            }
            Event::Delete(object) => objects.known.remove(&name(&object)).is_some(),
        }
    }

    // Nothing panics while it holds the lock: what is behind a poisoned one is whole.
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

/// All but the version, and when and by whom it was written.
pub fn same_metadata(one: &ObjectMeta, other: &ObjectMeta) -> bool {
    one.uid == other.uid
        && one.labels == other.labels
        && one.annotations == other.annotations
        && one.generation == other.generation
        && one.deletion_timestamp == other.deletion_timestamp
        && one.finalizers == other.finalizers
        && one.owner_references == other.owner_references
}

impl Kept for Node {
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
        // It says only that the kubelet still says the same.
        status.conditions = ready.map(|mut ready| {
            ready.last_heartbeat_time = None;
            vec![ready]
        });
    }

    fn says_the_same(&self, other: &Self) -> bool {
        same_metadata(&self.metadata, &other.metadata)
            && self.spec == other.spec
            && self.status == other.status
    }
}

impl Kept for DaemonSet {
    // There are few, and who manages the fields of one is asked.
    fn prune(&mut self) {}

    fn says_the_same(&self, other: &Self) -> bool {
        same_metadata(&self.metadata, &other.metadata)
            && self.metadata.managed_fields == other.metadata.managed_fields
            && self.spec == other.spec
            && self.status == other.status
    }
}

impl Kept for PodDisruptionBudget {
    fn prune(&mut self) {
        self.metadata.managed_fields = None;
        if let Some(status) = &mut self.status {
            status.conditions = None;
            status.disrupted_pods = None;
        }
    }

    fn says_the_same(&self, other: &Self) -> bool {
        same_metadata(&self.metadata, &other.metadata)
            && self.spec == other.spec
            && self.status == other.status
    }
}

impl Kept for DeserializeGuard<Migration> {
    fn prune(&mut self) {
        self.meta_mut().managed_fields = None;
    }

    fn says_the_same(&self, other: &Self) -> bool {
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
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::facts;

    fn node(name: &str, version: &str, change: impl FnOnce(&mut Value)) -> Node {
        let mut object = json!({
            "metadata": { "name": name, "uid": name, "resourceVersion": version, "managedFields": [{ "manager": "kubelet" }] },
            "status": {
                "conditions": [
                    { "type": "MemoryPressure", "status": "False" },
                    { "type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:00:00Z" },
                ],
                "images": [{ "names": ["a"], "sizeBytes": 1 }],
                "capacity": { "cpu": "4" },
                "allocatable": { "cpu": "4" },
            },
        });
        change(&mut object);
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn what_no_decision_reads_is_let_go() {
        let store = Store::of([node("a", "1", |_| {})]);
        let [kept] = store.state().try_into().unwrap();
        assert_eq!(kept.metadata.managed_fields, None);
        let status = kept.status.as_ref().unwrap();
        assert_eq!((&status.images, &status.capacity), (&None, &None));
        assert!(status.allocatable.is_some());
        assert!(facts::nodes::is_ready(&kept));
        assert_eq!(status.conditions.as_ref().unwrap().len(), 1);
    }

    #[test]
    fn a_heartbeat_wakes_nobody_and_its_version_is_known() {
        let store = Store::of([node("a", "1", |_| {})]);
        let beat = |object: &mut Value| {
            object["status"]["conditions"][1]["lastHeartbeatTime"] = json!("2026-01-01T00:00:10Z");
        };
        assert!(!store.keep(Event::Apply(node("a", "2", beat))));
        // Who patches the Node names the version that it has now.
        assert_eq!(store.state()[0].metadata.resource_version.as_deref(), Some("2"));
        let cordon = |object: &mut Value| object["spec"] = json!({ "unschedulable": true });
        assert!(store.keep(Event::Apply(node("a", "3", cordon))));
    }

    #[test]
    fn a_new_list_shares_what_is_known() {
        let store = Store::of([node("a", "1", |_| {}), node("b", "1", |_| {})]);
        let before = store.state();
        store.keep(Event::Init);
        store.keep(Event::InitApply(node("a", "1", |_| {})));
        assert_eq!(store.state().len(), 2, "the list has not come to its end");
        assert!(store.keep(Event::InitDone));
        let after = store.state();
        assert_eq!(after.len(), 1);
        assert!(Arc::ptr_eq(&before[0], &after[0]));
        assert!(store.keep(Event::Delete(node("a", "2", |_| {}))));
        assert!(!store.keep(Event::Delete(node("a", "2", |_| {}))));
    }

    #[tokio::test]
    async fn it_is_filled_when_the_first_list_ends() {
        let store = Store::<Node>::default();
        store.keep(Event::Init);
        assert!(!*store.0.filled.borrow());
        // A cluster without any is filled, too, and whoever waits for it is told.
        assert!(store.keep(Event::InitDone));
        store.filled().await;
    }
}
