//! `IPAMHandle`: by which addresses are released together.

use ipnet::IpNet;
use serde_json::{Value, json};

use super::API_VERSION;
use super::names::handle_name;

/// An `IPAMHandle` with so many addresses of this block.
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

/// What to patch in the spec of an `IPAMHandle` that is there, so that it has so many addresses of this block; with none the block
/// goes from it.
pub fn handle_change(spec: &Value, block: IpNet, addresses: u32) -> Option<Value> {
    let counted = spec.get("block").and_then(|blocks| blocks.get(block.to_string()));
    // A merge patch takes a key away by null.
    let wanted = if addresses == 0 {
        Value::Null
    } else {
        addresses.into()
    };
    (counted.unwrap_or(&Value::Null) != &wanted).then(|| json!({ "block": { block.to_string(): wanted } }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_without_addresses_goes_from_its_handle() {
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
