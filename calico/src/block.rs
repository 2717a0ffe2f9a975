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
        let conflict = |found: &str| BlockConflict::OtherHandle {
            block: self.range,
            address: allocation.address,
            found: found.to_owned(),
            needed: allocation.handle.clone(),
        };
        let ordinal =
            ordinal(self.range, allocation.address).ok_or_else(|| conflict("an address outside of it"))?;
        if let Some(index) = self.allocations[ordinal] {
            let handle = self.attributes[index]["handle_id"].as_str().unwrap_or_default();
            return if handle == allocation.handle {
                Ok(false)
            } else {
                Err(conflict(handle))
            };
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
mod tests {
    use super::*;

    fn range() -> IpNet {
        "10.244.1.0/29".parse().unwrap()
    }

    fn allocation(address: &str, handle: &str) -> Allocation {
        Allocation {
            address: address.parse().unwrap(),
            handle: handle.to_owned(),
            attributes: BTreeMap::from([("node".to_owned(), "n1".to_owned())]),
        }
    }

    fn tunnel() -> Allocation {
        allocation("10.244.1.0", "vxlan-tunnel-addr-n1")
    }

    /// A block with a pod of this node at .3, as Calico stores it, with unknown fields.
    fn used() -> Value {
        json!({
            "cidr": "10.244.1.0/29", "affinity": "host:n1", "affinityClaimTime": "2026-01-01T00:00:00Z",
            "allocations": [null, null, null, 0, null, null, null, null],
            "unallocated": [4, 5, 6, 7, 0, 1, 2],
            "attributes": [{"handle_id": "k8s-pod-network.a", "secondary": {"node": "n1"}, "later": 1}],
            "sequenceNumber": 41, "sequenceNumberForAllocation": {"3": 40},
            "deleted": false, "strictAffinity": false,
        })
    }

    #[test]
    fn a_new_block_holds_the_tunnel_address() {
        let found = block(range(), "n1", &[tunnel()], 7).unwrap();
        assert_eq!(
            found,
            json!({
                "apiVersion": "crd.projectcalico.org/v1",
                "kind": "IPAMBlock",
                "metadata": {"name": "10-244-1-0-29"},
                "spec": {
                    "cidr": "10.244.1.0/29",
                    "affinity": "host:n1",
                    "allocations": [0, null, null, null, null, null, null, null],
                    "unallocated": [1, 2, 3, 4, 5, 6, 7],
                    "attributes": [{"handle_id": "vxlan-tunnel-addr-n1", "secondary": {"node": "n1"}}],
                    "sequenceNumber": 7,
                    "sequenceNumberForAllocation": {"0": 7},
                    "deleted": false,
                    "strictAffinity": false,
                },
            })
        );
        // A block that was just written needs no change.
        assert_eq!(block_change(&found["spec"], range(), "n1", &[tunnel()]), Ok(None));
    }

    #[test]
    fn an_existing_block_keeps_its_allocations() {
        let change = block_change(&used(), range(), "n1", &[tunnel()])
            .unwrap()
            .unwrap();
        assert_eq!(
            change,
            json!({
                "allocations": [1, null, null, 0, null, null, null, null],
                "unallocated": [4, 5, 6, 7, 1, 2],
                "attributes": [
                    {"handle_id": "k8s-pod-network.a", "secondary": {"node": "n1"}, "later": 1},
                    {"handle_id": "vxlan-tunnel-addr-n1", "secondary": {"node": "n1"}},
                ],
                "sequenceNumber": 42,
                "sequenceNumberForAllocation": {"0": 41, "3": 40},
            })
        );
    }

    #[test]
    fn two_addresses_of_one_owner_share_an_attribute() {
        let found = block(
            range(),
            "n1",
            &[allocation("10.244.1.1", "h"), allocation("10.244.1.2", "h")],
            1,
        )
        .unwrap();
        assert_eq!(
            found["spec"]["allocations"],
            json!([null, 0, 0, null, null, null, null, null])
        );
        assert_eq!(found["spec"]["attributes"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn a_block_without_an_owner_is_taken_and_a_block_of_another_node_is_refused() {
        let mut free = used();
        free["affinity"] = Value::Null;
        let change = block_change(&free, range(), "n1", &[]).unwrap().unwrap();
        assert_eq!(change, json!({"affinity": "host:n1", "sequenceNumber": 42}));
        free["attributes"][0]["secondary"]["node"] = "n2".into();
        assert!(matches!(
            block_change(&free, range(), "n1", &[]),
            Err(BlockConflict::OtherOwner { .. })
        ));
        let mut other = used();
        other["affinity"] = "host:n2".into();
        let error = block_change(&other, range(), "n1", &[]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "IPAMBlock 10.244.1.0/29: affinity is \"host:n2\", needed \"host:n1\""
        );
    }

    #[test]
    fn an_address_of_another_handle_is_refused_with_its_handle() {
        let error = block_change(&used(), range(), "n1", &[allocation("10.244.1.3", "h")]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "IPAMBlock 10.244.1.0/29: 10.244.1.3 is allocated to \"k8s-pod-network.a\", needed \"h\""
        );
        assert!(block_change(&used(), range(), "n1", &[allocation("10.244.2.3", "h")]).is_err());
    }

    #[test]
    fn blocks_that_contradict_themselves_are_refused() {
        for (field, value) in [
            ("cidr", json!("10.244.2.0/29")),
            ("allocations", json!([null])),
            (
                "allocations",
                json!([null, null, null, 5, null, null, null, null]),
            ),
            ("unallocated", json!([4, 5, 6, 7, 0, 1])),
            ("unallocated", json!([4, 5, 6, 7, 0, 1, 2, 3])),
            ("unallocated", json!([4, 5, 6, 7, 0, 1, 2, 2])),
            ("attributes", json!("x")),
            ("sequenceNumberForAllocation", json!([])),
        ] {
            let mut spec = used();
            spec[field] = value;
            let error = block_change(&spec, range(), "n1", &[]).unwrap_err();
            assert!(
                matches!(error, BlockConflict::Malformed { .. }),
                "{field}: {error}"
            );
        }
        let mut spec = used();
        spec["deleted"] = true.into();
        assert_eq!(
            block_change(&spec, range(), "n1", &[]),
            Err(BlockConflict::Deleted { block: range() })
        );
    }

    proptest::proptest! {
        /// Two writes allocate any addresses of a block: each is allocated once and keeps its index, the others stay free, and a
        /// third write changes nothing.
        #[test]
        fn addresses_are_neither_lost_nor_allocated_twice(
            first in proptest::collection::btree_set(0_u8..8, 0..8),
            second in proptest::collection::btree_set(0_u8..8, 0..8),
        ) {
            let allocations = |ordinals: &BTreeSet<u8>| -> Vec<Allocation> {
                ordinals.iter().map(|n| allocation(&format!("10.244.1.{n}"), &format!("handle-{n}"))).collect()
            };
            let mut spec = block(range(), "n1", &allocations(&first), 1).unwrap()["spec"].clone();
            let before = spec["allocations"].clone();
            let change = block_change(&spec, range(), "n1", &allocations(&second)).unwrap();
            proptest::prop_assert_eq!(change.is_none(), second.is_subset(&first));
            for (key, value) in change.iter().flat_map(|change| change.as_object().unwrap()) {
                spec[key] = value.clone();
            }
            for ordinal in 0..8_u8 {
                let index = &spec["allocations"][usize::from(ordinal)];
                let taken = first.contains(&ordinal) || second.contains(&ordinal);
                proptest::prop_assert_eq!(!index.is_null(), taken);
                if first.contains(&ordinal) {
                    proptest::prop_assert_eq!(index, &before[usize::from(ordinal)]);
                }
                if let Some(index) = index.as_u64() {
                    let attribute = &spec["attributes"][usize::try_from(index).unwrap()];
                    proptest::prop_assert_eq!(&attribute["handle_id"], &json!(format!("handle-{ordinal}")));
                }
                let free = spec["unallocated"].as_array().unwrap().contains(&json!(ordinal));
                proptest::prop_assert_eq!(free, !taken);
            }
            proptest::prop_assert_eq!(block_change(&spec, range(), "n1", &allocations(&second)), Ok(None));
        }
    }

    #[test]
    fn a_released_address_is_allocated_last() {
        let mut spec = used();
        let tunnel_and_pod = [tunnel(), allocation("10.244.1.5", "k8s-pod-network.b")];
        let change = block_change(&spec, range(), "n1", &tunnel_and_pod)
            .unwrap()
            .unwrap();
        for (key, value) in change.as_object().unwrap() {
            spec[key] = value.clone();
        }
        let pod = ("10.244.1.5".parse().unwrap(), "k8s-pod-network.b");
        let change = block_release(&spec, range(), &[pod]).unwrap().unwrap();
        assert_eq!(
            change["allocations"],
            json!([1, null, null, 0, null, null, null, null])
        );
        assert_eq!(change["unallocated"], json!([4, 6, 7, 1, 2, 5]));
        assert_eq!(change["sequenceNumberForAllocation"], json!({"5": null}));
        assert_eq!(change["attributes"].as_array().unwrap().len(), 2);
        assert_eq!(change["attributes"][0]["later"], 1, "unknown fields are kept");
    }

    #[test]
    fn an_address_that_has_another_handle_or_none_is_not_released() {
        let of_another = ("10.244.1.3".parse().unwrap(), "k8s-pod-network.old");
        assert_eq!(block_release(&used(), range(), &[of_another]), Ok(None));
        let free = ("10.244.1.6".parse().unwrap(), "k8s-pod-network.a");
        assert_eq!(block_release(&used(), range(), &[free]), Ok(None));
    }
}
