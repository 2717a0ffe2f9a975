//! The stages and steps of a change of the pod range.

use std::collections::BTreeMap;

use engine::decision::Direction;
use engine::evict::PodName;
use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

use crate::pools::Openness;
use crate::tunnel::TunnelAllocation;

/// `Stage` is the stage of a change of the pod range. Stages are ordered. The name is also a metric label and the reason of an
/// Event.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
    IntoStaticStr,
    VariantArray,
)]
pub enum Stage {
    /// The user allows both ranges in all configuration that names the old one.
    Widen,
    /// The new IPPool is created, disabled.
    CreatePool,
    /// The new IPPool is opened to pods that name it, and all paths between both ranges are tested.
    Canary,
    /// Name servers and admission webhooks with a single pod are scaled up.
    Redundancy,
    /// The target IPPool is opened to all pods, then the source IPPool is closed.
    Switch,
    /// Pods move, one wave after the other.
    Move,
    /// Two observations find no address of the source range in use.
    Verify,
    /// The user replaces the old range in all configuration.
    FollowUp,
    /// The old IPPool is kept for `soakSeconds`.
    Soak,
    /// The IPAM blocks of the source range are released, then the source IPPool is deleted.
    DeletePool,
    /// Hosts lose their routes to the source range.
    Routes,
    /// Objects that exist only for the duration of the migration are removed.
    CleanUp,
}

impl Stage {
    /// Every stage, in order.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// The stage as written in status, metrics and reports.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// One of the two pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub enum PoolRole {
    /// The pool that existed before the migration.
    Old,
    /// The pool that this migration creates.
    New,
}

impl PoolRole {
    /// The source pool of this direction.
    pub fn source(direction: Direction) -> Self {
        match direction {
            Direction::Forward => Self::Old,
            Direction::Rollback => Self::New,
        }
    }

    /// The value of [`crate::pools::OFF_LABEL`] on a Node that was removed from this pool.
    pub fn mark(self) -> &'static str {
        self.into()
    }
}

/// One Node that is removed from a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedNode {
    /// Its name.
    pub node: String,
    /// The addresses that its tunnels get, by the last part of the annotation's key. Calico chooses for tunnels without an entry.
    pub ends: BTreeMap<String, TunnelAllocation>,
}

/// One idempotent change.
#[derive(Clone, Debug, PartialEq, Eq, IntoStaticStr)]
pub enum Step {
    /// Create the new pool.
    CreatePool,
    /// Scale this Deployment to this number of pods.
    Scale(String, u32),
    /// Open a pool to this degree, or close it.
    Open(PoolRole, Openness),
    /// Restrict the pool to Nodes that were not removed from it. The number identifies the set of removed Nodes.
    #[strum(serialize = "NarrowPool")]
    Narrow(PoolRole, u32),
    /// Remove these Nodes from the pool.
    #[strum(serialize = "TakeNodeOff")]
    RemoveNodes(PoolRole, Vec<RemovedNode>),
    /// Restart this pod of calico-node: older versions of Calico choose a new tunnel address only when they start.
    RestartCalicoNode(PodName),
    /// Allocate these addresses to the Nodes whose tunnels had them, before pods can get them.
    HoldEnds(Vec<TunnelAllocation>),
    /// Release these addresses of tunnels that have other addresses now.
    ReleaseEnds(Vec<TunnelAllocation>),
    /// Cordon this Node.
    #[strum(serialize = "CordonNode")]
    Cordon(String),
    /// Evict these pods.
    Evict(Vec<PodName>),
    /// Uncordon this Node.
    #[strum(serialize = "UncordonNode")]
    Uncordon(String),
    /// Release these empty blocks and their affinities.
    ReleaseBlocks(Vec<IpNet>),
    /// Delete this pool.
    DeletePool(PoolRole),
    /// Scale Deployments back, and record the migration as complete.
    Complete,
}

impl Step {
    /// Whether it creates, opens, closes or deletes a pool.
    pub(super) fn changes_a_pool(&self) -> bool {
        match self {
            Self::CreatePool | Self::Open(..) | Self::Narrow(..) | Self::DeletePool(_) => true,
            Self::Scale(..)
            | Self::RemoveNodes(..)
            | Self::RestartCalicoNode(_)
            | Self::HoldEnds(_)
            | Self::ReleaseEnds(_)
            | Self::Cordon(_)
            | Self::Evict(_)
            | Self::Uncordon(_)
            | Self::ReleaseBlocks(_)
            | Self::Complete => false,
        }
    }

    /// The name of the step, bounded, without names of objects.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Open(PoolRole::Old, Openness::AllPods | Openness::Narrowed) => "OpenOldPool",
            Self::Open(PoolRole::New, Openness::AllPods | Openness::Narrowed) => "OpenNewPool",
            Self::Open(_, Openness::OptIn) => "OpenNewPoolToCanary",
            Self::Open(PoolRole::Old, Openness::Closed | Openness::Absent) => "CloseOldPool",
            Self::Open(PoolRole::New, Openness::Closed | Openness::Absent) => "CloseNewPool",
            Self::DeletePool(PoolRole::Old) => "DeleteOldPool",
            Self::DeletePool(PoolRole::New) => "DeleteNewPool",
            step => step.into(),
        }
    }
}
