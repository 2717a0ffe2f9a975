//! `MigrationRecord`: data of a Migration that is too large for the Migration itself. The data is split into as many records as
//! needed, so that no object grows with the cluster.

#![expect(
    clippy::duplicated_attributes,
    reason = "each printcolumn has a type of its own"
)]

use std::net::IpAddr;

use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use engine::document::{Document, NodeActions};
use service_cidr::assignment::AssignedAddresses;
use service_cidr::host::Question;
use service_cidr::side::Sides;

use crate::migration::{Action, Plan};
use crate::node_migration::NodeMigration;

/// The maximum size of the content of a record, in bytes of JSON. With the metadata that the API server adds, the object stays
/// below 256 KiB.
pub const MAX_BYTES: usize = 128 * 1024;

/// `MigrationRecordSpec` is one part of the data of a Migration that is too large for the Migration itself.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "replumb.dev",
    version = "v1alpha1",
    kind = "MigrationRecord",
    doc = "MigrationRecord is one part of the data of a Migration that is too large for the Migration itself. The coordinator writes the record, and the record is deleted together with the Migration.",
    plural = "migrationrecords",
    shortname = "mrec",
    derive = "PartialEq",
    printcolumn(name = "Migration", type_ = "string", json_path = ".spec.migration"),
    printcolumn(name = "Content", type_ = "string", json_path = ".spec.content"),
    printcolumn(name = "Part", type_ = "integer", json_path = ".spec.part")
)]
#[x_kube(validation = Rule::new("self.migration == oldSelf.migration && self.content == oldSelf.content && self.part == oldSelf.part")
    .message("migration, content and part are immutable"))]
#[serde(rename_all = "camelCase")]
pub struct MigrationRecordSpec {
    /// `migration` is the name of the Migration. Immutable.
    pub migration: String,
    /// `content` is what the record contains. Possible values: `Prepare`: planned actions before the first node, in `actions`.
    /// `Finish`: planned actions after the last node, in `actions`. `Before`: saved state of the cluster, in `key` and `text`.
    /// `ServiceAddresses`: old and new addresses of Services, in `services`. `ExpectedPorts`: the ports that agents look for, in
    /// `expectedPorts`. Immutable.
    pub content: RecordContent,
    /// `part` is the number of the record among those of the same Migration and with the same `content`, from 0. Immutable.
    pub part: u32,
    /// `actions` is a list of planned actions, in order, that follow the actions in the plan of the Migration and in records with
    /// a lower `part`. Set for `Prepare` and `Finish`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<Action>,
    /// `services` is a list of Services that change their addresses. Each Service is in one record. Set for `ServiceAddresses`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub services: Vec<ServiceRecord>,
    /// `expectedPorts` is the list of ports that all agents look for in the rules of kube-proxy. Set for `ExpectedPorts`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_ports: Option<Question>,
    /// `key` is the key of the saved state. Set for `Before`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// `text` is the saved state as JSON text, or its next part if records with a lower `part` have the same key. Set for
    /// `Before`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub text: String,
}

/// `RecordContent` is what a record contains.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
    IntoStaticStr,
)]
#[strum(serialize_all = "kebab-case")]
pub enum RecordContent {
    /// Planned actions before the first node.
    Prepare,
    /// Planned actions after the last node.
    Finish,
    /// The state of the cluster before the first change.
    SavedState,
    /// The old and new addresses of Services.
    ServiceAddresses,
    /// The ports of Services that agents look for in the rules of kube-proxy.
    ExpectedPorts,
}

impl RecordContent {
    /// The value as part of the name of a record.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The value of the field of a record that its content is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Actions of a plan.
    Actions(Vec<Action>),
    /// Services with their addresses.
    Services(Vec<ServiceRecord>),
    /// Ports that agents check.
    ExpectedPorts(Question),
    /// A part of the text of a key.
    Text(String, String),
}

impl MigrationRecordSpec {
    /// One part of this content.
    pub fn new(migration: String, holds: RecordContent, part: u32, content: Content) -> Self {
        let mut spec = Self {
            migration,
            content: holds,
            part,
            actions: Vec::new(),
            services: Vec::new(),
            expected_ports: None,
            key: String::new(),
            text: String::new(),
        };
        match content {
            Content::Actions(actions) => spec.actions = actions,
            Content::Services(services) => spec.services = services,
            Content::ExpectedPorts(question) => spec.expected_ports = Some(question),
            Content::Text(key, text) => (spec.key, spec.text) = (key, text),
        }
        spec
    }
}

/// `ServiceRecord` are the addresses of one Service that change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServiceRecord {
    /// `service` is the Service, as `namespace/name`.
    pub service: String,
    /// `old` is the list of addresses before the migration, in the order of the address families of the Service.
    #[schemars(with = "Vec<String>")]
    pub old: Vec<IpAddr>,
    /// `new` is the list of addresses in the new range, in the same order.
    #[schemars(with = "Vec<String>")]
    pub new: Vec<IpAddr>,
    /// `untouched` is true until the change of the addresses starts. Until then, no client knows the new addresses.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub untouched: bool,
}

/// The name of a record, from the UID of its Migration.
pub fn name(migration_uid: &str, holds: RecordContent, part: u32) -> String {
    format!("{migration_uid}-{}-{part}", holds.as_str())
}

/// Joins the parts of the plan in the Migration, its NodeMigrations and its records to the document that was hashed.
pub fn document<'parts>(
    plan: &Plan,
    nodes: impl IntoIterator<Item = &'parts NodeMigration>,
    records: impl IntoIterator<Item = &'parts MigrationRecordSpec>,
) -> Document {
    let mut records: Vec<&MigrationRecordSpec> = records.into_iter().collect();
    records.sort_by_key(|record| record.part);
    let more = |holds: RecordContent| {
        let parts = records.iter().filter(move |record| record.content == holds);
        parts.flat_map(|record| record.actions.iter().cloned())
    };
    let mut nodes: Vec<&NodeMigration> = nodes
        .into_iter()
        .filter(|object| !object.spec.prepare.is_empty() || !object.spec.plan.is_empty())
        .collect();
    nodes.sort_by_key(|object| (object.spec.position, &object.spec.node_name));
    Document {
        prepare: plan
            .prepare
            .iter()
            .cloned()
            .chain(more(RecordContent::Prepare))
            .collect(),
        nodes: nodes
            .into_iter()
            .map(|object| NodeActions {
                node: object.spec.node_name.clone(),
                prepare: object.spec.prepare.clone(),
                actions: object.spec.plan.clone(),
            })
            .collect(),
        finish: plan
            .finish
            .iter()
            .cloned()
            .chain(more(RecordContent::Finish))
            .collect(),
    }
}

/// The recorded addresses of all Services that change. `written_in_status` are the addresses that an earlier version recorded in
/// the status of the Migration: the address in a record is newer.
pub fn recorded_addresses<'parts>(
    records: impl IntoIterator<Item = &'parts MigrationRecordSpec>,
    written_in_status: AssignedAddresses,
) -> AssignedAddresses {
    let mut book = written_in_status;
    let written = records
        .into_iter()
        .filter(|record| record.content == RecordContent::ServiceAddresses);
    for both in written.flat_map(|record| &record.services) {
        let sides = Sides {
            old: both.old.clone(),
            new: both.new.clone(),
        };
        book.insert(both.service.clone(), sides);
    }
    book
}

/// Splits items into parts of at most `first` bytes of JSON (the first part) or `other` bytes (all other parts), in order. A part
/// with a single item may be larger.
pub fn parts<T: Serialize>(items: Vec<T>, first: usize, other: usize) -> Vec<Vec<T>> {
    let mut parts = vec![Vec::new()];
    let mut free = first;
    for item in items {
        let size = bytes(&item);
        if let Some(rest) = free.checked_sub(size) {
            free = rest;
        } else {
            parts.push(Vec::new());
            free = other.saturating_sub(size);
        }
        if let Some(last) = parts.last_mut() {
            last.push(item);
        }
    }
    parts
}

/// The size of an item in a list, in bytes of JSON.
pub fn bytes<T: Serialize>(item: &T) -> usize {
    // The types of this crate always serialize.
    serde_json::to_vec(item).map_or(usize::MAX, |json| json.len() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_keep_the_order_and_the_size_limits() {
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
    fn no_items_are_one_empty_part_and_a_large_item_is_one_part() {
        assert_eq!(parts::<String>(Vec::new(), 10, 10), [Vec::<String>::new()]);
        let large = "x".repeat(100);
        let items = vec!["a".to_owned(), large.clone(), "b".to_owned()];
        assert_eq!(
            parts(items, 10, 10),
            [vec!["a".to_owned()], vec![large], vec!["b".to_owned()]]
        );
    }
}
