//! What was there in the cluster before the first change: read at the start into `status.before`, put back at the end or on
//! the way back.

use std::collections::{BTreeMap, BTreeSet};

use kube::ResourceExt;
use plan::flannel_to_calico::objects;
use serde_json::{Map, Value, json};

use crate::cache::Cache;
use crate::calico::{self, Kind};
use crate::context::Context;
use crate::write::WriteError;

/// Key of `status.before`: the spec of `IPAMConfig default` as JSON, `null` when there was none.
pub const IPAM_CONFIG: &str = "IPAMConfig default";
/// Key: the spec of `FelixConfiguration default`, likewise.
pub const FELIX_CONFIGURATION: &str = "FelixConfiguration default";
/// Key: names of the pools.
pub const IP_POOLS: &str = "IPPool";
/// Key: names of the blocks.
pub const IPAM_BLOCKS: &str = "IPAMBlock";
/// Key: Calico's annotations of Nodes that had some.
pub const NODE_ANNOTATIONS: &str = "Node annotations";

/// Calico's annotations of Nodes begin so.
pub const ANNOTATION_PREFIX: &str = "projectcalico.org/";

/// Reads everything that the way back needs.
pub async fn read(context: &Context, cache: &Cache) -> Result<BTreeMap<String, String>, WriteError> {
    let annotations: BTreeMap<String, BTreeMap<String, String>> = cache
        .nodes
        .state()
        .iter()
        .map(|node| {
            let mut annotations = node.annotations().clone();
            annotations.retain(|key, _| key.starts_with(ANNOTATION_PREFIX));
            (node.name_any(), annotations)
        })
        .filter(|(_, annotations)| !annotations.is_empty())
        .collect();
    Ok(BTreeMap::from([
        (
            IPAM_CONFIG.to_owned(),
            spec(context, calico::IPAM_CONFIG).await?.to_string(),
        ),
        (
            FELIX_CONFIGURATION.to_owned(),
            spec(context, calico::FELIX_CONFIGURATION).await?.to_string(),
        ),
        (
            IP_POOLS.to_owned(),
            json!(names(context, calico::IP_POOL).await?).to_string(),
        ),
        (
            IPAM_BLOCKS.to_owned(),
            json!(names(context, calico::IPAM_BLOCK).await?).to_string(),
        ),
        (NODE_ANNOTATIONS.to_owned(), json!(annotations).to_string()),
    ]))
}

async fn spec(context: &Context, kind: Kind) -> Result<Value, WriteError> {
    let found = kind.get(&context.client, objects::DEFAULT).await?;
    Ok(found.map_or(Value::Null, |object| {
        object.data.get("spec").cloned().unwrap_or_else(|| json!({}))
    }))
}

async fn names(context: &Context, kind: Kind) -> Result<Vec<String>, WriteError> {
    let mut names: Vec<String> = kind
        .list(&context.client)
        .await?
        .iter()
        .map(ResourceExt::name_any)
        .collect();
    names.sort();
    Ok(names)
}

/// What was saved under this key; `None` when an earlier version of this tool started the migration and saved nothing.
pub fn value(before: &BTreeMap<String, String>, key: &str) -> Option<Value> {
    // Our own words, written by `read`.
    before.get(key).and_then(|text| serde_json::from_str(text).ok())
}

/// Puts back what `IPAMConfig default` said; an object that was not there is deleted.
pub async fn restore_ipam_config(
    context: &Context,
    before: &BTreeMap<String, String>,
) -> Result<(), WriteError> {
    match value(before, IPAM_CONFIG) {
        Some(spec) => restore(context, calico::IPAM_CONFIG, &spec, &objects::IPAM_CONFIG_FIELDS).await,
        None => Ok(()),
    }
}

/// The same of `FelixConfiguration default`.
pub async fn restore_felix_configuration(
    context: &Context,
    before: &BTreeMap<String, String>,
) -> Result<(), WriteError> {
    match value(before, FELIX_CONFIGURATION) {
        Some(spec) => {
            restore(
                context,
                calico::FELIX_CONFIGURATION,
                &spec,
                &objects::FELIX_CONFIGURATION_FIELDS,
            )
            .await
        }
        None => Ok(()),
    }
}

/// Our own fields as they were; what anybody else has written since stays.
async fn restore(context: &Context, kind: Kind, before: &Value, ours: &[&str]) -> Result<(), WriteError> {
    let Some(read) = kind.get(&context.client, objects::DEFAULT).await? else {
        return Ok(());
    };
    let found = read.data.get("spec").cloned().unwrap_or_else(|| json!({}));
    let others = found
        .as_object()
        .is_some_and(|fields| fields.keys().any(|field| !ours.contains(&field.as_str())));
    // It was not there, and nobody has written anything of his own into it since.
    if before.is_null() && !others {
        return kind.delete(&context.client, objects::DEFAULT).await;
    }
    let change: Map<String, Value> = ours
        .iter()
        .map(|field| {
            (
                (*field).to_owned(),
                before.get(*field).cloned().unwrap_or(Value::Null),
            )
        })
        .filter(|(field, value)| found.get(field).unwrap_or(&Value::Null) != value)
        .collect();
    if change.is_empty() {
        return Ok(());
    }
    kind.patch_spec(&context.client, &read, &Value::Object(change))
        .await
}

/// Deletes pools that were not there. Those that nobody saved the names of stay.
pub async fn delete_new_pools(
    context: &Context,
    before: &BTreeMap<String, String>,
) -> Result<(), WriteError> {
    let Some(known) = known_names(before, IP_POOLS) else {
        return Ok(());
    };
    for name in names(context, calico::IP_POOL).await? {
        let is_ours = objects::family::ALL.iter().any(|family| family.pool == name);
        if !known.contains(&name) && is_ours {
            calico::IP_POOL.delete(&context.client, &name).await?;
        }
    }
    Ok(())
}

/// Names that were saved under this key.
pub fn known_names(before: &BTreeMap<String, String>, key: &str) -> Option<BTreeSet<String>> {
    serde_json::from_value(value(before, key)?).ok()
}

/// What to patch in a Node's annotations so that Calico's are as they were: `None` when they are.
pub fn annotations_change(
    found: &BTreeMap<String, String>,
    before: &BTreeMap<String, String>,
    node: &str,
) -> Option<Map<String, Value>> {
    let had = value(before, NODE_ANNOTATIONS)?;
    let had = had
        .get(node)
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default();
    let new = found
        .keys()
        .filter(|key| key.starts_with(ANNOTATION_PREFIX) && !had.contains_key(*key))
        .map(|key| (key.clone(), Value::Null));
    let change: Map<String, Value> = had
        .iter()
        .filter(|(key, value)| found.get(*key).map(String::as_str) != value.as_str())
        .map(|(key, value)| (key.clone(), value.clone()))
        .chain(new)
        .collect();
    (!change.is_empty()).then_some(change)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn calicos_annotations_become_what_they_were_and_no_others_change() {
        let before = text(&[(
            NODE_ANNOTATIONS,
            r#"{"a":{"projectcalico.org/IPv4Address":"192.0.2.1/24"}}"#,
        )]);
        let found = text(&[
            ("projectcalico.org/IPv4Address", "192.0.2.1/32"),
            ("projectcalico.org/IPv4VXLANTunnelAddr", "10.244.1.0"),
            ("flannel.alpha.coreos.com/backend-type", "vxlan"),
        ]);
        let change = annotations_change(&found, &before, "a").unwrap();
        assert_eq!(
            Value::Object(change),
            json!({
                "projectcalico.org/IPv4Address": "192.0.2.1/24",
                "projectcalico.org/IPv4VXLANTunnelAddr": null,
            })
        );
        let as_before = text(&[("projectcalico.org/IPv4Address", "192.0.2.1/24")]);
        assert_eq!(annotations_change(&as_before, &before, "a"), None);
        // Another node had none.
        let change = annotations_change(&as_before, &before, "b").unwrap();
        assert_eq!(
            Value::Object(change),
            json!({ "projectcalico.org/IPv4Address": null })
        );
        // Nobody saved anything: nothing is touched.
        assert_eq!(annotations_change(&found, &BTreeMap::new(), "a"), None);
    }
}
