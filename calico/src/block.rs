//! `IPAMBlock`: a range of a node with the addresses that are allocated in it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use serde_json::{Map, Value, json};
use thiserror::Error;

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
    /// The block, and an address that is not in its range.
    #[error("IPAMBlock {0}: {1} is not in its range, needed a block that contains the address")]
    OutsideRange(IpNet, IpAddr),
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

/// Host bits of the largest block that Calico's schema of a pool allows: /20 in IPv4, /116 in IPv6.
const LARGEST: u8 = 12;

/// Number of addresses in a block.
fn size(range: IpNet) -> Result<usize, BlockConflict> {
    let bits = range.max_prefix_len() - range.prefix_len();
    if bits > LARGEST {
        return Err(BlockConflict::Malformed {
            block: range,
            field: "cidr",
            found: range.to_string(),
            needed: format!("/{} or longer", range.max_prefix_len() - LARGEST),
        });
    }
    Ok(1 << bits)
}

/// Position of an address in the block; `None` when the block does not contain it.
fn ordinal(range: IpNet, address: IpAddr) -> Option<usize> {
    if !range.contains(&address) {
        return None;
    }
    let place = match (range.network(), address) {
        (IpAddr::V4(first), IpAddr::V4(address)) => u128::from(u32::from(address) - u32::from(first)),
        (IpAddr::V6(first), IpAddr::V6(address)) => u128::from(address) - u128::from(first),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return None,
    };
    usize::try_from(place).ok()
}

/// The address at a position of a block.
fn address(range: IpNet, ordinal: usize) -> IpAddr {
    match range.network() {
        // A block has at most 2^12 addresses.
        IpAddr::V4(first) => {
            Ipv4Addr::from(u32::from(first) + u32::try_from(ordinal).unwrap_or_default()).into()
        }
        IpAddr::V6(first) => Ipv6Addr::from(u128::from(first) + ordinal as u128).into(),
    }
}

/// The part of a block that assigns addresses to owners.
struct Content {
    range: IpNet,
    /// For each address: `None` when free, else an index into `attributes`.
    allocations: Vec<Option<usize>>,
    /// Free addresses in the order in which they are allocated.
    unallocated: Vec<usize>,
    /// Kept unchanged: the fields differ between Calico versions.
    attributes: Vec<Value>,
    sequences: Map<String, Value>,
}

impl Content {
    fn read(spec: &Value, range: IpNet) -> Result<Self, BlockConflict> {
        let field = |name: &'static str| spec.get(name).cloned().unwrap_or(Value::Null);
        let malformed = |name: &'static str, needed: String| BlockConflict::Malformed {
            block: range,
            field: name,
            found: field(name).to_string(),
            needed,
        };
        let size = size(range)?;
        let cidr: Option<IpNet> = field("cidr").as_str().and_then(|text| text.parse().ok());
        if cidr != Some(range) {
            return Err(malformed("cidr", range.to_string()));
        }
        let attributes = match field("attributes") {
            Value::Null => Vec::new(),
            Value::Array(attributes) => attributes,
            _ => return Err(malformed("attributes", "a list".to_owned())),
        };
        let allocations: Vec<Option<usize>> = serde_json::from_value(field("allocations"))
            .ok()
            .filter(|found: &Vec<Option<usize>>| {
                found.len() == size && found.iter().flatten().all(|index| *index < attributes.len())
            })
            .ok_or_else(|| {
                malformed(
                    "allocations",
                    format!("{size} entries, null or an index of attributes"),
                )
            })?;
        let unallocated: Vec<usize> = serde_json::from_value(field("unallocated"))
            .ok()
            .filter(|found: &Vec<usize>| {
                let free: BTreeSet<usize> = found.iter().copied().collect();
                free.len() == found.len()
                    && (0..size).all(|ordinal| free.contains(&ordinal) == allocations[ordinal].is_none())
                    && free.iter().all(|ordinal| *ordinal < size)
            })
            .ok_or_else(|| malformed("unallocated", "every free ordinal of allocations once".to_owned()))?;
        let sequences = match field("sequenceNumberForAllocation") {
            Value::Null => Map::new(),
            Value::Object(sequences) => sequences,
            _ => return Err(malformed("sequenceNumberForAllocation", "an object".to_owned())),
        };
        Ok(Self {
            range,
            allocations,
            unallocated,
            attributes,
            sequences,
        })
    }

    /// Whether this write gives the block to the node. A block without an owner is taken only when it has no address of another
    /// node.
    fn check_owner(&self, spec: &Value, node: &str) -> Result<bool, BlockConflict> {
        let found = spec.get("affinity").and_then(Value::as_str).unwrap_or_default();
        if found == affinity(node) {
            return Ok(false);
        }
        let ours = |attribute: &Value| attribute["secondary"]["node"].as_str() == Some(node);
        if found.is_empty()
            && self
                .allocations
                .iter()
                .flatten()
                .all(|index| ours(&self.attributes[*index]))
        {
            return Ok(true);
        }
        Err(BlockConflict::OtherOwner {
            block: self.range,
            node: node.to_owned(),
            found: found.to_owned(),
        })
    }

    /// Allocates an address to its owner; false when the owner has it already.
    fn take(&mut self, allocation: &Allocation, sequence: u64) -> Result<bool, BlockConflict> {
        let (block, address) = (self.range, allocation.address);
        let ordinal = ordinal(block, address).ok_or(BlockConflict::OutsideRange(block, address))?;
        if let Some(index) = self.allocations[ordinal] {
            let handle = self.attributes[index]["handle_id"].as_str().unwrap_or_default();
            if handle == allocation.handle {
                return Ok(false);
            }
            return Err(BlockConflict::OtherHandle {
                block,
                address,
                found: handle.to_owned(),
                needed: allocation.handle.clone(),
            });
        }
        let attribute = json!({ "handle_id": allocation.handle, "secondary": allocation.attributes });
        let index = self
            .attributes
            .iter()
            .position(|known| *known == attribute)
            .unwrap_or_else(|| {
                self.attributes.push(attribute);
                self.attributes.len() - 1
            });
        self.allocations[ordinal] = Some(index);
        self.unallocated.retain(|free| *free != ordinal);
        self.sequences.insert(ordinal.to_string(), sequence.into());
        Ok(true)
    }

    /// Frees an address that is under this handle and returns its position in the block; `None` when it is not under this handle.
    fn release(&mut self, address: IpAddr, handle: &str) -> Option<usize> {
        let ordinal = ordinal(self.range, address)?;
        let index = self.allocations[ordinal]?;
        if self.attributes[index]["handle_id"].as_str() != Some(handle) {
            return None;
        }
        self.allocations[ordinal] = None;
        self.unallocated.push(ordinal);
        Some(ordinal)
    }

    /// Removes attributes that no address refers to, and corrects the indexes of the others.
    fn drop_unused_attributes(&mut self) {
        let used: BTreeSet<usize> = self.allocations.iter().flatten().copied().collect();
        let indexes: BTreeMap<usize, usize> = used.iter().copied().zip(0..).collect();
        self.attributes = used.iter().map(|index| self.attributes[*index].clone()).collect();
        for index in self.allocations.iter_mut().flatten() {
            *index = indexes[&*index];
        }
    }
}
#[cfg(test)]
#[path = "block_tests.rs"]
mod tests;
