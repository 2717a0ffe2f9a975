//! What no watch brings, read again when it is old: so that a pass costs the API server little, however large the cluster is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::migration::PodCidr;
use calico::etcd_access::StoreProblem;
use ipnet::IpNet;
use jiff::Timestamp;
use pod_cidr::datastore::{Datastore, moved};
use pod_cidr::ipam::Ipam;
use pod_cidr::mentions::Mention;

use super::{datastore, read};
use crate::cache::Cache;
use crate::calico::store::Store;
use crate::context::Context;
use crate::looks::{Look, Pace, look};
use crate::since::Since;
use crate::write::WriteError;

/// What Calico's IPAM has given out, as it was read last. Shared: in a large cluster it is hundreds of thousands of addresses, and is read once for many passes.
pub type IpamLook = Arc<Ipam>;

/// Connections to etcd are made anew after so long: certificates change.
const CONNECTION: Duration = Duration::from_mins(5);

/// What was read last, and when. Lost at a restart: then it is read again.
#[derive(Default)]
pub struct Looks {
    connected: Option<(Instant, Datastore, Store)>,
    moved: Option<Look<Option<String>>>,
    mentions: Option<Look<Arc<[Mention]>>>,
    ipam: Option<Look<IpamLook>>,
    /// Blocks that were released since.
    released: BTreeSet<IpNet>,
    /// Since when nodes are off the pool that is left, with a tunnel that has its end in it.
    waits_since: BTreeMap<String, Timestamp>,
    /// Ready nodes that others wait for in stage Switch.
    pub unkept: Since<String>,
    /// Nodes whose hosts are not well although no pod has to move there, where pods leave node by node.
    pub unsettled: Since<String>,
}

impl Looks {
    /// Calico's objects where they are; connected already, or now.
    pub async fn store(&mut self, context: &Context, to: &Datastore) -> Result<Store, StoreProblem> {
        let known = self
            .connected
            .as_ref()
            .filter(|(at, known, _)| known == to && at.elapsed() < CONNECTION);
        if let Some((_, _, store)) = known {
            return Ok(store.clone());
        }
        self.connected = None;
        let store = datastore::connect(context, to).await?;
        self.connected = Some((Instant::now(), to.clone(), store.clone()));
        Ok(store)
    }

    /// Connects anew at the next look: this connection led to nothing.
    pub fn forget_store(&mut self) {
        self.connected = None;
    }

    /// Why Calico's objects are not where they were at the start.
    pub async fn moved(
        &mut self,
        context: &Context,
        cache: &Cache,
        kind: &PodCidr,
        before: &Datastore,
        begun_with: (&str, &str),
    ) -> Result<Option<String>, WriteError> {
        let reading = async {
            let now = datastore::ask(context, cache, kind, Some(begun_with)).await?;
            Ok(now.and_then(|now| moved(before, &now)))
        };
        look(&mut self.moved, Pace::Seldom, reading).await.cloned()
    }

    /// Who else says a range.
    pub async fn mentions(
        &mut self,
        context: &Context,
        cache: &Cache,
        store: &Store,
        kind: &PodCidr,
        begun_with: (&str, &str),
        pace: Pace,
    ) -> Result<Arc<[Mention]>, WriteError> {
        let reading = async {
            let found = read::mentions(context, cache, store, kind, Some(begun_with)).await?;
            Ok(Arc::from(found))
        };
        look(&mut self.mentions, pace, reading).await.cloned()
    }

    /// Since when it is seen that this node is off the pool that is left, and its tunnel has its end in it still. After a restart of ours
    /// that begins anew.
    pub fn waits_since(&mut self, node: &str, waits: bool, now: Timestamp) -> Option<Timestamp> {
        if !waits {
            self.waits_since.remove(node);
            return None;
        }
        Some(*self.waits_since.entry(node.to_owned()).or_insert(now))
    }

    /// What Calico's IPAM has given out.
    pub async fn ipam(&mut self, store: &Store, pace: Pace) -> Result<IpamLook, WriteError> {
        let released = &mut self.released;
        // While blocks go batch by batch, it is known which.
        let pace = if released.is_empty() { pace } else { Pace::Seldom };
        let reading = async {
            let ipam = read::ipam(store).await?;
            released.clear();
            Ok(Arc::new(ipam))
        };
        look(&mut self.ipam, pace, reading).await.cloned()
    }

    /// Whether this block was released since Calico's IPAM was looked at.
    pub fn is_released(&self, range: &IpNet) -> bool {
        self.released.contains(range)
    }

    /// These blocks are released: of all others it is known what was read.
    pub fn released(&mut self, ranges: impl IntoIterator<Item = IpNet>) {
        self.released.extend(ranges);
    }

    /// What was held, released or deleted is looked at anew.
    pub fn forget_ipam(&mut self) {
        self.ipam = None;
        self.released.clear();
    }
}
