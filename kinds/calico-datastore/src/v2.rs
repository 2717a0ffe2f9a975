//! What a store of Calico v2 holds, and reading it by the shape of its keys, in the order in which etcd v2 lists them.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// `true` while the nodes may change their kernels, `false` while they have to wait.
pub const READY: &str = "/calico/v1/Ready";
/// The version that wrote the store last.
pub const CALICO_VERSION: &str = "/calico/v1/config/CalicoVersion";

/// What etcd v2 holds below `/calico`: values by key, and directories (also empty ones).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// Values by their whole key: `/calico/v1/Ready`.
    pub values: BTreeMap<String, String>,
    /// Whole keys of directories, without a slash at the end. A node is there by its directory alone.
    pub directories: BTreeSet<String>,
}

/// One value, with the parts of its key that a pattern left open.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry<'tree> {
    pub(super) path: &'tree str,
    pub(super) parts: Vec<&'tree str>,
    pub(super) value: &'tree str,
}

impl Tree {
    /// These values, with every directory that their keys are in.
    pub fn of(values: BTreeMap<String, String>) -> Self {
        let directories = values.keys().flat_map(|key| parents(key)).collect();
        Self { values, directories }
    }

    /// The value of a key.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    /// The value of a key as Calico reads it: of a directory it is empty.
    pub(super) fn read(&self, key: &str) -> Option<&str> {
        let is_directory = self.directories.contains(key);
        self.value(key).or(is_directory.then_some(""))
    }

    /// The flag that holds the nodes back; `None` when it is not there. Whatever is not `true` is false to Calico.
    pub fn ready(&self) -> Option<bool> {
        self.read(READY).map(|text| text == "true")
    }

    /// The version that wrote the store last, as it is written.
    pub fn calico_version(&self) -> Option<&str> {
        self.read(CALICO_VERSION)
    }

    /// Whole keys of values that etcd lists nowhere, so that no Calico has ever read them.
    pub(super) fn hidden(&self) -> impl Iterator<Item = &str> {
        self.values
            .keys()
            .map(String::as_str)
            .filter(|key| is_hidden(key))
    }

    /// What is directly in a directory: names of values and of directories, sorted.
    pub(super) fn children(&self, directory: &str) -> BTreeSet<&str> {
        let name = |key: &'_ String| -> Option<usize> {
            let rest = key.strip_prefix(directory)?.strip_prefix('/')?;
            let length = rest.find('/').unwrap_or(rest.len());
            (length > 0).then_some(directory.len() + 1 + length)
        };
        self.values
            .keys()
            .chain(&self.directories)
            .filter(|key| !is_hidden(key))
            .filter_map(|key| name(key).and_then(|end| key.get(directory.len() + 1..end)))
            .collect()
    }

    /// Every value whose key has this shape, as etcd v2 lists them. In a pattern `*` is any part, `**` is all that is left,
    /// and a `?` at the end of a part is any character.
    pub(super) fn matching<'tree>(&'tree self, pattern: &str) -> Vec<Entry<'tree>> {
        let fixed = pattern.find(['*', '?']).unwrap_or(pattern.len());
        let prefix = &pattern[..fixed];
        let mut entries: Vec<Entry<'tree>> = self
            .values
            .range(prefix.to_owned()..)
            .take_while(|(path, _)| path.starts_with(prefix))
            .filter(|(path, _)| !is_hidden(path))
            .filter_map(|(path, value)| captures(path, pattern).map(|parts| Entry { path, parts, value }))
            .collect();
        entries.sort_by(|one, other| listed(one.path, other.path));
        entries
    }
}

/// etcd v2 leaves out of a list whatever begins with `_`, and all that is in it.
fn is_hidden(key: &str) -> bool {
    key.split('/').any(|part| part.starts_with('_'))
}

/// The order of etcd v2: directory by directory, in each by name. A name that goes on with `-` or `.` comes after the
/// shorter one with all that is in it, and not before.
fn listed(one: &str, other: &str) -> Ordering {
    one.split('/').cmp(other.split('/'))
}

fn parents(key: &str) -> impl Iterator<Item = String> {
    key.match_indices('/')
        .filter(|(place, _)| *place > 0)
        .map(|(place, _)| key[..place].to_owned())
}

fn captures<'path>(path: &'path str, pattern: &str) -> Option<Vec<&'path str>> {
    let mut parts = Vec::new();
    let mut rest = path;
    for wanted in pattern.split('/') {
        if wanted == "**" {
            parts.push(rest);
            return (!rest.is_empty()).then_some(parts);
        }
        let (part, after) = rest.split_once('/').unwrap_or((rest, ""));
        if wanted == "*" {
            if part.is_empty() {
                return None;
            }
            parts.push(part);
        } else if let Some(start) = wanted.strip_suffix('?') {
            let mut end = part.strip_prefix(start)?.chars();
            end.next()?;
            if end.next().is_some() {
                return None;
            }
        } else if part != wanted {
            return None;
        }
        rest = after;
    }
    rest.is_empty().then_some(parts)
}

#[cfg(test)]
#[path = "v2_tests.rs"]
mod tests;
