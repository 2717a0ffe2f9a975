//! Obstacles of a migration to another pod range: the Migration's message names each with its fix, and the migration continues
//! after the fix. A budget that allows no disruption, an address that IPAM assigns to a finished pod, and then the same address,
//! leaked.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::migration::MigrationPhase;
use ipnet::Ipv4Net;
use serde_json::{Value, json};

use super::MigrationReader;
use crate::cluster::wait::{Observation, until};
use crate::cluster::{Cluster, Images};

/// Longest time from one obstacle to the next: meanwhile every other pod moves.
const LIMIT: Duration = Duration::from_mins(5);
const BLOCKS: &str = "ipamblocks.crd.projectcalico.org";
/// The sample's budget, which allows the disruption of one pod of three.
const BUDGET: [&str; 4] = ["-n", "sample", "pdb", "web"];
const FINISHED: &str = "finished";

/// The obstacles.
#[derive(Debug)]
pub struct Obstacles {
    block: String,
    address: Ipv4Addr,
}

impl Obstacles {
    /// Creates the obstacles for pods of this range that do not make the migration refuse to start.
    pub async fn put(cluster: &Cluster, range: Ipv4Net) -> Result<Self> {
        let (node, address) = finish_a_pod(cluster).await?;
        if !range.contains(&address) {
            bail!("address of the finished pod: found {address}, needed one of {range}");
        }
        let block = leak(cluster, address, &node).await?;
        Ok(Self { block, address })
    }

    /// Tightens the budget after the start of the migration, and then removes each obstacle as soon as the Migration names it.
    pub async fn clear(&self, cluster: &Cluster, reader: &MigrationReader) -> Result<()> {
        let address = self.address;
        // Before the start, the budget would be a reason to refuse.
        let begun = reader.until_migration("the migration starts", LIMIT, |migration| {
            let status = migration.status.as_ref();
            status.is_some_and(|status| status.phase == MigrationPhase::Preparing)
        });
        begun.await?;
        budget(cluster, 3).await?;
        let fragments = [
            "PodDisruptionBudget sample/web allows 0 disruptions".to_owned(),
            "`kubectl edit pdb -n sample web`".to_owned(),
        ];
        until_reported(reader, &fragments).await?;
        budget(cluster, 2).await?;
        let fragments = [
            format!("pod sample/{FINISHED} is finished and still has {address} in Calico's IPAM"),
            format!("`kubectl delete pod -n sample {FINISHED}`"),
        ];
        until_reported(reader, &fragments).await?;
        kubectl(cluster, &["delete", "pod", "-n", "sample", FINISHED]).await?;
        let fragments = [
            format!("{address} is assigned to pod sample/{FINISHED}, which no longer has it: a leak"),
            format!("`calicoctl ipam release --ip={address}`"),
        ];
        until_reported(reader, &fragments).await?;
        release(cluster, &self.block, address).await
    }
}

async fn kubectl(cluster: &Cluster, arguments: &[&str]) -> Result<String> {
    cluster.api().kubectl(arguments).await
}

async fn json_of(cluster: &Cluster, arguments: &[&str]) -> Result<Value> {
    let text = kubectl(cluster, &[&["get", "-o", "json"], arguments].concat()).await?;
    serde_json::from_str(&text).with_context(|| format!("parse kubectl's output for {}", arguments.join(" ")))
}

async fn budget(cluster: &Cluster, available: u8) -> Result<()> {
    let patch = json!({ "spec": { "minAvailable": available } }).to_string();
    kubectl(
        cluster,
        &[&["patch", "--type=merge", "-p", &patch], BUDGET.as_slice()].concat(),
    )
    .await
    .map(drop)
}

async fn until_reported(reader: &MigrationReader, fragments: &[String]) -> Result<()> {
    let what = format!("the Migration reports {}", fragments.join(" and "));
    let reported = reader.until_migration(&what, LIMIT, |migration| {
        let message = migration.status.as_ref().map_or("", |status| &status.message);
        fragments
            .iter()
            .all(|fragment| message.contains(fragment.as_str()))
    });
    reported.await?;
    println!("the Migration reports {}", fragments.join(", "));
    Ok(())
}

/// Runs a pod until it has finished; returns its node and its address.
async fn finish_a_pod(cluster: &Cluster) -> Result<(String, Ipv4Addr)> {
    let manifest = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": FINISHED, "namespace": "sample" },
        "spec": {
            "restartPolicy": "Never",
            "containers": [{
                "name": FINISHED, "image": Images::default().busybox, "imagePullPolicy": "Never", "command": ["true"],
            }],
        },
    });
    cluster.api().apply(&manifest.to_string()).await?;
    let logs = cluster.directory().logs();
    until("a pod is finished", LIMIT, &logs, async || {
        let pod = json_of(cluster, &["pod", "-n", "sample", FINISHED]).await?;
        let status = &pod["status"];
        let address = status["podIP"].as_str().and_then(|text| text.parse().ok());
        Ok(
            match (
                status["phase"].as_str(),
                address,
                pod["spec"]["nodeName"].as_str(),
            ) {
                (Some("Succeeded"), Some(address), Some(node)) => {
                    Observation::Done((node.to_owned(), address))
                }
                _ => Observation::NotYet(format!("{status}")),
            },
        )
    })
    .await
}

/// Assigns the finished pod's address to the pod again in Calico's IPAM, after Calico has released it.
async fn leak(cluster: &Cluster, address: Ipv4Addr, node: &str) -> Result<String> {
    let logs = cluster.directory().logs();
    until("the finished pod's address is free", LIMIT, &logs, async || {
        let (name, mut block, offset) = block_of(cluster, address).await?;
        if !block["spec"]["allocations"][offset].is_null() {
            return Ok(Observation::NotYet("the pod still has it".to_owned()));
        }
        let spec = &mut block["spec"];
        let attributes = spec["attributes"]
            .as_array_mut()
            .context("a block without attributes")?;
        let number = attributes.len();
        attributes.push(json!({
            "handle_id": "k8s-pod-network.leak",
            "secondary": { "namespace": "sample", "pod": FINISHED, "node": node },
        }));
        spec["allocations"][offset] = json!(number);
        let unallocated = spec["unallocated"]
            .as_array_mut()
            .context("a block without a list of free addresses")?;
        unallocated.retain(|free| free.as_u64() != Some(offset as u64));
        // If another program has written the block meanwhile, this write fails, and the next attempt reads the block again.
        replace(cluster, &block).await?;
        Ok(Observation::Done(name))
    })
    .await
}

/// Releases the address, as `calicoctl ipam release` does.
async fn release(cluster: &Cluster, name: &str, address: Ipv4Addr) -> Result<()> {
    let logs = cluster.directory().logs();
    until("the leaked address is released", LIMIT, &logs, async || {
        let (_, mut block, offset) = block_of(cluster, address).await?;
        let spec = &mut block["spec"];
        let number = spec["allocations"][offset].take().as_u64();
        let unallocated = spec["unallocated"]
            .as_array_mut()
            .context("a block without a list of free addresses")?;
        unallocated.push(json!(offset));
        let attributes = spec["attributes"]
            .as_array_mut()
            .context("a block without attributes")?;
        // Only the last attributes can be removed: every later index would change.
        if number.is_some_and(|number| number + 1 == attributes.len() as u64) {
            attributes.pop();
        }
        replace(cluster, &block).await?;
        Ok(Observation::Done(()))
    })
    .await
    .with_context(|| format!("block {name}"))
}

async fn replace(cluster: &Cluster, block: &Value) -> Result<()> {
    let file = cluster.directory().path().join("block.json");
    std::fs::write(&file, block.to_string()).with_context(|| format!("write {}", file.display()))?;
    kubectl(cluster, &["replace", "--filename", &file.to_string_lossy()])
        .await
        .map(drop)
}

/// The block of an address: its name, the object, and the offset of the address in it.
async fn block_of(cluster: &Cluster, address: Ipv4Addr) -> Result<(String, Value, usize)> {
    let list = json_of(cluster, &[BLOCKS]).await?;
    for block in list["items"].as_array().context("a list without blocks")? {
        let range: Ipv4Net = block["spec"]["cidr"]
            .as_str()
            .and_then(|text| text.parse().ok())
            .with_context(|| format!("a block without a range: {block}"))?;
        if range.contains(&address) {
            let offset = u32::from(address) - u32::from(range.network());
            let name = block["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            return Ok((name, block.clone(), usize::try_from(offset)?));
        }
    }
    bail!("no block contains {address}")
}
