use serde_json::json;

use super::*;

fn spec(field: &str, settings: serde_json::Value) -> NodeMigrationSpec {
    let mut spec = json!({ "nodeName": "a", "migration": "m" });
    spec[field] = settings;
    serde_json::from_value(spec).unwrap()
}

#[test]
fn pod_mtu_is_taken_from_the_settings_of_each_kind() {
    assert_eq!(pod_mtu(None), LEAST_MTU);
    let ranges = json!({ "from": "10.244.0.0/16", "to": "10.200.0.0/16" });
    assert_eq!(pod_mtu(Some(&spec("podCidr", ranges))), LEAST_MTU);
    let ranges = json!({ "from": "10.244.0.0/16", "to": "10.200.0.0/16", "mtu": 1430 });
    assert_eq!(pod_mtu(Some(&spec("podCidr", ranges))), 1430);
    let flannel = json!({ "host": {
        "vni": 1, "port": 8472, "mtu": 1450, "cniConfigurationDirectory": "/etc/cni/net.d",
    } });
    assert_eq!(pod_mtu(Some(&spec("flannelToCalico", flannel))), 1450);
    let services = json!({ "source": ["10.96.0.0/12"], "target": ["172.30.0.0/16"] });
    assert_eq!(
        pod_mtu(Some(&spec("serviceCidr", services))),
        LEAST_MTU,
        "serviceCidr has no setting for pods"
    );
}

#[test]
fn two_kinds_in_one_spec_are_a_contradiction_that_names_the_fields() {
    let services = json!({ "source": ["10.96.0.0/12"], "target": ["172.30.0.0/16"] });
    let datastore = spec("calicoDatastore", json!({}));
    assert_eq!(datastore.kind(), Ok(Some(Kind::CalicoDatastore)));
    let mut both = spec("serviceCidr", services);
    assert_eq!(both.kind(), Ok(Some(Kind::ServiceCidr)));
    both.calico_datastore = datastore.calico_datastore;
    assert_eq!(both.kind(), Err(api::kind::KindError::Several));
    let report = contradiction();
    let failure = report.failure.unwrap();
    assert_eq!(
        (failure.category.as_str(), failure.retriable),
        ("Contradiction", false)
    );
    assert!(
        failure
            .message
            .contains("spec.serviceCidr and spec.calicoDatastore"),
        "{}",
        failure.message
    );
}

#[test]
fn no_kind_in_a_spec_is_none() {
    let none = NodeMigrationSpec::default();
    assert_eq!(none.kind(), Ok(None));
    assert_eq!(attention(&none), Attention::Idle);
}
