//! Address families, as written in the API.

use std::net::IpAddr;

use serde_json::{Value, json};

/// The family of an address, as written in the API.
pub fn family(address: &IpAddr) -> &'static str {
    if address.is_ipv4() { "IPv4" } else { "IPv6" }
}

/// The fields of a spec with the address families.
pub(super) fn of_families(families: &[impl AsRef<str>]) -> Value {
    let policy = if families.len() > 1 {
        "RequireDualStack"
    } else {
        "SingleStack"
    };
    let families: Vec<&str> = families.iter().map(AsRef::as_ref).collect();
    json!({ "ipFamilies": families, "ipFamilyPolicy": policy })
}
