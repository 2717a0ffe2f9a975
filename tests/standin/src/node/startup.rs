//! The startup of a node: its annotations, the objects of every cluster, and the file that tells the plugins that the
//! node has started.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tracing::{info, warn};

use super::environment::Environment;
use super::{autodetect, pools};
use crate::datastore;
use crate::felix::objects;
use crate::host::netlink::Netlink;
use crate::ipam::Ipam;

/// Annotation of a node: its devices and their addresses.
const DEVICES: &str = "projectcalico.org/Interfaces";
/// Folder that the plugins check.
const FOLDER: &str = "/var/lib/calico";
const DATASTORE_WITHIN: Duration = Duration::from_mins(5);
const PAUSE: Duration = Duration::from_secs(1);

/// Performs the startup.
pub async fn run(environment: &Environment) -> Result<()> {
    match environment.backend() {
        "vxlan" | "none" => {}
        other => {
            warn!("CALICO_NETWORKING_BACKEND is {other}: the stand-in has no BGP, only VXLAN pools work");
        }
    }
    if let Some(kind) = environment
        .get("DATASTORE_TYPE")
        .filter(|kind| *kind != "kubernetes")
    {
        bail!("DATASTORE_TYPE is {kind:?}: the stand-in supports only kubernetes");
    }
    let name = environment.node_name()?;
    let client = datastore::client(environment.kubeconfig().as_deref()).await?;
    if environment.get("WAIT_FOR_DATASTORE") == Some("true") {
        wait_for_datastore(&client, &name).await?;
    }
    Ipam::new(&client, &name).upgrade().await?;
    note_addresses(environment).await?;
    pools::ensure_pool(&client, environment).await?;
    pools::ensure_defaults(&client, environment).await?;
    let file = Path::new(FOLDER).join("nodename");
    std::fs::create_dir_all(FOLDER).with_context(|| format!("make {FOLDER}"))?;
    std::fs::write(&file, &name).with_context(|| format!("write {}", file.display()))?;
    info!("using node name: {name}");
    Ok(())
}

async fn wait_for_datastore(client: &Client, node: &str) -> Result<()> {
    let begun = Instant::now();
    let nodes: Api<Node> = Api::all(client.clone());
    loop {
        match nodes.get_opt(node).await {
            Ok(_) => return Ok(()),
            Err(error) if begun.elapsed() > DATASTORE_WITHIN => {
                return Err(error).with_context(|| {
                    format!("read Node {node}: the datastore is not there after {DATASTORE_WITHIN:?}")
                });
            }
            Err(error) => info!("hit error connecting to datastore - retry: {error}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Finds the node's address and, if it has changed, writes it into the node's annotations.
pub async fn note_addresses(environment: &Environment) -> Result<()> {
    if environment.backend() == "none" {
        return Ok(());
    }
    let name = environment.node_name()?;
    let client = datastore::client(environment.kubeconfig().as_deref()).await?;
    let nodes: Api<Node> = Api::all(client);
    let node = nodes
        .get(&name)
        .await
        .with_context(|| format!("read Node {name}"))?;
    let netlink = Netlink::open()?;
    let devices = autodetect::candidates(netlink.links().await?, &netlink.addresses().await?);
    let noted = node.annotations().get(objects::ADDRESS).cloned();
    let address = match environment.get("IP") {
        Some("none") => noted.clone(),
        None if noted.is_some() => noted.clone(),
        Some("autodetect") | None => {
            let method = environment.get("IP_AUTODETECTION_METHOD").unwrap_or_default();
            Some(autodetect::address(method, &node, &devices)?.to_string())
        }
        Some(given) => Some(complete(given, &devices)?.to_string()),
    };
    let Some(address) = address else {
        bail!("no IPv4 address configured or detected for Node {name}, required for Calico networking");
    };
    if noted.as_deref() != Some(&address) && environment.get("DISABLE_NODE_IP_CHECK") != Some("true") {
        refuse_conflict(&nodes, &name, &address).await?;
    }
    let mut sorted = devices;
    sorted.sort_by(|one, other| one.name.cmp(&other.name));
    let listed: Vec<_> = sorted
        .iter()
        .map(|device| {
            let addresses: Vec<String> = device
                .addresses
                .iter()
                .map(|address| address.addr().to_string())
                .collect();
            json!({"name": device.name, "addresses": addresses})
        })
        .collect();
    let listed = json!(listed).to_string();
    if noted.as_deref() == Some(&address) && node.annotations().get(DEVICES) == Some(&listed) {
        return Ok(());
    }
    let patch = json!({"metadata": {"annotations": {objects::ADDRESS: address, DEVICES: listed}}});
    nodes
        .patch_status(&name, &PatchParams::default(), &Patch::Strategic(patch))
        .await
        .with_context(|| format!("write the annotation {} of Node {name}", objects::ADDRESS))?;
    info!(before = noted, address, "noted the node's address");
    Ok(())
}

/// A given address with the subnet that it has on the host.
pub fn complete(given: &str, devices: &[autodetect::Device]) -> Result<Ipv4Net> {
    if let Ok(range) = given.parse() {
        return Ok(range);
    }
    let address: Ipv4Addr = given
        .parse()
        .with_context(|| format!("read IP={given:?} as an IPv4 address"))?;
    let found = devices
        .iter()
        .flat_map(|device| &device.addresses)
        .find(|range| range.addr() == address);
    Ok(found.copied().unwrap_or_else(|| Ipv4Net::from(address)))
}

async fn refuse_conflict(nodes: &Api<Node>, name: &str, address: &str) -> Result<()> {
    let plain = |text: &str| text.split('/').next().unwrap_or_default().to_owned();
    let others = nodes
        .list(&ListParams::default())
        .await
        .context("list the nodes")?;
    for other in others.items.iter().filter(|other| other.name_any() != name) {
        if other
            .annotations()
            .get(objects::ADDRESS)
            .is_some_and(|taken| plain(taken) == plain(address))
        {
            bail!(
                "calico node {} is already using the IPv4 address {address}",
                other.name_any()
            );
        }
    }
    Ok(())
}
