//! A whole change of the range on two nodes against an API server in memory, with a Calico, controllers and agents that answer
//! as real ones would: the order of every write, the same end after the coordinator or the API server dies after any write,
//! and back from every stage.

use api::names;
use serde_json::{Value, json};

use super::world::{
    AFFINITIES, BLOCKS, CALICO, LAST_WORD, MIGRATION, NODE_NAMES, NODES, PODS, POOLS, RANGES,
    addresses_of_tunnel, calico_node, cluster, end_of, run_until, turn, turn_remembering, turn_without_world,
    world_moves,
};
use crate::fake_api::FakeApi;
use crate::memory::Memory;

/// The changes that say something about order, shortened.
pub(super) fn story(changes: &[(String, Value)]) -> Vec<String> {
    let mut lines = Vec::new();
    for (call, body) in changes {
        let (verb, path) = call.split_once(' ').unwrap();
        let last = path.rsplit('/').next().unwrap();
        let spec = &body["spec"];
        if path.ends_with("/eviction") {
            lines.push(format!("evict {}", path.rsplit('/').nth(1).unwrap()));
        } else if path.starts_with(POOLS) {
            let name = body["metadata"]["name"].as_str().unwrap_or(last);
            let disabled = spec
                .get("disabled")
                .map(|found| found.as_bool().unwrap_or_default());
            let how = match (disabled, spec["nodeSelector"].as_str()) {
                (Some(true), _) => " closed",
                (Some(false), Some("!all()")) => " to who names it",
                (Some(false), Some(selector)) if selector.contains("off-pool") => " narrowed",
                (Some(false), _) => " to everybody",
                (None, _) => "",
            };
            lines.push(format!("{} pool {name}{how}", verb.to_lowercase()));
        } else if let Some(ends) = spec["podCidr"].get("tunnelEnds") {
            let what = if ends.is_null() { "drop" } else { "keep" };
            lines.push(format!("{what} on {last}"));
        } else if let Some(cordoned) = spec.get("unschedulable").filter(|_| path.starts_with(NODES)) {
            let what = if cordoned.is_null() { "uncordon" } else { "cordon" };
            lines.push(format!("{what} {last}"));
        } else if body["metadata"]["labels"]["replumb.dev/off-pool"].is_string() {
            lines.push(format!("take off {last}"));
        } else if path.starts_with(BLOCKS) && spec["allocations"].is_array() {
            let holds = spec["attributes"].to_string().contains("vxlanTunnelAddress");
            lines.push(format!(
                "{} an end in {last}",
                if holds { "hold" } else { "release" }
            ));
        } else if path.starts_with(BLOCKS) || path.starts_with(AFFINITIES) {
            let what = if spec["state"].is_string() { " pending" } else { "" };
            lines.push(format!("{} {last}{what}", verb.to_lowercase()));
        }
    }
    lines
}

pub(super) fn assert_in_order(story: &[String], lines: &[&str]) {
    let mut rest = story.iter();
    for line in lines {
        assert!(
            rest.any(|found| found == line),
            "no {line:?} after those before it in {story:#?}"
        );
    }
}

/// Nothing of this range is left, and every pod has an address of the other one.
pub(super) fn assert_gone(api: &FakeApi, gone: usize) {
    let (pool, prefix) = RANGES[gone];
    assert!(
        api.get(&format!("{POOLS}/{pool}")).is_none(),
        "pool {pool} is left"
    );
    let left: Vec<String> = api
        .everything()
        .keys()
        .filter(|path| path.contains(&format!("{}-", prefix.replace('.', "-"))))
        .cloned()
        .collect();
    assert_eq!(left, [""; 0]);
    for node in NODE_NAMES {
        let pod = api.get(&format!("{PODS}/web-{node}")).unwrap();
        let address = pod["status"]["podIP"].as_str().unwrap();
        assert!(address.starts_with(RANGES[1 - gone].1), "{address}");
    }
    for node in api.below(NODES) {
        assert_eq!(node["metadata"]["labels"], json!({}), "a label is left");
        assert_ne!(node["spec"]["unschedulable"], true, "a cordon is left");
    }
    for (number, name) in NODE_NAMES.iter().enumerate() {
        let (path, node) = calico_node(api, name);
        assert_eq!(node["metadata"]["labels"], json!({}), "a label is left in {path}");
        let end = end_of(&node).unwrap();
        assert!(end.starts_with(RANGES[1 - gone].1), "{end}");
        let of_tunnel = addresses_of_tunnel(api, name, RANGES[1 - gone].1, number);
        assert_eq!(of_tunnel, [end], "what the tunnel of {name} has in Calico's IPAM");
    }
    for object in api.below("/apis/replumb.dev/v1alpha1/nodemigrations") {
        let kept = &object["spec"]["podCidr"]["tunnelEnds"];
        assert!(kept.is_null(), "an address is kept: {kept}");
    }
    let traffic = api
        .below("/api/v1/namespaces/replumb-system/pods")
        .iter()
        .filter(|pod| pod["metadata"]["labels"][names::COMPONENT_LABEL] == names::TRAFFIC_COMPONENT)
        .count();
    assert_eq!(traffic, 0, "traffic pods are left");
}

#[tokio::test]
async fn every_write_in_its_order() {
    let api = cluster("Watch");
    run_until(&api, "Completed").await;
    let changes = api.take_changes();
    let new = RANGES[1].0;
    assert_in_order(
        &story(&changes),
        &[
            &format!("post pool {new} closed"),
            &format!("patch pool {new} to who names it"),
            &format!("patch pool {new} to everybody"),
            "keep on b",
            "hold an end in 10-200-0-0-26",
            "take off a",
            "hold an end in 10-200-1-0-26",
            "take off b",
            "patch pool old closed",
            "evict web-a",
            "evict web-b",
            "release an end in 10-244-0-0-26",
            "drop on b",
            "patch a-10-244-0-0-26 pending",
            "delete 10-244-0-0-26",
            "delete a-10-244-0-0-26",
            "delete pool old",
        ],
    );
    assert_gone(&api, 0);
    let status = &api.get(MIGRATION).unwrap()["status"]["podCidr"];
    assert_eq!(
        (&status["podsInOldRange"], &status["podsInNewRange"]),
        (&json!(0), &json!(2))
    );
    let stages: Vec<&str> = status["history"]
        .as_array()
        .unwrap()
        .iter()
        .map(|stage| stage["name"].as_str().unwrap())
        .collect();
    for stage in [
        "CreatePool",
        "Canary",
        "Switch",
        "Move",
        "Verify",
        "FollowUp",
        "DeletePool",
        "CleanUp",
    ] {
        assert!(stages.contains(&stage), "no {stage} in {stages:?}");
    }
}

#[tokio::test]
async fn the_same_end_whichever_write_is_the_last_before_a_crash() {
    let undisturbed = cluster("Ignore");
    run_until(&undisturbed, "Completed").await;
    let writes = undisturbed.take_changes().len();
    assert!(
        writes > 20,
        "the walk is too short to prove anything: {writes} writes"
    );
    for last in 0..writes {
        let api = cluster("Ignore");
        api.crash_after(last, turn, world_moves).await;
        run_until(&api, "Completed").await;
        assert_gone(&api, 0);
    }
}

/// From every write before the old pool goes.
#[tokio::test]
async fn back_from_wherever_it_is() {
    let undisturbed = cluster("Ignore");
    run_until(&undisturbed, "Completed").await;
    let changes = undisturbed.take_changes();
    let no_return = changes
        .iter()
        .position(|(call, _)| *call == format!("DELETE {POOLS}/old"))
        .unwrap();
    for last in 0..no_return {
        let api = cluster("Ignore");
        api.crash_after(last, turn, world_moves).await;
        api.edit(
            MIGRATION,
            &json!({ "spec": { "desired": "Rollback" }, "metadata": { "generation": 2 } }),
        );
        run_until(&api, "RolledBack").await;
        assert_gone(&api, 1);
        let old = api.get(&format!("{POOLS}/old")).unwrap();
        assert!(
            old["spec"]["disabled"] != true,
            "the old pool is closed after {last} writes"
        );
    }
}

/// A block of the old range that node a has, and that is empty.
fn put_empty_block(api: &FakeApi, number: usize) {
    let (third, last) = (100 + number / 4, 64 * (number % 4));
    let (range, name) = (
        format!("10.244.{third}.{last}/26"),
        format!("10-244-{third}-{last}-26"),
    );
    api.put(
        &format!("{BLOCKS}/{name}"),
        json!({
            "apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMBlock", "metadata": { "name": name },
            "spec": {
                "cidr": range, "affinity": "host:a", "allocations": vec![Value::Null; 64], "attributes": [],
                "unallocated": (0..64).collect::<Vec<_>>(),
            },
        }),
    );
    let claim = format!("a-{name}");
    api.put(
        &format!("{AFFINITIES}/{claim}"),
        json!({
            "apiVersion": "crd.projectcalico.org/v1", "kind": "BlockAffinity", "metadata": { "name": claim },
            "spec": { "cidr": range, "node": "a", "state": "confirmed", "deleted": "false" },
        }),
    );
}

/// Thousands of blocks are a hundred batches: what a batch releases it reads by name, and what is gone is known.
#[tokio::test]
async fn blocks_go_batch_by_batch_without_a_list_of_all_for_each() {
    let api = cluster("Ignore");
    (0..300).for_each(|number| put_empty_block(&api, number));
    let left = || {
        let is_old = |block: &Value| block["spec"]["cidr"].as_str().unwrap().starts_with("10.244.");
        api.below(BLOCKS).into_iter().filter(is_old).count()
    };
    for _ in 0..100 {
        if left() < 300 {
            break;
        }
        turn(&api).await;
    }
    let mut memory = Memory::default();
    let mut batches = 0;
    api.take_reads();
    for _ in 0..20 {
        let before = left();
        if before == 0 {
            break;
        }
        turn_remembering(&api, &mut memory).await;
        world_moves(&api);
        assert!(
            before - left() <= 50,
            "a pass that takes minutes looks at nothing else"
        );
        batches += usize::from(left() < before);
    }
    assert_eq!(left(), 0);
    assert!(batches >= 5, "{batches} batches");
    let reads = api.take_reads();
    let is_a_list = |read: &&String| {
        read.starts_with("LIST") && (read.contains("/ipamblocks") || read.contains("/blockaffinities"))
    };
    let lists: Vec<&String> = reads.iter().filter(is_a_list).collect();
    // What the coordinator had to know at its start: one page and a few objects of both kinds.
    assert!(lists.len() <= 4, "{lists:#?}");
    run_until(&api, "Completed").await;
    assert_gone(&api, 0);
    assert_eq!(api.below(AFFINITIES).len(), 2, "those of the new range");
}

/// An allocation that races the block's release is not lost: it comes between the look at the block and the write.
#[tokio::test]
async fn who_takes_an_address_of_a_block_that_is_about_to_go_keeps_it() {
    let api = cluster("Ignore");
    let block = format!("{BLOCKS}/10-244-0-0-26");
    let mut allocations = vec![Value::Null; 64];
    allocations[7] = json!(0);
    let taken = json!({ "spec": {
        "allocations": allocations, "attributes": [{ "handle_id": "somebody", "secondary": {} }] } });
    api.meddle(&format!("PATCH {AFFINITIES}/a-10-244-0-0-26"), &block, taken);
    for _ in 0..100 {
        let pending = api
            .get(&format!("{AFFINITIES}/a-10-244-0-0-26"))
            .is_some_and(|affinity| affinity["spec"]["state"] == "pendingDeletion");
        if pending {
            break;
        }
        turn_without_world(&api).await;
        if api
            .get(&block)
            .is_some_and(|block| block["spec"]["allocations"][7].is_null())
        {
            world_moves(&api);
        }
    }
    for _ in 0..5 {
        turn_without_world(&api).await;
    }
    let object = api
        .get(&block)
        .expect("the block, with the address that was given out");
    assert_eq!(object["spec"]["allocations"][7], 0);
    assert!(object["spec"]["deleted"].is_null(), "{object:#}");
    assert!(api.get(&format!("{POOLS}/old")).is_some(), "its pool is deleted");
    let status = &api.get(MIGRATION).unwrap()["status"];
    assert_eq!(status["blocked"], "Leftovers");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("10.244.0.7") && message.contains("somebody"),
        "{message}"
    );
}

#[tokio::test]
async fn node_by_node_each_is_cordoned_while_its_pods_leave() {
    let api = cluster("Watch");
    api.edit(MIGRATION, &json!({ "spec": { "podCidr": { "mode": "ByNode" } } }));
    api.take_changes();
    run_until(&api, "Completed").await;
    assert_in_order(
        &story(&api.take_changes()),
        &[
            "patch pool old closed",
            "cordon a",
            "evict web-a",
            "uncordon a",
            "cordon b",
            "evict web-b",
            "uncordon b",
            "delete pool old",
        ],
    );
    assert_gone(&api, 0);
}

#[tokio::test]
async fn past_its_point_of_no_return_nothing_is_taken_back_and_the_rest_is_finished() {
    let api = cluster("Watch");
    for _ in 0..200 {
        if api.get(&format!("{POOLS}/old")).is_none() {
            break;
        }
        turn(&api).await;
    }
    assert!(
        api.get(&format!("{POOLS}/old")).is_none(),
        "the pool is never deleted"
    );
    api.edit(MIGRATION, &json!({ "spec": { "desired": "Rollback" } }));
    api.take_changes();
    for _ in 0..5 {
        turn(&api).await;
    }
    let status = api.get(MIGRATION).unwrap()["status"].clone();
    assert_eq!(status["blocked"], "PastReturn", "{status:#}");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("another one, from 10.200.0.0/16 to 10.244.0.0/16"),
        "{message}"
    );
    assert_eq!(story(&api.take_changes()), [""; 0]);
    api.edit(MIGRATION, &json!({ "spec": { "desired": "Run" } }));
    run_until(&api, "Completed").await;
    assert_gone(&api, 0);
}

/// Agents tell late what was lost in the last moment.
#[tokio::test]
async fn what_is_lost_just_before_the_end_is_in_the_sum() {
    let api = cluster("Watch");
    for _ in 0..200 {
        if api.get(&format!("{POOLS}/old")).is_none() {
            break;
        }
        turn(&api).await;
    }
    api.put(LAST_WORD, json!({ "metadata": {}, "moves": 8 }));
    run_until(&api, "Completed").await;
    let told = &api.get(MIGRATION).unwrap()["status"]["traffic"];
    assert_eq!(
        (&told[0]["class"], &told[0]["lost"]),
        (&json!("NewToNew"), &json!(14))
    );
}

/// The end of every node's tunnel.
fn tunnel_ends(api: &FakeApi) -> [String; 2] {
    NODE_NAMES.map(|node| {
        let (_, object) = calico_node(api, node);
        end_of(&object).unwrap().to_owned()
    })
}

pub(super) async fn until_closed(api: &FakeApi, pool: &str) {
    for _ in 0..60 {
        if api.get(&format!("{POOLS}/{pool}")).unwrap()["spec"]["disabled"] == true {
            return;
        }
        turn(api).await;
    }
    panic!(
        "{pool} is not closed: {:#}",
        api.get(MIGRATION).unwrap()["status"]
    );
}

pub(super) fn desire(api: &FakeApi, desired: &str) {
    api.edit(MIGRATION, &json!({ "spec": { "desired": desired } }));
}

/// There and back and there and back again: nothing is forgotten that somebody has to take away.
#[tokio::test]
async fn who_turns_around_twice_ends_as_who_does_once() {
    for passes in 1..8 {
        let api = cluster("Ignore");
        let before = tunnel_ends(&api);
        until_closed(&api, "old").await;
        desire(&api, "Rollback");
        until_closed(&api, "ipv4-10-200-0-0-16").await;
        desire(&api, "Run");
        for _ in 0..passes {
            turn(&api).await;
        }
        desire(&api, "Rollback");
        run_until(&api, "RolledBack").await;
        assert_eq!(tunnel_ends(&api), before, "after {passes} passes");
        assert_gone(&api, 1);
    }
}

/// A policy of the whole cluster knows the new range alone by now: before a pod comes back it has to know both. What tunnels had is not
/// forgotten meanwhile.
#[tokio::test]
async fn on_the_way_back_too_both_ranges_have_to_be_known_first() {
    let api = cluster("Watch");
    let before = tunnel_ends(&api);
    until_closed(&api, "old").await;
    let policy = "/apis/crd.projectcalico.org/v1/globalnetworkpolicies/web";
    let nets = |ranges: &[&str]| {
        json!({
            "apiVersion": "crd.projectcalico.org/v1", "kind": "GlobalNetworkPolicy", "metadata": { "name": "web" },
            "spec": { "ingress": [{ "action": "Allow", "source": { "nets": ranges } }] },
        })
    };
    api.put(policy, nets(&["10.200.0.0/16"]));
    desire(&api, "Rollback");
    for _ in 0..10 {
        turn(&api).await;
    }
    let status = api.get(MIGRATION).unwrap()["status"].clone();
    assert_eq!(status["blocked"], "ConfigurationFollowUp", "{status:#}");
    let message = status["message"].as_str().unwrap();
    for words in ["GlobalNetworkPolicy web", "10.200.0.0/16 and 10.244.0.0/16"] {
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(
        api.get(&format!("{POOLS}/old")).unwrap()["spec"]["disabled"],
        true
    );
    api.put(policy, nets(&["10.200.0.0/16", "10.244.0.0/16"]));
    run_until(&api, "RolledBack").await;
    assert_eq!(tunnel_ends(&api), before);
    assert_gone(&api, 1);
}

/// Nobody knows then which addresses are free: none is given back, and none is exchanged.
#[tokio::test]
async fn a_block_that_is_not_understood_is_named_before_a_pool_is_opened() {
    let api = cluster("Watch");
    let before = tunnel_ends(&api);
    until_closed(&api, "old").await;
    let block = format!("{BLOCKS}/10-99-0-0-26");
    api.put(
        &block,
        json!({
            "apiVersion": "crd.projectcalico.org/v1", "kind": "IPAMBlock", "metadata": { "name": "10-99-0-0-26" },
            "spec": { "cidr": "everything" },
        }),
    );
    desire(&api, "Rollback");
    for _ in 0..10 {
        turn(&api).await;
    }
    let status = api.get(MIGRATION).unwrap()["status"].clone();
    assert_eq!(status["blocked"], "CalicoObjects", "{status:#}");
    assert!(
        status["message"].as_str().unwrap().contains("10-99-0-0-26"),
        "{status:#}"
    );
    assert_eq!(
        api.get(&format!("{POOLS}/old")).unwrap()["spec"]["disabled"],
        true
    );
    api.remove(&block);
    run_until(&api, "RolledBack").await;
    assert_eq!(tunnel_ends(&api), before);
}

#[tokio::test]
async fn who_turns_around_gives_every_tunnel_back_what_it_had() {
    gives_back(&cluster("Watch")).await;
}

/// There until the old pool is closed, and back: each tunnel has what it had, which nobody else could get meanwhile.
pub(super) async fn gives_back(api: &FakeApi) {
    let before = tunnel_ends(api);
    until_closed(api, "old").await;
    assert!(tunnel_ends(api).iter().all(|end| end.starts_with("10.200.")));
    let story = back(api).await;
    assert_in_order(
        &story,
        &[
            "patch pool old to everybody",
            "take off a",
            "take off b",
            "patch pool ipv4-10-200-0-0-16 closed",
            "release an end in 10-200-0-0-26",
        ],
    );
    assert_eq!(tunnel_ends(api), before);
}

#[tokio::test]
async fn what_a_tunnel_had_is_held_again_before_anybody_can_get_it() {
    gives_back_what_was_released(&cluster("Watch")).await;
}

/// There until Calico's IPAM has back what tunnels had, and back.
pub(super) async fn gives_back_what_was_released(api: &FakeApi) {
    let before = tunnel_ends(api);
    until_closed(api, "old").await;
    let is_held = |api: &FakeApi| addresses_of_tunnel(api, "b", RANGES[0].1, 1) == [before[1].as_str()];
    assert!(is_held(api));
    for _ in 0..60 {
        if !is_held(api) {
            break;
        }
        turn(api).await;
    }
    let story = back(api).await;
    assert_in_order(
        &story,
        &[
            "hold an end in 10-244-1-0-26",
            "patch pool old to everybody",
            "take off a",
            "take off b",
        ],
    );
    assert_eq!(tunnel_ends(api), before);
}

/// What is written on the way back, to its end.
async fn back(api: &FakeApi) -> Vec<String> {
    desire(api, "Rollback");
    api.take_changes();
    run_until(api, "RolledBack").await;
    assert_gone(api, 1);
    story(&api.take_changes())
}

/// Nothing of the new range may be given out but to who says so: the migration has nothing to choose from.
#[tokio::test]
async fn calico_chooses_where_the_migration_cannot() {
    let api = cluster("Watch");
    api.put(
        "/apis/crd.projectcalico.org/v1/ipreservations/all",
        json!({
            "apiVersion": "crd.projectcalico.org/v1", "kind": "IPReservation", "metadata": { "name": "all" },
            "spec": { "reservedCIDRs": ["10.200.0.0/16"] },
        }),
    );
    run_until(&api, "Completed").await;
    let story = story(&api.take_changes());
    assert_in_order(
        &story,
        &[
            "keep on b",
            "take off a",
            "patch pool old narrowed",
            "keep on a",
            "take off b",
            "keep on b",
            "patch pool old closed",
        ],
    );
    assert!(!story.iter().any(|line| line.starts_with("hold")), "{story:#?}");
    assert_gone(&api, 0);
}

#[tokio::test]
async fn what_a_person_changed_for_the_way_there_is_told_at_the_end_of_the_way_back() {
    let api = cluster("Watch");
    for _ in 0..10 {
        turn(&api).await;
    }
    let mut set = api.get(CALICO).unwrap();
    set["spec"]["template"]["spec"]["containers"][0]["env"][0]["value"] = json!("10.200.0.0/16");
    api.put(CALICO, set);
    api.edit(MIGRATION, &json!({ "spec": { "desired": "Rollback" } }));
    run_until(&api, "RolledBack").await;
    let message = api.get(MIGRATION).unwrap()["status"]["message"].to_string();
    for words in [
        "1 places say 10.200.0.0/16 still",
        "CALICO_IPV4POOL_CIDR: found 10.200.0.0/16, needed 10.244.0.0/16",
    ] {
        assert!(message.contains(words), "{message}");
    }
}

#[tokio::test]
async fn what_is_paused_stays_as_it_is() {
    let api = cluster("Ignore");
    api.edit(MIGRATION, &json!({ "spec": { "desired": "Pause" } }));
    for _ in 0..10 {
        turn(&api).await;
    }
    assert_eq!(story(&api.take_changes()), [""; 0]);
    assert_eq!(api.get(MIGRATION).unwrap()["status"]["blocked"], "Paused");
    // But somebody closes the only pool: no pod would start.
    api.edit(&format!("{POOLS}/old"), &json!({ "spec": { "disabled": true } }));
    turn(&api).await;
    assert_eq!(story(&api.take_changes()), ["patch pool old to everybody"]);
}
