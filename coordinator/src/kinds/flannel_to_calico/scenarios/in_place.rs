//! Migrations in place: no pod is evicted, every live pod's address is imported into Calico's IPAM before Calico starts, and
//! released when its pod is gone.

use std::collections::BTreeMap;

use engine::cni::CniDirectory;
use flannel_to_calico::facts::{Bridge, CalicoObjects, Found, HostFacts, LegacyPod, ReversePathFilter};
use serde_json::{Value, json};

use super::back::ask;
use super::release::put_web;
use super::{
    CALICO_GROUP, MIGRATION, assert_in_order, assert_same, cluster, crash_after, has_calicos_pod, number_of,
    run_to_the_end, run_until, steady, story, world_moves,
};
use crate::fake_api::FakeApi;
use crate::memory::Memory;
use crate::pass::pass;
use crate::walk;

/// Path at which the test records that a pod of flannel lives on a node.
pub(super) fn mark(node: &str) -> String {
    format!("/test/living/{node}")
}

/// Whether a pod of flannel lives on this node. A drained node has no such record.
pub(super) fn lives(api: &FakeApi, node: &str) -> bool {
    api.get(&mark(node)).is_some()
}

/// Path at which the test records that a node has a leftover entry of a flannel pod, whose address another pod has by now.
fn leftover(node: &str) -> String {
    format!("/test/left/{node}")
}

fn leftover_address(node: &str) -> String {
    format!("10.244.{}.30", number_of(node))
}

/// The leftover entry as the agent reports it.
fn leftover_pod(api: &FakeApi, node: &str) -> Option<LegacyPod> {
    api.get(&leftover(node)).map(|_| LegacyPod {
        other_link: None,
        namespace: "default".to_owned(),
        name: format!("gone-{node}"),
        sandbox: format!("Gone-{node}"),
        link: String::new(),
        addresses: vec![leftover_address(node).parse().unwrap()],
        attached: false,
        routed: false,
        mac: String::new(),
        pod_link: None,
        obstacle: None,
        not_taken_within: None,
    })
}

/// The agent's report about the host; `None` for tests without it.
pub(super) fn facts(api: &FakeApi, node: &str, phase: &str) -> Option<Value> {
    api.get("/test/in-place")?;
    let number = number_of(node);
    let living = lives(api, node).then(|| LegacyPod {
        other_link: None,
        namespace: "default".to_owned(),
        name: format!("log-{node}"),
        sandbox: format!("Sandbox-{node}"),
        link: "veth1".to_owned(),
        addresses: vec![format!("10.244.{number}.9").parse().unwrap()],
        attached: true,
        routed: true,
        mac: String::new(),
        pod_link: None,
        obstacle: None,
        not_taken_within: None,
    });
    let bridge = Bridge {
        name: "cni0".to_owned(),
        mtu: 1450,
        addresses: vec![format!("10.244.{number}.1/24").parse().unwrap()],
        ports: Vec::new(),
        answers_for_pods: false,
        answered: Vec::new(),
        open: false,
    };
    let facts = HostFacts {
        plugin: None,
        foreign_rules: None,
        runtime: None,
        lacks_nf_tables: false,
        cni: CniDirectory::read("/etc/cni/net.d", Vec::new()),
        vxlan_devices: Vec::new(),
        bridge: if phase == "Calico" {
            Found::Absent
        } else {
            Found::Present(bridge)
        },
        legacy_pods: living
            .into_iter()
            .chain(super::traffic::legacy_pod(api, node))
            .chain(leftover_pod(api, node))
            .collect(),
        legacy_problems: Vec::new(),
        calico: CalicoObjects {
            pods: has_calicos_pod(api, node)
                .then(|| "cali1".to_owned())
                .into_iter()
                .collect(),
            subnet_routes: super::ipv6::subnet_routes(api, node),
            ..CalicoObjects::default()
        },
        direct_routes: Vec::new(),
        reverse_path_filter: ReversePathFilter {
            all: 1,
            interfaces: BTreeMap::new(),
        },
        subnet_environment: Found::Absent,
        flanneld_running: false,
        unread_processes: Vec::new(),
        unread_tables: Vec::new(),
        firewall: Vec::new(),
        leases: 0,
        delegates: 0,
        detected_address: None,
        detected_ipv6_address: None,
        uplink: None,
        bridge_nf_call_iptables: None,
    };
    Some(serde_json::to_value(facts).unwrap())
}

pub(super) fn in_place() -> FakeApi {
    let api = cluster();
    api.put("/test/in-place", json!({}));
    for node in ["a", "b"] {
        api.put(&mark(node), json!({}));
    }
    api.edit(
        MIGRATION,
        &json!({ "spec": { "flannelToCalico": { "strategy": "InPlace", "legacyPods": "Keep" } } }),
    );
    api.take_changes();
    api
}

/// Runs passes until every node is on Calico beside its live pods.
async fn until_mixed(api: &FakeApi) -> Result<(), String> {
    run_until(api, "Mixed").await
}

/// Another owner has the address of a live pod: the node is not swapped, and the message names address and owner.
#[tokio::test]
async fn an_address_of_another_owner_stops_the_node_and_is_named() {
    let api = in_place();
    let mut memory = Memory::default();
    let block = format!("{CALICO_GROUP}/ipamblocks/10-244-1-0-26");
    for _ in 0..60 {
        let _ = pass(&api.context(), &api.cache(), &mut memory).await;
        if let Some(found) = api.get(&block)
            && found["spec"]["attributes"]
                .as_array()
                .is_some_and(|all| all.len() == 1)
        {
            let mut spec = found["spec"].clone();
            spec["allocations"][9] = json!(1);
            let attributes = spec["attributes"].as_array_mut().unwrap();
            attributes.push(json!({ "handle_id": "k8s-pod-network.another", "secondary": {} }));
            let free = spec["unallocated"].as_array_mut().unwrap();
            free.retain(|place| *place != json!(9));
            api.edit(&block, &json!({ "spec": spec }));
        }
        world_moves(&api);
    }
    let node = api.get(&super::node_migration("a")).unwrap();
    assert_eq!(
        node["spec"]["flannelToCalico"]["goal"], "Held",
        "swapped in spite of the conflict: {node}"
    );
    assert_eq!(node["spec"]["step"]["reason"], "CalicoObjects");
    let status = api.get(MIGRATION).unwrap()["status"].clone();
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("10.244.1.9") && message.contains("k8s-pod-network.another"),
        "{message}"
    );
}

/// Legacy pods are evicted, one node after the other, and no pod of Calico.
#[tokio::test]
async fn legacy_pods_are_restarted_on_request_and_the_migration_completes() {
    let api = in_place();
    api.edit(
        MIGRATION,
        &json!({ "spec": { "flannelToCalico": { "legacyPods": "Restart" } } }),
    );
    let mut memory = Memory::default();
    for _ in 0..200 {
        let _ = pass(&api.context(), &api.cache(), &mut memory).await;
        // An evicted pod has left its bridge; its successor is on Calico.
        for node in ["a", "b"] {
            if api
                .get(&format!("/api/v1/namespaces/default/pods/log-{node}"))
                .is_none()
            {
                api.remove(&mark(node));
            }
        }
        world_moves(&api);
        if api.get(MIGRATION).unwrap()["status"]["phase"] == "Completed" {
            break;
        }
    }
    let status = api.get(MIGRATION).unwrap()["status"].clone();
    assert_eq!(status["phase"], "Completed", "{status}");
    let story = story(&api.take_changes());
    // First every node is on Calico, then pods restart node by node.
    assert_in_order(&story, &["goal b Mixed", "evict log-a", "evict log-b"]);
    assert!(!story.iter().any(|line| line.starts_with("cordon")), "{story:#?}");
}

/// One budget, or one policy, does not delay restarts on other nodes.
#[tokio::test]
async fn a_refused_eviction_does_not_delay_other_nodes() {
    let api = in_place();
    api.edit(
        MIGRATION,
        &json!({ "spec": { "flannelToCalico": { "legacyPods": "Restart" } } }),
    );
    let [of_a, of_b] = ["a", "b"].map(|node| format!("/api/v1/namespaces/default/pods/log-{node}"));
    api.deny(&format!("{of_a}/eviction"), "not now");
    let mut memory = Memory::default();
    for _ in 0..200 {
        let _ = pass(&api.context(), &api.cache(), &mut memory).await;
        if api.get(&of_b).is_none() {
            break;
        }
        world_moves(&api);
    }
    let status = api.get(MIGRATION).unwrap()["status"].clone();
    assert_eq!(api.get(&of_b), None, "{status}");
    assert!(api.get(&of_a).is_some(), "{status}");
    let _ = pass(&api.context(), &api.cache(), &mut memory).await;
    let message = api.get(MIGRATION).unwrap()["status"]["message"].to_string();
    assert!(message.contains("log-a"), "{message}");
}

/// A leftover entry of a flannel pod has an address that Calico has assigned to another pod since: that pod stays, and pods of
/// other nodes do not wait.
#[tokio::test]
async fn a_pod_with_a_reused_address_is_not_restarted() {
    let api = in_place();
    api.edit(
        MIGRATION,
        &json!({ "spec": { "flannelToCalico": { "legacyPods": "Restart" } } }),
    );
    api.put(&leftover("a"), json!({}));
    put_web(&api, "a", &leftover_address("a"));
    let mut memory = Memory::default();
    for number in 0..200 {
        if number == 150 {
            api.remove(&leftover("a"));
        }
        let _ = pass(&api.context(), &api.cache(), &mut memory).await;
        for node in ["a", "b"] {
            if api
                .get(&format!("/api/v1/namespaces/default/pods/log-{node}"))
                .is_none()
            {
                api.remove(&mark(node));
            }
        }
        world_moves(&api);
        if number == 149 {
            let status = api.get(MIGRATION).unwrap()["status"].clone();
            assert_eq!(status["phase"], "Mixed", "{status}");
            assert!(!lives(&api, "a") && !lives(&api, "b"), "{status}");
        }
    }
    let status = api.get(MIGRATION).unwrap()["status"].clone();
    assert_eq!(status["phase"], "Completed", "{status}");
    let story = story(&api.take_changes());
    assert_in_order(&story, &["evict log-a", "evict log-b"]);
    assert!(!story.contains(&"evict web-a".to_owned()), "{story:#?}");
}

/// The same during a rollback: the pod is on Calico, and is evicted.
#[tokio::test]
async fn a_pod_with_a_reused_address_is_evicted_during_a_rollback() {
    let api = in_place();
    until_mixed(&api).await.unwrap();
    api.put(&leftover("a"), json!({}));
    put_web(&api, "a", &leftover_address("a"));
    world_moves(&api);
    api.take_changes();
    ask(&api, &json!({ "desired": "Rollback" }));
    run_until(&api, "RolledBack").await.unwrap();
    let story = story(&api.take_changes());
    assert_in_order(&story, &["evict web-a", "label a none"]);
    assert!(!story.contains(&"evict log-a".to_owned()), "{story:#?}");
}

/// A pod with an endless grace period does not delay restarts on other nodes.
#[tokio::test]
async fn an_endless_pod_does_not_delay_other_nodes() {
    let api = in_place();
    api.edit(
        MIGRATION,
        &json!({ "spec": { "flannelToCalico": { "legacyPods": "Restart" } } }),
    );
    let [of_a, of_b] = ["a", "b"].map(|node| format!("/api/v1/namespaces/default/pods/log-{node}"));
    let grace = jiff::SignedDuration::from_secs(i64::from(i32::MAX));
    let asked = jiff::Timestamp::now() - jiff::SignedDuration::from_hours(1);
    api.edit(
        &of_a,
        &json!({ "metadata": { "deletionTimestamp": asked + grace, "deletionGracePeriodSeconds": grace.as_secs() } }),
    );
    let mut memory = Memory::default();
    for _ in 0..200 {
        let _ = pass(&api.context(), &api.cache(), &mut memory).await;
        if api.get(&of_b).is_none() {
            break;
        }
        world_moves(&api);
    }
    let status = api.get(MIGRATION).unwrap()["status"].clone();
    assert_eq!(api.get(&of_b), None, "{status}");
    assert!(api.get(&of_a).is_some(), "{status}");
}

/// Handles in one block, by index.
fn allocated(api: &FakeApi, block: &str) -> BTreeMap<usize, String> {
    let spec = api.get(&format!("{CALICO_GROUP}/ipamblocks/{block}")).unwrap()["spec"].clone();
    let places = spec["allocations"].as_array().unwrap().iter().enumerate();
    places
        .filter_map(|(place, index)| {
            let attribute = &spec["attributes"][usize::try_from(index.as_u64()?).unwrap()];
            Some((place, attribute["handle_id"].as_str().unwrap().to_owned()))
        })
        .collect()
}

#[tokio::test]
async fn no_pod_is_evicted_and_all_addresses_are_imported_before_calico_starts() {
    let api = in_place();
    until_mixed(&api).await.unwrap();
    let story = story(&api.take_changes());
    let in_order = [
        "annotate a",
        "label a none",
        "goal a Held",
        "post ipamhandles k8s-pod-network.sandbox-a",
        "goal a Swapped",
        "label a calico",
        "goal a Mixed",
        "probe a",
        "label b none",
    ];
    assert_in_order(&story, &in_order);
    for word in ["cordon", "evict", "delete kube-flannel-ds", "goal a Detached"] {
        assert!(
            !story.iter().any(|line| line.starts_with(word)),
            "{word}: {story:#?}"
        );
    }
    assert_eq!(
        allocated(&api, "10-244-1-0-26"),
        BTreeMap::from([
            (0, "vxlan-tunnel-addr-a".to_owned()),
            (1, "replumb-reserved-a".to_owned()),
            (9, "k8s-pod-network.Sandbox-a".to_owned()),
        ])
    );
    assert_eq!(
        allocated(&api, "10-244-1-192-26"),
        BTreeMap::from([(63, "replumb-reserved-a".to_owned())]),
        "the last address of the podCIDR"
    );
    let reserved = api
        .get(&format!("{CALICO_GROUP}/ipamhandles/replumb-reserved-a"))
        .unwrap();
    assert_eq!(
        reserved["spec"]["block"],
        json!({ "10.244.1.0/26": 1, "10.244.1.192/26": 1 })
    );
}

#[tokio::test]
async fn the_last_legacy_pod_releases_all_imported_addresses() {
    let api = in_place();
    until_mixed(&api).await.unwrap();
    api.remove(&mark("a"));
    let mut memory = Memory::default();
    for _ in 0..20 {
        let _ = pass(&api.context(), &api.cache(), &mut memory).await;
        world_moves(&api);
    }
    assert_eq!(
        api.get(MIGRATION).unwrap()["status"]["phase"],
        "Mixed",
        "a pod lives on node b"
    );
    assert_eq!(
        allocated(&api, "10-244-1-0-26").len(),
        1,
        "only the tunnel's address"
    );
    assert_eq!(allocated(&api, "10-244-1-192-26"), BTreeMap::new());
    assert_eq!(allocated(&api, "10-244-2-0-26").len(), 3);
    for handle in ["k8s-pod-network.sandbox-a", "replumb-reserved-a"] {
        assert_eq!(api.get(&format!("{CALICO_GROUP}/ipamhandles/{handle}")), None);
    }
    api.remove(&mark("b"));
    run_to_the_end(&api).await.unwrap();
}

/// Adopted pods run on after the end: once the agent reports them no longer, their addresses are released.
#[tokio::test]
async fn after_the_end_addresses_of_ended_pods_are_released() {
    let api = in_place();
    until_mixed(&api).await.unwrap();
    let (block, object) = ("10-244-1-0-26", super::node_migration("a"));
    let imported = api.get(&object).unwrap()["spec"]["flannelToCalico"]["importedAddresses"].clone();
    assert_eq!(imported.as_array().map(Vec::len), Some(3), "{imported}");
    // As if the pods of node a had been adopted: the migration ends, and the addresses stay.
    api.edit(MIGRATION, &json!({ "status": { "phase": "Completed" } }));
    let mut memory = Memory::default();
    pass(&api.context(), &api.cache(), &mut memory).await.unwrap();
    assert_eq!(allocated(&api, block).len(), 3, "the pod runs");
    api.remove(&mark("a"));
    world_moves(&api);
    // Set to null first: a patch would merge both states of the bridge.
    for facts in [Value::Null, facts(&api, "a", "Calico").unwrap()] {
        let report = json!({ "status": { "flannelToCalico": { "facts": facts } } });
        api.edit(&object, &report);
    }
    pass(&api.context(), &api.cache(), &mut memory).await.unwrap();
    assert_eq!(
        allocated(&api, block).len(),
        3,
        "the next upkeep is after a minute"
    );
    let mut memory = Memory::default();
    pass(&api.context(), &api.cache(), &mut memory).await.unwrap();
    assert_eq!(allocated(&api, block).len(), 1, "only the tunnel's address");
    let left = &api.get(&object).unwrap()["spec"]["flannelToCalico"]["importedAddresses"];
    assert!(left.as_array().is_none_or(Vec::is_empty), "{left}");
    assert_eq!(
        api.get(&format!("{CALICO_GROUP}/ipamhandles/replumb-reserved-a")),
        None
    );
}

#[tokio::test]
async fn a_crash_after_any_write_leads_to_the_same_end() {
    let start = async || in_place();
    let undisturbed = walk::undisturbed(start, async |api| until_mixed(api).await.unwrap()).await;
    let writes = undisturbed.changes.len();
    assert!(writes > 40, "{writes} writes");
    let end = lasting(undisturbed.api.everything());
    walk::crash_after_each(0..writes, start, crash_after, async |api, when| {
        until_mixed(api)
            .await
            .unwrap_or_else(|error| panic!("{when}: {error}"));
        assert_same(&end, &lasting(api.everything()), when);
    })
    .await;
}

/// Without the probe pod, which the pass after the last deletes.
fn lasting(mut all: BTreeMap<String, Value>) -> BTreeMap<String, Value> {
    all.retain(|path, _| !path.contains("/pods/replumb-probe-"));
    steady(all)
}
