//! The dead man's switch: if new pods on a host get no network, and neither the agent nor the coordinator makes progress, the
//! agent rolls the host back.

use std::time::Duration;

use engine::time_limit::TimeLimit;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::HostSettings;
use super::device::calico_device_problem;
use super::phase::phase;
use crate::cni;
use crate::facts::HostFacts;
use crate::phase::{Goal, Phase};

/// `Orders` is what the agent has last been told. The agent keeps it for the time in which the API server does not answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Orders {
    /// `goal` is the goal.
    pub goal: Goal,
    /// `settings` is what the agent needs to know about both networks.
    pub settings: HostSettings,
    /// `timeLimit` is the time limit of the step. Unset if there is none.
    // An earlier version wrote `patience` into the journal.
    #[serde(default, alias = "patience", skip_serializing_if = "Option::is_none")]
    pub time_limit: Option<TimeLimit>,
}

impl Orders {
    /// The time that the host may stay between the two networks.
    pub fn time_limit(&self) -> Option<Duration> {
        self.time_limit
            .as_ref()
            .map(|limit| Duration::from_secs(u64::from(limit.seconds)))
    }
}

/// The network that accepts new pods. The phase alone does not decide: install-cni may write Calico's conflist before the goal
/// allows it, and a host with a working Calico has a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodNetworkService {
    /// One of the two networks, by the phase.
    Steady,
    /// Neither network.
    Neither,
    /// Calico, although the phase is between the two networks.
    Calico,
}

/// The network that accepts new pods on this host.
pub fn service(facts: &HostFacts, settings: &HostSettings) -> PodNetworkService {
    match phase(facts, settings) {
        Phase::Held | Phase::Swapped | Phase::Detached if is_served_by_calico(facts, settings) => {
            PodNetworkService::Calico
        }
        Phase::Held | Phase::Swapped | Phase::Detached => PodNetworkService::Neither,
        Phase::Flannel | Phase::Mixed | Phase::Calico => PodNetworkService::Steady,
    }
}

/// Whether new pods use Calico: its conflist is in use, its links are as configured, and calico-node (which the plugin needs)
/// runs and has written to the host. calico-node writes to the host when it has read everything from its datastore.
fn is_served_by_calico(facts: &HostFacts, settings: &HostSettings) -> bool {
    facts.cni.winner().is_some_and(cni::is_calico)
        && calico_device_problem(facts, settings).is_none()
        && facts.calico.node_running
        && calico_has_written(facts)
}

/// Whether calico-node has written anything to the host.
pub fn calico_has_written(facts: &HostFacts) -> bool {
    let calico = &facts.calico;
    !calico.firewall.is_empty() || calico.sets > 0 || calico.blackholes > 0
}

/// The remaining time that a host may stay between the two networks; `None` without a time limit, or if the host is not
/// between the networks. Zero means that the agent rolls the host back now.
///
/// `quiet` is the time since the last step on the host or the last contact with the coordinator, whichever is later.
pub fn remaining_time(
    service: PodNetworkService,
    goal: Goal,
    time_limit: Option<Duration>,
    quiet: Duration,
) -> Option<Duration> {
    (service == PodNetworkService::Neither && goal.is_forward())
        .then_some(time_limit)
        .flatten()
        .map(|limit| limit.saturating_sub(quiet))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const MINUTE: Option<Duration> = Some(Duration::from_mins(1));

    #[rstest]
    #[case(PodNetworkService::Neither, Goal::Held, MINUTE, 0, Some(60))]
    #[case(PodNetworkService::Neither, Goal::Mixed, MINUTE, 59, Some(1))]
    #[case(PodNetworkService::Neither, Goal::Mixed, MINUTE, 60, Some(0))]
    #[case(PodNetworkService::Neither, Goal::Calico, MINUTE, 3600, Some(0))]
    // One of the two networks accepts new pods.
    #[case(PodNetworkService::Steady, Goal::Held, MINUTE, 3600, None)]
    #[case(PodNetworkService::Calico, Goal::Mixed, MINUTE, 3600, None)]
    #[case(PodNetworkService::Steady, Goal::Calico, MINUTE, 3600, None)]
    // The host is being rolled back, or has to hold.
    #[case(PodNetworkService::Neither, Goal::Flannel, MINUTE, 3600, None)]
    #[case(PodNetworkService::Neither, Goal::Hold, MINUTE, 3600, None)]
    // `drain.onBlocked: Wait` has no time limit.
    #[case(PodNetworkService::Neither, Goal::Held, None, 3600, None)]
    fn the_time_limit_applies_only_between_the_networks(
        #[case] service: PodNetworkService,
        #[case] goal: Goal,
        #[case] time_limit: Option<Duration>,
        #[case] quiet: u64,
        #[case] remaining: Option<u64>,
    ) {
        let found = remaining_time(service, goal, time_limit, Duration::from_secs(quiet));
        assert_eq!(found, remaining.map(Duration::from_secs));
    }
}
