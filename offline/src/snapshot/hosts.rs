//! Reports of hosts: what `*` says of every node, with the values of the node, and what differs on single nodes.

use std::collections::BTreeMap;

use api::merge;
use api::node_migration::NodeMigrationStatus;
use ipnet::IpNet;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::error::SnapshotError;
use super::identity::Identity;
use super::object::{name_of, of_kind};
use super::owned_pods::internal_address;

/// The reports by name of the node. A node whose report is null has none. Where `derived`, the pods of the facts are those of the
/// objects, unless a report names its own.
///
/// # Errors
///
/// A report is not one of an agent, or is for no node.
pub fn reports(
    hosts: &BTreeMap<String, Vec<Value>>,
    objects: &BTreeMap<Identity, Value>,
    derived: bool,
) -> Result<BTreeMap<String, Value>, SnapshotError> {
    let nodes = of_kind(objects, "Node");
    let failed = |node: &str, problem: String| SnapshotError::Host {
        node: node.to_owned(),
        problem,
    };
    for name in hosts.keys().filter(|name| *name != "*") {
        if !nodes.iter().any(|node| name_of(node) == *name) {
            return Err(failed(name, "the snapshot has no such Node".to_owned()));
        }
    }
    let mut reports = BTreeMap::new();
    for (index, node) in (1_usize..).zip(&nodes) {
        let name = name_of(node);
        let mut report = Value::Null;
        let patches = ["*", name.as_str()]
            .into_iter()
            .filter_map(|host| hosts.get(host));
        for patch in patches.flatten() {
            merge::apply(&mut report, patch);
        }
        if report.is_null() {
            continue;
        }
        if derived {
            let values = values(node, index);
            fill(&mut report, &values).map_err(|unknown| {
                failed(
                    &name,
                    format!(
                        "the placeholder {{{{ {unknown} }}}} is not known, or the Node has no such value"
                    ),
                )
            })?;
            if !report["flannelToCalico"]["facts"].is_null() && !has_objects(&report) {
                return Err(failed(
                    &name,
                    "flannelToCalico.facts and its bridge: needed objects".to_owned(),
                ));
            }
            add_pods(&mut report, &name, objects);
        }
        let parsed: Result<NodeMigrationStatus, _> = serde_json::from_value(report.clone());
        parsed.map_err(|error| failed(&name, error.to_string()))?;
        reports.insert(name, report);
    }
    Ok(reports)
}

/// Whether the parts of a report to which pods are added have their form.
fn has_objects(report: &Value) -> bool {
    let facts = &report["flannelToCalico"]["facts"];
    let is_form = |value: &Value| value.is_object() || value.is_null();
    facts.is_object() && is_form(&facts["bridge"]) && is_form(&facts["bridge"]["present"])
}

/// Values for placeholders, from the Node: its name, its address, its ranges of pods and their first addresses.
fn values(node: &Value, index: usize) -> BTreeMap<&'static str, String> {
    let mut values = BTreeMap::from([
        ("node", name_of(node)),
        (
            "mac",
            format!("aa:bb:cc:00:{:02x}:{:02x}", index / 256 % 256, index % 256),
        ),
    ]);
    values.extend(internal_address(node).map(|address| ("address", address)));
    let ranges = node["spec"]["podCIDRs"].as_array().into_iter().flatten();
    for range in ranges.filter_map(|range| range.as_str()?.parse::<IpNet>().ok()) {
        let names = match range {
            IpNet::V4(_) => ["subnet", "gateway", "tunnel"],
            IpNet::V6(_) => ["subnet6", "gateway6", "tunnel6"],
        };
        let first = range.hosts().next().unwrap_or(range.network());
        let length = range.prefix_len();
        values.extend(names.into_iter().zip([
            range.to_string(),
            format!("{first}/{length}"),
            format!("{}/{}", range.network(), range.max_prefix_len()),
        ]));
    }
    values
}

/// Replaces each `{{ name }}`.
fn fill(value: &mut Value, values: &BTreeMap<&'static str, String>) -> Result<(), String> {
    match value {
        Value::String(text) => {
            while let Some((before, rest)) = text.split_once("{{") {
                let Some((name, after)) = rest.split_once("}}") else {
                    break;
                };
                let found = values.get(name.trim()).ok_or_else(|| name.trim().to_owned())?;
                *text = format!("{before}{found}{after}");
            }
            Ok(())
        }
        Value::Array(items) => items.iter_mut().try_for_each(|item| fill(item, values)),
        Value::Object(fields) => fields.values_mut().try_for_each(|field| fill(field, values)),
        Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
    }
}

/// Adds the pods of flannel on a node to the facts that name none: each with its link on the bridge.
fn add_pods(report: &mut Value, node: &str, objects: &BTreeMap<Identity, Value>) {
    let facts = &mut report["flannelToCalico"]["facts"];
    if facts.is_null() {
        return;
    }
    if facts["legacyPods"].is_null() {
        facts["legacyPods"] = json!(running(node, objects));
    }
    let pods = facts["legacyPods"].as_array().into_iter().flatten();
    let attached = pods.filter(|pod| pod["attached"] == true);
    let ports: Vec<Value> = attached.map(|pod| pod["link"].clone()).collect();
    let bridge = &mut facts["bridge"]["present"];
    if bridge.is_object() && bridge["ports"].is_null() {
        bridge["ports"] = json!(ports);
    }
}

/// The pods on the network of pods that run on a node.
fn running(node: &str, objects: &BTreeMap<Identity, Value>) -> Vec<Value> {
    let mut pods: Vec<Value> = of_kind(objects, "Pod")
        .iter()
        .filter(|pod| pod["spec"]["nodeName"] == node && pod["spec"]["hostNetwork"] != true)
        .map(legacy_pod)
        .collect();
    pods.sort_by_key(|pod| pod["sandbox"].to_string());
    pods
}

fn legacy_pod(pod: &Value) -> Value {
    let metadata = &pod["metadata"];
    let text = |field: &str| metadata[field].as_str().unwrap_or_default();
    let digest = Sha256::digest(format!("{}/{}", text("namespace"), text("name")));
    let hex: String = data_encoding::HEXLOWER.encode(&digest);
    let link = format!("veth{}", &hex[..8]);
    let addresses = pod["status"]["podIPs"].as_array().into_iter().flatten();
    let addresses: Vec<&Value> = addresses.map(|address| &address["ip"]).collect();
    json!({
        "namespace": text("namespace"), "name": text("name"), "sandbox": hex, "link": link, "addresses": addresses,
        "attached": true, "routed": false, "mac": format!("0a:58:{}:{}:{}:{}", &hex[..2], &hex[2..4], &hex[4..6], &hex[6..8]),
        "podLink": { "name": link, "calicoName": calico::pod_link(text("namespace"), text("name")) },
    })
}
