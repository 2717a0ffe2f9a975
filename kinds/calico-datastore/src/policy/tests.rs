use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::difference::Difference;
use crate::fixture::{converted, converted_value};

fn policy(value: &Value) -> Conversion {
    converted_value("/calico/v1/policy/tier/default/policy/p1", value)
}

fn spec(value: &Value) -> Value {
    let conversion = policy(value);
    assert!(conversion.is_clean(), "{:?}", conversion.report_lines());
    conversion.value("globalnetworkpolicies/default.p1")["spec"].clone()
}

#[rstest]
#[case(json!({}), json!({ "types": ["Ingress", "Egress"] }))]
#[case(Value::Null, json!({ "types": ["Ingress", "Egress"] }))]
#[case(json!({ "types": ["EGRESS"] }), json!({ "types": ["Egress"] }))]
#[case(
    json!({ "pre_dnat": true }),
    json!({ "types": ["Ingress"], "preDNAT": true, "applyOnForward": true })
)]
#[case(
    json!({ "untracked": true, "types": ["ingress"] }),
    json!({ "types": ["Ingress"], "doNotTrack": true, "applyOnForward": true })
)]
#[case(
    json!({ "apply_on_forward": true, "selector": "calico/k8s_ns == 'a'", "outbound_rules": [{}] }),
    json!({
        "types": ["Ingress", "Egress"], "applyOnForward": true, "selector": "projectcalico.org/namespace == 'a'",
        "egress": [{ "action": "Allow", "source": {}, "destination": {} }],
    })
)]
fn a_policy_is_converted(#[case] old: Value, #[case] wanted: Value) {
    assert_eq!(spec(&old), wanted);
}

#[rstest]
#[case("1234.5", json!(1234.5))]
#[case("10", json!(10))]
#[case("1e2", json!(100))]
#[case("-3", json!(-3))]
#[case("-0", json!(0))]
#[case("0.1", json!(0.1))]
#[case("12345678901234567890", json!(12_345_678_901_234_567_000_u64))]
#[case("1e300", json!(1e300))]
fn an_order_is_written_as_go_writes_it(#[case] order: &str, #[case] wanted: Value) {
    let value = serde_json::from_str(&format!(r#"{{"order": {order}}}"#)).unwrap();
    assert_eq!(spec(&value)["order"], wanted);
}

#[test]
fn a_policy_is_stored_under_its_tier() {
    let key = "/calico/v1/policy/tier/default/policy/Team.A%2fweb";
    let conversion = converted_value(key, &json!({ "annotations": { "a": "b" } }));
    assert_eq!(
        conversion.names(),
        ["Policy(name=Team.A/web) -> GlobalNetworkPolicy(team-a-web-8f80a781)"]
    );
    let object = conversion.value("globalnetworkpolicies/default.team-a-web-8f80a781");
    assert_eq!(
        object["metadata"],
        json!({ "name": "default.team-a-web-8f80a781", "annotations": { "a": "b" } })
    );
}

#[test]
fn an_invalid_type_is_a_conversion_error() {
    let conversion = policy(&json!({ "types": ["ingress", "both"] }));
    assert_eq!(conversion.conversion_errors.len(), 1);
    let report = conversion.conversion_errors[0].to_string();
    assert!(
        report.starts_with("Policy(name=p1): types: found \"both\""),
        "{report}"
    );
}

#[rstest]
#[case::selector(json!({ "selector": "role = bad" }), &["spec.selector is \"role = bad\"", "byte 5"])]
#[case::both(json!({ "pre_dnat": true, "untracked": true }), &["spec.preDNAT is true"])]
#[case::egress(json!({ "pre_dnat": true, "outbound_rules": [{}] }), &["spec.egress is a list of 1,"])]
#[case::egress_type(json!({ "pre_dnat": true, "types": ["egress"] }), &["spec.types is [\"Egress\"]"])]
#[case::twice(json!({ "types": ["ingress", "Ingress"] }), &["each type once"])]
#[case::annotation(json!({ "annotations": { "a b": "" } }), &["metadata.annotations"])]
#[case::rules(
    json!({ "inbound_rules": [{}, { "dst_ports": [1] }], "outbound_rules": [{ "action": "x" }] }),
    &["spec.ingress[1].protocol", "spec.egress[0].action is \"x\""]
)]
fn a_policy_that_v3_refuses_is_reported(#[case] old: Value, #[case] words: &[&str]) {
    let conversion = policy(&old);
    assert_eq!(
        (conversion.validation_errors.len(), conversion.objects.len()),
        (1, 0)
    );
    let report = conversion.validation_errors[0].to_string();
    assert!(
        report.starts_with("Policy(name=p1) -> GlobalNetworkPolicy(p1): "),
        "{report}"
    );
    for word in words {
        assert!(report.contains(word), "{report}");
    }
}

#[test]
fn an_invalid_policy_is_reported_and_not_omitted() {
    let conversion = converted(&[
        ("/calico/v1/policy/tier/default/policy/p1", "{not json"),
        (
            "/calico/v1/policy/tier/default/policy/p2",
            r#"{"selector": "all()"}"#,
        ),
    ]);
    assert_eq!(conversion.names(), ["Policy(name=p2) -> GlobalNetworkPolicy(p2)"]);
    let report = conversion.report_lines();
    assert!(
        report.len() == 1 && report[0].starts_with("Policy(name=p1): the value is not JSON"),
        "{report:?}"
    );
    assert!(conversion.differs_by(Difference::UnparsableValue));
}

#[test]
fn names_that_are_equal_after_the_hash_clash() {
    let name = names::name_without_dots("a.b");
    let conversion = converted(&[
        ("/calico/v1/policy/tier/default/policy/a.b", "{}"),
        (&format!("/calico/v1/policy/tier/default/policy/{name}"), "{}"),
    ]);
    let clashes: Vec<String> = conversion.clashes.iter().map(ToString::to_string).collect();
    assert_eq!(
        clashes,
        [format!(
            "Policy(name=a.b) and Policy(name={name}) -> GlobalNetworkPolicy({name})"
        )]
    );
}

#[test]
fn policies_of_kubernetes_and_of_other_tiers_have_notes() {
    let conversion = converted(&[
        (
            "/calico/v1/policy/tier/default/policy/knp.default.ns1.allow",
            "{not json",
        ),
        ("/calico/v1/policy/tier/default/policy/knp.other", "{}"),
        ("/calico/v1/policy/tier/security/policy/p1", "{}"),
        ("/calico/v1/policy/tier/default/metadata", "{}"),
    ]);
    assert!(conversion.is_clean());
    assert_eq!(conversion.objects.len(), 1);
    let report = conversion.report_lines();
    assert_eq!(report.len(), 2);
    assert!(
        report[0].contains("/tier/security/")
            && report[1].starts_with("policies of Kubernetes: 1 not copied"),
        "{report:?}"
    );
}

/// v3 adds a prefix of 12 characters to the name of a policy of Kubernetes, and no longer its namespace.
#[test]
fn a_policy_of_kubernetes_with_a_name_too_long_for_v3_has_a_note() {
    let report = |letters: usize| {
        let path = format!(
            "/calico/v1/policy/tier/default/policy/knp.default.shop.{}",
            "a".repeat(letters)
        );
        let conversion = converted(&[(&path, "{}")]);
        assert!(conversion.is_clean());
        conversion.report_lines()
    };
    assert_eq!(report(241).len(), 1);
    let long = report(242);
    assert_eq!(long.len(), 2, "{long:?}");
    assert!(
        long.iter().any(|line| line.contains("too long for v3")),
        "{long:?}"
    );
}

#[test]
fn a_selector_or_prefix_that_changes_has_a_note() {
    let conversion = policy(&json!({
        "selector": "a == 'calico/k8s_ns'",
        "inbound_rules": [{ "!dst_selector": "has(calico/k8s_ns_x)" }],
        "outbound_rules": [{ "log_prefix": "seen" }],
    }));
    let report = conversion.report_lines();
    assert!(conversion.is_clean() && report.len() == 3, "{report:?}");
    for (line, words) in report.iter().zip([
        "selector is \"a ==",
        "inbound_rules[0].!dst_selector",
        "outbound_rules[0].log_prefix is \"seen\"",
    ]) {
        assert!(line.contains(words), "{report:?}");
    }
}
