use std::collections::BTreeSet;

use super::*;

fn range() -> IpNet {
    "10.244.1.0/29".parse().unwrap()
}

fn allocation(address: &str, handle: &str) -> Allocation {
    Allocation {
        address: address.parse().unwrap(),
        handle: handle.to_owned(),
        attributes: BTreeMap::from([("node".to_owned(), "n1".to_owned())]),
    }
}

fn tunnel() -> Allocation {
    allocation("10.244.1.0", "vxlan-tunnel-addr-n1")
}

/// A block with a pod of this node at .3, as Calico stores it, with unknown fields.
fn used() -> Value {
    json!({
        "cidr": "10.244.1.0/29", "affinity": "host:n1", "affinityClaimTime": "2026-01-01T00:00:00Z",
        "allocations": [null, null, null, 0, null, null, null, null],
        "unallocated": [4, 5, 6, 7, 0, 1, 2],
        "attributes": [{"handle_id": "k8s-pod-network.a", "secondary": {"node": "n1"}, "later": 1}],
        "sequenceNumber": 41, "sequenceNumberForAllocation": {"3": 40},
        "deleted": false, "strictAffinity": false,
    })
}

#[test]
fn a_new_block_holds_the_tunnel_address() {
    let found = block(range(), "n1", &[tunnel()], 7).unwrap();
    assert_eq!(
        found,
        json!({
            "apiVersion": "crd.projectcalico.org/v1",
            "kind": "IPAMBlock",
            "metadata": {"name": "10-244-1-0-29"},
            "spec": {
                "cidr": "10.244.1.0/29",
                "affinity": "host:n1",
                "allocations": [0, null, null, null, null, null, null, null],
                "unallocated": [1, 2, 3, 4, 5, 6, 7],
                "attributes": [{"handle_id": "vxlan-tunnel-addr-n1", "secondary": {"node": "n1"}}],
                "sequenceNumber": 7,
                "sequenceNumberForAllocation": {"0": 7},
                "deleted": false,
                "strictAffinity": false,
            },
        })
    );
    // A block that was just written needs no change.
    assert_eq!(block_change(&found["spec"], range(), "n1", &[tunnel()]), Ok(None));
}

#[test]
fn an_existing_block_keeps_its_allocations() {
    let change = block_change(&used(), range(), "n1", &[tunnel()])
        .unwrap()
        .unwrap();
    assert_eq!(
        change,
        json!({
            "allocations": [1, null, null, 0, null, null, null, null],
            "unallocated": [4, 5, 6, 7, 1, 2],
            "attributes": [
                {"handle_id": "k8s-pod-network.a", "secondary": {"node": "n1"}, "later": 1},
                {"handle_id": "vxlan-tunnel-addr-n1", "secondary": {"node": "n1"}},
            ],
            "sequenceNumber": 42,
            "sequenceNumberForAllocation": {"0": 41, "3": 40},
        })
    );
}

#[test]
fn two_addresses_of_one_owner_share_an_attribute() {
    let found = block(
        range(),
        "n1",
        &[allocation("10.244.1.1", "h"), allocation("10.244.1.2", "h")],
        1,
    )
    .unwrap();
    assert_eq!(
        found["spec"]["allocations"],
        json!([null, 0, 0, null, null, null, null, null])
    );
    assert_eq!(found["spec"]["attributes"].as_array().unwrap().len(), 1);
}

#[test]
fn a_block_without_an_owner_is_taken_and_a_block_of_another_node_is_refused() {
    let mut free = used();
    free["affinity"] = Value::Null;
    let change = block_change(&free, range(), "n1", &[]).unwrap().unwrap();
    assert_eq!(change, json!({"affinity": "host:n1", "sequenceNumber": 42}));
    free["attributes"][0]["secondary"]["node"] = "n2".into();
    assert!(matches!(
        block_change(&free, range(), "n1", &[]),
        Err(BlockConflict::OtherOwner { .. })
    ));
    let mut other = used();
    other["affinity"] = "host:n2".into();
    let error = block_change(&other, range(), "n1", &[]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "IPAMBlock 10.244.1.0/29: affinity is \"host:n2\", needed \"host:n1\""
    );
}

#[test]
fn an_address_of_another_handle_is_refused_with_its_handle() {
    let error = block_change(&used(), range(), "n1", &[allocation("10.244.1.3", "h")]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "IPAMBlock 10.244.1.0/29: 10.244.1.3 is allocated to \"k8s-pod-network.a\", needed \"h\""
    );
    assert!(block_change(&used(), range(), "n1", &[allocation("10.244.2.3", "h")]).is_err());
}

#[test]
fn an_address_outside_the_range_is_refused_as_such() {
    let outside = [allocation("10.244.2.3", "h")];
    for error in [
        block_change(&used(), range(), "n1", &outside).unwrap_err(),
        block(range(), "n1", &outside, 1).unwrap_err(),
    ] {
        assert_eq!(
            error.to_string(),
            "IPAMBlock 10.244.1.0/29: 10.244.2.3 is not in its range, needed a block that contains the address"
        );
    }
}

#[test]
fn blocks_that_contradict_themselves_are_refused() {
    for (field, value) in [
        ("cidr", json!("10.244.2.0/29")),
        ("allocations", json!([null])),
        (
            "allocations",
            json!([null, null, null, 5, null, null, null, null]),
        ),
        ("unallocated", json!([4, 5, 6, 7, 0, 1])),
        ("unallocated", json!([4, 5, 6, 7, 0, 1, 2, 3])),
        ("unallocated", json!([4, 5, 6, 7, 0, 1, 2, 2])),
        ("attributes", json!("x")),
        ("sequenceNumberForAllocation", json!([])),
    ] {
        let mut spec = used();
        spec[field] = value;
        let error = block_change(&spec, range(), "n1", &[]).unwrap_err();
        assert!(
            matches!(error, BlockConflict::Malformed { .. }),
            "{field}: {error}"
        );
    }
    let mut spec = used();
    spec["deleted"] = true.into();
    assert_eq!(
        block_change(&spec, range(), "n1", &[]),
        Err(BlockConflict::Deleted { block: range() })
    );
}

proptest::proptest! {
    /// Two writes allocate any addresses of a block: each is allocated once and keeps its index, the others stay free, and a
    /// third write changes nothing.
    #[test]
    fn addresses_are_neither_lost_nor_allocated_twice(
        first in proptest::collection::btree_set(0_u8..8, 0..8),
        second in proptest::collection::btree_set(0_u8..8, 0..8),
    ) {
        let allocations = |ordinals: &BTreeSet<u8>| -> Vec<Allocation> {
            ordinals.iter().map(|n| allocation(&format!("10.244.1.{n}"), &format!("handle-{n}"))).collect()
        };
        let mut spec = block(range(), "n1", &allocations(&first), 1).unwrap()["spec"].clone();
        let before = spec["allocations"].clone();
        let change = block_change(&spec, range(), "n1", &allocations(&second)).unwrap();
        proptest::prop_assert_eq!(change.is_none(), second.is_subset(&first));
        for (key, value) in change.iter().flat_map(|change| change.as_object().unwrap()) {
            spec[key] = value.clone();
        }
        for ordinal in 0..8_u8 {
            let index = &spec["allocations"][usize::from(ordinal)];
            let taken = first.contains(&ordinal) || second.contains(&ordinal);
            proptest::prop_assert_eq!(!index.is_null(), taken);
            if first.contains(&ordinal) {
                proptest::prop_assert_eq!(index, &before[usize::from(ordinal)]);
            }
            if let Some(index) = index.as_u64() {
                let attribute = &spec["attributes"][usize::try_from(index).unwrap()];
                proptest::prop_assert_eq!(&attribute["handle_id"], &json!(format!("handle-{ordinal}")));
            }
            let free = spec["unallocated"].as_array().unwrap().contains(&json!(ordinal));
            proptest::prop_assert_eq!(free, !taken);
        }
        proptest::prop_assert_eq!(block_change(&spec, range(), "n1", &allocations(&second)), Ok(None));
    }
}

#[test]
fn a_released_address_is_allocated_last() {
    let mut spec = used();
    let tunnel_and_pod = [tunnel(), allocation("10.244.1.5", "k8s-pod-network.b")];
    let change = block_change(&spec, range(), "n1", &tunnel_and_pod)
        .unwrap()
        .unwrap();
    for (key, value) in change.as_object().unwrap() {
        spec[key] = value.clone();
    }
    let pod = ("10.244.1.5".parse().unwrap(), "k8s-pod-network.b");
    let change = block_release(&spec, range(), &[pod]).unwrap().unwrap();
    assert_eq!(
        change["allocations"],
        json!([1, null, null, 0, null, null, null, null])
    );
    assert_eq!(change["unallocated"], json!([4, 6, 7, 1, 2, 5]));
    assert_eq!(change["sequenceNumberForAllocation"], json!({"5": null}));
    assert_eq!(change["attributes"].as_array().unwrap().len(), 2);
    assert_eq!(change["attributes"][0]["later"], 1, "unknown fields are kept");
}

#[test]
fn an_address_that_has_another_handle_or_none_is_not_released() {
    let of_another = ("10.244.1.3".parse().unwrap(), "k8s-pod-network.old");
    assert_eq!(block_release(&used(), range(), &[of_another]), Ok(None));
    let free = ("10.244.1.6".parse().unwrap(), "k8s-pod-network.a");
    assert_eq!(block_release(&used(), range(), &[free]), Ok(None));
}
