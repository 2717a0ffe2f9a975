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
