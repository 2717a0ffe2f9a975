//! A resource of v3 before it is written.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::finding::Finding;
use super::key::{ObjectKind, V3Name};
use super::note::Note;
use super::object::Object;
use super::report::Cause;

/// API version of v3's resources.
const API_VERSION: &str = "projectcalico.org/v3";
/// The tier of every policy of v2: a part of its name in the store.
const TIER: &str = "default";

/// A resource with its findings and notes.
#[derive(Debug)]
pub struct Resource {
    pub name: V3Name,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    spec: Value,
    /// Fields that v3 refuses.
    pub findings: Vec<Finding>,
    /// Notes for the user.
    pub notes: Vec<Note>,
}

impl Resource {
    /// A resource without a namespace.
    pub fn new(kind: ObjectKind, name: impl Into<String>, spec: &impl Serialize) -> Result<Self, Cause> {
        let spec = serde_json::to_value(spec).map_err(|error| Cause::Unwritable(error.to_string()))?;
        Ok(Self::of_spec(kind, name, spec))
    }

    /// A resource with these settings.
    pub fn of_settings(kind: ObjectKind, name: impl Into<String>, settings: Map<String, Value>) -> Self {
        Self::of_spec(kind, name, Value::Object(settings))
    }

    fn of_spec(kind: ObjectKind, name: impl Into<String>, spec: Value) -> Self {
        Self {
            name: V3Name {
                kind,
                namespace: None,
                name: name.into(),
            },
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            spec,
            findings: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// The key and value in the store.
    pub fn object(&self) -> Object {
        let V3Name {
            kind,
            namespace,
            name,
        } = &self.name;
        let name = match kind {
            ObjectKind::GlobalNetworkPolicy => format!("{TIER}.{name}"),
            _ => name.clone(),
        };
        let mut metadata = Map::from_iter([("name".to_owned(), json!(name))]);
        if let Some(namespace) = namespace {
            metadata.insert("namespace".to_owned(), json!(namespace));
        }
        for (field, map) in [("labels", &self.labels), ("annotations", &self.annotations)] {
            if !map.is_empty() {
                metadata.insert(field.to_owned(), json!(map));
            }
        }
        let parts = [Some(kind.directory()), namespace.clone(), Some(name)];
        Object {
            key: parts.into_iter().flatten().collect::<Vec<String>>().join("/"),
            value: json!({
                "kind": kind.name(), "apiVersion": API_VERSION, "metadata": metadata, "spec": self.spec,
            }),
            kind: *kind,
        }
    }
}
