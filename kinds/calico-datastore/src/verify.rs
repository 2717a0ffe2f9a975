//! Checks that blocks and handles are consistent. Inconsistencies of v2 are copied, as Calico's own tool does, and become notes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::key::{ObjectKind, V2Key};
use super::network::cidr;
use super::object::Object;
use super::report::{Cause, Problem};

const HANDLES: &str = "/calico/ipam/v2/handle/";

/// Checks that every allocated address has a handle, and that every handle counts the addresses that the block allocates to it.
pub fn cross_check(objects: &[Object]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut given: BTreeMap<(String, String), i64> = BTreeMap::new();
    for object in objects {
        if object.kind == ObjectKind::IpamBlock {
            let block = object.value["cidr"].as_str().unwrap_or_default();
            for (handle, count) in handles_of(object, block, &mut problems) {
                given.insert((handle, block.to_owned()), count);
            }
        }
    }
    let mut seen = BTreeSet::new();
    let mut compare = |handle: &str, block: &str, counted: i64, given: i64| {
        if counted != given {
            problems.push(Problem {
                key: V2Key::Handle(handle.to_owned()),
                path: format!("{HANDLES}{handle}"),
                v3: None,
                cause: Cause::HandleCount {
                    block: block.to_owned(),
                    counted,
                    given,
                },
            });
        }
    };
    for object in objects {
        let handle = object.key.strip_prefix(HANDLES);
        let counts = object.value["block"].as_object();
        for (handle, (block, counted)) in handle.into_iter().flat_map(|handle| {
            let counts = counts.into_iter().flatten();
            counts.map(move |count| (handle, count))
        }) {
            let key = (handle.to_owned(), block.clone());
            let of_block = given.get(&key).copied().unwrap_or_default();
            compare(handle, block, counted.as_i64().unwrap_or_default(), of_block);
            seen.insert(key);
        }
    }
    for ((handle, block), count) in &given {
        if !seen.contains(&(handle.clone(), block.clone())) {
            compare(handle, block, 0, *count);
        }
    }
    problems
}

/// Number of addresses of a block for each handle. Addresses without a handle are reported.
fn handles_of(object: &Object, block: &str, problems: &mut Vec<Problem>) -> BTreeMap<String, i64> {
    let list = |field: &str| object.value[field].as_array().map_or(&[][..], Vec::as_slice);
    let attributes = list("attributes");
    let mut handles = BTreeMap::new();
    for (place, index) in list("allocations").iter().enumerate() {
        let Some(index) = index.as_i64() else {
            continue;
        };
        let attribute = usize::try_from(index)
            .ok()
            .and_then(|index| attributes.get(index));
        let cause = match attribute.map(|attribute| attribute["handle_id"].as_str()) {
            Some(Some(handle)) => {
                *handles.entry(handle.to_owned()).or_default() += 1;
                continue;
            }
            Some(None) => Cause::NoHandle {
                address: address(block, place),
            },
            None => Cause::NoAttribute {
                address: address(block, place),
                index,
                attributes: attributes.len(),
            },
        };
        problems.push(Problem {
            key: V2Key::Block(block.to_owned()),
            path: object.key.clone(),
            v3: None,
            cause,
        });
    }
    handles
}

/// The address at a position of a block, or the position if the block has no network.
fn address(block: &str, place: usize) -> String {
    let Some((first, _)) = cidr(block) else {
        return format!("address {place}");
    };
    match first {
        IpAddr::V4(first) => {
            let place = u32::try_from(place).unwrap_or_default();
            Ipv4Addr::from(u32::from(first).wrapping_add(place)).to_string()
        }
        IpAddr::V6(first) => Ipv6Addr::from(u128::from(first).wrapping_add(place as u128)).to_string(),
    }
}

#[cfg(test)]
mod tests;
