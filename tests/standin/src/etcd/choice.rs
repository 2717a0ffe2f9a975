//! The pools for an address with etcd: in v3 the pools that select the node, or the requested pools.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use ipnet::Ipv4Net;

use super::pools::{self, Pool};
use super::resource::NODE;
use super::store::Store;
use crate::datastore::types::IPPoolSpec;
use crate::ipam::selects_node;
use crate::version::Generation;

/// The pools for one address.
pub struct Choice {
    /// Pools for the assignment, in order.
    pub usable: Vec<IPPoolSpec>,
    /// Every pool that is not disabled.
    pub enabled: Vec<IPPoolSpec>,
    /// Labels of the node.
    pub labels: BTreeMap<String, String>,
}

impl Choice {
    /// For a pod of this host that requests these pools, by their ranges or names; empty without a request.
    pub async fn of(store: &Store, host: &str, requested: &[String]) -> Result<Self> {
        let all = pools::list(store).await?;
        let wanted = named(&all, requested)?;
        let enabled = enabled(all);
        let labels = labels(store, host).await?;
        let mut usable = Vec::new();
        for wanted in &wanted {
            let found = enabled.iter().find(|pool| pool.range() == Some(*wanted));
            // Calico's message. The selector of a requested pool is ignored.
            let found = found
                .with_context(|| format!("the given pool ({wanted}) does not exist, or is not enabled"))?;
            usable.push(found.clone());
        }
        if wanted.is_empty() {
            for pool in &enabled {
                // v2 has no selectors.
                if store.generation == Generation::V2 || selects_node(pool, &labels)? {
                    usable.push(pool.clone());
                }
            }
        }
        if usable.is_empty() {
            bail!("no configured Calico pools for node {host}");
        }
        Ok(Self {
            usable,
            enabled,
            labels,
        })
    }

    /// Every pool that is not disabled.
    pub async fn enabled(store: &Store) -> Result<Vec<IPPoolSpec>> {
        Ok(enabled(pools::list(store).await?))
    }

    /// Whether a block is of one of the pools.
    pub fn has(&self, block: Ipv4Net) -> bool {
        let mut ranges = self.usable.iter().filter_map(IPPoolSpec::range);
        ranges.any(|range| range.contains(&block))
    }
}

fn enabled(pools: Vec<Pool>) -> Vec<IPPoolSpec> {
    let specs = pools.into_iter().map(|pool| pool.spec);
    specs.filter(|pool| !pool.disabled).collect()
}

/// Ranges of the names in an annotation or the conflist: a range as it is, a name by its pool, disabled or not.
fn named(pools: &[Pool], requested: &[String]) -> Result<Vec<Ipv4Net>> {
    let range_of = |text: &String| -> Result<Ipv4Net> {
        if let Ok(range) = text.parse::<Ipv4Net>() {
            return Ok(range.trunc());
        }
        let found = pools.iter().find(|pool| pool.name == *text);
        found
            .and_then(|pool| pool.spec.range())
            .with_context(|| format!("error parsing pool {text:?}: invalid CIDR address: {text}"))
    };
    requested.iter().map(range_of).collect()
}

/// Labels of the host's Node.
async fn labels(store: &Store, host: &str) -> Result<BTreeMap<String, String>> {
    if store.generation == Generation::V2 {
        return Ok(BTreeMap::new());
    }
    match NODE.get(store, host).await? {
        Some((entry, node)) => pools::labels(&entry, &node),
        None => Ok(BTreeMap::new()),
    }
}
