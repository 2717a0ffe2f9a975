//! The dead man's switch: a host on which new pods get no network, and for which nobody does anything any more, goes back by
//! itself.

use std::time::Duration;

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::flannel_to_calico::phase::{Goal, Phase};

/// What the agent was last told, as far as it needs it when nobody tells it anything any more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Orders {
    /// The goal.
    pub goal: Goal,
    /// What it needs to know for it.
    pub settings: super::HostSettings,
    /// How long the host may wait between the two networks; without an end when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patience: Option<Patience>,
}

impl Orders {
    /// How long the host may wait between the two networks.
    pub fn patience(&self) -> Option<Duration> {
        self.patience
            .as_ref()
            .map(|patience| Duration::from_secs(u64::from(patience.seconds)))
    }
}

/// How long a step may take, from when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Patience {
    /// Seconds. An agent whose host has no network for new pods for longer puts the old network back by itself.
    pub seconds: u32,
    /// From when they count. An agent does not compare it with its own clock: another value here is a new beginning.
    #[schemars(with = "String")]
    pub from: Timestamp,
}

/// Whether neither network takes new pods.
pub fn is_between(phase: Phase) -> bool {
    match phase {
        Phase::Held | Phase::Swapped | Phase::Detached => true,
        Phase::Flannel | Phase::Mixed | Phase::Calico => false,
    }
}

/// What is left of the time that a host may wait between the two networks; `None` where it may wait for ever, or does not
/// wait. Zero means that it goes back now.
///
/// `quiet` is the time since the last step on the host or the last word of the coordinator's, whichever is later.
pub fn left_to_wait(
    phase: Phase,
    goal: Goal,
    patience: Option<Duration>,
    quiet: Duration,
) -> Option<Duration> {
    (is_between(phase) && goal.is_forward())
        .then_some(patience)
        .flatten()
        .map(|patience| patience.saturating_sub(quiet))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const MINUTE: Option<Duration> = Some(Duration::from_mins(1));

    #[rstest]
    #[case(Phase::Held, Goal::Held, MINUTE, 0, Some(60))]
    #[case(Phase::Swapped, Goal::Mixed, MINUTE, 59, Some(1))]
    #[case(Phase::Swapped, Goal::Mixed, MINUTE, 60, Some(0))]
    #[case(Phase::Detached, Goal::Calico, MINUTE, 3600, Some(0))]
    // Nobody is between two networks.
    #[case(Phase::Flannel, Goal::Held, MINUTE, 3600, None)]
    #[case(Phase::Mixed, Goal::Mixed, MINUTE, 3600, None)]
    #[case(Phase::Calico, Goal::Calico, MINUTE, 3600, None)]
    // It goes back already, or was told to hold still.
    #[case(Phase::Swapped, Goal::Flannel, MINUTE, 3600, None)]
    #[case(Phase::Swapped, Goal::Hold, MINUTE, 3600, None)]
    // `drain.onBlocked: Wait` has no end.
    #[case(Phase::Held, Goal::Held, None, 3600, None)]
    fn time_that_is_left(
        #[case] phase: Phase,
        #[case] goal: Goal,
        #[case] patience: Option<Duration>,
        #[case] quiet: u64,
        #[case] left: Option<u64>,
    ) {
        let found = left_to_wait(phase, goal, patience, Duration::from_secs(quiet));
        assert_eq!(found, left.map(Duration::from_secs));
    }
}
