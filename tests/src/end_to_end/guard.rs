//! A policy of Calico v2 that allows connections from one pod and not from another: the real v3 must enforce the converted
//! policy. The stand-in enforces no policies.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use serde_json::{Value, json};

use crate::cluster::wait::{Observation, until};
use crate::cluster::{Cluster, Images};

const NAMESPACE: &str = "guard";
const POLICY: &str = "/calico/v1/policy/tier/default/policy/guard.one-friend";
/// The guarded pod, and its clients; their labels are their names.
const PODS: [&str; 3] = ["guarded", "friend", "stranger"];
/// The answer of the pods.
const ANSWER: &str = "here-I-am";
const LIMIT: Duration = Duration::from_mins(1);

/// Creates the pods and, in the store of v2, the policy; v2 does not enforce it, so every connection is still allowed.
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
    until_answered(cluster, "friend", true).await?;
    until_answered(cluster, "stranger", true).await
}

/// A pod that answers. It requests enough processor time for an answer within seconds.
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

/// Checks that the policy allows the friend, denies the stranger, and affects no other pod.
pub async fn holds(cluster: &Cluster) -> Result<()> {
    until_answered(cluster, "stranger", false).await?;
    ensure!(
        is_answered(cluster, "friend", "guarded").await?,
        "the policy of v2 allows the friend, but v3 denies it"
    );
    ensure!(
        is_answered(cluster, "stranger", "friend").await?,
        "the policy of v2 selects one pod, but v3 enforces it on another"
    );
    Ok(())
}

async fn until_answered(cluster: &Cluster, client: &str, is_allowed: bool) -> Result<()> {
    let what = format!(
        "pod guarded {} pod {client}",
        if is_allowed { "answers" } else { "does not answer" }
    );
    until(&what, LIMIT, &cluster.directory().logs(), async || {
        Ok(match is_answered(cluster, client, "guarded").await? {
            found if found == is_allowed => Observation::Done(()),
            found => Observation::NotYet(format!("answered: {found}")),
        })
    })
    .await
}

/// Whether a pod gets an answer from another pod.
async fn is_answered(cluster: &Cluster, from: &str, to: &str) -> Result<bool> {
    let pods: Api<Pod> = Api::namespaced(cluster.api().client(), NAMESPACE);
    let status = pods.get(to).await?.status.unwrap_or_default();
    let address = status
        .pod_ip
        .with_context(|| format!("pod {to} has no address"))?;
    // The exit code is not used: without an answer nc fails. The last line proves that the command ran.
    let ask = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 2 {address} 8080; echo asked");
    let exec = ["exec", "-n", NAMESPACE, from, "--", "sh", "-c", &ask];
    let output = cluster.api().kubectl(&exec).await?;
    ensure!(output.contains("asked"), "pod {from} sent no request: {output}");
    Ok(output.contains(ANSWER))
}
