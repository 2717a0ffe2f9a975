//! The part of a block that assigns addresses to owners, and the position of an address in a block.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::{Allocation, BlockConflict, affinity};

/// Host bits of the largest block that Calico's schema of a pool allows: /20 in IPv4, /116 in IPv6.
const LARGEST: u8 = 12;

/// Number of addresses in a block.
pub(super) fn size(range: IpNet) -> Result<usize, BlockConflict> {
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
pub(super) fn address(range: IpNet, ordinal: usize) -> IpAddr {
    match range.network() {
        // A block has at most 2^12 addresses.
        IpAddr::V4(first) => {
            Ipv4Addr::from(u32::from(first) + u32::try_from(ordinal).unwrap_or_default()).into()
        }
        IpAddr::V6(first) => Ipv6Addr::from(u128::from(first) + ordinal as u128).into(),
    }
}

/// The part of a block that assigns addresses to owners.
pub(super) struct Content {
    pub(super) range: IpNet,
    /// For each address: `None` when free, else an index into `attributes`.
    pub(super) allocations: Vec<Option<usize>>,
    /// Free addresses in the order in which they are allocated.
    pub(super) unallocated: Vec<usize>,
    /// Kept unchanged: the fields differ between Calico versions.
    pub(super) attributes: Vec<Value>,
    pub(super) sequences: Map<String, Value>,
}

impl Content {
    pub(super) fn read(spec: &Value, range: IpNet) -> Result<Self, BlockConflict> {
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
    pub(super) fn check_owner(&self, spec: &Value, node: &str) -> Result<bool, BlockConflict> {
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
    pub(super) fn take(&mut self, allocation: &Allocation, sequence: u64) -> Result<bool, BlockConflict> {
        let (block, address) = (self.range, allocation.address);
        let ordinal = ordinal(block, address).ok_or(BlockConflict::OutsideRange { block, address })?;
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
    pub(super) fn release(&mut self, address: IpAddr, handle: &str) -> Option<usize> {
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
    pub(super) fn drop_unused_attributes(&mut self) {
        let used: BTreeSet<usize> = self.allocations.iter().flatten().copied().collect();
        let indexes: BTreeMap<usize, usize> = used.iter().copied().zip(0..).collect();
        self.attributes = used.iter().map(|index| self.attributes[*index].clone()).collect();
        for index in self.allocations.iter_mut().flatten() {
            *index = indexes[&*index];
        }
    }
}
