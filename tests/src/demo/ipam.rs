//! Compares Calico's IPAM with the pods of the API: blocks, handles and running pods must agree.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::Value;

use crate::cluster::Cluster;
use crate::cluster::wait::{Observation, until};

const LIMIT: Duration = Duration::from_mins(3);

/// Waits until every pod on the pod network has its one address in the IPAM under its own name, and no other pod has one. The
/// wait covers pods that are terminating.
pub async fn agrees(cluster: &Cluster) -> Result<()> {
    until(
        "the IPAM agrees with the pods",
        LIMIT,
        &cluster.directory().logs(),
        async || {
            let (pods, allocated) = (pods(cluster).await?, allocations(cluster).await?);
            Ok(if pods == allocated {
                Observation::Done(())
            } else {
                let only = |left: &BTreeMap<String, String>, right: &BTreeMap<String, String>| {
                    left.iter()
                        .filter(|(address, name)| right.get(*address) != Some(*name))
                        .map(|(address, name)| format!("{address} {name}"))
                        .collect::<Vec<_>>()
                        .join(", ")
                };
                Observation::NotYet(format!(
                    "only in the API: {}; only in the IPAM: {}",
                    only(&pods, &allocated),
                    only(&allocated, &pods)
                ))
            })
        },
    )
    .await
}

/// Names of pods on the pod network by address.
async fn pods(cluster: &Cluster) -> Result<BTreeMap<String, String>> {
    let pods: Api<Pod> = Api::all(cluster.api().client());
    let list = pods.list(&ListParams::default()).await.context("list pods")?;
    Ok(list
        .items
        .iter()
        .filter(|pod| {
            pod.spec
                .as_ref()
                .is_some_and(|spec| spec.host_network != Some(true))
        })
        .filter_map(|pod| {
            let address = pod.status.as_ref()?.pod_ip.clone()?;
            Some((address, format!("{}/{}", pod.namespace()?, pod.name_any())))
        })
        .collect())
}

/// Names of pods in the IPAM by address; checks each block, and all blocks against the handles.
async fn allocations(cluster: &Cluster) -> Result<BTreeMap<String, String>> {
    let read = async |kind: &str| -> Result<Vec<Value>> {
        let text = cluster.api().kubectl(&["get", kind, "-o", "json"]).await?;
        let list: Value = serde_json::from_str(&text).context("parse kubectl's list")?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    };
    let mut found = BTreeMap::new();
    let mut handles: BTreeMap<String, u64> = BTreeMap::new();
    for block in read("ipamblocks.crd.projectcalico.org").await? {
        let spec = &block["spec"];
        let range: ipnet::Ipv4Net = spec["cidr"].as_str().unwrap_or_default().parse()?;
        let first = u32::from(range.network());
        for (offset, index) in (0_u32..).zip(spec["allocations"].as_array().into_iter().flatten()) {
            let Some(index) = index.as_u64() else { continue };
            let attribute = &spec["attributes"][usize::try_from(index)?];
            let handle = attribute["handle_id"]
                .as_str()
                .context("an allocation has no handle")?;
            *handles.entry(handle.to_lowercase()).or_default() += 1;
            if let Some(pod) = attribute["secondary"]["pod"].as_str() {
                let namespace = attribute["secondary"]["namespace"].as_str().unwrap_or_default();
                let address = std::net::Ipv4Addr::from(first + offset);
                found.insert(address.to_string(), format!("{namespace}/{pod}"));
            }
        }
    }
    let mut counted: BTreeMap<String, u64> = BTreeMap::new();
    for handle in read("ipamhandles.crd.projectcalico.org").await? {
        let blocks = handle["spec"]["block"].as_object().cloned().unwrap_or_default();
        counted.insert(
            handle["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
            blocks.values().filter_map(Value::as_u64).sum(),
        );
    }
    if handles != counted {
        bail!("IPAMBlocks have {handles:?}, IPAMHandles count {counted:?}");
    }
    Ok(found)
}
