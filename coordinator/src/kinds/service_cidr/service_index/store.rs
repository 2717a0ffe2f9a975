//! The store behind the watches of Services and `EndpointSlice`s, with the writes of this process.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::runtime::watcher::Event;
use serde_json::Value;
use service_cidr::endpoints::{Digest, OF_SERVICE_LABEL, serves};
use service_cidr::entry::Entry;
use tokio::sync::{Notify, watch};

use super::{Index, Name, Slice};
use crate::kind_stores::KindStore;
use crate::lenient::plain;
use crate::watches::{OnDemand, first_lists};

/// The Services from the watches, with the writes of this process. Clones share the content.
#[derive(Clone, Default)]
pub struct ServiceStore(Arc<Shared>);

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    filled: Filled,
    watches: OnDemand,
}

struct Filled {
    services: watch::Sender<bool>,
    slices: watch::Sender<bool>,
}

impl Default for Filled {
    fn default() -> Self {
        Self {
            services: watch::Sender::new(false),
            slices: watch::Sender::new(false),
        }
    }
}

#[derive(Default)]
struct State {
    /// The index that readers get. Changed in place while no reader holds it, and copied otherwise.
    index: Arc<Index>,
    /// The names in an incomplete list.
    listed_services: Option<BTreeMap<Arc<Name>, Entry>>,
    listed_slices: Option<BTreeMap<Name, Slice>>,
    /// Services that this process has written since the list started.
    written: BTreeSet<Name>,
    /// Services that this process has deleted, with the deleted version: the watch may still deliver an earlier one.
    deleted: BTreeMap<Name, String>,
}

impl State {
    fn index(&mut self) -> &mut Index {
        Arc::make_mut(&mut self.index)
    }

    /// Stores a Service, unless a later version of it is known.
    fn keep(&mut self, entry: Entry) -> bool {
        let name = Arc::new((entry.namespace.clone(), entry.name.clone()));
        if let Some(deleted) = self.deleted.get(name.as_ref()) {
            if !is_later(&entry.version, deleted) {
                return false;
            }
            self.deleted.remove(name.as_ref());
        }
        let known = self.index.services.get(&name);
        if known
            .is_some_and(|known| known.version == entry.version || is_later(&known.version, &entry.version))
        {
            return false;
        }
        self.index().put(&name, entry);
        true
    }
}

/// Whether this version is later than that one. Versions of one resource are growing numbers (guaranteed since Kubernetes 1.35;
/// etcd has always counted so).
fn is_later(one: &str, other: &str) -> bool {
    let number = |text: &str| text.parse::<u128>().ok();
    matches!((number(one), number(other)), (Some(one), Some(other)) if one > other)
}

fn service_entry(mut service: Service) -> Entry {
    service.metadata.managed_fields = None;
    // Objects of the API server always serialize.
    Entry::of(&serde_json::to_value(&service).unwrap_or_default())
}

fn slice_of(slice: &EndpointSlice) -> Option<(Name, Slice)> {
    let metadata = &slice.metadata;
    let namespace = metadata.namespace.clone().unwrap_or_default();
    let service = metadata.labels.as_ref()?.get(OF_SERVICE_LABEL)?.clone();
    let name = (namespace.clone(), metadata.name.clone().unwrap_or_default());
    // Objects of the API server always serialize.
    let whole = serde_json::to_value(slice).unwrap_or_default();
    let slice = Slice {
        version: metadata.resource_version.clone().unwrap_or_default(),
        serves: serves(&whole),
        endpoints: Digest::of(&whole),
        size: whole.to_string().len(),
        service: Arc::new((namespace, service)),
    };
    Some((name, slice))
}

fn slice_name(slice: &EndpointSlice) -> Name {
    (
        slice.metadata.namespace.clone().unwrap_or_default(),
        slice.metadata.name.clone().unwrap_or_default(),
    )
}

impl KindStore for ServiceStore {
    fn stop(&self) {
        if self.0.watches.stop() {
            *self.state() = State::default();
            self.0.filled.services.send_replace(false);
            self.0.filled.slices.send_replace(false);
        }
    }
}

impl ServiceStore {
    /// A store with these Services and slices.
    pub fn of(
        services: impl IntoIterator<Item = Service>,
        slices: impl IntoIterator<Item = EndpointSlice>,
    ) -> Self {
        let store = Self::default();
        for service in services {
            store.keep_service(Event::Apply(service));
        }
        for slice in slices {
            store.keep_slice(Event::Apply(slice));
        }
        store.0.filled.services.send_replace(true);
        store.0.filled.slices.send_replace(true);
        store
    }

    /// The Services at this moment; `None` until the watches have delivered all of them. The first call starts the watches.
    pub async fn index(&self, client: &Client, changed: &Arc<Notify>) -> Option<Arc<Index>> {
        let filled = &self.0.filled;
        let is_filled = *filled.services.borrow() && *filled.slices.borrow();
        self.0
            .watches
            .start("Services", is_filled, client, changed, |watches| {
                let store = self.clone();
                watches.start("Service", move |event| store.keep_service(plain(event)));
                let store = self.clone();
                watches.start("EndpointSlice", move |event| store.keep_slice(plain(event)));
            });
        first_lists(&[&filled.services, &filled.slices]).await?;
        Some(Arc::clone(&self.state().index))
    }

    /// Stores a Service that this process has read or written.
    pub fn wrote(&self, service: &Value) {
        let entry = Entry::of(service);
        let mut state = self.state();
        if state.listed_services.is_some() {
            state
                .written
                .insert((entry.namespace.clone(), entry.name.clone()));
        }
        state.keep(entry);
    }

    /// Records that this process has deleted this Service, as it was read.
    pub fn deleted(&self, service: &Value) {
        let entry = Entry::of(service);
        let name = Arc::new((entry.namespace, entry.name));
        let mut state = self.state();
        let known = state.index.services.get(&name);
        // The watch may have delivered the deletion already, and a later Service of the same name.
        if known.is_some_and(|known| !is_later(&known.version, &entry.version)) {
            state.deleted.insert(name.as_ref().clone(), entry.version);
            state.index().remove(&name);
        }
    }

    fn keep_service(&self, event: Event<Service>) -> bool {
        let mut state = self.state();
        match event {
            Event::Init => {
                state.listed_services = Some(BTreeMap::new());
                state.written.clear();
                false
            }
            Event::InitApply(service) => {
                let entry = service_entry(service);
                let name = Arc::new((entry.namespace.clone(), entry.name.clone()));
                state.listed_services.get_or_insert_default().insert(name, entry);
                false
            }
            Event::InitDone => {
                let listed = state.listed_services.take().unwrap_or_default();
                let gone: Vec<Arc<Name>> = state
                    .index
                    .services
                    .keys()
                    .filter(|name| !listed.contains_key(*name))
                    .cloned()
                    .collect();
                for name in gone {
                    state.index().remove(&name);
                }
                // A list omits deleted objects and has the present state of all others, also after a restore of etcd to earlier
                // versions.
                state.deleted.clear();
                let written = std::mem::take(&mut state.written);
                for (name, entry) in listed {
                    if written.contains(name.as_ref()) {
                        state.keep(entry);
                    } else {
                        state.index().put(&name, entry);
                    }
                }
                drop(state);
                self.0.filled.services.send_replace(true);
                true
            }
            Event::Apply(service) => state.keep(service_entry(service)),
            Event::Delete(service) => {
                let entry = service_entry(service);
                let name = Arc::new((entry.namespace, entry.name));
                state.deleted.remove(name.as_ref());
                let known = state.index.services.get(&name);
                // A Service of the same name may have been created since.
                if known.is_some_and(|known| is_later(&known.version, &entry.version)) {
                    return false;
                }
                state.index().remove(&name)
            }
        }
    }

    fn keep_slice(&self, event: Event<EndpointSlice>) -> bool {
        let mut state = self.state();
        match event {
            Event::Init => {
                state.listed_slices = Some(BTreeMap::new());
                false
            }
            Event::InitApply(slice) => {
                state
                    .listed_slices
                    .get_or_insert_default()
                    .extend(slice_of(&slice));
                false
            }
            Event::InitDone => {
                let listed = state.listed_slices.take().unwrap_or_default();
                let index = state.index();
                let known: Vec<Name> = index.slices.keys().cloned().collect();
                for name in known {
                    if !listed.contains_key(&name) {
                        index.remove_slice(&name);
                    }
                }
                for (name, slice) in listed {
                    index.put_slice(name, slice);
                }
                drop(state);
                self.0.filled.slices.send_replace(true);
                true
            }
            Event::Apply(slice) => match slice_of(&slice) {
                Some((name, slice)) => state.index().put_slice(name, slice),
                None => state.index().remove_slice(&slice_name(&slice)),
            },
            Event::Delete(slice) => state.index().remove_slice(&slice_name(&slice)),
        }
    }

    // No code panics while it holds the lock: the content behind a poisoned lock is complete.
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
