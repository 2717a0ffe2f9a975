//! Arithmetic of a block: assigns and releases addresses. Pure.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

use super::names;
use crate::datastore::types::{AllocationAttribute, IPAMBlockSpec, Other};

/// The future holder of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// The handle that will release the address.
    pub handle: String,
    /// Node, pod, namespace, type.
    pub attributes: BTreeMap<String, String>,
}

/// A new, empty block of a node.
pub fn new(range: Ipv4Net, node: &str, now_nanoseconds: u64) -> IPAMBlockSpec {
    let size = size(range);
    IPAMBlockSpec {
        cidr: range.to_string(),
        affinity: Some(affinity(node)),
        allocations: vec![None; size],
        unallocated: (0..size).collect(),
        sequence_number: now_nanoseconds,
        ..IPAMBlockSpec::default()
    }
}

/// The owner's name in a block.
pub fn affinity(node: &str) -> String {
    format!("host:{node}")
}

/// Number of addresses in a range.
pub fn size(range: Ipv4Net) -> usize {
    1_usize << (32 - u32::from(range.prefix_len()))
}

impl IPAMBlockSpec {
    /// The range, if it is an IPv4 range.
    pub fn range(&self) -> Option<Ipv4Net> {
        self.cidr.parse().ok()
    }

    /// The node that owns the block.
    pub fn node(&self) -> Option<&str> {
        self.affinity.as_deref()?.strip_prefix("host:")
    }

    /// Free addresses outside all reservations.
    pub fn free(&self, reserved: &[Ipv4Net]) -> usize {
        self.unallocated
            .iter()
            .filter(|ordinal| self.usable(**ordinal, reserved).is_some())
            .count()
    }

    /// Assigns the address that has been free for the longest time.
    pub fn assign_any(&mut self, owner: &Owner, reserved: &[Ipv4Net]) -> Option<Ipv4Addr> {
        let (position, address) = self
            .unallocated
            .iter()
            .enumerate()
            .find_map(|(position, ordinal)| Some((position, self.usable(*ordinal, reserved)?)))?;
        let ordinal = self.unallocated.remove(position);
        self.take(ordinal, owner);
        Some(address)
    }

    /// Assigns one address; false if the address is taken or not in this block.
    pub fn assign(&mut self, address: Ipv4Addr, owner: &Owner) -> bool {
        let Some(ordinal) = self.ordinal(address) else {
            return false;
        };
        if self.allocations.get(ordinal) != Some(&None) {
            return false;
        }
        self.unallocated.retain(|free| *free != ordinal);
        self.take(ordinal, owner);
        true
    }

    /// Releases every address of a handle; returns their number.
    pub fn release(&mut self, handle: &str) -> usize {
        let released: Vec<usize> = (0..self.allocations.len())
            .filter(|ordinal| {
                self.attribute(*ordinal)
                    .and_then(|attribute| attribute.handle_id.as_deref())
                    .map(clean)
                    == Some(handle)
            })
            .collect();
        for ordinal in &released {
            self.allocations[*ordinal] = None;
            self.unallocated.push(*ordinal);
        }
        if !released.is_empty() {
            self.forget_unused_attributes();
        }
        released.len()
    }

    /// The holder of an address, if any.
    pub fn owner(&self, address: Ipv4Addr) -> Option<&AllocationAttribute> {
        self.attribute(self.ordinal(address)?)
    }

    /// Whether no address of the block is assigned.
    pub fn is_empty(&self) -> bool {
        self.allocations.iter().all(Option::is_none)
    }

    fn attribute(&self, ordinal: usize) -> Option<&AllocationAttribute> {
        let index = (*self.allocations.get(ordinal)?)?;
        self.attributes.get(index)
    }

    fn ordinal(&self, address: Ipv4Addr) -> Option<usize> {
        let range = self.range()?;
        if !range.contains(&address) {
            return None;
        }
        usize::try_from(u32::from(address) - u32::from(range.network())).ok()
    }

    fn usable(&self, ordinal: usize, reserved: &[Ipv4Net]) -> Option<Ipv4Addr> {
        let address = names::nth(self.range()?, ordinal)?;
        (!reserved.iter().any(|range| range.contains(&address))).then_some(address)
    }

    fn take(&mut self, ordinal: usize, owner: &Owner) {
        let attribute = AllocationAttribute {
            handle_id: Some(owner.handle.clone()),
            secondary: Some(owner.attributes.clone()),
            other: Other::new(),
        };
        let index = self
            .attributes
            .iter()
            .position(|known| *known == attribute)
            .unwrap_or_else(|| {
                self.attributes.push(attribute);
                self.attributes.len() - 1
            });
        self.allocations[ordinal] = Some(index);
        self.sequence_number_for_allocation
            .insert(ordinal.to_string(), self.sequence_number);
    }

    /// Removes attributes that no address uses, and adjusts the indexes of the others.
    fn forget_unused_attributes(&mut self) {
        let mut moved = BTreeMap::new();
        let mut kept = Vec::new();
        for (index, attribute) in std::mem::take(&mut self.attributes).into_iter().enumerate() {
            if self.allocations.contains(&Some(index)) {
                moved.insert(index, kept.len());
                kept.push(attribute);
            }
        }
        self.attributes = kept;
        for allocation in &mut self.allocations {
            *allocation = allocation.and_then(|index| moved.get(&index).copied());
        }
    }
}

/// A handle without the suffix of an old importer.
pub fn clean(handle: &str) -> &str {
    handle.split('\r').next().unwrap_or(handle)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn owner(container: &str, pod: &str) -> Owner {
        Owner {
            handle: names::pod_handle("k8s-pod-network", container),
            attributes: BTreeMap::from([
                ("node".to_owned(), "n1".to_owned()),
                ("pod".to_owned(), pod.to_owned()),
                ("namespace".to_owned(), "default".to_owned()),
            ]),
        }
    }

    fn block() -> IPAMBlockSpec {
        new("10.244.1.0/29".parse().unwrap(), "n1", 7)
    }

    #[test]
    fn a_new_block_has_the_stored_form_of_calico() {
        assert_eq!(
            serde_json::to_value(block()).unwrap(),
            json!({
                "cidr": "10.244.1.0/29",
                "affinity": "host:n1",
                "allocations": [null, null, null, null, null, null, null, null],
                "unallocated": [0, 1, 2, 3, 4, 5, 6, 7],
                "attributes": [],
                "sequenceNumber": 7,
                "sequenceNumberForAllocation": {},
                "deleted": false,
                "strictAffinity": false
            })
        );
    }

    #[test]
    fn an_assigned_block_has_the_stored_form_of_calico() {
        let mut block = block();
        let tunnel = Owner {
            handle: names::tunnel_handle("n1"),
            attributes: BTreeMap::from([
                ("node".to_owned(), "n1".to_owned()),
                ("type".to_owned(), "vxlanTunnelAddress".to_owned()),
            ]),
        };
        assert!(block.assign("10.244.1.0".parse().unwrap(), &tunnel));
        assert_eq!(
            block.assign_any(&owner("aa", "web-0"), &[]),
            Some("10.244.1.1".parse().unwrap())
        );
        assert_eq!(
            serde_json::to_value(&block).unwrap(),
            json!({
                "cidr": "10.244.1.0/29",
                "affinity": "host:n1",
                "allocations": [0, 1, null, null, null, null, null, null],
                "unallocated": [2, 3, 4, 5, 6, 7],
                "attributes": [
                    {"handle_id": "vxlan-tunnel-addr-n1", "secondary": {"node": "n1", "type": "vxlanTunnelAddress"}},
                    {"handle_id": "k8s-pod-network.aa",
                     "secondary": {"node": "n1", "pod": "web-0", "namespace": "default"}}
                ],
                "sequenceNumber": 7,
                "sequenceNumberForAllocation": {"0": 7, "1": 7},
                "deleted": false,
                "strictAffinity": false
            })
        );
    }

    #[test]
    fn a_released_address_goes_to_the_end_of_the_queue_and_indexes_are_adjusted() {
        let mut block = block();
        for container in ["a", "b", "c"] {
            block.assign_any(&owner(container, container), &[]).unwrap();
        }
        assert_eq!(block.release("k8s-pod-network.a"), 1);
        assert_eq!(block.allocations[..4], [None, Some(0), Some(1), None]);
        assert_eq!(block.attributes.len(), 2);
        assert_eq!(block.unallocated, [3, 4, 5, 6, 7, 0]);
        assert_eq!(block.release("k8s-pod-network.a"), 0);
        assert_eq!(
            block.assign_any(&owner("d", "d"), &[]),
            Some("10.244.1.3".parse().unwrap())
        );
    }

    #[test]
    fn an_address_is_assigned_once() {
        let mut block = block();
        let address = "10.244.1.5".parse().unwrap();
        assert!(block.assign(address, &owner("a", "a")));
        assert!(!block.assign(address, &owner("b", "b")));
        assert!(!block.assign("10.244.2.5".parse().unwrap(), &owner("b", "b")));
        let others: Vec<_> = std::iter::from_fn(|| block.assign_any(&owner("b", "b"), &[])).collect();
        assert_eq!(others.len(), 7);
        assert!(!others.contains(&address));
    }

    #[test]
    fn reserved_addresses_are_skipped_and_stay_in_the_queue() {
        let mut block = block();
        let reserved = ["10.244.1.0/31".parse().unwrap()];
        assert_eq!(block.free(&reserved), 6);
        assert_eq!(
            block.assign_any(&owner("a", "a"), &reserved),
            Some("10.244.1.2".parse().unwrap())
        );
        assert_eq!(block.unallocated[..2], [0, 1]);
    }

    #[test]
    fn an_imported_handle_with_a_carriage_return_is_released() {
        let mut block = block();
        block.assign(
            "10.244.1.3".parse().unwrap(),
            &Owner {
                handle: "k.a\reth0".to_owned(),
                ..owner("", "")
            },
        );
        assert_eq!(block.release("k.a"), 1);
        assert!(block.is_empty());
    }
}
