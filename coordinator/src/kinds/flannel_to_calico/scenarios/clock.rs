//! The clock of the coordinator's node is set during a migration.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::drift::label;
use super::in_place::in_place;
use super::{MIGRATION, node_migration, run_until, world_moves};
use crate::clock::Moment;
use crate::fake_api::FakeApi;
use crate::memory::Memory;
use crate::pass::pass;

const HOUR: SignedDuration = SignedDuration::from_hours(1);

fn step(api: &FakeApi) -> Value {
    api.get(&node_migration("a")).unwrap()["spec"]["step"].clone()
}

/// Node a is in progress and waits for its agent, since this time.
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
            // The agent is slow, and flannel's pod is gone.
            api.remove("/api/v1/namespaces/kube-flannel/pods/flannel-a");
        } else {
            world_moves(&api);
        }
    }
    panic!("node a does not wait for its agent: {}", step(&api));
}

#[tokio::test]
async fn a_clock_set_forward_does_not_shorten_a_step() {
    let (api, mut memory) = waiting_since(Timestamp::now() - HOUR).await;
    pass(&api.context(), &api.cache(), &mut memory).await.unwrap();
    assert_eq!(step(&api)["reason"], "DeadlineExceeded", "an hour has passed");

    let (api, mut memory) = waiting_since(Timestamp::now() - HOUR).await;
    let now = Moment::now();
    memory.clock = crate::clock::Clock::default();
    memory.clock.observe(Moment {
        wall: now.wall - HOUR,
        ..now
    });
    pass(&api.context(), &api.cache(), &mut memory).await.unwrap();
    assert_eq!(
        step(&api)["reason"],
        "AgentWorking",
        "the clock was set, no hour has passed"
    );
    // A restarted coordinator does not know of the jump.
    let mut memory = Memory::default();
    pass(&api.context(), &api.cache(), &mut memory).await.unwrap();
    assert_eq!(step(&api)["reason"], "AgentWorking", "the time is recorded");
    run_until(&api, "Mixed").await.unwrap();
}

#[tokio::test]
async fn a_clock_set_back_does_not_lengthen_a_step() {
    let (api, mut memory) = waiting_since(Timestamp::now() + HOUR).await;
    pass(&api.context(), &api.cache(), &mut memory).await.unwrap();
    let since: Timestamp = step(&api)["since"].as_str().unwrap().parse().unwrap();
    assert!(since <= Timestamp::now(), "{since}");
    assert_eq!(api.get(MIGRATION).unwrap()["status"]["phase"], "Rolling");
}
