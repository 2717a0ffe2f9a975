//! Flags of what has to hold before a migration goes on.

use api::traffic::{GateRules, SoakGate, TrafficGate};
use clap::{Args, ValueEnum};

use crate::value;

/// What has to hold before a migration goes on.
#[derive(Clone, Debug, Default, PartialEq, Args)]
#[command(next_help_heading = "Gates")]
pub struct GateFlags {
    /// Lost probes by sent ones over the last 10 seconds of one path, 0 to 1. Default 0.01.
    #[arg(long, value_name = "RATIO", value_parser = value::ratio)]
    pub max_loss_ratio: Option<f64>,
    /// The longest time in which a path has no answer, in milliseconds. Default 2000.
    #[arg(long, value_name = "MILLISECONDS", value_parser = clap::value_parser!(u32).range(200..=60_000))]
    pub max_gap: Option<u32>,
    /// Whether traffic pods send without pause, and what they lose stops the rollout. Default watch.
    #[arg(long, value_enum, ignore_case = true)]
    pub traffic: Option<Traffic>,
    /// Of a change of the Services' range: what ends stage Soak, in which old addresses still answer. Default unused.
    #[arg(long = "soak-ends", id = "soak_ends", value_enum, ignore_case = true)]
    pub soak: Option<Soak>,
}

/// What ends stage Soak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Soak {
    /// No connection leads to an old address for the time of the soak, and no object of a tenant says one.
    Unused,
    /// The time of the soak has passed, even if an old address is in use then.
    Elapsed,
}

/// Whether traffic is the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Traffic {
    /// A traffic pod on every node sends and counts.
    Watch,
    /// No traffic pods: a node is proved once, when it has changed.
    Ignore,
}

impl GateFlags {
    /// What the flags say over what is there.
    pub fn over(&self, there: &GateRules) -> GateRules {
        GateRules {
            traffic: self.traffic.map_or(there.traffic, |traffic| match traffic {
                Traffic::Watch => TrafficGate::Watch,
                Traffic::Ignore => TrafficGate::Ignore,
            }),
            max_loss_ratio: self.max_loss_ratio.or(there.max_loss_ratio),
            max_gap_milliseconds: self.max_gap.or(there.max_gap_milliseconds),
            soak: self.soak.map_or(there.soak, |soak| match soak {
                Soak::Unused => SoakGate::Unused,
                Soak::Elapsed => SoakGate::Elapsed,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_flag_does_not_say_stays() {
        let there = GateRules {
            traffic: TrafficGate::Ignore,
            max_loss_ratio: Some(0.05),
            max_gap_milliseconds: None,
            soak: SoakGate::Elapsed,
        };
        assert_eq!(GateFlags::default().over(&there), there);
        let flags = GateFlags {
            max_loss_ratio: Some(0.0),
            max_gap: Some(500),
            traffic: Some(Traffic::Watch),
            soak: None,
        };
        let said = flags.over(&there);
        assert_eq!(
            (said.traffic, said.max_loss_ratio, said.max_gap_milliseconds),
            (TrafficGate::Watch, Some(0.0), Some(500))
        );
        assert_eq!(said.soak, SoakGate::Elapsed);
    }
}
