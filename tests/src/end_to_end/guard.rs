//! A policy of Calico v2 that lets one pod in and another not: what the real v3 has to make of it. The stand-in enforces none.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use serde_json::{Value, json};

use crate::cluster::wait::{Observation, until};
use crate::cluster::{Cluster, Images};

const NAMESPACE: &str = "guard";
const POLICY: &str = "/calico/v1/policy/tier/default/policy/guard.one-friend";
/// The pod that is guarded, and those that ask it; their labels are their names.
const PODS: [&str; 3] = ["guarded", "friend", "stranger"];
/// It answers with this.
const ANSWER: &str = "here-I-am";
const LIMIT: Duration = Duration::from_mins(1);

/// Makes pods and, in the store of v2, the policy; everybody is still let in.
pub async fn set(cluster: &Cluster) -> Result<()> {
    cluster.api().kubectl(&["create", "namespace", NAMESPACE]).await?;
    let pods = json!({ "apiVersion": "v1", "kind": "List", "items": PODS.map(pod) });
    cluster.api().apply(&pods.to_string()).await?;
    cluster.api().pods_ready(&[NAMESPACE], LIMIT).await?;
    let of = |role: &str| format!("calico/k8s_ns == '{NAMESPACE}' && role == '{role}'");
    let policy = json!({
        "order": 100,
        "selector": of("guarded"),
        "types": ["ingress"],
        "inbound_rules": [
            { "action": "allow", "protocol": "tcp", "src_selector": of("friend"), "dst_ports": [8080] },
        ],
        "outbound_rules": [],
    });
    cluster.put_calico_v2(POLICY, &policy.to_string()).await?;
    settles(cluster, "friend", true).await?;
    settles(cluster, "stranger", true).await
}

/// A pod that answers. It asks for as much of the processor as an answer within seconds takes.
fn pod(name: &str) -> Value {
    let serve = format!("echo {ANSWER} > /tmp/index.html; exec httpd -f -p 8080 -h /tmp");
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": name, "namespace": NAMESPACE, "labels": { "role": name } },
        "spec": {
            "restartPolicy": "Never",
            "containers": [{
                "name": name, "image": Images::default().busybox, "imagePullPolicy": "Never", "command": ["sh", "-c", serve],
                "resources": { "requests": { "cpu": "50m" } },
            }],
        },
    })
}

/// The friend is let in, the stranger is not; and the policy is about nobody else.
pub async fn holds(cluster: &Cluster) -> Result<()> {
    settles(cluster, "stranger", false).await?;
    ensure!(
        is_answered(cluster, "friend", "guarded").await?,
        "the policy of v2 lets the friend in, and v3 does not"
    );
    ensure!(
        is_answered(cluster, "stranger", "friend").await?,
        "the policy of v2 is about one pod, and v3 guards another"
    );
    Ok(())
}

async fn settles(cluster: &Cluster, who: &str, is_let_in: bool) -> Result<()> {
    let what = format!(
        "pod guarded {} {who}",
        if is_let_in { "lets in" } else { "keeps out" }
    );
    until(&what, LIMIT, &cluster.directory().logs(), async || {
        Ok(match is_answered(cluster, who, "guarded").await? {
            found if found == is_let_in => Observation::Done(()),
            found => Observation::NotYet(format!("an answer: {found}")),
        })
    })
    .await
}

/// Whether a pod gets its answer from another.
async fn is_answered(cluster: &Cluster, from: &str, to: &str) -> Result<bool> {
    let pods: Api<Pod> = Api::namespaced(cluster.api().client(), NAMESPACE);
    let status = pods.get(to).await?.status.unwrap_or_default();
    let address = status
        .pod_ip
        .with_context(|| format!("pod {to} has no address"))?;
    // Its end says nothing: without an answer nc fails. What cannot be run at all prints nothing of the last line.
    let ask = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 2 {address} 8080; echo asked");
    let exec = ["exec", "-n", NAMESPACE, from, "--", "sh", "-c", &ask];
    let said = cluster.api().kubectl(&exec).await?;
    ensure!(said.contains("asked"), "pod {from} did not ask: {said}");
    Ok(said.contains(ANSWER))
}
