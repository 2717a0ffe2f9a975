//! The next action for one node: run a step, wait with a reason and a deadline, settle, or halt.

use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

/// `Direction` is where a migration goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Direction {
    /// To the target.
    Forward,
    /// Back to the source.
    Rollback,
}

/// The decision for one node (or for the cluster), from one set of facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision<Step> {
    /// Perform this step now.
    Run(Step),
    /// No step now: the named condition must be met first.
    Wait(Wait),
    /// The goal is reached.
    Settled,
    /// The user has to decide. The migration does not continue without the user.
    Halt(Halt),
}

/// A wait: why, on which object, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The enumerated reason.
    pub reason: WaitReason,
    /// One sentence that names the awaited object.
    pub message: String,
    /// When the wait becomes a [`Halt`]. `None` only before the first step on the node.
    pub until: Option<Timestamp>,
}

impl Wait {
    /// Whether the wait is reported now, in a stage that began at `since`. A wait that needs no user is reported once the stage
    /// has lasted for `after`.
    pub fn is_reported(&self, since: Timestamp, after: SignedDuration, now: Timestamp) -> bool {
        self.reason.needs_user() || now >= since + after
    }
}

/// A halt: the enumerated reason and one sentence with the object and the fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Halt {
    /// The enumerated reason.
    pub reason: HaltReason,
    /// One sentence that names the object, the value and the fix.
    pub message: String,
}

/// `WaitReason` is why a migration or a node waits. The name is also a metric label, the reason of an Event and a heading in the
/// runbook.
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
pub enum WaitReason {
    /// Other nodes are in progress, and `rollout.maxUnavailable` allows no further node.
    WaitingForTurn,
    /// `desired: Pause`, or a halt of the rollout.
    Paused,
    /// The canary nodes are done, and their soak time has not passed.
    CanarySoak,
    /// `rollout.intervalSeconds` have not passed since the last node.
    Interval,
    /// The Node is NotReady.
    NodeNotReady,
    /// The agent of the node has not reported.
    AgentSilent,
    /// Pods are terminating on the node.
    PodsTerminating,
    /// A PodDisruptionBudget does not allow an eviction.
    DisruptionBudget,
    /// The API server has refused an eviction for another reason, or a pod cannot be evicted.
    EvictionRefused,
    /// The pod of flannel is still on the node.
    FlannelPodRunning,
    /// The agent has not reached its goal yet.
    AgentWorking,
    /// calico-node is not Ready on the node.
    CalicoNodeNotReady,
    /// Rollback: the pod of calico-node is still on the node.
    CalicoPodRunning,
    /// Rollback: the pod of flannel is not Ready on the node.
    FlannelPodNotReady,
    /// A check of the agent of the node fails.
    CheckFailing,
    /// The probe pod of the node is not running yet.
    ProbePodNotReady,
    /// The result of a probe of the pod network of the node has not arrived yet.
    ProbePending,
    /// A probe of the pod network of the node was not answered.
    ProbeUnanswered,
    /// Objects in Calico's datastore cannot be written yet.
    CalicoObjects,
    /// Pods that were moved are not Ready again yet.
    MovedPodsNotReady,
    /// The user has to change configuration that replumb does not change.
    ConfigurationFollowUp,
    /// The old IPPool is empty, and its soak time has not passed.
    PoolSoak,
    /// Every node is on the new network, and the soak time of the old network has not passed.
    NetworkSoak,
    /// The rollout of a DaemonSet is not complete.
    DaemonSetRollout,
    /// A node has leftovers of the old network.
    Leftovers,
    /// Traffic pods do not report yet, so traffic loss would not be seen.
    TrafficUnwatched,
    /// Packets of pods of the new network arrive from other addresses than those of their pods.
    PodsMasqueraded,
    /// A `ServiceCIDR` does not exist yet, still exists, or is not Ready.
    ServiceRanges,
    /// An API server runs with a different Service range, or its certificate does not cover a needed address.
    ApiServers,
    /// kube-proxy on a node has no rules for an address yet.
    ProxyRules,
    /// Old addresses of Services are in use, or their soak time has not passed.
    ServiceSoak,
    /// One of Calico's datastores is being converted, or does not answer.
    Datastore,
    /// calico-kube-controllers is not stopped, or not available again, yet.
    CalicoControllers,
    /// Pods that waited for a network while Calico was paused have none yet.
    PodsWithoutNetwork,
    /// The API server has refused, or not answered, a request of the coordinator: a policy, a webhook or a missing permission.
    RequestRefused,
}

/// `HaltReason` is why a migration or a node has halted.
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
pub enum HaltReason {
    /// A wait has lasted longer than its timeout.
    DeadlineExceeded,
    /// A drain has lasted longer than its timeout, and `drain.onBlocked` does not allow to wait.
    DrainBlocked,
    /// Another client has changed an object that the migration has written.
    Drift,
    /// The agent has reported a failure.
    AgentFailure,
    /// The agent has put the old network back without being asked: the new network did not work, or the coordinator was silent
    /// too long.
    FellBack,
    /// Traffic between pods loses more than `gates` allows.
    GateBreached,
    /// The content of Calico's datastores does not allow the migration to continue.
    DatastoreRefused,
}

impl WaitReason {
    /// Whether the wait may last until the user acts. Where several nodes wait, such a reason is reported first; the other
    /// reasons end without the user.
    pub fn needs_user(self) -> bool {
        match self {
            Self::DisruptionBudget
            | Self::EvictionRefused
            | Self::NodeNotReady
            | Self::AgentSilent
            | Self::CheckFailing
            | Self::ProbeUnanswered
            | Self::CalicoObjects
            | Self::ConfigurationFollowUp
            | Self::ApiServers
            | Self::RequestRefused
            | Self::PodsMasqueraded
            | Self::Leftovers => true,
            Self::WaitingForTurn
            | Self::Paused
            | Self::CanarySoak
            | Self::Interval
            | Self::PodsTerminating
            | Self::FlannelPodRunning
            | Self::AgentWorking
            | Self::CalicoNodeNotReady
            | Self::CalicoPodRunning
            | Self::FlannelPodNotReady
            | Self::ProbePodNotReady
            | Self::ProbePending
            | Self::TrafficUnwatched
            | Self::ServiceRanges
            | Self::ProxyRules
            | Self::ServiceSoak
            | Self::MovedPodsNotReady
            | Self::PoolSoak
            | Self::NetworkSoak
            | Self::Datastore
            | Self::CalicoControllers
            | Self::PodsWithoutNetwork
            | Self::DaemonSetRollout => false,
        }
    }

    /// Whether the wait has no deadline: the spec asks for it, or the user takes the time that is needed.
    pub fn has_no_deadline(self) -> bool {
        match self {
            Self::WaitingForTurn
            | Self::Paused
            | Self::CanarySoak
            | Self::Interval
            | Self::ConfigurationFollowUp
            | Self::ApiServers
            | Self::ServiceSoak
            | Self::PoolSoak
            | Self::PodsMasqueraded
            | Self::NetworkSoak => true,
            Self::NodeNotReady
            | Self::AgentSilent
            | Self::PodsTerminating
            | Self::DisruptionBudget
            | Self::EvictionRefused
            | Self::FlannelPodRunning
            | Self::AgentWorking
            | Self::CalicoNodeNotReady
            | Self::CalicoPodRunning
            | Self::FlannelPodNotReady
            | Self::CheckFailing
            | Self::ProbePodNotReady
            | Self::ProbePending
            | Self::ProbeUnanswered
            | Self::CalicoObjects
            | Self::MovedPodsNotReady
            | Self::DaemonSetRollout
            | Self::TrafficUnwatched
            | Self::ServiceRanges
            | Self::ProxyRules
            | Self::Datastore
            | Self::CalicoControllers
            | Self::PodsWithoutNetwork
            | Self::RequestRefused
            | Self::Leftovers => false,
        }
    }

    /// The reason as written in metrics, Events and the runbook.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

impl HaltReason {
    /// The reason as written in metrics, Events and the runbook.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_needs_no_user_is_reported_after_a_delay() {
        let wait = |reason| Wait {
            reason,
            message: String::new(),
            until: None,
        };
        let since = Timestamp::UNIX_EPOCH;
        let at = |seconds| since + SignedDuration::from_secs(seconds);
        let is_told =
            |reason, seconds| wait(reason).is_reported(since, SignedDuration::from_secs(3), at(seconds));
        assert!(!is_told(WaitReason::AgentWorking, 2));
        assert!(is_told(WaitReason::AgentWorking, 3));
        assert!(is_told(WaitReason::DisruptionBudget, 0));
    }
}
