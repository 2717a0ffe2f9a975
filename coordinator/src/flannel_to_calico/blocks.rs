//! Which blocks of Calico's IPAM are a node's. Their names follow from what is known of the node, and each is fetched by its name: a
//! list of every block of a large cluster is hundreds of megabytes.

use std::collections::BTreeSet;

use api::node_migration::NodeBefore;
use api::{MigrationStatus, NodeMigration};
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use kube::core::DynamicObject;
use plan::flannel::SubnetEnvironment;
use plan::flannel_to_calico::import::claimed;
use plan::flannel_to_calico::objects::{self, affinity, block_name, hostname_hash};
use plan::flannel_to_calico::settings::Settings;

use crate::calico;
use crate::context::Context;
use crate::facts;
use crate::write::WriteError;

/// A node, and the names of blocks that can be its own.
#[derive(Clone, Debug)]
pub struct Own<'node> {
    /// Name of the node.
    pub node: &'node str,
    /// Names of blocks.
    pub blocks: BTreeSet<String>,
}

impl<'node> Own<'node> {
    /// What the migration claims for this node, and what the node had before.
    pub fn of(name: &'node str, node: &Node, settings: &Settings, before: Option<&NodeBefore>) -> Self {
        let mut blocks: BTreeSet<String> = of_node(node, settings).into_iter().map(block_name).collect();
        blocks.extend(
            before
                .into_iter()
                .flat_map(|before| before.blocks.iter().cloned()),
        );
        Self { node: name, blocks }
    }

    /// The blocks that are there and the node's, as they are now.
    pub async fn read(&self, context: &Context) -> Result<Vec<(IpNet, DynamicObject)>, WriteError> {
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

/// Ranges of the blocks that a node had which is gone: by what its agent has said, by what was there before, and by claims.
pub async fn of_gone_node(
    context: &Context,
    object: &NodeMigration,
    status: Option<&MigrationStatus>,
) -> Result<BTreeSet<IpNet>, WriteError> {
    let settings = status.and_then(|status| status.flannel_to_calico.as_ref());
    let facts = object.status.as_ref().and_then(|status| status.facts.as_ref());
    let said = facts.and_then(|facts| facts.subnet_environment.present());
    let mut ranges = match (settings, said) {
        (Some(status), Some(said)) => of_subnets(said, &status.settings),
        (Some(_) | None, _) => BTreeSet::new(),
    };
    let before = object.spec.before.iter().flat_map(|before| &before.blocks);
    for name in before {
        let found = calico::IPAM_BLOCK.get(&context.client, name).await?;
        ranges.extend(found.as_ref().and_then(range));
    }
    ranges.extend(claims_of(context, &object.spec.node_name).await?);
    Ok(ranges)
}

/// Ranges that the node has claimed, with labels as Calico writes them since v3.30, and as this tool does.
pub async fn claims_of(context: &Context, node: &str) -> Result<BTreeSet<IpNet>, WriteError> {
    let labels = format!("projectcalico.org/hostname-hash={}", hostname_hash(node));
    let mut ranges = BTreeSet::new();
    calico::BLOCK_AFFINITY
        .each_labelled(&context.client, &labels, |claim| {
            if claim.data["spec"]["node"].as_str() == Some(node) {
                ranges.extend(range(&claim));
            }
        })
        .await?;
    Ok(ranges)
}

/// The range of a block or a claim; `None` where it is not understood: it is nobody's then.
pub fn range(object: &DynamicObject) -> Option<IpNet> {
    let range: IpNet = object.data["spec"]["cidr"].as_str()?.parse().ok()?;
    Some(range.trunc())
}

/// Ranges of the blocks that the migration claims in these subnets.
fn of_subnets(said: &SubnetEnvironment, settings: &Settings) -> BTreeSet<IpNet> {
    let ipv6 = said.ipv6.as_ref().map(|ipv6| IpNet::V6(ipv6.subnet));
    let subnets: Vec<IpNet> = [Some(IpNet::V4(said.subnet)), ipv6]
        .into_iter()
        .flatten()
        .collect();
    let networks = settings.pod_networks();
    let of_networks = networks.iter().flat_map(|network| {
        let inside = subnets.iter().filter(|subnet| network.range.contains(*subnet));
        inside.flat_map(|subnet| {
            // A subnet that holds no block is the check IpamBlocks's.
            objects::blocks(subnet.trunc(), objects::block_size(network)).unwrap_or_default()
        })
    });
    of_networks.collect()
}

/// Names of the blocks of these ranges.
#[cfg(test)]
pub fn named(ranges: impl IntoIterator<Item = IpNet>) -> BTreeSet<String> {
    ranges.into_iter().map(block_name).collect()
}
