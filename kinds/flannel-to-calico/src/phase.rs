//! What is provably true of a node's host, and what may be asked of it.
//!
//! Two ways lead from flannel to Calico: by drain `Flannel → Held → Detached → Calico`, in place
//! `Flannel → Held → Swapped → Mixed → Calico`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is true of the host. Computed from the host on every look; never remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    /// flannel's network is on the host, and new pods get addresses from it.
    Flannel,
    /// flannel's devices are on the host, but new pods get no address: `subnet.env` is withdrawn and
    /// flanneld does not run. Pods that live keep their network; DEL works.
    Held,
    /// In place: the tunnel link carries Calico's name, flannel's pods live on `cni0`, each with a route of its own.
    /// New pods get no address yet.
    Swapped,
    /// In place: Calico's conflist wins, its device is there as configured, and pods of flannel's still live on
    /// `cni0`, or what they needed is still there.
    Mixed,
    /// Nothing of flannel carries packets any more: no device, no bridge, no firewall chain, no lease.
    /// flannel's conflist may still be there, so that the kubelet does not report NotReady.
    Detached,
    /// Calico's conflist wins, Calico's device is there as configured, and nothing of flannel is left.
    Calico,
}

impl Phase {
    /// Every phase, in order.
    pub const ALL: [Self; 6] = [
        Self::Flannel,
        Self::Held,
        Self::Swapped,
        Self::Mixed,
        Self::Detached,
        Self::Calico,
    ];

    /// Whether a host in this phase is where `wanted` asks it to be. On a host without any pod of flannel's the swap
    /// leaves nothing of flannel behind: it is detached, and Calico's conflist is not there yet.
    pub fn reaches(self, wanted: Self) -> bool {
        self >= wanted && (self, wanted) != (Self::Detached, Self::Mixed)
    }

    /// The phase as it stands in status and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Flannel => "Flannel",
            Self::Held => "Held",
            Self::Swapped => "Swapped",
            Self::Mixed => "Mixed",
            Self::Detached => "Detached",
            Self::Calico => "Calico",
        }
    }
}

/// What the coordinator asks of a node's agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Goal {
    /// Look and report; change nothing.
    #[default]
    Hold,
    /// Take every change back: bring the host to [`Phase::Flannel`] as it was before.
    Flannel,
    /// Bring the host to [`Phase::Held`].
    Held,
    /// Bring the host to [`Phase::Swapped`].
    Swapped,
    /// Bring the host to [`Phase::Mixed`].
    Mixed,
    /// Bring the host to [`Phase::Detached`].
    Detached,
    /// Bring the host to [`Phase::Calico`].
    Calico,
}

impl Goal {
    /// Whether the host is brought towards Calico.
    pub fn is_forward(self) -> bool {
        match self {
            Self::Hold | Self::Flannel => false,
            Self::Held | Self::Swapped | Self::Mixed | Self::Detached | Self::Calico => true,
        }
    }

    /// The phase that is asked for; `None` for [`Goal::Hold`].
    pub fn phase(self) -> Option<Phase> {
        match self {
            Self::Hold => None,
            Self::Flannel => Some(Phase::Flannel),
            Self::Held => Some(Phase::Held),
            Self::Swapped => Some(Phase::Swapped),
            Self::Mixed => Some(Phase::Mixed),
            Self::Detached => Some(Phase::Detached),
            Self::Calico => Some(Phase::Calico),
        }
    }
}
