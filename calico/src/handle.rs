//! `IPAMHandle`: groups addresses that are released together.

use ipnet::IpNet;
use serde_json::{Map, Value, json};

use super::API_VERSION;
use super::names::handle_name;

/// An `IPAMHandle` with this number of addresses of the block.
pub fn handle(handle: &str, block: IpNet, addresses: u32) -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": "IPAMHandle",
        "metadata": { "name": handle_name(handle) },
        "spec": {
            "handleID": handle,
            "block": { block.to_string(): addresses },
            "deleted": false,
        },
    })
}

/// The patch for the spec of an existing `IPAMHandle` that sets the number of its addresses of this block. Zero removes the
/// block.
pub fn handle_change(spec: &Value, block: IpNet, addresses: u32) -> Option<Value> {
    let counted = spec.get("block").and_then(|blocks| blocks.get(block.to_string()));
    // A merge patch removes a key by null.
    let wanted = if addresses == 0 {
        Value::Null
    } else {
        addresses.into()
    };
    (counted.unwrap_or(&Value::Null) != &wanted).then(|| json!({ "block": { block.to_string(): wanted } }))
}

/// Effect on an `IPAMHandle` when its addresses of some blocks are released.
#[derive(Clone, Debug, PartialEq)]
pub enum Released {
    /// The handle has no address of these blocks, so it is not changed.
    Nothing,
    /// The handle has addresses of other blocks: the patch for its spec.
    Part(Value),
    /// The handle has no other addresses: it is deleted.
    Whole,
}

/// Blocks that the `IPAMHandle` has addresses of, by its spec.
pub fn handle_blocks(spec: &Value) -> impl Iterator<Item = &str> {
    let blocks = spec.get("block").and_then(Value::as_object);
    blocks.into_iter().flatten().map(|(block, _)| block.as_str())
}

/// The effect on the `IPAMHandle` with this spec when its addresses of these blocks are released.
pub fn handle_release(spec: &Value, blocks: &[IpNet]) -> Released {
    let is_released = |name: &str| name.parse().is_ok_and(|block: IpNet| blocks.contains(&block));
    let (released, kept): (Vec<&str>, Vec<&str>) = handle_blocks(spec).partition(|name| is_released(name));
    match (released.as_slice(), kept.as_slice()) {
        (_, []) => Released::Whole,
        ([], _) => Released::Nothing,
        (released, _) => {
            // A merge patch removes a key by null.
            let gone: Map<String, Value> = released
                .iter()
                .map(|name| ((*name).to_owned(), Value::Null))
                .collect();
            Released::Part(json!({ "block": gone }))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_of_other_blocks_is_not_released() {
        let own: Vec<IpNet> = vec![
            "10.244.1.0/26".parse().unwrap(),
            "fd00:10:244:1::/122".parse().unwrap(),
        ];
        let other: IpNet = "10.244.2.0/26".parse().unwrap();
        let mut spec = handle("k8s-pod-network.a", other, 1)["spec"].clone();
        assert_eq!(handle_release(&spec, &own), Released::Nothing);
        spec["block"]["10.244.1.0/26"] = json!(1);
        assert_eq!(
            handle_release(&spec, &own),
            Released::Part(json!({ "block": { "10.244.1.0/26": null } }))
        );
        let mut spec = handle("k8s-pod-network.b", own[0], 1)["spec"].clone();
        spec["block"]["fd00:10:244:1::/122"] = json!(1);
        assert_eq!(handle_release(&spec, &own), Released::Whole);
        assert_eq!(handle_release(&json!({ "block": {} }), &own), Released::Whole);
        // A key that is not a range belongs to none of these blocks.
        spec["block"]["elsewhere"] = json!(1);
        assert_eq!(
            handle_release(&spec, &own),
            Released::Part(json!({ "block": { "10.244.1.0/26": null, "fd00:10:244:1::/122": null } }))
        );
    }

    #[test]
    fn a_block_without_addresses_is_removed_from_its_handle() {
        let block: IpNet = "10.244.1.0/26".parse().unwrap();
        let spec = handle("vxlan-tunnel-addr-a", block, 1)["spec"].clone();
        assert_eq!(handle_change(&spec, block, 1), None);
        assert_eq!(
            handle_change(&spec, block, 0),
            Some(json!({ "block": { "10.244.1.0/26": null } }))
        );
        let other = "10.200.1.0/26".parse().unwrap();
        assert_eq!(handle_change(&spec, other, 0), None);
        assert_eq!(
            handle_change(&spec, other, 1),
            Some(json!({ "block": { "10.200.1.0/26": 1 } }))
        );
    }
}
