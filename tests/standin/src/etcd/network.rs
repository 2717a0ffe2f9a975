//! The plugin `calico` with etcd: a pod's network, and the endpoint with which Felix learns of it.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use ipnet::Ipv4Net;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tracing::{info, warn};

use super::endpoint::{Endpoint, Place};
use super::flag;
use super::store::Store;
use crate::cni::answer::{Answer, Devices};
use crate::cni::config::Call;
use crate::cni::network::{POOLS, WANTED, delegate, list};
use crate::cni::veth::{self, Cable};
use crate::ipam::names;

/// Creates the pod's network.
pub async fn add(call: &Call, store: &Store, client: &Client) -> Result<Answer> {
    flag::require(store).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &call.namespace);
    let pod = pods
        .get(&call.pod)
        .await
        .with_context(|| format!("read Pod {}/{}", call.namespace, call.pod))?;
    let mut input = call.input.clone();
    let annotation = |name: &str| pod.annotations().get(name).filter(|text| !text.is_empty());
    if let Some(pools) = annotation(POOLS) {
        input["ipam"]["ipv4_pools"] = json!(list(POOLS, pools)?);
    }
    let wanted = match annotation(WANTED) {
        Some(wanted) => list(WANTED, wanted)?.into_iter().next(),
        None => None,
    };
    let given = Answer::address_of(&delegate(call, "ADD", input, wanted.as_deref()).await?)?;
    let address = Ipv4Net::from(given.addr());
    match connect(call, store, &pod, address).await {
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

async fn connect(call: &Call, store: &Store, pod: &Pod, address: Ipv4Net) -> Result<Devices> {
    let host_device = names::host_device(&call.namespace, &call.pod);
    let mtu = call.config.mtu()?;
    let mac = veth::add(&Cable {
        host: &host_device,
        pod: &call.device,
        namespace: Path::new(&call.namespace_path),
        address: address.addr(),
        mtu,
        forwarding: call.config.allow_forwarding(),
    })
    .await?
    .to_string();
    let host = call.config.node_name()?;
    let labels: &BTreeMap<String, String> = pod.labels();
    let account = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.service_account_name.as_deref());
    let endpoint = Endpoint {
        place: place(call, &host),
        container: &call.container,
        host_device: &host_device,
        mac: &mac,
        address: address.addr(),
        labels,
        account: account.unwrap_or("default"),
    };
    endpoint.put(store).await?;
    info!(%address, host_device, mac, "created the pod's network");
    Ok(Devices {
        host: host_device,
        pod: call.device.clone(),
        mac,
        mtu,
        namespace: call.namespace_path.clone(),
    })
}

/// Removes the pod's network. **Refused while Calico is paused**, as in Calico: the kubelet retries. An endpoint of
/// another sandbox stays.
pub async fn delete(call: &Call, store: &Store) -> Result<()> {
    flag::require(store).await?;
    let host = call.config.node_name()?;
    let place = place(call, &host);
    match place.get(store).await? {
        None => warn!("there is no endpoint: continuing with the settings on the node"),
        Some((_, found)) if !found.container.is_empty() && found.container != call.container => {
            warn!(
                container = found.container,
                "the pod has another sandbox: its endpoint stays"
            );
        }
        Some((entry, _)) => {
            if !place.delete(store, &entry).await? {
                bail!(
                    "error deleting endpoint: endpoint was modified before it could be deleted: {}",
                    entry.key
                );
            }
        }
    }
    delegate(call, "DEL", call.input.clone(), None).await?;
    veth::delete(Path::new(&call.namespace_path), &call.device)
}

fn place<'a>(call: &'a Call, host: &'a str) -> Place<'a> {
    Place {
        host,
        namespace: &call.namespace,
        pod: &call.pod,
        device: &call.device,
    }
}
