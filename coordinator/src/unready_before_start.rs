//! Pods that were not Ready before the first change, and may stay so. Saved at the start in `status.savedState`.

use std::collections::BTreeMap;

use engine::moves::Workload;
use engine::residents::{count_unready, workloads_of};
use serde_json::{Value, json};

use crate::cache::Cache;

/// Key of `status.savedState`: number of pods that were not Ready, by workload.
pub const UNREADY_BEFORE_START: &str = "pods not Ready";

/// The value to save.
pub fn read(cache: &Cache) -> String {
    let pods = cache.pods.index().pods();
    let unready: Vec<Value> = count_unready(&pods, &workloads_of(&pods))
        .into_iter()
        .map(|(workload, count)| json!([workload.kind, workload.namespace, workload.name, count]))
        .collect();
    Value::Array(unready).to_string()
}

/// The saved counts; an error names the missing part.
pub fn parse(before: &BTreeMap<String, String>) -> Result<BTreeMap<Workload, usize>, String> {
    let missing = || format!("status.savedState[\"{UNREADY_BEFORE_START}\"]");
    let text = before.get(UNREADY_BEFORE_START).ok_or_else(missing)?;
    let unready: Vec<(String, String, String, usize)> = serde_json::from_str(text).map_err(|_| missing())?;
    let named = |(kind, namespace, name, count)| {
        let workload = Workload {
            kind,
            namespace,
            name,
        };
        (workload, count)
    };
    Ok(unready.into_iter().map(named).collect())
}
