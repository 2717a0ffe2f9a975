//! An object of v3 before it is written.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::convert::Object;
use super::key::{ObjectKind, V3Name};
use super::note::Note;
use super::report::Cause;
use super::validate::Finding;

/// Version of v3's objects.
const API_VERSION: &str = "projectcalico.org/v3";
/// The tier that every policy of v2 is in: a part of its name where it is stored.
const TIER: &str = "default";

/// An object, with what there is to say of it.
#[derive(Debug)]
pub struct Resource {
    pub name: V3Name,
    pub labels: BTreeMap<String, String>,
    pub annotations: BTreeMap<String, String>,
    spec: Value,
    /// What v3 refuses of it.
    pub findings: Vec<Finding>,
    /// What there is to know of it.
    pub notes: Vec<Note>,
}

impl Resource {
    /// An object without a namespace.
    pub fn new(kind: ObjectKind, name: impl Into<String>, spec: &impl Serialize) -> Result<Self, Cause> {
        let spec = serde_json::to_value(spec).map_err(|error| Cause::Unwritable(error.to_string()))?;
        Ok(Self::of_spec(kind, name, spec))
    }

    /// An object with these settings.
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

    /// As it is stored.
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
