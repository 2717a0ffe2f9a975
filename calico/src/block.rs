//! `IPAMBlock`: a range of a node with the addresses that are allocated in it.

mod content;

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde_json::{Map, Value, json};
use thiserror::Error;

use self::content::{Content, address, size};
use super::API_VERSION;
use super::names::block_name;

/// An allocated address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// The address.
    pub address: IpAddr,
    /// The handle by which the address is released.
    pub handle: String,
    /// The owner of the address: `node`, `type`, `pod`, `namespace`.
    pub attributes: BTreeMap<String, String>,
}

/// An existing block that cannot become what is needed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum BlockConflict {
    /// The block belongs to another node.
    #[error("IPAMBlock {block}: affinity is {found:?}, needed \"host:{node}\"")]
    OtherOwner {
        /// Range of the block.
        block: IpNet,
        /// The node that needs the block.
        node: String,
        /// The affinity that the block has.
        found: String,
    },
    /// The address belongs to another owner.
    #[error("IPAMBlock {block}: {address} is allocated to {found:?}, needed {needed:?}")]
    OtherHandle {
        /// Range of the block.
        block: IpNet,
        /// The address.
        address: IpAddr,
        /// The handle that has the address.
        found: String,
        /// The handle that needs the address.
        needed: String,
    },
    /// The address is not in the range of the block.
    #[error("IPAMBlock {block}: {address} is not in its range, needed a block that contains the address")]
    OutsideRange {
        /// Range of the block.
        block: IpNet,
        /// The address.
        address: IpAddr,
    },
    /// Calico is about to delete the block.
    #[error("IPAMBlock {block}: marked as deleted; Calico removes it shortly")]
    Deleted {
        /// Range of the block.
        block: IpNet,
    },
    /// The block is not in the form that Calico writes.
    #[error("IPAMBlock {block}: spec.{field}: found {found}, needed {needed}")]
    Malformed {
        /// Range of the block.
        block: IpNet,
        /// The field.
        field: &'static str,
        /// Value of the field.
        found: String,
        /// The value that is needed.
        needed: String,
    },
}

/// A new `IPAMBlock` of a node. `sequence` is any number that no earlier block of the range had: the time in
/// nanoseconds.
///
/// # Errors
///
/// The range is larger than a block of Calico may be, an address is outside of it, or two handles need the same address.
///
/// # Examples
///
/// ```
/// use calico::{Allocation, block};
///
/// let tunnel = Allocation {
///     address: "10.244.1.0".parse()?,
///     handle: "vxlan-tunnel-addr-a".to_owned(),
///     attributes: [("node".to_owned(), "a".to_owned())].into(),
/// };
/// let made = block("10.244.1.0/30".parse()?, "a", &[tunnel], 1)?;
/// assert_eq!(made["metadata"]["name"], "10-244-1-0-30");
/// assert_eq!(made["spec"]["affinity"], "host:a");
/// assert_eq!(made["spec"]["unallocated"], serde_json::json!([1, 2, 3]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn block(
    range: IpNet,
    node: &str,
    allocations: &[Allocation],
    sequence: u64,
) -> Result<Value, BlockConflict> {
    let size = size(range)?;
    let mut content = Content {
        range,
        allocations: vec![None; size],
        unallocated: (0..size).collect(),
        attributes: Vec::new(),
        sequences: Map::new(),
    };
    for allocation in allocations {
        content.take(allocation, sequence)?;
    }
    Ok(json!({
        "apiVersion": API_VERSION,
        "kind": "IPAMBlock",
        "metadata": { "name": block_name(range) },
        "spec": {
            "cidr": range.to_string(),
            "affinity": affinity(node),
            "allocations": content.allocations,
            "unallocated": content.unallocated,
            "attributes": content.attributes,
            "sequenceNumber": sequence,
            "sequenceNumberForAllocation": content.sequences,
            "deleted": false,
            // Unused today, but required by the schema.
            "strictAffinity": false,
        },
    }))
}

/// The patch for the spec of an existing `IPAMBlock` that gives it to the node and adds the allocations. Existing allocations are
/// kept. `None` when nothing is missing.
///
/// # Errors
///
/// The block belongs to another node or is marked as deleted, an address is outside of it or has another handle, or the spec is
/// not in the form that Calico writes.
pub fn block_change(
    spec: &Value,
    range: IpNet,
    node: &str,
    allocations: &[Allocation],
) -> Result<Option<Value>, BlockConflict> {
    if spec.get("deleted") == Some(&Value::Bool(true)) {
        return Err(BlockConflict::Deleted { block: range });
    }
    let mut content = Content::read(spec, range)?;
    let owner_changes = content.check_owner(spec, node)?;
    let sequence = spec
        .get("sequenceNumber")
        .and_then(Value::as_u64)
        .unwrap_or_default();
    let mut taken = false;
    for allocation in allocations {
        taken |= content.take(allocation, sequence)?;
    }
    let mut change = Map::new();
    if owner_changes {
        change.insert("affinity".to_owned(), affinity(node).into());
    }
    if taken {
        change.insert("allocations".to_owned(), json!(content.allocations));
        change.insert("unallocated".to_owned(), json!(content.unallocated));
        change.insert("attributes".to_owned(), Value::Array(content.attributes));
        change.insert(
            "sequenceNumberForAllocation".to_owned(),
            Value::Object(content.sequences),
        );
    }
    if change.is_empty() {
        return Ok(None);
    }
    change.insert("sequenceNumber".to_owned(), sequence.saturating_add(1).into());
    Ok(Some(Value::Object(change)))
}

/// The patch for the spec of an `IPAMBlock` that frees these addresses again. An address is freed only when it is under the given
/// handle; `None` when none is. The address that is freed last is allocated last.
///
/// # Errors
///
/// The spec is not in the form that Calico writes.
pub fn block_release(
    spec: &Value,
    range: IpNet,
    released: &[(IpAddr, &str)],
) -> Result<Option<Value>, BlockConflict> {
    let mut content = Content::read(spec, range)?;
    let freed: Vec<usize> = released
        .iter()
        .filter_map(|(address, handle)| content.release(*address, handle))
        .collect();
    if freed.is_empty() {
        return Ok(None);
    }
    content.drop_unused_attributes();
    let sequence = spec
        .get("sequenceNumber")
        .and_then(Value::as_u64)
        .unwrap_or_default();
    // A merge patch removes a key by null.
    let sequences: Map<String, Value> = freed
        .iter()
        .map(|ordinal| (ordinal.to_string(), Value::Null))
        .collect();
    Ok(Some(json!({
        "allocations": content.allocations,
        "unallocated": content.unallocated,
        "attributes": content.attributes,
        "sequenceNumber": sequence.saturating_add(1),
        "sequenceNumberForAllocation": sequences,
    })))
}

/// Every allocated address with its handle.
///
/// # Errors
///
/// The spec is not in the form that Calico writes.
pub fn allocated(spec: &Value, range: IpNet) -> Result<Vec<(IpAddr, String)>, BlockConflict> {
    let content = Content::read(spec, range)?;
    Ok(content
        .allocations
        .iter()
        .enumerate()
        .filter_map(|(ordinal, index)| {
            let handle = content.attributes[(*index)?]["handle_id"]
                .as_str()
                .unwrap_or_default();
            Some((address(range, ordinal), handle.to_owned()))
        })
        .collect())
}

/// The affinity of a node's block, as Calico writes it.
pub fn affinity(node: &str) -> String {
    format!("host:{node}")
}

/// The node that the affinity names; `None` when it names no node.
pub fn node_of(affinity: &str) -> Option<&str> {
    affinity.strip_prefix("host:")
}

#[cfg(test)]
mod tests;
