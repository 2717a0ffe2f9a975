//! Phases of a host between flannel and Calico, and the goals of the agent.
//!
//! By drain, a host goes through `Flannel → Held → Detached → Calico`; in place, through
//! `Flannel → Held → Swapped → Mixed → Calico`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

/// `Phase` is the state of a host between flannel and Calico. The agent derives it from the host at each observation. Possible
/// values: `Flannel`: new pods get addresses from flannel. `Held`: flannel's devices are on the host, and new pods get no
/// address. `Swapped` (strategy `InPlace`): the tunnel has the name of Calico's tunnel, running pods keep their flannel network,
/// and new pods get no address. `Mixed` (strategy `InPlace`): new pods get addresses from Calico, and pods or leftovers of
/// flannel are on the host. `Detached` (strategy `Drain`): the tunnel has the name of Calico's tunnel, no pod uses the network of
/// flannel, and new pods get no address. `Calico`: new pods get addresses from Calico, and
/// nothing of flannel is on the host.
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
pub enum Phase {
    /// The flannel network is on the host, and new pods get addresses from it.
    Flannel,
    /// The devices of flannel are on the host, and new pods get no address: `subnet.env` is moved away and flanneld does not run.
    /// Running pods keep their network, and pods can be deleted.
    Held,
    /// Strategy `InPlace`: the tunnel has the name of Calico's tunnel, and each running pod on `cni0` has a route of its own. New
    /// pods get no address.
    Swapped,
    /// Strategy `InPlace`: the conflist of Calico is in use, and its tunnel is configured. Pods of flannel, or what they needed,
    /// are still on the host.
    Mixed,
    /// No pod of flannel is on the host: there is no bridge, no firewall chain and no lease, and the tunnel has the name of Calico's
    /// tunnel. The conflist of flannel may still be there, so that the kubelet does not report NotReady.
    Detached,
    /// The conflist of Calico is in use, its tunnel is configured, and nothing of flannel is on the host.
    Calico,
}

impl Phase {
    /// Every phase, in order.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// Whether a host in this phase has reached `wanted`. On a host without flannel pods, the swap removes all of flannel: the
    /// host is then in phase `Detached`, which does not reach `Mixed`, because Calico's conflist does not exist yet.
    pub fn reaches(self, wanted: Self) -> bool {
        self >= wanted && (self, wanted) != (Self::Detached, Self::Mixed)
    }

    /// The name of the phase in status and metrics.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// `Goal` is the phase that the coordinator asks an agent to bring its host to. Possible values: `Hold`: report, and change
/// nothing. `Flannel`: revert all changes. `Held`, `Swapped`, `Mixed`, `Detached`, `Calico`: change the host until it is in this
/// phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Goal {
    /// Report, and change nothing.
    #[default]
    Hold,
    /// Revert all changes: bring the host to [`Phase::Flannel`] as it was before.
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
    /// Whether the goal moves the host towards Calico.
    pub fn is_forward(self) -> bool {
        match self {
            Self::Hold | Self::Flannel => false,
            Self::Held | Self::Swapped | Self::Mixed | Self::Detached | Self::Calico => true,
        }
    }

    /// The wanted phase; `None` for [`Goal::Hold`].
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
