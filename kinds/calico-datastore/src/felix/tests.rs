use rstest::rstest;
use serde_json::json;

use super::*;
use crate::fixture::converted;

fn setting(name: &str, value: &str) -> Conversion {
    converted(&[(&format!("/calico/v1/config/{name}"), value)])
}

fn spec(name: &str, value: &str) -> Value {
    setting(name, value).value("felixconfigurations/default")["spec"].clone()
}

#[rstest]
#[case("Ipv6Support", "T", json!({ "ipv6Support": true }))]
#[case("IpInIpMtu", "1440", json!({ "ipipMTU": 1440 }))]
#[case("VXLANVNI", "+4096", json!({ "vxlanVNI": 4096 }))]
#[case("IptablesMarkMask", "4278190080", json!({ "iptablesMarkMask": 0xff00_0000_u32 }))]
#[case("RouteRefreshInterval", "12.345", json!({ "routeRefreshInterval": "12.345s" }))]
#[case("ReportingTTLSecs", "90", json!({ "reportingTTL": "1m30s" }))]
#[case("ReportingIntervalSecs", "0", json!({ "reportingInterval": "0s" }))]
#[case("IptablesLockProbeIntervalMillis", "50.325", json!({ "iptablesLockProbeInterval": "50.325ms" }))]
#[case("InterfacePrefix", "cali", json!({ "interfacePrefix": "cali" }))]
#[case("InterfacePrefix", "", json!({}))]
#[case("HealthHost", "", json!({ "healthHost": "" }))]
#[case("LogSeverityScreen", "WARNING", json!({ "logSeverityScreen": "Warning" }))]
#[case("LogSeverityFile", "panic", json!({ "logSeverityFile": "Fatal" }))]
#[case("LogSeveritySys", "", json!({}))]
#[case("FailsafeOutboundHostPorts", "none", json!({ "failsafeOutboundHostPorts": [] }))]
#[case("FailsafeOutboundHostPorts", " , ", json!({ "failsafeOutboundHostPorts": null }))]
#[case("FailsafeInboundHostPorts", "tcp:22, Udp:68,443", json!({ "failsafeInboundHostPorts": [
    { "protocol": "TCP", "port": 22 }, { "protocol": "UDP", "port": 68 }, { "protocol": "TCP", "port": 443 },
] }))]
fn a_setting_is_converted_to_its_form_in_v3(#[case] name: &str, #[case] value: &str, #[case] wanted: Value) {
    assert_eq!(spec(name, value), wanted);
    assert!(setting(name, value).is_clean());
}

#[rstest]
#[case("Ipv6Support", "maybe")]
#[case("IpInIpMtu", "fourteen")]
#[case("IpInIpMtu", "1440.0")]
#[case("IptablesMarkMask", "-1")]
#[case("IptablesMarkMask", "0x1ff000000")]
#[case("IptablesMarkMask", "0x+f")]
#[case("FailsafeInboundHostPorts", "sctp:22")]
#[case("FailsafeInboundHostPorts", "tcp:99999")]
#[case("FailsafeInboundHostPorts", "tcp: 22")]
#[case("FailsafeInboundHostPorts", "tcp:22:23")]
#[case("FailsafeInboundHostPorts", "None")]
#[case("NATPortRange", "1:2")]
#[case("DatastoreReady", "maybe")]
fn an_invalid_setting_is_reported_in_one_line_with_its_value(#[case] name: &str, #[case] value: &str) {
    let conversion = setting(name, value);
    let report = conversion.report_lines();
    assert_eq!(report.len(), 1, "{report:?}");
    assert!(
        report[0].starts_with(&format!("GlobalFelixConfig(name={name}): found {value:?}")),
        "{report:?}"
    );
    assert_eq!(conversion.objects, []);
    assert_eq!(conversion.differences().len(), 0);
}

#[rstest]
#[case("10s", Difference::DurationOnce)]
#[case("inf", Difference::DurationRange)]
#[case("9.3e9", Difference::DurationRange)]
fn an_invalid_duration_is_reported_in_one_line(#[case] value: &str, #[case] difference: Difference) {
    let conversion = setting("RouteRefreshInterval", value);
    assert_eq!(conversion.conversion_errors.len(), 1);
    assert!(conversion.differs_by(difference));
}

#[test]
fn a_hexadecimal_mask_is_read() {
    assert_eq!(
        spec("IptablesMarkMask", "0xff000000"),
        json!({ "iptablesMarkMask": 0xff00_0000_u32 })
    );
    let conversion = setting("IptablesMarkMask", "0xff000000");
    assert!(conversion.is_clean() && conversion.differs_by(Difference::MarkMask));
}

#[rstest]
#[case("UnknownFelixKnob", "x", "no such setting")]
#[case("interfaceprefix", "cali", "write it as InterfacePrefix")]
#[case("LogSeveritySys", "none", "log level becomes Info")]
#[case("DefaultEndpointToHostAction", "ACCEPT", "is written as Accept")]
#[case("DefaultEndpointToHostAction", "reject", "Drop, Accept or Return")]
#[case("IptablesBackend", "NFT", "unknown to Felix of v2")]
#[case("XDPRefreshInterval", "90", "xdpRefreshInterval")]
fn a_lost_or_changed_setting_has_a_note(#[case] name: &str, #[case] value: &str, #[case] words: &str) {
    let conversion = setting(name, value);
    let report = conversion.report_lines();
    assert!(conversion.is_clean() && report.len() == 1, "{report:?}");
    assert!(report[0].contains(words), "{report:?}");
}

/// calico-node of v3.31.7 exits with "failed to validate Field" when it has to add a log level to an object with ACCEPT.
#[rstest]
#[case("DefaultEndpointToHostAction", "RETURN", "Return")]
#[case("DefaultEndpointToHostAction", "drop", "Drop")]
#[case("IptablesFilterAllowAction", "ACCEPT", "Accept")]
#[case("IptablesMangleAllowAction", "return", "Return")]
fn an_action_is_written_in_the_form_that_v3_accepts(
    #[case] name: &str,
    #[case] value: &str,
    #[case] written: &str,
) {
    let conversion = setting(name, value);
    assert!(conversion.is_clean() && conversion.differs_by(Difference::FelixAction));
    let spec = spec(name, value);
    assert_eq!(spec.as_object().unwrap().values().next().unwrap(), written);
    assert_eq!(setting(name, written).notes, []);
}

#[test]
fn settings_of_other_objects_write_no_felix_configuration() {
    let conversion = converted(&[
        ("/calico/v1/config/UnknownFelixKnob", "x"),
        ("/calico/v1/config/CalicoVersion", "v2.6.12"),
        ("/calico/v1/host/a/config/IpInIpTunnelAddr", "10.0.0.1"),
    ]);
    let kinds: Vec<ObjectKind> = conversion.objects.iter().map(|object| object.kind).collect();
    assert_eq!(kinds, [ObjectKind::ClusterInformation, ObjectKind::Node]);
}

#[test]
fn hosts_that_become_one_node_share_an_object() {
    let conversion = converted(&[
        ("/calico/v1/host/Node_A/config/InterfacePrefix", "old"),
        ("/calico/v1/host/Node_A/config/LogPrefix", "a"),
        ("/calico/v1/host/node-a/config/InterfacePrefix", "new"),
        ("/calico/v1/host/node-a/config/IpInIpMtu", "x"),
    ]);
    assert_eq!(
        conversion.value("felixconfigurations/node.node-a")["spec"],
        json!({ "interfacePrefix": "new", "logPrefix": "a" })
    );
    let report = conversion.report_lines();
    assert!(
        report[0].starts_with("HostConfig(node=node-a,name=IpInIpMtu): "),
        "{report:?}"
    );
    assert!(
        report.iter().any(|line| line.contains("Node_A, node-a")),
        "{report:?}"
    );
}

#[test]
fn every_setting_has_unique_names() {
    let count = |name: fn(&Setting) -> &'static str| {
        let names: BTreeSet<&str> = SETTINGS.iter().map(name).collect();
        names.len()
    };
    assert_eq!(count(|setting| setting.v2), SETTINGS.len());
    assert_eq!(count(|setting| setting.v3), SETTINGS.len());
}

#[test]
fn the_flag_is_false_for_any_value_in_v2() {
    let conversion = setting("DatastoreReady", "true");
    assert_eq!(
        conversion.value("clusterinformations/default")["spec"],
        json!({ "datastoreReady": false })
    );
}

#[test]
fn the_identity_of_the_cluster_is_copied() {
    let conversion = converted(&[
        ("/calico/v1/config/CalicoVersion", "v2.6.12"),
        ("/calico/v1/config/ClusterGUID", "abc"),
        ("/calico/v1/config/ClusterType", ""),
    ]);
    assert_eq!(
        conversion.value("clusterinformations/default")["spec"],
        json!({ "calicoVersion": "v2.6.12", "clusterGUID": "abc", "datastoreReady": false })
    );
}
