//! Rights: RBAC of agent, coordinator and operator, and the policy that restricts an agent to its node.
//!
//! Run by `cargo lab test`, or `cargo test -p lab --test api_rights -- --ignored`.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test says that it failed by a panic"
)]

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use api::{ConnectionSample, NodeMigration, names};
use futures::{StreamExt as _, stream};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SelfSubjectRulesReview,
    SelfSubjectRulesReviewSpec,
};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use lab::apilab::ApiLab;
use lab::cluster::wait::{Observation, until};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

/// Verbs that rules can name.
const VERBS: [&str; 8] = [
    "get",
    "list",
    "watch",
    "create",
    "update",
    "patch",
    "delete",
    "deletecollection",
];

/// The two nodes of these tests, each with an agent's pod.
struct Nodes {
    left: Pod,
    right: Pod,
}

/// Created once for all tests of this file.
async fn nodes() -> &'static Nodes {
    static NODES: OnceCell<Nodes> = OnceCell::const_new();
    NODES
        .get_or_init(|| async {
            let lab = ApiLab::shared().unwrap();
            let mut pods = Vec::new();
            for name in ["left", "right"] {
                lab.node(name).await.unwrap();
                pods.push(lab.pod_on(names::NAMESPACE, names::AGENT, name).await.unwrap());
            }
            let right = pods.pop().unwrap();
            Nodes {
                left: pods.pop().unwrap(),
                right,
            }
        })
        .await
}

/// A client with the token of an agent whose pod is on a node.
async fn agent(pod: &Pod) -> Client {
    let lab = ApiLab::shared().unwrap();
    let token = lab
        .token(names::NAMESPACE, names::AGENT, Some(pod))
        .await
        .unwrap();
    lab.with_token(&token).await.unwrap()
}

async fn coordinator() -> Client {
    let lab = ApiLab::shared().unwrap();
    let token = lab
        .token(names::NAMESPACE, names::COORDINATOR, None)
        .await
        .unwrap();
    lab.with_token(&token).await.unwrap()
}

/// One question of RBAC: verb, group, resource, subresource, namespace.
#[derive(Clone, Debug, Default)]
struct Question {
    verb: String,
    group: String,
    resource: String,
    subresource: String,
    namespace: String,
    /// One object; empty for any.
    name: String,
}

impl Question {
    fn new(verb: &str, group: &str, resource: &str) -> Self {
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        Self {
            verb: verb.to_owned(),
            group: group.to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            ..Self::default()
        }
    }

    fn inside(self, namespace: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            ..self
        }
    }

    fn of(self, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..self
        }
    }

    fn text(&self) -> String {
        let slash = if self.subresource.is_empty() { "" } else { "/" };
        format!(
            "{} {}{slash}{}.{}",
            self.verb, self.resource, self.subresource, self.group
        )
    }
}

/// The API server's own answer to the question who the client is.
async fn may(client: &Client, question: &Question) -> bool {
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client.clone());
    let review = SelfSubjectAccessReview {
        spec: SelfSubjectAccessReviewSpec {
            resource_attributes: Some(ResourceAttributes {
                verb: some(&question.verb),
                group: some(&question.group),
                resource: some(&question.resource),
                subresource: some(&question.subresource),
                namespace: some(&question.namespace),
                name: some(&question.name),
                ..ResourceAttributes::default()
            }),
            ..SelfSubjectAccessReviewSpec::default()
        },
        ..SelfSubjectAccessReview::default()
    };
    let answer = reviews.create(&PostParams::default(), &review).await.unwrap();
    answer.status.is_some_and(|status| status.allowed)
}

/// Requests that a kubelet checks with the API server: no API server serves these resources.
const OF_KUBELETS: [&str; 8] = [
    "nodes/checkpoint",
    "nodes/configz",
    "nodes/healthz",
    "nodes/log",
    "nodes/metrics",
    "nodes/pods",
    "nodes/spec",
    "nodes/stats",
];

/// Every verb on every resource and subresource that this API server or a kubelet serves.
async fn everything(client: &Client) -> Vec<Question> {
    let mut resources: Vec<(String, String)> = OF_KUBELETS
        .map(|resource| (String::new(), resource.to_owned()))
        .to_vec();
    let core = client.list_core_api_resources("v1").await.unwrap();
    resources.extend(
        core.resources
            .into_iter()
            .map(|resource| (String::new(), resource.name)),
    );
    for group in client.list_api_groups().await.unwrap().groups {
        for version in &group.versions {
            let list = client
                .list_api_group_resources(&version.group_version)
                .await
                .unwrap();
            resources.extend(
                list.resources
                    .into_iter()
                    .map(|resource| (group.name.clone(), resource.name)),
            );
        }
    }
    resources.sort();
    resources.dedup();
    assert!(
        resources.len() > 60,
        "only {} resources: discovery is broken",
        resources.len()
    );
    resources
        .iter()
        .flat_map(|(group, resource)| VERBS.map(|verb| Question::new(verb, group, resource)))
        .collect()
}

async fn allowed(client: &Client, questions: Vec<Question>) -> BTreeSet<String> {
    stream::iter(questions)
        .map(|question| async move { may(client, &question).await.then(|| question.text()) })
        .buffer_unordered(8)
        .filter_map(async |answer| answer)
        .collect()
        .await
}

/// Requests about oneself that every authenticated client may make.
const OWN_QUESTIONS: [&str; 3] = [
    "create selfsubjectaccessreviews.authorization.k8s.io",
    "create selfsubjectreviews.authentication.k8s.io",
    "create selfsubjectrulesreviews.authorization.k8s.io",
];

fn set(own: &[&str]) -> BTreeSet<String> {
    own.iter()
        .chain(&OWN_QUESTIONS)
        .map(|text| (*text).to_owned())
        .collect()
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn an_agent_may_only_read_goals_and_kubelet_configuration_and_patch_facts() {
    let client = agent(&nodes().await.left).await;
    let questions = everything(&ApiLab::shared().unwrap().admin().await.unwrap()).await;
    let wanted = set(&[
        "get nodemigrations.replumb.dev",
        "list nodemigrations.replumb.dev",
        "watch nodemigrations.replumb.dev",
        "patch nodemigrations/status.replumb.dev",
        "get connectionsamples.replumb.dev",
        "list connectionsamples.replumb.dev",
        "watch connectionsamples.replumb.dev",
        "patch connectionsamples/status.replumb.dev",
        "list migrationrecords.replumb.dev",
        "watch migrationrecords.replumb.dev",
        "get nodes/configz.",
    ]);
    assert_eq!(
        allowed(&client, questions.clone()).await,
        wanted,
        "in the whole cluster"
    );
    let inside: Vec<Question> = questions
        .iter()
        .cloned()
        .map(|question| question.inside(names::NAMESPACE))
        .collect();
    assert_eq!(allowed(&client, inside).await, wanted, "in its own namespace");
}

const CALICO: &str = "crd.projectcalico.org";

/// The requests of the coordinator's code, call by call; its own question "may I?" (`observe::cluster`) is included.
const DONE_BY_COORDINATOR: &[(&str, &str, &str)] = &[
    ("patch", "", "nodes"),
    ("watch", "", "nodes"),
    ("get", "", "pods"),
    ("watch", "", "pods"),
    ("create", "", "pods/eviction"),
    ("watch", "policy", "poddisruptionbudgets"),
    ("watch", "apps", "daemonsets"),
    ("patch", "apps", "daemonsets"),
    ("delete", "apps", "daemonsets"),
    ("get", "", "configmaps"),
    ("create", "", "services"),
    ("patch", "", "services"),
    ("delete", "", "services"),
    ("create", "discovery.k8s.io", "endpointslices"),
    ("update", "discovery.k8s.io", "endpointslices"),
    ("delete", "discovery.k8s.io", "endpointslices"),
    ("list", "networking.k8s.io", "servicecidrs"),
    ("create", "networking.k8s.io", "servicecidrs"),
    ("delete", "networking.k8s.io", "servicecidrs"),
    ("watch", "", "services"),
    ("watch", "discovery.k8s.io", "endpointslices"),
    ("list", "", "services"),
    (
        "list",
        "admissionregistration.k8s.io",
        "validatingwebhookconfigurations",
    ),
    (
        "list",
        "admissionregistration.k8s.io",
        "mutatingwebhookconfigurations",
    ),
    ("watch", names::GROUP, "migrations"),
    ("patch", names::GROUP, "migrations/status"),
    ("watch", names::GROUP, "nodemigrations"),
    ("create", names::GROUP, "nodemigrations"),
    ("patch", names::GROUP, "nodemigrations"),
    ("delete", names::GROUP, "nodemigrations"),
    ("create", "events.k8s.io", "events"),
    ("patch", "events.k8s.io", "events"),
    (
        "list",
        "admissionregistration.k8s.io",
        "validatingadmissionpolicies",
    ),
    (
        "list",
        "admissionregistration.k8s.io",
        "validatingadmissionpolicybindings",
    ),
    ("list", names::GROUP, "migrationrecords"),
    ("create", names::GROUP, "migrationrecords"),
    ("patch", names::GROUP, "migrationrecords"),
    ("delete", names::GROUP, "migrationrecords"),
    ("get", names::GROUP, "connectionsamples"),
    ("list", names::GROUP, "connectionsamples"),
    ("create", names::GROUP, "connectionsamples"),
    ("patch", names::GROUP, "connectionsamples"),
    ("delete", names::GROUP, "connectionsamples"),
    ("list", "networking.k8s.io", "networkpolicies"),
    ("list", "policy.networking.k8s.io", "adminnetworkpolicies"),
    ("list", "policy.networking.k8s.io", "baselineadminnetworkpolicies"),
    ("list", "policy.networking.k8s.io", "clusternetworkpolicies"),
    ("list", CALICO, "networkpolicies"),
    ("list", CALICO, "globalnetworkpolicies"),
    ("list", "", "namespaces"),
    ("create", "authorization.k8s.io", "selfsubjectaccessreviews"),
    ("list", CALICO, "ippools"),
    ("create", CALICO, "ippools"),
    ("delete", CALICO, "ippools"),
    ("patch", CALICO, "felixconfigurations"),
    ("create", CALICO, "felixconfigurations"),
    ("delete", CALICO, "felixconfigurations"),
    ("patch", CALICO, "ipamconfigs"),
    ("create", CALICO, "ipamconfigs"),
    ("delete", CALICO, "ipamconfigs"),
    ("list", CALICO, "ipamblocks"),
    ("create", CALICO, "ipamblocks"),
    ("delete", CALICO, "ipamblocks"),
    ("create", CALICO, "blockaffinities"),
    ("delete", CALICO, "blockaffinities"),
    ("create", CALICO, "ipamhandles"),
    ("delete", CALICO, "ipamhandles"),
];

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn the_coordinator_has_exactly_the_rights_that_its_code_needs() {
    let client = coordinator().await;
    for (verb, group, resource) in DONE_BY_COORDINATOR.iter().copied() {
        let question = Question::new(verb, group, resource);
        assert!(
            may(&client, &question).await,
            "the coordinator may not {}",
            question.text()
        );
    }
    for (verb, group, resource) in [
        ("get", "coordination.k8s.io", "leases"),
        ("create", "coordination.k8s.io", "leases"),
        ("update", "coordination.k8s.io", "leases"),
        ("create", "", "pods"),
        ("delete", "", "pods"),
    ] {
        // Only its own Leases; the right to create cannot be limited by name.
        let is_named = resource == "leases" && verb != "create";
        let name = if is_named { names::COORDINATOR } else { "" };
        let question = Question::new(verb, group, resource).of(name);
        assert!(
            may(&client, &question.clone().inside(names::NAMESPACE)).await,
            "not at home: {}",
            question.text()
        );
        assert!(
            !may(&client, &question).await,
            "in the whole cluster: {}",
            question.text()
        );
    }
    // Agents write the facts; the coordinator neither reads nor removes a user's object except by eviction.
    for (verb, group, resource) in [
        ("patch", names::GROUP, "nodemigrations/status"),
        ("patch", names::GROUP, "connectionsamples/status"),
        ("create", "networking.k8s.io", "networkpolicies"),
        ("delete", "networking.k8s.io", "networkpolicies"),
        ("update", names::GROUP, "nodemigrations/status"),
        ("create", names::GROUP, "migrations"),
        ("patch", names::GROUP, "migrations"),
        ("delete", names::GROUP, "migrations"),
        ("update", names::GROUP, "migrations/finalizers"),
        ("list", "", "configmaps"),
        ("get", "apiextensions.k8s.io", "customresourcedefinitions"),
        ("patch", CALICO, "clusterinformations"),
        ("update", "apps", "daemonsets"),
        ("get", "", "secrets"),
        ("list", "", "secrets"),
        ("delete", "", "pods"),
        ("create", "", "pods"),
        ("create", "", "pods/exec"),
        ("delete", "", "nodes"),
        ("update", "", "nodes"),
        ("patch", "apps", "deployments"),
        ("delete", CALICO, "clusterinformations"),
        ("create", "", "serviceaccounts/token"),
        ("escalate", "rbac.authorization.k8s.io", "clusterroles"),
        ("bind", "rbac.authorization.k8s.io", "clusterroles"),
        ("impersonate", "", "users"),
    ] {
        let question = Question::new(verb, group, resource);
        assert!(
            !may(&client, &question).await,
            "the coordinator may {}",
            question.text()
        );
    }
}

/// In addition to `deploy/base`, only the certificate of Calico's etcd.
#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn the_certificate_of_calicos_etcd_needs_a_separate_right() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/calico-etcd");
    let lab = ApiLab::shared().unwrap();
    lab.kubectl(&["apply", "--server-side", "-k", folder]).unwrap();
    let client = coordinator().await;
    let (here, there) = (names::NAMESPACE, "kube-system");
    let secret = || Question::new("get", "", "secrets");
    for question in [
        secret().inside(there).of("calico-etcd-secrets"),
        secret().inside(here).of("etcd"),
    ] {
        assert!(
            may(&client, &question).await,
            "the coordinator may not {}",
            question.text()
        );
    }
    for question in [
        secret(),
        secret().inside(there).of("another"),
        Question::new("list", "", "secrets").inside(here),
        Question::new("patch", "", "secrets")
            .inside(there)
            .of("calico-etcd-secrets"),
    ] {
        assert!(
            !may(&client, &question).await,
            "the coordinator may {}",
            question.text()
        );
    }
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn a_conversion_of_the_datastore_has_separate_rights() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/calico-datastore");
    let lab = ApiLab::shared().unwrap();
    lab.kubectl(&["apply", "--server-side", "-k", folder]).unwrap();
    let client = coordinator().await;
    let (here, there) = (names::NAMESPACE, "kube-system");
    let secret = || Question::new("get", "", "secrets");
    for question in [
        Question::new("patch", "apps", "daemonsets")
            .inside(there)
            .of("calico-node"),
        Question::new("patch", "apps", "deployments")
            .inside(there)
            .of("calico-kube-controllers"),
        Question::new("patch", "", "configmaps")
            .inside(there)
            .of("calico-config"),
        secret().inside(there).of("calico-etcd-secrets"),
        Question::new("create", "", "secrets").inside(here),
        secret().inside(here).of("etcd"),
        Question::new("get", "rbac.authorization.k8s.io", "clusterroles"),
    ] {
        assert!(
            may(&client, &question).await,
            "the coordinator may not {}",
            question.text()
        );
    }
    for question in [
        Question::new("patch", "apps", "deployments").inside(there),
        Question::new("patch", "", "configmaps")
            .inside(there)
            .of("coredns"),
        secret().inside(there),
        Question::new("list", "", "secrets").inside(here),
        Question::new("delete", "", "secrets").inside(here),
        Question::new("patch", "rbac.authorization.k8s.io", "clusterroles"),
    ] {
        assert!(
            !may(&client, &question).await,
            "the coordinator may {}",
            question.text()
        );
    }
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn an_operator_may_run_migrations_and_read_missing_agents() {
    let lab = ApiLab::shared().unwrap();
    lab.kubectl(&[
        "create",
        "clusterrolebinding",
        "operator",
        "--clusterrole=replumb-operator",
        "--user=olga",
    ])
    .unwrap();
    let may = |arguments: &[&str]| {
        let asked = [&["auth", "can-i", "--as=olga"], arguments].concat();
        // `can-i` exits with 1 for a no.
        lab.kubectl(&asked).is_ok_and(|answer| answer.trim() == "yes")
    };
    for good in [
        &["create", "migrations.replumb.dev"][..],
        &["patch", "migrations.replumb.dev"],
        &["delete", "migrations.replumb.dev"],
        &["watch", "nodemigrations.replumb.dev"],
        &["list", "migrationrecords.replumb.dev"],
        &["get", "connectionsamples.replumb.dev"],
        &["list", "connectionsamples.replumb.dev"],
        &["get", "leases/replumb-coordinator", "-n", "replumb-system"],
        &["get", "daemonsets.apps/replumb-agent", "-n", "replumb-system"],
    ] {
        assert!(may(good), "an operator may not {good:?}");
    }
    for bad in [
        &["patch", "nodemigrations.replumb.dev"][..],
        &["patch", "migrationrecords.replumb.dev"],
        &["patch", "connectionsamples.replumb.dev"],
        &["patch", "migrations.replumb.dev", "--subresource=status"],
        &["patch", "nodes"],
        &["update", "leases/replumb-coordinator", "-n", "replumb-system"],
        &["get", "secrets", "-A"],
    ] {
        assert!(!may(bad), "an operator may {bad:?}");
    }
    // The role is aggregated by a controller that does not run here, so the test checks only its label.
    let label = lab
        .kubectl(&["get", "clusterrole", "replumb-viewer", "--show-labels"])
        .unwrap();
    assert!(label.contains("aggregate-to-view=true"), "{label}");
}

async fn connection_sample(name: &str, node: &str) {
    let all: Api<ConnectionSample> = Api::all(ApiLab::shared().unwrap().admin().await.unwrap());
    let object: ConnectionSample = serde_json::from_value(json!({
        "apiVersion": "replumb.dev/v1alpha1", "kind": "ConnectionSample", "metadata": {"name": name},
        "spec": {"nodeName": node, "migration": "m", "capacity": 100, "ingress": ["10.244.1.7"]},
    }))
    .unwrap();
    // Another test of this file may have created it.
    match all.create(&PostParams::default(), &object).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        other => drop(other.unwrap()),
    }
}

async fn node_migration(name: &str, node: &str) {
    let all: Api<NodeMigration> = Api::all(ApiLab::shared().unwrap().admin().await.unwrap());
    let object: NodeMigration = serde_json::from_value(json!({
        "apiVersion": "replumb.dev/v1alpha1", "kind": "NodeMigration", "metadata": {"name": name},
        "spec": {"nodeName": node, "migration": "m"},
    }))
    .unwrap();
    // Another test of this file may have created it.
    match all.create(&PostParams::default(), &object).await {
        Err(kube::Error::Api(status)) if status.is_already_exists() => {}
        other => drop(other.unwrap()),
    }
}

/// The message of a forbidden request; panics if it is not forbidden.
fn forbidden<T: std::fmt::Debug>(answer: Result<T, kube::Error>, what: &str) -> String {
    match answer {
        Err(kube::Error::Api(status)) if status.is_forbidden() => status.message.clone(),
        other => panic!("{what}: wanted it forbidden, got {other:?}"),
    }
}

fn status(message: &str) -> Patch<Value> {
    Patch::Merge(json!({"status": {"message": message, "observedGeneration": 1}}))
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn an_agent_writes_only_the_facts_of_its_own_node() {
    let pods = nodes().await;
    for name in ["left", "right"] {
        node_migration(name, name).await;
    }
    let left: Api<NodeMigration> = Api::all(agent(&pods.left).await);
    let right: Api<NodeMigration> = Api::all(agent(&pods.right).await);
    let parameters = PatchParams::default();

    let written = left
        .patch_status("left", &parameters, &status("by left"))
        .await
        .unwrap();
    assert_eq!(written.status.unwrap().message, "by left");
    right
        .patch_status("right", &parameters, &status("by right"))
        .await
        .unwrap();

    let words = forbidden(
        left.patch_status("right", &parameters, &status("by left")).await,
        "left writes right",
    );
    assert!(
        words.contains("the agent on node left may not write NodeMigration right of node right"),
        "{words}"
    );
    let words = forbidden(
        right.patch_status("left", &parameters, &status("by right")).await,
        "right writes left",
    );
    assert!(
        words.contains("the agent on node right may not write NodeMigration left of node left"),
        "{words}"
    );
    assert_eq!(
        left.get("right").await.unwrap().status.unwrap().message,
        "by right"
    );

    // An object with the node's name but another `nodeName` does not belong to the agent.
    let lab = ApiLab::shared().unwrap();
    lab.node("middle").await.unwrap();
    let pod = lab
        .pod_on(names::NAMESPACE, names::AGENT, "middle")
        .await
        .unwrap();
    node_migration("middle", "elsewhere").await;
    let middle: Api<NodeMigration> = Api::all(agent(&pod).await);
    let words = forbidden(
        middle.patch_status("middle", &parameters, &status("x")).await,
        "a name alone",
    );
    assert!(
        words.contains("may not write NodeMigration middle of node elsewhere"),
        "{words}"
    );
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn an_agent_writes_only_the_sample_of_its_own_node() {
    let pods = nodes().await;
    for name in ["left", "right"] {
        connection_sample(name, name).await;
    }
    let left: Api<ConnectionSample> = Api::all(agent(&pods.left).await);
    let parameters = PatchParams::default();
    let seen = json!({
        "protocol": 6, "source": "10.244.1.9", "destination": "10.244.1.7", "port": 80, "count": 3, "replied": 3,
        "first": "2026-01-01T00:00:00Z", "last": "2026-01-01T00:00:01Z",
    });
    let status = Patch::Merge(json!({ "status": {
        "since": "2026-01-01T00:00:00Z", "last": "2026-01-01T00:00:00Z", "replaced": 0, "limitation": "one gap",
        "clientPorts": {"first": 32768, "last": 60999}, "connections": [seen],
    } }));
    let written = left.patch_status("left", &parameters, &status).await.unwrap();
    let kept = written.status.unwrap();
    assert_eq!(kept.connections.len(), 1);
    assert_eq!(kept.limitation.as_deref(), Some("one gap"));
    let words = forbidden(
        left.patch_status("right", &parameters, &status).await,
        "left writes right",
    );
    assert!(
        words.contains("the agent on node left may not write ConnectionSample right of node right"),
        "{words}"
    );
    connection_sample("other", "left").await;
    let words = forbidden(
        left.patch_status("other", &parameters, &status).await,
        "a node's name alone",
    );
    assert!(
        words.contains("may not write ConnectionSample other of node left"),
        "{words}"
    );
    let spec = Patch::Merge(json!({"spec": {"capacity": 2000}}));
    let words = forbidden(left.patch("left", &parameters, &spec).await, "its own spec");
    assert!(
        words.contains("cannot patch resource \"connectionsamples\""),
        "{words}"
    );
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn a_token_without_a_node_has_no_write_access() {
    node_migration("left", "left").await;
    let lab = ApiLab::shared().unwrap();
    let token = lab.token(names::NAMESPACE, names::AGENT, None).await.unwrap();
    let unbound: Api<NodeMigration> = Api::all(lab.with_token(&token).await.unwrap());
    unbound.get("left").await.unwrap();
    let words = forbidden(
        unbound
            .patch_status("left", &PatchParams::default(), &status("unbound"))
            .await,
        "a token without a node",
    );
    assert!(words.contains("carries no node name"), "{words}");
}

/// RBAC refuses these requests as well; the policy must hold if agents get an additional role.
#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn the_policy_restricts_an_agent_with_any_roles() {
    let pods = nodes().await;
    for name in ["left", "right"] {
        node_migration(name, name).await;
    }
    let lab = ApiLab::shared().unwrap();
    // In another namespace under the same name: an installation elsewhere is covered, too.
    lab.namespace("elsewhere").await.unwrap();
    lab.kubectl(&["-n", "elsewhere", "create", "serviceaccount", names::AGENT])
        .unwrap();
    lab.kubectl(&[
        "create",
        "clusterrolebinding",
        "too-much",
        "--clusterrole=cluster-admin",
        "--serviceaccount=elsewhere:replumb-agent",
    ])
    .unwrap();
    let pod = lab.pod_on("elsewhere", names::AGENT, "left").await.unwrap();
    let token = lab.token("elsewhere", names::AGENT, Some(&pod)).await.unwrap();
    let client = lab.with_token(&token).await.unwrap();
    let mighty: Api<NodeMigration> = Api::all(client.clone());
    // All other requests are allowed.
    Api::<Node>::all(client.clone()).get("right").await.unwrap();

    connection_sample("left", "left").await;
    let samples: Api<ConnectionSample> = Api::all(client);
    let capacity = Patch::Merge(json!({"spec": {"capacity": 2000}}));
    let words = forbidden(
        samples.patch("left", &PatchParams::default(), &capacity).await,
        "the spec of its own sample",
    );
    assert!(
        words.contains("may only update the status of a ConnectionSample; this is UPDATE"),
        "{words}"
    );

    let spec = Patch::Merge(json!({"spec": {"flannelToCalico": {"goal": "Calico"}}}));
    let words = forbidden(
        mighty.patch("left", &PatchParams::default(), &spec).await,
        "its own spec",
    );
    assert!(
        words.contains("may only update the status of a NodeMigration; this is UPDATE"),
        "{words}"
    );
    let words = forbidden(
        mighty.delete("left", &DeleteParams::default()).await,
        "its own object",
    );
    assert!(words.contains("this is DELETE"), "{words}");
    let copy: NodeMigration = serde_json::from_value(json!({
        "apiVersion": "replumb.dev/v1alpha1", "kind": "NodeMigration", "metadata": {"name": "new"},
        "spec": {"nodeName": "left", "migration": "m"},
    }))
    .unwrap();
    let words = forbidden(mighty.create(&PostParams::default(), &copy).await, "a new one");
    assert!(words.contains("this is CREATE"), "{words}");
    let parameters = PatchParams::default();
    forbidden(
        mighty.patch_status("right", &parameters, &status("x")).await,
        "the facts of right",
    );
    mighty
        .patch_status("left", &parameters, &status("its own"))
        .await
        .unwrap();

    // The installed agents have no such role: RBAC refuses before the policy.
    let plain: Api<NodeMigration> = Api::all(agent(&pods.left).await);
    let words = forbidden(
        plain.patch("left", &parameters, &spec).await,
        "a plain agent's spec",
    );
    assert!(
        words.contains("cannot patch resource \"nodemigrations\""),
        "{words}"
    );
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn the_policy_does_not_restrict_the_coordinator() {
    let goals: Api<NodeMigration> = Api::all(coordinator().await);
    let object: NodeMigration = serde_json::from_value(json!({
        "apiVersion": "replumb.dev/v1alpha1", "kind": "NodeMigration", "metadata": {"name": "goals"},
        "spec": {"nodeName": "goals", "migration": "m"},
    }))
    .unwrap();
    goals.create(&PostParams::default(), &object).await.unwrap();
    let goal = Patch::Merge(json!({"spec": {"flannelToCalico": {"goal": "Held"}}}));
    goals
        .patch("goals", &PatchParams::default(), &goal)
        .await
        .unwrap();
    let words = forbidden(
        goals
            .patch_status("goals", &PatchParams::default(), &status("made up"))
            .await,
        "a fact by the coordinator",
    );
    assert!(words.contains("nodemigrations/status"), "{words}");
    goals.delete("goals", &DeleteParams::default()).await.unwrap();
}

/// `docs/security.md`.
const SECURITY: &str = include_str!("../../docs/security.md");

/// A right in the form of the document and of the API server: scope, verb, resource, name.
type Right = (String, String, String, String);

/// Words between back quotes.
fn quoted(text: &str) -> Vec<String> {
    text.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Every row of the tables below the heading of this account.
fn documented(account: &str) -> BTreeSet<Right> {
    let heading = format!("`{account}`");
    let lines = SECURITY
        .lines()
        .skip_while(|line| !(line.starts_with("## ") && line.contains(&heading)))
        .skip(1)
        .take_while(|line| !line.starts_with("## "));
    let mut rights = BTreeSet::new();
    for line in lines.filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, resources, verbs, place, ..] = cells.as_slice() else {
            panic!("a row of docs/security.md has no four cells: {line}")
        };
        let (resources, name) = resources.split_once(" named ").unwrap_or((resources, ""));
        let place = match *place {
            "own namespace" => names::NAMESPACE.to_owned(),
            place => place.trim_matches('`').to_owned(),
        };
        for resource in quoted(resources) {
            for verb in verbs.split(", ") {
                let name = name.trim_matches('`').to_owned();
                let right = (place.clone(), verb.to_owned(), resource.clone(), name);
                // Two kinds may need the same right.
                rights.insert(right);
            }
        }
    }
    rights
}

/// The rights of this client in a namespace by RBAC, as the API server reports them.
async fn rules(client: &Client, namespace: &str) -> BTreeSet<(String, String, String)> {
    let reviews: Api<SelfSubjectRulesReview> = Api::all(client.clone());
    let review = SelfSubjectRulesReview {
        spec: SelfSubjectRulesReviewSpec {
            namespace: Some(namespace.to_owned()),
        },
        ..SelfSubjectRulesReview::default()
    };
    let answer = reviews.create(&PostParams::default(), &review).await.unwrap();
    let status = answer.status.unwrap();
    assert!(!status.incomplete, "the API server does not know all rules");
    let mut rights = BTreeSet::new();
    for rule in status.resource_rules {
        let (groups, resources) = (
            rule.api_groups.unwrap_or_default(),
            rule.resources.unwrap_or_default(),
        );
        let names = rule.resource_names.unwrap_or_else(|| vec![String::new()]);
        for verb in rule.verbs {
            for (group, resource) in groups
                .iter()
                .flat_map(|group| resources.iter().map(move |one| (group, one)))
            {
                let (plural, part) = resource.split_once('/').unwrap_or((resource, ""));
                let mut text = plural.to_owned();
                for (mark, word) in [('.', group.as_str()), ('/', part)] {
                    if !word.is_empty() {
                        text.push(mark);
                        text += word;
                    }
                }
                rights.extend(
                    names
                        .iter()
                        .map(|name| (verb.clone(), text.clone(), name.clone())),
                );
            }
        }
    }
    for rule in status.non_resource_rules {
        for path in rule.non_resource_urls.unwrap_or_default() {
            rights.extend(
                rule.verbs
                    .iter()
                    .map(|verb| (verb.clone(), path.clone(), String::new())),
            );
        }
    }
    rights
}

/// The account's rights beyond those of every account; a right in all namespaces counts as cluster-wide.
async fn granted(client: &Client, unprivileged: &Client) -> BTreeSet<Right> {
    let everywhere = rules(client, "default").await;
    let common = rules(unprivileged, "default").await;
    let in_place = |place: &str, (verb, resource, name): (String, String, String)| {
        (place.to_owned(), verb, resource, name)
    };
    let mut rights: BTreeSet<Right> = everywhere
        .difference(&common)
        .map(|right| in_place("cluster", right.clone()))
        .collect();
    for namespace in [names::NAMESPACE, "kube-system"] {
        let here = rules(client, namespace).await;
        rights.extend(
            here.difference(&everywhere)
                .map(|right| in_place(namespace, right.clone())),
        );
    }
    rights
}

#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn the_document_lists_the_rights_of_each_account() {
    let lab = ApiLab::shared().unwrap();
    for overlay in ["calico-etcd", "calico-datastore", "secure-metrics"] {
        let folder = format!("{}/../deploy/{overlay}", env!("CARGO_MANIFEST_DIR"));
        lab.kubectl(&["apply", "--server-side", "-k", &folder]).unwrap();
    }
    lab.kubectl(&["create", "serviceaccount", "unprivileged", "-n", "default"])
        .unwrap();
    let unprivileged = lab
        .with_token(&lab.token("default", "unprivileged", None).await.unwrap())
        .await
        .unwrap();
    for (account, client) in [
        (names::AGENT, agent(&nodes().await.left).await),
        (names::COORDINATOR, coordinator().await),
    ] {
        let said = documented(account);
        assert!(said.len() > 2, "docs/security.md has no table of {account}");
        // An authorizer learns of a role a moment later.
        until(
            "the roles to be known",
            Duration::from_mins(1),
            Path::new("/"),
            async || {
                let granted = granted(&client, &unprivileged).await;
                let missing: Vec<&Right> = granted.difference(&said).collect();
                let stale: Vec<&Right> = said.difference(&granted).collect();
                Ok(if missing.is_empty() && stale.is_empty() {
                    Observation::Done(())
                } else {
                    Observation::NotYet(format!(
                        "{account}: not in docs/security.md: {missing:?}; in it and not given: {stale:?}"
                    ))
                })
            },
        )
        .await
        .unwrap();
    }
}

/// An object that an overlay leaves outside of the namespace would later be the right of another account with the same name.
#[tokio::test]
#[ignore = "starts an API server: cargo lab test"]
async fn the_runbook_removes_all_installed_objects() {
    let lab = ApiLab::shared().unwrap();
    let runbook = include_str!("../../docs/runbook/common.md");
    let (_, section) = runbook.split_once("\n## Uninstall").unwrap();
    let commands: Vec<&str> = section
        .lines()
        .take_while(|line| !line.starts_with("## "))
        .filter(|line| line.starts_with("kubectl delete "))
        .collect();
    let everywhere = |command: &&&str| command.contains("--all-namespaces");
    for folder in [
        "base",
        "calico-etcd",
        "calico-datastore",
        "network-policy",
        "secure-metrics",
    ] {
        let path = format!("{}/../deploy/{folder}", env!("CARGO_MANIFEST_DIR"));
        let text = lab.kubectl(&["kustomize", &path]).unwrap();
        let objects: Vec<Value> = text
            .split("\n---\n")
            .map(|document| yaml_serde::from_str(document).unwrap())
            .collect();
        assert!(!objects.is_empty(), "{path}");
        for object in objects {
            let kind = object["kind"].as_str().unwrap().to_lowercase();
            let namespace = object["metadata"]["namespace"].as_str();
            let of_kind = |command: &&str| {
                let mut kinds = command.split(' ').nth(2).unwrap_or_default().split(',');
                kinds.any(|one| one == kind)
            };
            let deleted = match (kind.as_str(), namespace) {
                ("customresourcedefinition" | "namespace", _) | (_, Some(names::NAMESPACE)) => continue,
                (_, Some(_)) => commands.iter().filter(everywhere).any(of_kind),
                (_, None) => commands.iter().any(of_kind),
            };
            assert!(
                deleted,
                "docs/runbook/common.md leaves {kind} {}",
                object["metadata"]["name"]
            );
            assert_eq!(
                object["metadata"]["labels"]["app.kubernetes.io/part-of"], "replumb",
                "{kind} {} is not found by the label",
                object["metadata"]["name"]
            );
        }
    }
}
