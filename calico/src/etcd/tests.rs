use rstest::rstest;

use super::*;

const POOLS: Layout = Layout::Resources("IPPool", "ippools");

fn range(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn read(layout: Layout, key: &str, value: &Value) -> Value {
    layout.object(key, value.to_string().as_bytes())
}

/// Values as Calico v3 and `calico-upgrade` write them.
#[rstest]
#[case::pool(
    POOLS, "/calico/resources/v3/projectcalico.org/ippools/default-ipv4-ippool",
    json!({ "kind": "IPPool", "apiVersion": "projectcalico.org/v3", "metadata": { "name": "default-ipv4-ippool", "uid": "u", "labels": { "a": "b" } },
        "spec": { "cidr": "100.96.0.0/11", "blockSize": 26, "ipipMode": "Never", "natOutgoing": true, "foreign": [1] } }),
    Id::Named("default-ipv4-ippool".to_owned()), "default-ipv4-ippool"
)]
#[case::block(
    Layout::Blocks, "/calico/ipam/v2/assignment/ipv4/block/100.96.1.0-26",
    json!({ "cidr": "100.96.1.0/26", "affinity": "host:node1", "allocations": [0, null], "unallocated": [1], "deleted": false,
        "strictAffinity": false, "attributes": [{ "handle_id": "default.web", "secondary": null }] }),
    Id::Block(range("100.96.1.0/26")), "100-96-1-0-26"
)]
#[case::block_of_ipv6(
    Layout::Blocks, "/calico/ipam/v2/assignment/ipv6/block/fd80::-122",
    json!({ "cidr": "fd80::/122", "affinity": "host:node-2", "foreign": { "x": 1 } }),
    Id::Block(range("fd80::/122")), "fd80---122"
)]
#[case::affinity(
    Layout::Affinities, "/calico/ipam/v2/host/node-1.example/ipv4/block/100.96.1.0-26",
    json!({ "state": "confirmed", "deleted": false, "foreign": 1 }),
    Id::Affinity("node-1.example".to_owned(), range("100.96.1.0/26")), "node-1.example-100-96-1-0-26"
)]
#[case::handle(
    Layout::Handles, "/calico/ipam/v2/handle/k8s-pod-network.AbC", json!({ "block": { "100.96.1.0/26": 1 }, "deleted": false }),
    Id::Handle("k8s-pod-network.AbC".to_owned()), "k8s-pod-network.abc"
)]
#[case::configuration(
    Layout::IpamConfig, "/calico/ipam/v2/config", json!({ "strict_affinity": true, "auto_allocate_blocks": true, "maxBlocksPerHost": 4 }),
    Id::Named("default".to_owned()), "default"
)]
fn an_object_that_is_read_and_written_back_is_unchanged(
    #[case] layout: Layout,
    #[case] key: &str,
    #[case] value: Value,
    #[case] id: Id,
    #[case] name: &str,
) {
    let object = read(layout, key, &value);
    assert_eq!(object["metadata"]["name"], name);
    assert_eq!(object["kind"], layout.kind());
    assert_eq!(layout.id(&object), id);
    assert_eq!(layout.key(&id), key);
    assert!(key.starts_with(&layout.prefix()));
    assert_eq!(layout.with_spec(&value, &object["spec"]), value);
}

#[test]
fn parts_of_the_key_are_in_the_spec() {
    let key = "/calico/ipam/v2/host/n1/ipv6/block/fd80::-122";
    let claim = read(
        Layout::Affinities,
        key,
        &json!({ "state": "pending", "deleted": true }),
    );
    assert_eq!(
        claim["spec"],
        json!({ "node": "n1", "cidr": "fd80::/122", "state": "pending", "deleted": "true" })
    );
    let configuration = json!({ "strict_affinity": true, "maxBlocksPerHost": 4 });
    assert_eq!(
        read(Layout::IpamConfig, "/calico/ipam/v2/config", &configuration)["spec"],
        json!({ "strictAffinity": true, "maxBlocksPerHost": 4 })
    );
}

/// The oldest affinities have no value. v3 takes an affinity without a state for confirmed.
#[rstest]
#[case(b"")]
#[case(b"{}")]
#[case(br#"{"state":"","deleted":false}"#)]
fn an_affinity_without_a_state_is_read(#[case] value: &[u8]) {
    let claim = Layout::Affinities.object("/calico/ipam/v2/host/n1/ipv4/block/10.244.0.0-26", value);
    assert_eq!(
        Layout::Affinities.id(&claim),
        Id::Affinity("n1".to_owned(), range("10.244.0.0/26"))
    );
    let pending =
        json!({ "node": "n1", "cidr": "10.244.0.0/26", "state": "pendingDeletion", "deleted": "false" });
    assert_eq!(
        Layout::Affinities.with_spec(&Value::Null, &pending),
        json!({ "state": "pendingDeletion", "deleted": false })
    );
}

#[rstest]
#[case(POOLS, "/calico/resources/v3/projectcalico.org/ippools/broken", "broken")]
#[case(
    Layout::Blocks,
    "/calico/ipam/v2/assignment/ipv4/block/10.244.0.0-26",
    "10.244.0.0-26"
)]
#[case(Layout::Handles, "/calico/ipam/v2/handle/h", "h")]
fn invalid_json_is_named_after_its_key(#[case] layout: Layout, #[case] key: &str, #[case] name: &str) {
    let object = layout.object(key, b"{\"cidr\":");
    assert_eq!(object["metadata"]["name"], name);
    assert!(object["spec"].is_null());
}

#[test]
fn a_new_pool_is_stored_as_a_resource_with_metadata() {
    let wanted = json!({ "apiVersion": API_VERSION, "kind": "IPPool", "metadata": { "name": "new" }, "spec": { "cidr": "10.200.0.0/16" } });
    assert_eq!(
        POOLS.created(&wanted, "uid-1", "2026-01-01T00:00:00Z"),
        json!({
            "kind": "IPPool", "apiVersion": "projectcalico.org/v3",
            "metadata": { "name": "new", "uid": "uid-1", "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "cidr": "10.200.0.0/16" },
        })
    );
    let handle = super::super::handle("Tunnel-a", range("10.200.0.0/26"), 1);
    assert_eq!(
        Layout::Handles.created(&handle, "", ""),
        json!({ "block": { "10.200.0.0/26": 1 }, "deleted": false })
    );
    assert_eq!(
        Layout::Handles.key(&Layout::Handles.id(&handle)),
        "/calico/ipam/v2/handle/Tunnel-a"
    );
}
