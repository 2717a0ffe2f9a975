//! The state of a Service itself, its saved spec, and the fields on which writes depend.

use std::net::IpAddr;

use engine::field_patch::{Basis, pointer};
use serde_json::{Map, Value};

use super::helper_name::helper_name;
use super::{BEFORE_ANNOTATION, COPIED, EXTERNAL_TRAFFIC_POLICY, PROXY_KEYS, TRAFFIC_POLICY};
use crate::class::addresses;
use crate::exchange::{Own, Role};
use crate::side::{Side, Sides};

/// Fields of the spec that determine the state of a Service, and that are restored together with its address.
const PLACE: [&str; 8] = [
    "type",
    "clusterIP",
    "clusterIPs",
    "externalName",
    "ipFamilies",
    "ipFamilyPolicy",
    EXTERNAL_TRAFFIC_POLICY,
    TRAFFIC_POLICY,
];
/// Fields that identify a port of a Service.
const PORT: [&str; 3] = ["name", "port", "protocol"];

/// The state of the Service itself.
pub fn own(service: &Value, both: &Sides<Vec<IpAddr>>) -> Own {
    let spec = &service["spec"];
    let kind = spec["type"].as_str().unwrap_or("ClusterIP");
    let name = service["metadata"]["name"].as_str().unwrap_or_default();
    if is_a_name(spec) {
        let points_to = spec["externalName"].as_str().unwrap_or_default();
        let first = points_to.split('.').next().unwrap_or_default();
        return if before(service).is_some() {
            Own::Away(
                Side::ALL
                    .into_iter()
                    .find(|side| helper_name(name, Role::Address(*side)) == first),
            )
        } else {
            Own::Elsewhere(format!("is an ExternalName that points to {points_to}"))
        };
    }
    let said = addresses(spec);
    let is_at = |side: &[IpAddr]| side.iter().all(|address| said.contains(address));
    match (kind, is_at(&both.new), is_at(&both.old)) {
        ("ClusterIP" | "NodePort", true, _) => Own::At(Side::New),
        ("ClusterIP" | "NodePort", false, true) => Own::At(Side::Old),
        ("ClusterIP" | "NodePort", false, false) => Own::Elsewhere(match said.as_slice() {
            [] => "has no address".to_owned(),
            said => format!("has address {}", list(said)),
        }),
        (kind, _, _) => Own::Elsewhere(format!("is of type {kind}")),
    }
}

pub(super) fn is_a_name(spec: &Value) -> bool {
    spec["type"] == "ExternalName"
}

/// The saved spec of an object; `None` if it has none.
pub fn before(object: &Value) -> Option<Value> {
    let text = object["metadata"]["annotations"][BEFORE_ANNOTATION].as_str()?;
    serde_json::from_str(text).ok().filter(Value::is_object)
}

/// The differences between two specs of a Service, without its addresses: each a field and both values.
pub fn differences(before: &Value, now: &Value) -> Vec<String> {
    let empty = Map::new();
    let (before, now) = (
        before.as_object().unwrap_or(&empty),
        now.as_object().unwrap_or(&empty),
    );
    let mut fields: Vec<&String> = before.keys().chain(now.keys()).collect();
    fields.sort();
    fields.dedup();
    fields
        .into_iter()
        .filter(|field| !["clusterIP", "clusterIPs"].contains(&field.as_str()))
        .filter(|field| before.get(*field) != now.get(*field))
        .map(|field| {
            let value =
                |spec: &Map<String, Value>| spec.get(field).map_or("nothing".to_owned(), Value::to_string);
            format!("{field}: {} became {}", value(before), value(now))
        })
        .collect()
}

/// The fields on which every write of this Service or helper depends: its state, its saved spec, and its node ports.
pub fn basis(service: &Value) -> Basis {
    let mut fields: Vec<String> = PLACE.iter().map(|field| pointer(["spec", *field])).collect();
    fields.push(pointer(["metadata", "annotations", BEFORE_ANNOTATION]));
    let mut ports = service["spec"]["ports"].as_array().into_iter().flatten();
    // The owner may have changed a node port, which would be lost.
    if ports.any(|port| !port["nodePort"].is_null()) {
        fields.push(pointer(["spec", "ports"]));
    }
    Basis {
        fields,
        members: &PORT,
    }
}

/// The fields on which the first write of an exchange depends: also all fields that helpers copy, so that helpers are updated
/// first.
pub fn basis_with_helpers(service: &Value) -> Basis {
    let mut basis = basis(service);
    let more = COPIED.iter().chain(&["ports", "externalIPs"]);
    basis.fields.extend(more.map(|field| pointer(["spec", *field])));
    for place in ["labels", "annotations"] {
        let words = PROXY_KEYS.map(|word| pointer(["metadata", place, word]));
        basis.fields.extend(words);
    }
    basis
}

pub(super) fn list(addresses: &[IpAddr]) -> String {
    let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    texts.join(",")
}
