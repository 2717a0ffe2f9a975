//! Chooses a pool and a block for an address, as Calico does. Pure.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context, Result, bail};
use calico::Allocation;
use ipnet::Ipv4Net;
use pod_cidr::pools::{NO_NODE, OFF_LABEL, block_size};
use serde_json::Value;

/// A pool that may assign an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pool {
    /// The range of the pool.
    pub range: Ipv4Net,
    /// Prefix length of the pool's blocks.
    pub block: u8,
}

/// The first pool that assigns an address on a node with these labels: of the pools requested by name or range, or of
/// all pools. `pools` has all pools, each with name and spec. `None` if there is none: then Calico's plugin fails,
/// and is called again.
pub fn pool(
    pools: &[(String, Value)],
    requested: &[String],
    labels: &BTreeMap<String, String>,
) -> Result<Option<Pool>> {
    for (name, spec) in pools {
        let text = spec["cidr"].as_str().unwrap_or_default();
        if spec["disabled"] == true {
            continue;
        }
        // Calico ignores the selector of a pool that is named.
        let serves = if requested.is_empty() {
            selects(spec, labels).with_context(|| format!("read the selector of IPPool {name}"))?
        } else {
            requested
                .iter()
                .any(|requested| requested == name || requested == text)
        };
        if serves {
            let range: Ipv4Net = text
                .parse()
                .with_context(|| format!("read the range {text:?} of IPPool {name}"))?;
            let block = block_size(spec, &range.into());
            return Ok(Some(Pool { range, block }));
        }
    }
    Ok(None)
}

/// Selectors that a migration writes, and no others.
fn selects(spec: &Value, labels: &BTreeMap<String, String>) -> Result<bool> {
    if spec["assignmentMode"] == "Manual" {
        return Ok(false);
    }
    match spec["nodeSelector"].as_str().unwrap_or_default() {
        "" | "all()" => Ok(true),
        NO_NODE => Ok(false),
        narrowed if narrowed.starts_with("all() && ") && narrowed.contains(OFF_LABEL) => {
            let off = labels.get(OFF_LABEL);
            Ok(off.is_none_or(|mark| !narrowed.contains(&format!("'{mark}'"))))
        }
        other => bail!("the simulated IPAM does not support the selector {other:?}"),
    }
}

/// Blocks and the nodes that have them.
#[derive(Debug, Default)]
pub struct Claims {
    nodes: BTreeMap<Ipv4Net, String>,
    /// The number of the next block that no node has had, by pool.
    next: BTreeMap<Ipv4Net, u32>,
}

impl Claims {
    /// Adds an existing block.
    pub fn add(&mut self, block: Ipv4Net, node: String) {
        self.nodes.insert(block, node);
    }

    /// Removes a block.
    pub fn remove(&mut self, block: Ipv4Net) {
        self.nodes.remove(&block);
    }

    /// The node's blocks in a pool.
    pub fn of(&self, node: &str, pool: &Pool) -> Vec<Ipv4Net> {
        let own = self.nodes.iter().filter(|(block, of)| {
            *of == node && pool.range.contains(*block) && block.prefix_len() == pool.block
        });
        own.map(|(block, _)| *block).collect()
    }

    /// Assigns to the node the next block that no node has had.
    pub fn claim(&mut self, node: &str, pool: &Pool) -> Result<Ipv4Net> {
        let next = self.next.entry(pool.range).or_default();
        loop {
            let offset = u64::from(*next) << (32 - u32::from(pool.block));
            let address = u64::from(pool.range.network().to_bits()) + offset;
            let address = u32::try_from(address).map(Ipv4Addr::from_bits).ok();
            let block = address
                .filter(|address| pool.range.contains(address))
                .with_context(|| format!("{} has no block left", pool.range))?;
            let block = Ipv4Net::new(block, pool.block).context("read the length of a block")?;
            *next += 1;
            if let Entry::Vacant(free) = self.nodes.entry(block) {
                free.insert(node.to_owned());
                return Ok(block);
            }
        }
    }
}

/// The future holder of an address: a handle, and attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The handle that releases the address.
    pub handle: String,
    /// The attributes stored with the address.
    pub attributes: BTreeMap<String, String>,
}

/// Assigns addresses to these holders, in their order: the first free ones of the block, as many as it has.
pub fn allocations(block: Ipv4Net, spec: &Value, holders: &[Holder]) -> Vec<Allocation> {
    let free = match spec["unallocated"].as_array() {
        Some(ordinals) => ordinals
            .iter()
            .filter_map(|ordinal| u32::try_from(ordinal.as_u64()?).ok())
            .collect(),
        None => (0..1_u32 << (32 - u32::from(block.prefix_len()))).collect::<Vec<_>>(),
    };
    let free = free
        .into_iter()
        .map(|ordinal| IpAddr::V4(Ipv4Addr::from_bits(block.network().to_bits() + ordinal)));
    free.zip(holders)
        .map(|(address, holder)| Allocation {
            address,
            handle: holder.handle.clone(),
            attributes: holder.attributes.clone(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use pod_cidr::pools::created;
    use serde_json::json;

    use super::*;
    use crate::scale::calico;

    fn range(text: &str) -> Ipv4Net {
        text.parse().unwrap()
    }

    fn found(pools: &[(String, Value)], requested: &[&str], off: Option<&str>) -> Option<Ipv4Net> {
        let requested: Vec<String> = requested.iter().map(|name| (*name).to_owned()).collect();
        let labels = off.map(|mark| (OFF_LABEL.to_owned(), mark.to_owned()));
        let labels = labels.into_iter().collect();
        pool(pools, &requested, &labels).unwrap().map(|pool| pool.range)
    }

    #[test]
    fn a_pool_without_nodes_serves_pods_that_name_it_and_a_disabled_pool_serves_none() {
        let old = calico::pool("10.128.0.0/10")["spec"].clone();
        let mut new = created("new", &calico::pool("10.0.0.0/10")["spec"])["spec"].clone();
        let both = |old: &Value, new: &Value| {
            [
                (calico::POOL.to_owned(), old.clone()),
                ("new".to_owned(), new.clone()),
            ]
        };
        let (of_old, of_new) = (Some(range("10.128.0.0/10")), Some(range("10.0.0.0/10")));
        assert_eq!(found(&both(&old, &new), &["new"], None), None);
        new["disabled"] = json!(false);
        assert_eq!(found(&both(&old, &new), &["new"], None), of_new);
        assert_eq!(found(&both(&old, &new), &[], None), of_old);
        new["nodeSelector"] = json!("all()");
        let mut closed = old.clone();
        closed["disabled"] = json!(true);
        assert_eq!(found(&both(&closed, &new), &[], None), of_new);
        let mut narrowed = old.clone();
        narrowed["nodeSelector"] =
            json!("all() && replumb.dev/off-pool != 'old' && !has(replumb.dev/round-1)");
        assert_eq!(found(&both(&narrowed, &new), &[], None), of_old);
        assert_eq!(found(&both(&narrowed, &new), &[], Some("old")), of_new);
        narrowed["nodeSelector"] = json!("zone == 'a'");
        assert!(pool(&both(&narrowed, &new), &[], &BTreeMap::new()).is_err());
    }

    #[test]
    fn each_node_has_its_own_blocks() {
        let pool = Pool {
            range: range("10.128.0.0/25"),
            block: 26,
        };
        let mut claims = Claims::default();
        let first = claims.claim("a", &pool).unwrap();
        let second = claims.claim("b", &pool).unwrap();
        assert_eq!((first, second), (range("10.128.0.0/26"), range("10.128.0.64/26")));
        assert_eq!(claims.of("b", &pool), [second]);
        assert!(claims.claim("a", &pool).is_err(), "the pool is used up");
        claims.remove(second);
        assert!(claims.of("b", &pool).is_empty());
    }

    #[test]
    fn the_first_free_addresses_are_assigned() {
        let holder = |handle: &str| Holder {
            handle: handle.to_owned(),
            attributes: BTreeMap::new(),
        };
        let holders = [holder("a"), holder("b"), holder("c")];
        let given = |spec: &Value| -> Vec<String> {
            let found = allocations(range("10.128.0.64/26"), spec, &holders);
            found.iter().map(|found| found.address.to_string()).collect()
        };
        assert_eq!(
            given(&json!({"unallocated": [3, 9]})),
            ["10.128.0.67", "10.128.0.73"]
        );
        assert_eq!(given(&json!({})), ["10.128.0.64", "10.128.0.65", "10.128.0.66"]);
    }
}
