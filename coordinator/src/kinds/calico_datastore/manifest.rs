//! The manifest of Calico v3 in the Migration, as objects. Pure.

use calico_datastore::cluster::manifest::{self, Manifest};
use serde::Deserialize;
use serde_json::Value;

/// Parses a manifest. An error lists everything that is wrong with it.
pub fn manifest(text: &str) -> Result<Manifest, Vec<String>> {
    let mut documents = Vec::new();
    for document in yaml_serde::Deserializer::from_str(text) {
        match Value::deserialize(document) {
            Ok(value) => documents.push(value),
            Err(error) => return Err(vec![format!("not valid YAML: {error}")]),
        }
    }
    manifest::read(&documents)
}
