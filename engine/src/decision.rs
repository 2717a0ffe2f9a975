//! What to do next with one node: run a step, wait with a reason and a deadline, rest, or halt.

use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Where a migration of ranges leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Direction {
    /// To the new range.
    There,
    /// To the old range, as it was before.
    Back,
}

/// The outcome of one look at one node (or at the cluster).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision<Step> {
    /// Perform this step now.
    Run(Step),
    /// Nothing to perform; something else has to happen first.
    Wait(Wait),
    /// The goal is reached.
    Settled,
    /// A person has to decide; nothing goes on by itself.
    Halt(Halt),
}

/// A wait: why, on which object, and until when.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wait {
    /// The enumerated reason.
    pub reason: WaitReason,
    /// One sentence that names what is waited for.
    pub message: String,
    /// When the wait turns into a [`Halt`]. `None` only while nothing has begun on the node.
    pub until: Option<Timestamp>,
}

impl Wait {
    /// Whether people are told of the wait by now, in a stage that began at `since`: one that passes by itself is told when the stage has
    /// lasted for `after`.
    pub fn is_told(&self, since: Timestamp, after: SignedDuration, now: Timestamp) -> bool {
        self.reason.needs_a_person() || now >= since + after
    }
}

/// A halt: the enumerated reason and one sentence with the object and the fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Halt {
    /// The enumerated reason.
    pub reason: HaltReason,
    /// One sentence that names the object, the value and what a person does about it.
    pub message: String,
}

/// Why something waits. A metric label, an Event reason and a runbook anchor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum WaitReason {
    /// Not yet this node's turn.
    Turn,
    /// `desired: Pause`, or a policy paused the rollout.
    Paused,
    /// The canary nodes are done and soak.
    CanarySoak,
    /// The pause between two nodes (`rollout.interval`).
    Interval,
    /// The Node reports NotReady; it is taken up again when it returns.
    NodeNotReady,
    /// The agent of the node has not reported.
    AgentSilent,
    /// Pods are terminating on the node.
    PodsTerminating,
    /// A PodDisruptionBudget does not allow an eviction.
    DisruptionBudget,
    /// The API server refused an eviction for another reason.
    EvictionRefused,
    /// flannel's pod is still on the node.
    FlannelPodRunning,
    /// The agent has a goal and has not reached it.
    AgentWorking,
    /// calico-node is not Ready on the node.
    CalicoNodeNotReady,
    /// Back: Calico's pod is still on the node.
    CalicoPodRunning,
    /// Back: flannel's pod is not Ready on the node.
    FlannelPodNotReady,
    /// A check of the node's agent does not pass.
    CheckFailing,
    /// The probe pod of the node is not running yet.
    ProbePodNotReady,
    /// A probe of the node's pod network was asked for, and its result has not come yet.
    ProbePending,
    /// A probe of the node's pod network got no answer.
    ProbeUnanswered,
    /// Calico's objects cannot be written yet.
    CalicoObjects,
    /// Pods that were moved are not Ready again yet.
    MovedPodsNotReady,
    /// People have to change what only they may change.
    ConfigurationFollowUp,
    /// The old pool is empty, and stays for a while.
    PoolSoak,
    /// A DaemonSet is being rolled out.
    DaemonSetRollout,
    /// Leftovers of the old network are not gone from a node.
    Leftovers,
    /// Traffic pods do not report yet: nobody could say what is lost.
    TrafficUnwatched,
    /// Ranges of Services are not there, or not gone, yet.
    ServiceRanges,
    /// An API server runs with another range for Services than it has to, or its certificate is not for the address.
    ApiServers,
    /// kube-proxy of a node has no rules for an address yet.
    ProxyRules,
    /// Nobody is seen to use the addresses that are left, and they stay for a while.
    ServiceSoak,
    /// A store of Calico's is being worked on, or does not answer.
    Datastore,
    /// Calico's controllers are not stopped yet, or not there again.
    CalicoControllers,
    /// Pods that waited while Calico was paused have no network yet.
    PodsWithoutNetwork,
    /// The API server refused a request of ours, or did not answer it: a policy, a webhook or a missing permission.
    RequestRefused,
}

/// Why something halted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum HaltReason {
    /// A wait outlived its deadline.
    DeadlineExceeded,
    /// The drain was blocked and `drain.onBlocked` is `Pause`.
    DrainBlocked,
    /// Somebody else changed what the migration wrote; it is written again.
    Drift,
    /// The agent reported a failure that it cannot mend itself.
    AgentFailure,
    /// The agent put the old network back by itself: the new one did not come up, or nobody told it anything any more.
    FellBack,
    /// Traffic between pods loses more than the gates allow.
    GateBreached,
    /// What is in Calico's stores does not let the migration go on.
    DatastoreRefused,
}

impl WaitReason {
    /// Whether the wait may last until somebody does something. Where several nodes wait, this is what people have
    /// to see first; the other reasons pass by themselves.
    pub fn needs_a_person(self) -> bool {
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
            | Self::Leftovers => true,
            Self::Turn
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
            | Self::Datastore
            | Self::CalicoControllers
            | Self::PodsWithoutNetwork
            | Self::DaemonSetRollout => false,
        }
    }

    /// Whether the wait may last, and has no deadline: the spec asks for it, or it is for people, in their own time.
    pub fn is_asked_for(self) -> bool {
        match self {
            Self::Turn
            | Self::Paused
            | Self::CanarySoak
            | Self::Interval
            | Self::ConfigurationFollowUp
            | Self::ApiServers
            | Self::ServiceSoak
            | Self::PoolSoak => true,
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

    /// Reads [`WaitReason::as_str`].
    pub fn read(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|reason| reason.as_str() == text)
    }

    /// Every reason. A test compares it with the enum's own schema, and with the headings of the runbook.
    pub const ALL: [Self; 33] = [
        Self::Turn,
        Self::Paused,
        Self::CanarySoak,
        Self::Interval,
        Self::NodeNotReady,
        Self::AgentSilent,
        Self::PodsTerminating,
        Self::DisruptionBudget,
        Self::EvictionRefused,
        Self::FlannelPodRunning,
        Self::AgentWorking,
        Self::CalicoNodeNotReady,
        Self::CalicoPodRunning,
        Self::FlannelPodNotReady,
        Self::CheckFailing,
        Self::ProbePodNotReady,
        Self::ProbePending,
        Self::ProbeUnanswered,
        Self::CalicoObjects,
        Self::MovedPodsNotReady,
        Self::ConfigurationFollowUp,
        Self::PoolSoak,
        Self::DaemonSetRollout,
        Self::Leftovers,
        Self::TrafficUnwatched,
        Self::ServiceRanges,
        Self::ApiServers,
        Self::ProxyRules,
        Self::ServiceSoak,
        Self::Datastore,
        Self::CalicoControllers,
        Self::PodsWithoutNetwork,
        Self::RequestRefused,
    ];

    /// The reason as it stands in metrics, Events and the runbook.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Turn => "Turn",
            Self::Paused => "Paused",
            Self::CanarySoak => "CanarySoak",
            Self::Interval => "Interval",
            Self::NodeNotReady => "NodeNotReady",
            Self::AgentSilent => "AgentSilent",
            Self::PodsTerminating => "PodsTerminating",
            Self::DisruptionBudget => "DisruptionBudget",
            Self::EvictionRefused => "EvictionRefused",
            Self::FlannelPodRunning => "FlannelPodRunning",
            Self::AgentWorking => "AgentWorking",
            Self::CalicoNodeNotReady => "CalicoNodeNotReady",
            Self::CalicoPodRunning => "CalicoPodRunning",
            Self::FlannelPodNotReady => "FlannelPodNotReady",
            Self::CheckFailing => "CheckFailing",
            Self::ProbePodNotReady => "ProbePodNotReady",
            Self::ProbePending => "ProbePending",
            Self::ProbeUnanswered => "ProbeUnanswered",
            Self::CalicoObjects => "CalicoObjects",
            Self::MovedPodsNotReady => "MovedPodsNotReady",
            Self::ConfigurationFollowUp => "ConfigurationFollowUp",
            Self::PoolSoak => "PoolSoak",
            Self::DaemonSetRollout => "DaemonSetRollout",
            Self::Leftovers => "Leftovers",
            Self::TrafficUnwatched => "TrafficUnwatched",
            Self::ServiceRanges => "ServiceRanges",
            Self::ApiServers => "ApiServers",
            Self::ProxyRules => "ProxyRules",
            Self::ServiceSoak => "ServiceSoak",
            Self::Datastore => "Datastore",
            Self::CalicoControllers => "CalicoControllers",
            Self::PodsWithoutNetwork => "PodsWithoutNetwork",
            Self::RequestRefused => "RequestRefused",
        }
    }
}

impl HaltReason {
    /// Every reason. A test compares it with the enum's own schema, and with the headings of the runbook.
    pub const ALL: [Self; 7] = [
        Self::DeadlineExceeded,
        Self::DrainBlocked,
        Self::Drift,
        Self::AgentFailure,
        Self::FellBack,
        Self::GateBreached,
        Self::DatastoreRefused,
    ];

    /// The reason as it stands in metrics, Events and the runbook.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::DeadlineExceeded => "DeadlineExceeded",
            Self::DrainBlocked => "DrainBlocked",
            Self::Drift => "Drift",
            Self::AgentFailure => "AgentFailure",
            Self::FellBack => "FellBack",
            Self::GateBreached => "GateBreached",
            Self::DatastoreRefused => "DatastoreRefused",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_that_passes_by_itself_is_told_when_it_lasts() {
        let wait = |reason| Wait {
            reason,
            message: String::new(),
            until: None,
        };
        let since = Timestamp::UNIX_EPOCH;
        let at = |seconds| since + SignedDuration::from_secs(seconds);
        let is_told =
            |reason, seconds| wait(reason).is_told(since, SignedDuration::from_secs(3), at(seconds));
        assert!(!is_told(WaitReason::AgentWorking, 2));
        assert!(is_told(WaitReason::AgentWorking, 3));
        assert!(is_told(WaitReason::DisruptionBudget, 0));
    }
}
