//! Addresses of living pods into Calico's IPAM, and out of it: handle and block, in Calico's own order.

use std::collections::BTreeMap;
use std::net::IpAddr;

use api::node_migration::NodeMigrationSpec;
use ipnet::IpNet;
use kube::core::DynamicObject;
use plan::flannel_to_calico::import::{ImportedAddress, imported_as, reserved_handle};
use plan::flannel_to_calico::objects::{self, Allocation, BlockConflict};
use serde_json::Value;

use super::node_objects::Outcome;
use crate::calico;
use crate::context::Context;
use crate::write::WriteError;

/// Tells Calico's IPAM of these addresses, and remembers in `spec` what it was told.
pub async fn import(
    context: &Context,
    node: &str,
    allocations: &[Allocation],
    spec: &mut NodeMigrationSpec,
) -> Result<Outcome, WriteError> {
    for (block, read) in blocks_of(context, node).await? {
        let of_block: Vec<Allocation> = allocations
            .iter()
            .filter(|allocation| block.contains(&allocation.address))
            .cloned()
            .collect();
        if of_block.is_empty() {
            continue;
        }
        // The handle first: an address that no handle knows is released by nobody.
        for (handle, addresses) in count(&of_block, &spec.imported, block) {
            let object = objects::handle(&handle, block, addresses);
            let change = |found: &Value| objects::handle_change(found, block, addresses);
            calico::IPAM_HANDLE
                .ensure(&context.client, &object, change)
                .await?;
        }
        let change = objects::block_change(&read.data["spec"], block, node, &of_block);
        if let Some(message) = write_block(context, &read, change).await? {
            return Ok(Outcome::Blocked(message));
        }
        spec.imported.extend(of_block.iter().map(imported_as));
    }
    let told = |allocation: &&Allocation| spec.imported.contains(&imported_as(allocation));
    match allocations.iter().find(|allocation| !told(allocation)) {
        Some(allocation) => Ok(Outcome::Blocked(format!(
            "no IPAMBlock of node {node} holds address {}, which {} has; see `kubectl get ipamblocks.crd.projectcalico.org`",
            allocation.address, allocation.handle
        ))),
        None => Ok(Outcome::Written),
    }
}

/// Takes these back, each where it is still under its handle: Calico's own DEL may have been first, and the address may
/// be another pod's by now.
pub async fn release(
    context: &Context,
    node: &str,
    addresses: &[ImportedAddress],
    spec: &mut NodeMigrationSpec,
) -> Result<Outcome, WriteError> {
    for (block, read) in blocks_of(context, node).await? {
        let of_block: Vec<(IpAddr, &str)> = addresses
            .iter()
            .filter(|imported| block.contains(&imported.address))
            .map(|imported| (imported.address, imported.handle.as_str()))
            .collect();
        if of_block.is_empty() {
            continue;
        }
        let change = objects::block_release(&read.data["spec"], block, &of_block);
        if let Some(message) = write_block(context, &read, change).await? {
            return Ok(Outcome::Blocked(message));
        }
    }
    spec.imported.retain(|imported| !addresses.contains(imported));
    for imported in addresses {
        // A handle of several addresses (those that are reserved) goes with its last.
        if !spec.imported.iter().any(|kept| kept.handle == imported.handle) {
            let name = objects::handle_name(&imported.handle);
            calico::IPAM_HANDLE.delete(&context.client, &name).await?;
        }
    }
    Ok(Outcome::Written)
}

/// Takes back every address of the node's but the one on its tunnel: no pod of Calico's is on it any more. What an agent or a
/// plugin could not say in time goes with it.
pub async fn release_all(context: &Context, node: &str) -> Result<Outcome, WriteError> {
    let tunnels = objects::tunnel_handles(node);
    for (block, read) in blocks_of(context, node).await? {
        let allocated = match objects::allocated(&read.data["spec"], block) {
            Ok(allocated) => allocated,
            Err(conflict) => return Ok(Outcome::Blocked(conflict.to_string())),
        };
        let others: Vec<(IpAddr, &str)> = allocated
            .iter()
            .filter(|(_, handle)| !tunnels.contains(handle))
            .map(|(address, handle)| (*address, handle.as_str()))
            .collect();
        // The handles first: after a crash they are found again by the block, and without it by nobody.
        for (_, handle) in others.iter().filter(|(_, handle)| !handle.is_empty()) {
            calico::IPAM_HANDLE
                .delete(&context.client, &objects::handle_name(handle))
                .await?;
        }
        let change = objects::block_release(&read.data["spec"], block, &others);
        if let Some(message) = write_block(context, &read, change).await? {
            return Ok(Outcome::Blocked(message));
        }
    }
    let reserved = objects::handle_name(&reserved_handle(node));
    calico::IPAM_HANDLE.delete(&context.client, &reserved).await?;
    Ok(Outcome::Written)
}

/// How many addresses of the block each handle has, those that were told before included.
fn count(allocations: &[Allocation], imported: &[ImportedAddress], block: IpNet) -> BTreeMap<String, u32> {
    let mut counted: BTreeMap<String, u32> = BTreeMap::new();
    for allocation in allocations {
        *counted.entry(allocation.handle.clone()).or_default() += 1;
    }
    for known in imported.iter().filter(|known| block.contains(&known.address)) {
        let again = allocations
            .iter()
            .any(|allocation| imported_as(allocation) == *known);
        if let Some(count) = counted.get_mut(&known.handle).filter(|_| !again) {
            *count += 1;
        }
    }
    counted
}

/// Writes what was decided about a block; returns what is in the way.
async fn write_block(
    context: &Context,
    read: &DynamicObject,
    change: Result<Option<Value>, BlockConflict>,
) -> Result<Option<String>, WriteError> {
    match change {
        Ok(Some(change)) => {
            calico::IPAM_BLOCK
                .patch_spec(&context.client, read, &change)
                .await?;
            Ok(None)
        }
        Ok(None) => Ok(None),
        Err(conflict) => Ok(Some(conflict.to_string())),
    }
}

/// The node's blocks, as they are now.
async fn blocks_of(context: &Context, node: &str) -> Result<Vec<(IpNet, DynamicObject)>, WriteError> {
    let affinity = objects::affinity(node);
    let mut found = Vec::new();
    for read in calico::IPAM_BLOCK.list(&context.client).await? {
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
