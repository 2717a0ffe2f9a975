//! Pools: selection by node and use, and their division into blocks.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use anyhow::{Context, Result, bail};
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::Api;

use super::{Ipam, Use, names};
use crate::datastore::types::{IPPool, IPPoolSpec};

/// Default prefix length of blocks, as in Calico.
const BLOCK_SIZE: u8 = 26;

/// The pools for one address.
pub(super) struct Choice {
    /// Pools for the assignment, in order.
    pub usable: Vec<IPPool>,
    /// Pools that select the node, or requested pools; some may not be for this use.
    pub selecting: Vec<IPPool>,
    /// Every enabled pool.
    pub enabled: Vec<IPPool>,
    /// Labels of the node.
    pub labels: BTreeMap<String, String>,
}

impl Ipam {
    pub(super) async fn enabled_pools(&self) -> Result<Vec<IPPool>> {
        Ok(enabled(self.pools.list("").await?))
    }

    /// The pools that this node may use for this purpose; or the requested pools, with any selector.
    pub(super) async fn choose(
        &self,
        purpose: Use,
        requested: &[String],
        namespace: Option<&str>,
    ) -> Result<Choice> {
        let all: Vec<IPPool> = self.pools.list("").await?;
        let wanted = named(&all, requested)?;
        let enabled = enabled(all);
        if enabled.is_empty() {
            bail!("cannot find a qualified ippool");
        }
        let labels = self
            .labels_of(&self.node)
            .await?
            .with_context(|| format!("assign an address: there is no Node {}", self.node))?;
        let selecting = if wanted.is_empty() {
            let namespace_labels = self.namespace_labels(&enabled, namespace).await?;
            automatic(&enabled, &labels, &namespace_labels)?
        } else {
            requested_pools(&enabled, &wanted)?
        };
        if selecting.is_empty() {
            bail!("no configured Calico pools for node {}", self.node);
        }
        let mut usable = selecting.clone();
        usable.retain(|pool| allows(&pool.spec, purpose));
        if usable.is_empty() {
            bail!("cannot find a qualified ippool, no pools match the required use ({purpose:?})");
        }
        Ok(Choice {
            usable,
            selecting,
            enabled,
            labels,
        })
    }

    /// Labels of a node; empty if the node does not exist.
    pub(super) async fn labels_of(&self, node: &str) -> Result<Option<BTreeMap<String, String>>> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let found = nodes
            .get_opt(node)
            .await
            .with_context(|| format!("read Node {node}"))?;
        Ok(found.map(|node| node.metadata.labels.unwrap_or_default()))
    }

    /// Labels of a pod's namespace, if a pool selects by them. A tunnel has no namespace.
    async fn namespace_labels(
        &self,
        pools: &[IPPool],
        namespace: Option<&str>,
    ) -> Result<BTreeMap<String, String>> {
        let asked = |pool: &IPPool| {
            pool.spec
                .namespace_selector
                .as_ref()
                .is_some_and(|it| !it.is_empty())
        };
        let Some(name) = namespace.filter(|_| pools.iter().any(asked)) else {
            return Ok(BTreeMap::new());
        };
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        let found = namespaces
            .get(name)
            .await
            .with_context(|| format!("read Namespace {name}"))?;
        Ok(found.metadata.labels.unwrap_or_default())
    }
}

fn enabled(mut pools: Vec<IPPool>) -> Vec<IPPool> {
    pools.retain(|pool| {
        !pool.spec.disabled && pool.metadata.deletion_timestamp.is_none() && pool.spec.range().is_some()
    });
    pools
}

/// Ranges of the names in an annotation or the conflist: a range as it is, a name by its pool, disabled or not.
fn named(pools: &[IPPool], requested: &[String]) -> Result<Vec<Ipv4Net>> {
    let range_of = |text: &String| -> Result<Ipv4Net> {
        if let Ok(range) = text.parse::<Ipv4Net>() {
            return Ok(range.trunc());
        }
        pools
            .iter()
            .find(|pool| pool.metadata.name.as_ref() == Some(text))
            .and_then(|pool| pool.spec.range())
            .with_context(|| format!("error parsing pool {text:?}: invalid CIDR address: {text}"))
    };
    requested.iter().map(range_of).collect()
}

/// The enabled pools of these ranges, with any selector.
fn requested_pools(enabled: &[IPPool], wanted: &[Ipv4Net]) -> Result<Vec<IPPool>> {
    let pool_of = |range: &Ipv4Net| -> Result<IPPool> {
        let found = enabled.iter().find(|pool| pool.spec.range() == Some(*range));
        found
            .cloned()
            .with_context(|| format!("the given pool ({range}) does not exist, or is not enabled"))
    };
    wanted.iter().map(pool_of).collect()
}

/// The pools that assign addresses automatically to pods of this namespace on this node.
fn automatic(
    enabled: &[IPPool],
    node: &BTreeMap<String, String>,
    namespace: &BTreeMap<String, String>,
) -> Result<Vec<IPPool>> {
    let mut chosen = Vec::new();
    for pool in enabled {
        let by_namespace = pool.spec.namespace_selector.as_deref().unwrap_or_default();
        if pool.spec.assignment_mode.as_deref() != Some("Manual")
            && selects_node(&pool.spec, node)?
            && selects(by_namespace, namespace)?
        {
            chosen.push(pool.clone());
        }
    }
    Ok(chosen)
}

/// Whether a pool assigns addresses on a node with these labels.
pub fn selects_node(pool: &IPPoolSpec, labels: &BTreeMap<String, String>) -> Result<bool> {
    selects(pool.node_selector.as_deref().unwrap_or_default(), labels)
}

/// The first pool with this address in its range.
pub fn holding(pools: &[IPPool], address: Ipv4Addr) -> Option<&IPPool> {
    pools
        .iter()
        .find(|pool| pool.spec.range().is_some_and(|range| range.contains(&address)))
}

/// Parses a range; an address without a prefix is a range of one.
pub fn range(text: &str) -> Option<Ipv4Net> {
    text.parse()
        .ok()
        .or_else(|| text.parse::<Ipv4Addr>().ok().map(Ipv4Net::from))
}

fn block_size(pool: &IPPoolSpec) -> u8 {
    pool.block_size.filter(|size| *size > 0).unwrap_or(BLOCK_SIZE)
}

/// The block of a pool with this address; `None` if the address is in no pool.
pub fn block_of(pools: &[IPPool], address: Ipv4Addr) -> Result<Option<Ipv4Net>> {
    match holding(pools, address) {
        Some(pool) => Ok(Some(Ipv4Net::new(address, block_size(&pool.spec))?.trunc())),
        None => Ok(None),
    }
}

/// Every block of a pool, from the block at which this node starts, so that nodes that search at the same time do not collide.
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

/// Whether a selector of Calico's language selects these labels. The supported part of the language: `all()`,
/// `!all()`, `has(label)`, `!has(label)`, `label == 'value'`, `label != 'value'`, and `&&` between them.
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
            bail!("read the node selector {selector:?}: the stand-in does not support {term:?}");
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
    fn each_node_starts_at_another_block_and_lists_every_block() {
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

    fn pools() -> Vec<IPPool> {
        let mut old = pool("10.244.0.0/16", None);
        old.metadata.name = Some("old".to_owned());
        let mut new = pool("10.200.0.0/16", None);
        new.metadata.name = Some("new".to_owned());
        vec![old, new]
    }

    fn ranges(pools: &[IPPool]) -> Vec<&str> {
        pools.iter().map(|pool| pool.spec.cidr.as_str()).collect()
    }

    #[test]
    fn pools_are_requested_by_name_or_range() {
        let pools = pools();
        let asked = |text: &str| named(&pools, &[text.to_owned()]);
        assert_eq!(asked("new").unwrap(), ["10.200.0.0/16".parse().unwrap()]);
        assert_eq!(
            asked("10.200.0.9/16").unwrap(),
            ["10.200.0.0/16".parse().unwrap()]
        );
        let error = asked("newer").unwrap_err().to_string();
        assert_eq!(error, "error parsing pool \"newer\": invalid CIDR address: newer");
    }

    #[test]
    fn a_requested_pool_must_be_enabled_and_need_not_select_the_node() {
        let mut pools = pools();
        pools[1].spec.node_selector = Some("!all()".to_owned());
        let wanted = named(&pools, &["new".to_owned()]).unwrap();
        let chosen = requested_pools(&enabled(pools.clone()), &wanted).unwrap();
        assert_eq!(ranges(&chosen), ["10.200.0.0/16"]);
        pools[1].spec.disabled = true;
        let error = requested_pools(&enabled(pools.clone()), &wanted)
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "the given pool (10.200.0.0/16) does not exist, or is not enabled"
        );
    }

    #[test]
    fn an_automatic_pool_serves_the_nodes_and_namespaces_that_it_selects() {
        let node = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
        let namespace = BTreeMap::from([("team".to_owned(), "x".to_owned())]);
        let chosen = |change: fn(&mut IPPoolSpec)| {
            let mut pools = pools();
            change(&mut pools[1].spec);
            let chosen = automatic(&enabled(pools), &node, &namespace).unwrap();
            chosen.len() == 2
        };
        assert!(chosen(|_| {}));
        assert!(chosen(|pool| pool.node_selector = Some("zone == 'a'".to_owned())));
        assert!(chosen(
            |pool| pool.namespace_selector = Some("team == 'x'".to_owned())
        ));
        assert!(!chosen(|pool| pool.node_selector = Some("!all()".to_owned())));
        assert!(!chosen(
            |pool| pool.namespace_selector = Some("team == 'y'".to_owned())
        ));
        assert!(!chosen(|pool| pool.assignment_mode = Some("Manual".to_owned())));
        assert!(!chosen(|pool| pool.disabled = true));
    }

    #[test]
    fn uses() {
        let mut spec = pool("10.244.0.0/24", None).spec;
        assert!(allows(&spec, Use::Tunnel));
        spec.allowed_uses = Some(vec!["Workload".to_owned()]);
        assert!(allows(&spec, Use::Workload) && !allows(&spec, Use::Tunnel));
    }
}
