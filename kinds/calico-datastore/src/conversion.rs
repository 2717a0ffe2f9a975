//! Result of the conversion of a store, and the batches that fill it.

use std::collections::{BTreeMap, BTreeSet};

use super::difference::Difference;
use super::key::{V2Key, V3Name};
use super::note::Note;
use super::object::Object;
use super::report::{Cause, Clash, Problem, Renamed};
use super::resource::Resource;

/// Result of the conversion of a store.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Conversion {
    /// Objects in the order of writing: resources in the order of Calico's own tool, then the settings of the IPAM, blocks, block
    /// affinities, and handles. No key occurs twice.
    pub objects: Vec<Object>,
    /// Every object with its old and its new name: the report `convertednames`.
    pub renamed: Vec<Renamed>,
    /// Objects that would get the same name: the report `nameclashes`.
    pub clashes: Vec<Clash>,
    /// Values that cannot be converted: the report `conversionerrors`.
    pub conversion_errors: Vec<Problem>,
    /// Objects that v3 would refuse: the report `validationerrors`.
    pub validation_errors: Vec<Problem>,
    /// Other information for the user.
    pub notes: Vec<Note>,
}

impl Conversion {
    /// Whether there are no clashes and no errors, so that the objects may be written.
    pub fn is_clean(&self) -> bool {
        self.clashes.is_empty() && self.conversion_errors.is_empty() && self.validation_errors.is_empty()
    }

    /// Whether there are other objects than those of the IPAM. A store without them is not Calico's.
    pub fn has_resources(&self) -> bool {
        self.objects.iter().any(|object| object.kind.has_metadata())
    }

    /// Differences from Calico's own tool for this store.
    pub fn differences(&self) -> BTreeSet<Difference> {
        let problems = self.conversion_errors.iter().chain(&self.validation_errors);
        problems
            .filter_map(|problem| problem.cause.difference())
            .chain(self.notes.iter().filter_map(Note::difference))
            .collect()
    }

    /// Reports a value that cannot be converted.
    pub(super) fn fail(&mut self, key: V2Key, path: impl Into<String>, cause: Cause) {
        self.conversion_errors.push(Problem {
            key,
            path: path.into(),
            v3: None,
            cause,
        });
    }

    /// Adds an object that keeps its name and that v3 does not validate.
    pub(super) fn write(&mut self, resource: &Resource) {
        self.objects.push(resource.object());
    }

    /// Starts a batch of objects of one kind, whose names have to differ.
    pub(super) fn batch(&mut self) -> Batch<'_> {
        Batch {
            conversion: self,
            names: BTreeMap::new(),
        }
    }
}

/// A batch of objects of one kind.
pub(super) struct Batch<'conversion> {
    pub(super) conversion: &'conversion mut Conversion,
    /// The last value with each name.
    names: BTreeMap<V3Name, V2Key>,
}

impl Batch<'_> {
    /// Adds the result for one value. The object is written if its name is unique and v3 accepts it; otherwise all problems are
    /// reported.
    pub(super) fn add(&mut self, key: V2Key, path: &str, converted: Result<Resource, Cause>) {
        let resource = match converted {
            Ok(resource) => resource,
            Err(cause) => return self.conversion.fail(key, path, cause),
        };
        let name = resource.name.clone();
        let earlier = self.names.insert(name.clone(), key.clone());
        let is_unique = earlier.is_none();
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
        } else if is_unique {
            self.conversion.write(&resource);
            self.conversion.renamed.push(Renamed { from: key, to: name });
        }
        self.conversion.notes.extend(resource.notes);
    }
}
