//! After an adoption: a `NetworkPolicy` for pods from before the migration. It allows one label of clients; clients are pods from
//! before and new ones, on the node of the server and on others.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};

use crate::cluster::wait::{Observation, until};
use crate::cluster::{Cluster, Images};
use crate::demo::Tools;
use crate::demo::scene::Scene;

const NAMESPACE: &str = "sample";
/// The workload that the policy selects. Its pods answer at this port with their names.
const SERVERS: &str = "app=web";
const PORT: u16 = 8080;
/// Clients from before that the policy allows, and those that it refuses.
const ALLOWED: &str = "app=everywhere";
const REFUSED: &str = "app in (store, lonely)";
/// The label that the policy allows, with its value.
const LABEL: (&str, &str) = ("policy-trial", "allowed");
/// The label of new clients.
const NEW: &str = "policy-trial-client";
/// Time until Felix holds a policy on each node, or has removed it.
const LIMIT: Duration = Duration::from_mins(1);

const POLICY: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: policy-trial, namespace: sample }
spec:
  podSelector: { matchLabels: { app: web } }
  policyTypes: [Ingress]
  ingress:
    - from:
        - podSelector: { matchLabels: { policy-trial: allowed } }
      ports: [{ port: 8080 }]
";

/// Whether a policy holds for pods from before the migration.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum PolicyTrial {
    /// No policy was tried, for this reason.
    NotTried(String),
    /// A policy was tried.
    Tried(Trial),
}

/// A policy that was tried.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Trial {
    /// Pods from before that the policy selects.
    pub servers: usize,
    /// Number of connections in each round, by client: from before or new, allowed or refused, on the node of the server or on
    /// another one.
    pub connections: BTreeMap<String, usize>,
    /// Seconds from the creation of the policy until each connection was as it says.
    pub seconds_until_held: f64,
    /// Seconds from the deletion of the policy until each client reached each pod.
    pub seconds_until_gone: f64,
    /// Connections that were not as the policy says. An empty list is a pass.
    pub wrong: Vec<String>,
}

/// A pod, in the few words that the trial needs.
#[derive(Clone, Debug)]
struct Member {
    name: String,
    node: String,
    address: String,
}

/// A client.
#[derive(Clone, Debug)]
struct Client {
    pod: Member,
    is_new: bool,
    is_allowed: bool,
}

impl PolicyTrial {
    /// The trial in words.
    pub fn lines(&self) -> Vec<String> {
        match self {
            Self::NotTried(why) => vec![format!("policy for pods from before: not tried: {why}")],
            Self::Tried(trial) => {
                let mut lines = vec![format!(
                    "policy for {} pods from before: held after {:.1} s, gone after {:.1} s, wrong connections: {}",
                    trial.servers,
                    trial.seconds_until_held,
                    trial.seconds_until_gone,
                    trial.wrong.len()
                )];
                let rows = trial.connections.iter();
                lines.extend(rows.map(|(class, count)| format!("  {count:>3} {class}")));
                lines
            }
        }
    }

    /// The faults.
    pub fn problems(&self) -> Vec<String> {
        match self {
            Self::NotTried(_) => Vec::new(),
            Self::Tried(trial) => {
                let missing = classes().filter(|class| !trial.connections.contains_key(class));
                let missing = missing.map(|class| format!("no connection of this class: {class}"));
                let all = trial.wrong.iter().cloned().chain(missing);
                all.map(|line| format!("policy for pods from before: {line}"))
                    .collect()
            }
        }
    }
}

/// The class of a connection.
fn class(is_new: bool, is_allowed: bool, is_on_same_node: bool) -> String {
    let age = if is_new { "new" } else { "from before" };
    let verdict = if is_allowed { "allowed" } else { "refused" };
    let place = if is_on_same_node {
        "same node"
    } else {
        "another node"
    };
    format!("{age}, {verdict}, {place}")
}

/// Every class: a trial without one of them proves too little.
fn classes() -> impl Iterator<Item = String> {
    let both = [false, true];
    let pairs = both
        .into_iter()
        .flat_map(move |one| both.map(|other| (one, other)));
    pairs.flat_map(move |(is_new, is_allowed)| both.map(|same| class(is_new, is_allowed, same)))
}

/// Tries a policy. The stand-in for Calico enforces none.
pub async fn try_policy(scene: &Scene<'_>, tools: &Tools) -> Result<PolicyTrial> {
    if !tools.calico_is_real {
        let why = "the stand-in for Calico enforces no NetworkPolicy";
        scene.say(format_args!("no policy is tried: {why}"));
        return Ok(PolicyTrial::NotTried(why.to_owned()));
    }
    scene.say("a NetworkPolicy for pods from before");
    let cluster = scene.cluster;
    let servers = members(cluster, SERVERS).await?;
    let old = [members(cluster, ALLOWED).await?, members(cluster, REFUSED).await?];
    let uids: BTreeSet<String> = servers
        .iter()
        .chain(old.iter().flatten())
        .map(|(_, uid)| uid.clone())
        .collect();
    let new = scene.new_pods(&uids);
    ensure!(
        new == 0,
        "pods of the trial that were created since the migration began: found {new}, needed none"
    );
    let servers: Vec<Member> = servers.into_iter().map(|(pod, _)| pod).collect();
    let clients = clients(cluster, old).await?;
    let trial = measure(cluster, &servers, &clients).await?;
    remove(cluster).await?;
    let trial = PolicyTrial::Tried(trial);
    for line in trial.lines() {
        scene.say(line);
    }
    Ok(trial)
}

/// Gives allowed clients from before their label, and creates new clients of both sorts on each node.
async fn clients(cluster: &Cluster, old: [Vec<(Member, String)>; 2]) -> Result<Vec<Client>> {
    let (key, value) = LABEL;
    let label = format!("{key}={value}");
    kubectl(cluster, &["label", "pods", "-l", ALLOWED, &label]).await?;
    let nodes = cluster.node_names().await;
    let manifests = nodes
        .iter()
        .flat_map(|node| [true, false].map(|is_allowed| client(node, is_allowed)));
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": manifests.collect::<Vec<_>>() });
    cluster.api().apply(&list.to_string()).await?;
    cluster.api().pods_ready(&[NAMESPACE], LIMIT).await?;
    let [allowed, refused] = old;
    let mut clients = Vec::new();
    for (pods, is_new, is_allowed) in [
        (allowed, false, true),
        (refused, false, false),
        (members(cluster, &format!("{NEW}={value}")).await?, true, true),
        (members(cluster, &format!("{NEW}=refused")).await?, true, false),
    ] {
        ensure!(
            !pods.is_empty(),
            "the trial has no client that is new: {is_new} and allowed: {is_allowed}"
        );
        clients.extend(pods.into_iter().map(|(pod, _)| Client {
            pod,
            is_new,
            is_allowed,
        }));
    }
    Ok(clients)
}

/// A client on a node.
fn client(node: &str, is_allowed: bool) -> Value {
    let (key, value) = LABEL;
    let sort = if is_allowed { value } else { "refused" };
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": format!("{NEW}-{sort}-{node}"), "namespace": NAMESPACE, "labels": { NEW: sort } },
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 1, "tolerations": [{ "operator": "Exists" }],
            "containers": [{
                "name": "client", "image": Images::default().busybox, "imagePullPolicy": "Never",
                "command": ["sh", "-c", "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done"],
            }],
        },
    });
    if is_allowed {
        pod["metadata"]["labels"][key] = json!(value);
    }
    pod
}

/// Pods with their UIDs.
async fn members(cluster: &Cluster, labels: &str) -> Result<Vec<(Member, String)>> {
    let pods: Api<Pod> = Api::namespaced(cluster.api().client(), NAMESPACE);
    let list = pods.list(&ListParams::default().labels(labels)).await;
    let list = list.with_context(|| format!("list the pods {labels} of {NAMESPACE}"))?;
    let members = list.items.into_iter().map(|pod| {
        let name = pod.name_any();
        let status = pod.status.clone().unwrap_or_default();
        let member = Member {
            node: pod
                .spec
                .as_ref()
                .and_then(|spec| spec.node_name.clone())
                .unwrap_or_default(),
            address: status
                .pod_ip
                .with_context(|| format!("pod {name} has no address"))?,
            name,
        };
        Ok((member, pod.uid().unwrap_or_default()))
    });
    let members: Vec<_> = members.collect::<Result<_>>()?;
    ensure!(!members.is_empty(), "no pod {labels} in namespace {NAMESPACE}");
    Ok(members)
}

/// Without the policy, with it, and without it again.
async fn measure(cluster: &Cluster, servers: &[Member], clients: &[Client]) -> Result<Trial> {
    let all = |_: &Client| true;
    let allowed = |client: &Client| client.is_allowed;
    let mut trial = Trial {
        servers: servers.len(),
        connections: connections(servers, clients),
        ..Trial::default()
    };
    if let Err(error) = until_as(cluster, "before the policy", servers, clients, all).await {
        trial.wrong.push(format!("{error:#}"));
        return Ok(trial);
    }
    let started = Instant::now();
    cluster
        .api()
        .apply(POLICY)
        .await
        .context("create the policy of the trial")?;
    if let Err(error) = until_as(cluster, "under the policy", servers, clients, allowed).await {
        trial.wrong.push(format!("{error:#}"));
    }
    trial.seconds_until_held = started.elapsed().as_secs_f64();
    // The policy holds everywhere now: one more round must be as it says, without a wait.
    let again = wrong(cluster, servers, clients, allowed).await?;
    trial
        .wrong
        .extend(again.into_iter().map(|line| format!("under the policy: {line}")));
    let started = Instant::now();
    kubectl(cluster, &["delete", "networkpolicy", "policy-trial"]).await?;
    if let Err(error) = until_as(cluster, "after the policy", servers, clients, all).await {
        trial.wrong.push(format!("{error:#}"));
    }
    trial.seconds_until_gone = started.elapsed().as_secs_f64();
    Ok(trial)
}

/// Counts the connections by class.
fn connections(servers: &[Member], clients: &[Client]) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for client in clients {
        for server in servers {
            let is_on_same_node = client.pod.node == server.node;
            let class = class(client.is_new, client.is_allowed, is_on_same_node);
            *counts.entry(class).or_default() += 1;
        }
    }
    counts
}

/// Waits until exactly these clients reach every server.
async fn until_as(
    cluster: &Cluster,
    when: &str,
    servers: &[Member],
    clients: &[Client],
    reaches: fn(&Client) -> bool,
) -> Result<()> {
    until(when, LIMIT, &cluster.directory().logs(), async || {
        let wrong = wrong(cluster, servers, clients, reaches).await?;
        Ok(if wrong.is_empty() {
            Observation::Done(())
        } else {
            Observation::NotYet(wrong.join(", "))
        })
    })
    .await
}

/// The connections that are not as expected.
async fn wrong(
    cluster: &Cluster,
    servers: &[Member],
    clients: &[Client],
    reaches: fn(&Client) -> bool,
) -> Result<Vec<String>> {
    let asked = clients.iter().map(|client| ask(cluster, &client.pod, servers));
    let answers = try_join_all(asked).await?;
    let mut wrong = Vec::new();
    for (client, answers) in clients.iter().zip(answers) {
        for server in servers {
            let answered = answers.contains(&server.name);
            if answered != reaches(client) {
                let found = if answered { "reaches" } else { "does not reach" };
                wrong.push(format!("{} {found} {}", client.pod.name, server.name));
            }
        }
    }
    Ok(wrong)
}

/// The names of the servers that answer to a client. Every answer has the name of its pod.
async fn ask(cluster: &Cluster, client: &Member, servers: &[Member]) -> Result<BTreeSet<String>> {
    let addresses: Vec<&str> = servers.iter().map(|server| server.address.as_str()).collect();
    let script = format!(
        "for server in {}; do (name=$(printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 3 $server {PORT} | tail -n 1); \
         echo \"answer $name\") & done; wait; echo asked",
        addresses.join(" ")
    );
    let output = kubectl(cluster, &["exec", &client.name, "--", "sh", "-c", &script]).await?;
    ensure!(
        output.contains("asked"),
        "pod {} sent no request: {output}",
        client.name
    );
    let lines = output.lines().filter_map(|line| line.strip_prefix("answer "));
    Ok(lines.map(|name| name.trim().to_owned()).collect())
}

/// Removes the new clients, and the label from the others.
async fn remove(cluster: &Cluster) -> Result<()> {
    let (key, _) = LABEL;
    kubectl(cluster, &["delete", "pods", "-l", NEW, "--wait"]).await?;
    kubectl(cluster, &["label", "pods", "-l", ALLOWED, &format!("{key}-")]).await?;
    Ok(())
}

async fn kubectl(cluster: &Cluster, arguments: &[&str]) -> Result<String> {
    cluster
        .api()
        .kubectl(&[&["-n", NAMESPACE], arguments].concat())
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, node: &str) -> Member {
        Member {
            name: name.to_owned(),
            node: node.to_owned(),
            address: "10.244.1.5".to_owned(),
        }
    }

    #[test]
    fn connections_are_counted_by_age_verdict_and_place() {
        let client = |node: &str, is_new, is_allowed| Client {
            pod: member("client", node),
            is_new,
            is_allowed,
        };
        let servers = [member("web-1", "n1"), member("web-2", "n2")];
        let clients = [client("n1", false, true), client("n3", true, false)];
        let expected = [
            ("from before, allowed, another node", 1),
            ("from before, allowed, same node", 1),
            ("new, refused, another node", 2),
        ];
        let expected = expected.map(|(class, count)| (class.to_owned(), count));
        assert_eq!(connections(&servers, &clients), BTreeMap::from(expected));
    }

    #[test]
    fn a_wrong_connection_is_a_problem_and_a_policy_that_was_not_tried_is_said() {
        let mut trial = Trial {
            servers: 3,
            connections: classes().map(|class| (class, 1)).collect(),
            wrong: vec!["store-0 reaches web-1".to_owned()],
            ..Trial::default()
        };
        let problems = |trial: &Trial| PolicyTrial::Tried(trial.clone()).problems();
        assert_eq!(
            problems(&trial),
            ["policy for pods from before: store-0 reaches web-1"]
        );
        trial.wrong.clear();
        assert!(problems(&trial).is_empty());
        trial.connections.remove("new, refused, same node").unwrap();
        assert_eq!(
            problems(&trial),
            ["policy for pods from before: no connection of this class: new, refused, same node"]
        );
        let not = PolicyTrial::NotTried("a stand-in".to_owned());
        assert_eq!(
            not.lines(),
            ["policy for pods from before: not tried: a stand-in"]
        );
        assert!(not.problems().is_empty());
    }
}
