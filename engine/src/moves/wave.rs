//! The order in which pods move: their waves, and the pods of each wave that still have to move.

use strum::VariantArray;

use std::collections::BTreeMap;

use super::movers::Movers;
use super::{Resident, Role, Workload};

/// The order in which pods move: first the pods that others need, last the pods that have a number of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, VariantArray)]
pub enum Wave {
    /// The coordinator's own pod: the coordinator then uses the new network before other pods do.
    Coordinator,
    /// The cluster's name servers.
    NameServers,
    /// Backends of admission webhooks that fail closed: without them no new pod is admitted.
    Admission,
    /// Pods of `DaemonSet`s, node by node.
    DaemonSets,
    /// Pods of Deployments, `ReplicaSet`s and other controllers that create interchangeable pods.
    Stateless,
    /// Pods of `StatefulSet`s, the highest ordinal first.
    Stateful,
    /// Pods of Jobs: they complete without an eviction.
    Jobs,
    /// Pods without a controller.
    Bare,
}

impl Wave {
    /// Every wave, in order.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// Whether its pods are evicted. The user moves the other pods: no data is lost, and no budget is used.
    pub fn is_evicted(self, delete_bare_pods: bool) -> bool {
        match self {
            Self::Jobs => false,
            Self::Bare => delete_bare_pods,
            Self::Coordinator
            | Self::NameServers
            | Self::Admission
            | Self::DaemonSets
            | Self::Stateless
            | Self::Stateful => true,
        }
    }

    /// Whether all later waves need its pods and wait for them.
    pub fn is_needed(self) -> bool {
        self <= Self::Admission
    }

    /// The wave of this pod.
    pub fn of(resident: &Resident<'_>) -> Self {
        match resident.role {
            Role::Coordinator => return Self::Coordinator,
            Role::NameServer => return Self::NameServers,
            Role::Admission => return Self::Admission,
            Role::Any => {}
        }
        match resident.workload.map(|workload| workload.kind.as_str()) {
            None => Self::Bare,
            Some("DaemonSet") => Self::DaemonSets,
            Some("StatefulSet") => Self::Stateful,
            Some("Job" | "CronJob") => Self::Jobs,
            Some(_) => Self::Stateless,
        }
    }

    /// The wave, for messages.
    pub fn words(self) -> &'static str {
        match self {
            Self::Coordinator => "the coordinator",
            Self::NameServers => "name servers",
            Self::Admission => "admission webhooks",
            Self::DaemonSets => "pods of DaemonSets",
            Self::Stateless => "pods of Deployments",
            Self::Stateful => "pods of StatefulSets",
            Self::Jobs => "pods of Jobs",
            Self::Bare => "pods without a controller",
        }
    }
}

/// The pods that still have to move, by wave.
pub fn remaining_pods<'facts>(
    residents: &'facts [Resident<'facts>],
    movers: Movers<'_>,
) -> BTreeMap<Wave, Vec<&'facts Resident<'facts>>> {
    let mut remaining: BTreeMap<Wave, Vec<&Resident<'_>>> = BTreeMap::new();
    for resident in residents {
        if movers.has(resident.pod) {
            remaining.entry(Wave::of(resident)).or_default().push(resident);
        }
    }
    for (wave, residents) in &mut remaining {
        residents.sort_by(|left, right| order(*wave, left).cmp(&order(*wave, right)));
    }
    remaining
}

/// By workload; within a `StatefulSet` the highest ordinal first, as the StatefulSet controller does.
fn order<'facts>(
    wave: Wave,
    resident: &'facts Resident<'_>,
) -> (Option<&'facts Workload>, std::cmp::Reverse<u64>, &'facts str) {
    let ordinal = resident
        .pod
        .name
        .rsplit_once('-')
        .and_then(|(_, ordinal)| ordinal.parse().ok())
        .filter(|_| wave == Wave::Stateful)
        .unwrap_or_default();
    (
        resident.workload,
        std::cmp::Reverse(ordinal),
        resident.pod.name.as_str(),
    )
}
