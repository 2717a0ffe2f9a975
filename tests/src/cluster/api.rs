//! The lab's own access to the cluster through the API.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::{Node, Pod, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, ResourceExt};
use serde_json::json;

use super::command;
use super::wait::{Observation, until};

/// The lab's field manager.
pub const FIELD_MANAGER: &str = "replumb-lab";

/// Access to the API with kube-rs and with kubectl.
#[derive(Clone)]
pub struct ClusterApi {
    client: Client,
    kubectl: PathBuf,
    kubeconfig: PathBuf,
    logs: PathBuf,
}

impl std::fmt::Debug for ClusterApi {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter
            .debug_struct("ClusterApi")
            .field("kubeconfig", &self.kubeconfig)
            .finish_non_exhaustive()
    }
}

impl ClusterApi {
    /// Opens the cluster of a kubeconfig, without a request.
    pub async fn open(kubeconfig: &Path, kubectl: &Path, logs: &Path) -> Result<Self> {
        let parsed = Kubeconfig::read_from(kubeconfig)
            .with_context(|| format!("read the kubeconfig {}", kubeconfig.display()))?;
        let mut config = Config::from_custom_kubeconfig(parsed, &KubeConfigOptions::default())
            .await
            .context("use the lab's kubeconfig")?;
        // A proxy from the host's environment cannot reach the lab's own addresses.
        config.proxy_url = None;
        config.connect_timeout = Some(Duration::from_secs(5));
        config.read_timeout = Some(Duration::from_secs(30));
        let client = Client::try_from(config).context("create a client for the lab's API server")?;
        Ok(Self {
            client,
            kubectl: kubectl.into(),
            kubeconfig: kubeconfig.into(),
            logs: logs.into(),
        })
    }

    /// The client.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Runs kubectl and returns its output.
    pub async fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        command::run(&self.kubectl.to_string_lossy(), &self.with_kubeconfig(arguments)).await
    }

    /// The body of an HTTP answer of a pod, through a port that kubectl forwards.
    pub async fn ask_through_forward(
        &self,
        namespace: &str,
        pod: &str,
        port: &str,
        path: &str,
    ) -> Result<String> {
        const SCRIPT: &str = r#"
            pod=$1 port=$2 path=$3; shift 3
            coproc "$@" port-forward "pod/$pod" ":$port"
            trap 'kill $COPROC_PID' EXIT
            read -r -u "${COPROC[0]}" line
            own=${line#*127.0.0.1:}
            exec 3<>"/dev/tcp/127.0.0.1/${own%% *}"
            printf 'GET %s HTTP/1.0\r\n\r\n' "$path" >&3
            sed '1,/^\r$/d' <&3
        "#;
        let kubectl = self.kubectl.to_string_lossy();
        let mut arguments: Vec<String> = ["30", "bash", "-c", SCRIPT, "forward", pod, port, path, &kubectl]
            .map(str::to_owned)
            .into();
        arguments.extend(self.with_kubeconfig(&["-n", namespace]));
        command::run("timeout", &arguments).await
    }

    /// Applies manifests as the lab's field manager.
    pub async fn apply(&self, manifests: &str) -> Result<()> {
        let manager = format!("--field-manager={FIELD_MANAGER}");
        let arguments = ["apply", "--server-side", "--force-conflicts", &manager, "-f", "-"];
        let kubectl = self.kubectl.to_string_lossy();
        command::run_with_input(&kubectl, &self.with_kubeconfig(&arguments), manifests)
            .await
            .map(drop)
    }

    fn with_kubeconfig(&self, arguments: &[&str]) -> Vec<String> {
        let kubeconfig = format!("--kubeconfig={}", self.kubeconfig.display());
        std::iter::once(kubeconfig)
            .chain(arguments.iter().map(|argument| (*argument).to_owned()))
            .collect()
    }

    /// Waits until the API server reports that it is ready.
    pub async fn ready(&self, limit: Duration) -> Result<()> {
        until("the API server's /readyz", limit, &self.logs, async || {
            let request = http_get("/readyz")?;
            let answer = self.client.request_text(request).await?;
            Ok(if answer == "ok" {
                Observation::Done(())
            } else {
                Observation::NotYet(answer)
            })
        })
        .await
    }

    /// Waits until each of these nodes has a Node object.
    pub async fn nodes_registered(&self, names: &[String], limit: Duration) -> Result<()> {
        let api: Api<Node> = Api::all(self.client());
        until(
            &format!("nodes {} to register", names.join(", ")),
            limit,
            &self.logs,
            async || {
                let nodes = api.list_metadata(&ListParams::default()).await?.items;
                let there = |name: &&String| nodes.iter().any(|node| node.name_any() == **name);
                let missing: Vec<&str> = names
                    .iter()
                    .filter(|name| !there(name))
                    .map(String::as_str)
                    .collect();
                Ok(if missing.is_empty() {
                    Observation::Done(())
                } else {
                    Observation::NotYet(format!("not there: {}", missing.join(", ")))
                })
            },
        )
        .await
    }

    /// Waits until each of these nodes is Ready.
    pub async fn nodes_ready(&self, names: &[String], limit: Duration) -> Result<()> {
        let api: Api<Node> = Api::all(self.client());
        until(
            &format!("nodes {} to be Ready", names.join(", ")),
            limit,
            &self.logs,
            async || {
                let nodes = api.list(&ListParams::default()).await?.items;
                let not_ready: Vec<String> = names
                    .iter()
                    .filter_map(|name| match nodes.iter().find(|node| node.name_any() == *name) {
                        None => Some(format!("{name}: not registered")),
                        Some(node) => node_trouble(node).map(|trouble| format!("{name}: {trouble}")),
                    })
                    .collect();
                Ok(if not_ready.is_empty() {
                    Observation::Done(())
                } else {
                    Observation::NotYet(not_ready.join("; "))
                })
            },
        )
        .await
    }

    /// Waits until a node is reported as not Ready.
    pub async fn node_not_ready(&self, name: &str, limit: Duration) -> Result<()> {
        let api: Api<Node> = Api::all(self.client());
        until(
            &format!("node {name} to be NotReady"),
            limit,
            &self.logs,
            async || {
                let node = api.get(name).await?;
                Ok(if node_trouble(&node).is_some() {
                    Observation::Done(())
                } else {
                    Observation::NotYet("the node is Ready".into())
                })
            },
        )
        .await
    }

    /// Waits until each of these namespaces has at least one pod and all its pods are Ready.
    pub async fn pods_ready(&self, namespaces: &[&str], limit: Duration) -> Result<()> {
        until(
            &format!("the pods of {} to be Ready", namespaces.join(", ")),
            limit,
            &self.logs,
            async || {
                let mut trouble = Vec::new();
                for namespace in namespaces {
                    let api: Api<Pod> = Api::namespaced(self.client(), namespace);
                    let pods = api.list(&ListParams::default()).await?.items;
                    if pods.is_empty() {
                        trouble.push(format!("{namespace}: no pod yet"));
                    }
                    let waiting = pods.iter().filter_map(|pod| {
                        pod_trouble(pod).map(|trouble| format!("{namespace}/{}: {trouble}", pod.name_any()))
                    });
                    trouble.extend(waiting);
                }
                Ok(if trouble.is_empty() {
                    Observation::Done(())
                } else {
                    Observation::NotYet(trouble.join("; "))
                })
            },
        )
        .await
    }

    /// Waits until a workload (`KIND/NAME`) is rolled out: every desired replica is Ready and new.
    pub async fn rolled_out(&self, workload: &str, namespace: &str, limit: Duration) -> Result<()> {
        let limit_argument = format!("--timeout={}s", limit.as_secs());
        let Err(error) = self
            .kubectl(&["rollout", "status", workload, "-n", namespace, &limit_argument])
            .await
        else {
            return Ok(());
        };
        // kubectl reports only its timeout; the pods have the reason.
        let pods: Api<Pod> = Api::namespaced(self.client(), namespace);
        let pods = pods
            .list(&ListParams::default())
            .await
            .map(|list| list.items)
            .unwrap_or_default();
        let trouble: Vec<String> = pods
            .iter()
            .filter_map(|pod| pod_trouble(pod).map(|trouble| format!("{}: {trouble}", pod.name_any())))
            .collect();
        Err(error).with_context(|| {
            let logs = self.logs.display();
            format!(
                "wait for {workload} in {namespace}; not Ready there: {}; logs: {logs}",
                trouble.join("; ")
            )
        })
    }

    /// Waits until every definition of a group is served.
    pub async fn definitions_established(&self, group: &str, limit: Duration) -> Result<()> {
        let api: Api<CustomResourceDefinition> = Api::all(self.client());
        until(
            &format!("the definitions of {group}"),
            limit,
            &self.logs,
            async || {
                let all = api.list(&ListParams::default()).await?.items;
                let ours: Vec<_> = all
                    .iter()
                    .filter(|definition| definition.spec.group == group)
                    .collect();
                let waiting: Vec<String> =
                    ours.iter()
                        .filter(|definition| {
                            let conditions = definition
                                .status
                                .as_ref()
                                .and_then(|status| status.conditions.as_deref());
                            !conditions.unwrap_or_default().iter().any(|condition| {
                                condition.type_ == "Established" && condition.status == "True"
                            })
                        })
                        .map(|definition| definition.name_any())
                        .collect();
                Ok(if ours.is_empty() {
                    Observation::NotYet("no definition yet".into())
                } else if waiting.is_empty() {
                    Observation::Done(())
                } else {
                    Observation::NotYet(format!("not established: {}", waiting.join(", ")))
                })
            },
        )
        .await
    }

    /// Waits until pods can be created in a namespace: they need its default service account.
    pub async fn admits_pods(&self, namespace: &str, limit: Duration) -> Result<()> {
        let api: Api<ServiceAccount> = Api::namespaced(self.client(), namespace);
        until(
            &format!("the default service account of {namespace}"),
            limit,
            &self.logs,
            async || {
                api.get("default").await?;
                Ok(Observation::Done(()))
            },
        )
        .await
    }

    /// Sets labels on a node.
    pub async fn label_node(&self, name: &str, labels: &[(&str, &str)]) -> Result<()> {
        let labels: serde_json::Map<_, _> = labels
            .iter()
            .map(|(key, value)| ((*key).to_owned(), json!(value)))
            .collect();
        let api: Api<Node> = Api::all(self.client());
        let patch = json!({"metadata": {"labels": labels}});
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        api.patch(name, &params, &Patch::Merge(&patch))
            .await
            .with_context(|| format!("label node {name}"))?;
        Ok(())
    }

    /// Deletes a Node object.
    pub async fn delete_node(&self, name: &str) -> Result<()> {
        let api: Api<Node> = Api::all(self.client());
        match api.delete(name, &DeleteParams::default()).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error).with_context(|| format!("delete node {name}")),
        }
    }

    /// The nodes as the API server reports them: name and the reason why each is not Ready.
    pub async fn nodes(&self) -> Result<Vec<(String, Option<String>)>> {
        let api: Api<Node> = Api::all(self.client());
        let nodes = api
            .list(&ListParams::default())
            .await
            .context("list the nodes")?
            .items;
        Ok(nodes
            .iter()
            .map(|node| (node.name_any(), node_trouble(node)))
            .collect())
    }
}

fn http_get(path: &str) -> Result<http::Request<Vec<u8>>> {
    match http::Request::get(path).body(Vec::new()) {
        Ok(request) => Ok(request),
        Err(error) => bail!("create a request for {path}: {error}"),
    }
}

fn node_trouble(node: &Node) -> Option<String> {
    let conditions = node.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.and_then(|all| all.iter().find(|condition| condition.type_ == "Ready"));
    match ready {
        None => Some("no Ready condition yet".into()),
        Some(condition) if condition.status == "True" => None,
        Some(condition) => Some(
            condition
                .message
                .clone()
                .unwrap_or_else(|| format!("Ready={}", condition.status)),
        ),
    }
}

fn pod_trouble(pod: &Pod) -> Option<String> {
    let Some(status) = &pod.status else {
        return Some("no status yet".into());
    };
    let conditions = status.conditions.as_deref().unwrap_or_default();
    if conditions
        .iter()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True")
    {
        return None;
    }
    let unscheduled = conditions
        .iter()
        .find(|condition| condition.type_ == "PodScheduled" && condition.status != "True");
    let containers = status
        .init_container_statuses
        .iter()
        .chain(status.container_statuses.iter())
        .flatten();
    let waiting = containers.filter_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        let reason = waiting.reason.as_deref().unwrap_or("waiting");
        Some(
            format!(
                "{} {reason} {}",
                container.name,
                waiting.message.as_deref().unwrap_or("")
            )
            .trim()
            .to_owned(),
        )
    });
    let phase = status.phase.clone().unwrap_or_else(|| "no phase yet".into());
    let reasons = unscheduled
        .and_then(|condition| condition.message.clone())
        .into_iter()
        .chain(waiting);
    Some(
        std::iter::once(phase)
            .chain(reasons)
            .collect::<Vec<_>>()
            .join(", "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(status: &serde_json::Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"name": "one"}, "status": status})).unwrap()
    }

    #[test]
    fn a_pod_without_conditions_is_not_ready() {
        assert!(pod_trouble(&Pod::default()).is_some());
        assert_eq!(
            pod_trouble(&pod(&json!({"phase": "Pending"}))).as_deref(),
            Some("Pending")
        );
        assert_eq!(
            pod_trouble(&pod(
                &json!({"conditions": [{"type": "Ready", "status": "True"}]})
            )),
            None
        );
    }

    #[test]
    fn a_waiting_container_has_its_reason_and_message() {
        let waiting = json!({"reason": "ErrImageNeverPull", "message": "no such image"});
        let container = json!({"name": "web", "image": "", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"waiting": waiting}});
        let trouble = pod_trouble(&pod(
            &json!({"phase": "Pending", "containerStatuses": [container]}),
        ));
        assert_eq!(
            trouble.as_deref(),
            Some("Pending, web ErrImageNeverPull no such image")
        );
    }
}
