//! The plugin for a pod's network.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, bail};
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tracing::{info, warn};

use super::answer::{Answer, Devices};
use super::config::Call;
use super::veth::{self, Cable};
use crate::datastore::Store;
use crate::datastore::types::ClusterInformation;
use crate::ipam::names;

const CONTAINER: &str = "cni.projectcalico.org/containerID";
const ADDRESS: &str = "cni.projectcalico.org/podIP";
const ADDRESSES: &str = "cni.projectcalico.org/podIPs";
/// Annotation: the requested pools.
pub const POOLS: &str = "cni.projectcalico.org/ipv4pools";
/// Annotation: the requested address.
pub const WANTED: &str = "cni.projectcalico.org/ipAddrs";

/// Creates the pod's network.
pub async fn add(call: &Call, client: &Client) -> Result<Answer> {
    require_ready(client).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &call.namespace);
    let pod = pods
        .get(&call.pod)
        .await
        .with_context(|| format!("read Pod {}/{}", call.namespace, call.pod))?;
    let given = address(call, client, &pod).await?;
    // The address belongs only to the pod, whatever the size of its block.
    let address = Ipv4Net::from(given.addr());
    match connect(call, &pods, address).await {
        Ok(devices) => Ok(Answer {
            address,
            devices: Some(devices),
        }),
        Err(error) => {
            warn!("releasing {address}, because the pod's network could not be created");
            if let Err(second) = delegate(call, "DEL", call.input.clone(), None).await {
                warn!("release {address}: {second:#}");
            }
            Err(error)
        }
    }
}

async fn connect(call: &Call, pods: &Api<Pod>, address: Ipv4Net) -> Result<Devices> {
    let host = names::host_device(&call.namespace, &call.pod);
    let mtu = call.config.mtu()?;
    let mac = veth::add(&Cable {
        host: &host,
        pod: &call.device,
        namespace: Path::new(&call.namespace_path),
        address: address.addr(),
        mtu,
        forwarding: call.config.allow_forwarding(),
    })
    .await?;
    note(pods, call, &address.to_string(), &call.container).await?;
    info!(%address, host, mac = %mac, "created the pod's network");
    Ok(Devices {
        host,
        pod: call.device.clone(),
        mac: mac.to_string(),
        mtu,
        namespace: call.namespace_path.clone(),
    })
}

/// Removes the pod's network. The pod's annotations are removed only if they belong to this sandbox: a late DEL for
/// an older sandbox must not change the annotations of the present one.
pub async fn delete(call: &Call, client: &Client) -> Result<()> {
    require_ready(client).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &call.namespace);
    let pod = pods.get_opt(&call.pod).await;
    match pod.with_context(|| format!("read Pod {}/{}", call.namespace, call.pod))? {
        None => info!("the pod no longer exists in the API: continuing with the settings on the node"),
        Some(pod) => match pod
            .annotations()
            .get(CONTAINER)
            .filter(|container| !container.is_empty())
        {
            Some(container) if *container != call.container => {
                warn!(container, "the pod has another sandbox: its annotations stay");
            }
            _ => note(&pods, call, "", "").await?,
        },
    }
    delegate(call, "DEL", call.input.clone(), None).await?;
    veth::delete(Path::new(&call.namespace_path), &call.device)
}

/// An address from the IPAM plugin, from the pools or the address that annotations request.
async fn address(call: &Call, client: &Client, pod: &Pod) -> Result<Ipv4Net> {
    let mut input = call.input.clone();
    if call.config.ipam.kind == "calico-ipam" {
        let namespaces: Api<Namespace> = Api::all(client.clone());
        let namespace = namespaces.get(&call.namespace).await;
        let namespace = namespace.with_context(|| format!("read Namespace {}", call.namespace))?;
        let pools = pod
            .annotations()
            .get(POOLS)
            .or_else(|| namespace.annotations().get(POOLS));
        if let Some(pools) = pools.filter(|pools| !pools.is_empty()) {
            input["ipam"]["ipv4_pools"] = json!(list(POOLS, pools)?);
        }
    }
    let wanted = match pod.annotations().get(WANTED).filter(|wanted| !wanted.is_empty()) {
        Some(wanted) => list(WANTED, wanted)?.into_iter().next(),
        None => None,
    };
    Answer::address_of(&delegate(call, "ADD", input, wanted.as_deref()).await?)
}

/// Parses a list of texts in an annotation.
pub fn list(annotation: &str, text: &str) -> Result<Vec<String>> {
    serde_json::from_str(text)
        .with_context(|| format!("read annotation {annotation}: {text:?} is not a list of texts"))
}

/// Runs the IPAM plugin as a separate program.
pub async fn delegate(call: &Call, command: &str, input: Value, wanted: Option<&str>) -> Result<Value> {
    let kind = &call.config.ipam.kind;
    let Some(program) = call
        .path
        .split(':')
        .map(|folder| Path::new(folder).join(kind))
        .find(|program| program.is_file())
    else {
        bail!("failed to find plugin {kind:?} in path {:?}", call.path);
    };
    let mut arguments = std::env::var("CNI_ARGS").unwrap_or_default();
    if let Some(wanted) = wanted {
        arguments = format!("{arguments};IP={wanted}");
    }
    let mut child = Command::new(&program)
        .env("CNI_COMMAND", command)
        .env("CNI_ARGS", arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .spawn()
        .with_context(|| format!("start the plugin {}", program.display()))?;
    if let Some(mut writer) = child.stdin.take() {
        writer
            .write_all(input.to_string().as_bytes())
            .await
            .context("write to the IPAM plugin")?;
    }
    let output = child
        .wait_with_output()
        .await
        .context("wait for the IPAM plugin")?;
    let answer = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        // As in Calico: the kubelet's Event has the plugin's own message.
        let said = serde_json::from_str::<Value>(&answer).ok();
        match said.as_ref().and_then(|answer| answer.get("msg")?.as_str()) {
            Some(message) => bail!("{message}"),
            None => bail!("{kind} {command} ended with {}: {}", output.status, answer.trim()),
        }
    }
    if command == "DEL" {
        return Ok(Value::Null);
    }
    serde_json::from_str(&answer).with_context(|| format!("read the answer of {kind} {command}: {answer:?}"))
}

/// Calico's annotation of a pod's address and sandbox, with which Felix knows the pod before the kubelet's report.
async fn note(pods: &Api<Pod>, call: &Call, address: &str, container: &str) -> Result<()> {
    let patch = json!({"metadata": {"annotations": {
        ADDRESS: address, ADDRESSES: address, CONTAINER: container
    }}});
    match pods
        .patch_status(&call.pod, &PatchParams::default(), &Patch::Strategic(patch))
        .await
    {
        Ok(_) => Ok(()),
        // A deleted pod has no annotations to remove.
        Err(kube::Error::Api(status)) if status.is_not_found() && address.is_empty() => Ok(()),
        Err(error) => {
            Err(error).with_context(|| format!("note the address of Pod {}/{}", call.namespace, call.pod))
        }
    }
}

async fn require_ready(client: &Client) -> Result<()> {
    let found = Store::<ClusterInformation>::new(client).get("default").await?;
    let found = found.context("error getting ClusterInformation: no object default")?;
    if found.spec.datastore_ready != Some(true) {
        bail!(
            "Calico is currently not ready to process requests: ClusterInformation default has datastoreReady {:?}",
            found.spec.datastore_ready
        );
    }
    Ok(())
}
