//! Simulates Calico's IPAM and CNI plugin: pods get their addresses from `IPAMBlock`s of the pool that Calico would
//! choose. kwok lets a pod run once its status has an address. The address of a pod on the host's network is also set
//! here.

mod choice;
mod node;

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, Result};
use engine::evict::PodName;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::ListParams;
use kube::core::{ApiResource, Object};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde::{Deserialize, Serialize};

use super::calico;
pub use choice::allocations;
pub use node::holder;
use node::{Job, OfNode, Outcome, Shared, handle};

/// Number of nodes with simultaneous writes.
const NODES_AT_ONCE: usize = 16;
/// Prefix length of the blocks.
pub const BLOCK_LENGTH: u8 = 26;
/// Time between two checks for open jobs.
const TICK: Duration = Duration::from_millis(100);
/// The annotation with the pools that a pod requests.
const POOLS: &str = "cni.projectcalico.org/ipv4pools";

/// The fields of a pod that its address depends on.
type SlimPod = Object<SlimSpec, SlimStatus>;

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SlimSpec {
    node_name: String,
    host_network: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SlimStatus {
    #[serde(rename = "podIP")]
    pod_ip: String,
}

/// A pod from the API.
#[derive(Clone, Debug)]
struct Served {
    node: String,
    handle: String,
    /// The pod's address from a block, once assigned.
    address: Option<IpAddr>,
}

/// Simulates the IPAM of every node until dropped.
pub async fn play(client: Client) -> Result<Infallible> {
    let mut ipam = Ipam::begin(&client).await?;
    let pods: Api<SlimPod> = Api::all_with(client.clone(), &ApiResource::erase::<Pod>(&()));
    let mut pods = pin!(watcher(pods, watcher::Config::default()).default_backoff());
    let blocks = calico::Kind::Block.api(&client);
    let mut blocks = pin!(watcher(blocks, watcher::Config::default()).default_backoff());
    let mut work = FuturesUnordered::new();
    let mut tick = tokio::time::interval(TICK);
    loop {
        tokio::select! {
            // The watcher restarts a broken watch.
            event = pods.next() => if let Some(Ok(event)) = event { ipam.see_pod(event) },
            event = blocks.next() => if let Some(Ok(Event::Delete(block))) = event
                && let Some((range, _)) = calico::owner(&block)
            {
                ipam.claims.lock().remove(range);
            },
            Some((node, outcome)) = work.next(), if !work.is_empty() => ipam.done(node, outcome?),
            _ = tick.tick() => while work.len() < NODES_AT_ONCE && let Some((node, jobs)) = ipam.next() {
                let of_node = OfNode { client: client.clone(), node, claims: ipam.claims.clone() };
                work.push(serve(of_node, jobs));
            },
        }
    }
}

async fn serve(of_node: OfNode, jobs: Vec<Job>) -> (String, Result<Outcome>) {
    let outcome = of_node.serve(jobs).await;
    (of_node.node, outcome)
}

#[derive(Debug, Default)]
struct Ipam {
    claims: Shared,
    /// Pods by UID.
    pods: BTreeMap<String, Served>,
    jobs: BTreeMap<String, Vec<Job>>,
    /// Nodes with a write in progress.
    busy: BTreeSet<String>,
}

impl Ipam {
    /// Reads the existing blocks, and first assigns an address to every node's tunnel.
    async fn begin(client: &Client) -> Result<Self> {
        let nodes: Api<Node> = Api::all(client.clone());
        let nodes = nodes
            .list_metadata(&ListParams::default())
            .await
            .context("list Nodes")?;
        let jobs = nodes.iter().map(|node| (node.name_any(), vec![Job::Tunnel]));
        let ipam = Self {
            jobs: jobs.collect(),
            ..Self::default()
        };
        let blocks = calico::Kind::Block.api(client).list(&ListParams::default()).await;
        for block in blocks.context("list IPAMBlocks")? {
            let (range, node) = calico::owner(&block)
                .with_context(|| format!("find the node of IPAMBlock {}", block.name_any()))?;
            ipam.claims.lock().add(range, node);
        }
        Ok(ipam)
    }

    fn see_pod(&mut self, event: Event<SlimPod>) {
        match event {
            Event::Apply(pod) | Event::InitApply(pod) => {
                let address = pod.status.as_ref().map(|status| status.pod_ip.as_str());
                let address = address.filter(|address| !address.is_empty());
                let is_to_go = pod.metadata.deletion_timestamp.is_some();
                let Some(uid) = pod.uid() else { return };
                if pod.spec.node_name.is_empty() || self.pods.contains_key(&uid) {
                    return;
                }
                match address {
                    // Its records existed before.
                    Some(address) if !pod.spec.host_network => {
                        self.pods.insert(uid, served(&pod, address.parse().ok()));
                    }
                    Some(_) => {}
                    None if is_to_go => {}
                    None => self.request_address(uid, &pod),
                }
            }
            Event::Delete(pod) => {
                let served = pod.uid().and_then(|uid| self.pods.remove(&uid));
                if let Some(Served {
                    node,
                    handle,
                    address: Some(address),
                }) = served
                {
                    self.jobs
                        .entry(node)
                        .or_default()
                        .push(Job::Take(address, handle));
                }
            }
            Event::Init | Event::InitDone => {}
        }
    }

    fn request_address(&mut self, uid: String, pod: &SlimPod) {
        let name = name(pod);
        let node = pod.spec.node_name.clone();
        self.pods.insert(uid, served(pod, None));
        let job = if pod.spec.host_network {
            Job::OnHost(name)
        } else {
            let named = pod.annotations().get(POOLS);
            let named = named.and_then(|text| serde_json::from_str(text).ok());
            Job::Give(name, named.unwrap_or_default())
        };
        self.jobs.entry(node).or_default().push(job);
    }

    /// A node with open jobs and no write in progress.
    fn next(&mut self) -> Option<(String, Vec<Job>)> {
        let mut waiting = self.jobs.keys();
        let node = waiting.find(|node| !self.busy.contains(*node))?.clone();
        let jobs = self.jobs.remove(&node)?;
        self.busy.insert(node.clone());
        Some((node, jobs))
    }

    fn done(&mut self, node: String, outcome: Outcome) {
        self.busy.remove(&node);
        let Outcome { given, mut left } = outcome;
        for (uid, address) in given {
            match self.pods.get_mut(&uid) {
                Some(served) => served.address = Some(address),
                // The pod was deleted while the address was written.
                None => left.push(Job::Take(address, format!("k8s-pod-network.{uid}"))),
            }
        }
        // A deleted pod needs no address.
        left.retain(|job| match job {
            Job::Give(pod, _) | Job::OnHost(pod) => self.pods.contains_key(&pod.uid),
            Job::Tunnel | Job::Take(..) => true,
        });
        if !left.is_empty() {
            self.jobs.entry(node).or_default().extend(left);
        }
    }
}

fn name(pod: &SlimPod) -> PodName {
    PodName {
        namespace: pod.namespace().unwrap_or_default(),
        name: pod.name_any(),
        uid: pod.uid().unwrap_or_default(),
    }
}

fn served(pod: &SlimPod, address: Option<IpAddr>) -> Served {
    Served {
        node: pod.spec.node_name.clone(),
        handle: handle(&name(pod)),
        address,
    }
}
