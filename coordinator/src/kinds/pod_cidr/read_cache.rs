//! Reads of what no watch delivers, repeated when they are old: a pass costs the API server little, however large the cluster is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::migration::PodCidr;
use calico::etcd_access::StoreProblem;
use ipnet::IpNet;
use jiff::Timestamp;
use pod_cidr::datastore::{Datastore, changed_message};
use pod_cidr::hardcoded_range::RangeUse;
use pod_cidr::ipam::Ipam;

use super::{calico_objects, datastore};
use crate::cache::Cache;
use crate::calico::error::CalicoStoreError;
use crate::calico::store::Store;
use crate::context::Context;
use crate::kind_memory::KindMemory;
use crate::pass_error::PassError;
use crate::read_cache::{CachedRead, Pace, refresh};
use crate::read_error::ReadError;
use crate::since::Since;

/// The last read of Calico's IPAM. Shared: a large cluster has hundreds of thousands of addresses, read once for many passes.
pub type SharedIpam = Arc<Ipam>;

/// Connections to etcd are opened again after this time, because certificates change.
const CONNECTION: Duration = Duration::from_mins(5);

/// The last reads with their times. Lost at a restart, and read again then.
#[derive(Default)]
pub struct ReadCache {
    connected: Option<(Instant, Datastore, Store)>,
    moved: Option<CachedRead<Option<String>>>,
    mentions: Option<CachedRead<Arc<[RangeUse]>>>,
    ipam: Option<CachedRead<SharedIpam>>,
    /// Blocks that were released since the last read of IPAM.
    released: BTreeSet<IpNet>,
    /// Time since which a node is off the source pool while its tunnel address is in it.
    waits_since: BTreeMap<String, Timestamp>,
    /// Ready nodes that others wait for in stage Switch.
    pub late_nodes: Since<String>,
    /// Nodes in mode `ByNode` with an unsettled host and no pod to move.
    pub unsettled_nodes: Since<String>,
}

impl KindMemory for ReadCache {}

impl ReadCache {
    /// Calico's objects in their datastore, by an open connection or a new one.
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

    /// Drops the connection, so that the next read opens another.
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
    ) -> Result<Option<String>, ReadError> {
        let reading = async {
            let now = datastore::ask(context, cache, kind, Some(begun_with)).await?;
            Ok(now.and_then(|now| changed_message(before, &now)))
        };
        refresh(&mut self.moved, Pace::Counted, reading).await.cloned()
    }

    /// Objects that contain a range.
    pub async fn mentions(
        &mut self,
        context: &Context,
        cache: &Cache,
        store: &Store,
        kind: &PodCidr,
        begun_with: (&str, &str),
        pace: Pace,
    ) -> Result<Arc<[RangeUse]>, PassError> {
        let reading = async {
            let proxies = calico_objects::kube_proxies(context, cache).await?;
            let found =
                calico_objects::mentions(context, cache, store, kind, Some(begun_with), proxies.uses).await?;
            Ok(Arc::from(found))
        };
        refresh(&mut self.mentions, pace, reading).await.cloned()
    }

    /// Time since which this node has been seen off the source pool with its tunnel address in it. The time starts again after a
    /// restart of the coordinator.
    pub fn waiting_since(&mut self, node: &str, waits: bool, now: Timestamp) -> Option<Timestamp> {
        if !waits {
            self.waits_since.remove(node);
            return None;
        }
        Some(*self.waits_since.entry(node.to_owned()).or_insert(now))
    }

    /// The allocations of Calico's IPAM.
    pub async fn ipam(&mut self, store: &Store, pace: Pace) -> Result<SharedIpam, CalicoStoreError> {
        let released = &mut self.released;
        // While blocks are released in batches, the released ones are known.
        let pace = if released.is_empty() { pace } else { Pace::Counted };
        let reading = async {
            let ipam = calico_objects::ipam(store).await?;
            released.clear();
            Ok(Arc::new(ipam))
        };
        refresh(&mut self.ipam, pace, reading).await.cloned()
    }

    /// Whether this block was released since the last read of IPAM.
    pub fn is_released(&self, range: &IpNet) -> bool {
        self.released.contains(range)
    }

    /// Marks these blocks as released; all other blocks are as they were read.
    pub fn released(&mut self, ranges: impl IntoIterator<Item = IpNet>) {
        self.released.extend(ranges);
    }

    /// Drops the read of IPAM, after an address was held or released or a pool deleted.
    pub fn forget_ipam(&mut self) {
        self.ipam = None;
        self.released.clear();
    }
}
