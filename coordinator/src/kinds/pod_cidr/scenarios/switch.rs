//! Stage Switch with one Ready node that lacks something. A rollback waits for the node for some minutes, names it, and then
//! moves the pods of all nodes back. Forward, the node is named, and the operator decides.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use super::super::ReadCache;
use super::fixture::{
    NODES, POOLS, RANGES, STAYS, THIRD, calico_node, cluster, end_of, put_node, run_until, turn,
    turn_remembering, world_moves,
};
use super::foreign_object::{have_moved, is_warned_of, status};
use super::{assert_gone, desire, until_closed};
use crate::fake_api::FakeApi;
use crate::memory::Memory;

const AGENT_OF_A: &str = "/apis/replumb.dev/v1alpha1/nodemigrations/a";

/// The behaviour of node a. Its turn is the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Odd {
    /// Its calico-node crashes again and again.
    CalicoNeverReady,
    /// Its agent reports that the source address is still on the link of the tunnel.
    Exchanges,
    /// Its agent never reports that it keeps the source address.
    KeepsNothing,
    /// Its tunnel keeps its former address.
    EndStays,
    /// Its agent reports that it keeps an address of the target range.
    KeepsOfTarget,
}

impl Odd {
    const fn words(self) -> &'static str {
        match self {
            Self::CalicoNeverReady => "calico-node on node a is not Ready again",
            Self::Exchanges => "on the tunnel link",
            Self::KeepsNothing => "node a: its agent does not keep",
            Self::EndStays => "calico-node on node a has not changed its tunnel address yet",
            Self::KeepsOfTarget => "node a: its agent is removing 10.244.0.50",
        }
    }

    /// The state of node a after each move of the world.
    fn apply(self, api: &FakeApi) {
        let of_agent = |part: &str, addresses: Vec<Value>| {
            let addresses = json!({ "addresses": { "items": addresses, "remaining": 0 } });
            // Before the first pass its agent has no NodeMigration.
            if api.get(AGENT_OF_A).is_some() {
                api.edit(
                    AGENT_OF_A,
                    &json!({ "status": { "podCidr": { part: addresses } } }),
                );
            }
        };
        let on = |address: &Value, link: &str| json!({ "address": format!("{}/32", address.as_str().unwrap()), "link": link });
        match self {
            Self::CalicoNeverReady => is_ready(api, "False"),
            Self::Exchanges => {
                let object = api.get(AGENT_OF_A).unwrap_or_default();
                let ends = object["spec"]["podCidr"]["tunnelAddresses"].as_array().cloned();
                let ends = ends.unwrap_or_default();
                let on_both = ends
                    .iter()
                    .flat_map(|end| ["lo", "vxlan.calico"].map(|link| on(&end["old"], link)));
                of_agent("source", on_both.collect());
            }
            Self::KeepsNothing => of_agent("source", Vec::new()),
            Self::EndStays => {}
            Self::KeepsOfTarget => of_agent("target", vec![on(&json!("10.244.0.50"), "lo")]),
        }
    }

    fn start(self, api: &FakeApi) {
        let (path, node) = calico_node(api, "a");
        if self == Self::EndStays {
            api.edit(
                &path,
                &json!({ "metadata": { "annotations": { STAYS: end_of(&node).unwrap() } } }),
            );
        }
        self.apply(api);
    }

    fn stop(api: &FakeApi) {
        api.edit(
            &format!("{NODES}/a"),
            &json!({ "metadata": { "annotations": { STAYS: null } } }),
        );
        is_ready(api, "True");
        world_moves(api);
    }

    async fn turn(self, api: &FakeApi, memory: &mut Memory) {
        turn_remembering(api, memory).await;
        world_moves(api);
        self.apply(api);
    }
}

/// Sets the condition Ready of calico-node on node a.
fn is_ready(api: &FakeApi, ready: &str) {
    let conditions = json!([{ "type": "Ready", "status": ready }]);
    api.edit(
        "/api/v1/namespaces/kube-system/pods/calico-a",
        &json!({ "status": { "conditions": conditions } }),
    );
}

fn is_closed(api: &FakeApi, pool: &str) -> bool {
    api.get(&format!("{POOLS}/{pool}"))
        .is_none_or(|pool| pool["spec"]["disabled"] == true)
}

#[rstest]
#[case::calico_never_ready(Odd::CalicoNeverReady)]
#[case::exchanges(Odd::Exchanges)]
#[case::keeps_nothing(Odd::KeepsNothing)]
#[case::end_stays(Odd::EndStays)]
#[case::keeps_of_target(Odd::KeepsOfTarget)]
#[tokio::test]
async fn a_rollback_continues_without_one_late_node(#[case] odd: Odd) {
    let api = cluster("Ignore");
    put_node(&api, THIRD);
    world_moves(&api);
    until_closed(&api, "old").await;
    for _ in 0..20 {
        turn(&api).await;
        if have_moved(&api, RANGES[1].1) {
            break;
        }
    }
    odd.start(&api);
    desire(&api, "Rollback");
    let mut memory = Memory::default();
    for _ in 0..12 {
        odd.turn(&api, &mut memory).await;
    }
    assert!(
        !have_moved(&api, RANGES[0].1),
        "{odd:?}: pods move back before the patience ends"
    );
    assert!(
        status(&api)["message"].to_string().contains(odd.words()),
        "{:#}",
        status(&api)
    );
    assert!(!is_warned_of(&api, "lasted for minutes"), "{:#}", status(&api));
    let mut is_named = false;
    for _ in 0..40 {
        memory
            .kinds
            .of::<ReadCache>()
            .late_nodes
            .age(Duration::from_mins(3));
        odd.turn(&api, &mut memory).await;
        is_named |= is_warned_of(&api, odd.words()) && is_warned_of(&api, "all pods roll back without it");
        if have_moved(&api, RANGES[0].1) {
            break;
        }
    }
    assert!(have_moved(&api, RANGES[0].1), "{:#}", status(&api));
    assert!(is_closed(&api, RANGES[1].0) && is_named, "{:#}", status(&api));
    let (_, other) = calico_node(&api, "b");
    assert!(end_of(&other).unwrap().starts_with(RANGES[0].1), "{other:#}");
    Odd::stop(&api);
    run_until(&api, "RolledBack").await;
    assert_gone(&api, 1);
}

/// Before stage Switch no agent is told of a tunnel address: no node is late by that, however long a pass waits for others.
#[tokio::test]
async fn a_wait_before_stage_switch_makes_no_node_late() {
    let api = cluster("Ignore");
    let set = "/apis/crd.projectcalico.org/v1/globalnetworksets/pods";
    let object = json!({
        "apiVersion": "crd.projectcalico.org/v1", "kind": "GlobalNetworkSet", "metadata": { "name": "pods" },
        "spec": { "nets": ["10.244.0.0/16"] },
    });
    api.put(set, object);
    let mut memory = Memory::default();
    for _ in 0..10 {
        turn_remembering(&api, &mut memory).await;
        world_moves(&api);
        memory
            .kinds
            .of::<ReadCache>()
            .late_nodes
            .age(Duration::from_mins(3));
        assert!(!is_warned_of(&api, "lasted for minutes"), "{:#}", status(&api));
    }
    assert_eq!(
        status(&api)["podCidr"]["stage"]["name"],
        "Widen",
        "{:#}",
        status(&api)
    );
    api.remove(set);
    run_until(&api, "Completed").await;
}

/// A node that is slow for a moment, and again later, has lacked nothing for long.
#[tokio::test]
async fn a_node_that_was_done_meanwhile_gets_the_whole_patience_again() {
    let api = cluster("Ignore");
    until_closed(&api, "old").await;
    desire(&api, "Rollback");
    let mut memory = Memory::default();
    for _ in 0..30 {
        turn_remembering(&api, &mut memory).await;
        world_moves(&api);
        memory
            .kinds
            .of::<ReadCache>()
            .late_nodes
            .age(Duration::from_secs(20));
        assert!(!is_warned_of(&api, "lasted for minutes"), "{:#}", status(&api));
        if have_moved(&api, RANGES[0].1) {
            return;
        }
    }
    panic!("no pod moves back: {:#}", status(&api));
}

/// Forward nothing is lost yet: the old pool stays open, and the message names the node and the fix.
#[rstest]
#[case::calico_never_ready(Odd::CalicoNeverReady)]
#[case::exchanges(Odd::Exchanges)]
#[case::keeps_nothing(Odd::KeepsNothing)]
#[case::end_stays(Odd::EndStays)]
#[tokio::test]
async fn forward_one_late_node_is_named_and_holds_the_old_pool(#[case] odd: Odd) {
    let api = cluster("Ignore");
    odd.start(&api);
    let mut memory = Memory::default();
    for _ in 0..30 {
        odd.turn(&api, &mut memory).await;
        memory
            .kinds
            .of::<ReadCache>()
            .late_nodes
            .age(Duration::from_mins(3));
    }
    assert!(!is_closed(&api, "old"), "{:#}", status(&api));
    assert!(
        status(&api)["message"].to_string().contains(odd.words()),
        "{:#}",
        status(&api)
    );
    assert!(is_warned_of(&api, odd.words()), "{:#}", status(&api));
    for words in [
        "other nodes wait for it",
        "Fix: check the log of",
        "replumb rollback --all",
    ] {
        assert!(is_warned_of(&api, words), "{words}: {:#}", status(&api));
    }
    Odd::stop(&api);
    run_until(&api, "Completed").await;
    assert_gone(&api, 0);
}
