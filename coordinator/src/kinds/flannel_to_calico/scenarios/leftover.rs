//! After a crash at any write, no block of Calico remains that an undisturbed run would not leave.

use serde_json::{Value, json};

use super::back::{ask, passes};
use super::in_place::in_place;
use super::{CALICO_GROUP, NODES, crash_after, run_until};
use crate::fake_api::FakeApi;
use crate::walk;

/// A block that follows from no subnet of node b: Calico has created it.
const MORE: &str = "10-244-77-0-26";

/// Names of the blocks of node b.
fn blocks_of_b(api: &FakeApi) -> Vec<String> {
    api.below(&format!("{CALICO_GROUP}/ipamblocks/"))
        .iter()
        .filter(|block| block["spec"]["affinity"] == "host:b")
        .map(|block| block["metadata"]["name"].to_string())
        .collect()
}

fn put_more(api: &FakeApi) {
    let unallocated: Vec<u32> = (0..64).collect();
    api.put(
        &format!("{CALICO_GROUP}/ipamblocks/{MORE}"),
        json!({
            "apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMBlock", "metadata": { "name": MORE },
            "spec": {
                "cidr": "10.244.77.0/26", "affinity": "host:b", "strictAffinity": false, "deleted": false,
                "allocations": vec![Value::Null; 64], "unallocated": unallocated, "attributes": [],
                "sequenceNumber": 7, "sequenceNumberForAllocation": {},
            },
        }),
    );
    // Without labels, as Calico before v3.30 writes it.
    let claim = format!("b-{MORE}");
    api.put(
        &format!("{CALICO_GROUP}/blockaffinities/{claim}"),
        json!({
            "apiVersion": "crd.projectcalico.org/v1", "kind": "BlockAffinity", "metadata": { "name": claim },
            "spec": { "cidr": "10.244.77.0/26", "node": "b", "state": "confirmed", "deleted": "false", "type": "host" },
        }),
    );
}

#[tokio::test]
async fn blocks_of_a_deleted_node_are_removed_after_any_crash() {
    let start = async || {
        let api = in_place();
        run_until(&api, "Mixed").await.unwrap();
        api.remove(&format!("{NODES}/b"));
        api
    };
    let undisturbed = walk::undisturbed(start, async |api| passes(api, 10).await).await;
    let end = blocks_of_b(&undisturbed.api);
    // Other components go on meanwhile, for three passes.
    let crash_after = async |api: &FakeApi, last| {
        api.allow(Some(last));
        passes(api, 3).await;
        api.allow(None);
    };
    walk::crash_after_each(0..12, start, crash_after, async |api, when| {
        passes(api, 10).await;
        assert_eq!(blocks_of_b(api), end, "{when}");
    })
    .await;
}

#[tokio::test]
async fn blocks_created_by_calico_are_removed_after_any_crash() {
    let start = async || {
        let api = in_place();
        run_until(&api, "Mixed").await.unwrap();
        put_more(&api);
        ask(&api, &json!({ "desired": "Rollback" }));
        api.take_changes();
        api
    };
    let to_the_end = async |api: &FakeApi| run_until(api, "RolledBack").await.unwrap();
    let walk::Undisturbed { api, changes } = walk::undisturbed(start, to_the_end).await;
    assert_eq!(blocks_of_b(&api), [""; 0]);
    let first = changes.iter().position(|change| {
        let text = format!("{change:?}");
        text.contains("DELETE") && text.contains("blockaffinities")
    });
    let first = first.expect("affinities are deleted");
    walk::crash_after_each(first..changes.len(), start, crash_after, async |api, when| {
        to_the_end(api).await;
        assert_eq!(blocks_of_b(api), [""; 0], "{when}");
    })
    .await;
}
