//! Every pod of the cluster as decisions see it, by node. Whole objects are dropped on arrival.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use engine::drain;
use engine::evict::PodName;
use engine::pods::Pods;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::runtime::watcher::Event;
use tokio::sync::watch;

use crate::facts;
use crate::facts::pods::PodDetails;
use crate::intern::Interned;
use crate::lenient::Lenient;
use crate::own_pods;

/// The pods of a watch. Clones share them.
#[derive(Clone)]
pub struct PodStore(Arc<Shared>);

struct Shared {
    /// The coordinator's namespace.
    namespace: String,
    state: Mutex<State>,
    filled: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    /// The index for readers. Changed in place while no reader holds it, otherwise copied node by node.
    index: Arc<Index>,
    /// The index of an incomplete list. A pod that is already known is shared with `index`.
    listed: Option<Index>,
    interned: Interned,
}

/// The pods at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Index {
    /// By node, in the order of namespace and name; pods without a node are under the empty name.
    by_node: BTreeMap<Arc<str>, Arc<Pods>>,
    /// Details of some pods, by namespace and name.
    more: BTreeMap<Name, Arc<PodDetails>>,
    /// Pods with unreadable fields, by namespace and name.
    odd: BTreeMap<Name, Arc<drain::Pod>>,
    /// Probe pods and traffic pods of the coordinator, by namespace and name: in none of the maps above.
    own: BTreeMap<Name, Arc<Pod>>,
}

/// Namespace and name.
type Name = (String, String);

/// One pod as it is stored.
enum Known {
    /// A probe pod or traffic pod of the coordinator.
    Own(Name, Box<Pod>),
    /// Any other pod.
    Other(Box<drain::Pod>, Option<PodDetails>),
}

static NONE: Pods = Pods::new();

impl Index {
    /// Pods without the coordinator's probe and traffic pods, in the order of node, namespace and name.
    pub fn pods(&self) -> Pods {
        self.by_node
            .values()
            .flat_map(|pods| pods.shared())
            .cloned()
            .collect()
    }

    /// Pods of one node, in the order of namespace and name.
    pub fn on(&self, node: &str) -> &Pods {
        self.by_node.get(node).map_or(&NONE, AsRef::as_ref)
    }

    /// Nodes with pods, and their pods.
    pub fn by_node(&self) -> impl Iterator<Item = (&str, &Pods)> {
        self.by_node.iter().map(|(node, pods)| (&**node, pods.as_ref()))
    }

    /// Namespaces and names of pods with details, and the details.
    pub fn more(&self) -> impl Iterator<Item = (&Name, &PodDetails)> {
        self.more.iter().map(|(name, more)| (name, more.as_ref()))
    }

    /// Details of this pod.
    pub fn details_of(&self, pod: &drain::Pod) -> Option<&PodDetails> {
        self.more.get(&name_of(pod)).map(AsRef::as_ref)
    }

    /// Pods with unreadable fields, in the order of namespace and name.
    pub fn unreadable(&self) -> impl Iterator<Item = &drain::Pod> {
        self.odd.values().map(AsRef::as_ref)
    }

    /// Probe pods and traffic pods of the coordinator.
    pub fn own(&self) -> impl Iterator<Item = &Arc<Pod>> {
        self.own.values()
    }

    /// Whether the index has exactly this content for the pod.
    fn says(&self, pod: &drain::Pod, more: Option<&PodDetails>) -> bool {
        self.same(pod).is_some() && self.details_of(pod) == more
    }

    /// The known pod, if it is equal to this one.
    fn same(&self, pod: &drain::Pod) -> Option<&Arc<drain::Pod>> {
        let here = self.on(&pod.node);
        let place = here.place(&pod.namespace, &pod.name).ok()?;
        here.shared().nth(place).filter(|known| ***known == *pod)
    }

    fn put(&mut self, pod: Arc<drain::Pod>, more: Option<Arc<PodDetails>>) {
        let name = name_of(&pod);
        self.own.remove(&name);
        match more {
            Some(more) => self.more.insert(name, more),
            None => self.more.remove(&name),
        };
        if !pod.node.is_empty() {
            // The pod was bound to its node.
            self.take("", &pod.namespace, &pod.name);
        } else if !pod.not_understood.is_empty() {
            // The unreadable field may be its node.
            self.take_anywhere(&pod.namespace, &pod.name, |_| true);
        }
        if pod.not_understood.is_empty() {
            self.odd.remove(&name_of(&pod));
        } else {
            self.odd.insert(name_of(&pod), Arc::clone(&pod));
        }
        let here = match self.by_node.get_mut(pod.node.as_str()) {
            Some(here) => here,
            None => self.by_node.entry(Arc::from(pod.node.as_str())).or_default(),
        };
        let here = Arc::make_mut(here);
        match here.place(&pod.namespace, &pod.name) {
            Ok(place) => here.replace(place, pod),
            Err(place) => here.insert(place, pod),
        }
    }

    fn put_own(&mut self, name: Name, pod: Pod) {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone());
        self.take(&node.unwrap_or_default(), &name.0, &name.1);
        self.more.remove(&name);
        self.own.insert(name, Arc::new(pod));
    }

    /// Removes a pod from any node if `meant` accepts it; returns whether it was there.
    fn take_anywhere(&mut self, namespace: &str, name: &str, meant: impl Fn(&drain::Pod) -> bool) -> bool {
        let mut nodes = self.by_node.iter();
        let node = nodes.find_map(|(node, pods)| {
            let place = pods.place(namespace, name).ok()?;
            let is_meant = pods.shared().nth(place).is_some_and(|pod| meant(pod));
            is_meant.then(|| Arc::clone(node))
        });
        node.is_some_and(|node| self.take(&node, namespace, name))
    }

    /// Removes a pod from this node; returns whether it was there.
    fn take(&mut self, node: &str, namespace: &str, name: &str) -> bool {
        let Some(here) = self.by_node.get_mut(node) else {
            return false;
        };
        let Ok(place) = here.place(namespace, name) else {
            return false;
        };
        let here = Arc::make_mut(here);
        let taken = here.remove(place);
        if here.is_empty() {
            self.by_node.remove(node);
        }
        if !taken.not_understood.is_empty() {
            self.odd.remove(&name_of(&taken));
        }
        true
    }
}

fn name_of(pod: &drain::Pod) -> Name {
    (pod.namespace.clone(), pod.name.clone())
}

impl State {
    fn apply(&mut self, known: Known) -> bool {
        match known {
            Known::Own(name, pod) => Arc::make_mut(&mut self.index).put_own(name, *pod),
            Known::Other(pod, more) => {
                if self.index.says(&pod, more.as_ref()) {
                    return false;
                }
                let pod = self.share(*pod);
                Arc::make_mut(&mut self.index).put(pod, more.map(Arc::new));
            }
        }
        true
    }

    fn list(&mut self, known: Known) {
        match known {
            Known::Own(name, pod) => self.listed.get_or_insert_default().put_own(name, *pod),
            Known::Other(pod, more) => {
                let pod = match self.index.same(&pod) {
                    Some(same) => Arc::clone(same),
                    None => self.share(*pod),
                };
                self.listed.get_or_insert_default().put(pod, more.map(Arc::new));
            }
        }
    }

    fn delete(&mut self, known: &Known) -> bool {
        let index = Arc::make_mut(&mut self.index);
        match known {
            Known::Own(name, _) => index.own.remove(name).is_some(),
            Known::Other(pod, _) => {
                index.more.remove(&name_of(pod));
                // The last event of it may have its node, or unreadable fields.
                index.take(&pod.node, &pod.namespace, &pod.name)
                    || index.take_anywhere(&pod.namespace, &pod.name, |known| known.uid == pod.uid)
            }
        }
    }

    fn share(&mut self, mut pod: drain::Pod) -> Arc<drain::Pod> {
        pod.labels = self.interned.labels(&pod.labels);
        pod.ports = self.interned.ports(&pod.ports);
        Arc::new(pod)
    }
}

impl PodStore {
    /// An empty store. `namespace` is the coordinator's own.
    pub fn new(namespace: &str) -> Self {
        Self(Arc::new(Shared {
            namespace: namespace.to_owned(),
            state: Mutex::default(),
            filled: watch::Sender::new(false),
        }))
    }

    /// A store with these pods.
    pub fn of(namespace: &str, pods: impl IntoIterator<Item = impl Into<Lenient<Pod>>>) -> Self {
        let store = Self::new(namespace);
        for pod in pods {
            store.keep(Event::Apply(pod.into()));
        }
        store
    }

    /// The current pods. Later events do not change it.
    pub fn index(&self) -> Arc<Index> {
        Arc::clone(&self.lock().index)
    }

    /// Waits until the first list is complete.
    pub async fn filled(&self) {
        // The sender lives as long as the store.
        let _ = self.0.filled.subscribe().wait_for(|filled| *filled).await;
    }

    /// Applies an event of the watch. Returns whether decisions may read something new.
    pub fn keep(&self, event: Event<Lenient<Pod>>) -> bool {
        let mut state = self.lock();
        match event {
            Event::Init => {
                state.listed = Some(Index::default());
                false
            }
            Event::InitApply(pod) => {
                let known = self.known(pod);
                state.list(known);
                false
            }
            Event::InitDone => {
                let Some(listed) = state.listed.take() else {
                    return false;
                };
                let is_first = !self.0.filled.send_replace(true);
                let is_same = listed == *state.index;
                state.index = Arc::new(listed);
                state.interned.forget_unused();
                is_first || !is_same
            }
            Event::Apply(pod) => {
                let known = self.known(pod);
                state.apply(known)
            }
            Event::Delete(pod) => {
                let known = self.known(pod);
                state.delete(&known)
            }
        }
    }

    /// Removes a pod that the API server does not have, independent of the watch. Returns whether it was there.
    pub fn forget(&self, pod: &PodName) -> bool {
        let mut state = self.lock();
        let index = Arc::make_mut(&mut state.index);
        let was_there = index.take_anywhere(&pod.namespace, &pod.name, |known| known.uid == pod.uid);
        if was_there {
            index.more.remove(&(pod.namespace.clone(), pod.name.clone()));
        }
        was_there
    }

    fn known(&self, read: Lenient<Pod>) -> Known {
        if own_pods::is_own(&read.object, &self.0.namespace) {
            let pod = facts::pods::pruned(read.object);
            let name = (pod.namespace().unwrap_or_default(), pod.name_any());
            return Known::Own(name, Box::new(pod));
        }
        Known::Other(
            Box::new(facts::pods::read(&read)),
            facts::pods::details(&read.object),
        )
    }

    // No code panics while holding the lock: data behind a poisoned lock is consistent.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
