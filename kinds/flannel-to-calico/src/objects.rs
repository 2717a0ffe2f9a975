//! Calico's objects as the migration writes them: pool, Felix configuration, blocks, handles, annotations.
//!
//! Each kind has a builder for a new object, and a `…_change` function with the patch for an existing one: only fields of
//! replumb, compared as values; `None` if nothing has to be written.

mod node;
mod pool;

use std::collections::BTreeMap;

use ipnet::IpNet;
use serde_json::{Map, Value, json};
use strum::IntoStaticStr;

use super::settings::Settings;
use calico::API_VERSION;

pub use calico::{
    Allocation, BlockConflict, Released, affinity, affinity_name, allocated, block, block_change, block_name,
    block_release, family, handle, handle_blocks, handle_change, handle_name, handle_release, hostname_hash,
    tunnel_handle, tunnel_handles,
};
pub use node::{NodeError, NodeObjects, NodeRange, RangeError, blocks, of_node, tunnel_address};
pub use pool::{Pool, PoolConflict, block_size, pool, pool_conflicts, pools};

/// Name of the `FelixConfiguration` and the `IPAMConfig` that apply to all nodes.
pub const DEFAULT: &str = "default";

/// Fields of `FelixConfiguration default` that replumb writes.
pub const FELIX_CONFIGURATION_FIELDS: [&str; 11] = [
    "vxlanVNI",
    "vxlanPort",
    "vxlanMTU",
    "vxlanMTUV6",
    "ipv6Support",
    "vxlanEnabled",
    "reportingInterval",
    "logSeverityScreen",
    "floatingIPs",
    "bpfConnectTimeLoadBalancing",
    "bpfHostNetworkedNATWithoutCTLB",
];
/// Fields of `IPAMConfig default` that replumb writes.
pub const IPAM_CONFIG_FIELDS: [&str; 2] = ["strictAffinity", "autoAllocateBlocks"];

/// Defaults in the custom resource definition of `FelixConfiguration`, from Calico v3.32. The admission policies in
/// deploy/base/coordinator-bounds allow these.
const FELIX_DEFAULTS: [(&str, &str); 2] =
    [("nftablesMode", "Auto"), ("nftablesFlowTableOffload", "Disabled")];

/// Whether a field has the default of the custom resource definition, so no client has written it.
pub fn is_default(field: &str, value: &Value) -> bool {
    FELIX_DEFAULTS
        .iter()
        .any(|(name, default)| *name == field && value == default)
}

fn felix_spec(settings: &Settings) -> Map<String, Value> {
    let mut spec = Map::from_iter([
        ("vxlanVNI".to_owned(), settings.flannel_vni.value.into()),
        ("vxlanPort".to_owned(), settings.flannel_port.value.into()),
        ("vxlanMTU".to_owned(), settings.flannel_mtu.value.into()),
    ]);
    if settings.ipv6.is_some() {
        spec.insert("ipv6Support".to_owned(), true.into());
        spec.insert("vxlanMTUV6".to_owned(), settings.flannel_ipv6_mtu().into());
    }
    spec
}

/// Values that calico-node writes at its start if these fields are empty. Such a change of the global configuration restarts
/// every running Felix, so replumb writes the values before the first calico-node starts.
fn felix_startup_values() -> [(&'static str, &'static str); 5] {
    [
        ("reportingInterval", "0s"),
        ("logSeverityScreen", "Info"),
        ("floatingIPs", "Disabled"),
        ("bpfConnectTimeLoadBalancing", "TCP"),
        ("bpfHostNetworkedNATWithoutCTLB", "Enabled"),
    ]
}

/// `FelixConfiguration default`: Calico's device has the parameters of flannel's, so that old and new nodes reach each other.
pub fn felix_configuration(settings: &Settings) -> Value {
    let mut spec = felix_spec(settings);
    spec.extend(felix_startup_values().map(|(key, value)| (key.to_owned(), value.into())));
    json!({
        "apiVersion": API_VERSION,
        "kind": "FelixConfiguration",
        "metadata": { "name": DEFAULT },
        "spec": spec,
    })
}

/// The patch for the spec of an existing `FelixConfiguration default`.
///
/// `vxlanEnabled: false`, which Calico's own controller leaves behind after a crash, is cleared: Felix then derives the value
/// from the pool. replumb never sets the field to false, which would disconnect every node on Calico.
pub fn felix_configuration_change(settings: &Settings, spec: &Value) -> Option<Value> {
    let mut change = differing(spec, felix_spec(settings));
    for (key, value) in felix_startup_values() {
        if spec.get(key).is_none_or(Value::is_null) {
            change.insert(key.to_owned(), value.into());
        }
    }
    if spec.get("vxlanEnabled") == Some(&Value::Bool(false)) {
        change.insert("vxlanEnabled".to_owned(), Value::Null);
    }
    (!change.is_empty()).then_some(Value::Object(change))
}

fn ipam_spec() -> Map<String, Value> {
    Map::from_iter([
        ("strictAffinity".to_owned(), true.into()),
        ("autoAllocateBlocks".to_owned(), false.into()),
    ])
}

/// `IPAMConfig default`: new pods get addresses only inside the podCIDR of their node, because nodes on flannel have no route
/// to others.
pub fn ipam_config() -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": "IPAMConfig",
        "metadata": { "name": DEFAULT },
        "spec": ipam_spec(),
    })
}

/// The patch for the spec of an existing `IPAMConfig default`.
pub fn ipam_config_change(spec: &Value) -> Option<Value> {
    let change = differing(spec, ipam_spec());
    (!change.is_empty()).then_some(Value::Object(change))
}

/// The wanted fields that are missing or have another value.
fn differing(spec: &Value, wanted: Map<String, Value>) -> Map<String, Value> {
    wanted
        .into_iter()
        .filter(|(key, value)| spec.get(key) != Some(value))
        .collect()
}

/// State of the claim of a node on a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum ClaimState {
    /// The claim is announced: the block is written next.
    Pending,
    /// The block exists and has this owner.
    Confirmed,
}

impl ClaimState {
    fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The `BlockAffinity` for the claim of a node on a block. Calico's order is: pending, then the block, then confirmed.
pub fn block_affinity(node: &str, block: IpNet, state: ClaimState) -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": "BlockAffinity",
        "metadata": {
            "name": affinity_name(node, block),
            "labels": affinity_labels(node, block),
        },
        "spec": {
            "state": state.as_str(),
            "node": node,
            "type": "host",
            "cidr": block.to_string(),
            // In Calico's schema, a string and not a boolean.
            "deleted": "false",
        },
    })
}

/// Labels with which Calico selects the claims of a node.
pub fn affinity_labels(node: &str, block: IpNet) -> BTreeMap<&'static str, String> {
    let version = family::of(&block).version;
    BTreeMap::from([
        ("projectcalico.org/affinity-type", "host".to_owned()),
        ("projectcalico.org/ip-version", version.to_owned()),
        ("projectcalico.org/hostname-hash", hostname_hash(node)),
    ])
}

/// The patch for the spec of an existing `BlockAffinity`. A confirmed claim never becomes pending again.
pub fn block_affinity_change(spec: &Value, state: ClaimState) -> Option<Value> {
    let found = spec.get("state").and_then(Value::as_str);
    let settled = found == Some(ClaimState::Confirmed.as_str()) || found == Some(state.as_str());
    (!settled).then(|| json!({ "state": state.as_str() }))
}

#[cfg(test)]
mod tests;
