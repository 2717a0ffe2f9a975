//! Stages and steps of a conversion in a cluster.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

use super::calico::Calico;
use engine::evict::PodName;

/// `Stage` is the stage of an upgrade of Calico's datastore. Forward, the stages have this order. A rollback starts with `Open`,
/// which lets Calico work with v2 again.
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
    /// Both datastores are backed up, and calico-kube-controllers is stopped.
    Prepare,
    /// Calico is paused, and all data of v2 is written to v3. Rollback: v3 is restored.
    Convert,
    /// calico-node is replaced node by node.
    Nodes,
    /// calico-kube-controllers is replaced.
    Controllers,
    /// Calico starts to work with v3: the point of no return. Rollback: Calico works with v2 again.
    Open,
    /// Pods that have waited get their network, and objects that exist only for the duration of the migration are removed.
    CleanUp,
}

impl Stage {
    /// Every stage, in order.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// The stage in status, metrics and reports.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// Work on the stores. Each takes longer than a pass, continues where it stopped, and is done by one process at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr)]
pub enum StoreWork {
    /// Pauses Calico, converts all data, and verifies it.
    Convert,
    /// Records that calico-nodes of v3 may run from now on: an abort then keeps v3 closed until none runs.
    AnnounceNodes,
    /// Opens v3, so that Calico works with it.
    Complete,
    /// Opens v2 again. When a calico-node of v3 may run, v3 keeps its data and stays closed: a calico-node of v3 opens an empty
    /// v3.
    #[strum(serialize = "TakeBack")]
    Abort {
        /// Whether a calico-node of v3 may run.
        nodes_of_v3: bool,
    },
}

impl StoreWork {
    /// Whether the work is part of a rollback.
    pub fn is_rollback(self) -> bool {
        match self {
            Self::Abort { .. } => true,
            Self::Convert | Self::AnnounceNodes | Self::Complete => false,
        }
    }
}

/// One idempotent change.
#[derive(Clone, Debug, PartialEq, Eq, IntoStaticStr)]
pub enum Step {
    /// Back up both stores.
    BackUp,
    /// Scale calico-kube-controllers to zero, so that it does not write to a store during the conversion.
    StopControllers,
    /// Start this work on the stores.
    #[strum(transparent)]
    Work(StoreWork),
    /// Stop the work on the stores: it has the wrong direction.
    StopWork,
    /// Record that the migration rolls back from now on, and the reason. Start at once when Calico is paused.
    #[strum(serialize = "TurnBack")]
    RollBack(String),
    /// Write the data of this version to the `ConfigMap`.
    WriteConfiguration(Calico),
    /// Write the pod template of this version to the `DaemonSet`, with the update strategy `OnDelete`.
    WriteDaemonSet(Calico),
    /// Restart these pods of calico-node with the present template of the `DaemonSet`.
    Restart(Vec<PodName>),
    /// Write the pod template and the replicas of this version to calico-kube-controllers.
    WriteControllers(Calico),
    /// Write the update strategy of this version to the `DaemonSet`.
    WriteStrategy(Calico),
    /// Delete temporary objects, and record the end.
    Finish,
}

impl Step {
    /// Name of the step, without names of objects.
    pub fn name(&self) -> &'static str {
        self.into()
    }
}
