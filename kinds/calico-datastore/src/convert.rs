//! The conversion of a whole store: what is written in v3, in order, and what there is to say.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::difference::Difference;
pub use super::key::ObjectKind;
use super::key::{V2Key, V3Name};
use super::note::Note;
use super::report::{Cause, Clash, Problem, Renamed};
use super::resource::Resource;
use super::v2::Tree;
use super::{
    bgp_configuration, bgp_peer, cluster_information, felix, host_endpoint, ip_pool, ipam, node, policy,
    profile, workload_endpoint,
};

/// What becomes of a store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversion {
    /// What is written, in the order of writing: resources in the order of Calico's own tool, then the settings of the address
    /// management, blocks, claims on them, and handles. No key twice.
    pub objects: Vec<Object>,
    /// Every object with a name of its own, as it was and as it is: the report `convertednames`.
    pub renamed: Vec<Renamed>,
    /// Objects with one name: the report `nameclashes`.
    pub clashes: Vec<Clash>,
    /// Values that cannot be converted: the report `conversionerrors`.
    pub conversion_errors: Vec<Problem>,
    /// Objects that v3 would refuse: the report `validationerrors`.
    pub validation_errors: Vec<Problem>,
    /// What else an operator should know.
    pub notes: Vec<Note>,
}

/// One value of the v3 store.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    /// Its key in etcd.
    pub key: String,
    /// What is written, but for `metadata.uid` and `metadata.creationTimestamp` of what has `metadata`.
    pub value: Value,
    /// What it is.
    pub kind: ObjectKind,
}

/// Converts a store. What cannot be converted is left out of the objects, so they are written only when the conversion is clean.
///
/// The same store gives the same conversion, also in order.
pub fn convert(tree: &Tree) -> Conversion {
    let mut conversion = Conversion::default();
    felix::of_all(tree, &mut conversion);
    cluster_information::convert(tree, &mut conversion);
    felix::of_nodes(tree, &mut conversion);
    bgp_configuration::convert(tree, &mut conversion);
    node::convert(tree, &mut conversion);
    bgp_peer::of_all(tree, &mut conversion);
    bgp_peer::of_nodes(tree, &mut conversion);
    host_endpoint::convert(tree, &mut conversion);
    ip_pool::convert(tree, &mut conversion);
    policy::convert(tree, &mut conversion);
    profile::convert(tree, &mut conversion);
    workload_endpoint::convert(tree, &mut conversion);
    ipam::convert(tree, &mut conversion);
    conversion.notes.extend(tree.hidden().map(|path| Note::NotRead {
        path: path.to_owned(),
        what: "etcd lists nothing whose name begins with an underscore, so Calico has never read it",
    }));
    conversion
}

impl Conversion {
    /// Whether nothing clashes and nothing is wrong: it may be written.
    pub fn is_clean(&self) -> bool {
        self.clashes.is_empty() && self.conversion_errors.is_empty() && self.validation_errors.is_empty()
    }

    /// Whether there is anything but address management. A store without it is the wrong one.
    pub fn has_resources(&self) -> bool {
        self.objects.iter().any(|object| object.kind.has_metadata())
    }

    /// Where Calico's own tool does otherwise with this store.
    pub fn differences(&self) -> BTreeSet<Difference> {
        let problems = self.conversion_errors.iter().chain(&self.validation_errors);
        problems
            .filter_map(|problem| problem.cause.difference())
            .chain(self.notes.iter().filter_map(Note::difference))
            .collect()
    }

    /// A value that cannot be converted.
    pub(super) fn fail(&mut self, key: V2Key, path: impl Into<String>, cause: Cause) {
        self.conversion_errors.push(Problem {
            key,
            path: path.into(),
            v3: None,
            cause,
        });
    }

    /// An object that needs no new name and that v3 does not check.
    pub(super) fn write(&mut self, resource: &Resource) {
        self.objects.push(resource.object());
    }

    /// The objects of one kind, whose names are told apart.
    pub(super) fn batch(&mut self) -> Batch<'_> {
        Batch {
            conversion: self,
            names: BTreeMap::new(),
        }
    }
}

/// Objects of one kind, one after the other.
pub(super) struct Batch<'conversion> {
    pub(super) conversion: &'conversion mut Conversion,
    /// Who had a name last.
    names: BTreeMap<V3Name, V2Key>,
}

impl Batch<'_> {
    /// What became of a value. It is written if it has its name alone and v3 takes it; otherwise everything that is wrong with it
    /// is said.
    pub(super) fn add(&mut self, key: V2Key, path: &str, converted: Result<Resource, Cause>) {
        let resource = match converted {
            Ok(resource) => resource,
            Err(cause) => return self.conversion.fail(key, path, cause),
        };
        let name = resource.name.clone();
        let earlier = self.names.insert(name.clone(), key.clone());
        let is_alone = earlier.is_none();
        if let Some(earlier) = earlier {
            self.conversion.clashes.push(Clash {
                later: key.clone(),
                earlier,
                name: name.clone(),
            });
        }
        if !resource.findings.is_empty() {
            self.conversion.validation_errors.push(Problem {
                key,
                path: path.to_owned(),
                v3: Some(name),
                cause: Cause::Invalid(resource.findings),
            });
        } else if is_alone {
            self.conversion.write(&resource);
            self.conversion.renamed.push(Renamed { from: key, to: name });
        }
        self.conversion.notes.extend(resource.notes);
    }
}

#[cfg(test)]
#[path = "convert_tests.rs"]
mod tests;
