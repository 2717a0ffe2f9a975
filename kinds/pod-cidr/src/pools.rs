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

/// Whether nodes reach its pods through a tunnel.
pub fn has_tunnel(spec: &Value) -> bool {
    ["ipipMode", "vxlanMode"].iter().any(|field| {
        let mode = spec[*field].as_str().unwrap_or_default();
        !mode.is_empty() && mode != "Never"
    })
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
pub fn selector_of(old: &Value) -> String {
    node_selector(old).to_owned()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn old() -> Value {
        json!({
            "cidr": "10.244.0.0/16", "blockSize": 26, "ipipMode": "Never", "vxlanMode": "Always", "natOutgoing": true,
            "allowedUses": ["Workload", "Tunnel"],
        })
    }

    fn to() -> IpNet {
        "10.200.0.0/16".parse().unwrap()
    }

    #[rstest]
    #[case(json!({}), Openness::AllPods)]
    #[case(json!({ "disabled": false, "nodeSelector": "" }), Openness::AllPods)]
    #[case(json!({ "nodeSelector": "zone == 'a'" }), Openness::AllPods)]
    #[case(json!({ "nodeSelector": "!all()" }), Openness::OptIn)]
    #[case(json!({ "assignmentMode": "Manual" }), Openness::OptIn)]
    #[case(json!({ "nodeSelector": narrowed("all()", "old", 3) }), Openness::Narrowed)]
    #[case(json!({ "nodeSelector": narrowed("all()", "old", 3), "disabled": true }), Openness::Closed)]
    #[case(json!({ "nodeSelector": "!all()", "disabled": true }), Openness::Closed)]
    fn the_openness_of_a_pool_is_read_from_its_spec(#[case] spec: Value, #[case] openness: Openness) {
        assert_eq!(Openness::of(&spec), openness);
    }

    #[test]
    fn a_created_pool_is_closed_and_equal_to_the_old_one_but_for_range_and_blocks() {
        let wanted = wanted(&old(), &to(), 27);
        let created = created("new", &wanted);
        assert_eq!(Openness::of(&created["spec"]), Openness::Closed);
        assert_eq!(created["spec"]["cidr"], "10.200.0.0/16");
        assert_eq!(created["spec"]["blockSize"], 27);
        assert_eq!(created["spec"]["allowedUses"], json!(["Workload", "Tunnel"]));
        assert_eq!(differences(&created["spec"], &wanted), [""; 0]);
    }

    #[test]
    fn each_degree_of_openness_is_one_write() {
        let wanted = wanted(&old(), &to(), 26);
        let mut spec = created("new", &wanted)["spec"].clone();
        for openness in [
            Openness::OptIn,
            Openness::AllPods,
            Openness::Closed,
            Openness::AllPods,
        ] {
            let change = patch_openness(&spec, openness, &old()).unwrap();
            for (field, value) in change.as_object().unwrap() {
                spec[field] = value.clone();
            }
            assert_eq!(Openness::of(&spec), openness);
            assert_eq!(patch_openness(&spec, openness, &old()), None);
        }
    }

    #[rstest]
    #[case(json!({ "cidr": "10.244.0.0/16" }))]
    #[case(json!({ "cidr": "10.244.0.0/16", "disabled": false, "nodeSelector": "", "assignmentMode": "Automatic" }))]
    #[case(json!({ "cidr": "10.244.0.0/16", "nodeSelector": "a == 'b'", "allowedUses": ["Workload", "Tunnel"] }))]
    fn a_narrowed_and_closed_pool_gets_its_spec_back(#[case] before: Value) {
        let mut spec = before.clone();
        let merge = |spec: &mut Value, change: Value| {
            for (field, value) in change.as_object().unwrap() {
                if value.is_null() {
                    spec.as_object_mut().unwrap().remove(field);
                } else {
                    spec[field] = value.clone();
                }
            }
        };
        merge(
            &mut spec,
            patch_narrowed(&before, &selector_of(&before), "old", 1).unwrap(),
        );
        for openness in [Openness::Closed, Openness::AllPods] {
            let change = patch_openness(&spec, openness, &before).unwrap();
            merge(&mut spec, change);
        }
        assert_eq!(spec, before);
    }

    #[test]
    fn a_closed_pool_is_opened_to_pods_that_name_it_whatever_its_selector() {
        let mut spec = old();
        spec["disabled"] = json!(true);
        let change = patch_openness(&spec, Openness::OptIn, &old()).unwrap();
        assert_eq!(change, json!({ "disabled": false, "nodeSelector": NO_NODE }));
        // A pool with manual assignment is opened too.
        let manual = json!({ "assignmentMode": "Manual" });
        let change = patch_openness(&manual, Openness::AllPods, &old()).unwrap();
        assert_eq!(change["assignmentMode"], Value::Null);
    }

    #[test]
    fn each_round_is_another_selector_of_the_same_nodes() {
        let spec = json!({ "nodeSelector": "all()" });
        let change = patch_narrowed(&spec, "all()", "old", 0).unwrap();
        assert_eq!(
            change["nodeSelector"],
            "all() && replumb.dev/off-pool != 'old' && !has(replumb.dev/round-0)"
        );
        assert_eq!(patch_narrowed(&change, "all()", "old", 0), None);
        assert!(patch_narrowed(&change, "all()", "old", 1).is_some());
        // A selector with `||` gets parentheses.
        assert!(narrowed("a == '1' || a == '2'", "new", 0).starts_with("(a == '1' || a == '2') && "));
        // calico-node reacts to the order only.
        assert_eq!(change["allowedUses"], json!(["Workload", "Tunnel"]));
        let next = patch_narrowed(&change, "all()", "old", 1).unwrap();
        assert_eq!(next["allowedUses"], json!(["Tunnel", "Workload"]));
        let back = patch_openness(&change, Openness::AllPods, &old()).unwrap();
        assert_eq!(back["nodeSelector"], Value::Null, "as before");
    }

    #[test]
    fn another_selector_is_a_difference_and_that_of_a_canary_is_none() {
        let wanted = wanted(&old(), &to(), 26);
        let mut found = wanted.clone();
        found["nodeSelector"] = json!(NO_NODE);
        found["allowedUses"] = json!(["Tunnel", "Workload"]);
        assert_eq!(differences(&found, &wanted), [""; 0]);
        found["nodeSelector"] = json!("zone == 'a'");
        assert_eq!(
            differences(&found, &wanted),
            [r#"nodeSelector is "zone == 'a'", needed "all()""#]
        );
    }

    #[test]
    fn another_encapsulation_is_a_difference_and_a_default_is_none() {
        let wanted = wanted(&old(), &to(), 26);
        let mut found = wanted.clone();
        found.as_object_mut().unwrap().remove("ipipMode");
        found["disableBGPExport"] = json!(false);
        found["namespaceSelector"] = json!("all()");
        found["allowedUses"] = json!([]);
        assert_eq!(differences(&found, &wanted), [""; 0]);
        found["vxlanMode"] = json!("CrossSubnet");
        found.as_object_mut().unwrap().remove("natOutgoing");
        assert_eq!(
            differences(&found, &wanted),
            [
                "natOutgoing is nothing, needed true",
                r#"vxlanMode is "CrossSubnet", needed "Always""#
            ]
        );
    }

    #[test]
    fn an_omitted_block_size_equals_the_default() {
        let wanted = wanted(&old(), &to(), 26);
        let mut found = wanted.clone();
        for written in [json!(26), json!(0), Value::Null] {
            found["blockSize"] = written;
            assert_eq!(differences(&found, &wanted), [""; 0]);
        }
        found["blockSize"] = json!(24);
        assert_eq!(differences(&found, &wanted), ["blockSize is 24, needed 26"]);
    }

    #[rstest]
    #[case(json!({}), true)]
    #[case(json!({ "allowedUses": [] }), true)]
    #[case(json!({ "allowedUses": ["Tunnel", "Workload"] }), true)]
    #[case(json!({ "allowedUses": ["Tunnel"] }), false)]
    #[case(json!({ "allowedUses": ["LoadBalancer"] }), false)]
    fn a_pool_is_for_pods_by_its_allowed_uses(#[case] spec: Value, #[case] pods: bool) {
        assert_eq!(is_for_pods(&spec), pods);
    }

    #[rstest]
    #[case("10.200.0.0/16", 26, None)]
    #[case("10.200.0.0/24", 22, Some("24 to 32"))]
    #[case("10.200.0.0/16", 33, Some("20 to 32"))]
    #[case("fd00::/64", 122, None)]
    #[case("fd00::/64", 100, Some("116 to 128"))]
    fn a_block_size_outside_the_limits_is_refused(
        #[case] range: &str,
        #[case] size: u8,
        #[case] refused: Option<&str>,
    ) {
        let said = check_block_size(size, &range.parse().unwrap());
        assert_eq!(said.err().as_deref(), refused);
    }
}
