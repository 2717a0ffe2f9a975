use rstest::rstest;

use super::*;
use crate::fixture::converted;

const BLOCK: &str = "/calico/ipam/v2/assignment/ipv4/block/10.0.0.0-30";

fn block(allocations: &str, attributes: &str) -> String {
    format!(r#"{{"cidr": "10.0.0.0/30", "allocations": {allocations}, "attributes": {attributes}}}"#)
}

fn report(values: &[(&str, &str)]) -> Vec<String> {
    let objects = converted(values).objects;
    cross_check(&objects).iter().map(ToString::to_string).collect()
}

#[test]
fn consistent_blocks_and_handles_give_no_problem() {
    let block = block("[0, 1, 0, null]", r#"[{"handle_id": "a"}, {"handle_id": "b"}]"#);
    let values = [
        (BLOCK, block.as_str()),
        ("/calico/ipam/v2/handle/a", r#"{"block": {"10.0.0.0/30": 2}}"#),
        ("/calico/ipam/v2/handle/b", r#"{"block": {"10.0.0.0/30": 1}}"#),
    ];
    assert_eq!(report(&values), [""; 0]);
}

#[rstest]
#[case::no_handle(
    "[null, 0, null, null]",
    r#"[{"handle_id": null}]"#,
    "{}",
    "BlockKey(cidr=10.0.0.0/30): 10.0.0.1 is allocated without a handle"
)]
#[case::no_attribute(
    "[3, null, null, null]",
    r#"[{"handle_id": "h"}]"#,
    "{}",
    "10.0.0.0 is allocated to attribute 3 of 1"
)]
#[case::negative("[-1, null, null, null]", "[]", "{}", "is allocated to attribute -1 of 0")]
#[case::too_few(
    "[0, 0, null, null]",
    r#"[{"handle_id": "h"}]"#,
    r#"{"block": {"10.0.0.0/30": 1}}"#,
    "IPAMHandleKey(id=h): counts addresses of 10.0.0.0/30: 1, allocated in the block: 2"
)]
#[case::not_counted(
    "[0, null, null, null]",
    r#"[{"handle_id": "h"}]"#,
    "{}",
    "counts addresses of 10.0.0.0/30: 0,"
)]
#[case::not_given(
    "[null, null, null, null]",
    "[]",
    r#"{"block": {"10.0.0.0/30": 1}}"#,
    "allocated in the block: 0"
)]
#[case::no_block(
    "[null, null, null, null]",
    "[]",
    r#"{"block": {"10.9.0.0/30": 2}}"#,
    "counts addresses of 10.9.0.0/30: 2,"
)]
fn an_inconsistency_is_reported_and_copied(
    #[case] allocations: &str,
    #[case] attributes: &str,
    #[case] handle: &str,
    #[case] words: &str,
) {
    let block = block(allocations, attributes);
    let values = [(BLOCK, block.as_str()), ("/calico/ipam/v2/handle/h", handle)];
    let report = report(&values);
    assert!(report.len() == 1 && report[0].contains(words), "{report:?}");
    // The inconsistency is copied.
    assert!(converted(&values).is_clean());
}
