//! Shows when Felix has programmed the policies on every node: one pod on each node is isolated by a policy that is created last.
//! Felix takes policies in the order of their creation.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};
use traffic::ask::{Answer, Means, Question};

use super::asker::Asker;
use super::fleet;
use crate::cluster::wait::{Observation, until};
use crate::cluster::{Cluster, Images};

const NAMESPACE: &str = "canary";
const CLIENT: &str = "client";
const PORT: u16 = 8080;
const LIMIT: Duration = Duration::from_mins(2);
/// Long enough that silence means a policy and not a busy machine: a connection is tried three times in it.
const WAIT: Duration = Duration::from_millis(2500);

const POLICY: &str = "
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: { name: canary, namespace: canary }
spec:
  podSelector: { matchLabels: { app: server } }
  policyTypes: [Ingress]
";

/// The pods, and the process that asks them.
#[derive(Debug)]
pub struct Canary {
    asker: Asker,
    servers: Vec<SocketAddr>,
}

impl Canary {
    /// Creates one server on each node, and the client.
    pub async fn create(cluster: &Cluster) -> Result<Self> {
        cluster.api().kubectl(&["create", "namespace", NAMESPACE]).await?;
        cluster.api().admits_pods(NAMESPACE, LIMIT).await?;
        let nodes = cluster.node_names().await;
        let first = nodes.first().context("the lab has no node")?;
        let servers = nodes
            .iter()
            .map(|node| pod(&format!("server-{node}"), "server", node));
        let items: Vec<Value> = servers.chain([pod(CLIENT, CLIENT, first)]).collect();
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": items });
        cluster.api().apply(&list.to_string()).await?;
        cluster.api().pods_ready(&[NAMESPACE], LIMIT).await?;
        let pods: Api<Pod> = Api::namespaced(cluster.api().client(), NAMESPACE);
        let selected = ListParams::default().labels("app=server");
        let servers: Vec<SocketAddr> = pods
            .list(&selected)
            .await
            .context("list the pods of the canary")?
            .iter()
            .filter_map(|pod| fleet::addresses(pod).into_iter().find(std::net::IpAddr::is_ipv4))
            .map(|address| SocketAddr::new(address, PORT))
            .collect();
        ensure!(
            servers.len() == nodes.len(),
            "pods of the canary with an address: found {}, needed {}",
            servers.len(),
            nodes.len()
        );
        let mut canary = Self {
            asker: Asker::in_pod(cluster, NAMESPACE, CLIENT).await?,
            servers,
        };
        canary
            .until(cluster, "every pod of the canary answers", is_answered)
            .await?;
        Ok(canary)
    }

    /// Waits until all of these servers answer.
    pub async fn reaches(&mut self, cluster: &Cluster, servers: &[Question]) -> Result<()> {
        let logs = cluster.directory().logs();
        until("every measured pod answers", LIMIT, &logs, async || {
            let answers = self.asker.ask(servers.to_vec(), WAIT).await?;
            let others = answers
                .iter()
                .zip(servers)
                .filter(|(answer, _)| !is_answered(answer));
            let others: Vec<String> = others
                .map(|(answer, question)| format!("{}: {answer:?}", question.server))
                .collect();
            Ok(if others.is_empty() {
                Observation::Done(())
            } else {
                Observation::NotYet(others.join(", "))
            })
        })
        .await
    }

    /// Creates the policy, and waits until Felix holds it on every node. Returns the time from its creation.
    pub async fn hold(&mut self, cluster: &Cluster) -> Result<Duration> {
        let started = Instant::now();
        cluster
            .api()
            .apply(POLICY)
            .await
            .context("create the policy of the canary")?;
        let what = "Felix holds the last policy on every node";
        self.until(cluster, what, |answer| *answer == Answer::Silent)
            .await?;
        Ok(started.elapsed())
    }

    /// An error if a node does not hold the policy any more.
    pub async fn is_held(&mut self) -> Result<()> {
        let answers = self.ask().await?;
        ensure!(
            answers.iter().all(|answer| *answer == Answer::Silent),
            "a node no longer holds the policy of the canary: {answers:?}"
        );
        Ok(())
    }

    /// Deletes the policy, and waits until Felix has forgotten it on every node.
    pub async fn release(&mut self, cluster: &Cluster) -> Result<()> {
        let delete = ["-n", NAMESPACE, "delete", "networkpolicies", "--all"];
        cluster.api().kubectl(&delete).await?;
        self.until(
            cluster,
            "Felix has removed the last policy on every node",
            is_answered,
        )
        .await
    }

    async fn until(&mut self, cluster: &Cluster, what: &str, is: fn(&Answer) -> bool) -> Result<()> {
        until(what, LIMIT, &cluster.directory().logs(), async || {
            let answers = self.ask().await?;
            Ok(if answers.iter().all(is) {
                Observation::Done(())
            } else {
                Observation::NotYet(format!("{answers:?}"))
            })
        })
        .await
    }

    async fn ask(&mut self) -> Result<Vec<Answer>> {
        let questions = self.servers.iter().map(|server| Question {
            means: Means::Tcp,
            server: *server,
        });
        self.asker.ask(questions.collect(), WAIT).await
    }
}

fn is_answered(answer: &Answer) -> bool {
    matches!(answer, Answer::Answered(_))
}

fn pod(name: &str, app: &str, node: &str) -> Value {
    let arguments = [
        "answer".to_owned(),
        format!("--name={name}"),
        format!("--tcp={PORT}"),
    ];
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": NAMESPACE, "labels": { "app": app } },
        "spec": {
            "nodeName": node, "terminationGracePeriodSeconds": 1, "tolerations": [{ "operator": "Exists" }],
            "containers": [{
                "name": "answer", "image": Images::default().traffic, "imagePullPolicy": "Never", "args": arguments,
            }],
        },
    })
}
