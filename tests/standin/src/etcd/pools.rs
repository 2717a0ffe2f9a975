//! The pools of both data models.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::keys;
use super::resource::POOL;
use super::store::{Entry, Store};
use crate::datastore::types::IPPoolSpec;
use crate::version::Generation;

/// A pool of v2.
#[derive(Debug, Serialize, Deserialize)]
pub struct PoolV2 {
    /// The range.
    pub cidr: String,
    /// The device of the tunnel; empty without one.
    #[serde(default)]
    pub ipip: String,
    /// Empty, `always` or `cross-subnet`.
    #[serde(default)]
    pub ipip_mode: String,
    /// Masquerade packets to addresses outside every pool.
    #[serde(default)]
    pub masquerade: bool,
    /// Whether addresses of the pool are assigned.
    #[serde(default)]
    pub ipam: bool,
    /// No new address is assigned.
    #[serde(default)]
    pub disabled: bool,
}

/// A pool.
#[derive(Debug, Clone)]
pub struct Pool {
    /// The name; v2 has none.
    pub name: String,
    /// The spec, in the words of v3.
    pub spec: IPPoolSpec,
}

/// Every pool of IPv4.
pub async fn list(store: &Store) -> Result<Vec<Pool>> {
    let mut pools = Vec::new();
    match store.generation {
        Generation::V2 => {
            for entry in store.list(&format!("{}/v4/pool", keys::POOLS)).await? {
                let pool: PoolV2 =
                    serde_json::from_str(&entry.value).with_context(|| format!("read {}", entry.key))?;
                let spec = IPPoolSpec {
                    cidr: pool.cidr,
                    nat_outgoing: pool.masquerade,
                    disabled: pool.disabled,
                    ..IPPoolSpec::default()
                };
                let name = String::new();
                pools.push(Pool { name, spec });
            }
        }
        Generation::V3 => {
            for (entry, object) in POOL.list(store).await? {
                let spec: IPPoolSpec = serde_json::from_value(object["spec"].clone())
                    .with_context(|| format!("read {}", entry.key))?;
                let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                pools.push(Pool { name, spec });
            }
        }
    }
    pools.retain(|pool| pool.spec.range().is_some());
    Ok(pools)
}

/// Labels of a Node, for the selectors of pools. In Calico kube-controllers copy them from Kubernetes; here only
/// labels exist that another program has written.
pub fn labels(entry: &Entry, node: &Value) -> Result<BTreeMap<String, String>> {
    let labels = node["metadata"].get("labels").cloned();
    let labels = labels.map(serde_json::from_value).transpose();
    labels
        .map(Option::unwrap_or_default)
        .with_context(|| format!("read the labels of {}", entry.key))
}
