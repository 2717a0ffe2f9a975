//! The part of a Service that the checks and the plan need: some hundred bytes, whatever the size of the Service.

use serde_json::{Map, Value};

use super::exchange::ROLE_LABEL;
use super::objects::SERVICE_LABEL;

const METADATA: [&str; 5] = ["namespace", "name", "uid", "resourceVersion", "creationTimestamp"];
const LABELS: [&str; 3] = [ROLE_LABEL, SERVICE_LABEL, "k8s-app"];
const SPEC: [&str; 6] = [
    "type",
    "clusterIP",
    "clusterIPs",
    "ipFamilies",
    "ipFamilyPolicy",
    "externalName",
];

/// The outline of this Service: the fields that determine its class and its turn, without the fields that a helper copies.
pub fn outline(service: &Value) -> Value {
    let mut metadata = of(&service["metadata"], &METADATA);
    metadata.insert(
        "labels".to_owned(),
        of(&service["metadata"]["labels"], &LABELS).into(),
    );
    Value::Object(Map::from_iter([
        ("metadata".to_owned(), metadata.into()),
        ("spec".to_owned(), of(&service["spec"], &SPEC).into()),
    ]))
}

fn of(object: &Value, fields: &[&str]) -> Map<String, Value> {
    let found = fields.iter().filter_map(|field| {
        let value = object.get(*field)?;
        Some(((*field).to_owned(), value.clone()))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::assignment::key;
    use crate::entry::Entry;

    #[test]
    fn an_outline_is_small_and_keeps_class_and_turn() {
        let ports: Vec<Value> = (1..=20_000)
            .map(|port| json!({ "port": port, "name": format!("p{port}") }))
            .collect();
        let whole = json!({
            "metadata": {
                "namespace": "kube-system", "name": "kube-dns", "uid": "u", "resourceVersion": "7",
                "creationTimestamp": "2026-01-01T00:00:00Z", "labels": { "k8s-app": "kube-dns", "large": "x".repeat(63) },
                "annotations": { "large": "x".repeat(200_000) },
            },
            "spec": {
                "type": "ClusterIP", "clusterIP": "10.96.0.10", "clusterIPs": ["10.96.0.10"], "ipFamilies": ["IPv4"], "ports": ports,
                "selector": { "app": "dns" },
            },
        });
        let outline = outline(&whole);
        assert!(outline.to_string().len() < 400, "{outline}");
        assert_eq!(key(&outline), "kube-system/kube-dns");
        let (whole, outline) = (Entry::of(&whole), Entry::of(&outline));
        assert_eq!(
            (whole.kind, &whole.addresses, whole.turn(), whole.created),
            (outline.kind, &outline.addresses, outline.turn(), outline.created)
        );
    }
}
