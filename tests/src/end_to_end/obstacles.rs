//! What holds up a change of range: each is named in the Migration's message with its way out, and a person who goes that way
//! gets on. A budget that lets nobody go, an address that a finished pod is said to have, and the same address once nobody has it.

use std::net::Ipv4Addr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use api::migration::MigrationPhase;
use ipnet::Ipv4Net;
use serde_json::{Value, json};

use super::Looker;
use crate::cluster::wait::{Observation, until};
use crate::cluster::{Cluster, Images};

/// From one obstacle to the next: every other pod moves meanwhile.
const LIMIT: Duration = Duration::from_mins(5);
const BLOCKS: &str = "ipamblocks.crd.projectcalico.org";
/// The sample's budget, which lets one pod of three go.
const BUDGET: [&str; 4] = ["-n", "sample", "pdb", "web"];
const FINISHED: &str = "finished";

/// What was put in the way.
#[derive(Debug)]
pub struct Obstacles {
    block: String,
    address: Ipv4Addr,
}

impl Obstacles {
    /// Puts those in the way of pods that leave this range that are no reason to refuse it.
    pub async fn put(cluster: &Cluster, range: Ipv4Net) -> Result<Self> {
        let (node, address) = finish_a_pod(cluster).await?;
        if !range.contains(&address) {
            bail!("the finished pod had {address}, which is not in {range}");
        }
        let block = give_out(cluster, address, &node).await?;
        Ok(Self { block, address })
    }

    /// Tightens the budget once the migration has begun, and from then on does what the Migration says as soon as it says it.
    pub async fn clear(&self, cluster: &Cluster, look: &Looker) -> Result<()> {
        let address = self.address;
        // Before, it would be refused for it.
        let begun = look.until_migration("the migration begins", LIMIT, |migration| {
            let status = migration.status.as_ref();
            status.is_some_and(|status| status.phase == MigrationPhase::Preparing)
        });
        begun.await?;
        budget(cluster, 3).await?;
        let told = [
            "PodDisruptionBudget sample/web allows 0 disruptions".to_owned(),
            "`kubectl edit pdb -n sample web`".to_owned(),
        ];
        said(look, &told).await?;
        budget(cluster, 2).await?;
        let told = [
            format!("pod sample/{FINISHED} is finished and still has {address} in Calico's IPAM"),
            format!("`kubectl delete pod -n sample {FINISHED}`"),
        ];
        said(look, &told).await?;
        kubectl(cluster, &["delete", "pod", "-n", "sample", FINISHED]).await?;
        let told = [
            format!("{address} is assigned to pod sample/{FINISHED}, which no longer has it: a leak"),
            format!("`calicoctl ipam release --ip={address}`"),
        ];
        said(look, &told).await?;
        take_back(cluster, &self.block, address).await
    }
}

async fn kubectl(cluster: &Cluster, arguments: &[&str]) -> Result<String> {
    cluster.api().kubectl(arguments).await
}

async fn json_of(cluster: &Cluster, arguments: &[&str]) -> Result<Value> {
    let text = kubectl(cluster, &[&["get", "-o", "json"], arguments].concat()).await?;
    serde_json::from_str(&text).with_context(|| format!("parse what kubectl says of {}", arguments.join(" ")))
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

async fn said(look: &Looker, words: &[String]) -> Result<()> {
    let what = format!("the Migration says {}", words.join(" and "));
    let has_said = look.until_migration(&what, LIMIT, |migration| {
        let message = migration.status.as_ref().map_or("", |status| &status.message);
        words.iter().all(|word| message.contains(word.as_str()))
    });
    has_said.await?;
    println!("the migration says {}", words.join(", "));
    Ok(())
}

/// Runs a pod to its end; returns its node and the address that it had.
async fn finish_a_pod(cluster: &Cluster) -> Result<(String, Ipv4Addr)> {
    let manifest = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": FINISHED, "namespace": "sample" },
        "spec": {
            "restartPolicy": "Never",
            "containers": [{ "name": FINISHED, "image": Images::default().busybox, "imagePullPolicy": "Never", "command": ["true"] }],
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

/// Writes into Calico's IPAM that the finished pod has its address still, once Calico has taken it back.
async fn give_out(cluster: &Cluster, address: Ipv4Addr, node: &str) -> Result<String> {
    let logs = cluster.directory().logs();
    until("the finished pod's address is free", LIMIT, &logs, async || {
        let (name, mut block, place) = block_of(cluster, address).await?;
        if !block["spec"]["allocations"][place].is_null() {
            return Ok(Observation::NotYet("it has it still".to_owned()));
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
        spec["allocations"][place] = json!(number);
        let unallocated = spec["unallocated"]
            .as_array_mut()
            .context("a block without a list of free addresses")?;
        unallocated.retain(|free| free.as_u64() != Some(place as u64));
        // Whoever else writes it meanwhile wins, and this is tried again.
        replace(cluster, &block).await?;
        Ok(Observation::Done(name))
    })
    .await
}

/// As `calicoctl ipam release` does.
async fn take_back(cluster: &Cluster, name: &str, address: Ipv4Addr) -> Result<()> {
    let logs = cluster.directory().logs();
    until("the leaked address is released", LIMIT, &logs, async || {
        let (_, mut block, place) = block_of(cluster, address).await?;
        let spec = &mut block["spec"];
        let number = spec["allocations"][place].take().as_u64();
        let unallocated = spec["unallocated"]
            .as_array_mut()
            .context("a block without a list of free addresses")?;
        unallocated.push(json!(place));
        let attributes = spec["attributes"]
            .as_array_mut()
            .context("a block without attributes")?;
        // Nobody who was there before has a number behind it.
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

/// The block of an address: its name, the object, and the address' place in it.
async fn block_of(cluster: &Cluster, address: Ipv4Addr) -> Result<(String, Value, usize)> {
    let list = json_of(cluster, &[BLOCKS]).await?;
    for block in list["items"].as_array().context("a list of blocks")? {
        let range: Ipv4Net = block["spec"]["cidr"]
            .as_str()
            .and_then(|text| text.parse().ok())
            .with_context(|| format!("the range of a block: {block}"))?;
        if range.contains(&address) {
            let place = u32::from(address) - u32::from(range.network());
            let name = block["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            return Ok((name, block.clone(), usize::try_from(place)?));
        }
    }
    bail!("no block has {address}")
}
