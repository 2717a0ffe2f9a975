//! Which pods were not Ready before the first change: what was so may stay so. Read at the start into `status.before`.

use std::collections::BTreeMap;

use engine::moves::Workload;
use engine::residents::{ill, workloads_of};
use serde_json::{Value, json};

use crate::cache::Cache;

/// Key of `status.before`: how many pods of which workload were not Ready.
pub const ILL: &str = "pods not Ready";

/// What is saved.
pub fn read(cache: &Cache) -> String {
    let pods = cache.pods.index().pods();
    let ill: Vec<Value> = ill(&pods, &workloads_of(&pods))
        .into_iter()
        .map(|(workload, count)| json!([workload.kind, workload.namespace, workload.name, count]))
        .collect();
    Value::Array(ill).to_string()
}

/// What was saved; an error names the part that is gone.
pub fn understand(before: &BTreeMap<String, String>) -> Result<BTreeMap<Workload, usize>, String> {
    let gone = || format!("status.before[\"{ILL}\"]");
    let text = before.get(ILL).ok_or_else(gone)?;
    let ill: Vec<(String, String, String, usize)> = serde_json::from_str(text).map_err(|_| gone())?;
    let named = |(kind, namespace, name, count)| {
        let workload = Workload {
            kind,
            namespace,
            name,
        };
        (workload, count)
    };
    Ok(ill.into_iter().map(named).collect())
}
