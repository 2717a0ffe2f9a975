//! `MigrationRecord`: what a Migration has to remember and is too much for its own object. There are as many as it takes, so that
//! no object grows with the cluster.

#![expect(
    clippy::duplicated_attributes,
    reason = "each printcolumn has a type of its own"
)]

use std::net::IpAddr;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use engine::document::{Document, NodeActions};
use service_cidr::host::Question;
use service_cidr::side::Sides;
use service_cidr::subjects::Book;

use crate::migration::{Action, Plan};
use crate::node_migration::NodeMigration;

/// What one record holds at most, in bytes of JSON. With what the API server writes beside it an object stays below 256 KiB.
pub const MOST_BYTES: usize = 128 * 1024;

/// A part of what a Migration has to remember; written by the coordinator alone, deleted with the Migration.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "replumb.dev",
    version = "v1alpha1",
    kind = "MigrationRecord",
    plural = "migrationrecords",
    shortname = "mrec",
    derive = "PartialEq",
    printcolumn(name = "Migration", type_ = "string", json_path = ".spec.migration"),
    printcolumn(name = "Holds", type_ = "string", json_path = ".spec.holds"),
    printcolumn(name = "Part", type_ = "integer", json_path = ".spec.part")
)]
#[x_kube(validation = Rule::new("self.migration == oldSelf.migration && self.holds == oldSelf.holds && self.part == oldSelf.part")
    .message("migration, holds and part are immutable"))]
#[serde(rename_all = "camelCase")]
pub struct MigrationRecordSpec {
    /// Name of the Migration.
    pub migration: String,
    /// What it holds.
    pub holds: Holds,
    /// Its place among those that hold the same, from 0.
    pub part: u32,
    /// `Prepare` and `Finish`: actions of the plan, in order, after those in the Migration and in earlier parts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<Action>,
    /// `ServiceAddresses`: Services that change their addresses, each in one part.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceRecord>,
    /// `ExpectedPorts`: ports of Services that agents look for in kube-proxy's rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_ports: Option<Question>,
    /// `Before`: the key that the text is of.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// `Before`: the text, or the part of it that follows earlier parts with the same key.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
}

/// What a record holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Holds {
    /// Actions of the plan before the first node.
    Prepare,
    /// Actions of the plan after the last node.
    Finish,
    /// What was there before the first change.
    Before,
    /// The addresses of Services as they were, and those that they get.
    ServiceAddresses,
    /// Ports of Services that agents look for in kube-proxy's rules.
    ExpectedPorts,
}

impl Holds {
    /// What it is called in the name of a record.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prepare => "prepare",
            Self::Finish => "finish",
            Self::Before => "before",
            Self::ServiceAddresses => "service-addresses",
            Self::ExpectedPorts => "expected-ports",
        }
    }
}

/// The addresses of one Service that change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceRecord {
    /// The Service, as namespace/name.
    pub service: String,
    /// Its addresses as they were before, in its order of families.
    #[schemars(with = "Vec<String>")]
    pub old: Vec<IpAddr>,
    /// Those in the new range, likewise.
    #[schemars(with = "Vec<String>")]
    pub new: Vec<IpAddr>,
    /// Nothing has been done for it yet: no client knows its new addresses. Absent once its exchange has begun.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub untouched: bool,
}

/// Name of the record of a Migration, by its UID, that holds this part.
pub fn name(migration_uid: &str, holds: Holds, part: u32) -> String {
    format!("{migration_uid}-{}-{part}", holds.as_str())
}

/// The plan out of its parts, as it was hashed: what stands in the Migration, in its nodes' objects and in its records.
pub fn document<'parts>(
    plan: &Plan,
    nodes: impl IntoIterator<Item = &'parts NodeMigration>,
    records: impl IntoIterator<Item = &'parts MigrationRecordSpec>,
) -> Document {
    let mut records: Vec<&MigrationRecordSpec> = records.into_iter().collect();
    records.sort_by_key(|record| record.part);
    let more = |holds: Holds| {
        let parts = records.iter().filter(move |record| record.holds == holds);
        parts.flat_map(|record| record.actions.iter().cloned())
    };
    let mut nodes: Vec<&NodeMigration> = nodes
        .into_iter()
        .filter(|object| !object.spec.prepare.is_empty() || !object.spec.plan.is_empty())
        .collect();
    nodes.sort_by_key(|object| (object.spec.position, &object.spec.node_name));
    Document {
        prepare: plan.prepare.iter().cloned().chain(more(Holds::Prepare)).collect(),
        nodes: nodes
            .into_iter()
            .map(|object| NodeActions {
                node: object.spec.node_name.clone(),
                prepare: object.spec.prepare.clone(),
                actions: object.spec.plan.clone(),
            })
            .collect(),
        finish: plan.finish.iter().cloned().chain(more(Holds::Finish)).collect(),
    }
}

/// The addresses of every Service that changes, as they are written down. `written_in_status` is what an earlier version wrote there:
/// what a record says of the same Service is newer.
pub fn book<'parts>(
    records: impl IntoIterator<Item = &'parts MigrationRecordSpec>,
    written_in_status: Book,
) -> Book {
    let mut book = written_in_status;
    let written = records
        .into_iter()
        .filter(|record| record.holds == Holds::ServiceAddresses);
    for both in written.flat_map(|record| &record.services) {
        let sides = Sides {
            old: both.old.clone(),
            new: both.new.clone(),
        };
        book.insert(both.service.clone(), sides);
    }
    book
}

/// The items in their order, in as many parts as it takes so that each is at most so many bytes of JSON: the first, and any other.
/// One item alone may be larger.
pub fn parts<T: Serialize>(items: Vec<T>, first: usize, other: usize) -> Vec<Vec<T>> {
    let mut parts = vec![Vec::new()];
    let mut room = first;
    for item in items {
        let size = bytes(&item);
        if let Some(rest) = room.checked_sub(size) {
            room = rest;
        } else {
            parts.push(Vec::new());
            room = other.saturating_sub(size);
        }
        if let Some(last) = parts.last_mut() {
            last.push(item);
        }
    }
    parts
}

/// How many bytes of JSON an item is in a list.
pub fn bytes<T: Serialize>(item: &T) -> usize {
    // Our own types always serialize.
    serde_json::to_vec(item).map_or(usize::MAX, |json| json.len() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_keep_the_order_and_their_size() {
        let items: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
        let parts = parts(items.clone(), 50, 100);
        assert!(parts.len() > 10);
        assert!(serde_json::to_vec(&parts[0]).unwrap().len() <= 51);
        assert!(
            parts
                .iter()
                .all(|part| serde_json::to_vec(part).unwrap().len() <= 101)
        );
        assert_eq!(parts.concat(), items);
    }

    #[test]
    fn nothing_is_one_empty_part_and_what_is_too_large_stands_alone() {
        assert_eq!(parts::<String>(Vec::new(), 10, 10), [Vec::<String>::new()]);
        let large = "x".repeat(100);
        let items = vec!["a".to_owned(), large.clone(), "b".to_owned()];
        assert_eq!(
            parts(items, 10, 10),
            [vec!["a".to_owned()], vec![large], vec!["b".to_owned()]]
        );
    }
}
