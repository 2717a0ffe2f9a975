//! The two pools, as values: the needed spec of the new one, how far each is open, and the patches.
//!
//! A pool of Calico is open to all pods, open to pods that name it, or closed. A canary needs the second state, which is the
//! effect of a node selector that selects no node: Calico's IPAM ignores the selector of a pool that a pod names (libcalico-go,
//! `ipam.determinePools`).

use ipnet::IpNet;
use serde_json::{Map, Value, json};

use calico::API_VERSION;

/// A node selector that selects no node.
pub const NO_NODE: &str = "!all()";
/// Label of a Node that was removed from one of the two pools; its value names the pool.
pub const OFF_LABEL: &str = "replumb.dev/off-pool";
/// Prefix of a label that no Node has. Its clause in the selector selects every Node, and identifies the set of removed Nodes.
const ROUND_LABEL: &str = "replumb.dev/round-";
/// The effective node selector of a pool without one.
const EVERY_NODE: &str = "all()";

/// Prefix lengths of blocks that Calico accepts, and the default, for each family.
const BLOCK_SIZES: [(std::ops::RangeInclusive<u8>, u8); 2] = [(20..=32, 26), (116..=128, 122)];

/// Which pods may get an address of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Openness {
    /// The pool does not exist.
    Absent,
    /// No pod (`disabled`).
    Closed,
    /// Pods that name it.
    OptIn,
    /// Pods and tunnels of every Node that was not removed from it.
    Narrowed,
    /// Every pod.
    AllPods,
}

impl Openness {
    /// Reads the spec of a pool, as stored.
    pub fn of(spec: &Value) -> Self {
        if spec["disabled"].as_bool().unwrap_or_default() {
            Self::Closed
        } else if node_selector(spec) == NO_NODE || spec["assignmentMode"] == "Manual" {
            Self::OptIn
        } else if node_selector(spec).contains(OFF_LABEL) {
            Self::Narrowed
        } else {
            Self::AllPods
        }
    }
}

/// The selector of a pool from which Nodes are removed one by one. `base` is its selector when it is open to all pods, `mark`
/// is the value of the label on a removed Node.
fn narrowed(base: &str, mark: &str, round: u32) -> String {
    let base = if base.contains("||") {
        format!("({base})")
    } else {
        base.to_owned()
    };
    format!("{base} && {OFF_LABEL} != '{mark}' && !has({ROUND_LABEL}{round})")
}

/// The merge patch of a pool's spec that narrows it for this set of removed Nodes; `None` if the pool has it already.
///
/// A calico-node checks its tunnel address again when a pool changes, but not when the labels of its Node or the selector of a
/// pool change (v3.31.7, `tunnel-ip-allocator`, `model.IPPool`). Therefore the order of `allowedUses`, which has no meaning, is
/// changed too.
pub fn patch_narrowed(found: &Value, base: &str, mark: &str, round: u32) -> Option<Value> {
    let selector = narrowed(base, mark, round);
    let is_narrowed = node_selector(found) == selector && !found["disabled"].as_bool().unwrap_or_default();
    let uses = match found["allowedUses"].as_array().map(Vec::as_slice) {
        None | Some([]) => json!(["Workload", "Tunnel"]),
        Some(uses) => uses.iter().rev().cloned().collect(),
    };
    (!is_narrowed).then(|| json!({ "disabled": false, "nodeSelector": selector, "allowedUses": uses }))
}

/// Whether pods get addresses of it. A pool for only tunnels or load balancers has no pods to move.
pub fn is_for_pods(spec: &Value) -> bool {
    match spec["allowedUses"].as_array() {
        Some(uses) if !uses.is_empty() => uses.iter().any(|allowed| allowed == "Workload"),
        // Calico's default: pods and tunnels.
        Some(_) | None => true,
    }
}

/// The value of a mode that is missing, or off.
pub const NEVER: &str = "Never";

/// A mode of the spec of a pool: `vxlanMode` or `ipipMode`.
pub fn mode<'spec>(spec: &'spec Value, field: &str) -> &'spec str {
    spec[field]
        .as_str()
        .filter(|mode| !mode.is_empty())
        .unwrap_or(NEVER)
}

/// Whether nodes reach its pods through a tunnel.
pub fn has_tunnel(spec: &Value) -> bool {
    ["ipipMode", "vxlanMode"]
        .iter()
        .any(|field| mode(spec, field) != NEVER)
}

fn node_selector(spec: &Value) -> &str {
    spec["nodeSelector"]
        .as_str()
        .filter(|selector| !selector.is_empty())
        .unwrap_or(EVERY_NODE)
}

/// The prefix length of a pool's blocks, or its default.
pub fn block_size(spec: &Value, range: &IpNet) -> u8 {
    let (_, default) = sizes(range);
    spec["blockSize"]
        .as_u64()
        .and_then(|size| u8::try_from(size).ok())
        .filter(|size| *size > 0)
        .unwrap_or(*default)
}

/// Whether Calico accepts blocks of this prefix length for this range; the error is the accepted values.
///
/// # Errors
///
/// Calico does not accept the prefix length, or a block would be larger than the range.
pub fn check_block_size(size: u8, range: &IpNet) -> Result<(), String> {
    let (allowed, _) = sizes(range);
    let least = *allowed.start().max(&range.prefix_len());
    if (least..=*allowed.end()).contains(&size) {
        Ok(())
    } else {
        Err(format!("{least} to {}", allowed.end()))
    }
}

fn sizes(range: &IpNet) -> &'static (std::ops::RangeInclusive<u8>, u8) {
    match range {
        IpNet::V4(_) => &BLOCK_SIZES[0],
        IpNet::V6(_) => &BLOCK_SIZES[1],
    }
}

/// The spec of the new pool once it is open: equal to that of the old pool except for range and block size, so that pods of
/// both reach each other (another encapsulation would remove the tunnel address that running pods need).
pub fn wanted(old: &Value, to: &IpNet, blocks: u8) -> Value {
    let mut spec = old.as_object().cloned().unwrap_or_default();
    spec.insert("cidr".to_owned(), json!(to.to_string()));
    spec.insert("blockSize".to_owned(), json!(blocks));
    spec.insert("nodeSelector".to_owned(), json!(node_selector(old)));
    for field in ["disabled", "assignmentMode"] {
        spec.remove(field);
    }
    Value::Object(spec)
}

/// The new pool as it is created: disabled, with a node selector that selects no node.
pub fn created(name: &str, wanted: &Value) -> Value {
    let mut spec = wanted.clone();
    spec["disabled"] = json!(true);
    spec["nodeSelector"] = json!(NO_NODE);
    json!({
        "apiVersion": API_VERSION,
        "kind": "IPPool",
        "metadata": { "name": name },
        "spec": spec,
    })
}

/// The fields of the new pool that differ from the needed spec, except those that open and close it.
pub fn differences(found: &Value, wanted: &Value) -> Vec<String> {
    let same_blocks = wanted["cidr"]
        .as_str()
        .and_then(|text| text.parse().ok())
        .is_some_and(|range| block_size(found, &range) == block_size(wanted, &range));
    let empty = Map::new();
    let (found, wanted) = (
        found.as_object().unwrap_or(&empty),
        wanted.as_object().unwrap_or(&empty),
    );
    let mut fields: Vec<&String> = found.keys().chain(wanted.keys()).collect();
    fields.sort();
    fields.dedup();
    fields
        .into_iter()
        .filter(|field| !["disabled", "assignmentMode"].contains(&field.as_str()))
        // The selector of a canary or of a narrowed pool is changed in a later step.
        .filter(|field| {
            let selects = |selector: &Value| {
                selector
                    .as_str()
                    .is_some_and(|text| text == NO_NODE || text.contains(OFF_LABEL))
            };
            *field != "nodeSelector" || !found.get(*field).is_some_and(selects)
        })
        .filter(|field| *field != "blockSize" || !same_blocks)
        .filter(|field| {
            let (found, wanted) = (
                meaning(field, found.get(*field)),
                meaning(field, wanted.get(*field)),
            );
            found != wanted
        })
        .map(|field| {
            let show = |spec: &Map<String, Value>| {
                spec.get(field)
                    .map_or_else(|| "nothing".to_owned(), ToString::to_string)
            };
            format!("{field} is {}, needed {}", show(found), show(wanted))
        })
        .collect()
}

/// The normalized value of a field: Calico's default is `Null`, the order of a list does not matter, nor does the notation of a
/// range.
fn meaning(field: &str, value: Option<&Value>) -> Value {
    let value = value.cloned().unwrap_or(Value::Null);
    match (field, value) {
        (_, Value::Bool(false)) => Value::Null,
        ("ipipMode" | "vxlanMode", Value::String(mode)) if mode == "Never" || mode.is_empty() => Value::Null,
        ("nodeSelector" | "namespaceSelector", Value::String(selector))
            if selector == EVERY_NODE || selector.is_empty() =>
        {
            Value::Null
        }
        ("cidr", Value::String(range)) => range
            .parse::<IpNet>()
            .map_or(Value::String(range), |range| json!(range.trunc().to_string())),
        ("allowedUses", Value::Array(uses)) => {
            let mut uses: Vec<String> = uses.iter().map(Value::to_string).collect();
            uses.sort();
            // Calico's default.
            if uses.is_empty() || uses == [r#""Tunnel""#, r#""Workload""#] {
                Value::Null
            } else {
                json!(uses)
            }
        }
        (_, value) => value,
    }
}

/// The merge patch of a pool's spec that opens it to this degree; `None` if it is so already. `base` is the spec of the old
/// pool, as saved before the first change.
pub fn patch_openness(found: &Value, openness: Openness, base: &Value) -> Option<Value> {
    if Openness::of(found) == openness {
        return None;
    }
    Some(match openness {
        Openness::Absent | Openness::Closed => json!({ "disabled": true }),
        Openness::OptIn => json!({ "disabled": false, "nodeSelector": NO_NODE }),
        // Narrowing is a separate step ([`narrowing`]); here both mean open.
        Openness::Narrowed | Openness::AllPods => {
            // Restored fields are written exactly as before, also if the default means the same.
            let is_open = Openness::of(base) == Openness::AllPods;
            let as_before = |field: &str| base.get(field).filter(|_| is_open).cloned().unwrap_or_default();
            json!({
                "disabled": as_before("disabled"), "nodeSelector": as_before("nodeSelector"),
                "assignmentMode": as_before("assignmentMode"), "allowedUses": base["allowedUses"],
            })
        }
    })
}

/// The node selector of the pool when it is open to all pods.
///
/// # Examples
///
/// ```
/// use pod_cidr::pools::selector_of;
/// use serde_json::json;
///
/// assert_eq!(selector_of(&json!({ "nodeSelector": "zone == 'a'" })), "zone == 'a'");
/// assert_eq!(selector_of(&json!({ "cidr": "10.244.0.0/16" })), "all()");
/// ```
pub fn selector_of(old: &Value) -> String {
    node_selector(old).to_owned()
}
#[cfg(test)]
mod tests;
