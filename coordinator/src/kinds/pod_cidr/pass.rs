//! The inputs of one pass.

use std::collections::BTreeMap;

use api::Migration;
use api::migration::{Direction, PodCidr, PodCidrStatus};
use engine::moves::{Workload, WorkloadFacts};
use ipnet::IpNet;
use jiff::Timestamp;
use pod_cidr::calico_node::CalicoNode;
use pod_cidr::decide::PoolRole;
use pod_cidr::facts::Pool;
use pod_cidr::ipam::Ipam;

use super::malformed::Pools;
use super::saved::Saved;
use crate::cache::Cache;
use crate::calico::store::Store;
use crate::context::Context;
use crate::snapshot::Snapshot;

/// The inputs of one pass.
pub(super) struct Pass<'pass> {
    pub(super) context: &'pass Context,
    /// Calico's objects.
    pub(super) store: &'pass Store,
    pub(super) cache: &'pass Cache,
    pub(super) migration: &'pass Migration,
    pub(super) kind: &'pass PodCidr,
    pub(super) saved: &'pass Saved,
    pub(super) snapshot: &'pass Snapshot,
    pub(super) pools: &'pass Pools,
    /// Every workload that creates pods again.
    pub(super) workloads: &'pass BTreeMap<Workload, WorkloadFacts>,
    /// Nodes in Calico's datastore.
    pub(super) calico_nodes: &'pass BTreeMap<String, CalicoNode>,
    /// The allocations of Calico's IPAM, while agents keep tunnel addresses.
    pub(super) ipam: Option<&'pass Ipam>,
    pub(super) direction: Direction,
    pub(super) now: Timestamp,
}

impl Pass<'_> {
    /// The source pool.
    pub(super) fn source_pool(&self) -> PoolRole {
        PoolRole::source(self.direction)
    }

    /// The range of a pool.
    pub(super) fn range(&self, which: PoolRole) -> IpNet {
        match which {
            PoolRole::Old => self.kind.from,
            PoolRole::New => self.kind.to,
        }
    }

    /// A pool, if it exists.
    pub(super) fn pool(&self, which: PoolRole, known: &PodCidrStatus) -> Option<&Pool> {
        let name = match which {
            PoolRole::Old => &known.settings.old_pool.value,
            PoolRole::New => &known.settings.new_pool.value,
        };
        self.pools.valid.get(name)
    }
}
