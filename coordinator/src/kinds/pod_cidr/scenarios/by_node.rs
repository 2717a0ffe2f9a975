//! Mode `ByNode` with one node whose agent never reports a settled host: other nodes wait for it for some minutes, it is named,
//! and then the pods of all other nodes move, forward and back.

use std::time::Duration;

use rstest::rstest;
use serde_json::json;

use super::super::ReadCache;
use super::fixture::{
    MIGRATION, NODES, PODS, RANGES, cluster, run_until, turn, turn_remembering, world_moves,
};
use super::foreign_object::{have_moved, is_warned_of, status};
use super::{assert_gone, desire, until_closed};
use crate::fake_api::FakeApi;
use crate::memory::Memory;

const AGENT_OF_A: &str = "/apis/replumb.dev/v1alpha1/nodemigrations/a";

/// The report of node a's agent. Node a is the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Odd {
    /// A route to a pod that does not exist.
    Route,
    /// More routes than the report lists.
    MoreRoutes,
    /// No report on its present settings.
    Silent,
}

impl Odd {
    const fn words(self) -> &'static str {
        match self {
            Self::Route => "99",
            Self::MoreRoutes => "more routes to pods",
            Self::Silent => "its agent has not answered",
        }
    }

    /// The report after each move of the world, in either range.
    fn apply(self, api: &FakeApi) {
        let Some(object) = api.get(AGENT_OF_A) else {
            return;
        };
        let prefix = object["spec"]["podCidr"]["from"].as_str().unwrap_or_default();
        let prefix = prefix.trim_end_matches(".0.0/16").to_owned();
        let route = json!({
            "kind": "Unicast", "destination": format!("{prefix}.0.99/32"), "hops": [], "table": 254, "protocol": 3, "metric": 0,
        });
        let said = match self {
            Self::Route => {
                json!({ "podCidr": { "source": { "pods": { "items": [route], "remaining": 0 } } } })
            }
            Self::MoreRoutes => {
                json!({ "podCidr": { "source": { "pods": { "items": [], "remaining": 7 } } } })
            }
            Self::Silent => json!({ "observedGeneration": 0 }),
        };
        api.edit(AGENT_OF_A, &json!({ "status": said }));
    }

    /// A pass and a move of the world. Until its first turn, node a does what every node does.
    async fn turn(self, api: &FakeApi, memory: &mut Memory, begun: &mut bool) {
        turn_remembering(api, memory).await;
        world_moves(api);
        *begun |= is_cordoned(api, "a");
        if *begun {
            self.apply(api);
        }
    }
}

fn is_cordoned(api: &FakeApi, node: &str) -> bool {
    api.get(&format!("{NODES}/{node}")).unwrap()["spec"]["unschedulable"] == true
}

fn address_of_pod(api: &FakeApi, node: &str) -> String {
    let pod = api.get(&format!("{PODS}/web-{node}")).unwrap();
    pod["status"]["podIP"].as_str().unwrap_or_default().to_owned()
}

#[rstest]
#[tokio::test]
async fn pods_of_other_nodes_move_without_one_unsettled_host(
    #[values(Odd::Route, Odd::MoreRoutes, Odd::Silent)] odd: Odd,
    #[values("Run", "Rollback")] desired: &str,
) {
    let api = cluster("Ignore");
    api.edit(MIGRATION, &json!({ "spec": { "podCidr": { "mode": "ByNode" } } }));
    let (target, end) = match desired {
        "Run" => (1, "Completed"),
        _ => (0, "RolledBack"),
    };
    if desired == "Rollback" {
        until_closed(&api, "old").await;
        for _ in 0..40 {
            turn(&api).await;
            if have_moved(&api, RANGES[1].1) && !is_cordoned(&api, "b") {
                break;
            }
        }
        assert!(have_moved(&api, RANGES[1].1), "{:#}", status(&api));
        desire(&api, "Rollback");
    }
    let (mut memory, mut begun) = (Memory::default(), false);
    for _ in 0..60 {
        odd.turn(&api, &mut memory, &mut begun).await;
    }
    let prefix_of_target = RANGES[target].1;
    assert!(
        begun && address_of_pod(&api, "a").starts_with(prefix_of_target),
        "{:#}",
        status(&api)
    );
    assert!(
        is_cordoned(&api, "a") && !have_moved(&api, prefix_of_target),
        "{odd:?}: node a is uncordoned before the patience ends: {:#}",
        status(&api)
    );
    assert!(
        status(&api)["message"].to_string().contains(odd.words()),
        "{:#}",
        status(&api)
    );
    assert!(!is_warned_of(&api, "lasted for minutes"), "{:#}", status(&api));
    memory
        .kinds
        .of::<ReadCache>()
        .unsettled_nodes
        .age(Duration::from_mins(3));
    for _ in 0..40 {
        odd.turn(&api, &mut memory, &mut begun).await;
        assert!(is_warned_of(&api, odd.words()), "{:#}", status(&api));
        assert!(
            is_warned_of(&api, "no pod of node a has to move"),
            "{:#}",
            status(&api)
        );
        if have_moved(&api, prefix_of_target) {
            break;
        }
    }
    assert!(
        have_moved(&api, prefix_of_target) && !is_cordoned(&api, "a"),
        "{:#}",
        status(&api)
    );
    run_until(&api, end).await;
    assert_gone(&api, 1 - target);
}

/// While a pod has to move, routes to it are no fault of the host.
#[tokio::test]
async fn patience_starts_after_the_last_pod_has_moved() {
    let api = cluster("Ignore");
    api.edit(MIGRATION, &json!({ "spec": { "podCidr": { "mode": "ByNode" } } }));
    let mut memory = Memory::default();
    for _ in 0..60 {
        turn_remembering(&api, &mut memory).await;
        world_moves(&api);
        memory
            .kinds
            .of::<ReadCache>()
            .unsettled_nodes
            .age(Duration::from_secs(30));
        assert!(!is_warned_of(&api, "lasted for minutes"), "{:#}", status(&api));
        if have_moved(&api, RANGES[1].1) {
            return;
        }
    }
    panic!("pods do not move: {:#}", status(&api));
}
