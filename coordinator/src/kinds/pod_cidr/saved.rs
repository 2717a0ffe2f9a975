//! State of the cluster before the first change, saved into `status.savedState` at the start.

use std::collections::BTreeMap;

use api::migration::PodCidr;
use engine::moves::Workload;
use pod_cidr::facts::ClusterFacts;
use serde_json::Value;

use crate::cache::Cache;
use crate::unready_before_start::{self, UNREADY_BEFORE_START};

/// Key of `status.savedState`: the spec of the old pool, as JSON.
const OLD_POOL: &str = "IPPool";

/// The saved state.
#[derive(Clone, Debug, PartialEq)]
pub struct Saved {
    /// The spec of the old pool.
    pub old_pool: Value,
    /// Number of pods that were not Ready, for each workload with such pods.
    pub unready: BTreeMap<Workload, usize>,
}

/// The state that the way forward and the rollback need.
pub fn of(facts: &ClusterFacts, cache: &Cache, kind: &PodCidr) -> BTreeMap<String, String> {
    // A check has refused a malformed one.
    let old = facts
        .pools
        .values()
        .find(|pool| pool.range == kind.from)
        .map_or(Value::Null, |pool| pool.spec.clone());
    BTreeMap::from([
        (OLD_POOL.to_owned(), old.to_string()),
        (UNREADY_BEFORE_START.to_owned(), unready_before_start::read(cache)),
    ])
}

/// The saved state; an error names the missing part.
pub fn parse(before: &BTreeMap<String, String>) -> Result<Saved, String> {
    let part = |key: &str| -> Result<Value, String> {
        let gone = || format!("status.savedState[\"{key}\"]");
        let text = before.get(key).ok_or_else(gone)?;
        serde_json::from_str(text).map_err(|_| gone())
    };
    let old_pool = part(OLD_POOL)?;
    let unready = unready_before_start::parse(before)?;
    if !old_pool.is_object() {
        return Err(format!("status.savedState[\"{OLD_POOL}\"]"));
    }
    Ok(Saved { old_pool, unready })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn saved_state_is_parsed_and_a_missing_part_is_named() {
        let mut before = BTreeMap::from([
            (OLD_POOL.to_owned(), r#"{"cidr":"10.244.0.0/16"}"#.to_owned()),
            (
                UNREADY_BEFORE_START.to_owned(),
                r#"[["StatefulSet","shop","db",2]]"#.to_owned(),
            ),
        ]);
        let saved = parse(&before).unwrap();
        assert_eq!(saved.old_pool["cidr"], "10.244.0.0/16");
        assert_eq!(saved.unready.values().sum::<usize>(), 2);
        before.insert(OLD_POOL.to_owned(), "null".to_owned());
        assert_eq!(parse(&before).unwrap_err(), "status.savedState[\"IPPool\"]");
        before.remove(UNREADY_BEFORE_START);
        assert_eq!(
            parse(&before).unwrap_err(),
            "status.savedState[\"pods not Ready\"]"
        );
    }
}
