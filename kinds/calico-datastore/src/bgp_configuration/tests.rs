use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::fixture::converted;

#[rstest]
#[case("as_num", "64999", json!({ "asNumber": 64999 }))]
#[case("as_num", "1.10", json!({ "asNumber": 65546 }))]
#[case("loglevel", "debug", json!({ "logSeverityScreen": "Debug" }))]
#[case("loglevel", "whatever", json!({ "logSeverityScreen": "Info" }))]
#[case("node_mesh", r#"{"enabled": false}"#, json!({ "nodeToNodeMeshEnabled": false }))]
#[case("node_mesh", r#"{"ENABLED": true}"#, json!({ "nodeToNodeMeshEnabled": true }))]
#[case("node_mesh", "{}", json!({ "nodeToNodeMeshEnabled": false }))]
fn a_setting_becomes_a_field(#[case] name: &str, #[case] value: &str, #[case] wanted: Value) {
    let conversion = converted(&[(&format!("{DIRECTORY}/{name}"), value)]);
    assert!(conversion.is_clean());
    assert_eq!(conversion.value("bgpconfigurations/default")["spec"], wanted);
}

#[rstest]
#[case("as_num")]
#[case("loglevel")]
fn an_empty_setting_writes_no_object(#[case] name: &str) {
    let conversion = converted(&[(&format!("{DIRECTORY}/{name}"), "")]);
    assert!(conversion.is_clean() && !conversion.has_resources());
}

#[rstest]
#[case("as_num", "seventy", Difference::GlobalAsNumber)]
#[case("node_mesh", "{not json", Difference::NodeMesh)]
#[case("node_mesh", "", Difference::NodeMesh)]
#[case("node_mesh", r#"{"enabled": "true"}"#, Difference::NodeMesh)]
fn an_invalid_setting_is_reported_in_one_line(
    #[case] name: &str,
    #[case] value: &str,
    #[case] difference: Difference,
) {
    let conversion = converted(&[(&format!("{DIRECTORY}/{name}"), value)]);
    let report = conversion.report_lines();
    assert_eq!(report.len(), 1);
    assert!(
        report[0].starts_with(&format!("GlobalBGPConfig(name={name}): found {value:?}")),
        "{report:?}"
    );
    assert!(conversion.differs_by(difference) && !conversion.has_resources());
}
