//! Imports addresses of live pods into Calico's IPAM, and releases them: handle and block, in Calico's order.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ::flannel_to_calico::api::OrEmpty as _;
use api::node_migration::NodeMigrationSpec;
use flannel_to_calico::import::{
    ImportedAddress, address_outside_blocks, imported_as, invalid_sandbox, reserved_handle,
};
use flannel_to_calico::objects::{self, Allocation, BlockConflict, Released};
use ipnet::IpNet;
use kube::core::DynamicObject;
use serde_json::Value;

use super::super::blocks::{Own, claims_of};
use super::super::node_objects::Outcome;
use crate::calico::{self, Created};
use crate::context::Context;
use crate::pass_error::PassError;
use crate::write::WriteError;

/// Adds these addresses to Calico's IPAM, and records them in `spec`.
pub async fn import(
    context: &Context,
    own: &Own<'_>,
    allocations: &[Allocation],
    spec: &mut NodeMigrationSpec,
) -> Result<Outcome, PassError> {
    let node = own.node;
    if let Some(message) = invalid_sandbox(node, allocations) {
        return Ok(Outcome::Blocked(message));
    }
    let blocks = own.read(context).await?;
    let own: Vec<IpNet> = blocks.iter().map(|(block, _)| *block).collect();
    if let Some(message) = address_outside_blocks(node, allocations, &own) {
        return Ok(Outcome::Blocked(message));
    }
    for (block, read) in blocks {
        let of_block: Vec<Allocation> = allocations
            .iter()
            .filter(|allocation| block.contains(&allocation.address))
            .cloned()
            .collect();
        if of_block.is_empty() {
            continue;
        }
        // The handle first: an address without a handle is never released.
        for (handle, addresses) in count(
            &of_block,
            &spec.flannel_to_calico.or_empty().imported_addresses,
            block,
        ) {
            if let Some(message) = write_handle(context, node, &own, &handle, block, addresses).await? {
                return Ok(Outcome::Blocked(message));
            }
        }
        let change = objects::block_change(&read.data["spec"], block, node, &of_block);
        if let Some(message) = write_block(context, &read, change).await? {
            return Ok(Outcome::Blocked(message));
        }
        spec.flannel_to_calico
            .get_or_insert_default()
            .imported_addresses
            .extend(of_block.iter().map(imported_as));
    }
    let is_imported = |allocation: &&Allocation| {
        spec.flannel_to_calico
            .or_empty()
            .imported_addresses
            .contains(&imported_as(allocation))
    };
    match allocations.iter().find(|allocation| !is_imported(allocation)) {
        Some(allocation) => Ok(Outcome::Blocked(format!(
            "node {node}: none of its IPAMBlocks holds address {} of handle {}; see `kubectl get \
             ipamblocks.crd.projectcalico.org`",
            allocation.address, allocation.handle
        ))),
        None => Ok(Outcome::Written),
    }
}

/// Releases these addresses, each if it is still under its handle: Calico's own DEL may have been first, and the address may
/// belong to another pod by now. Of a handle, only addresses in the node's blocks are released: an agent's report concerns its
/// own node.
pub async fn release(
    context: &Context,
    own: &Own<'_>,
    addresses: &[ImportedAddress],
    spec: &mut NodeMigrationSpec,
) -> Result<Outcome, PassError> {
    let blocks = own.read(context).await?;
    let own: Vec<IpNet> = blocks.iter().map(|(block, _)| *block).collect();
    for (block, read) in blocks {
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
    spec.flannel_to_calico
        .get_or_insert_default()
        .imported_addresses
        .retain(|imported| !addresses.contains(imported));
    for imported in addresses {
        // A handle with several addresses (reserved ones) is deleted with the last.
        if !spec
            .flannel_to_calico
            .or_empty()
            .imported_addresses
            .iter()
            .any(|kept| kept.handle == imported.handle)
        {
            release_handle(context, &imported.handle, &own).await?;
        }
    }
    Ok(Outcome::Written)
}

/// Releases every address of the node except that of its tunnel: no pod of Calico remains on the node. This includes addresses
/// that an agent or a plugin could not report in time.
pub async fn release_all(context: &Context, own: &Own<'_>) -> Result<Outcome, PassError> {
    let node = own.node;
    let tunnels = objects::tunnel_handles(node);
    // Once for each node: later affinities of Calico for the node are included.
    let mut own = own.clone();
    own.blocks.extend(
        claims_of(context, node)
            .await?
            .into_iter()
            .map(objects::block_name),
    );
    let blocks = own.read(context).await?;
    let own: Vec<IpNet> = blocks.iter().map(|(block, _)| *block).collect();
    for (block, read) in blocks {
        let allocated = match objects::allocated(&read.data["spec"], block) {
            Ok(allocated) => allocated,
            Err(conflict) => return Ok(Outcome::Blocked(conflict.to_string())),
        };
        let others: Vec<(IpAddr, &str)> = allocated
            .iter()
            .filter(|(_, handle)| !tunnels.contains(handle))
            .map(|(address, handle)| (*address, handle.as_str()))
            .collect();
        // The handles first: after a crash they are found through the block, and not without it.
        for (_, handle) in others.iter().filter(|(_, handle)| !handle.is_empty()) {
            release_handle(context, handle, &own).await?;
        }
        let change = objects::block_release(&read.data["spec"], block, &others);
        if let Some(message) = write_block(context, &read, change).await? {
            return Ok(Outcome::Blocked(message));
        }
    }
    // This handle is named after the node, independent of the agent's report.
    let reserved = objects::handle_name(&reserved_handle(node));
    calico::IPAM_HANDLE.delete(&context.client, &reserved).await?;
    Ok(Outcome::Written)
}

/// Writes the number of the block's addresses to the handle; returns the obstacle. A handle with addresses in another node's
/// blocks belongs to a pod of that node: it is not changed, even if an agent reports its sandbox here.
async fn write_handle(
    context: &Context,
    node: &str,
    own: &[IpNet],
    handle: &str,
    block: IpNet,
    addresses: u32,
) -> Result<Option<String>, WriteError> {
    let object = objects::handle(handle, block, addresses);
    if calico::IPAM_HANDLE.create(&context.client, &object).await? == Created::Now {
        return Ok(None);
    }
    let name = objects::handle_name(handle);
    let Some(read) = calico::IPAM_HANDLE.get(&context.client, &name).await? else {
        return Ok(Some(format!(
            "IPAMHandle {name} was deleted a moment ago; the coordinator retries"
        )));
    };
    let found = &read.data["spec"];
    let is_own = |name: &str| name.parse().is_ok_and(|block: IpNet| own.contains(&block));
    if let Some(foreign) = objects::handle_blocks(found).find(|name| !is_own(name)) {
        return Ok(Some(format!(
            "IPAMHandle {name} has addresses of block {foreign}, which is not a block of node {node}, but the agent of node \
             {node} reports its sandbox; see `kubectl get ipamhandles.crd.projectcalico.org {name} -o yaml`"
        )));
    }
    if let Some(change) = objects::handle_change(found, block, addresses) {
        calico::IPAM_HANDLE
            .patch_spec(&context.client, &read, &change)
            .await?;
    }
    Ok(None)
}

/// Removes these blocks from the handle; deletes the handle if no block remains.
async fn release_handle(context: &Context, handle: &str, blocks: &[IpNet]) -> Result<(), WriteError> {
    let name = objects::handle_name(handle);
    let Some(read) = calico::IPAM_HANDLE.get(&context.client, &name).await? else {
        return Ok(());
    };
    match objects::handle_release(&read.data["spec"], blocks) {
        Released::Nothing => Ok(()),
        Released::Part(change) => {
            calico::IPAM_HANDLE
                .patch_spec(&context.client, &read, &change)
                .await
        }
        Released::Whole => calico::IPAM_HANDLE.delete(&context.client, &name).await,
    }
}

/// Number of the block's addresses for each handle, including earlier imports.
fn count(allocations: &[Allocation], imported: &[ImportedAddress], block: IpNet) -> BTreeMap<String, u32> {
    let mut counted: BTreeMap<String, u32> = BTreeMap::new();
    for allocation in allocations {
        *counted.entry(allocation.handle.clone()).or_default() += 1;
    }
    for known in imported.iter().filter(|known| block.contains(&known.address)) {
        let is_repeated = allocations
            .iter()
            .any(|allocation| imported_as(allocation) == *known);
        if let Some(count) = counted.get_mut(&known.handle).filter(|_| !is_repeated) {
            *count += 1;
        }
    }
    counted
}

/// Writes the change of a block; returns the obstacle.
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::super::blocks::named;
    use super::super::super::scenarios::CALICO_GROUP;
    use super::*;
    use crate::fake_api::FakeApi;

    const HANDLE: &str = "k8s-pod-network.s2";

    fn block(third: u8) -> IpNet {
        format!("10.244.{third}.0/26").parse().unwrap()
    }

    fn allocation(handle: &str) -> Allocation {
        Allocation {
            address: "10.244.1.9".parse().unwrap(),
            handle: handle.to_owned(),
            attributes: BTreeMap::new(),
        }
    }

    fn handle_path() -> String {
        format!("{CALICO_GROUP}/ipamhandles/{HANDLE}")
    }

    /// Node a has a block with these allocations, and a pod of node b has the handle.
    fn cluster(of_a: &[Allocation]) -> FakeApi {
        let api = FakeApi::default();
        for (third, node, allocations) in [(1, "a", of_a), (2, "b", &[][..])] {
            let object = objects::block(block(third), node, allocations, 1).unwrap();
            let name = objects::block_name(block(third));
            api.put(&format!("{CALICO_GROUP}/ipamblocks/{name}"), object);
        }
        api.put(&handle_path(), objects::handle(HANDLE, block(2), 1));
        api
    }

    fn spec(imported: &[ImportedAddress]) -> NodeMigrationSpec {
        serde_json::from_value(json!({ "nodeName": "a", "migration": "m", "flannelToCalico": { "importedAddresses": imported } }))
            .unwrap()
    }

    fn of_a() -> Own<'static> {
        Own {
            node: "a",
            blocks: named([block(1), block(3)]),
        }
    }

    fn blocked(outcome: Outcome) -> String {
        match outcome {
            Outcome::Blocked(message) => message,
            Outcome::Written => panic!("unexpected write"),
        }
    }

    /// A stolen token of node a's agent reports the sandbox of a pod on node b.
    #[tokio::test]
    async fn a_sandbox_of_a_pod_on_another_node_is_not_imported() {
        let api = cluster(&[]);
        let before = api.get(&handle_path());
        let mut spec = spec(&[]);
        let outcome = import(&api.context(), &of_a(), &[allocation(HANDLE)], &mut spec)
            .await
            .unwrap();
        let message = blocked(outcome);
        for word in [
            "IPAMHandle k8s-pod-network.s2",
            "block 10.244.2.0/26",
            "agent of node a",
        ] {
            assert!(message.contains(word), "{message}");
        }
        assert_eq!(api.get(&handle_path()), before);
        assert_eq!(api.take_changes(), []);
        assert_eq!(spec.flannel_to_calico.or_empty().imported_addresses, []);
    }

    /// The agent withdraws the sandbox: an earlier version may have imported it.
    #[tokio::test]
    async fn addresses_of_a_pod_on_another_node_are_not_released() {
        let own = allocation(HANDLE);
        let api = cluster(std::slice::from_ref(&own));
        api.edit(
            &handle_path(),
            &json!({ "spec": { "block": { "10.244.1.0/26": 1 } } }),
        );
        let imported = vec![imported_as(&own)];
        let mut spec = spec(&imported);
        let outcome = release(&api.context(), &of_a(), &imported, &mut spec)
            .await
            .unwrap();
        assert_eq!(outcome, Outcome::Written);
        assert_eq!(spec.flannel_to_calico.or_empty().imported_addresses, []);
        let handle = api.get(&handle_path()).unwrap();
        assert_eq!(handle["spec"]["block"], json!({ "10.244.2.0/26": 1 }));

        // The same if none of its addresses is on the node.
        api.take_changes();
        let outcome = release(&api.context(), &of_a(), &imported, &mut spec)
            .await
            .unwrap();
        assert_eq!(outcome, Outcome::Written);
        assert_eq!(api.get(&handle_path()), Some(handle));
        assert_eq!(api.take_changes(), []);
    }

    #[tokio::test]
    async fn releasing_all_keeps_the_blocks_of_another_node_in_a_handle() {
        let api = cluster(&[allocation(HANDLE)]);
        api.edit(
            &handle_path(),
            &json!({ "spec": { "block": { "10.244.1.0/26": 1 } } }),
        );
        let outcome = release_all(&api.context(), &of_a()).await.unwrap();
        assert_eq!(outcome, Outcome::Written);
        let handle = api.get(&handle_path()).unwrap();
        assert_eq!(handle["spec"]["block"], json!({ "10.244.2.0/26": 1 }));
        let own = api
            .get(&format!(
                "{CALICO_GROUP}/ipamblocks/{}",
                objects::block_name(block(1))
            ))
            .unwrap();
        assert_eq!(objects::allocated(&own["spec"], block(1)).unwrap(), []);
    }

    #[tokio::test]
    async fn an_invalid_sandbox_name_stops_the_node_before_any_write() {
        for sandbox in ["../../namespaces/x", "a b", ""] {
            let api = cluster(&[]);
            let wanted = [allocation(&format!("k8s-pod-network.{sandbox}"))];
            let outcome = import(&api.context(), &of_a(), &wanted, &mut spec(&[]))
                .await
                .unwrap();
            let message = blocked(outcome);
            assert!(message.contains(&format!("{sandbox:?}")), "{message}");
            assert_eq!(api.take_changes(), []);
        }
    }
}
