//! The content of a store of Calico v2, read by patterns of keys, in the order of etcd v2.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

/// Key of the flag of v2: `true` while Calico works with v2, `false` while its nodes have to wait.
pub const READY: &str = "/calico/v1/Ready";
/// Key of the version that wrote the store last.
pub const CALICO_VERSION: &str = "/calico/v1/config/CalicoVersion";

/// Content of etcd v2 below `/calico`: values by key, and directories with empty ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    /// Values by their full key: `/calico/v1/Ready`.
    pub values: BTreeMap<String, String>,
    /// Full keys of directories, without a trailing slash. A directory alone is enough for a node to exist.
    pub directories: BTreeSet<String>,
}

/// One value, with the parts of its key that match the wildcards of a pattern.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Entry<'tree> {
    pub(super) path: &'tree str,
    pub(super) parts: Vec<&'tree str>,
    pub(super) value: &'tree str,
}

impl Tree {
    /// A tree of these values, with the directories of their keys.
    pub fn of(values: BTreeMap<String, String>) -> Self {
        let directories = values.keys().flat_map(|key| parents(key)).collect();
        Self { values, directories }
    }

    /// The value of a key.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.values.get(key).map(String::as_str)
    }

    /// The value of a key as Calico reads it: empty for a directory.
    pub(super) fn read(&self, key: &str) -> Option<&str> {
        let is_directory = self.directories.contains(key);
        self.value(key).or(is_directory.then_some(""))
    }

    /// The flag of v2; `None` when it does not exist. Calico takes every value except `true` for false.
    pub fn ready(&self) -> Option<bool> {
        self.read(READY).map(|text| text == "true")
    }

    /// The version that wrote the store last, as text.
    pub fn calico_version(&self) -> Option<&str> {
        self.read(CALICO_VERSION)
    }

    /// Full keys of values that etcd does not list, so that Calico has never read them.
    pub(super) fn hidden(&self) -> impl Iterator<Item = &str> {
        self.values
            .keys()
            .map(String::as_str)
            .filter(|key| is_hidden(key))
    }

    /// Names of values and directories directly in a directory, sorted.
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

    /// Every value whose key matches the pattern, in the order of etcd v2. In a pattern, `*` is any part, `**` is the rest of the
    /// key, and a `?` at the end of a part is any character.
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

/// Whether etcd v2 hides the key in lists: a part of it begins with `_`.
fn is_hidden(key: &str) -> bool {
    key.split('/').any(|part| part.starts_with('_'))
}

/// The order of etcd v2: directory by directory, by name in each. A name that continues with `-` or `.` comes after the shorter
/// name and all its children.
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
mod tests;
