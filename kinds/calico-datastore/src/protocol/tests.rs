use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::decode::read;

#[rstest]
#[case(r#""tcp""#, json!("TCP"), true, true)]
#[case(r#""UDPLITE""#, json!("UDPLite"), true, false)]
#[case(r#""icmpV6""#, json!("ICMPv6"), true, false)]
#[case("6", json!(6), true, true)]
#[case(r#""132""#, json!(132), true, true)]
#[case("0", json!(0), false, false)]
#[case(r#""300""#, json!("300"), false, false)]
#[case(r#""gre""#, json!("gre"), false, false)]
#[case(r#""""#, json!(""), false, false)]
#[case("null", json!(0), false, false)]
fn a_protocol_is_converted_to_v3(
    #[case] text: &str,
    #[case] written: Value,
    #[case] known: bool,
    #[case] ports: bool,
) {
    let protocol = read::<Protocol>(text).unwrap().in_v3();
    assert_eq!(serde_json::to_value(&protocol).unwrap(), written);
    assert_eq!((protocol.is_known(), protocol.has_ports()), (known, ports));
}

#[rstest]
#[case("1234", json!(1234))]
#[case(r#""1234""#, json!(1234))]
#[case(r#""4567:4570""#, json!("4567:4570"))]
#[case(r#""80:80""#, json!(80))]
#[case(r#""named""#, json!("named"))]
#[case(r#""12a""#, json!("12a"))]
#[case("null", json!(0))]
fn a_port_is_converted_to_v3(#[case] text: &str, #[case] written: Value) {
    assert_eq!(
        serde_json::to_value(read::<Port>(text).unwrap()).unwrap(),
        written
    );
}

#[rstest]
#[case(r#""70000""#)]
#[case("70000")]
#[case("80.0")]
#[case("-1")]
#[case(r#""90:80""#)]
#[case(r#""1:70000""#)]
#[case(r#""a b""#)]
#[case(r#""""#)]
#[case("true")]
fn an_invalid_port_is_refused(#[case] text: &str) {
    assert!(read::<Port>(text).is_err());
}

#[rstest]
#[case("256")]
#[case("6.0")]
#[case("{}")]
fn an_invalid_protocol_is_refused(#[case] text: &str) {
    assert!(read::<Protocol>(text).is_err());
}
