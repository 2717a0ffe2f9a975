//! Tunnel addresses in Calico's IPAM: held for the tunnels that get them, and released after the tunnels have left them. Each
//! write has the version that was read.

use calico::{BlockConflict, allocated, block_change, block_release, handle, handle_change};
use crash_point::Edge;
use engine::words::names;
use kube::core::DynamicObject;
use pod_cidr::tunnel::TunnelAllocation;
use serde_json::Value;

use super::{Outcome, StepExecutor};
use crate::calico::error::CalicoStoreError;
use crate::calico::{IPAM_BLOCK, IPAM_HANDLE};

impl StepExecutor<'_> {
    /// Allocates these addresses to their nodes in Calico's IPAM, in Calico's own order.
    pub(super) async fn hold_addresses(
        &self,
        ends: &[TunnelAllocation],
    ) -> Result<Outcome, CalicoStoreError> {
        let mut refused = None;
        for end in ends {
            // An address that cannot be held delays no other.
            refused = refused.or(self.attempt(end, self.hold_end(end)).await?);
        }
        let said: Vec<String> = ends
            .iter()
            .map(|end| format!("{} of node {}", end.allocation.address, end.node))
            .collect();
        Ok(refused.map_or_else(
            || {
                Outcome::Done(format!(
                    "former tunnel addresses allocated to their nodes again ({}): {}",
                    said.len(),
                    names(&said)
                ))
            },
            Outcome::Refused,
        ))
    }

    /// Runs the writes of one address: a refusal of the API server does not keep the other addresses from being written.
    async fn attempt(
        &self,
        end: &TunnelAllocation,
        writes: impl Future<Output = Result<Option<String>, CalicoStoreError>>,
    ) -> Result<Option<String>, CalicoStoreError> {
        let object = format!("IPAMBlock {}", end.block);
        let made = self.context.obstacles.attempt(&object, writes).await?;
        Ok(made.flatten())
    }

    /// Why the address cannot be held; `None` when it is held.
    pub(super) async fn hold_end(&self, end: &TunnelAllocation) -> Result<Option<String>, CalicoStoreError> {
        let Some(read) = self.store.block(end.block).await? else {
            return Ok(Some(block_deleted(end)));
        };
        let spec = &read.data["spec"];
        // The handle first: an address that no handle counts is never released.
        if let Some(refused) = self.ensure_counted(end, spec).await? {
            return Ok(Some(refused));
        }
        crash_point::reach("EndCounted", Edge::Changed, None).await;
        let change = block_change(spec, end.block, &end.node, std::slice::from_ref(&end.allocation));
        self.write_block(&read, change).await
    }

    /// Makes the handle of an address count it: the handle of a former address may have been released. Returns the reason when
    /// that is impossible.
    async fn ensure_counted(
        &self,
        end: &TunnelAllocation,
        spec: &Value,
    ) -> Result<Option<String>, CalicoStoreError> {
        let TunnelAllocation {
            block, allocation, ..
        } = end;
        let others = match others(end, spec) {
            Ok(others) => others,
            Err(refused) => return Ok(Some(refused)),
        };
        let object = handle(&allocation.handle, *block, others + 1);
        let counted = |found: &Value| handle_change(found, *block, others + 1);
        self.store
            .ensure_handle(&allocation.handle, &object, counted)
            .await?;
        Ok(None)
    }

    /// Releases these addresses, as Calico does when it exchanges one itself.
    pub(super) async fn release_addresses(
        &self,
        ends: &[TunnelAllocation],
    ) -> Result<Outcome, CalicoStoreError> {
        let mut refused = None;
        for end in ends {
            refused = refused.or(self.attempt(end, self.release_end(end)).await?);
        }
        Ok(refused.map_or_else(
            || Outcome::Done(format!("temporary tunnel addresses released: {}", ends.len())),
            Outcome::Refused,
        ))
    }

    /// Why the address cannot be released; `None` when it is released.
    async fn release_end(&self, end: &TunnelAllocation) -> Result<Option<String>, CalicoStoreError> {
        let (block, allocation) = (end.block, &end.allocation);
        let Some(read) = self.store.block(block).await? else {
            return Ok(None);
        };
        let spec = &read.data["spec"];
        let others = match others(end, spec) {
            Ok(others) => others,
            Err(refused) => return Ok(Some(refused)),
        };
        // The handle first: after a crash the address is found again by its block.
        if let Some(handle) = self.store.handle(&allocation.handle).await?
            && let Some(change) = handle_change(&handle.data["spec"], block, others)
        {
            self.store.patch_spec(IPAM_HANDLE, &handle, &change).await?;
        }
        crash_point::reach("EndUncounted", Edge::Changed, None).await;
        let change = block_release(spec, block, &[(allocation.address, &allocation.handle)]);
        self.write_block(&read, change).await
    }

    /// Writes a block as it was read. Returns the conflict when the block's content forbids the change.
    async fn write_block(
        &self,
        read: &DynamicObject,
        change: Result<Option<Value>, BlockConflict>,
    ) -> Result<Option<String>, CalicoStoreError> {
        match change {
            Ok(Some(change)) => {
                self.store.patch_spec(IPAM_BLOCK, read, &change).await?;
                Ok(None)
            }
            Ok(None) => Ok(None),
            Err(conflict) => Ok(Some(conflict.to_string())),
        }
    }
}

fn block_deleted(end: &TunnelAllocation) -> String {
    format!(
        "IPAMBlock {} of node {} was deleted a moment ago",
        end.block, end.node
    )
}

/// Number of other addresses of the block that the handle has.
fn others(end: &TunnelAllocation, spec: &Value) -> Result<u32, String> {
    let TunnelAllocation {
        block, allocation, ..
    } = end;
    let found = allocated(spec, *block).map_err(|conflict| conflict.to_string())?;
    let others = found
        .iter()
        .filter(|(address, of)| *of == allocation.handle && *address != allocation.address);
    Ok(u32::try_from(others.count()).unwrap_or(u32::MAX))
}
