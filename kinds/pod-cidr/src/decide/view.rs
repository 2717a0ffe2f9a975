//! The inputs of the decision: both pools, and what is missing.

use engine::decision::{Direction, Wait};
use engine::moves;
use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::step::{PoolRole, Step};
use crate::by_node;
use crate::pools::Openness;
use crate::tunnel::TunnelAllocation;

/// One pool, and the contents of its range.
#[derive(Clone, Debug)]
pub struct PoolView<'facts> {
    /// Old or new pool.
    pub which: PoolRole,
    /// Its name.
    pub name: &'facts str,
    /// Its range.
    pub range: IpNet,
    /// Its spec, as stored; `None` if the pool does not exist.
    pub spec: Option<&'facts Value>,
    /// Whether it is being deleted. Calico assigns no addresses of such a pool.
    pub terminating: bool,
    /// Blocks and block affinities of Calico's IPAM in the range.
    pub blocks: &'facts [IpNet],
    /// Holders of addresses of the range, other than pods that have to move: the object, and the fix.
    pub holders: &'facts [String],
    /// Time since which no address of the range has been in use; `None` while any is.
    pub empty_since: Option<Timestamp>,
    /// Routes into the range on hosts, as reported by the agents.
    pub routes: &'facts [String],
}

impl PoolView<'_> {
    pub(super) fn openness(&self) -> Openness {
        match (self.spec.map(Openness::of), self.terminating) {
            (None, _) => Openness::Absent,
            (Some(_), true) => Openness::Closed,
            (Some(openness), false) => openness,
        }
    }
}

/// All inputs of the decision.
#[derive(Clone, Debug)]
pub struct View<'facts> {
    /// Direction in which pods move.
    pub direction: Direction,
    /// The old pool.
    pub old: PoolView<'facts>,
    /// The new pool.
    pub new: PoolView<'facts>,
    /// The spec of the new pool once it is open.
    pub wanted: &'facts Value,
    /// Objects that do not allow both ranges yet, each with its fix.
    pub widen: &'facts [String],
    /// Next step or wait until no tunnel address is in the source range ([`crate::tunnel_change`]); `None` once none is.
    pub tunnel_changes: Option<Unmet>,
    /// Wait while agents keep addresses of the source range on their hosts for established connections.
    pub kept_in_source: Option<Wait>,
    /// Wait while agents keep addresses of the target range. A pod with such an address would be unreachable from that host.
    pub kept_in_target: Option<Wait>,
    /// Wait while it is unknown which former tunnel addresses are free in the target range; `None` once known.
    pub unknown_former_addresses: Option<Wait>,
    /// Wait for a pool with an unknown range, which may overlap both ranges. Until then no pool is created, opened, closed or
    /// deleted on the way forward. A rollback ignores the wait, because both of its pools existed before.
    pub unclear_pool: Option<Wait>,
    /// Former tunnel addresses in the target range that are free now.
    pub former_addresses_to_allocate: &'facts [TunnelAllocation],
    /// Addresses of the source range that are still allocated to tunnels in Calico's IPAM, and that the tunnels no longer use.
    pub to_release: &'facts [TunnelAllocation],
    /// Wait until the calico-node of every node uses the pools as they are open now; `None` once all do.
    pub switched: Option<Wait>,
    /// Wait until the canary of the new pool succeeds; `None` once its pods were reached from every node.
    pub canary: Option<Wait>,
    /// Next step or wait until name servers and admission webhooks have more than one pod; `None` once they have.
    pub redundancy: Option<Unmet>,
    /// Objects that still contain the old range, each with its fix.
    pub follow_up: &'facts [String],
    /// Wait while the rollout of Calico's `DaemonSet` is not complete, as after a change of its environment; `None` once it is.
    pub rolling: Option<Wait>,
    /// The pods, with the target pool of this direction.
    pub moves: moves::View<'facts>,
    /// Every Node in rollout order, in mode `ByNode`; `None` in mode `ByWorkload`.
    pub nodes: Option<&'facts [by_node::Node<'facts>]>,
}

/// An unmet condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unmet {
    /// The step that meets it.
    Step(Step),
    /// The wait for it.
    Answer(Wait),
}

/// Limits and permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Limits and permissions for moving pods.
    pub moves: moves::Policy,
    /// Maximum number of Nodes that are drained at the same time, in mode `ByNode`.
    pub nodes_at_once: usize,
    /// How long the old pool is kept, empty and closed.
    pub soak: SignedDuration,
    /// Why no step may run now: the user has paused the migration, or has to review it first.
    pub hold: Option<Wait>,
}
