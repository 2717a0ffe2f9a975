//! A pod with a host port keeps its features when it is adopted, and nothing of it remains on its node at its end.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::cluster::Cluster;
use crate::cluster::wait::{Observation, until};

const NAMESPACE: &str = "sample";
const POD: &str = "adopted";
const NODE: &str = "lab-worker-1";
const OTHER_NODE: &str = "lab-worker-2";
/// An unassigned port.
const HOST_PORT: &str = "18081";
const LIMIT: Duration = Duration::from_mins(1);

/// Has portmap create its own chains, which stay: later states of the host are compared with them.
pub(super) async fn prepare(cluster: &Cluster) -> Result<()> {
    start(cluster).await?;
    ends(cluster).await
}

/// Creates the pod, and waits until its host port answers.
pub(super) async fn start(cluster: &Cluster) -> Result<()> {
    let image = crate::cluster::Images::default().busybox;
    let pod = format!(
        "
apiVersion: v1
kind: Pod
metadata: {{ name: {POD}, namespace: {NAMESPACE} }}
spec:
  nodeName: {NODE}
  terminationGracePeriodSeconds: 0
  containers:
    - name: web
      image: '{image}'
      imagePullPolicy: Never
      command: [busybox, httpd, -f, -p, '80', -h, /]
      ports: [{{ containerPort: 80, hostPort: {HOST_PORT} }}]
      readinessProbe: {{ tcpSocket: {{ port: 80 }}, periodSeconds: 1 }}
"
    );
    cluster.api().apply(&pod).await?;
    answers_from(cluster, OTHER_NODE).await
}

/// Checks that the pod is one of Calico, and its paths that no probe of the lab uses: its host port from its own node, from another one
/// and from itself (the host masquerades it), exec, and a forwarded port. The probes of the lab ask name servers.
pub(super) async fn works(cluster: &Cluster) -> Result<()> {
    let link = link(cluster, &address(cluster).await?).await?;
    ensure!(link.starts_with("cali"), "the pod has link {link}");
    for node in [OTHER_NODE, NODE] {
        answers_from(cluster, node).await?;
    }
    reaches_itself(cluster).await?;
    let name = cluster
        .api()
        .kubectl(&["-n", NAMESPACE, "exec", POD, "--", "hostname"])
        .await?;
    ensure!(name.trim() == POD, "the command in the pod printed {name:?}");
    let answer = cluster
        .api()
        .ask_through_forward(NAMESPACE, POD, "80", "/etc/hostname")
        .await?;
    ensure!(answer.trim() == POD, "the forwarded port is of {answer:?}");
    let path = "jsonpath={.status.containerStatuses[0].ready} {.status.containerStatuses[0].restartCount}";
    let state = get(cluster, &["pod", POD, "-o", path]).await?;
    ensure!(state == "true 0", "ready, and restarts: {state}");
    Ok(())
}

/// Deletes the pod, and waits until nothing of it remains on its node: link, route, lease, record, port, rules for its frames.
pub(super) async fn ends(cluster: &Cluster) -> Result<()> {
    let address = address(cluster).await?;
    let link = link(cluster, &address).await?;
    delete(cluster).await?;
    // Every command lists lines; one that fails because an object is missing lists none.
    let mut script = format!(
        "type ip iptables-save nft >/dev/null || exit 1; ip route show {address}; \
         ip neighbour show {address} nud permanent; ls /var/lib/cni/networks/*/{address} 2>/dev/null; \
         grep -l '\"{address}' /var/lib/cni/results/* 2>/dev/null; \
         iptables-save | grep -e 'dports* {HOST_PORT} ' -e {address}/32; nft list ruleset | grep 'dport {HOST_PORT} '; true"
    );
    // Not before the adoption: the route leads to the bridge.
    if link.starts_with("cali") {
        script = format!("ip -o link show {link} 2>/dev/null; nft list ruleset | grep {link}; {script}");
    }
    until(
        "nothing of the pod remains on its node",
        LIMIT,
        &cluster.directory().logs(),
        async || {
            let rest = cluster.run_in_node(NODE, &["bash", "-c", &script]).await?;
            Ok(if rest.trim().is_empty() {
                Observation::Done(())
            } else {
                Observation::NotYet(rest)
            })
        },
    )
    .await
}

async fn delete(cluster: &Cluster) -> Result<()> {
    let arguments = ["-n", NAMESPACE, "delete", "pod", POD, "--wait"];
    cluster.api().kubectl(&arguments).await.map(drop)
}

async fn get(cluster: &Cluster, arguments: &[&str]) -> Result<String> {
    let all = [&["-n", NAMESPACE, "get"], arguments].concat();
    cluster.api().kubectl(&all).await
}

/// Asks the host port from the network namespace of the pod.
async fn reaches_itself(cluster: &Cluster) -> Result<()> {
    let (own, node) = (address(cluster).await?, node_address(cluster).await?);
    let ask = ask(&node);
    let script = format!(
        "for namespace in /run/netns/*; do \
           if nsenter --net=$namespace ip -o address | grep -q ' {own}/'; then \
             exec nsenter --net=$namespace timeout 5 bash -c \"$1\"; \
           fi; \
         done; echo 'no network namespace has {own}'; exit 1"
    );
    let answer = cluster
        .run_in_node(NODE, &["bash", "-c", &script, "ask", &ask])
        .await?;
    ensure!(
        answer.trim_end().ends_with(POD),
        "the pod at its host port: {answer}"
    );
    Ok(())
}

/// A question in bash to the host port: not every machine has an HTTP client.
fn ask(address: &str) -> String {
    format!(
        "exec 3<>/dev/tcp/{address}/{HOST_PORT} && printf 'GET /etc/hostname HTTP/1.0\\r\\n\\r\\n' >&3 && cat <&3"
    )
}

async fn address(cluster: &Cluster) -> Result<String> {
    get(cluster, &["pod", POD, "-o", "jsonpath={.status.podIP}"]).await
}

async fn node_address(cluster: &Cluster) -> Result<String> {
    let path = "jsonpath={.status.addresses[?(@.type=='InternalIP')].address}";
    get(cluster, &["node", NODE, "-o", path]).await
}

/// The link by which the node reaches this address.
async fn link(cluster: &Cluster, address: &str) -> Result<String> {
    let route = cluster
        .run_in_node(NODE, &["ip", "route", "get", address])
        .await?;
    let mut words = route.split_whitespace().skip_while(|word| *word != "dev");
    let link = words.nth(1).with_context(|| format!("no link in {route:?}"))?;
    Ok(link.to_owned())
}

/// Waits until the host port answers to this node.
async fn answers_from(cluster: &Cluster, node: &str) -> Result<()> {
    let ask = ask(&node_address(cluster).await?);
    let what = format!("port {HOST_PORT} of {NODE} answers to {node}");
    until(&what, LIMIT, &cluster.directory().logs(), async || {
        let tried = cluster
            .run_in_node(node, &["timeout", "3", "bash", "-c", &ask])
            .await;
        Ok(match tried {
            Ok(answer) if answer.trim_end().ends_with(POD) => Observation::Done(()),
            Ok(answer) => Observation::NotYet(answer),
            Err(error) => Observation::NotYet(format!("{error:#}")),
        })
    })
    .await
}
