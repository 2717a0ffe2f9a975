//! kube-proxy on the nodes: a `DaemonSet` as of kubeadm, or static pods with flags as of kops.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result};
use ipnet::Ipv4Net;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::Cluster;
use super::authority::{Authority, write};
use super::control_plane::server;
use super::wait::{self, Observation};

const KUBE_SYSTEM: &str = "kube-system";
const DAEMON_SET: &str = "daemonset/kube-proxy";
/// The folder on a node from which the kubelet starts static pods.
pub const STATIC_PODS: &str = "/etc/kubernetes/manifests";
const FILE: &str = "kube-proxy.yaml";
/// The user of kube-proxy that Kubernetes itself gives the needed permissions.
const USER: &str = "system:kube-proxy";
/// A kubelet looks at its files every 20 s at least.
const RESTART_LIMIT: Duration = Duration::from_mins(2);
const CLUSTER_CIDR: &str = "clusterCIDR:";

/// How kube-proxy runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
pub enum KubeProxy {
    /// A `DaemonSet` with its configuration in a `ConfigMap`.
    #[default]
    DaemonSet,
    /// A static pod on each node, with flags.
    StaticPods,
}

impl Cluster {
    /// How kube-proxy runs.
    pub async fn kube_proxy(&self) -> KubeProxy {
        self.state.lock().await.kube_proxy
    }

    /// Writes the static pod of a new node, if there are static pods.
    pub(super) async fn write_kube_proxy(&self, node: &str, authority: &Authority) -> Result<()> {
        let (kube_proxy, api_server) = {
            let state = self.state.lock().await;
            (state.kube_proxy, server(state.control_plane()))
        };
        let root = self.directory.machine(node).join("root");
        let folder = root.join(STATIC_PODS.trim_start_matches('/'));
        fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        match kube_proxy {
            KubeProxy::DaemonSet => Ok(()),
            KubeProxy::StaticPods => {
                let identity = authority.client(USER, None)?;
                let kubeconfig = authority.kubeconfig(&api_server, USER, &identity)?;
                write(&root.join("var/lib/kube-proxy/kubeconfig"), &kubeconfig)?;
                let pod = self.values().await.kube_proxy_static_pod(node)?;
                write(&folder.join(FILE), &pod)
            }
        }
    }

    /// Creates the objects of kube-proxy in the API, if it has any.
    pub(super) async fn apply_kube_proxy(&self) -> Result<()> {
        match self.kube_proxy().await {
            KubeProxy::DaemonSet => {
                let applied = self.api.apply(&self.values().await.kube_proxy()?).await;
                applied.context("apply kube-proxy").map(drop)
            }
            KubeProxy::StaticPods => Ok(()),
        }
    }

    /// Waits until kube-proxy runs on every node, with its present settings.
    pub async fn kube_proxy_runs(&self, limit: Duration) -> Result<()> {
        match self.kube_proxy().await {
            KubeProxy::DaemonSet => self.api.rolled_out(DAEMON_SET, KUBE_SYSTEM, limit).await,
            KubeProxy::StaticPods => {
                for node in self.node_names().await {
                    self.static_pod_runs(&node, "", limit).await?;
                }
                Ok(())
            }
        }
    }

    /// Waits until the kubelet of this node runs the static pod with this flag.
    async fn static_pod_runs(&self, node: &str, flag: &str, limit: Duration) -> Result<()> {
        let name = format!("kube-proxy-{node}");
        let ask = [
            "-n",
            KUBE_SYSTEM,
            "get",
            "pod",
            &name,
            "--ignore-not-found",
            "-o",
            "json",
        ];
        let what = format!("pod {name} {flag}");
        wait::until(&what, limit, &self.directory.logs(), async || {
            let text = self.api.kubectl(&ask).await?;
            if text.trim().is_empty() {
                return Ok(Observation::NotYet("no such pod".to_owned()));
            }
            let pod: Value = serde_json::from_str(&text).with_context(|| format!("parse pod {name}"))?;
            let command = pod["spec"]["containers"][0]["command"].to_string();
            let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
            let is_ready = conditions.any(|found| found["type"] == "Ready" && found["status"] == "True");
            Ok(if command.contains(flag) && is_ready {
                Observation::Done(())
            } else {
                Observation::NotYet(format!("Ready {is_ready}, command {command}"))
            })
        })
        .await
    }

    /// Sets the range that kube-proxy takes for that of pods, and lets every kube-proxy start again with it, node by node, as a user
    /// does. Returns what was done.
    pub async fn set_range_of_kube_proxy(&self, range: Ipv4Net) -> Result<String> {
        match self.kube_proxy().await {
            KubeProxy::DaemonSet => {
                self.set_configured_range(range).await?;
                Ok(format!(
                    "set clusterCIDR {range} in ConfigMap kube-proxy, and restarted kube-proxy"
                ))
            }
            KubeProxy::StaticPods => {
                let flag = format!("--cluster-cidr={range}");
                for node in self.node_names().await {
                    // The kubelet takes every file of the folder for a pod, so the new one is written elsewhere.
                    let script = format!(
                        "sed 's|--cluster-cidr=.*|{flag}|' {STATIC_PODS}/{FILE} > /etc/kubernetes/{FILE} && \
                         mv /etc/kubernetes/{FILE} {STATIC_PODS}/{FILE}"
                    );
                    self.run_in_node(&node, &["sh", "-c", &script]).await?;
                    self.static_pod_runs(&node, &flag, RESTART_LIMIT).await?;
                }
                Ok(format!(
                    "set {flag} in {STATIC_PODS}/{FILE} of each node, one after the other"
                ))
            }
        }
    }

    async fn set_configured_range(&self, range: Ipv4Net) -> Result<()> {
        let kubectl = async |arguments: &[&str]| {
            let arguments = [&["-n", KUBE_SYSTEM], arguments].concat();
            self.api.kubectl(&arguments).await
        };
        let text = kubectl(&["get", "configmap", "kube-proxy", "-o", "json"]).await?;
        let map: Value = serde_json::from_str(&text).context("parse ConfigMap kube-proxy")?;
        let text = map["data"]["config.conf"]
            .as_str()
            .context("ConfigMap kube-proxy has no config.conf")?;
        let patch = json!({ "data": { "config.conf": with_cluster_cidr(text, range) } }).to_string();
        kubectl(&["patch", "configmap", "kube-proxy", "--type=merge", "-p", &patch]).await?;
        kubectl(&["rollout", "restart", DAEMON_SET]).await.map(drop)
    }
}

fn with_cluster_cidr(text: &str, range: Ipv4Net) -> String {
    let lines = text.lines().map(|line| match line.split_once(CLUSTER_CIDR) {
        Some((indent, _)) if indent.trim().is_empty() => format!("{indent}{CLUSTER_CIDR} {range}\n"),
        _ => format!("{line}\n"),
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn with_cluster_cidr_changes_one_line() {
        let text = "kind: KubeProxyConfiguration\nclusterCIDR: 10.244.0.0/16\nmode: iptables # no clusterCIDR: here\n";
        assert_eq!(
            with_cluster_cidr(text, "10.192.0.0/10".parse().unwrap()),
            "kind: KubeProxyConfiguration\nclusterCIDR: 10.192.0.0/10\nmode: iptables # no clusterCIDR: here\n"
        );
    }
}
