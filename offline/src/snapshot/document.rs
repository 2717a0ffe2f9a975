//! The fields of the document (docs/snapshot.md).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::error::SnapshotError;
use super::identity::Identity;

/// The kind of the document.
pub const KIND: &str = "ClusterSnapshot";

/// A cluster, or what differs from a known one.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Document {
    /// The version of the format.
    #[serde(default)]
    pub api_version: String,
    /// `ClusterSnapshot`.
    #[serde(default)]
    pub kind: String,
    /// Name of the known cluster that the rest changes. Without one the document is a whole cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<String>,
    /// Where the coordinator runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coordinator: Option<Coordinator>,
    /// Whether missing pods of controllers and missing facts of hosts are derived from the rest. Of the bases.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub derived: bool,
    /// Whole objects; one with the identity of another replaces it.
    #[serde(default)]
    pub objects: Vec<Value>,
    /// Changes of objects.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub patches: Vec<ObjectPatch>,
    /// Objects of the base that do not exist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub absent: Vec<Target>,
    /// Changes of the reports of hosts, by the name of the node; `*` is for every node.
    #[serde(default)]
    pub hosts: BTreeMap<String, Value>,
    /// Resources that the API server serves, by group and version; null for a group that it does not serve.
    #[serde(default)]
    pub served: BTreeMap<String, Option<BTreeSet<String>>>,
}

/// Where the coordinator runs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Coordinator {
    /// Its namespace.
    #[serde(default = "own_namespace")]
    pub namespace: String,
    /// The node of its pod, which changes last of its role; empty for none.
    #[serde(default)]
    pub node: String,
}

impl Default for Coordinator {
    fn default() -> Self {
        Self {
            namespace: own_namespace(),
            node: String::new(),
        }
    }
}

fn own_namespace() -> String {
    api::names::NAMESPACE.to_owned()
}

/// A change of objects.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectPatch {
    /// The objects.
    #[serde(rename = "object")]
    pub target: Target,
    /// A merge patch (RFC 7386): null removes a field, a list replaces a list.
    pub patch: Value,
}

/// Names objects.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Target {
    /// The kind.
    pub kind: String,
    /// The namespace; any if omitted.
    #[serde(default)]
    pub namespace: Option<String>,
    /// The name; `*` for every one.
    pub name: String,
}

impl Target {
    /// The objects that match.
    pub fn matching(&self, objects: &BTreeMap<Identity, Value>) -> BTreeSet<Identity> {
        let matches = |identity: &&Identity| {
            identity.kind == self.kind
                && (self.name == "*" || identity.name == self.name)
                && (self.namespace.is_none() || identity.namespace == self.namespace)
        };
        objects.keys().filter(matches).cloned().collect()
    }
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let namespace = self.namespace.as_deref().unwrap_or("*");
        write!(formatter, "{} {namespace}/{}", self.kind, self.name)
    }
}

impl Document {
    /// Reads a document with a kind and a version. `text` is YAML or JSON.
    ///
    /// # Errors
    ///
    /// The text is not such a document.
    pub fn parse(text: &str) -> Result<Self, SnapshotError> {
        let document: Self =
            yaml_serde::from_str(text).map_err(|error| SnapshotError::Form(error.to_string()))?;
        check_header(&document.api_version, &document.kind, KIND)?;
        Ok(document)
    }
}

/// Refuses a document of another version or kind.
///
/// # Errors
///
/// The version is not the known one, or the kind is not `needed`.
pub fn check_header(api_version: &str, kind: &str, needed: &'static str) -> Result<(), SnapshotError> {
    let known = format!("{}/{}", api::names::GROUP, api::names::VERSION);
    if kind == needed && api_version == known {
        return Ok(());
    }
    Err(SnapshotError::Kind {
        kind: kind.to_owned(),
        version: api_version.to_owned(),
        needed: format!("kind {needed} of apiVersion {known}"),
    })
}
