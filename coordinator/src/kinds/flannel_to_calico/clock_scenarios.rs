//! The clock of the coordinator's node is set in the middle of a migration.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::drift_scenarios::label;
use super::in_place_scenarios::in_place;
use super::scenarios::{MIGRATION, node_migration, run_until, world_moves};
use crate::clock::Moment;
use crate::fake_api::FakeApi;
use crate::memory::Memory;
use crate::pass::pass;

const HOUR: SignedDuration = SignedDuration::from_hours(1);

fn step(api: &FakeApi) -> Value {
    api.get(&node_migration("a")).unwrap()["spec"]["step"].clone()
}

/// Node a is in work and waits for its agent, since then.
async fn waiting_since(since: Timestamp) -> (FakeApi, Memory) {
    let api = in_place();
    let mut memory = Memory::default();
    for _ in 0..100 {
        let _ = pass(&api.context(), &api.cache(), &mut memory).await;
        if api.get(&node_migration("a")).is_some() && step(&api)["reason"] == "AgentWorking" {
            let change = json!({ "spec": { "step": { "since": since.to_string() } } });
            api.edit(&node_migration("a"), &change);
            return (api, memory);
        }
        if label(&api, "a") == "none" {
            // Its agent is slow, and flannel's pod is gone.
            api.remove("/api/v1/namespaces/kube-flannel/pods/flannel-a");
        } else {
            world_moves(&api);
        }
    }
    panic!("node a does not wait for its agent: {}", step(&api));
}

#[tokio::test]
async fn a_clock_that_jumps_forward_takes_no_time_from_a_step() {
    let (api, mut memory) = waiting_since(Timestamp::now() - HOUR).await;
    pass(&api.context(), &api.cache(), &mut memory).await.unwrap();
    assert_eq!(step(&api)["reason"], "DeadlineExceeded", "an hour that passed");

    let (api, mut memory) = waiting_since(Timestamp::now() - HOUR).await;
    let now = Moment::now();
    memory.clock = crate::clock::Clock::default();
    memory.clock.look(Moment {
        wall: now.wall - HOUR,
        ..now
    });
    pass(&api.context(), &api.cache(), &mut memory).await.unwrap();
    assert_eq!(step(&api)["reason"], "AgentWorking", "an hour that did not");
    // Started anew it does not know of it.
    let mut memory = Memory::default();
    pass(&api.context(), &api.cache(), &mut memory).await.unwrap();
    assert_eq!(step(&api)["reason"], "AgentWorking", "it is written down");
    run_until(&api, "Mixed").await.unwrap();
}

#[tokio::test]
async fn a_clock_that_jumps_back_lets_no_step_wait_for_longer() {
    let (api, mut memory) = waiting_since(Timestamp::now() + HOUR).await;
    pass(&api.context(), &api.cache(), &mut memory).await.unwrap();
    let since: Timestamp = step(&api)["since"].as_str().unwrap().parse().unwrap();
    assert!(since <= Timestamp::now(), "{since}");
    assert_eq!(api.get(MIGRATION).unwrap()["status"]["phase"], "Rolling");
}
