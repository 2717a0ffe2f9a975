//! Requests of a migration to a fake API server: no step of a node lists objects that exist for each node.

use std::time::Duration;

use serde_json::{Value, json};

use super::back_scenarios::{ask, drained};
use super::in_place_scenarios::in_place;
use super::scenarios::{CALICO_GROUP, run_until, world_moves};
use crate::context::Context;
use crate::fake_api::{FakeApi, MIGRATION};
use crate::memory::Memory;
use crate::obstacles::Obstacles;
use crate::pass::pass;

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

/// `NodeMigrations` that have the state of their node before the migration, and all of them.
fn saved(api: &FakeApi) -> (usize, usize) {
    let objects = api.below("/apis/replumb.dev/v1alpha1/nodemigrations");
    let has_state = |object: &&Value| object["spec"]["before"].is_object();
    (objects.iter().filter(has_state).count(), objects.len())
}

#[tokio::test]
async fn nodes_that_one_pass_has_no_time_to_save_are_saved_by_the_next_before_the_start() {
    let api = drained();
    let mut memory = Memory::default();
    let mut partly = 0;
    for _ in 0..500 {
        // So little time that a pass writes one object.
        let context = Context {
            obstacles: Obstacles::within(Duration::from_micros(1)),
            ..api.context()
        };
        memory.checked_at = None;
        let _ = pass(&context, &api.cache(), &mut memory).await;
        world_moves(&api);
        let status = api.get(MIGRATION).unwrap()["status"].clone();
        let (some, all) = saved(&api);
        if status["startedAt"].is_string() {
            assert_eq!(some, all, "{status}");
            assert!(partly > 0, "one pass has saved all {all} nodes");
            return;
        }
        if (1..all).contains(&some) {
            partly += 1;
            let message = status["message"].as_str().unwrap();
            assert!(message.contains("written by the next pass"), "{status}");
            assert_eq!(status["phase"], "Planning", "{status}");
        }
    }
    panic!("not started: {}", api.get(MIGRATION).unwrap()["status"]);
}
