//! Converts the settings of BGP for all nodes.

use serde_json::{Map, json};

use super::as_number::as_number;
use super::conversion::Conversion;
use super::decode::{Decode, Fields, read};
use super::difference::Difference;
use super::felix;
use super::json::Json;
use super::key::{ObjectKind, V2Key};
use super::mismatch::Mismatch;
use super::report::Cause;
use super::resource::Resource;
use super::v2::Tree;

/// Parent key of the settings.
const DIRECTORY: &str = "/calico/bgp/v1/global";

/// Whether every node peers with every other node.
#[derive(Default)]
struct Mesh {
    enabled: bool,
}

impl Decode for Mesh {
    fn decode(json: &Json) -> Result<Self, Mismatch> {
        let fields = Fields::of(json)?;
        Ok(Self {
            enabled: fields.get("enabled")?,
        })
    }
}

/// Writes the object, if there is a setting.
pub fn convert(tree: &Tree, conversion: &mut Conversion) {
    let value = |name: &str| {
        let path = format!("{DIRECTORY}/{name}");
        let text = tree.read(&path)?.to_owned();
        Some((path, text))
    };
    let fail = |conversion: &mut Conversion, name: &str, path: String, text: String, needed, difference| {
        let cause = Cause::Value {
            found: text,
            needed,
            difference: Some(difference),
        };
        conversion.fail(V2Key::BgpSetting(name.to_owned()), path, cause);
    };
    let mut spec = Map::new();
    if let Some((path, text)) = value("as_num").filter(|(_, text)| !text.is_empty()) {
        if let Some(number) = as_number(&text) {
            spec.insert("asNumber".to_owned(), json!(number));
        } else {
            let needed = "an AS number like 64512 or 1.10";
            fail(
                conversion,
                "as_num",
                path,
                text,
                needed,
                Difference::GlobalAsNumber,
            );
        }
    }
    if let Some((_, text)) = value("loglevel").filter(|(_, text)| !text.is_empty()) {
        spec.insert("logSeverityScreen".to_owned(), json!(felix::level(&text)));
        conversion
            .notes
            .extend(felix::silenced(V2Key::BgpSetting("loglevel".to_owned()), &text));
    }
    if let Some((path, text)) = value("node_mesh") {
        if let Ok(Mesh { enabled }) = read(&text) {
            spec.insert("nodeToNodeMeshEnabled".to_owned(), json!(enabled));
        } else {
            let needed = r#"{"enabled": true} or {"enabled": false}"#;
            fail(conversion, "node_mesh", path, text, needed, Difference::NodeMesh);
        }
    }
    if !spec.is_empty() {
        conversion.write(&Resource::of_settings(
            ObjectKind::BgpConfiguration,
            "default",
            spec,
        ));
    }
}

#[cfg(test)]
mod tests;
