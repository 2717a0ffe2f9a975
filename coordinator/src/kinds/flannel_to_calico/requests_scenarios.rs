//! What a migration asks the API server for, against one in memory: nothing that is there for each node is listed at a node's step.

use serde_json::json;

use super::back_scenarios::{ask, drained};
use super::in_place_scenarios::in_place;
use super::scenarios::{CALICO_GROUP, run_until};
use crate::fake_api::{FakeApi, MIGRATION};

/// Of what was read, the lists of what is there for each node.
fn lists(reads: &[String]) -> Vec<&String> {
    let kinds = ["ipamblocks", "blockaffinities", "ipamhandles"];
    let of = |read: &&String| {
        let path = read.strip_prefix("LIST ").unwrap_or_default();
        kinds
            .iter()
            .any(|kind| path.starts_with(&format!("{CALICO_GROUP}/{kind}")))
    };
    reads.iter().filter(of).collect()
}

#[tokio::test]
async fn no_list_of_blocks_claims_or_handles_is_a_nodes() {
    for make in [drained as fn() -> FakeApi, in_place] {
        let api = make();
        let end = if api.get(MIGRATION).unwrap()["spec"]["flannelToCalico"]["strategy"] == "InPlace" {
            "Mixed"
        } else {
            "Rolling"
        };
        run_until(&api, end).await.unwrap();
        let there = api.take_reads();
        assert_eq!(lists(&there), [""; 0], "on the way there");
        ask(&api, &json!({ "desired": "Rollback" }));
        run_until(&api, "RolledBack").await.unwrap();
        let back = api.take_reads();
        let (of_nodes, of_all): (Vec<&String>, Vec<&String>) = lists(&back)
            .into_iter()
            .partition(|read| read.contains("labelSelector="));
        assert!(
            of_nodes.len() <= 2,
            "the claims of a node are looked for once: {of_nodes:?}"
        );
        assert_eq!(of_all.len(), 1, "all blocks are looked at once: {of_all:?}");
        assert!(
            of_all[0].contains("ipamblocks") && of_all[0].contains("limit="),
            "{of_all:?}"
        );
    }
}
