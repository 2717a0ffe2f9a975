//! Stage Switch beside one Ready node that does not do its part: on the way back it is waited for, for a while, and named, and the pods of
//! all nodes go back. On the way there it is named, and the operator decides.

use std::time::Duration;

use rstest::rstest;
use serde_json::{Value, json};

use super::scenarios::{assert_gone, desire, until_closed};
use super::stranger_scenarios::{have_moved, is_warned_of, status};
use super::world::{
    NODES, POOLS, RANGES, STAYS, THIRD, calico_node, cluster, end_of, put_node, run_until, turn,
    turn_remembering, world_moves,
};
use crate::fake_api::FakeApi;
use crate::memory::Memory;

const AGENT_OF_A: &str = "/apis/replumb.dev/v1alpha1/nodemigrations/a";

/// What node a does. Its turn is the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Odd {
    /// Its calico-node crashes again and again.
    CalicoNeverReady,
    /// Its agent says that the address that is left is on the link of the tunnel still.
    Exchanges,
    /// Its agent never says that it keeps the address that is left.
    KeepsNothing,
    /// Its tunnel has the end that it had.
    EndStays,
    /// Its agent says that it keeps an address of the range that pods are led to.
    KeepsOfTarget,
}

impl Odd {
    const fn words(self) -> &'static str {
        match self {
            Self::CalicoNeverReady => "calico-node on node a is not Ready again",
            Self::Exchanges => "on the link of its tunnel still",
            Self::KeepsNothing => "node a: its agent does not keep",
            Self::EndStays => "calico-node on node a takes another address for the end of its tunnel",
            Self::KeepsOfTarget => "node a: its agent keeps 10.244.0.50",
        }
    }

    /// What is so after each move of the world.
    fn happens(self, api: &FakeApi) {
        let of_agent = |part: &str, addresses: Vec<Value>| {
            let addresses = json!({ "addresses": { "first": addresses, "more": 0 } });
            // Before the first pass nothing is asked of it.
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
                let ends = object["spec"]["podCidr"]["tunnelEnds"].as_array().cloned();
                let ends = ends.unwrap_or_default();
                let on_both = ends
                    .iter()
                    .flat_map(|end| ["lo", "vxlan.calico"].map(|link| on(&end["kept"], link)));
                of_agent("inOld", on_both.collect());
            }
            Self::KeepsNothing => of_agent("inOld", Vec::new()),
            Self::EndStays => {}
            Self::KeepsOfTarget => of_agent("inNew", vec![on(&json!("10.244.0.50"), "lo")]),
        }
    }

    fn begins(self, api: &FakeApi) {
        let (path, node) = calico_node(api, "a");
        if self == Self::EndStays {
            api.edit(
                &path,
                &json!({ "metadata": { "annotations": { STAYS: end_of(&node).unwrap() } } }),
            );
        }
        self.happens(api);
    }

    fn ends(api: &FakeApi) {
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
        self.happens(api);
    }
}

/// Says this of calico-node on node a.
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
async fn one_node_does_not_hold_the_way_back(#[case] odd: Odd) {
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
    odd.begins(&api);
    desire(&api, "Rollback");
    let mut memory = Memory::default();
    for _ in 0..12 {
        odd.turn(&api, &mut memory).await;
    }
    assert!(!have_moved(&api, RANGES[0].1), "{odd:?} is waited for at first");
    assert!(
        status(&api)["message"].to_string().contains(odd.words()),
        "{:#}",
        status(&api)
    );
    assert!(!is_warned_of(&api, "lasted for minutes"), "{:#}", status(&api));
    let mut is_named = false;
    for _ in 0..40 {
        memory.pod_cidr.unkept.age(Duration::from_mins(3));
        odd.turn(&api, &mut memory).await;
        is_named |= is_warned_of(&api, odd.words()) && is_warned_of(&api, "all pods go back without it");
        if have_moved(&api, RANGES[0].1) {
            break;
        }
    }
    assert!(have_moved(&api, RANGES[0].1), "{:#}", status(&api));
    assert!(is_closed(&api, RANGES[1].0) && is_named, "{:#}", status(&api));
    let (_, other) = calico_node(&api, "b");
    assert!(end_of(&other).unwrap().starts_with(RANGES[0].1), "{other:#}");
    Odd::ends(&api);
    run_until(&api, "RolledBack").await;
    assert_gone(&api, 1);
}

/// Before stage Switch no agent is told of an end: no node is late by that, however long others are waited for.
#[tokio::test]
async fn what_comes_before_the_stage_makes_no_node_late() {
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
        memory.pod_cidr.unkept.age(Duration::from_mins(3));
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
async fn a_node_that_is_done_meanwhile_is_waited_for_again() {
    let api = cluster("Ignore");
    until_closed(&api, "old").await;
    desire(&api, "Rollback");
    let mut memory = Memory::default();
    for _ in 0..30 {
        turn_remembering(&api, &mut memory).await;
        world_moves(&api);
        memory.pod_cidr.unkept.age(Duration::from_secs(20));
        assert!(!is_warned_of(&api, "lasted for minutes"), "{:#}", status(&api));
        if have_moved(&api, RANGES[0].1) {
            return;
        }
    }
    panic!("no pod goes back: {:#}", status(&api));
}

/// Nothing is lost yet on the way there: the old pool stays open, and the operator is told which node it is and what to do.
#[rstest]
#[case::calico_never_ready(Odd::CalicoNeverReady)]
#[case::exchanges(Odd::Exchanges)]
#[case::keeps_nothing(Odd::KeepsNothing)]
#[case::end_stays(Odd::EndStays)]
#[tokio::test]
async fn one_node_is_named_on_the_way_there(#[case] odd: Odd) {
    let api = cluster("Ignore");
    odd.begins(&api);
    let mut memory = Memory::default();
    for _ in 0..30 {
        odd.turn(&api, &mut memory).await;
        memory.pod_cidr.unkept.age(Duration::from_mins(3));
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
        "Fix: see the log of",
        "replumb rollback --all",
    ] {
        assert!(is_warned_of(&api, words), "{words}: {:#}", status(&api));
    }
    Odd::ends(&api);
    run_until(&api, "Completed").await;
    assert_gone(&api, 0);
}
