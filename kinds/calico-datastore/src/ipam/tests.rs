use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::difference::Difference;
use crate::fixture::{converted, converted_value};

const BLOCK: &str = "/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-30";

#[test]
fn all_data_is_converted_in_order() {
    let block = r#"{"cidr": "10.0.0.0/30", "affinity": "host:Node1.Example", "allocations": [0, null, null, null],
        "unallocated": [1, 2, 3], "attributes": [{"handle_id": "h1", "secondary": {"node": "Node1.Example"}}]}"#;
    let conversion = converted(&[
        ("/calico/ipam/v2/handle/h1", r#"{"block": {"10.0.0.0/30": 1}}"#),
        (BLOCK, block),
        ("/calico/ipam/v2/host/Node1.Example/ipv4/block/10.0.0.0-30", ""),
        (
            "/calico/ipam/v2/config",
            r#"{"strict_affinity": true, "auto_allocate_blocks": false}"#,
        ),
    ]);
    assert!(conversion.is_clean() && !conversion.has_resources());
    let kinds: Vec<ObjectKind> = conversion.objects.iter().map(|object| object.kind).collect();
    assert_eq!(
        kinds,
        [
            ObjectKind::IpamConfig,
            ObjectKind::IpamBlock,
            ObjectKind::BlockAffinity,
            ObjectKind::IpamHandle
        ]
    );
    assert_eq!(
        conversion.value("/calico/ipam/v2/config"),
        &json!({ "strict_affinity": true })
    );
    assert_eq!(
        conversion.value(BLOCK),
        &json!({
            "cidr": "10.0.0.0/30", "affinity": "host:node1.example", "strictAffinity": false, "deleted": false,
            "allocations": [0, null, null, null], "unallocated": [1, 2, 3],
            "attributes": [{ "handle_id": "h1", "secondary": { "node": "Node1.Example" } }],
        })
    );
    assert_eq!(
        conversion.value("/calico/ipam/v2/host/node1.example/ipv4/block/10.0.0.0-30"),
        &json!({ "state": "", "deleted": false })
    );
    assert_eq!(
        conversion.value("/calico/ipam/v2/handle/h1"),
        &json!({ "block": { "10.0.0.0/30": 1 }, "deleted": false })
    );
    assert_eq!(
        conversion.report_lines(),
        ["IPAMConfigKey(): copied, strict affinity on"]
    );
    assert!(conversion.differs_by(Difference::IpamConfig));
}

#[rstest]
#[case(json!({ "affinity": "host:A_b" }), json!("host:a-b"), None)]
#[case(json!({ "hostAffinity": "Old_Host" }), json!("host:old-host"), None)]
#[case(json!({ "affinity": "host:A", "hostAffinity": "B" }), json!("host:a"), Some("B"))]
#[case(json!({ "affinity": "virtual:x", "hostAffinity": "B" }), json!("host:b"), Some("B"))]
#[case(json!({ "affinity": "virtual:X" }), json!("virtual:X"), None)]
#[case(json!({ "affinity": "host:" }), json!("host:"), None)]
#[case(json!({}), Value::Null, None)]
fn the_host_of_a_block_is_converted(
    #[case] mut block: Value,
    #[case] affinity: Value,
    #[case] old: Option<&str>,
) {
    block["cidr"] = json!("10.0.0.0/30");
    let conversion = converted_value(BLOCK, &block);
    let written = conversion.value(BLOCK);
    assert_eq!(written["affinity"], affinity);
    assert_eq!(written.get("hostAffinity").and_then(Value::as_str), old);
    assert_eq!(written["allocations"], Value::Null, "a missing list is null");
}

#[rstest]
#[case("/calico/ipam/v2/config", "x", "IPAMConfigKey(): ")]
#[case(
    BLOCK,
    r#"{"allocations": [0.5]}"#,
    "BlockKey(cidr=10.0.0.0/30): allocations[0]: "
)]
#[case(BLOCK, "", "BlockKey(cidr=10.0.0.0/30): ")]
#[case(
    "/calico/ipam/v2/host/a/ipv4/block/10.0.0.0-30",
    " ",
    "BlockAffinityKey(cidr=10.0.0.0/30, host=a): "
)]
#[case(
    "/calico/ipam/v2/handle/h",
    r#"{"block": {"x": "1"}}"#,
    "IPAMHandleKey(id=h): block[\"x\"]: "
)]
fn an_invalid_value_is_reported_in_one_line(#[case] key: &str, #[case] value: &str, #[case] start: &str) {
    let conversion = converted(&[(key, value)]);
    let report = conversion.report_lines();
    assert!(report.len() == 1 && report[0].starts_with(start), "{report:?}");
    assert!(conversion.differs_by(Difference::UnparsableValue));
}

#[rstest]
#[case("/calico/ipam/v2/assignment/ipv4/block/10.0.0.0")]
#[case("/calico/ipam/v2/host/a/ipv4/block/x-26")]
fn a_key_without_a_network_is_reported(#[case] key: &str) {
    let conversion = converted(&[(key, "{}")]);
    assert!(
        conversion.report_lines()[0].starts_with(key) && conversion.differs_by(Difference::UnreadableKey)
    );
}

#[rstest]
#[case(BLOCK, "{}", "BlockKey(cidr=10.0.0.0/30): found \"\", needed a network")]
#[case(
    "/calico/ipam/v2/host/---/ipv4/block/10.0.0.0-30",
    "",
    "BlockAffinityKey(cidr=10.0.0.0/30, host=---): found \"---\""
)]
fn a_value_that_could_not_be_written_is_reported(
    #[case] key: &str,
    #[case] value: &str,
    #[case] start: &str,
) {
    let conversion = converted(&[(key, value)]);
    let report = conversion.report_lines();
    assert!(report.len() == 1 && report[0].starts_with(start), "{report:?}");
    assert!(conversion.differs_by(Difference::LateFailure));
}

#[test]
fn a_block_whose_network_differs_from_its_key_has_a_note() {
    let conversion = converted_value(BLOCK, &json!({ "cidr": "10.9.0.0/30" }));
    assert!(conversion.is_clean() && conversion.report_lines()[0].contains("the value has 10.9.0.0/30"));
}

#[test]
fn the_last_of_two_affinities_with_one_key_is_used() {
    let conversion = converted(&[
        (
            "/calico/ipam/v2/host/A/ipv4/block/10.0.0.0-30",
            r#"{"state": "pending"}"#,
        ),
        (
            "/calico/ipam/v2/host/a/ipv4/block/10.0.0.0-30",
            r#"{"state": "confirmed"}"#,
        ),
    ]);
    assert_eq!(conversion.objects.len(), 1);
    let key = "/calico/ipam/v2/host/a/ipv4/block/10.0.0.0-30";
    assert_eq!(conversion.value(key)["state"], "confirmed");
    let report = conversion.report_lines();
    assert!(
        report.len() == 1
            && report[0].contains("host=a) overwrites BlockAffinityKey(cidr=10.0.0.0/30, host=A)")
    );
}
