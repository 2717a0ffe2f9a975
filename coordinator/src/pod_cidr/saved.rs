//! What was there in the cluster before the first change: read at the start into `status.before`.

use std::collections::BTreeMap;

use api::migration::PodCidr;
use plan::pod_cidr::moves::Workload;
use plan::pod_cidr::residents::{ill, workloads_of};
use serde_json::{Value, json};

use super::read;
use crate::cache::Cache;
use crate::context::Context;
use crate::facts;
use crate::write::WriteError;

/// Key of `status.before`: the spec of the old pool, as JSON.
const OLD_POOL: &str = "IPPool";
/// Key: how many pods of which workload were not Ready.
const ILL: &str = "pods not Ready";

/// What was there.
#[derive(Clone, Debug, PartialEq)]
pub struct Saved {
    /// The spec of the old pool.
    pub old_pool: Value,
    /// Pods that were not Ready, by workload, where one was.
    pub ill: BTreeMap<Workload, usize>,
}

/// Reads everything that the way there and back needs.
pub async fn read(
    context: &Context,
    cache: &Cache,
    kind: &PodCidr,
) -> Result<BTreeMap<String, String>, WriteError> {
    // One that is not understood was refused by a check.
    let pools = read::pools(context).await?.unwrap_or_default();
    let old = pools
        .values()
        .find(|pool| pool.range == kind.from)
        .map_or(Value::Null, |pool| pool.spec.clone());
    let pods: Vec<plan::drain::Pod> = cache
        .pods
        .state()
        .iter()
        .filter_map(|pod| facts::pods::pod(pod).ok())
        .collect();
    let ill: Vec<Value> = ill(&pods, &workloads_of(&pods))
        .into_iter()
        .map(|(workload, count)| json!([workload.kind, workload.namespace, workload.name, count]))
        .collect();
    Ok(BTreeMap::from([
        (OLD_POOL.to_owned(), old.to_string()),
        (ILL.to_owned(), Value::Array(ill).to_string()),
    ]))
}

/// What was saved; an error names the part that is gone.
pub fn understand(before: &BTreeMap<String, String>) -> Result<Saved, String> {
    let part = |key: &str| -> Result<Value, String> {
        let gone = || format!("status.before[\"{key}\"]");
        let text = before.get(key).ok_or_else(gone)?;
        serde_json::from_str(text).map_err(|_| gone())
    };
    let old_pool = part(OLD_POOL)?;
    let ill: Vec<(String, String, String, usize)> =
        serde_json::from_value(part(ILL)?).map_err(|_| format!("status.before[\"{ILL}\"]"))?;
    if !old_pool.is_object() {
        return Err(format!("status.before[\"{OLD_POOL}\"]"));
    }
    Ok(Saved {
        old_pool,
        ill: ill
            .into_iter()
            .map(|(kind, namespace, name, count)| {
                (
                    Workload {
                        kind,
                        namespace,
                        name,
                    },
                    count,
                )
            })
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_saved_is_understood_and_what_is_gone_is_named() {
        let mut before = BTreeMap::from([
            (OLD_POOL.to_owned(), r#"{"cidr":"10.244.0.0/16"}"#.to_owned()),
            (ILL.to_owned(), r#"[["StatefulSet","shop","db",2]]"#.to_owned()),
        ]);
        let saved = understand(&before).unwrap();
        assert_eq!(saved.old_pool["cidr"], "10.244.0.0/16");
        assert_eq!(saved.ill.values().sum::<usize>(), 2);
        before.insert(OLD_POOL.to_owned(), "null".to_owned());
        assert_eq!(understand(&before).unwrap_err(), "status.before[\"IPPool\"]");
        before.remove(ILL);
        assert_eq!(
            understand(&before).unwrap_err(),
            "status.before[\"pods not Ready\"]"
        );
    }
}
