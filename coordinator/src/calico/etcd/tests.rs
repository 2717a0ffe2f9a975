use std::sync::Arc;

use datastore::access::{PartialAccess, Side};
use serde_json::json;

use super::super::IP_POOL;
use super::super::store::Store;
use super::*;
use crate::failure::Failure as _;
use crate::fake_api::FakeApi;
use crate::fake_etcd;

const GROUP: &str = "/apis/crd.projectcalico.org/v1";
const POOL: &str = "/apis/crd.projectcalico.org/v1/ippools/old";
const BLOCK: &str = "/apis/crd.projectcalico.org/v1/ipamblocks/10-244-0-0-26";
const CLAIM: &str = "/apis/crd.projectcalico.org/v1/blockaffinities/a-10-244-0-0-26";

async fn connect(api: &FakeApi) -> Store {
    let said = PartialAccess {
        endpoints: vec![fake_etcd::serve(api).await],
        ..PartialAccess::default()
    };
    Store::Etcd(Arc::new(
        Etcd3::connect(&said.access(Side::V3).unwrap()).await.unwrap(),
    ))
}

/// A pool with a block that a node has claimed.
async fn store() -> (FakeApi, Store) {
    let api = FakeApi::default();
    for (path, name, spec) in [
        (
            POOL,
            "old",
            json!({ "cidr": "10.244.0.0/16", "natOutgoing": true, "foreign": [1] }),
        ),
        (
            BLOCK,
            "10-244-0-0-26",
            json!({ "cidr": "10.244.0.0/26", "affinity": "host:a", "allocations": [null] }),
        ),
        (
            CLAIM,
            "a-10-244-0-0-26",
            json!({ "cidr": "10.244.0.0/26", "node": "a", "state": "confirmed", "deleted": "false" }),
        ),
    ] {
        api.put(path, json!({ "metadata": { "name": name }, "spec": spec }));
    }
    let store = connect(&api).await;
    (api, store)
}

fn calls(api: &FakeApi) -> Vec<String> {
    api.take_changes().into_iter().map(|(call, _)| call).collect()
}

#[tokio::test]
async fn objects_have_the_same_form_as_in_the_kubernetes_api() {
    let (api, store) = store().await;
    let pool = store.pool("old").await.unwrap().unwrap();
    assert_eq!(pool.name_any(), "old");
    assert_eq!(pool.data["spec"]["foreign"], json!([1]));
    assert!(store.pool("other").await.unwrap().is_none());
    let block = store
        .block("10.244.0.0/26".parse().unwrap())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(block.name_any(), "10-244-0-0-26");
    let claims = store.list(BLOCK_AFFINITY).await.unwrap();
    assert_eq!(claims.len(), 1);
    assert_eq!(
        (claims[0].name_any().as_str(), &claims[0].data["spec"]["state"]),
        ("a-10-244-0-0-26", &json!("confirmed"))
    );
    assert!(store.ipam_config().await.unwrap().is_none());
    assert_eq!(calls(&api), [""; 0], "reads write nothing");
}

#[tokio::test]
async fn a_changed_field_leaves_other_fields_unchanged() {
    let (api, store) = store().await;
    let pool = store.pool("old").await.unwrap().unwrap();
    store
        .patch_spec(IP_POOL, &pool, &json!({ "disabled": true, "natOutgoing": null }))
        .await
        .unwrap();
    assert_eq!(
        api.get(POOL).unwrap()["spec"],
        json!({ "cidr": "10.244.0.0/16", "disabled": true, "foreign": [1] })
    );
}

/// The object changed before the read that precedes the write, or is gone.
#[tokio::test]
async fn an_object_changed_since_the_read_is_not_written() {
    let (api, store) = store().await;
    let pool = store.pool("old").await.unwrap().unwrap();
    api.edit(POOL, &json!({ "spec": { "natOutgoing": false } }));
    let change = json!({ "disabled": true });
    let refused = store.patch_spec(IP_POOL, &pool, &change).await.unwrap_err();
    assert!(
        matches!(refused, CalicoStoreError::Write(WriteError::Conflict { .. })),
        "{refused}"
    );
    api.remove(POOL);
    let refused = store.patch_spec(IP_POOL, &pool, &change).await.unwrap_err();
    assert!(
        matches!(refused, CalicoStoreError::Write(WriteError::Conflict { .. })),
        "{refused}"
    );
    assert_eq!(calls(&api), [""; 0]);
}

#[tokio::test]
async fn an_object_changed_since_the_read_is_not_deleted() {
    let (api, store) = store().await;
    let range = "10.244.0.0/26".parse().unwrap();
    let block = store.block(range).await.unwrap().unwrap();
    api.edit(BLOCK, &json!({ "spec": { "allocations": [0] } }));
    let refused = store.delete_marked(IPAM_BLOCK, &block).await.unwrap_err();
    assert!(
        matches!(refused, CalicoStoreError::Write(WriteError::Conflict { .. })),
        "{refused}"
    );
    assert!(api.get(BLOCK).is_some());
    let block = store.block(range).await.unwrap().unwrap();
    store.delete_marked(IPAM_BLOCK, &block).await.unwrap();
    // After a kill the delete is repeated.
    store.delete_marked(IPAM_BLOCK, &block).await.unwrap();
    assert_eq!(calls(&api), [format!("DELETE {BLOCK}")]);
}

#[tokio::test]
async fn an_affinity_is_released_in_calicos_order() {
    let (api, store) = store().await;
    let claim = store.list(BLOCK_AFFINITY).await.unwrap().remove(0);
    store
        .patch_spec(BLOCK_AFFINITY, &claim, &json!({ "state": "pendingDeletion" }))
        .await
        .unwrap();
    assert_eq!(api.get(CLAIM).unwrap()["spec"]["state"], "pendingDeletion");
    let now = store.again(BLOCK_AFFINITY, &claim).await.unwrap().unwrap();
    store.delete_marked(BLOCK_AFFINITY, &now).await.unwrap();
    assert!(store.again(BLOCK_AFFINITY, &claim).await.unwrap().is_none());
}

#[tokio::test]
async fn a_pool_is_created_once_and_deleted_in_its_current_version() {
    let (api, store) = store().await;
    let pool =
        json!({ "metadata": { "name": "new" }, "spec": { "cidr": "10.200.0.0/16", "disabled": true } });
    assert_eq!(store.create(IP_POOL, &pool).await.unwrap(), Created::Now);
    assert_eq!(store.create(IP_POOL, &pool).await.unwrap(), Created::Before);
    let made = api.get(&format!("{GROUP}/ippools/new")).unwrap();
    assert_eq!(made["spec"], pool["spec"]);
    store.delete_pool("new").await.unwrap();
    store.delete_pool("new").await.unwrap();
    assert_eq!(
        calls(&api),
        [
            format!("POST {GROUP}/ippools"),
            format!("DELETE {GROUP}/ippools/new")
        ]
    );
}

#[tokio::test]
async fn a_handle_is_created_or_its_count_is_raised() {
    let (_api, store) = store().await;
    let range: ipnet::IpNet = "10.244.0.0/26".parse().unwrap();
    for count in [1, 2] {
        let object = calico::handle("Tunnel-a", range, count);
        let change = |spec: &Value| calico::handle_change(spec, range, count);
        store.ensure_handle("Tunnel-a", &object, change).await.unwrap();
        let found = store.handle("Tunnel-a").await.unwrap().unwrap();
        assert_eq!(found.data["spec"]["block"], json!({ "10.244.0.0/26": count }));
    }
}

/// An etcd without an answer is told apart from an empty one.
#[tokio::test]
async fn an_etcd_without_an_answer_is_an_error() {
    let (api, store) = store().await;
    let Store::Etcd(etcd) = store else { unreachable!() };
    let mut etcd = Arc::into_inner(etcd).unwrap();
    etcd.be_impatient();
    api.allow(Some(0));
    let away = each(&etcd, IP_POOL, Some).await.unwrap_err();
    assert!(matches!(away, CalicoStoreError::Etcd(_)), "{away}");
    assert_eq!(away.category(), "Unreachable");
}
