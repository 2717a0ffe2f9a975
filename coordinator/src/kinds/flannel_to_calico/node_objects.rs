//! Calico's objects for one node, needed before packets cross between the networks: affinities, blocks, the tunnel
//! address and its handle, and last the Node's annotations.
//!
//! The order is Calico's: the affinity is pending, the block is written, the affinity is confirmed. Each write is
//! skipped if nothing is missing, so that an interrupted one continues.

use std::collections::{BTreeMap, BTreeSet};

use api::{Migration, names};
use engine::cluster::IpPool;
use engine::ranges::overlap;
use flannel_to_calico::objects::{self, ClaimState, NodeObjects, Pool};
use flannel_to_calico::settings::Settings;
use ipnet::IpNet;
use k8s_openapi::api::core::v1::Node;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::pass::Pass;
use crate::calico::{self, Created};
use crate::clock;
use crate::context::Context;
use crate::facts;
use crate::pass_error::PassError;
use crate::read_error::ReadError;
use crate::write::{self, WriteError};

/// Whether everything is written, or the obstacle: one sentence with the object, the value and what is needed.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Everything is written.
    Written,
    /// Another change has to happen first.
    Blocked(String),
}

/// Whether everything is written for this Node and this Migration.
pub fn is_prepared(node: &Node, migration: &Migration) -> bool {
    node.annotations().get(names::PREPARED_BY_ANNOTATION) == migration.metadata.uid.as_ref()
}

/// The existing pools by name; or the error for one that cannot be parsed and may be in flannel's network. For one outside
/// flannel's network, the name and the range are enough.
pub async fn pools(
    context: &Context,
    settings: &Settings,
) -> Result<Result<BTreeMap<String, IpPool>, String>, ReadError> {
    let networks = settings.pod_networks();
    let is_apart = |range: &IpNet| networks.iter().all(|network| !overlap(&network.range, range));
    let mut pools = BTreeMap::new();
    for object in calico::IP_POOL.list(&context.client).await? {
        let apart = facts::calico::range(&object).filter(is_apart);
        let pool = match (facts::calico::ip_pool(&object), apart) {
            (Ok(pool), _) => pool,
            (Err(_), Some(cidr)) => facts::calico::pool_of_range(object.name_any(), cidr),
            (Err(malformed), None) => {
                return Ok(Err(format!("{}: {}", malformed.object, malformed.problem)));
            }
        };
        pools.insert(pool.name.clone(), pool);
    }
    Ok(Ok(pools))
}

/// Writes everything for one node.
pub(super) async fn write(pass: &Pass<'_>, pools: &[Pool], node: &Node) -> Result<Outcome, PassError> {
    let context = pass.context;
    let read = facts::nodes::node(node);
    let wanted = match objects::of_node(&read, pass.settings, pools) {
        Ok(wanted) => wanted,
        Err(error) => return Ok(Outcome::Blocked(error.to_string())),
    };
    for block in wanted.blocks() {
        if let Outcome::Blocked(message) = claim(context, &read.name, block, &wanted).await? {
            return Ok(Outcome::Blocked(message));
        }
    }
    let mut annotations: serde_json::Map<String, Value> = wanted
        .annotations
        .iter()
        .map(|(key, value)| ((*key).to_owned(), json!(value)))
        .collect();
    annotations.insert(
        names::PREPARED_BY_ANNOTATION.to_owned(),
        json!(pass.migration.metadata.uid),
    );
    let api: Api<Node> = Api::all(context.client.clone());
    write::patch(
        &api,
        node,
        "annotating",
        &json!({ "metadata": { "annotations": annotations } }),
    )
    .await?;
    Ok(Outcome::Written)
}

async fn claim(
    context: &Context,
    node: &str,
    block: IpNet,
    wanted: &NodeObjects,
) -> Result<Outcome, PassError> {
    write_affinity(context, node, block, ClaimState::Pending).await?;
    let allocations = wanted.allocations(block);
    for allocation in &allocations {
        let spec = objects::handle(&allocation.handle, block, 1);
        let change = |found: &Value| objects::handle_change(found, block, 1);
        calico::IPAM_HANDLE.ensure(&context.client, &spec, change).await?;
    }
    // Any number that no earlier block of the range has had; Calico uses the time, too.
    let sequence = u64::try_from(clock::now().as_nanosecond()).unwrap_or_default();
    let created = match objects::block(block, node, &allocations, sequence) {
        Ok(object) => calico::IPAM_BLOCK.create(&context.client, &object).await?,
        Err(conflict) => return Ok(Outcome::Blocked(conflict.to_string())),
    };
    if created == Created::Before
        && let Some(found) = calico::IPAM_BLOCK
            .get(&context.client, &objects::block_name(block))
            .await?
    {
        let spec = found.data.get("spec").cloned().unwrap_or_default();
        match objects::block_change(&spec, block, node, &allocations) {
            Ok(Some(change)) => {
                calico::IPAM_BLOCK
                    .patch_spec(&context.client, &found, &change)
                    .await?;
            }
            Ok(None) => {}
            Err(conflict) => return Ok(Outcome::Blocked(conflict.to_string())),
        }
    }
    confirm_affinity(context, node, block).await?;
    Ok(Outcome::Written)
}

/// Confirms the pending affinity; if it was deleted meanwhile, it is created again.
async fn confirm_affinity(context: &Context, node: &str, block: IpNet) -> Result<(), WriteError> {
    let state = ClaimState::Confirmed;
    let name = objects::affinity_name(node, block);
    let change = |found: &Value| objects::block_affinity_change(found, state);
    if calico::BLOCK_AFFINITY
        .amend(&context.client, &name, change)
        .await?
    {
        return Ok(());
    }
    write_affinity(context, node, block, state).await
}

async fn write_affinity(
    context: &Context,
    node: &str,
    block: IpNet,
    state: ClaimState,
) -> Result<(), WriteError> {
    let object = objects::block_affinity(node, block, state);
    calico::BLOCK_AFFINITY
        .ensure(&context.client, &object, |found| {
            objects::block_affinity_change(found, state)
        })
        .await
}

/// Removes a node's blocks without pod addresses, and their affinities. A block with a pod's address stays: Calico's garbage
/// collection handles it. So do blocks with a name in `known`, which existed before. Returns the names of blocks that should be
/// removed but hold addresses of other owners.
pub async fn remove(
    context: &Context,
    node: &str,
    blocks: &BTreeSet<IpNet>,
    known: &BTreeSet<String>,
) -> Result<Vec<String>, PassError> {
    let client = &context.client;
    let affinity = objects::affinity(node);
    let handles = objects::tunnel_handles(node);
    let mut kept = Vec::new();
    for range in blocks {
        let name = objects::block_name(*range);
        if known.contains(&name) {
            continue;
        }
        let found = calico::IPAM_BLOCK.get(client, &name).await?;
        if let Some(block) = &found {
            let spec = &block.data["spec"];
            if spec["affinity"].as_str() != Some(&affinity) {
                continue;
            }
            let held_by_others = spec["attributes"].as_array().is_some_and(|attributes| {
                attributes
                    .iter()
                    .any(|entry| !handles.iter().any(|handle| entry["handle_id"] == handle.as_str()))
            });
            if held_by_others {
                kept.push(name);
                continue;
            }
        }
        let claim = objects::affinity_name(node, *range);
        calico::BLOCK_AFFINITY.delete(client, &claim).await?;
        if found.is_some() {
            calico::IPAM_BLOCK.delete(client, &name).await?;
        }
    }
    if kept.is_empty() {
        for handle in &handles {
            calico::IPAM_HANDLE
                .delete(client, &objects::handle_name(handle))
                .await?;
        }
    }
    Ok(kept)
}
