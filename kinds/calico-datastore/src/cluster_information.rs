//! Converts the identity of the cluster, the version that wrote the store, and the flag that keeps v3 closed.

use serde_json::{Map, json};

use super::conversion::Conversion;
use super::go_values::boolean;
use super::key::{ObjectKind, V2Key};
use super::report::Cause;
use super::resource::Resource;
use super::v2::Tree;

/// Copied texts: the name in v2 and the name in v3.
const TEXTS: [(&str, &str); 3] = [
    ("ClusterGUID", "clusterGUID"),
    ("ClusterType", "clusterType"),
    ("CalicoVersion", "calicoVersion"),
];
/// Name of the flag in v2. Its value is ignored, but has to be a boolean.
const READY: &str = "DatastoreReady";
/// Settings that belong to this object and not to Felix.
pub const SETTINGS: [&str; 4] = ["ClusterGUID", "ClusterType", "CalicoVersion", READY];

/// Writes the object, with the flag false. Calico's CNI plugin of v3 crashes without the flag.
pub fn convert(tree: &Tree, conversion: &mut Conversion) {
    let value = |name: &str| {
        let path = format!("/calico/v1/config/{name}");
        let text = tree.value(&path)?.to_owned();
        Some((path, text))
    };
    let mut spec = Map::new();
    let mut is_set = false;
    for (name, field) in TEXTS {
        if let Some((_, text)) = value(name) {
            is_set = true;
            if !text.is_empty() {
                spec.insert(field.to_owned(), json!(text));
            }
        }
    }
    if let Some((path, text)) = value(READY) {
        if boolean(&text).is_some() {
            is_set = true;
        } else {
            let cause = Cause::Value {
                found: text,
                needed: "true or false",
                difference: None,
            };
            conversion.fail(V2Key::Setting(READY.to_owned()), path, cause);
        }
    }
    if !is_set {
        return;
    }
    spec.insert("datastoreReady".to_owned(), json!(false));
    conversion.write(&Resource::of_settings(
        ObjectKind::ClusterInformation,
        "default",
        spec,
    ));
}
