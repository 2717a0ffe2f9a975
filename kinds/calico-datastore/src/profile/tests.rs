use serde_json::json;

use super::*;
use crate::difference::Difference;
use crate::fixture::converted;

#[test]
fn three_values_become_one_object() {
    let conversion = converted(&[
        ("/calico/v1/policy/profile/My%2fProfile/labels", r#"{"a": "b"}"#),
        (
            "/calico/v1/policy/profile/My%2fProfile/rules",
            r#"{"inbound_rules": [{"src_tag": "t1"}], "outbound_rules": []}"#,
        ),
        ("/calico/v1/policy/profile/My%2fProfile/tags", r#"["t1", "t2"]"#),
        ("/calico/v1/policy/profile/My%2fProfile/other", "x"),
    ]);
    assert_eq!(conversion.report_lines(), [""; 0]);
    let name = names::name("My/Profile");
    assert_eq!(
        conversion.names(),
        [format!("Profile(name=My/Profile) -> Profile({name})")]
    );
    assert_eq!(
        conversion.value(&format!("profiles/{name}"))["spec"],
        json!({
            "labelsToApply": { "a": "b", "t1": "", "t2": "" },
            "ingress": [{ "action": "Allow", "source": { "selector": "t1 == ''" }, "destination": {} }],
        })
    );
}

#[test]
fn a_single_null_value_makes_a_profile() {
    let conversion = converted(&[("/calico/v1/policy/profile/a/tags", "null")]);
    assert_eq!(conversion.value("profiles/a")["spec"], json!({}));
}

#[test]
fn a_tag_that_is_a_label_is_a_conversion_error() {
    for (labels, tags) in [(r#"{"a": "x"}"#, r#"["a"]"#), ("{}", r#"["a", "a"]"#)] {
        let conversion = converted(&[
            ("/calico/v1/policy/profile/p/labels", labels),
            ("/calico/v1/policy/profile/p/tags", tags),
        ]);
        let report = conversion.report_lines();
        assert!(
            report.len() == 1 && report[0].starts_with("Profile(name=p): the tag \"a\""),
            "{report:?}"
        );
        assert_eq!(conversion.differences().len(), 0);
    }
}

#[test]
fn an_invalid_value_is_reported_and_the_others_are_converted() {
    let conversion = converted(&[
        ("/calico/v1/policy/profile/a/labels", r#"{"a": 1}"#),
        ("/calico/v1/policy/profile/a/tags", r#"["t"]"#),
        ("/calico/v1/policy/profile/b/rules", "[]"),
    ]);
    assert_eq!(conversion.names(), ["Profile(name=a) -> Profile(a)"]);
    let report = conversion.report_lines();
    assert!(
        report[0].starts_with("ProfileLabels(name=a): [\"a\"]: found 1, needed a string"),
        "{report:?}"
    );
    assert!(report[1].starts_with("ProfileRules(name=b): "), "{report:?}");
    assert!(conversion.differs_by(Difference::UnparsableValue));
}

#[test]
fn a_profile_that_v3_refuses_is_reported() {
    let conversion = converted(&[
        ("/calico/v1/policy/profile/a/labels", r#"{"bad key!": ""}"#),
        (
            "/calico/v1/policy/profile/a/rules",
            r#"{"outbound_rules": [{"protocol": "gre"}]}"#,
        ),
    ]);
    let report = conversion.report_lines();
    assert_eq!(report.len(), 1);
    for words in [
        "Profile(name=a) -> Profile(a): ",
        "spec.labelsToApply",
        "spec.egress[0].protocol",
    ] {
        assert!(report[0].contains(words), "{report:?}");
    }
}

#[test]
fn profiles_of_controllers_are_counted_in_a_note() {
    let conversion = converted(&[
        ("/calico/v1/policy/profile/k8s_ns.default/labels", "{}"),
        ("/calico/v1/policy/profile/k8s_ns.default/tags", "{not json"),
        ("/calico/v1/policy/profile/openstack-sg-1/tags", "[]"),
        ("/calico/v1/policy/profile/k8s_nsx/tags", "[]"),
    ]);
    assert!(conversion.is_clean());
    assert_eq!(conversion.objects.len(), 1);
    assert!(
        conversion.report_lines()[0].starts_with("profiles of namespaces and security groups: 2 not copied"),
        "{:?}",
        conversion.report_lines()
    );
}
