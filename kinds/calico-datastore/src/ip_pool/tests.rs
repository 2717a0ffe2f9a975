use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::difference::Difference;
use crate::fixture::converted_value;

fn pool(value: &Value) -> Conversion {
    converted_value("/calico/v1/ipam/v4/pool/10.1.0.0-16", value)
}

#[rstest]
#[case(json!({ "cidr": "10.1.0.0/16" }), json!({ "cidr": "10.1.0.0/16", "ipipMode": "Never", "blockSize": 26 }))]
#[case(
    json!({ "cidr": "10.1.0.0/16", "ipip": "tunl0", "ipip_mode": "Cross-Subnet", "masquerade": true }),
    json!({ "cidr": "10.1.0.0/16", "ipipMode": "CrossSubnet", "blockSize": 26, "natOutgoing": true })
)]
#[case(
    json!({ "cidr": "10.1.0.0/27", "ipip": "tunl0", "disabled": true }),
    json!({ "cidr": "10.1.0.0/27", "ipipMode": "Always", "blockSize": 26, "disabled": true })
)]
#[case(
    json!({ "cidr": "fd80:24e2:f998:72d6::/64", "ipip_mode": "always" }),
    json!({ "cidr": "fd80:24e2:f998:72d6::/64", "ipipMode": "Never", "blockSize": 122 })
)]
fn a_pool_is_converted(#[case] old: Value, #[case] mut wanted: Value) {
    let conversion = pool(&old);
    assert!(conversion.is_clean(), "{:?}", conversion.report_lines());
    wanted["nodeSelector"] = json!("all()");
    wanted["vxlanMode"] = json!("Never");
    assert_eq!(conversion.objects[0].value["spec"], wanted);
}

#[test]
fn a_pool_is_named_after_the_network_in_its_value() {
    let conversion = pool(&json!({ "cidr": "fd80:24e2:f998:72d6::/64" }));
    assert_eq!(
        conversion.names(),
        ["IPPool(cidr=10.1.0.0/16) -> IPPool(fd80-24e2-f998-72d6---64)"]
    );
    assert!(conversion.report_lines()[0].contains("the value has fd80:24e2:f998:72d6::/64"));
}

#[rstest]
#[case::too_small(json!({ "cidr": "10.1.0.0/27" }), &["spec.cidr is \"10.1.0.0/27\"", "/26 or wider"])]
#[case::one_address(json!({ "cidr": "10.1.0.0" }), &["10.1.0.0/32"])]
#[case::too_small_six(json!({ "cidr": "fd00::/123" }), &["/122 or wider"])]
#[case::bits(json!({ "cidr": "10.1.0.5/16" }), &["without host bits: 10.1.0.0/16"])]
#[case::tunnel(json!({ "cidr": "fd00::/64", "ipip": "tunl0" }), &["spec.ipipMode is \"Always\""])]
#[case::link_local(json!({ "cidr": "169.254.0.0/24" }), &["169.254.0.0/16"])]
#[case::around_link_local(json!({ "cidr": "168.0.0.0/6" }), &["169.254.0.0/16"])]
#[case::link_local_six(json!({ "cidr": "fe80::/64" }), &["fe80::/10"])]
#[case::nothing(json!({}), &["metadata.name", "spec.cidr is \"<nil>\""])]
fn a_pool_that_v3_refuses_is_reported(#[case] old: Value, #[case] words: &[&str]) {
    let conversion = pool(&old);
    assert_eq!(
        (conversion.validation_errors.len(), conversion.objects.len()),
        (1, 0)
    );
    let report = &conversion.report_lines()[0];
    for word in words {
        assert!(report.contains(word), "{report}");
    }
}

#[test]
fn a_pool_without_allocation_becomes_usable_with_a_note() {
    let old = json!({ "cidr": "10.1.0.0/16", "ipam": false });
    let report = pool(&old).report_lines();
    assert!(
        report.len() == 1 && report[0].contains("\"ipam\": false"),
        "{report:?}"
    );
    let mut disabled = old.clone();
    disabled["disabled"] = json!(true);
    assert_eq!(pool(&disabled).report_lines(), [""; 0]);
}

#[rstest]
#[case(json!({ "cidr": "10.1.0.0/33" }))]
#[case(json!({ "cidr": "10.1.0.0/16", "masquerade": "yes" }))]
#[case(json!({ "cidr": "10.1.0.0/16", "vxlan_mode": 1 }))]
fn an_invalid_pool_is_reported_in_one_line(#[case] old: Value) {
    let conversion = pool(&old);
    assert_eq!(conversion.report_lines().len(), 1);
    assert!(conversion.differs_by(Difference::UnparsableValue));
}

#[test]
fn a_key_without_a_network_is_reported() {
    let conversion = converted_value("/calico/v1/ipam/v4/pool/all", &json!({ "cidr": "10.1.0.0/16" }));
    assert!(conversion.differs_by(Difference::UnreadableKey));
}
