use api::names;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::*;
use crate::pod_index::PodStore;

fn object(spec: &Value) -> DynamicObject {
    serde_json::from_value(json!({
        "apiVersion": "crd.projectcalico.org/v1", "kind": "X", "metadata": { "name": "x" }, "spec": spec,
    }))
    .unwrap()
}

#[test]
fn a_block_has_its_allocations_with_attributes() {
    let found = block(&object(&json!({
            "cidr": "10.244.1.0/30", "affinity": "host:a", "allocations": [null, 1, 0, null],
            "attributes": [
                { "handle_id": "k8s-pod-network.1", "secondary": { "pod": "web-1", "namespace": "shop", "node": "a" } },
                { "handle_id": "vxlan-tunnel-addr-a", "secondary": { "type": "vxlanTunnelAddress", "node": "a" } },
            ],
        })))
        .unwrap();
    let given: Vec<(String, Option<&str>)> = found
        .allocations
        .iter()
        .map(|allocation| {
            let kind = allocation
                .attributes
                .get("type")
                .or(allocation.attributes.get("pod"));
            (allocation.address.to_string(), kind)
        })
        .collect();
    assert_eq!(
        given,
        [
            ("10.244.1.1".to_owned(), Some("vxlanTunnelAddress")),
            ("10.244.1.2".to_owned(), Some("web-1")),
        ]
    );
    assert_eq!(found.affinity.as_deref(), Some("host:a"));
}

#[test]
fn only_read_attributes_of_a_pod_are_kept() {
    let long = "x".repeat(100_000);
    let found = block(&object(&json!({
            "cidr": "10.244.1.0/31", "allocations": [0, 1],
            "attributes": [
                { "handle_id": "1", "secondary": { "pod": "web-1", "namespace": "shop", "timestamp": long } },
                { "handle_id": "2", "secondary": { "type": "vxlanTunnelAddress", "node": "a", "timestamp": "now" } },
            ],
        })))
        .unwrap();
    let [pod, tunnel] = found.allocations.as_slice() else {
        panic!("{found:?}")
    };
    assert_eq!(pod.attributes, [("namespace", "shop"), ("pod", "web-1")].into());
    // The attributes are written again when the tunnel gets the address back.
    assert_eq!(tunnel.attributes.get("timestamp"), Some("now"));
}

/// An allocation without attributes is an allocation all the same.
#[test]
fn an_allocation_without_attributes_counts() {
    let found = block(&object(
        &json!({ "cidr": "fd00::/126", "allocations": [7, null, null, null] }),
    ))
    .unwrap();
    assert_eq!(found.allocations.len(), 1);
    assert_eq!(found.allocations[0].address.to_string(), "fd00::");
    assert_eq!(found.allocations[0].handle, None);
}

#[test]
fn reservations_are_parsed_and_malformed_entries_are_named() {
    let of = |ranges: Value| crate::facts::calico::reserved(&object(&json!({ "reservedCIDRs": ranges })));
    let (found, odd) = of(json!(["10.200.0.0/24", "10.200.1.7", "fd00::1"]));
    assert_eq!(odd, None);
    let found: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert_eq!(found, ["10.200.0.0/24", "10.200.1.7/32", "fd00::1/128"]);
    assert_eq!(of(Value::Null), (Vec::new(), None));
    for broken in [json!("10.200.0.0/24"), json!(["ten"]), json!([7])] {
        let refused = of(broken).1.unwrap();
        assert_eq!(refused.object, "IPReservation x");
        assert!(refused.problem.contains("reservedCIDRs"), "{}", refused.problem);
    }
    // The other entries hold.
    let (found, odd) = of(json!(["10.200.0.0/24", "ten"]));
    assert_eq!((found.len(), odd.is_some()), (1, true));
}

#[test]
fn a_malformed_block_is_named() {
    for spec in [
        json!({ "cidr": "10.244.1.0/31", "allocations": [null, null, 0] }),
        json!({ "cidr": "10.244.1.0/31", "allocations": "none" }),
        json!({ "cidr": 1 }),
        json!({ "cidr": "10.0.0.0/8" }),
    ] {
        assert_eq!(block(&object(&spec)).unwrap_err().object, "IPAMBlock x");
    }
}

fn pod(command: &[&str]) -> Pod {
    serde_json::from_value(json!({
        "metadata": { "namespace": "kube-system", "name": "kube-controller-manager-a" },
        "spec": { "containers": [{ "name": "c", "command": command }] },
    }))
    .unwrap()
}

#[test]
fn controller_managers_are_parsed_from_their_flags() {
    let pods = [
        pod(&[
            "kube-controller-manager",
            "--allocate-node-cidrs=true",
            "--cluster-cidr=10.244.0.0/16,fd00::/56",
        ]),
        pod(&["kube-controller-manager", "--cluster-cidr=ten"]),
        pod(&["kube-scheduler"]),
    ];
    let mut of_a_tenant = pods[0].clone();
    of_a_tenant.metadata.namespace = Some("shop".to_owned());
    let pods = pods.into_iter().chain([of_a_tenant]);
    let named = pods.enumerate().map(|(number, mut pod)| {
        pod.metadata.name = Some(number.to_string());
        pod
    });
    let pods = PodStore::of("replumb-system", named);
    let found = controller_managers(&pods.index());
    assert_eq!(found.len(), 2);
    assert!(found[0].allocates && found[0].ranges.as_ref().unwrap().len() == 2);
    assert!(!found[1].allocates && found[1].ranges.is_none());
}

#[test]
fn pins_of_pods_and_namespaces_omit_replumbs_pods() {
    let annotated = |name: &str| {
        json!({ "namespace": "shop", "name": name, "annotations": {
                "cni.projectcalico.org/ipv4pools": "[\"old\"]", "note": "x" } })
    };
    let pod = |metadata: Value| serde_json::from_value::<Pod>(json!({ "metadata": metadata })).unwrap();
    let mut ours = annotated("ours");
    ours["namespace"] = json!("replumb-system");
    ours["labels"] = json!({ names::COMPONENT_LABEL: names::TRAFFIC_COMPONENT });
    let pods = PodStore::of("replumb-system", [pod(annotated("web")), pod(ours)]);
    let namespace: Namespace = serde_json::from_value(json!({ "metadata": annotated("shop") })).unwrap();
    let found = pins(&pods.index(), vec![pins_of(&namespace)]);
    let objects: Vec<&str> = found.iter().map(|pin| pin.object.as_str()).collect();
    assert_eq!(objects, ["Pod shop/web", "Namespace shop"]);
}
