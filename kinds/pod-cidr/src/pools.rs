//! The two pools, as values: what the new one has to say, how far either is open, and what to write.
//!
//! A pool of Calico's is open to every pod, open to pods that name it, or closed. The second is what a canary needs, and what
//! a node selector that selects nobody comes to: Calico's IPAM does not ask the selector of a pool that a pod names
//! (libcalico-go, `ipam.determinePools`).

use ipnet::IpNet;
use serde_json::{Map, Value, json};

use calico::API_VERSION;

/// Selects no node.
pub const NO_NODE: &str = "!all()";
/// Label of a Node that was taken off one of the two pools; its value says off which.
pub const OFF_LABEL: &str = "replumb.dev/off-pool";
/// A clause that selects every Node, and says for which Nodes the pool was narrowed last.
const ROUND_LABEL: &str = "replumb.dev/round-";
/// What a pool without a node selector means.
const EVERY_NODE: &str = "all()";

/// Prefix lengths of a block of each family that Calico takes.
const BLOCK_SIZES: [(std::ops::RangeInclusive<u8>, u8); 2] = [(20..=32, 26), (116..=128, 122)];

/// Who may get an address of a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Openness {
    /// There is no such pool.
    Absent,
    /// Nobody (`disabled`).
    Closed,
    /// Pods that name it.
    ToWhoNamesIt,
    /// Pods, and ends of tunnels, of every Node that was not taken off it.
    Narrowed,
    /// Every pod.
    ToEverybody,
}

impl Openness {
    /// Of the spec of a pool, as it is stored.
    pub fn of(spec: &Value) -> Self {
        if spec["disabled"].as_bool().unwrap_or_default() {
            Self::Closed
        } else if node_selector(spec) == NO_NODE || spec["assignmentMode"] == "Manual" {
            Self::ToWhoNamesIt
        } else if node_selector(spec).contains(OFF_LABEL) {
            Self::Narrowed
        } else {
            Self::ToEverybody
        }
    }
}

/// The selector of a pool that Nodes are taken off one by one. `base` is what it selects when it is open to everybody, `mark` the
/// label's value on a Node that was taken off it.
fn narrowed(base: &str, mark: &str, round: u32) -> String {
    let base = if base.contains("||") {
        format!("({base})")
    } else {
        base.to_owned()
    };
    format!("{base} && {OFF_LABEL} != '{mark}' && !has({ROUND_LABEL}{round})")
}

/// What to merge into a pool's spec so that it is narrowed in this round; `None` when it is.
///
/// A calico-node looks at its tunnel again when a pool has changed, but neither when its Node's labels have nor when a pool's
/// selector has (v3.31.7, `tunnel-ip-allocator`, `model.IPPool`). The order of `allowedUses` means nothing, and is a change.
pub fn narrowing(found: &Value, base: &str, mark: &str, round: u32) -> Option<Value> {
    let selector = narrowed(base, mark, round);
    let is_so = node_selector(found) == selector && !found["disabled"].as_bool().unwrap_or_default();
    let uses = match found["allowedUses"].as_array().map(Vec::as_slice) {
        None | Some([]) => json!(["Workload", "Tunnel"]),
        Some(uses) => uses.iter().rev().cloned().collect(),
    };
    (!is_so).then(|| json!({ "disabled": false, "nodeSelector": selector, "allowedUses": uses }))
}

/// Whether pods get addresses of it at all: one that is for tunnels or load balancers alone has none to move.
pub fn is_for_pods(spec: &Value) -> bool {
    match spec["allowedUses"].as_array() {
        Some(uses) if !uses.is_empty() => uses.iter().any(|allowed| allowed == "Workload"),
        // What Calico takes for it: pods and tunnels.
        Some(_) | None => true,
    }
}

/// Whether nodes reach its pods by a tunnel.
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

/// The prefix length of a pool's blocks, as written or by default.
pub fn block_size(spec: &Value, range: &IpNet) -> u8 {
    let (_, default) = sizes(range);
    spec["blockSize"]
        .as_u64()
        .and_then(|size| u8::try_from(size).ok())
        .filter(|size| *size > 0)
        .unwrap_or(*default)
}

/// Whether Calico takes blocks of this prefix length for this range; the words say what it takes.
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

/// The spec that the new pool has once it is open: the old one's in everything but range and blocks, so that pods of both reach
/// each other as they did (another encapsulation would take the tunnel's address away from living pods).
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

/// The new pool as it is made: closed, and open to whoever names it once it is not.
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

/// What a pool of the new range says otherwise than it has to, field by field; what opens and closes it apart.
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
        // What a canary narrows is opened in its turn.
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

/// What a field means: one that is not there is what Calico takes it for, a list says the same in any order, and a range however
/// it is written.
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
            // What Calico takes for it when it is not there.
            if uses.is_empty() || uses == [r#""Tunnel""#, r#""Workload""#] {
                Value::Null
            } else {
                json!(uses)
            }
        }
        (_, value) => value,
    }
}

/// What to merge into a pool's spec so that it is open so far: `None` when it is. `base` is the old pool's spec, as it was saved
/// before the first change.
pub fn opening(found: &Value, openness: Openness, base: &Value) -> Option<Value> {
    if Openness::of(found) == openness {
        return None;
    }
    Some(match openness {
        Openness::Absent | Openness::Closed => json!({ "disabled": true }),
        Openness::ToWhoNamesIt => json!({ "disabled": false, "nodeSelector": NO_NODE }),
        // Narrowed is a step of its own ([`narrowing`]); what is asked for so is open.
        Openness::Narrowed | Openness::ToEverybody => {
            // What goes back is written as it was, also what means the same by default.
            let is_open = Openness::of(base) == Openness::ToEverybody;
            let as_before = |field: &str| base.get(field).filter(|_| is_open).cloned().unwrap_or_default();
            json!({
                "disabled": as_before("disabled"), "nodeSelector": as_before("nodeSelector"),
                "assignmentMode": as_before("assignmentMode"), "allowedUses": base["allowedUses"],
            })
        }
    })
}

/// What the pool selects when it is open to everybody.
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
    #[case(json!({}), Openness::ToEverybody)]
    #[case(json!({ "disabled": false, "nodeSelector": "" }), Openness::ToEverybody)]
    #[case(json!({ "nodeSelector": "zone == 'a'" }), Openness::ToEverybody)]
    #[case(json!({ "nodeSelector": "!all()" }), Openness::ToWhoNamesIt)]
    #[case(json!({ "assignmentMode": "Manual" }), Openness::ToWhoNamesIt)]
    #[case(json!({ "nodeSelector": narrowed("all()", "old", 3) }), Openness::Narrowed)]
    #[case(json!({ "nodeSelector": narrowed("all()", "old", 3), "disabled": true }), Openness::Closed)]
    #[case(json!({ "nodeSelector": "!all()", "disabled": true }), Openness::Closed)]
    fn how_far_a_pool_is_open(#[case] spec: Value, #[case] openness: Openness) {
        assert_eq!(Openness::of(&spec), openness);
    }

    #[test]
    fn the_new_pool_is_the_old_one_in_another_range_and_nobody_gets_an_address_of_it() {
        let wanted = wanted(&old(), &to(), 27);
        let created = created("new", &wanted);
        assert_eq!(Openness::of(&created["spec"]), Openness::Closed);
        assert_eq!(created["spec"]["cidr"], "10.200.0.0/16");
        assert_eq!(created["spec"]["blockSize"], 27);
        assert_eq!(created["spec"]["allowedUses"], json!(["Workload", "Tunnel"]));
        assert_eq!(differences(&created["spec"], &wanted), [""; 0]);
    }

    #[test]
    fn each_step_of_opening_is_one_write_and_made_once() {
        let wanted = wanted(&old(), &to(), 26);
        let mut spec = created("new", &wanted)["spec"].clone();
        for openness in [
            Openness::ToWhoNamesIt,
            Openness::ToEverybody,
            Openness::Closed,
            Openness::ToEverybody,
        ] {
            let change = opening(&spec, openness, &old()).unwrap();
            for (field, value) in change.as_object().unwrap() {
                spec[field] = value.clone();
            }
            assert_eq!(Openness::of(&spec), openness);
            assert_eq!(opening(&spec, openness, &old()), None);
        }
    }

    #[rstest]
    #[case(json!({ "cidr": "10.244.0.0/16" }))]
    #[case(json!({ "cidr": "10.244.0.0/16", "disabled": false, "nodeSelector": "", "assignmentMode": "Automatic" }))]
    #[case(json!({ "cidr": "10.244.0.0/16", "nodeSelector": "a == 'b'", "allowedUses": ["Workload", "Tunnel"] }))]
    fn a_pool_that_was_narrowed_and_closed_is_opened_as_it_was(#[case] before: Value) {
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
            narrowing(&before, &selector_of(&before), "old", 1).unwrap(),
        );
        for openness in [Openness::Closed, Openness::ToEverybody] {
            let change = opening(&spec, openness, &before).unwrap();
            merge(&mut spec, change);
        }
        assert_eq!(spec, before);
    }

    /// Whatever it selected before somebody closed it.
    #[test]
    fn a_canary_narrows_any_pool() {
        let mut spec = old();
        spec["disabled"] = json!(true);
        let change = opening(&spec, Openness::ToWhoNamesIt, &old()).unwrap();
        assert_eq!(change, json!({ "disabled": false, "nodeSelector": NO_NODE }));
        // A pool that gives addresses by hand alone is opened, too.
        let by_hand = json!({ "assignmentMode": "Manual" });
        let change = opening(&by_hand, Openness::ToEverybody, &old()).unwrap();
        assert_eq!(change["assignmentMode"], Value::Null);
    }

    #[test]
    fn each_round_is_another_text_that_selects_the_same_nodes() {
        let spec = json!({ "nodeSelector": "all()" });
        let change = narrowing(&spec, "all()", "old", 0).unwrap();
        assert_eq!(
            change["nodeSelector"],
            "all() && replumb.dev/off-pool != 'old' && !has(replumb.dev/round-0)"
        );
        assert_eq!(narrowing(&change, "all()", "old", 0), None);
        assert!(narrowing(&change, "all()", "old", 1).is_some());
        // What had an `or` in it selects the same as before, and less.
        assert!(narrowed("a == '1' || a == '2'", "new", 0).starts_with("(a == '1' || a == '2') && "));
        // The order alone is what Calico's nodes notice.
        assert_eq!(change["allowedUses"], json!(["Workload", "Tunnel"]));
        let next = narrowing(&change, "all()", "old", 1).unwrap();
        assert_eq!(next["allowedUses"], json!(["Tunnel", "Workload"]));
        let back = opening(&change, Openness::ToEverybody, &old()).unwrap();
        assert_eq!(back["nodeSelector"], Value::Null, "as it was");
    }

    #[test]
    fn a_narrowed_pool_is_a_difference_and_a_canary_is_none() {
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
    fn blocks_of_the_default_size_may_be_written_or_not() {
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
    fn what_a_pool_is_for(#[case] spec: Value, #[case] pods: bool) {
        assert_eq!(is_for_pods(&spec), pods);
    }

    #[rstest]
    #[case("10.200.0.0/16", 26, None)]
    #[case("10.200.0.0/24", 22, Some("24 to 32"))]
    #[case("10.200.0.0/16", 33, Some("20 to 32"))]
    #[case("fd00::/64", 122, None)]
    #[case("fd00::/64", 100, Some("116 to 128"))]
    fn sizes_of_blocks(#[case] range: &str, #[case] size: u8, #[case] refused: Option<&str>) {
        let said = check_block_size(size, &range.parse().unwrap());
        assert_eq!(said.err().as_deref(), refused);
    }
}
