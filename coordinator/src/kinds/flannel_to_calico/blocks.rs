//! Blocks of Calico's IPAM for each node. Their names follow from facts about the node, and each is read by name: a
//! list of all blocks of a large cluster has hundreds of megabytes.

use std::collections::{BTreeMap, BTreeSet};

use ::calico::node_of;
use ::flannel_to_calico::api::SavedNodeState;
use flannel_to_calico::import::claimed;
use flannel_to_calico::objects::{affinity, block_name, hostname_hash};
use flannel_to_calico::settings::Settings;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use kube::core::DynamicObject;

use crate::calico;
use crate::context::Context;
use crate::facts;
use crate::read_error::ReadError;

/// A node, and the names of blocks that may belong to it.
#[derive(Clone, Debug)]
pub struct Own<'node> {
    /// Name of the node.
    pub node: &'node str,
    /// Names of blocks.
    pub blocks: BTreeSet<String>,
}

impl<'node> Own<'node> {
    /// Blocks that the migration claims for this node, and those that the node had before.
    pub fn of(name: &'node str, node: &Node, settings: &Settings, before: Option<&SavedNodeState>) -> Self {
        let mut blocks: BTreeSet<String> = of_node(node, settings).into_iter().map(block_name).collect();
        blocks.extend(
            before
                .into_iter()
                .flat_map(|before| before.blocks.iter().cloned()),
        );
        Self { node: name, blocks }
    }

    /// The existing blocks of the node, as they are now.
    pub async fn read(&self, context: &Context) -> Result<Vec<(IpNet, DynamicObject)>, ReadError> {
        let affinity = affinity(self.node);
        let mut found = Vec::new();
        for name in &self.blocks {
            let Some(read) = calico::IPAM_BLOCK.get(&context.client, name).await? else {
                continue;
            };
            let spec = &read.data["spec"];
            if spec["affinity"].as_str() != Some(&affinity) {
                continue;
            }
            if let Some(Ok(range)) = spec["cidr"].as_str().map(str::parse) {
                found.push((range, read));
            }
        }
        Ok(found)
    }
}

/// Ranges of the blocks that the migration claims for this node.
pub fn of_node(node: &Node, settings: &Settings) -> BTreeSet<IpNet> {
    let claimed = claimed(&facts::nodes::node(node), &settings.pod_networks());
    claimed.into_iter().flat_map(|claimed| claimed.blocks).collect()
}

/// Ranges of the blocks of each node, from the blocks themselves: an affinity may be gone while its block still exists. One paged
/// list of all blocks: once for each rollback, and once for each Node that is gone.
pub async fn by_node(context: &Context) -> Result<BTreeMap<String, BTreeSet<IpNet>>, ReadError> {
    let found = calico::IPAM_BLOCK.each(&context.client, |block| {
        let node = block.data["spec"]["affinity"].as_str().and_then(node_of)?;
        Some((node.to_owned(), range(&block)?))
    });
    let mut blocks: BTreeMap<String, BTreeSet<IpNet>> = BTreeMap::new();
    for (node, range) in found.await? {
        blocks.entry(node).or_default().insert(range);
    }
    Ok(blocks)
}

/// Ranges of the node's affinities, by the labels of Calico since v3.30, which replumb writes, too.
pub async fn claims_of(context: &Context, node: &str) -> Result<BTreeSet<IpNet>, ReadError> {
    let labels = format!("projectcalico.org/hostname-hash={}", hostname_hash(node));
    let claims = calico::BLOCK_AFFINITY.each_labelled(&context.client, &labels, |claim| {
        let is_its_own = claim.data["spec"]["node"].as_str() == Some(node);
        range(&claim).filter(|_| is_its_own)
    });
    Ok(claims.await?.into_iter().collect())
}

/// The range of a block or an affinity; `None` if it cannot be parsed: then it belongs to no node.
fn range(object: &DynamicObject) -> Option<IpNet> {
    let range: IpNet = object.data["spec"]["cidr"].as_str()?.parse().ok()?;
    Some(range.trunc())
}

/// Names of the blocks of these ranges.
#[cfg(test)]
pub fn named(ranges: impl IntoIterator<Item = IpNet>) -> BTreeSet<String> {
    ranges.into_iter().map(block_name).collect()
}
