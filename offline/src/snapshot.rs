//! The document: a whole cluster, or a known one with what differs.

mod base;
mod complete;
mod document;
mod error;
mod hosts;
mod identity;
mod object;
mod owned_pods;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use api::merge;
pub use document::{Coordinator, Document, KIND, check_header};
pub use error::SnapshotError;
use identity::{Identity, discovery_path};
use memory_api::Objects;
pub(crate) use object::{is_ready, ready};
pub(crate) use owned_pods::{Addresses, may_run_on};

/// A cluster in memory: objects, reports of hosts, and what the API server serves.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    objects: BTreeMap<Identity, Value>,
    /// Changes of the status of the `NodeMigration` of each node, in order: those of `*` for every node, then those of the node.
    hosts: BTreeMap<String, Vec<Value>>,
    /// Resources by group and version: `crd.projectcalico.org/v1` → `ippools`.
    served: BTreeMap<String, BTreeSet<String>>,
    /// Whether pods of controllers and facts of hosts are derived from the other objects where they are missing.
    derived: bool,
    coordinator: Coordinator,
}

impl Snapshot {
    /// Reads a document of one file. `text` is YAML or JSON.
    ///
    /// # Errors
    ///
    /// The text is not a snapshot, or it names something that does not exist; the error names the place.
    pub fn parse(text: &str) -> Result<Self, SnapshotError> {
        Self::of(Document::parse(text)?)
    }

    /// The cluster of a document.
    ///
    /// # Errors
    ///
    /// The base does not exist, or a patch is for an object that does not exist.
    pub fn of(document: Document) -> Result<Self, SnapshotError> {
        let mut snapshot = match &document.base {
            Some(name) => Self::of(base::base(name)?)?,
            None => Self::default(),
        };
        snapshot.apply(document)?;
        Ok(snapshot)
    }

    /// Applies what differs.
    ///
    /// # Errors
    ///
    /// A patch or an absence is for an object that does not exist.
    pub fn apply(&mut self, document: Document) -> Result<(), SnapshotError> {
        self.derived |= document.derived;
        if let Some(coordinator) = document.coordinator {
            self.coordinator = coordinator;
        }
        for object in document.objects {
            self.objects.insert(Identity::of(&object)?, object);
        }
        for patch in document.patches {
            let wanted = patch.target.matching(&self.objects);
            if wanted.is_empty() {
                return Err(SnapshotError::NoSuchObject {
                    field: "patches",
                    target: patch.target.to_string(),
                });
            }
            for identity in wanted {
                if let Some(object) = self.objects.get_mut(&identity) {
                    merge::apply(object, &patch.patch);
                    if Identity::of(object).as_ref() != Ok(&identity) {
                        return Err(SnapshotError::Patch {
                            target: patch.target.to_string(),
                        });
                    }
                }
            }
        }
        for target in document.absent {
            let wanted = target.matching(&self.objects);
            if wanted.is_empty() {
                return Err(SnapshotError::NoSuchObject {
                    field: "absent",
                    target: target.to_string(),
                });
            }
            self.objects.retain(|identity, _| !wanted.contains(identity));
        }
        for (host, report) in document.hosts {
            self.hosts.entry(host).or_default().push(report);
        }
        for (version, resources) in document.served {
            match resources {
                Some(resources) => self.served.insert(version, resources),
                None => self.served.remove(&version),
            };
        }
        Ok(())
    }

    /// Puts an object.
    ///
    /// # Errors
    ///
    /// The object has no identity, or is a Secret.
    pub fn put(&mut self, object: Value) -> Result<(), SnapshotError> {
        self.objects.insert(Identity::of(&object)?, object);
        Ok(())
    }

    /// Where the coordinator runs.
    pub fn coordinator(&self) -> &Coordinator {
        &self.coordinator
    }

    /// The objects of an API server, and the report of each host by the name of its node.
    ///
    /// # Errors
    ///
    /// A report of a host cannot be completed from the objects.
    pub fn complete(mut self) -> Result<(Objects, BTreeMap<String, Value>), SnapshotError> {
        if self.derived {
            complete::complete(&mut self.objects);
        }
        let reports = hosts::reports(&self.hosts, &self.objects, self.derived)?;
        if self.derived {
            complete::add_agents(&mut self.objects, reports.keys());
        }
        let mut objects = Objects::serving(identity::SERVED);
        for (version, resources) in &self.served {
            let collections = resources
                .iter()
                .map(|resource| format!("/apis/{version}/{resource}"))
                .collect::<Vec<_>>();
            objects.serve(collections.iter().map(String::as_str));
            objects.put(&discovery_path(version), discovery(version, resources));
        }
        for (identity, object) in self.objects {
            objects.serve([identity.collection().as_str()]);
            objects.put(&identity.path(), object);
        }
        Ok((objects, reports))
    }
}

/// What discovery says of a group and version.
fn discovery(version: &str, resources: &BTreeSet<String>) -> Value {
    let resources: Vec<Value> = resources
        .iter()
        .map(|name| json!({ "name": name, "singularName": "", "namespaced": false, "kind": name, "verbs": ["get", "list"] }))
        .collect();
    json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": resources })
}

#[cfg(test)]
mod tests;
