//! One tenant creates thousands of Services during the exchange: whole passes on an API server in memory, which counts reads and
//! writes. Lost requests are not tested here; `tests/tests/api_services.rs` has single exchanges on the real API server.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use api::migration::{CurrentStage, MigrationPhase, ServiceAddresses, ServiceCidrStatus};
use api::{MigrationStatus, names};
use engine::decision::Direction;
use rstest::rstest;
use serde_json::{Value, json};
use service_cidr::decide::LIGHT_AT_ONCE;
use service_cidr::exchange::{ROLE_LABEL, Role};
use service_cidr::facts::ApiServer;
use service_cidr::host::ServicePort;
use service_cidr::objects::{BEFORE_ANNOTATION, is_helper};
use service_cidr::settings::Settings;
use service_cidr::step::Stage;

use super::super::ReadCache;
use super::super::assigned_addresses;
use crate::context::Context;
use crate::fake_api::{Edit, FakeApi, MIGRATION};
use crate::memory::Memory;
use crate::pass::pass;

const SERVICES: &str = "/api/v1/namespaces";
pub(super) const RANGES: &str = "/apis/networking.k8s.io/v1/servicecidrs";

pub(super) struct World {
    pub api: FakeApi,
    pub context: Context,
    memory: Memory,
    /// The API servers; empty without facts about them.
    api_servers: BTreeMap<IpAddr, ApiServer>,
}

fn settings() -> Settings {
    let sourced = |value: Value| json!({ "value": value, "source": "User" });
    serde_json::from_value(json!({
        "from": sourced(json!(["10.96.0.0/12"])), "to": sourced(json!(["172.16.0.0/12"])),
        "domain": sourced(json!("cluster.local")), "bridgePolicy": sourced(json!("Local")),
    }))
    .unwrap()
}

fn path(name: &str) -> String {
    let (namespace, name) = name.split_once('/').unwrap();
    format!("{SERVICES}/{namespace}/services/{name}")
}

impl World {
    pub(super) fn new() -> Self {
        let api = FakeApi::default();
        let resources = json!([{ "name": "servicecidrs", "kind": "ServiceCIDR", "namespaced": false, "singularName": "", "verbs": [] }]);
        api.put(
            "/apis/networking.k8s.io/v1",
            json!({ "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "networking.k8s.io/v1", "resources": resources }),
        );
        let mut known = ServiceCidrStatus::of(settings());
        known.stage = Some(CurrentStage {
            name: Stage::Exchange,
            since: jiff::Timestamp::now(),
            direction: Direction::Forward,
        });
        let of_kubernetes: ServiceAddresses =
            serde_json::from_value(json!({ "old": ["10.96.0.1"], "new": ["172.16.0.1"] })).unwrap();
        known
            .addresses
            .insert("default/kubernetes".to_owned(), of_kubernetes);
        let status = MigrationStatus {
            phase: MigrationPhase::Rolling,
            started_at: Some("2026-03-01T10:00:00Z".parse().unwrap()),
            service_cidr: Some(known),
            saved_state: [("pods not Ready".to_owned(), "[]".to_owned())].into(),
            ..MigrationStatus::default()
        };
        let spec = json!({
            "serviceCidr": { "to": ["172.16.0.0/12"], "servicesAtOnce": 2 }, "desired": "Run", "gates": { "traffic": "Ignore" },
        });
        api.put_migration(&spec, &status);
        let context = api.context();
        let world = Self {
            api,
            context,
            memory: Memory::default(),
            api_servers: BTreeMap::new(),
        };
        for (name, range) in [("kubernetes", "10.96.0.0/12"), ("replumb-new", "172.16.0.0/12")] {
            world.range(name, range, true);
        }
        // The Services that others wait for are migrated.
        world.service("default/kubernetes", "172.16.0.1");
        world
    }

    /// Puts a `ServiceCIDR`. One that is not Ready is being deleted, and keeps its addresses.
    pub(super) fn range(&self, name: &str, range: &str, is_ready: bool) {
        let condition = json!({ "type": "Ready", "status": if is_ready { "True" } else { "False" } });
        let mut object = json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": { "name": name },
            "spec": { "cidrs": [range] }, "status": { "conditions": [condition] },
        });
        if !is_ready {
            object["metadata"]["deletionTimestamp"] = json!("2026-03-01T12:00:00Z");
        }
        self.api.put(&format!("{RANGES}/{name}"), object);
    }

    /// A Ready Node, with its agent.
    pub(super) fn node(&self, node: &str) {
        self.api.put(
            &format!("/api/v1/nodes/{node}"),
            json!({
                "apiVersion": "v1", "kind": "Node", "metadata": { "name": node },
                "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
            }),
        );
        let (namespace, agent) = (names::NAMESPACE, format!("agent-{node}"));
        let owner = json!({ "apiVersion": "apps/v1", "kind": "DaemonSet", "name": names::AGENT, "uid": "agent", "controller": true });
        self.api.put(
            &format!("/api/v1/namespaces/{namespace}/pods/{agent}"),
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": { "name": agent, "namespace": namespace, "ownerReferences": [owner] },
                "spec": { "nodeName": node, "hostNetwork": true, "containers": [] },
                "status": { "phase": "Running", "conditions": [{ "type": "Ready", "status": "True" }] },
            }),
        );
    }

    pub(super) fn service(&self, name: &str, address: &str) {
        let (namespace, short) = name.split_once('/').unwrap();
        self.api.put(
            &path(name),
            json!({
                "apiVersion": "v1", "kind": "Service",
                "metadata": { "namespace": namespace, "name": short, "creationTimestamp": "2026-03-01T11:00:00Z" },
                "spec": {
                    "type": "ClusterIP", "clusterIP": address, "clusterIPs": [address], "ipFamilies": ["IPv4"],
                    "ports": [{ "port": 80, "protocol": "TCP", "targetPort": 80 }], "selector": { "app": short },
                },
            }),
        );
    }

    /// A Service without a selector, with an endpoint by its owner.
    pub(super) fn by_hand(&self, name: &str, address: &str) {
        self.service(name, address);
        self.api
            .edit(&path(name), &json!({ "spec": { "selector": null } }));
        self.serve(name);
    }

    /// Adds a serving endpoint to this Service.
    fn serve(&self, name: &str) {
        let (namespace, short) = name.split_once('/').unwrap();
        self.api.put(
            &format!("/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices/{short}-1"),
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": { "namespace": namespace, "name": format!("{short}-1"), "labels": { "kubernetes.io/service-name": short } },
                "addressType": "IPv4", "endpoints": [{ "addresses": ["10.244.0.9"], "conditions": { "ready": true } }],
                "ports": [{ "port": 80, "protocol": "TCP", "name": "" }],
            }),
        );
    }

    fn crowd(&self, count: usize) {
        for number in 0..count {
            let address = format!("10.97.{}.{}", number / 250, number % 250 + 1);
            self.service(&format!("crowd/many-{number:05}"), &address);
        }
    }

    /// Adds an API server with this range.
    pub(super) fn api_server_serves(&mut self, range: &str) {
        let server = ApiServer {
            ranges: Ok(vec![range.parse().unwrap()]),
            addresses: Ok(["10.96.0.1", "172.16.0.1"]
                .map(|address| address.parse().unwrap())
                .into()),
        };
        self.api_servers = BTreeMap::from([("192.0.2.1".parse().unwrap(), server)]);
    }

    /// Another coordinator becomes the leader, with an empty memory.
    pub(super) fn restart(&mut self) {
        self.memory = Memory::default();
    }

    /// The digest of the agents' current question.
    pub(super) fn asked(&mut self) -> Option<String> {
        let question = self.memory.kinds.of::<ReadCache>().expected.question();
        question.map(service_cidr::host::Question::digest)
    }

    /// The ports of the agents' current question.
    pub(super) fn asked_about(&mut self) -> Vec<ServicePort> {
        let asked = self.memory.kinds.of::<ReadCache>().expected.ports();
        asked
            .service_ports
            .iter()
            .chain(&asked.load_balancer_ports)
            .cloned()
            .collect()
    }

    /// Lets every lagging node have lacked its rules for this much longer.
    pub(super) fn lagging_for(&mut self, long: Duration) {
        self.memory.kinds.of::<ReadCache>().lagging.age(long);
    }

    /// Lets this node have been silent for this time.
    pub(super) fn silent_for(&mut self, node: &str, long: Duration) {
        let silent = &mut self.memory.kinds.of::<ReadCache>().silent;
        silent.keep([node.to_owned()]);
        silent.age(long);
    }

    pub(super) async fn pass(&mut self) {
        let cache = self.api.cache();
        self.memory
            .kinds
            .of::<ReadCache>()
            .set_api_servers(self.api_servers.clone())
            .await;
        pass(&self.context, &cache, &mut self.memory).await.unwrap();
    }

    /// Services of a namespace without helpers, by whether they have an address of the new range.
    pub(super) fn count(&self, namespace: &str, is_there: bool) -> usize {
        let all = self.api.below(&format!("{SERVICES}/{namespace}/services"));
        let own = all.iter().filter(|service| !is_helper(service));
        own.filter(|service| {
            let address = service["spec"]["clusterIP"].as_str().unwrap_or_default();
            address.starts_with("172.") == is_there
        })
        .count()
    }

    pub(super) fn status(&self) -> MigrationStatus {
        serde_json::from_value(self.api.get(MIGRATION).unwrap()["status"].clone()).unwrap()
    }

    /// Names of the Services that were written since the last call.
    fn written(&self) -> BTreeSet<String> {
        let changes = self.api.take_changes();
        changes
            .iter()
            .filter_map(|(call, _)| call.split_once("/services/"))
            .map(|(_, name)| name.to_owned())
            .collect()
    }
}

#[tokio::test]
async fn a_crowd_without_endpoints_is_migrated_in_batches_without_lists() {
    let mut world = World::new();
    // The helper of default/kubernetes is created.
    world.pass().await;
    world.crowd(1000);
    for (name, address) in [("shop/web", "10.96.0.5"), ("shop/db", "10.96.0.6")] {
        world.service(name, address);
        world.serve(name);
    }
    world.api.take_reads();
    world.pass().await;
    assert_eq!(
        world.count("crowd", true),
        LIGHT_AT_ONCE,
        "the limit of concurrent Services without endpoints"
    );
    let of_shop = world.api.below(&format!("{SERVICES}/shop/services"));
    let bridges = of_shop.iter().filter(|service| is_helper(service)).count();
    assert_eq!(bridges, 2, "both other Services start in the first pass");
    for _ in 0..20 {
        world.pass().await;
    }
    assert_eq!(world.count("crowd", true), 1000);
    let reads = world.api.take_reads();
    let of_all = [
        "/api/v1/services?",
        "/apis/discovery.k8s.io/v1/endpointslices?",
        "/ipaddresses?",
    ];
    let is_of_all = |read: &&String| of_all.iter().any(|list| read.contains(list));
    let lists: Vec<&String> = reads.iter().filter(is_of_all).collect();
    assert_eq!(lists, Vec::<&String>::new());
    // An observed Service is not read again.
    world.pass().await;
    world.api.take_reads();
    world.pass().await;
    let again: Vec<String> = world
        .api
        .take_reads()
        .into_iter()
        .filter(|read| read.contains("/namespaces/crowd/"))
        .collect();
    assert_eq!(again, Vec::<String>::new());
    // Each Service keeps both addresses: a helper has the old one.
    let helpers = world.api.below(&format!("{SERVICES}/crowd/services"));
    assert_eq!(helpers.iter().filter(|service| is_helper(service)).count(), 1000);
}

#[tokio::test]
async fn endpoints_of_a_migrated_service_are_read_only_for_copies() {
    let mut world = World::new();
    for (name, address) in [("shop/web", "10.96.0.5"), ("shop/by-hand", "10.96.0.6")] {
        world.service(name, address);
    }
    let without = json!({ "spec": { "selector": null } });
    world.api.edit(&path("shop/by-hand"), &without);
    for _ in 0..10 {
        world.pass().await;
    }
    assert_eq!(world.count("shop", true), 2);
    world.api.take_reads();
    for name in ["shop/web", "shop/by-hand"] {
        world.serve(name);
    }
    world.pass().await;
    let reads = world.api.take_reads();
    assert!(
        reads
            .iter()
            .any(|read| read.ends_with("/endpointslices/by-hand-1")),
        "{reads:?}"
    );
    assert!(!reads.iter().any(|read| read.contains("/web")), "{reads:?}");
    world.pass().await;
    let slices = world
        .api
        .below("/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices");
    assert_eq!(slices.len(), 3, "the helper has a copy: {slices:?}");
}

/// A tenant writes more endpoints for one Service than are copied for helpers, before the exchange and during it.
#[rstest]
#[case::before(0)]
#[case::during_the_exchange(2)]
#[tokio::test]
async fn a_service_with_too_many_endpoints_is_named_and_delays_no_other(#[case] passes: usize) {
    let mut world = World::new();
    world.by_hand("tenant/huge", "10.96.0.9");
    world.by_hand("shop/web", "10.96.0.5");
    for _ in 0..passes {
        world.pass().await;
    }
    let endpoint = |host: usize| {
        json!({
            "addresses": [format!("10.244.{}.{}", host / 250, host % 250 + 1)], "conditions": { "ready": true },
            "nodeName": "n".repeat(250), "zone": "z".repeat(60),
        })
    };
    for part in 0..4 {
        let endpoints: Vec<Value> = (0..1000).map(|host| endpoint(part * 1000 + host)).collect();
        world.api.put(
            &format!("/apis/discovery.k8s.io/v1/namespaces/tenant/endpointslices/huge-by-hand-{part}"),
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": {
                    "namespace": "tenant", "name": format!("huge-by-hand-{part}"), "labels": { "kubernetes.io/service-name": "huge" },
                },
                "addressType": "IPv4", "endpoints": endpoints, "ports": [{ "port": 80, "protocol": "TCP", "name": "" }],
            }),
        );
    }
    world.api.take_reads();
    for _ in 0..20 {
        world.pass().await;
    }
    assert_eq!(world.count("shop", true), 1, "{}", world.status().message);
    let reads = world.api.take_reads();
    let of_it = reads.iter().filter(|read| read.contains("huge-by-hand"));
    assert_eq!(of_it.count(), 0, "no such slice is read whole");
    let warnings = world.status().warnings.unwrap().items;
    let words = "Service tenant/huge: found 1";
    assert!(warnings.iter().any(|line| line.contains(words)), "{warnings:?}");
    world
        .api
        .edit(MIGRATION, &json!({ "spec": { "desired": "Rollback" } }));
    for _ in 0..30 {
        world.pass().await;
    }
    assert_eq!(world.count("shop", true), 0, "{}", world.status().message);
}

#[tokio::test]
async fn a_crowd_is_named_and_rolls_back() {
    let mut world = World::new();
    world.crowd(200);
    world.pass().await;
    world.memory.warnings.forget();
    world.pass().await;
    let warnings = world.status().warnings.unwrap();
    assert!(
        warnings
            .items
            .iter()
            .any(|line| line.starts_with("namespace crowd: ")),
        "{warnings:?}"
    );
    world
        .api
        .edit(MIGRATION, &json!({ "spec": { "desired": "Rollback" } }));
    let there = world.count("crowd", true);
    assert!(there > 0 && there < 200, "{there}");
    // The range that they move back to is open already.
    for _ in 0..6 {
        world.pass().await;
    }
    assert_eq!(world.count("crowd", true), 0);
    let all = world.api.below(&format!("{SERVICES}/crowd/services"));
    let helpers = all.iter().filter(|service| is_helper(service)).count();
    assert_eq!(helpers, there, "no client knows a new address of the others");
}

/// With two at a time, most Services have not started when the operator rolls back.
#[tokio::test]
async fn a_rollback_writes_nothing_for_services_that_had_not_started() {
    let mut world = World::new();
    let names: Vec<String> = (0..8).map(|number| format!("shop/web-{number}")).collect();
    for (number, name) in names.iter().enumerate() {
        world.by_hand(name, &format!("10.96.0.{}", number + 5));
    }
    for _ in 0..50 {
        if world.count("shop", true) == 0 {
            world.pass().await;
        }
    }
    assert_ne!(world.count("shop", true), 0, "{}", world.status().message);
    // Another coordinator continues.
    world.memory = Memory::default();
    world.pass().await;
    let untouched = assigned_addresses::untouched_services(&world.memory.records);
    assert!((4..8).contains(&untouched.len()), "{untouched:?}");
    world
        .api
        .edit(MIGRATION, &json!({ "spec": { "desired": "Rollback" } }));
    world.written();
    for _ in 0..30 {
        world.pass().await;
    }
    assert_eq!(world.count("shop", true), 0, "{}", world.status().message);
    let written = world.written();
    for name in &names {
        let (_, short) = name.split_once('/').unwrap();
        let is_written = written.iter().any(|written| written.contains(short));
        assert_eq!(is_written, !untouched.contains(name), "{name}: {written:?}");
    }
    assert_eq!(
        assigned_addresses::untouched_services(&world.memory.records),
        untouched
    );
}

#[tokio::test]
async fn a_service_edited_without_pause_is_migrated_and_delays_no_other() {
    let mut world = World::new();
    world.crowd(70);
    let mut number = 1000;
    for _ in 0..40 {
        number += 1;
        let ports = json!({ "spec": { "ports": [{ "port": number, "protocol": "TCP", "targetPort": 80 }] } });
        world.api.edit(&path("crowd/many-00000"), &ports);
        world.pass().await;
    }
    assert_eq!(world.count("crowd", true), 70);
    let service = world.api.get(&path("crowd/many-00000")).unwrap();
    assert_eq!(
        service["spec"]["ports"][0]["port"], number,
        "the owner's edit stays"
    );
}

#[tokio::test]
async fn a_service_made_an_external_name_or_deleted_delays_nothing() {
    let mut world = World::new();
    for number in 0..8 {
        let name = format!("shop/web-{number}");
        world.service(&name, &format!("10.96.0.{}", number + 5));
    }
    world.pass().await;
    world.service("tenant/turned", "10.96.9.9");
    world.serve("tenant/turned");
    world.pass().await;
    let name = json!({ "spec": { "type": "ExternalName", "externalName": "stranger.example" } });
    world.api.edit(&path("tenant/turned"), &name);
    world.service("tenant/gone", "10.96.9.10");
    world.pass().await;
    world.api.remove(&path("tenant/gone"));
    world.memory.warnings.forget();
    for _ in 0..4 {
        world.pass().await;
        world.memory.warnings.forget();
    }
    let status = world.status();
    assert_ne!(status.phase, MigrationPhase::Halted, "{}", status.message);
    // Next is the closing of the old range, which waits for the API servers' flag.
    let stage = status.service_cidr.unwrap().stage.unwrap().name;
    assert_eq!(
        (stage, status.progress.text.as_str()),
        (Stage::ControlPlane, "10/10 services")
    );
    let warnings = status.warnings.unwrap();
    assert!(
        warnings.items.iter().any(|line| line.contains("tenant/turned")),
        "{warnings:?}"
    );
    let turned = world.api.get(&path("tenant/turned")).unwrap();
    assert_eq!(turned["spec"]["externalName"], "stranger.example");
}

/// An owner creates Services faster than they exchange their addresses, with endpoints and without.
#[tokio::test]
async fn the_old_range_closes_while_services_are_created_without_pause() {
    let mut world = World::new();
    let mut status = world.status();
    let known = status.service_cidr.as_mut().unwrap();
    known.exchange_started_at = Some("2026-03-01T10:30:00Z".parse().unwrap());
    let status = json!({ "status": serde_json::to_value(&status).unwrap() });
    world.api.edit(MIGRATION, &status);
    world.api_server_serves("172.16.0.0/12");
    let mut number = 0;
    let is_closed = |world: &World| {
        let range = world.api.get(&format!("{RANGES}/kubernetes"));
        range.is_none_or(|range| range["metadata"]["deletionTimestamp"].is_string())
    };
    while !is_closed(&world) {
        for _ in 0..100 {
            number += 1;
            world.service(
                &format!("crowd/many-{number:05}"),
                &format!("10.97.{}.{}", number / 250, number % 250 + 1),
            );
        }
        world.service(
            &format!("crowd/web-{number:05}"),
            &format!("10.98.0.{}", number / 100),
        );
        world.serve(&format!("crowd/web-{number:05}"));
        world.pass().await;
        assert!(number < 1000, "the range stays open: {}", world.status().message);
    }
    // The old range is being deleted, and still has its addresses.
    world.range("kubernetes", "10.96.0.0/12", false);
    for _ in 0..30 {
        world.pass().await;
    }
    let all = world.api.below(&format!("{SERVICES}/crowd/services"));
    let left = |service: &&Value| {
        let name = service["metadata"]["name"].as_str().unwrap_or_default();
        name.starts_with("many-")
            && service["spec"]["clusterIP"]
                .as_str()
                .unwrap_or_default()
                .starts_with("10.")
    };
    let left = all
        .iter()
        .filter(|service| !is_helper(service))
        .filter(left)
        .count();
    assert_eq!(
        left,
        0,
        "Services without endpoints leave the range, and their helpers request none of its addresses: {}",
        world.status().message
    );
}

/// Source addresses are released after the deletion of the last helper, and no earlier.
#[tokio::test]
async fn helpers_are_deleted_and_the_rollback_ends() {
    let mut world = World::new();
    world.crowd(150);
    for _ in 0..4 {
        world.pass().await;
    }
    assert_eq!(world.count("crowd", true), 150);
    // A rollback releases the source addresses without a wait.
    world
        .api
        .edit(MIGRATION, &json!({ "spec": { "desired": "Rollback" } }));
    world.api_server_serves("10.96.0.0/12");
    for _ in 0..30 {
        world.pass().await;
    }
    let all = world.api.below(&format!("{SERVICES}/crowd/services"));
    assert_eq!(
        all.len(),
        150,
        "all helpers are deleted: {}",
        world.status().message
    );
    // The ServiceCIDR of the source range was deleted.
    let status = world.status();
    assert_eq!(status.phase, MigrationPhase::RolledBack, "{}", status.message);
}

/// At the end every agent's NodeMigration is written again, and for a moment no agent has answered.
#[tokio::test]
async fn released_addresses_are_not_requested_again_while_an_agent_is_silent() {
    let mut world = World::new();
    world.service("shop/web", "172.16.0.5");
    world.serve("shop/web");
    world.api_server_serves("172.16.0.0/12");
    world.api.remove(&format!("{RANGES}/replumb-new"));
    let range = json!({ "spec": { "cidrs": ["172.16.0.0/12"] } });
    world.api.edit(&format!("{RANGES}/kubernetes"), &range);
    let both: ServiceAddresses =
        serde_json::from_value(json!({ "old": ["10.96.0.5"], "new": ["172.16.0.5"] })).unwrap();
    let mut status = world.status();
    let known = status.service_cidr.as_mut().unwrap();
    known.addresses.insert("shop/web".to_owned(), both);
    known.stage.as_mut().unwrap().name = Stage::CleanUp;
    let status = json!({ "status": serde_json::to_value(&status).unwrap() });
    world.api.edit(MIGRATION, &status);
    // The node's agent has not reported.
    world.api.put(
        "/api/v1/nodes/a",
        json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": "a" },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        }),
    );
    world.api.take_changes();
    for _ in 0..3 {
        world.pass().await;
    }
    assert_eq!(world.written(), BTreeSet::new());
    let status = world.status();
    assert_eq!(status.phase, MigrationPhase::Completed, "{}", status.message);
}

#[tokio::test]
async fn a_target_address_of_another_service_is_replaced_by_a_free_one() {
    let mut world = World::new();
    world.service("shop/web", "10.96.0.5");
    world.serve("shop/web");
    world.service("tenant/thief", "172.16.0.5");
    for _ in 0..6 {
        world.pass().await;
    }
    let helper = world.api.get(&path("shop/web-replumb-new")).unwrap();
    assert_ne!(helper["spec"]["clusterIP"], "172.16.0.5");
    assert_ne!(world.status().phase, MigrationPhase::Halted);
    assert!(
        world.written().contains("web-replumb-bridge/status"),
        "the bridge answers"
    );
}

/// An owner, or a controller that writes to every Service, edits them between each read and each write: in memory, this is the
/// worst case of an edit at any moment.
#[tokio::test]
async fn services_edited_before_each_write_move_forward_and_back() {
    let label = |number: usize| json!({ "metadata": { "labels": { "edited": number.to_string() } } });
    let ports = |number: usize| json!({ "spec": { "ports": [{ "port": number + 1000, "protocol": "TCP", "targetPort": 80 }] } });
    let target = |number: usize| {
        let port = json!({ "port": 80, "protocol": "TCP", "targetPort": number + 1000 });
        json!({ "metadata": { "annotations": { "edited": number.to_string() } }, "spec": { "ports": [port] } })
    };
    let edits: [(&str, Edit); 3] = [("label", label), ("ports", ports), ("target", target)];
    let mut world = World::new();
    let mut names = Vec::new();
    for (place, (edit, of)) in edits.into_iter().enumerate() {
        for (served, third) in [("silent", 1), ("served", 2)] {
            let name = format!("tenant/{edit}-{served}");
            world.service(&name, &format!("10.96.{third}.{}", place + 5));
            // The owner writes the endpoints, and those of the helpers are copies.
            let spec = json!({ "spec": { "selector": null } });
            world.api.edit(&path(&name), &spec);
            if served == "served" {
                world.serve(&name);
            }
            world.api.edit_before_each_change(&path(&name), of);
            for role in Role::ALL {
                let helper = path(&format!("{name}-replumb-{}", role.as_str()));
                world.api.edit_before_each_change(&helper, label);
            }
            names.push(name);
        }
    }
    let are_at = |world: &World, begin: &str| {
        let at = |name: &String| world.api.get(&path(name)).unwrap()["spec"]["clusterIP"].clone();
        let all: Vec<Value> = names.iter().map(at).collect();
        let is_there = |address: &Value| address.as_str().is_some_and(|address| address.starts_with(begin));
        all.iter().all(is_there)
    };
    let roles = |world: &World| -> BTreeSet<String> {
        let all = world.api.below(&format!("{SERVICES}/tenant/services"));
        let helpers = all.iter().filter(|service| is_helper(service));
        helpers
            .map(|helper| {
                helper["metadata"]["labels"][ROLE_LABEL]
                    .as_str()
                    .unwrap()
                    .to_owned()
            })
            .collect()
    };
    for (begin, helpers) in [("172.", vec!["old"]), ("10.", Vec::new())] {
        for _ in 0..60 {
            world.pass().await;
        }
        assert!(are_at(&world, begin), "{begin}: {}", world.status().message);
        assert_eq!(
            roles(&world),
            helpers.into_iter().map(str::to_owned).collect(),
            "{begin}: {}",
            world.status().message
        );
        world
            .api
            .edit(MIGRATION, &json!({ "spec": { "desired": "Rollback" } }));
    }
    for name in &names {
        let service = world.api.get(&path(name)).unwrap();
        let annotations = &service["metadata"]["annotations"];
        assert_eq!(annotations.get(BEFORE_ANNOTATION), None, "{service}");
        let edited = [&service["metadata"]["labels"], annotations].map(|words| !words["edited"].is_null());
        let port = service["spec"]["ports"][0]["port"].as_u64().unwrap();
        assert!(
            edited.contains(&true) || port > 1000,
            "the owner's edit stays: {service}"
        );
    }
}
