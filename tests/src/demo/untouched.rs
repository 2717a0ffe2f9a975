//! Checks that a refusal changed nothing: compares every object that a migration writes, before and after.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::cluster::Cluster;

/// Resources that a migration writes.
const RESOURCES: &str = "nodes,daemonsets,deployments,configmaps,services,servicecidrs";
/// Resources of Calico, where the API is its datastore.
const OF_CALICO: &str = "ippools.crd.projectcalico.org,felixconfigurations.crd.projectcalico.org,ipamconfigs.crd.projectcalico.org,\
                         ipamblocks.crd.projectcalico.org,blockaffinities.crd.projectcalico.org,ipamhandles.crd.projectcalico.org";

/// Objects by kind, namespace and name, without fields that change without an edit.
pub type Fingerprint = BTreeMap<String, Value>;

/// Reads every object that a migration writes.
pub async fn fingerprint(cluster: &Cluster) -> Result<Fingerprint> {
    let served = ["api-resources", "--api-group=crd.projectcalico.org", "-o", "name"];
    let served = cluster.api().kubectl(&served).await?;
    let resources = if served.trim().is_empty() {
        RESOURCES.to_owned()
    } else {
        format!("{RESOURCES},{OF_CALICO}")
    };
    let text = cluster
        .api()
        .kubectl(&["get", &resources, "--all-namespaces", "-o", "json"])
        .await?;
    let list: Value = serde_json::from_str(&text).context("parse kubectl's list")?;
    Ok(compared_fields(&list))
}

/// The fields that a refusal must not change, of every object in `list`.
fn compared_fields(list: &Value) -> Fingerprint {
    let mut found = Fingerprint::new();
    for object in list["items"].as_array().into_iter().flatten() {
        let metadata = &object["metadata"];
        let part = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let key = format!(
            "{} {}/{}",
            part(&object["kind"]),
            part(&metadata["namespace"]),
            part(&metadata["name"])
        );
        let mut spec = object["spec"].clone();
        // Kubernetes taints a node that is not Ready; a cordon shows as `unschedulable`.
        // `get_mut`, because indexing would add `taints: null` to a node that has none.
        if let Some(taints) = spec.get_mut("taints").and_then(Value::as_array_mut) {
            taints.retain(|taint| {
                !taint["key"]
                    .as_str()
                    .unwrap_or_default()
                    .starts_with("node.kubernetes.io/")
            });
            if taints.is_empty() {
                spec.as_object_mut().map(|spec| spec.remove("taints"));
            }
        }
        let kept = serde_json::json!({
            "labels": metadata["labels"],
            "annotations": metadata["annotations"],
            "uid": metadata["uid"],
            "spec": spec,
            "data": object["data"],
        });
        found.insert(key, kept);
    }
    found
}

/// Objects that appeared, disappeared or changed.
pub fn differences(before: &Fingerprint, after: &Fingerprint) -> Vec<String> {
    let mut found = Vec::new();
    for (key, object) in before {
        match after.get(key) {
            None => found.push(format!("{key} is gone")),
            Some(now) if now != object => found.push(format!("{key} was {object}, is {now}")),
            Some(_) => {}
        }
    }
    found.extend(
        after
            .keys()
            .filter(|key| !before.contains_key(*key))
            .map(|key| format!("{key} is new")),
    );
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(taints: Option<Value>) -> Value {
        let mut node = serde_json::json!({
            "kind": "Node", "metadata": {"name": "a", "uid": "1"}, "spec": {"podCIDR": "10.244.0.0/24"},
        });
        if let Some(taints) = taints {
            node["spec"]["taints"] = taints;
        }
        serde_json::json!({"items": [node]})
    }

    #[test]
    fn a_node_that_was_not_ready_for_a_moment_is_unchanged() {
        let taint = serde_json::json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]);
        let (before, during) = (compared_fields(&node(None)), compared_fields(&node(Some(taint))));
        assert_eq!(differences(&before, &during), Vec::<String>::new());
        assert_eq!(differences(&during, &before), Vec::<String>::new());
    }

    #[test]
    fn a_taint_of_another_program_is_a_change() {
        let taint = serde_json::json!([{"key": "example.com/reserved", "effect": "NoSchedule"}]);
        let found = differences(
            &compared_fields(&node(None)),
            &compared_fields(&node(Some(taint))),
        );
        assert_eq!(found.len(), 1, "{found:?}");
    }
}
