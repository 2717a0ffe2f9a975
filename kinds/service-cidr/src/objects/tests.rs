use std::sync::LazyLock;

use rstest::rstest;

use super::*;
use crate::exchange::Own;

/// Applies a merge patch, as the API server does.
fn merge(object: &mut Value, patch: &Value) {
    let Some(patch) = patch.as_object() else {
        *object = patch.clone();
        return;
    };
    if !object.is_object() {
        *object = json!({});
    }
    for (key, value) in patch {
        if value.is_null() {
            if let Some(object) = object.as_object_mut() {
                object.remove(key);
            }
        } else {
            merge(&mut object[key], value);
        }
    }
}

/// Removes the fields that the API server removes from a Service that becomes an `ExternalName`, as measured on v1.36.3.
fn wipe(object: &mut Value) {
    let spec = object["spec"].as_object_mut().unwrap();
    for field in [
        "clusterIP",
        "clusterIPs",
        "ipFamilies",
        "ipFamilyPolicy",
        "externalTrafficPolicy",
        "internalTrafficPolicy",
    ] {
        spec.remove(field);
    }
    for port in spec["ports"].as_array_mut().unwrap() {
        port.as_object_mut().unwrap().remove("nodePort");
    }
}

fn found(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

fn service(spec: &Value) -> Value {
    json!({
        "metadata": {
            "name": "web",
            "namespace": "shop",
            "uid": "u-1",
            "labels": {"app": "web", "service.kubernetes.io/service-proxy-name": "other"},
            "annotations": {"note": "ours", "service.kubernetes.io/topology-mode": "Auto"},
        },
        "spec": spec,
    })
}

fn node_port() -> Value {
    json!({
        "type": "NodePort",
        "clusterIP": "10.96.0.5",
        "clusterIPs": ["10.96.0.5", "fd00:96::5"],
        "ipFamilies": ["IPv4", "IPv6"],
        "ipFamilyPolicy": "PreferDualStack",
        "selector": {"app": "web"},
        "externalTrafficPolicy": "Local",
        "internalTrafficPolicy": "Local",
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
        "trafficDistribution": "PreferClose",
        "ports": [
            {"name": "http", "port": 80, "targetPort": 8080, "protocol": "TCP", "nodePort": 30080},
            {"name": "dns", "port": 53, "targetPort": 53, "protocol": "UDP", "nodePort": 30053},
            {"name": "dns-tcp", "port": 53, "targetPort": 53, "protocol": "TCP", "nodePort": 30054},
        ],
    })
}

fn both(old: &[&str], new: &[&str]) -> Sides<Vec<IpAddr>> {
    Sides {
        old: found(old),
        new: found(new),
    }
}

fn objects<'objects>(service: &'objects Value, addresses: &'objects Sides<Vec<IpAddr>>) -> Objects<'objects> {
    static SPARE: LazyLock<Spare> = LazyLock::new(Spare::default);
    static GROUND: LazyLock<BridgeFacts> = LazyLock::new(|| BridgeFacts {
        policy: BridgePolicy::Local,
        node_addresses: found(&["192.0.2.11", "2001:db8::11", "192.0.2.12"]),
    });
    Objects {
        domain: "cluster.local",
        service,
        addresses,
        spare: &SPARE,
        ground: &GROUND,
    }
}

const NEW: Role = Role::Address(Side::New);

fn patch(objects: &Objects<'_>, write: Write) -> Value {
    match objects.request(write) {
        Some(Request::PatchService(patch) | Request::PatchHelper(_, patch) | Request::Create(_, patch)) => {
            patch
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_service_gets_all_fields_back_except_its_address() {
    let both = both(&["10.96.0.5"], &["172.30.0.5"]);
    for (from, to) in [(Side::Old, Side::New), (Side::New, Side::Old)] {
        let mut spec = node_port();
        if from == Side::New {
            spec["clusterIP"] = json!("172.30.0.5");
            spec["clusterIPs"] = json!(["172.30.0.5", "fd00:96::5"]);
        }
        let mut object = service(&spec);
        assert_eq!(own(&object, &both), Own::At(from));

        let away = patch(&objects(&object, &both), Write::ServiceAway(to));
        merge(&mut object, &away);
        wipe(&mut object);
        assert_eq!(own(&object, &both), Own::Away(Some(to)));
        assert_eq!(
            object["spec"]["externalName"],
            format!("web-replumb-{}.shop.svc.cluster.local", to.as_str())
        );
        assert_eq!(before(&object), Some(spec.clone()));

        // Its name points elsewhere for a moment: the saved spec stays.
        let lead = patch(&objects(&object, &both), Write::ServiceAway(from));
        merge(&mut object, &lead);
        assert_eq!(own(&object, &both), Own::Away(Some(from)));
        assert_eq!(before(&object), Some(spec.clone()));

        let back = patch(&objects(&object, &both), Write::ServiceAt(to));
        merge(&mut object, &back);
        assert_eq!(own(&object, &both), Own::At(to));
        assert_eq!(differences(&spec, &object["spec"]), Vec::<String>::new());
        let expected = match to {
            Side::New => json!(["172.30.0.5", "fd00:96::5"]),
            Side::Old => json!(["10.96.0.5", "fd00:96::5"]),
        };
        assert_eq!(object["spec"]["clusterIPs"], expected);
        assert_eq!(object["metadata"]["annotations"]["note"], "ours");
        assert_eq!(before(&object), None);
    }
}

#[test]
fn changes_by_the_owner_stay_and_node_ports_are_restored() {
    let both = both(&["10.96.0.5"], &["172.30.0.5"]);
    let mut object = service(&node_port());
    let away = patch(&objects(&object, &both), Write::ServiceAway(Side::New));
    merge(&mut object, &away);
    wipe(&mut object);
    object["spec"]["selector"] = json!({"app": "web", "version": "2"});
    object["spec"]["ports"] = json!([
        {"name": "http", "port": 80, "targetPort": 9090, "protocol": "TCP"},
        {"name": "dns-tcp", "port": 53, "targetPort": 53, "protocol": "TCP"},
        {"name": "https", "port": 443, "targetPort": 8443, "protocol": "TCP"},
    ]);
    let back = patch(&objects(&object, &both), Write::ServiceAt(Side::New));
    merge(&mut object, &back);
    assert_eq!(object["spec"]["selector"]["version"], "2");
    assert_eq!(
        object["spec"]["ports"],
        json!([
            {"name": "http", "port": 80, "targetPort": 9090, "protocol": "TCP", "nodePort": 30080},
            {"name": "dns-tcp", "port": 53, "targetPort": 53, "protocol": "TCP", "nodePort": 30054},
            {"name": "https", "port": 443, "targetPort": 8443, "protocol": "TCP"},
        ])
    );
}

#[test]
fn without_a_saved_spec_no_address_is_written() {
    let both = both(&["10.96.0.5"], &["172.30.0.5"]);
    let object =
        service(&json!({"type": "ExternalName", "externalName": "web-replumb-new.shop.svc.cluster.local"}));
    assert_eq!(objects(&object, &both).request(Write::ServiceAt(Side::New)), None);
    assert_eq!(
        own(&object, &both),
        Own::Elsewhere("is an ExternalName that points to web-replumb-new.shop.svc.cluster.local".to_owned())
    );
}

#[test]
fn helpers_answer_as_their_service_does() {
    let both = both(&["10.96.0.5"], &["172.30.0.5"]);
    let object = service(&node_port());
    let objects = objects(&object, &both);
    let mut home = patch(&objects, Write::CreateHome(Side::New));
    insta::assert_json_snapshot!(home);
    assert_eq!(before(&home), Some(node_port()));

    // A helper with a spare address differs only in its address.
    let warm = patch(&objects, Write::CreateWarm(Side::New));
    assert_eq!(warm["spec"]["clusterIP"], Value::Null);
    assert_eq!(differences(&home["spec"], &warm["spec"]), Vec::<String>::new());

    // The helper releases its address and takes it again.
    let spec = home["spec"].clone();
    merge(&mut home, &patch(&objects, Write::HelperParked(Side::New)));
    wipe(&mut home);
    assert_eq!(
        home["spec"]["externalName"],
        "web-replumb-old.shop.svc.cluster.local"
    );
    merge(&mut home, &patch(&objects, Write::HelperHome(Side::New)));
    assert_eq!(home["spec"], spec);
}

#[test]
fn a_helper_is_updated_to_the_current_spec_of_its_service() {
    let both = both(&["10.96.0.5"], &["172.30.0.5"]);
    let mut object = service(&node_port());
    let mut helper = patch(&objects(&object, &both), Write::CreateHome(Side::New));
    assert_eq!(objects(&object, &both).refresh(NEW, &helper), None);
    for (field, value) in [
        ("selector", json!({"app": "other"})),
        (
            "ports",
            json!([{"name": "http", "port": 81, "targetPort": 8080, "protocol": "TCP", "nodePort": 30080}]),
        ),
        ("sessionAffinityConfig", Value::Null),
        ("internalTrafficPolicy", json!("Cluster")),
        ("publishNotReadyAddresses", json!(true)),
    ] {
        object["spec"][field] = value;
        let like = objects(&object, &both)
            .refresh(NEW, &helper)
            .unwrap_or_else(|| panic!("{field}"));
        merge(&mut helper, &like);
        assert_eq!(
            objects(&object, &both).refresh(NEW, &helper),
            None,
            "{field}: {helper}"
        );
    }
    assert_eq!(helper["spec"]["ports"][0].get("nodePort"), None);
    object["metadata"]["annotations"]["service.kubernetes.io/topology-mode"] = json!("Disabled");
    let like = objects(&object, &both).refresh(NEW, &helper).unwrap();
    merge(&mut helper, &like);
    assert_eq!(
        helper["metadata"]["annotations"]["service.kubernetes.io/topology-mode"],
        "Disabled"
    );
    // Without an address a Service has no such policy.
    merge(
        &mut helper,
        &patch(&objects(&object, &both), Write::HelperParked(Side::New)),
    );
    wipe(&mut helper);
    assert_eq!(objects(&object, &both).refresh(NEW, &helper), None);
}

#[test]
fn bridges_answer_at_both_addresses_and_at_the_node_ports_of_every_node() {
    let both = both(&["10.96.0.5"], &["172.30.0.5"]);
    let object = service(&node_port());
    let objects = objects(&object, &both);
    for (part, own, expected) in [
        // The IPv6 address does not change, and the Service releases it for a moment.
        (
            Part::Addresses,
            "172.30.255.9",
            ["172.30.255.9", "10.96.0.5", "172.30.0.5", "fd00:96::5"],
        ),
        (
            Part::NodePorts,
            "172.30.255.8",
            ["172.30.255.8", "192.0.2.11", "2001:db8::11", "192.0.2.12"],
        ),
    ] {
        let mut bridge = patch(&objects, Write::CreateBridge(part));
        insta::assert_json_snapshot!(part.as_str(), bridge);
        assert_eq!(objects.refresh(Role::Bridge(part), &bridge), None);

        bridge["spec"]["clusterIPs"] = json!([own]);
        let answer = objects.answer(part, &bridge).unwrap();
        let said = answer["status"]["loadBalancer"]["ingress"].as_array().unwrap();
        let said: Vec<&str> = said
            .iter()
            .map(|ingress| ingress["ip"].as_str().unwrap())
            .collect();
        assert_eq!(said, expected);
        merge(&mut bridge, &answer);
        assert_eq!(objects.answer(part, &bridge), None);
    }
    // A new node, and a node port that the owner has changed.
    let mut bridge = patch(&objects, Write::CreateBridge(Part::NodePorts));
    bridge["spec"]["clusterIPs"] = json!(["172.30.255.8"]);
    bridge["status"] =
        json!({ "loadBalancer": { "ingress": [{ "ip": "172.30.255.8" }, { "ip": "192.0.2.11" }] } });
    assert!(objects.answer(Part::NodePorts, &bridge).is_some());
    bridge["spec"]["ports"][0]["port"] = json!(30081);
    assert!(objects.refresh(Role::Bridge(Part::NodePorts), &bridge).is_some());
}

#[test]
fn a_service_without_node_ports_or_external_addresses_needs_no_bridge_for_them() {
    let both = both(&["10.96.0.5"], &["172.30.0.5"]);
    let mut object = service(&node_port());
    assert!(objects(&object, &both).needs(Part::NodePorts));
    // A Service without an address has no node ports, but gets them back.
    let away = patch(&objects(&object, &both), Write::ServiceAway(Side::New));
    merge(&mut object, &away);
    wipe(&mut object);
    assert!(objects(&object, &both).needs(Part::NodePorts));
    let plain =
        service(&json!({ "type": "ClusterIP", "clusterIPs": ["10.96.0.5"], "ports": [{ "port": 80 }] }));
    assert!(Part::ALL.map(|part| objects(&plain, &both).needs(part)) == [true, false, false]);

    let mut external = plain;
    external["spec"]["externalIPs"] = json!(["192.0.2.7"]);
    let objects = objects(&external, &both);
    assert!(objects.needs(Part::ExternalAddresses));
    let mut bridge = patch(&objects, Write::CreateBridge(Part::ExternalAddresses));
    // The policy of the Service for external traffic: no connection is refused at a node without a pod.
    assert_eq!(bridge["spec"]["externalTrafficPolicy"], "Cluster");
    bridge["spec"]["clusterIPs"] = json!(["172.30.255.7"]);
    let answer = objects.answer(Part::ExternalAddresses, &bridge).unwrap();
    assert_eq!(
        answer["status"]["loadBalancer"]["ingress"],
        json!([{ "ip": "172.30.255.7" }, { "ip": "192.0.2.7" }])
    );
}

#[test]
fn both_families_change_together() {
    let both = both(&["10.96.0.5", "fd00:96::5"], &["172.30.0.5", "fd00:30::5"]);
    let object = service(&node_port());
    let home = patch(&objects(&object, &both), Write::CreateHome(Side::Old));
    assert_eq!(home["spec"]["clusterIPs"], json!(["10.96.0.5", "fd00:96::5"]));
    assert_eq!(home["spec"]["ipFamilies"], json!(["IPv4", "IPv6"]));
    assert_eq!(home["spec"]["ipFamilyPolicy"], "RequireDualStack");
}

#[rstest]
#[case::name(
    json!({"type": "ExternalName", "externalName": "example.org"}),
    Own::Elsewhere("is an ExternalName that points to example.org".to_owned())
)]
#[case::other_address(
    json!({"type": "ClusterIP", "clusterIPs": ["10.96.0.77"]}),
    Own::Elsewhere("has address 10.96.0.77".to_owned())
)]
#[case::headless(json!({"type": "ClusterIP", "clusterIPs": ["None"]}), Own::Elsewhere("has no address".to_owned()))]
#[case::load_balancer(
    json!({"type": "LoadBalancer", "clusterIPs": ["10.96.0.5"]}),
    Own::Elsewhere("is of type LoadBalancer".to_owned())
)]
#[case::old(json!({"type": "ClusterIP", "clusterIPs": ["10.96.0.5"]}), Own::At(Side::Old))]
#[case::new(json!({"clusterIP": "172.30.0.5"}), Own::At(Side::New))]
fn the_state_of_a_service_is_read_from_its_spec(#[case] spec: Value, #[case] expected: Own) {
    assert_eq!(
        own(&service(&spec), &both(&["10.96.0.5"], &["172.30.0.5"])),
        expected
    );
}

#[test]
fn names_of_helpers_are_valid_and_unique() {
    assert_eq!(helper_name("web", Role::Address(Side::Old)), "web-replumb-old");
    let long = "a".repeat(60);
    let other = format!("{}b", "a".repeat(59));
    let names = Role::ALL.map(|role| [helper_name(&long, role), helper_name(&other, role)]);
    let mut all: Vec<&String> = names.iter().flatten().collect();
    assert!(all.iter().all(|name| name.len() <= 63), "{all:?}");
    all.sort();
    all.dedup();
    assert_eq!(all.len(), 10);
    let cut_at_a_dash = format!("{}-{}", "a".repeat(38), "b".repeat(24));
    assert!(!helper_name(&cut_at_a_dash, Role::Address(Side::Old)).contains("--"));
}

#[rstest]
#[case("WEB_REPLUMB_OLD_SERVICE_HOST", true)]
#[case("KUBE_DNS_REPLUMB_NEW_PORT_53_UDP_ADDR", true)]
#[case("WEB_REPLUMB_BRIDGE_PORTS_SERVICE_HOST", true)]
#[case("WEB_SERVICE_HOST", false)]
#[case("REPLUMB_TRAFFIC_SERVICE_HOST", false)]
fn variables_about_helpers_are_recognized(#[case] variable: &str, #[case] expected: bool) {
    assert_eq!(is_about_helper(variable), expected);
}

#[test]
fn differences_have_the_field_and_both_values() {
    let before = json!({"clusterIP": "10.96.0.5", "sessionAffinity": "None", "selector": {"a": "b"}});
    let now = json!({"clusterIP": "172.30.0.5", "sessionAffinity": "ClientIP", "type": "NodePort", "selector": {"a": "b"}});
    assert_eq!(
        differences(&before, &now),
        [
            "sessionAffinity: \"None\" became \"ClientIP\"",
            "type: nothing became \"NodePort\""
        ]
    );
}
