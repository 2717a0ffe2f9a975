//! The writes of the simulated IPAM for one node: blocks, claims, handles, and the addresses of pods and tunnels.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, bail};
use calico::{self as ipam, Allocation, handle_name};
use engine::evict::PodName;
use flannel_to_calico::import::pod_handle;
use flannel_to_calico::objects::{ClaimState, block_affinity};
use ipnet::{IpNet, Ipv4Net};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::choice::{self, Claims, Holder, Pool};
use crate::scale::calico::{Kind, TUNNEL_ANNOTATION};

/// Number of attempts to change a block that another client changes at the same time.
const TRIES: usize = 8;

/// One job for the IPAM of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Job {
    /// A pod on the host's network: its kubelet reports the host's address.
    OnHost(PodName),
    /// A pod that needs an address, from any pool or from those that it names.
    Give(PodName, Vec<String>),
    /// The end of the node's tunnel needs an address.
    Tunnel,
    /// A pod with this address was deleted.
    Take(IpAddr, String),
}

/// The handle that releases a pod's address.
pub fn handle(pod: &PodName) -> String {
    pod_handle(&pod.uid)
}

/// The future holder of a pod's address.
pub fn holder(pod: &PodName, node: &str) -> Holder {
    let attributes = [
        ("namespace", pod.namespace.as_str()),
        ("pod", &pod.name),
        ("node", node),
    ];
    Holder {
        handle: handle(pod),
        attributes: attributes
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
    }
}

/// Blocks and their nodes, for every node that claims blocks.
#[derive(Clone, Debug, Default)]
pub struct Shared(Arc<Mutex<Claims>>);

impl Shared {
    /// The present claims.
    pub fn lock(&self) -> MutexGuard<'_, Claims> {
        // Every change is complete before a step that may fail.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The outcome of the jobs of a node.
#[derive(Debug, Default)]
pub struct Outcome {
    /// New addresses of pods, by UID.
    pub given: Vec<(String, IpAddr)>,
    /// Jobs for a later attempt.
    pub left: Vec<Job>,
}

/// The IPAM of one node.
#[derive(Clone)]
pub struct OfNode {
    /// The administrator's client.
    pub client: Client,
    /// The node's name.
    pub node: String,
    /// The claims of all nodes.
    pub claims: Shared,
}

impl OfNode {
    /// Does the jobs.
    pub async fn serve(&self, jobs: Vec<Job>) -> Result<Outcome> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let Some(node) = nodes
            .get_opt(&self.node)
            .await
            .with_context(|| format!("read Node {}", self.node))?
        else {
            return Ok(Outcome::default());
        };
        let pools = Kind::Pool.api(&self.client).list(&ListParams::default()).await;
        let pools: Vec<(String, Value)> = pools
            .context("list IPPools")?
            .into_iter()
            .map(|pool| (pool.name_any(), pool.data["spec"].clone()))
            .collect();
        let mut outcome = Outcome::default();
        // The jobs that need an address, by pool.
        let mut asking: BTreeMap<Ipv4Net, (Pool, Vec<Job>)> = BTreeMap::new();
        for job in jobs {
            let named = match &job {
                Job::OnHost(pod) => {
                    self.write_pod_address(pod, host(&node)?).await?;
                    continue;
                }
                Job::Take(address, handle) => {
                    self.take(*address, handle).await?;
                    continue;
                }
                Job::Give(_, named) => named.as_slice(),
                Job::Tunnel => &[],
            };
            match choice::pool(&pools, named, node.labels())? {
                Some(pool) => asking.entry(pool.range).or_insert((pool, Vec::new())).1.push(job),
                None => outcome.left.push(job),
            }
        }
        for (pool, jobs) in asking.into_values() {
            self.assign(&pool, jobs, &mut outcome).await?;
        }
        Ok(outcome)
    }

    async fn assign(&self, pool: &Pool, jobs: Vec<Job>, outcome: &mut Outcome) -> Result<()> {
        let holders: Vec<Holder> = jobs.iter().filter_map(|job| self.holder(job)).collect();
        let given = self.allocate(pool, &holders).await?;
        for (job, allocation) in jobs.into_iter().zip(given) {
            match &job {
                Job::Give(pod, _) => {
                    if self.write_pod_address(pod, allocation.address).await? {
                        outcome.given.push((pod.uid.clone(), allocation.address));
                    } else {
                        outcome
                            .left
                            .push(Job::Take(allocation.address, allocation.handle));
                    }
                }
                Job::Tunnel => self.write_tunnel_address(allocation.address).await?,
                Job::OnHost(_) | Job::Take(..) => {}
            }
        }
        Ok(())
    }

    fn holder(&self, job: &Job) -> Option<Holder> {
        match job {
            Job::Give(pod, _) => Some(holder(pod, &self.node)),
            Job::Tunnel => Some(Holder {
                handle: ipam::tunnel_handles(&self.node).into_iter().next()?,
                attributes: [("node", self.node.as_str()), ("type", "vxlanTunnelAddress")]
                    .map(|(key, value)| (key.to_owned(), value.to_owned()))
                    .into(),
            }),
            Job::OnHost(_) | Job::Take(..) => None,
        }
    }

    /// Assigns addresses to all of them, in their order: from the node's own blocks, then from new ones.
    async fn allocate(&self, pool: &Pool, holders: &[Holder]) -> Result<Vec<Allocation>> {
        let mut all: Vec<Allocation> = Vec::new();
        let own = self.claims.lock().of(&self.node, pool);
        for block in own {
            if all.len() < holders.len() {
                all.extend(self.of_block(block, &holders[all.len()..]).await?);
            }
        }
        while all.len() < holders.len() {
            let block = self.claims.lock().claim(&self.node, pool)?;
            all.extend(self.claim(block, &holders[all.len()..]).await?);
        }
        Ok(all)
    }

    /// Assigns addresses from an existing block, as many as it has.
    async fn of_block(&self, block: Ipv4Net, holders: &[Holder]) -> Result<Vec<Allocation>> {
        let mut given = Vec::new();
        let changed = self
            .change_block(block, |spec| {
                given = choice::allocations(block, spec, holders);
                Ok(ipam::block_change(spec, block.into(), &self.node, &given)?)
            })
            .await?;
        if !changed {
            self.claims.lock().remove(block);
            return Ok(Vec::new());
        }
        self.count(block, &given).await?;
        Ok(given)
    }

    /// Creates a block for the node, in Calico's own order.
    async fn claim(&self, block: Ipv4Net, holders: &[Holder]) -> Result<Vec<Allocation>> {
        let given = choice::allocations(block, &Value::Null, holders);
        let range = IpNet::from(block);
        self.create(
            Kind::Affinity,
            &block_affinity(&self.node, range, ClaimState::Pending),
        )
        .await?;
        // No earlier block of this range has had this number.
        let sequence = u64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or_default();
        self.create(Kind::Block, &ipam::block(range, &self.node, &given, sequence)?)
            .await?;
        let name = ipam::affinity_name(&self.node, range);
        let confirmed = Patch::Merge(json!({"spec": {"state": "confirmed"}}));
        Kind::Affinity
            .api(&self.client)
            .patch(&name, &PatchParams::default(), &confirmed)
            .await
            .with_context(|| format!("confirm BlockAffinity {name}"))?;
        self.count(block, &given).await?;
        Ok(given)
    }

    async fn count(&self, block: Ipv4Net, given: &[Allocation]) -> Result<()> {
        for allocation in given {
            let handle = ipam::handle(&allocation.handle, block.into(), 1);
            self.create(Kind::Handle, &handle).await?;
        }
        Ok(())
    }

    /// Releases an address.
    async fn take(&self, address: IpAddr, handle: &str) -> Result<()> {
        let IpAddr::V4(v4) = address else {
            bail!("{address} is an IPv6 address, but the simulated IPAM has only IPv4");
        };
        // The simulated pools have blocks of one size.
        let block = Ipv4Net::new(v4, super::BLOCK_LENGTH)
            .context("find the block of an address")?
            .trunc();
        self.change_block(block, |spec| {
            Ok(ipam::block_release(spec, block.into(), &[(address, handle)])?)
        })
        .await?;
        let deleted = Kind::Handle
            .api(&self.client)
            .delete(&handle_name(handle), &DeleteParams::default())
            .await;
        match deleted {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error).with_context(|| format!("delete IPAMHandle {handle}")),
            Ok(_) => Ok(()),
        }
    }

    /// Changes the present block, and returns whether the block exists. Another client may change the block at the same time.
    async fn change_block(
        &self,
        block: Ipv4Net,
        mut change: impl FnMut(&Value) -> Result<Option<Value>>,
    ) -> Result<bool> {
        let api = Kind::Block.api(&self.client);
        let name = ipam::block_name(block.into());
        for _ in 0..TRIES {
            let found = api
                .get_opt(&name)
                .await
                .with_context(|| format!("read IPAMBlock {name}"))?;
            let Some(found) = found else {
                return Ok(false);
            };
            let Some(spec) = change(&found.data["spec"])? else {
                return Ok(true);
            };
            let version = found.resource_version();
            let patch = Patch::Merge(json!({"metadata": {"resourceVersion": version}, "spec": spec}));
            match api.patch(&name, &PatchParams::default(), &patch).await {
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(kube::Error::Api(status)) if status.code == 404 => return Ok(false),
                Err(error) => return Err(error).with_context(|| format!("change IPAMBlock {name}")),
                Ok(_) => return Ok(true),
            }
        }
        bail!("IPAMBlock {name} was changed by another client {TRIES} times before the write")
    }

    async fn create(&self, kind: Kind, object: &Value) -> Result<()> {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        let what = || format!("create {kind:?} {name}");
        let object: DynamicObject = serde_json::from_value(object.clone()).with_context(what)?;
        match kind
            .api(&self.client)
            .create(&PostParams::default(), &object)
            .await
        {
            // The object was created before a conflict.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            Err(error) => Err(error).with_context(what),
            Ok(_) => Ok(()),
        }
    }

    /// Writes the address into the pod's status. Returns whether the pod still exists.
    async fn write_pod_address(&self, pod: &PodName, address: IpAddr) -> Result<bool> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace);
        let status = json!({
            "metadata": {"uid": pod.uid},
            "status": {"podIP": address, "podIPs": [{"ip": address}]},
        });
        let patched = pods
            .patch_status(&pod.name, &PatchParams::default(), &Patch::Merge(status))
            .await;
        match patched {
            // A new pod of the same name has another UID.
            Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => Ok(false),
            Err(error) => {
                Err(error).with_context(|| format!("write the address of pod {}/{}", pod.namespace, pod.name))
            }
            Ok(_) => Ok(true),
        }
    }

    async fn write_tunnel_address(&self, address: IpAddr) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let change = Patch::Merge(json!({"metadata": {"annotations": {TUNNEL_ANNOTATION: address}}}));
        nodes
            .patch(&self.node, &PatchParams::default(), &change)
            .await
            .with_context(|| format!("annotate Node {}", self.node))?;
        Ok(())
    }
}

/// The host's own address.
fn host(node: &Node) -> Result<IpAddr> {
    let addresses = node.status.as_ref().and_then(|status| status.addresses.as_ref());
    let mut addresses = addresses.into_iter().flatten();
    let internal = addresses.find(|address| address.type_ == "InternalIP");
    let text = &internal
        .with_context(|| format!("Node {} has no address", node.name_any()))?
        .address;
    text.parse()
        .with_context(|| format!("read the address {text} of Node {}", node.name_any()))
}
