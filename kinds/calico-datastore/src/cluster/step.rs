//! Stages and steps of a conversion in a cluster.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::calico::Calico;
use engine::evict::PodName;

/// `Stage` is the stage of an upgrade of Calico's datastore. Forward, the stages have this order. A rollback starts with `Open`,
/// which lets Calico work with v2 again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
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
    pub const ALL: [Self; 6] = [
        Self::Prepare,
        Self::Convert,
        Self::Nodes,
        Self::Controllers,
        Self::Open,
        Self::CleanUp,
    ];

    /// The stage as it stands in status, metrics and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Prepare => "Prepare",
            Self::Convert => "Convert",
            Self::Nodes => "Nodes",
            Self::Controllers => "Controllers",
            Self::Open => "Open",
            Self::CleanUp => "CleanUp",
        }
    }
}

/// What is done to the stores. Each takes its time, goes on where it stopped, and is made by one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreWork {
    /// Pauses Calico, converts everything, reads it again.
    Convert,
    /// Records that calico-nodes of v3 may run from now on: whoever goes back leaves v3 closed until none does.
    AnnounceNodes,
    /// Lets Calico work with v3.
    Complete,
    /// Lets Calico work with v2 again. Where a calico-node of v3 may run, v3 stays as it is, closed: one that finds nothing there would
    /// open it.
    TakeBack {
        /// Whether one may run.
        nodes_of_v3: bool,
    },
}

impl StoreWork {
    /// Whether it leads back.
    pub fn is_back(self) -> bool {
        match self {
            Self::TakeBack { .. } => true,
            Self::Convert | Self::AnnounceNodes | Self::Complete => false,
        }
    }
}

/// One change: idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Keep everything of both stores aside.
    BackUp,
    /// Let no pod of calico-kube-controllers run: nobody writes to a store that is being converted.
    StopControllers,
    /// Begin this on the stores.
    Work(StoreWork),
    /// Go on no further with what is done on the stores: it leads the wrong way.
    StopWork,
    /// Record that it leads back from now on, and why; and begin at once, where Calico is paused.
    TurnBack(String),
    /// Give the `ConfigMap` the data of this one.
    WriteConfiguration(Calico),
    /// Give the `DaemonSet` the pods of this one, and let none of them start again by itself.
    WriteDaemonSet(Calico),
    /// Let these pods of calico-node be made again, of the `DaemonSet` as it is now.
    Restart(Vec<PodName>),
    /// Give calico-kube-controllers the pods of this one, as many as it has to have.
    WriteControllers(Calico),
    /// Let the `DaemonSet` roll its pods as that of this one does.
    WriteStrategy(Calico),
    /// Take away what is of no more use, and record that it is over.
    Finish,
}

impl Step {
    /// The step by name; bounded, without names of objects.
    pub fn name(&self) -> &'static str {
        match self {
            Self::BackUp => "BackUp",
            Self::StopControllers => "StopControllers",
            Self::Work(StoreWork::Convert) => "Convert",
            Self::Work(StoreWork::AnnounceNodes) => "AnnounceNodes",
            Self::Work(StoreWork::Complete) => "Complete",
            Self::Work(StoreWork::TakeBack { .. }) => "TakeBack",
            Self::StopWork => "StopWork",
            Self::TurnBack(_) => "TurnBack",
            Self::WriteConfiguration(_) => "WriteConfiguration",
            Self::WriteDaemonSet(_) => "WriteDaemonSet",
            Self::Restart(_) => "Restart",
            Self::WriteControllers(_) => "WriteControllers",
            Self::WriteStrategy(_) => "WriteStrategy",
            Self::Finish => "Finish",
        }
    }
}
