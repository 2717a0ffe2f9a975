use serde_json::json;

use super::*;

fn spec(field: &str, settings: serde_json::Value) -> NodeMigrationSpec {
    let mut spec = json!({ "nodeName": "a", "migration": "m" });
    spec[field] = settings;
    serde_json::from_value(spec).unwrap()
}

#[test]
fn pods_are_as_wide_as_the_settings_of_any_kind_say() {
    assert_eq!(pod_mtu(None), LEAST_MTU);
    let ranges = json!({ "from": "10.244.0.0/16", "to": "10.200.0.0/16" });
    assert_eq!(pod_mtu(Some(&spec("podCidr", ranges))), LEAST_MTU);
    let ranges = json!({ "from": "10.244.0.0/16", "to": "10.200.0.0/16", "mtu": 1430 });
    assert_eq!(pod_mtu(Some(&spec("podCidr", ranges))), 1430);
    let flannel = json!({
        "vni": 1, "port": 8472, "mtu": 1450, "cniConfigurationDirectory": "/etc/cni/net.d",
    });
    assert_eq!(pod_mtu(Some(&spec("flannelToCalico", flannel))), 1450);
    let services = json!({ "left": ["10.96.0.0/12"], "target": ["172.30.0.0/16"] });
    assert_eq!(
        pod_mtu(Some(&spec("serviceCidr", services))),
        LEAST_MTU,
        "of pods that kind knows nothing"
    );
}

#[test]
fn one_thing_is_asked_at_a_time() {
    let services = json!({ "left": ["10.96.0.0/12"], "target": ["172.30.0.0/16"] });
    assert!(matches!(Asked::of(None), Asked::FlannelToCalicoOrNothing));
    let datastore = spec("calicoDatastore", json!({}));
    assert!(matches!(Asked::of(Some(&datastore)), Asked::CalicoDatastore));
    let mut both = spec("serviceCidr", services);
    assert!(matches!(Asked::of(Some(&both)), Asked::ServiceCidr(_)));
    both.calico_datastore = datastore.calico_datastore;
    assert!(matches!(Asked::of(Some(&both)), Asked::Several));
}
