//! A whole change of the range on two nodes against an API server in memory, with a Calico, controllers and agents that answer
//! as real ones would: the order of every write, the same end after a crash of the coordinator or the API server after any write,
//! and the rollback from every stage.

mod by_node;
mod etcd;
mod fixture;
mod foreign_object;
mod masquerading;
mod switch;

use api::names;
use serde_json::{Value, json};

use self::fixture::{
    AFFINITIES, BLOCKS, CALICO, LAST_WORD, MIGRATION, NODE_NAMES, NODES, PODS, POOLS, RANGES,
    addresses_of_tunnel, calico_node, cluster, crash_after, end_of, run_until, turn, turn_remembering,
    turn_without_world, world_moves,
};
use crate::fake_api::FakeApi;
use crate::memory::Memory;
use crate::walk;

/// The changes that matter for the order, shortened.
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
                (Some(false), Some("!all()")) => " open by name",
                (Some(false), Some(selector)) if selector.contains("off-pool") => " narrowed",
                (Some(false), _) => " open",
                (None, _) => "",
            };
            lines.push(format!("{} pool {name}{how}", verb.to_lowercase()));
        } else if let Some(ends) = spec["podCidr"].get("tunnelAddresses") {
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

/// Asserts that nothing of this range remains, and that every pod has an address of the other one.
pub(super) fn assert_gone(api: &FakeApi, gone: usize) {
    let (pool, prefix) = RANGES[gone];
    assert!(
        api.get(&format!("{POOLS}/{pool}")).is_none(),
        "pool {pool} remains"
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
        assert_eq!(node["metadata"]["labels"], json!({}), "a label remains");
        assert_ne!(node["spec"]["unschedulable"], true, "a cordon remains");
    }
    for (number, name) in NODE_NAMES.iter().enumerate() {
        let (path, node) = calico_node(api, name);
        assert_eq!(node["metadata"]["labels"], json!({}), "a label remains in {path}");
        let end = end_of(&node).unwrap();
        assert!(end.starts_with(RANGES[1 - gone].1), "{end}");
        let of_tunnel = addresses_of_tunnel(api, name, RANGES[1 - gone].1, number);
        assert_eq!(
            of_tunnel,
            [end],
            "allocations of the tunnel of {name} in Calico's IPAM"
        );
    }
    for object in api.below("/apis/replumb.dev/v1alpha1/nodemigrations") {
        let kept = &object["spec"]["podCidr"]["tunnelAddresses"];
        assert!(kept.is_null(), "an address is kept: {kept}");
    }
    let traffic = api
        .below("/api/v1/namespaces/replumb-system/pods")
        .iter()
        .filter(|pod| pod["metadata"]["labels"][names::COMPONENT_LABEL] == names::TRAFFIC_COMPONENT)
        .count();
    assert_eq!(traffic, 0, "traffic pods remain");
}

#[tokio::test]
async fn every_write_comes_in_its_order() {
    let api = cluster("Watch");
    run_until(&api, "Completed").await;
    let changes = api.take_changes();
    let new = RANGES[1].0;
    assert_in_order(
        &story(&changes),
        &[
            &format!("post pool {new} closed"),
            &format!("patch pool {new} open by name"),
            &format!("patch pool {new} open"),
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

pub(super) async fn completed(api: &FakeApi) {
    run_until(api, "Completed").await;
}

#[tokio::test]
async fn a_crash_after_any_write_changes_no_outcome() {
    let start = async || cluster("Ignore");
    let undisturbed = walk::undisturbed(start, completed).await;
    let writes = undisturbed.changes.len();
    assert!(
        writes > 20,
        "the walk is too short to prove anything: {writes} writes"
    );
    walk::crash_after_each(0..writes, start, crash_after, async |api, _| {
        completed(api).await;
        assert_gone(api, 0);
    })
    .await;
}

/// After every write before the deletion of the old pool.
#[tokio::test]
async fn a_rollback_after_any_write_restores_the_old_pool() {
    let start = async || cluster("Ignore");
    let undisturbed = walk::undisturbed(start, completed).await;
    let no_return = undisturbed
        .changes
        .iter()
        .position(|(call, _)| *call == format!("DELETE {POOLS}/old"))
        .unwrap();
    walk::crash_after_each(0..no_return, start, crash_after, async |api, when| {
        api.edit(
            MIGRATION,
            &json!({ "spec": { "desired": "Rollback" }, "metadata": { "generation": 2 } }),
        );
        run_until(api, "RolledBack").await;
        assert_gone(api, 1);
        let old = api.get(&format!("{POOLS}/old")).unwrap();
        assert!(old["spec"]["disabled"] != true, "the old pool is closed {when}");
    })
    .await;
}

/// An empty block of the old range with an affinity to node a.
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

/// Thousands of blocks are a hundred batches: a batch reads its blocks by name, and remembers the released ones.
#[tokio::test]
async fn blocks_are_released_in_batches_without_a_list_for_each() {
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
            "a batch is small, so that no pass takes minutes"
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
    // At its start the coordinator reads one page and a few objects of both kinds.
    assert!(lists.len() <= 4, "{lists:#?}");
    run_until(&api, "Completed").await;
    assert_gone(&api, 0);
    assert_eq!(api.below(AFFINITIES).len(), 2, "the affinities of the new range");
}

/// An allocation that races the block's release is not lost: it comes between the read of the block and the write.
#[tokio::test]
async fn an_address_allocated_during_the_release_keeps_its_block() {
    let api = cluster("Ignore");
    let block = format!("{BLOCKS}/10-244-0-0-26");
    let mut allocations = vec![Value::Null; 64];
    allocations[7] = json!(0);
    let taken = json!({ "spec": {
        "allocations": allocations, "attributes": [{ "handle_id": "another-program", "secondary": {} }] } });
    api.edit_after(&format!("PATCH {AFFINITIES}/a-10-244-0-0-26"), &block, taken);
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
    let object = api.get(&block).expect("the block with the allocated address");
    assert_eq!(object["spec"]["allocations"][7], 0);
    assert!(object["spec"]["deleted"].is_null(), "{object:#}");
    assert!(api.get(&format!("{POOLS}/old")).is_some(), "its pool is deleted");
    let status = &api.get(MIGRATION).unwrap()["status"];
    assert_eq!(status["reason"], "Leftovers");
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("10.244.0.7") && message.contains("another-program"),
        "{message}"
    );
}

#[tokio::test]
async fn in_mode_by_node_each_node_is_cordoned_while_its_pods_leave() {
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
async fn a_rollback_past_the_point_of_no_return_changes_nothing_and_resume_completes() {
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
    assert_eq!(status["reason"], "PastReturn", "{status:#}");
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

/// Agents report lost probes of the last moment late.
#[tokio::test]
async fn probes_lost_just_before_the_end_are_counted() {
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

/// The tunnel address of every node.
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

/// Forward, back, forward and back again: everything that has to be removed is removed.
#[tokio::test]
async fn a_second_change_of_direction_ends_as_one_rollback() {
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

/// A policy of the whole cluster allows only the new range by now: before a pod moves back, it has to allow both. The former
/// tunnel addresses are kept meanwhile.
#[tokio::test]
async fn a_rollback_waits_until_policies_allow_both_ranges() {
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
    assert_eq!(status["reason"], "ConfigurationFollowUp", "{status:#}");
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

/// The free addresses are unknown then: no former address returns, and none is exchanged.
#[tokio::test]
async fn a_malformed_block_is_named_before_a_pool_opens() {
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
    assert_eq!(status["reason"], "CalicoObjects", "{status:#}");
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
async fn a_rollback_restores_every_tunnel_address() {
    restores_tunnel_addresses(&cluster("Watch")).await;
}

/// Forward until the old pool is closed, then back: each tunnel gets its former address, which no pod could get meanwhile.
pub(super) async fn restores_tunnel_addresses(api: &FakeApi) {
    let before = tunnel_ends(api);
    until_closed(api, "old").await;
    assert!(tunnel_ends(api).iter().all(|end| end.starts_with("10.200.")));
    let story = back(api).await;
    assert_in_order(
        &story,
        &[
            "patch pool old open",
            "take off a",
            "take off b",
            "patch pool ipv4-10-200-0-0-16 closed",
            "release an end in 10-200-0-0-26",
        ],
    );
    assert_eq!(tunnel_ends(api), before);
}

#[tokio::test]
async fn a_released_tunnel_address_is_held_again_before_the_pool_opens() {
    restores_released_tunnel_addresses(&cluster("Watch")).await;
}

/// Forward until the former tunnel addresses are released in Calico's IPAM, then back.
pub(super) async fn restores_released_tunnel_addresses(api: &FakeApi) {
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
            "patch pool old open",
            "take off a",
            "take off b",
        ],
    );
    assert_eq!(tunnel_ends(api), before);
}

/// The writes of a rollback, to its end.
async fn back(api: &FakeApi) -> Vec<String> {
    desire(api, "Rollback");
    api.take_changes();
    run_until(api, "RolledBack").await;
    assert_gone(api, 1);
    story(&api.take_changes())
}

/// The whole new range is reserved: the migration cannot choose a tunnel address.
#[tokio::test]
async fn calico_chooses_tunnel_addresses_when_the_migration_cannot() {
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
async fn a_rollback_names_the_users_changes_at_its_end() {
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
        "places that still contain 10.200.0.0/16 and must be changed back: 1,",
        "CALICO_IPV4POOL_CIDR: found 10.200.0.0/16, needed 10.244.0.0/16",
    ] {
        assert!(message.contains(words), "{message}");
    }
}

#[tokio::test]
async fn a_paused_migration_writes_nothing_unless_no_pool_is_open() {
    let api = cluster("Ignore");
    api.edit(MIGRATION, &json!({ "spec": { "desired": "Pause" } }));
    for _ in 0..10 {
        turn(&api).await;
    }
    assert_eq!(story(&api.take_changes()), [""; 0]);
    assert_eq!(api.get(MIGRATION).unwrap()["status"]["reason"], "Paused");
    // Only when another user closes the only pool: without one no pod would start.
    api.edit(&format!("{POOLS}/old"), &json!({ "spec": { "disabled": true } }));
    turn(&api).await;
    assert_eq!(story(&api.take_changes()), ["patch pool old open"]);
}
