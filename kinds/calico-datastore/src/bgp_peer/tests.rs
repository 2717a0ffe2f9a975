use rstest::rstest;
use serde_json::{Value, json};

use crate::difference::Difference;
use crate::fixture::{converted, converted_value};

#[test]
fn peers_of_all_nodes_and_of_one_node_are_converted() {
    let conversion = converted(&[
        (
            "/calico/bgp/v1/global/peer_v4/192.168.9.9",
            r#"{"ip": "192.168.9.9", "as_num": "65001"}"#,
        ),
        (
            "/calico/bgp/v1/global/peer_v6/AA:bb::ff",
            r#"{"ip": "aa:bb::ff", "as_num": "4294967294"}"#,
        ),
        (
            "/calico/bgp/v1/host/Node_A/peer_v4/5.5.5.5",
            r#"{"ip": "5.5.5.5", "as_num": "6555"}"#,
        ),
    ]);
    assert!(conversion.is_clean());
    assert_eq!(
        conversion.names(),
        [
            "BGPPeer(global, ip=192.168.9.9) -> BGPPeer(192-168-9-9)",
            "BGPPeer(global, ip=aa:bb::ff) -> BGPPeer(00aa-00bb-0000-0000-0000-0000-0000-00ff)",
            "BGPPeer(node=Node_A, ip=5.5.5.5) -> BGPPeer(node-a.5-5-5-5)",
        ]
    );
    assert_eq!(
        conversion.value("bgppeers/node-a.5-5-5-5")["spec"],
        json!({ "node": "node-a", "peerIP": "5.5.5.5", "asNumber": 6555 })
    );
}

#[rstest]
#[case(json!("1.10"), 65546, true)]
#[case(json!(65001), 65001, true)]
#[case(json!("065001"), 65001, true)]
#[case(json!("\"1.10\""), 65546, false)]
#[case(json!("null"), 0, false)]
#[case(json!(" 7 "), 7, false)]
#[case(Value::Null, 0, false)]
fn every_form_of_an_as_number_is_read(#[case] value: Value, #[case] number: u32, #[case] has_note: bool) {
    let peer = json!({ "ip": "10.0.0.1", "as_num": value });
    let conversion = converted_value("/calico/bgp/v1/global/peer_v4/10.0.0.1", &peer);
    assert!(conversion.is_clean());
    assert_eq!(conversion.value("bgppeers/10-0-0-1")["spec"]["asNumber"], number);
    assert_eq!(conversion.differs_by(Difference::PeerAsNumber), has_note);
}

#[rstest]
#[case(json!("seventy"))]
#[case(json!(""))]
#[case(json!(1.5))]
#[case(json!(-1))]
#[case(json!("nope"))]
#[case(json!(["1"]))]
fn an_invalid_as_number_is_reported_in_one_line(#[case] value: Value) {
    let peer = json!({ "ip": "10.0.0.1", "as_num": value });
    let conversion = converted_value("/calico/bgp/v1/global/peer_v4/10.0.0.1", &peer);
    let report = conversion.report_lines();
    assert!(
        report.len() == 1 && report[0].starts_with("BGPPeer(global, ip=10.0.0.1): as_num: found "),
        "{report:?}"
    );
}

#[test]
fn the_address_in_the_value_takes_precedence_over_the_key() {
    let peer = json!({ "ip": "10.0.0.2", "as_num": "1" });
    let conversion = converted_value("/calico/bgp/v1/global/peer_v4/10.0.0.1", &peer);
    assert_eq!(
        conversion.names(),
        ["BGPPeer(global, ip=10.0.0.1) -> BGPPeer(10-0-0-2)"]
    );
    assert_eq!(conversion.notes.len(), 1);
    let nothing = converted_value(
        "/calico/bgp/v1/host/a/peer_v4/10.0.0.1",
        &json!({ "as_num": "1" }),
    );
    assert_eq!(nothing.validation_errors.len(), 1);
}

#[test]
fn a_key_without_an_address_is_reported_in_one_line() {
    let key = "/calico/bgp/v1/global/peer_v4/router";
    let conversion = converted_value(key, &json!({ "ip": "10.0.0.1", "as_num": "1" }));
    let report = conversion.report_lines();
    assert!(
        report.len() == 1 && report[0].starts_with(&format!("{key}: ")),
        "{report:?}"
    );
    assert!(conversion.differs_by(Difference::UnreadableKey));
}
