//! Services change their addresses on a real API server: released addresses, refusals, and a coordinator that is
//! killed or loses its address in between.
//!
//! Run by `cargo lab test`, or `cargo test -p lab --test api_services -- --ignored`.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test says that it failed by a panic"
)]

mod editor;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use api::{Migration, names};
use coordinator::kinds::service_cidr::apply::exchange::Exchange;
use coordinator::kinds::service_cidr::observed::{Observed, Seen, Subject};
use coordinator::kinds::service_cidr::service_index::ServiceStore;
use coordinator::kinds::service_cidr::view::service::{Around, observe};
use coordinator::kinds::service_cidr::whole_objects::Whole;
use coordinator::kinds::service_cidr::{ExchangeTimes, assigned_addresses};
use coordinator::records::Records;
use coordinator::write::WriteError;
use editor::{Edits, Patch, edited_before_each_change};
use engine::decision::Decision;
use http::{Method, Request};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{ListParams, PostParams};
use kube::client::Body;
use kube::{Api, Client};
use lab::apilab::ApiLab;
use lab::cluster::wait::{Observation, until};
use serde_json::{Value, json};
use service_cidr::assignment::AssignedAddresses;
use service_cidr::covers::covers;
use service_cidr::exchange::{Parts, ROLE_LABEL, Role, Step, decide, waits_for_source};
use service_cidr::objects::{BridgeFacts, BridgePolicy, Spare, differences};
use service_cidr::ranges::{DeletionEffect, ServiceCidr, deleted_together_with, fate, is_assignable};
use service_cidr::side::{Side, Sides};

const DOMAIN: &str = "cluster.local";
static GROUND: LazyLock<BridgeFacts> = LazyLock::new(|| BridgeFacts {
    policy: BridgePolicy::Local,
    node_addresses: vec!["192.0.2.11".parse().unwrap(), "192.0.2.12".parse().unwrap()],
});
/// Time limit on a busy machine.
const LIMIT: Duration = Duration::from_mins(1);
/// Maximum of passes until one Service has reached its goal: each is a step, or a wait of a tenth of a second.
/// Refused writes do not count.
const PASSES: usize = 600;
/// The pause after a refused write.
const PAUSE: Duration = Duration::from_millis(500);
/// Time limit for refused writes. The API server keeps the allocations of a failed write: an address for a minute, a
/// node port until the third run of its repair, which runs every three minutes.
const REFUSED: Duration = Duration::from_mins(11);

/// A namespace with a pod whose status says that it runs, and the new range.
struct Bench {
    lab: &'static ApiLab,
    client: Client,
    namespace: String,
}

impl Bench {
    async fn new(namespace: &str) -> Self {
        let lab = ApiLab::shared().unwrap();
        // The API server creates the other one.
        if namespace != "kube-system" {
            lab.namespace(namespace).await.unwrap();
        }
        let token = lab
            .token(names::NAMESPACE, names::COORDINATOR, None)
            .await
            .unwrap();
        let bench = Self {
            lab,
            // The coordinator's own client: its policies allow every exchange.
            client: lab.with_token(&token).await.unwrap(),
            namespace: namespace.to_owned(),
        };
        bench.range("replumb-test-new", &["172.30.0.0/16"]).await;
        let node = format!("{namespace}-node");
        lab.node(&node).await.unwrap();
        // No controller creates it here.
        bench.apply(&json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": "default", "namespace": namespace },
        }));
        bench.apply(&json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": { "name": "web-0", "namespace": namespace, "labels": { "app": "web" } },
            "spec": {
                "nodeName": node, "automountServiceAccountToken": false, "serviceAccountName": "default",
                "containers": [{ "name": "main", "image": "nothing" }],
            },
        }));
        let running = json!({ "status": {
            "phase": "Running", "podIP": "10.244.0.7", "podIPs": [{ "ip": "10.244.0.7" }],
            "conditions": [{ "type": "Ready", "status": "True" }],
        } });
        let (of_status, merge) = ("--subresource=status", "--type=merge");
        bench.kubectl(&[
            "patch",
            "pod",
            "web-0",
            of_status,
            merge,
            "-p",
            &running.to_string(),
        ]);
        bench
    }

    fn apply(&self, object: &Value) {
        self.create(object).unwrap();
    }

    fn create(&self, object: &Value) -> anyhow::Result<String> {
        let name = object["metadata"]["name"].as_str().unwrap();
        let file = self.lab.folder().join(format!("{}-{name}.json", self.namespace));
        std::fs::write(&file, object.to_string()).unwrap();
        self.lab.kubectl(&["create", "-f", &file.to_string_lossy()])
    }

    /// A `ServiceCIDR` that is Ready.
    async fn range(&self, name: &str, ranges: &[&str]) {
        let made = self.create(&json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": { "name": name }, "spec": { "cidrs": ranges },
        }));
        // The range that all tests use is created by the first of them.
        if let Err(error) = made {
            assert!(format!("{error:#}").contains("AlreadyExists"), "{error:#}");
        }
        until("the range to be Ready", LIMIT, self.lab.folder(), async || {
            let object = self.lab.kubectl(&["get", "servicecidr", name, "-o", "json"])?;
            Ok(if object.contains("Kubernetes Service CIDR is ready") {
                Observation::Done(())
            } else {
                Observation::NotYet(object)
            })
        })
        .await
        .unwrap();
    }

    /// Every `ServiceCIDR`, in the form of the decisions.
    fn ranges(&self) -> Vec<ServiceCidr> {
        let text = self.lab.kubectl(&["get", "servicecidr", "-o", "json"]).unwrap();
        let list: Value = serde_json::from_str(&text).unwrap();
        let items = list["items"].as_array().unwrap().iter();
        items
            .map(|cidr| ServiceCidr {
                name: cidr["metadata"]["name"].as_str().unwrap().to_owned(),
                ranges: serde_json::from_value(cidr["spec"]["cidrs"].clone()).unwrap(),
                ready: cidr["status"]["conditions"][0]["status"] == "True",
                terminating: cidr["metadata"]["deletionTimestamp"].is_string(),
            })
            .collect()
    }

    fn delete_range(&self, name: &str) {
        let delete = ["delete", "servicecidr", name, "--wait=false"];
        self.lab.kubectl(&delete).unwrap();
    }

    async fn until_terminating(&self, name: &str) {
        until(
            "the range to be in deletion",
            LIMIT,
            self.lab.folder(),
            async || {
                let object = self.lab.kubectl(&["get", "servicecidr", name, "-o", "json"])?;
                Ok(if object.contains("\"Terminating\"") {
                    Observation::Done(())
                } else {
                    Observation::NotYet(object)
                })
            },
        )
        .await
        .unwrap();
    }

    async fn until_deleted(&self, name: &str) {
        until("the range to be deleted", LIMIT, self.lab.folder(), async || {
            let names = self.lab.kubectl(&["get", "servicecidr", "-o", "name"])?;
            Ok(if names.lines().any(|line| line.ends_with(&format!("/{name}"))) {
                Observation::NotYet(names)
            } else {
                Observation::Done(())
            })
        })
        .await
        .unwrap();
    }

    /// Creates a Service. A test that names a node port uses the lower end of the range: the API server assigns that
    /// end last, so no other test's Service has it. The Service gets an address of the cluster's own range, unless it
    /// names one: the API server could assign any address, also of a range that another test is about to delete.
    fn service(&self, name: &str, spec: &Value) {
        static GIVEN: AtomicUsize = AtomicUsize::new(10);
        let mut spec = spec.clone();
        if spec["clusterIP"].is_null() {
            // The lower end is assigned only after the rest: no other Service gets it by chance.
            spec["clusterIP"] = format!("10.96.0.{}", GIVEN.fetch_add(1, Ordering::SeqCst)).into();
        }
        self.apply(&json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "name": name, "namespace": self.namespace, "labels": { "of": "a-chart" }, "annotations": { "note": "kept" },
                "finalizers": ["example.org/foreign"],
            },
            "spec": spec,
        }));
    }

    /// kubectl's output in this namespace.
    fn kubectl(&self, arguments: &[&str]) -> String {
        let namespace = ["-n", self.namespace.as_str()];
        self.lab.kubectl(&[arguments, &namespace].concat()).unwrap()
    }

    fn read(&self, kind: &str, name: &str) -> Value {
        serde_json::from_str(&self.kubectl(&["get", kind, name, "-o", "json"])).unwrap()
    }

    /// Every existing helper, one per line.
    fn helpers(&self) -> String {
        let lines = self.kubectl(&["get", "services", "-l", ROLE_LABEL, "-o", "name"]);
        lines.trim().to_owned()
    }

    fn patch(&self, name: &str, patch: &Value) {
        self.kubectl(&["patch", "service", name, "--type=merge", "-p", &patch.to_string()]);
    }

    fn delete(&self, name: &str) {
        self.kubectl(&["delete", "service", name]);
    }

    /// UIDs of the slices that Kubernetes has created for a Service.
    fn slices(&self, name: &str) -> Vec<String> {
        let of = format!("kubernetes.io/service-name={name}");
        let text = self.kubectl(&["get", "endpointslices", "-l", &of, "-o", "json"]);
        let list: Value = serde_json::from_str(&text).unwrap();
        let items = list["items"].as_array().unwrap().iter();
        items
            .map(|slice| slice["metadata"]["uid"].as_str().unwrap().to_owned())
            .collect()
    }

    fn subject(&self, name: &str, new: &str) -> Subject {
        let spec = &self.read("service", name)["spec"];
        let address = |text: &str| -> IpAddr { text.parse().unwrap() };
        Subject {
            namespace: self.namespace.clone(),
            name: name.to_owned(),
            addresses: Sides {
                old: vec![address(spec["clusterIP"].as_str().unwrap())],
                new: vec![address(new)],
            },
            spare: Spare {
                helper: spare(),
                bridge: Parts::each(|_| spare()),
            },
            goal: Side::New,
            source_is_used: true,
            source_is_allocated: true,
            is_restless: false,
        }
    }

    async fn observe(&self, client: &Client, subject: &Subject) -> Option<Seen> {
        let slices: Api<EndpointSlice> = Api::all(client.clone());
        let services: Api<Service> = Api::all(client.clone());
        let all = ListParams::default();
        let store = ServiceStore::of(
            services.list(&all).await.unwrap(),
            slices.list(&all).await.unwrap(),
        );
        let index = store.index(client, &Arc::default()).await.unwrap();
        let mut whole = Whole::default();
        let name = (subject.namespace.clone(), subject.name.clone());
        whole.read(client, &store, &index, [name]).await.unwrap();
        let observed = Observed {
            index: &index,
            whole: &whole,
        };
        let around = Around {
            domain: DOMAIN,
            ground: &GROUND,
            unknown: &|_, _| None,
        };
        observe(&observed, subject, &around)
    }

    /// Continues until the Service has reached its goal, or a decision of the user is needed.
    async fn advance(&self, subject: &Subject) -> Result<(), String> {
        self.advance_with(&self.client, subject).await
    }

    async fn advance_with(&self, client: &Client, subject: &Subject) -> Result<(), String> {
        let (mut last, mut waits, mut subject) = (None, ExchangeTimes::default(), subject.clone());
        let (mut refused, mut passes, mut refused_until) = (None, 0, Instant::now() + REFUSED);
        while passes < PASSES && Instant::now() < refused_until {
            let seen = self.observe(client, &subject).await.unwrap();
            let decision = decide(&seen.view);
            last = Some((decision.clone(), seen.clone()));
            match decision {
                Decision::Settled => return Ok(()),
                Decision::Halt(halt) => return Err(halt.message),
                Decision::Wait(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                Decision::Run(step) => {
                    waits.record_step(&seen.view.name, step, Timestamp::now());
                    subject.is_restless = waits.is_restless(&seen.view.name, Timestamp::now());
                    // After a refusal in the middle of a step the decision is made again.
                    refused = exchange(client).make(&subject, seen, step).await.err();
                    if refused.is_some() {
                        tokio::time::sleep(PAUSE).await;
                        continue;
                    }
                }
            }
            passes += 1;
            refused_until = Instant::now() + REFUSED;
        }
        panic!("{subject:?} does not settle: {last:?}; the last write: {refused:?}");
    }

    /// Waits until an endpoint answers for this Service.
    async fn served(&self, name: &str) {
        let what = format!("Service {name} to have endpoints");
        let slices: Api<EndpointSlice> = Api::namespaced(self.client.clone(), &self.namespace);
        let of = ListParams::default().labels(&format!("kubernetes.io/service-name={name}"));
        until(&what, LIMIT, self.lab.folder(), async || {
            let found = slices.list(&of).await?;
            let has_one = found.iter().any(|slice| !slice.endpoints.is_empty());
            Ok(if has_one {
                Observation::Done(())
            } else {
                Observation::NotYet("none".to_owned())
            })
        })
        .await
        .unwrap();
    }

    /// Continues until the exchange itself is the next step.
    async fn until_swap(&self, subject: &Subject) -> Seen {
        self.served(&subject.name).await;
        for _ in 0..PASSES {
            let seen = self.observe(&self.client, subject).await.unwrap();
            match decide(&seen.view) {
                Decision::Run(Step::Swap) => return seen,
                Decision::Run(step) => exchange(&self.client).make(subject, seen, step).await.unwrap(),
                Decision::Wait(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                other => panic!("{other:?}"),
            }
        }
        panic!("{subject:?} is never ready");
    }
}

/// An address of the new range that no other test requests: an address assigned by the API server could be of a range
/// that another test is about to delete.
fn spare() -> Vec<IpAddr> {
    static GIVEN: AtomicUsize = AtomicUsize::new(1);
    let given = GIVEN.fetch_add(1, Ordering::SeqCst);
    vec![
        format!("172.30.{}.{}", 200 + given / 250, 1 + given % 250)
            .parse()
            .unwrap(),
    ]
}

fn exchange(client: &Client) -> Exchange<'_> {
    Exchange {
        client,
        domain: DOMAIN,
        ground: &GROUND,
        on_write: &|_| {},
    }
}

/// A client whose process is killed before its next change once it has made this number of changes.
fn mortal(client: &Client, changes: usize) -> Client {
    let left = Arc::new(AtomicUsize::new(changes));
    let client = client.clone();
    let service = tower::service_fn(move |request: Request<Body>| {
        let client = client.clone();
        let is_change = request.method() != Method::GET;
        let may = !is_change
            || left
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
                .is_ok();
        async move {
            if may {
                client.send(request).await.map_err(tower::BoxError::from)
            } else {
                Err(tower::BoxError::from("killed"))
            }
        }
    });
    Client::new(service, "default")
}

fn specs() -> Vec<(&'static str, Value)> {
    let ports = json!([{ "name": "http", "port": 80, "targetPort": 8080 }]);
    let selector = json!({ "app": "web" });
    vec![
        ("plain", json!({ "selector": selector, "ports": ports })),
        (
            "two-ports",
            json!({ "selector": selector, "ports": [
                { "name": "dns", "port": 53, "protocol": "UDP" }, { "name": "dns-tcp", "port": 53, "protocol": "TCP" },
            ] }),
        ),
        (
            "node-port",
            json!({ "type": "NodePort", "selector": selector, "externalTrafficPolicy": "Local", "ports": [
                { "name": "http", "port": 80, "targetPort": 8080, "nodePort": 30080 },
                { "name": "https", "port": 443, "targetPort": "https", "appProtocol": "https" },
            ] }),
        ),
        (
            "affinity",
            json!({ "selector": selector, "ports": ports, "sessionAffinity": "ClientIP",
                "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 60 } } }),
        ),
        (
            "local",
            json!({ "selector": selector, "ports": ports, "internalTrafficPolicy": "Local", "publishNotReadyAddresses": true,
                "trafficDistribution": "PreferClose" }),
        ),
        ("without-selector", json!({ "ports": ports })),
        (
            "without-pods",
            json!({ "selector": { "app": "nothing" }, "ports": ports }),
        ),
        (
            "external-address",
            json!({ "selector": selector, "ports": ports, "externalIPs": ["192.0.2.7"] }),
        ),
    ]
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn forward_and_back_only_the_address_of_a_service_changes() {
    let bench = Bench::new("swap").await;
    for (place, (name, spec)) in specs().into_iter().enumerate() {
        bench.service(name, &spec);
        if name == "without-selector" {
            bench.apply(&json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
                "metadata": { "name": "by-hand", "namespace": "swap", "labels": { "kubernetes.io/service-name": name } },
                "addressType": "IPv4", "endpoints": [{ "addresses": ["192.0.2.1"] }], "ports": [{ "name": "http", "port": 8080 }],
            }));
        }
        if !["without-selector", "without-pods"].contains(&name) {
            bench.served(name).await;
        }
        let before = bench.read("service", name);
        let mut subject = bench.subject(name, &format!("172.30.1.{}", place + 1));
        bench.advance(&subject).await.unwrap();

        let there = bench.read("service", name);
        assert_eq!(
            there["spec"]["clusterIP"],
            subject.addresses.new[0].to_string(),
            "{name}"
        );
        let shadow = bench.read("service", &format!("{name}-replumb-old"));
        assert_eq!(
            shadow["spec"]["clusterIP"],
            subject.addresses.old[0].to_string(),
            "{name}"
        );
        same_but_address(name, &before, &there);
        if !["without-selector", "without-pods"].contains(&name) {
            assert_eq!(bench.slices(name).len(), 1, "{name}");
        }
        let slices = bench.slices(name);

        subject.goal = Side::Old;
        bench.advance(&subject).await.unwrap();
        subject.source_is_used = false;
        bench.advance(&subject).await.unwrap();
        let back = bench.read("service", name);
        assert_eq!(back["spec"], before["spec"], "{name}");
        same_but_address(name, &before, &back);
        assert_eq!(bench.slices(name), slices, "{name}");
        assert_eq!(bench.helpers(), "", "{name}");
    }
}

/// An owner, or a controller that writes to every Service, edits the Service and its helpers right before each change
/// of the coordinator.
#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn a_service_that_is_edited_before_each_write_is_moved_and_rolled_back() {
    let bench = Bench::new("restless").await;
    let admin = bench.lab.admin().await.unwrap();
    let label = |number: usize| json!({ "metadata": { "labels": { "edited": number.to_string() } } });
    let target = |number: usize| {
        let port = json!({ "name": "http", "port": 80, "protocol": "TCP", "targetPort": number + 1000 });
        json!({ "metadata": { "annotations": { "edited": number.to_string() } }, "spec": { "ports": [port] } })
    };
    let port = |number: usize| json!({ "spec": { "ports": [{ "name": "http", "port": number + 1000, "protocol": "TCP", "targetPort": 80 }] } });
    // Each second edit changes nothing: the first write of an exchange saves the node ports, and so depends on all
    // fields of a port.
    let node_port = |number: usize| {
        // In the lower band (30000 to 30085), from which other tests' Services get no port by chance.
        let port = json!({ "name": "http", "port": 80, "protocol": "TCP", "targetPort": number / 2 + 1000, "nodePort": 30061 });
        json!({ "spec": { "ports": [port] } })
    };
    let cases: [(&str, Option<u16>, Patch); 6] = [
        ("label", None, label),
        ("label-node", Some(30091), label),
        ("target", None, target),
        ("target-node", Some(30061), node_port),
        ("port", None, port),
        ("silent", None, label),
    ];
    for (place, (name, node_port, patch)) in cases.into_iter().enumerate() {
        let selector = json!({ "app": if name == "silent" { "nothing" } else { "web" } });
        let mut spec =
            json!({ "selector": selector, "ports": [{ "name": "http", "port": 80, "targetPort": 8080 }] });
        if let Some(node_port) = node_port {
            spec["type"] = json!("NodePort");
            spec["ports"][0]["nodePort"] = json!(node_port);
        }
        bench.service(name, &spec);
        if name != "silent" {
            bench.served(name).await;
        }
        let helper = |role: Role| {
            (
                format!("{name}-replumb-{}", role.as_str()),
                label as fn(usize) -> Value,
            )
        };
        let edits = Role::ALL
            .map(helper)
            .into_iter()
            .chain([(name.to_owned(), patch)]);
        let edits = edits.map(|(name, patch)| Edits {
            path: format!("/api/v1/namespaces/restless/services/{name}"),
            patch,
        });
        let client = edited_before_each_change(&bench.client, &admin, edits.collect());
        let mut subject = bench.subject(name, &format!("172.30.9.{}", place + 1));
        let before = bench.read("service", name);
        bench.advance_with(&client, &subject).await.unwrap();
        let there = bench.read("service", name);
        assert_eq!(
            there["spec"]["clusterIP"],
            subject.addresses.new[0].to_string(),
            "{name}"
        );
        subject.goal = Side::Old;
        bench.advance_with(&client, &subject).await.unwrap();
        subject.source_is_used = false;
        bench.advance_with(&client, &subject).await.unwrap();
        let back = bench.read("service", name);
        assert_eq!(back["spec"]["clusterIP"], before["spec"]["clusterIP"], "{name}");
        assert_eq!(back["spec"]["type"], before["spec"]["type"], "{name}");
        assert_eq!(
            back["spec"]["ports"][0]["nodePort"], before["spec"]["ports"][0]["nodePort"],
            "{name}"
        );
        assert_eq!(bench.helpers(), "", "{name}");
    }
}

fn same_but_address(name: &str, before: &Value, now: &Value) {
    assert_eq!(
        differences(&before["spec"], &now["spec"]),
        Vec::<String>::new(),
        "{name}"
    );
    for field in [
        "uid",
        "labels",
        "annotations",
        "ownerReferences",
        "finalizers",
        "creationTimestamp",
    ] {
        assert_eq!(
            before["metadata"][field], now["metadata"][field],
            "{name}: {field}"
        );
    }
}

/// Kills the process after each number of changes of a Service that selects these pods; returns the number of kills.
async fn kills_at_each_change(bench: &Bench, app: &str, most: usize, part: u8) -> usize {
    let mut kills = 0;
    for goal in [Side::New, Side::Old] {
        for changes in 0..most {
            let name = format!("{}-{changes}", goal.as_str());
            let spec = json!({ "type": "NodePort", "selector": { "app": app }, "internalTrafficPolicy": "Local", "ports": [
                { "name": "http", "port": 80, "targetPort": 8080 }, { "name": "more", "port": 81, "targetPort": 8081 },
            ] });
            bench.service(&name, &spec);
            if app == "web" {
                bench.served(&name).await;
            }
            let before = bench.read("service", &name);
            let mut subject = bench.subject(&name, &format!("172.30.{}.{}", part + goal as u8, changes + 1));
            let mortal = mortal(&bench.client, changes);
            let mut is_dead = false;
            for _ in 0..PASSES {
                let seen = bench.observe(&mortal, &subject).await.unwrap();
                match decide(&seen.view) {
                    Decision::Run(step) => {
                        if exchange(&mortal).make(&subject, seen, step).await.is_err() {
                            is_dead = true;
                            break;
                        }
                    }
                    Decision::Wait(_) => tokio::time::sleep(Duration::from_millis(100)).await,
                    Decision::Settled => break,
                    Decision::Halt(halt) => panic!("{name}: {}", halt.message),
                }
            }
            kills += usize::from(is_dead);
            // Either the migration continues, or it is rolled back.
            subject.goal = goal;
            bench.advance(&subject).await.unwrap();
            subject.source_is_used = false;
            bench.advance(&subject).await.unwrap();
            let after = bench.read("service", &name);
            same_but_address(&name, &before, &after);
            let expected = match goal {
                Side::New => subject.addresses.new[0].to_string(),
                Side::Old => subject.addresses.old[0].to_string(),
            };
            assert_eq!(after["spec"]["clusterIP"], expected, "{name}");
        }
    }
    kills
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn a_service_killed_between_any_two_writes_is_moved_or_unchanged() {
    let bench = Bench::new("killed").await;
    let kills = kills_at_each_change(&bench, "web", 24, 2).await;
    // Fourteen writes move a Service: two bridges created and given their endpoints, two helpers created, one parked,
    // four for the exchange, three deletions. Every write is necessary, except for a helper that must be warmed
    // again.
    assert!((28..=36).contains(&kills), "{kills}");
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn a_service_without_endpoints_killed_between_any_two_writes_is_moved_or_unchanged() {
    let bench = Bench::new("killed-unserved").await;
    // The Service becomes a name, a helper takes its address, and the Service takes the other one.
    assert_eq!(kills_at_each_change(&bench, "without-endpoints", 6, 40).await, 6);
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn the_services_of_api_server_and_name_server_recover_from_a_kill_at_any_write() {
    let bench = Bench::new("kube-system").await;
    bench.apply(&json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": "kube-dns", "namespace": "kube-system", "labels": { "k8s-app": "kube-dns" } },
        "spec": {
            "clusterIP": "10.96.0.9", "selector": { "app": "web" },
            "ports": [
                { "name": "dns", "port": 53, "protocol": "UDP" }, { "name": "dns-tcp", "port": 53 }, { "name": "metrics", "port": 9153 },
            ],
        },
    }));
    let of_kubernetes = Bench {
        namespace: "default".to_owned(),
        client: bench.client.clone(),
        lab: bench.lab,
    };
    // This API server publishes no endpoint of its own, because it listens on the loopback.
    of_kubernetes.apply(&json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": { "name": "by-hand", "namespace": "default", "labels": { "kubernetes.io/service-name": "kubernetes" } },
        "addressType": "IPv4", "endpoints": [{ "addresses": ["192.0.2.1"] }], "ports": [{ "name": "https", "port": 6443 }],
    }));
    let mut kills = 0;
    for (bench, name, new) in [
        (&of_kubernetes, "kubernetes", "172.30.0.1"),
        (&bench, "kube-dns", "172.30.0.10"),
    ] {
        let before = bench.read("service", name);
        let subject = bench.subject(name, new);
        let back = Subject {
            goal: Side::Old,
            source_is_used: false,
            ..subject.clone()
        };
        for (writes, goal) in (0..=4).flat_map(|writes| Side::ALL.map(|goal| (writes, goal))) {
            let seen = bench.until_swap(&subject).await;
            let made = exchange(&mortal(&bench.client, writes))
                .make(&subject, seen, Step::Swap)
                .await;
            kills += usize::from(made.is_err());
            let at = format!("{name} after {writes} writes, to {goal:?}");
            if goal == Side::New {
                bench.advance(&subject).await.unwrap();
                let there = bench.read("service", name);
                assert_eq!(there["spec"]["clusterIP"], new, "{at}");
                same_but_address(&at, &before, &there);
            }
            bench.advance(&back).await.unwrap();
            let after = bench.read("service", name);
            assert_eq!(after["spec"], before["spec"], "{at}");
            same_but_address(&at, &before, &after);
        }
    }
    assert_eq!(kills, 2 * 2 * 4, "before each of four writes, forward and back");
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn a_bridge_is_used_if_the_api_server_allows_no_other_endpoint() {
    let bench = Bench::new("bridged").await;
    let spec = json!({
        "type": "NodePort", "selector": { "app": "web" }, "externalIPs": ["192.0.2.70"], "externalTrafficPolicy": "Local",
        "ports": [{ "name": "http", "port": 80, "nodePort": 30082 }],
    });
    bench.service("web", &spec);
    let subject = bench.subject("web", "172.30.11.1");
    let old = subject.addresses.old[0].to_string();
    bench.until_swap(&subject).await;
    for (role, policy, expected) in [
        ("bridge", "Local", vec![old.as_str(), "172.30.11.1"]),
        ("bridge-ports", "Local", vec!["192.0.2.11", "192.0.2.12"]),
        ("bridge-external", "Local", vec!["192.0.2.70"]),
    ] {
        let bridge = bench.read("service", &format!("web-replumb-{role}"));
        let spec = &bridge["spec"];
        let ingress = bridge["status"]["loadBalancer"]["ingress"].as_array().unwrap();
        let said: Vec<&str> = ingress
            .iter()
            .map(|ingress| ingress["ip"].as_str().unwrap())
            .collect();
        assert_eq!(said[0], spec["clusterIP"], "{bridge}");
        assert_eq!(said[1..], expected, "{bridge}");
        assert!(
            ingress.iter().all(|ingress| ingress["ipMode"] == "VIP"),
            "{bridge}"
        );
        assert_eq!(spec["externalTrafficPolicy"], policy, "{bridge}");
        assert_eq!(spec["ports"][0].get("nodePort"), None, "{bridge}");
        let port = if role == "bridge-ports" { 30082 } else { 80 };
        assert_eq!(spec["ports"][0]["port"], port, "{bridge}");
    }
    // Meanwhile the owner of the Service changes a port: the bridges are updated before the exchange.
    bench.patch(
        "web",
        &json!({ "spec": { "ports": [{ "name": "http", "port": 81, "nodePort": 30083, "protocol": "TCP" }] } }),
    );
    let seen = bench.until_swap(&subject).await;
    let ports: Vec<&Value> = seen
        .helpers
        .iter()
        .filter(|(role, _)| matches!(role, Role::Bridge(_)))
        .map(|(_, bridge)| &bridge["spec"]["ports"][0]["port"])
        .collect();
    assert_eq!(ports, [81, 30083, 81]);
    bench.advance(&subject).await.unwrap();
    assert_eq!(bench.helpers(), "service/web-replumb-old");
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn an_address_taken_meanwhile_is_named_and_after_its_release_the_exchange_continues() {
    let bench = Bench::new("stolen").await;
    let spec = json!({ "type": "NodePort", "selector": { "app": "web" }, "ports": [{ "port": 80, "nodePort": 30081 }] });
    let thief = |spec: Value| json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "thief", "namespace": "stolen" }, "spec": spec });
    bench.service("web", &spec);
    // A spec with the node port does not own it here: the API server assigns none to a Service of this type.
    let says = json!({ "type": "ExternalName", "externalName": "a.b", "ports": [{ "port": 80, "nodePort": 30081 }] });
    bench.apply(&json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": "says", "namespace": "stolen" }, "spec": says }));
    assert_eq!(
        bench.read("service", "says")["spec"]["ports"][0]["nodePort"],
        30081
    );
    let subject = bench.subject("web", "172.30.19.1");
    let (old, before) = (subject.addresses.old[0].to_string(), bench.read("service", "web"));
    let thefts = [
        (
            1,
            json!({ "clusterIP": old, "ports": [{ "port": 80 }] }),
            old.as_str(),
        ),
        (
            3,
            json!({ "clusterIP": "172.30.19.1", "ports": [{ "port": 80 }] }),
            "172.30.19.1",
        ),
        (
            2,
            json!({ "type": "NodePort", "ports": [{ "port": 80, "nodePort": 30081 }] }),
            "node port 30081/TCP",
        ),
    ];
    for (writes, stolen, words) in thefts {
        let seen = bench.until_swap(&subject).await;
        let killed = exchange(&mortal(&bench.client, writes))
            .make(&subject, seen, Step::Swap)
            .await;
        // Another error would leave the Service in the middle of the exchange.
        let error = format!("{:#}", anyhow::Error::from(killed.unwrap_err()));
        assert!(error.contains("killed"), "{words}: {error}");
        bench.apply(&thief(stolen));
        let message = bench.advance(&subject).await.unwrap_err();
        assert!(
            message.contains("Service stolen/thief") && message.contains(words),
            "{message}"
        );
        bench.delete("thief");
        bench.advance(&subject).await.unwrap();
        same_but_address(words, &before, &bench.read("service", "web"));
        // Restored for the next case.
        let back = Subject {
            goal: Side::Old,
            source_is_used: false,
            ..subject.clone()
        };
        bench.advance(&back).await.unwrap();
        assert_eq!(bench.read("service", "web")["spec"], before["spec"], "{words}");
    }
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn an_edit_or_deletion_in_the_middle_of_an_exchange_is_respected() {
    let bench = Bench::new("edited").await;
    let spec = json!({ "selector": { "app": "web" }, "ports": [{ "name": "http", "port": 80 }] });
    bench.service("web", &spec);
    let subject = bench.subject("web", "172.30.10.1");
    let seen = bench.until_swap(&subject).await;
    assert!(
        exchange(&mortal(&bench.client, 2))
            .make(&subject, seen, Step::Swap)
            .await
            .is_err()
    );
    bench.patch(
        "web",
        &json!({ "spec": { "selector": { "app": "other" }, "sessionAffinity": "ClientIP" } }),
    );
    // The helpers select other pods than the Service does now: no exchange starts before they match.
    let seen = bench.observe(&bench.client, &subject).await.unwrap();
    assert!(
        matches!(decide(&seen.view), Decision::Run(Step::Refresh(_))),
        "{:?}",
        seen.view
    );
    bench.advance(&subject).await.unwrap();
    let (web, shadow) = (
        bench.read("service", "web"),
        bench.read("service", "web-replumb-old"),
    );
    assert_eq!(web["spec"]["clusterIP"], "172.30.10.1");
    for field in ["selector", "sessionAffinity", "sessionAffinityConfig", "ports"] {
        assert_eq!(web["spec"][field], shadow["spec"][field], "{field}");
    }
    assert_eq!(web["spec"]["selector"]["app"], "other");

    bench.patch("web", &json!({ "metadata": { "finalizers": null } }));
    bench.delete("web");
    assert!(
        bench.observe(&bench.client, &subject).await.is_none(),
        "its helpers are deleted with it"
    );
}

/// The expected effect of each deletion is that of Kubernetes.
#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn a_deleted_range_keeps_its_addresses_until_another_range_covers_them() {
    let bench = Bench::new("ranges").await;
    let (range, cover) = ("replumb-test-range", "replumb-test-cover");
    bench.range(range, &["10.98.0.0/24"]).await;
    let web = |name: &str, address: &str| {
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "name": name, "namespace": "ranges" },
            "spec": { "clusterIP": address, "ports": [{ "port": 80 }] },
        })
    };
    bench.apply(&web("held", "10.98.0.5"));
    let held: IpAddr = "10.98.0.5".parse().unwrap();
    let foreseen = |name: &str| {
        let all = bench.ranges();
        let of = all.iter().find(|cidr| cidr.name == name).unwrap();
        (
            fate(of, &all, &[held]),
            deleted_together_with(of, &all, &[held]).map(|other| other.name.clone()),
        )
    };

    assert_eq!(foreseen(range), (DeletionEffect::Holds(vec![held]), None));
    bench.delete_range(range);
    bench.until_terminating(range).await;
    let other: IpAddr = "10.98.0.6".parse().unwrap();
    assert!(!is_assignable(&other, &bench.ranges()));
    let refused = bench.create(&web("late", "10.98.0.6")).unwrap_err();
    assert!(format!("{refused:#}").contains("10.98.0.6"), "{refused:#}");

    let said = covers(&[held])[0].to_string();
    bench.range(cover, &[&said]).await;
    assert!(
        is_assignable(&other, &bench.ranges()),
        "the cover has two addresses"
    );
    // Both could be deleted now.
    assert_eq!(foreseen(cover), (DeletionEffect::Goes, Some(range.to_owned())));
    assert_eq!(foreseen(range).0, DeletionEffect::Goes);
    bench.until_deleted(range).await;
    assert_eq!(foreseen(cover), (DeletionEffect::Holds(vec![held]), None));
    bench.delete_range(cover);
    bench.until_terminating(cover).await;
    bench.delete("held");
    bench.until_deleted(cover).await;
}

/// The range of a Service that was created late is closed before it is deleted. A Service without endpoints needs no
/// address of it; one with endpoints needs a cover of its address, which is deleted before the range.
#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn late_services_leave_a_closed_range() {
    let bench = Bench::new("late").await;
    let (range, cover) = ("replumb-test-closed", "replumb-test-late");
    bench.range(range, &["10.94.0.0/24"]).await;
    let at = |address: &str, app: &str| json!({ "clusterIP": address, "selector": { "app": app }, "ports": [{ "port": 80 }] });
    bench.service("stays", &at("10.94.0.9", "none"));
    bench.service("bare", &at("10.94.0.21", "none"));
    bench.service("web", &at("10.94.0.5", "web"));
    bench.served("web").await;
    bench.delete_range(range);
    bench.until_terminating(range).await;

    let late = |name: &str, new: &str, is_used: bool| Subject {
        source_is_allocated: false,
        source_is_used: is_used,
        ..bench.subject(name, new)
    };
    let bare = late("bare", "172.30.12.1", false);
    bench.advance(&bare).await.unwrap();
    assert_eq!(bench.read("service", "bare")["spec"]["clusterIP"], "172.30.12.1");
    assert_eq!(bench.helpers(), "", "no helper has its address");

    let web = late("web", "172.30.12.2", true);
    let seen = loop {
        let seen = bench.observe(&bench.client, &web).await.unwrap();
        match decide(&seen.view) {
            decision if waits_for_source(&decision) => break seen,
            Decision::Run(step) => exchange(&bench.client).make(&web, seen, step).await.unwrap(),
            Decision::Wait(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        seen.service["spec"]["clusterIP"], "10.94.0.5",
        "the Service keeps its address"
    );
    let left = web.addresses.old.clone();
    bench.range(cover, &[&covers(&left)[0].to_string()]).await;
    assert!(is_assignable(&left[0], &bench.ranges()));
    bench
        .advance(&Subject {
            source_is_allocated: true,
            ..web
        })
        .await
        .unwrap();
    assert_eq!(bench.read("service", "web")["spec"]["clusterIP"], "172.30.12.2");
    assert_eq!(
        bench.read("service", "web-replumb-old")["spec"]["clusterIP"],
        "10.94.0.5"
    );

    // The range has more addresses than the cover: the cover is deleted, and the range keeps all.
    let held = [left[0], "10.94.0.9".parse().unwrap()];
    let all = bench.ranges();
    let of = all.iter().find(|cidr| cidr.name == cover).unwrap();
    assert_eq!(
        (fate(of, &all, &held), deleted_together_with(of, &all, &held)),
        (DeletionEffect::Goes, None)
    );
    bench.delete_range(cover);
    bench.until_deleted(cover).await;
    let all = bench.ranges();
    let of = all.iter().find(|cidr| cidr.name == range).unwrap();
    assert_eq!(fate(of, &all, &held), DeletionEffect::Holds(held.to_vec()));
    bench.delete("web-replumb-old");
    bench.patch("stays", &json!({ "metadata": { "finalizers": null } }));
    bench.delete("stays");
    bench.until_deleted(range).await;
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn the_smallest_covers_hold_their_addresses_and_ranges_of_one_or_two_addresses_hold_none() {
    let bench = Bench::new("covers").await;
    // The last address is at the end of a range of eight.
    let addresses = ["10.97.0.1", "10.97.0.10", "10.97.3.3", "10.97.3.4", "10.97.5.7"]
        .map(|text| text.parse::<IpAddr>().unwrap());
    let said: Vec<String> = covers(&addresses).iter().map(ToString::to_string).collect();
    for (place, range) in said.iter().enumerate() {
        bench
            .range(&format!("replumb-test-cover-{place}"), &[range])
            .await;
    }
    for (place, address) in addresses.iter().enumerate() {
        bench.service(
            &format!("held-{place}"),
            &json!({ "clusterIP": address.to_string(), "ports": [{ "port": 80 }] }),
        );
    }
    bench.range("replumb-test-one", &["10.97.9.9/32"]).await;
    let one = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": "one", "namespace": "covers" },
        "spec": { "clusterIP": "10.97.9.9", "ports": [{ "port": 80 }] },
    });
    let refused = bench.create(&one).unwrap_err();
    assert!(format!("{refused:#}").contains("10.97.9.9"), "{refused:#}");
}

/// A Migration of this kind, and Services with the longest names and addresses.
async fn with_a_book(name: &str, services: usize) -> (Client, Migration, AssignedAddresses) {
    let lab = ApiLab::shared().unwrap();
    let client = lab.admin().await.unwrap();
    let object: Migration = serde_json::from_value(json!({
        "apiVersion": "replumb.dev/v1alpha1", "kind": "Migration", "metadata": { "name": name },
        "spec": { "serviceCidr": { "to": ["172.30.0.0/16"] } },
    }))
    .unwrap();
    let api: Api<Migration> = Api::all(client.clone());
    let migration = api.create(&PostParams::default(), &object).await.unwrap();
    let address = |start: &str, number: usize| {
        vec![
            format!("{start}:ffff:ffff:ffff:ffff:ffff:ffff:{number:x}")
                .parse()
                .unwrap(),
        ]
    };
    let book = (0..services)
        .map(|number| {
            let both = Sides {
                old: address("fd00", number),
                new: address("fdff", number),
            };
            (format!("{}/{number:0>63}", "n".repeat(63)), both)
        })
        .collect();
    (client, migration, book)
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn a_record_killed_between_any_two_writes_is_correct_and_is_completed() {
    let mut kills = 0;
    for changes in 0.. {
        let (client, migration, wanted) = with_a_book(&format!("killed-{changes}"), 2000).await;
        let mut records = Records::default();
        let is_dead = assigned_addresses::write(
            &mortal(&client, changes),
            &mut records,
            &migration,
            &wanted,
            &BTreeSet::new(),
        )
        .await
        .is_err();
        // Another coordinator continues.
        let mut records = Records::default();
        records.load(&client, &migration).await.unwrap();
        let found = assigned_addresses::read(&records, AssignedAddresses::new());
        assert!(found.iter().all(|(name, both)| wanted[name] == *both));
        assigned_addresses::write(&client, &mut records, &migration, &wanted, &BTreeSet::new())
            .await
            .unwrap();
        let mut records = Records::default();
        records.load(&client, &migration).await.unwrap();
        assert_eq!(
            assigned_addresses::read(&records, AssignedAddresses::new()),
            wanted
        );
        if !is_dead {
            break;
        }
        kills += 1;
    }
    assert!(kills >= 4, "{kills}");
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn a_stored_record_is_small_and_a_write_based_on_an_old_read_is_refused() {
    let (client, migration, mut wanted) = with_a_book("small", 3000).await;
    let (mut first, mut second) = (Records::default(), Records::default());
    assigned_addresses::write(&client, &mut first, &migration, &wanted, &BTreeSet::new())
        .await
        .unwrap();
    second.load(&client, &migration).await.unwrap();
    let lab = ApiLab::shared().unwrap();
    let list = lab
        .kubectl(&["get", "migrationrecords", "-o", "json", "--show-managed-fields"])
        .unwrap();
    let list: Value = serde_json::from_str(&list).unwrap();
    let sizes: Vec<usize> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|record| record.to_string().len())
        .collect();
    assert!(
        sizes.len() >= 6 && sizes.iter().all(|size| *size < 256 * 1024),
        "{sizes:?}"
    );

    let gone = wanted.keys().next().unwrap().clone();
    wanted.remove(&gone);
    assigned_addresses::write(&client, &mut first, &migration, &wanted, &BTreeSet::new())
        .await
        .unwrap();
    let refused = assigned_addresses::write(
        &client,
        &mut second,
        &migration,
        &AssignedAddresses::new(),
        &BTreeSet::new(),
    )
    .await;
    assert!(matches!(refused, Err(WriteError::Conflict { .. })), "{refused:?}");
    second.load(&client, &migration).await.unwrap();
    assert_eq!(
        assigned_addresses::read(&second, AssignedAddresses::new()),
        wanted
    );

    // A record never becomes another part or belongs to another Migration.
    let name = list["items"][0]["metadata"]["name"].as_str().unwrap();
    let change = json!({ "spec": { "part": 77 } }).to_string();
    let error = lab
        .kubectl(&["patch", "migrationrecord", name, "--type=merge", "-p", &change])
        .unwrap_err();
    assert!(format!("{error:#}").contains("immutable"), "{error:#}");
}
