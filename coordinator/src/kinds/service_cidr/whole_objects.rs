//! The whole objects of the Services in a pass: read by name, and read again after a change.

use std::collections::{BTreeMap, BTreeSet};

use futures::{StreamExt, TryStreamExt, stream};
use kube::Client;
use serde_json::Value;
use service_cidr::exchange::Role;
use service_cidr::objects::helper_name;

use super::objects::{get_service, get_slice};
use super::service_index::{Index, Name, ServiceStore};
use crate::read_error::ReadError;

/// Number of concurrent reads.
const AT_ONCE: usize = 16;

/// Whole objects, by namespace and name.
#[derive(Clone, Debug, Default)]
pub struct Whole {
    services: BTreeMap<Name, Value>,
    slices: BTreeMap<Name, Value>,
}

/// The names of a Service and of all helpers that it may have.
pub fn names(namespace: &str, name: &str) -> impl Iterator<Item = Name> {
    let helpers = Role::ALL.into_iter().map(move |role| helper_name(name, role));
    [name.to_owned()]
        .into_iter()
        .chain(helpers)
        .map(move |name| (namespace.to_owned(), name))
}

fn version(object: &Value) -> &str {
    object["metadata"]["resourceVersion"].as_str().unwrap_or_default()
}

impl Whole {
    /// Reads these Services and their helpers, and the slices of those without a selector, unless they are as new as the index.
    ///
    /// # Errors
    ///
    /// The API server refuses the read, does not answer, or sends an answer that cannot be read.
    pub async fn read(
        &mut self,
        client: &Client,
        store: &ServiceStore,
        index: &Index,
        services: impl IntoIterator<Item = Name>,
    ) -> Result<(), ReadError> {
        let names: Vec<Name> = services
            .into_iter()
            .flat_map(|(namespace, name)| names(&namespace, &name).collect::<Vec<_>>())
            .collect();
        let is_new = |known: Option<&Value>, wanted: &str| known.is_none_or(|known| version(known) != wanted);
        let mut changed = Vec::new();
        let mut changed_slices = Vec::new();
        for name in &names {
            let entry = index.service(name);
            match entry {
                Some(entry) if is_new(self.services.get(name), &entry.version) => changed.push(name.clone()),
                Some(_) => {}
                None => {
                    self.services.remove(name);
                }
            }
            // For Services with a selector the index has all that is needed.
            let copied = entry.filter(|entry| !entry.is_selected);
            for (name, slice) in copied.into_iter().flat_map(|_| index.slices(name)) {
                if is_new(self.slices.get(&name), &slice.version) {
                    changed_slices.push(name);
                }
            }
        }
        let read = stream::iter(changed).map(|name| async move {
            let found = get_service(client, &name.0, &name.1).await?;
            Ok::<_, ReadError>((name, found))
        });
        for (name, found) in read.buffer_unordered(AT_ONCE).try_collect::<Vec<_>>().await? {
            if let Some(service) = &found {
                store.wrote(service);
            }
            keep(&mut self.services, name, found);
        }
        let read = stream::iter(changed_slices).map(|name| async move {
            let found = get_slice(client, &name.0, &name.1).await?;
            Ok::<_, ReadError>((name, found))
        });
        for (name, found) in read.buffer_unordered(AT_ONCE).try_collect::<Vec<_>>().await? {
            keep(&mut self.slices, name, found);
        }
        Ok(())
    }

    /// A Service, if it was read.
    pub fn service(&self, name: &Name) -> Option<&Value> {
        self.services.get(name)
    }

    /// The slices of a Service that were read.
    pub fn slices(&self, index: &Index, service: &Name) -> Vec<Value> {
        let names = index.slices(service).map(|(name, _)| name);
        names.filter_map(|name| self.slices.get(&name).cloned()).collect()
    }

    /// Stores a written Service.
    pub fn wrote(&mut self, service: Value) {
        let text = |field: &str| service["metadata"][field].as_str().unwrap_or_default().to_owned();
        self.services.insert((text("namespace"), text("name")), service);
    }

    /// Drops this Service and its helpers, so that the next pass reads them again: they differ from what was expected.
    pub fn forget(&mut self, namespace: &str, name: &str) {
        for name in names(namespace, name) {
            self.services.remove(&name);
        }
    }

    /// Drops all but these Services, their helpers and the slices of both.
    pub fn keep_only(&mut self, index: &Index, services: &BTreeSet<Name>) {
        let kept: BTreeSet<Name> = services
            .iter()
            .flat_map(|(namespace, name)| names(namespace, name).collect::<Vec<_>>())
            .collect();
        self.services.retain(|name, _| kept.contains(name));
        let slices: BTreeSet<Name> = kept
            .iter()
            .flat_map(|name| index.slices(name).map(|(name, _)| name).collect::<Vec<_>>())
            .collect();
        self.slices.retain(|name, _| slices.contains(name));
    }
}

fn keep(known: &mut BTreeMap<Name, Value>, name: Name, found: Option<Value>) {
    match found {
        Some(object) => known.insert(name, object),
        None => known.remove(&name),
    };
}
