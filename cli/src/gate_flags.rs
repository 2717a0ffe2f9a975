//! Flags of what traffic may lose.

use api::traffic::{GateRules, TrafficGate};
use clap::{Args, ValueEnum};

use crate::value;

/// What traffic may lose before no further node is started.
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
}

/// Whether traffic is the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Traffic {
    /// A traffic pod on every node sends and counts.
    Watch,
    /// No traffic pods: a node is proved once, when it has changed.
    Off,
}

impl GateFlags {
    /// What the flags say over what is there.
    pub fn over(&self, there: &GateRules) -> GateRules {
        GateRules {
            traffic: self.traffic.map_or(there.traffic, |traffic| match traffic {
                Traffic::Watch => TrafficGate::Watch,
                Traffic::Off => TrafficGate::Off,
            }),
            max_loss_ratio: self.max_loss_ratio.or(there.max_loss_ratio),
            max_gap_milliseconds: self.max_gap.or(there.max_gap_milliseconds),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_flag_does_not_say_stays() {
        let there = GateRules {
            traffic: TrafficGate::Off,
            max_loss_ratio: Some(0.05),
            max_gap_milliseconds: None,
        };
        assert_eq!(GateFlags::default().over(&there), there);
        let flags = GateFlags {
            max_loss_ratio: Some(0.0),
            max_gap: Some(500),
            traffic: Some(Traffic::Watch),
        };
        let said = flags.over(&there);
        assert_eq!(
            (said.traffic, said.max_loss_ratio, said.max_gap_milliseconds),
            (TrafficGate::Watch, Some(0.0), Some(500))
        );
    }
}
