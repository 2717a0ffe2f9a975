//! Requests of a migration to a fake API server: no step of a node lists objects that exist for each node.

use serde_json::json;

use super::back::{ask, drained};
use super::in_place::in_place;
use super::{CALICO_GROUP, run_until};
use crate::fake_api::{FakeApi, MIGRATION};

/// Lists of objects that exist for each node, among these reads.
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
async fn no_step_of_a_node_lists_all_blocks_affinities_or_handles() {
    for make in [drained as fn() -> FakeApi, in_place] {
        let api = make();
        let end = if api.get(MIGRATION).unwrap()["spec"]["flannelToCalico"]["strategy"] == "InPlace" {
            "Mixed"
        } else {
            "Rolling"
        };
        run_until(&api, end).await.unwrap();
        let there = api.take_reads();
        assert_eq!(lists(&there), [""; 0], "going forward");
        ask(&api, &json!({ "desired": "Rollback" }));
        run_until(&api, "RolledBack").await.unwrap();
        let back = api.take_reads();
        let (of_nodes, of_all): (Vec<&String>, Vec<&String>) = lists(&back)
            .into_iter()
            .partition(|read| read.contains("labelSelector="));
        assert!(
            of_nodes.len() <= 2,
            "affinities of a node are listed once: {of_nodes:?}"
        );
        assert_eq!(of_all.len(), 1, "all blocks are listed once: {of_all:?}");
        assert!(
            of_all[0].contains("ipamblocks") && of_all[0].contains("limit="),
            "{of_all:?}"
        );
    }
}
