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
    let flannel = json!({
        "vni": 1, "port": 8472, "mtu": 1450, "cniConfigurationDirectory": "/etc/cni/net.d",
    });
    assert_eq!(pod_mtu(Some(&spec("flannelToCalico", flannel))), 1450);
    let services = json!({ "source": ["10.96.0.0/12"], "target": ["172.30.0.0/16"] });
    assert_eq!(
        pod_mtu(Some(&spec("serviceCidr", services))),
        LEAST_MTU,
        "serviceCidr has no setting for pods"
    );
}

#[test]
fn two_kinds_in_one_spec_are_several() {
    let services = json!({ "source": ["10.96.0.0/12"], "target": ["172.30.0.0/16"] });
    assert!(matches!(Requested::of(None), Requested::FlannelToCalicoOrNothing));
    let datastore = spec("calicoDatastore", json!({}));
    assert!(matches!(
        Requested::of(Some(&datastore)),
        Requested::CalicoDatastore
    ));
    let mut both = spec("serviceCidr", services);
    assert!(matches!(Requested::of(Some(&both)), Requested::ServiceCidr(_)));
    both.calico_datastore = datastore.calico_datastore;
    assert!(matches!(Requested::of(Some(&both)), Requested::Several));
}
