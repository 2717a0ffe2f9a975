//! Pools: which of them a node may take addresses from, and their division into blocks.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use anyhow::{Context, Result, bail};
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::Node;
use kube::Api;

use super::{Ipam, Use, names};
use crate::datastore::types::{IPPool, IPPoolSpec};

/// Length of a block's prefix when the pool does not say, as in Calico.
const BLOCK_SIZE: u8 = 26;

impl Ipam {
    pub(super) async fn enabled_pools(&self) -> Result<Vec<IPPool>> {
        let mut pools: Vec<IPPool> = self.pools.list("").await?;
        pools.retain(|pool| !pool.spec.disabled && pool.spec.range().is_some());
        Ok(pools)
    }

    /// Pools that this node may use for this purpose; those asked for, whatever their selectors, when some are.
    pub(super) async fn usable_pools(&self, purpose: Use, requested: &[String]) -> Result<Vec<IPPool>> {
        let enabled = self.enabled_pools().await?;
        let mut chosen = Vec::new();
        if requested.is_empty() {
            let nodes: Api<Node> = Api::all(self.client.clone());
            let node = nodes
                .get(&self.node)
                .await
                .with_context(|| format!("read Node {}", self.node))?;
            let labels = node.metadata.labels.unwrap_or_default();
            for pool in enabled {
                let automatic = pool.spec.assignment_mode.as_deref() != Some("Manual");
                let selector = pool.spec.node_selector.as_deref().unwrap_or_default();
                if automatic && selects(selector, &labels)? {
                    chosen.push(pool);
                }
            }
        } else {
            for wanted in requested {
                let is_it = |pool: &&IPPool| {
                    pool.metadata.name.as_deref() == Some(wanted) || pool.spec.range() == range(wanted)
                };
                let Some(pool) = enabled.iter().find(is_it) else {
                    bail!("the given pool ({wanted}) does not exist, or is not enabled");
                };
                chosen.push(pool.clone());
            }
        }
        chosen.retain(|pool| allows(&pool.spec, purpose));
        if chosen.is_empty() {
            bail!(
                "no configured Calico pools for node {} and use {purpose:?}",
                self.node
            );
        }
        Ok(chosen)
    }
}

/// A range from text; a lone address is a range of one.
pub fn range(text: &str) -> Option<Ipv4Net> {
    text.parse()
        .ok()
        .or_else(|| text.parse::<Ipv4Addr>().ok().map(Ipv4Net::from))
}

fn block_size(pool: &IPPoolSpec) -> u8 {
    pool.block_size.filter(|size| *size > 0).unwrap_or(BLOCK_SIZE)
}

/// The block of a pool that an address belongs to; nothing when it is in no pool.
pub fn block_of(pools: &[IPPool], address: Ipv4Addr) -> Result<Option<Ipv4Net>> {
    let holds = |pool: &&IPPool| pool.spec.range().is_some_and(|range| range.contains(&address));
    match pools.iter().find(holds) {
        Some(pool) => Ok(Some(Ipv4Net::new(address, block_size(&pool.spec))?.trunc())),
        None => Ok(None),
    }
}

/// Every block of a pool, from the one at which this node begins to look, so that nodes that look at the same
/// time do not meet.
pub fn blocks(pool: &IPPoolSpec, node: &str) -> Vec<Ipv4Net> {
    let Some(range) = pool.range() else {
        return Vec::new();
    };
    let Ok(subnets) = range.subnets(block_size(pool)) else {
        return Vec::new();
    };
    let mut blocks: Vec<Ipv4Net> = subnets.collect();
    if !blocks.is_empty() {
        let start = names::hash(node) as usize % blocks.len();
        blocks.rotate_left(start);
    }
    blocks
}

fn allows(pool: &IPPoolSpec, purpose: Use) -> bool {
    let word = match purpose {
        Use::Workload => "Workload",
        Use::Tunnel => "Tunnel",
    };
    match &pool.allowed_uses {
        Some(uses) if !uses.is_empty() => uses.iter().any(|allowed| allowed == word),
        _ => true,
    }
}

/// Whether a selector of Calico's language selects these labels. The part of the language that is played:
/// `all()`, `!all()`, `has(label)`, `!has(label)`, `label == 'value'`, `label != 'value'`, and `&&` between them.
pub fn selects(selector: &str, labels: &BTreeMap<String, String>) -> Result<bool> {
    let mut selected = true;
    for term in selector
        .split("&&")
        .map(str::trim)
        .filter(|term| !term.is_empty())
    {
        selected &= if term == "all()" {
            true
        } else if term == "!all()" {
            false
        } else if let Some(label) = call(term, "!has(") {
            !labels.contains_key(label)
        } else if let Some(label) = call(term, "has(") {
            labels.contains_key(label)
        } else if let Some((label, value)) = term.split_once("!=") {
            labels
                .get(label.trim())
                .is_none_or(|found| found != unquote(value))
        } else if let Some((label, value)) = term.split_once("==") {
            labels
                .get(label.trim())
                .is_some_and(|found| found == unquote(value))
        } else {
            bail!("read the node selector {selector:?}: the stand-in does not know {term:?}");
        };
    }
    Ok(selected)
}

fn call<'a>(term: &'a str, function: &str) -> Option<&'a str> {
    Some(term.strip_prefix(function)?.strip_suffix(')')?.trim())
}

fn unquote(text: &str) -> &str {
    text.trim().trim_matches(['\'', '"'])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(cidr: &str, size: Option<u8>) -> IPPool {
        IPPool::new(
            "p",
            IPPoolSpec {
                cidr: cidr.to_owned(),
                block_size: size,
                ..IPPoolSpec::default()
            },
        )
    }

    #[test]
    fn an_address_belongs_to_the_block_of_its_pool() {
        let pools = [pool("10.244.0.0/16", None), pool("10.250.0.0/16", Some(24))];
        let block = |address: &str| {
            block_of(&pools, address.parse().unwrap())
                .unwrap()
                .map(|block| block.to_string())
        };
        assert_eq!(block("10.244.1.70").as_deref(), Some("10.244.1.64/26"));
        assert_eq!(block("10.250.1.70").as_deref(), Some("10.250.1.0/24"));
        assert_eq!(block("192.168.0.1"), None);
    }

    #[test]
    fn each_node_begins_elsewhere_and_sees_every_block() {
        let spec = pool("10.244.0.0/24", None).spec;
        let of = |node: &str| blocks(&spec, node);
        assert_eq!(of("n1").len(), 4);
        let first: std::collections::BTreeSet<Ipv4Net> =
            (1..20).map(|number| of(&format!("n{number}"))[0]).collect();
        assert!(first.len() > 1, "every node begins at {first:?}");
        assert_eq!(of("n1"), of("n1"));
    }

    #[test]
    fn selectors() {
        let labels = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
        for (selector, expected) in [
            ("", true),
            ("all()", true),
            ("zone == 'a'", true),
            ("zone == \"b\"", false),
            ("zone != 'b' && has(zone)", true),
            ("!has(zone)", false),
            ("!all()", false),
        ] {
            assert_eq!(selects(selector, &labels).unwrap(), expected, "{selector}");
        }
        assert!(selects("zone in {'a'}", &labels).is_err());
    }

    #[test]
    fn uses() {
        let mut spec = pool("10.244.0.0/24", None).spec;
        assert!(allows(&spec, Use::Tunnel));
        spec.allowed_uses = Some(vec!["Workload".to_owned()]);
        assert!(allows(&spec, Use::Workload) && !allows(&spec, Use::Tunnel));
    }
}
