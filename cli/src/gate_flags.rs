//! Flags of the gates: conditions for a migration to continue.

use api::traffic::{GateRules, SoakGate, SourceAddressGate, TrafficGate};
use clap::{Args, ValueEnum};

use crate::value;

/// Flags of the gates: conditions for a migration to continue.
#[derive(Clone, Debug, Default, PartialEq, Args)]
#[command(next_help_heading = "Gates")]
pub struct GateFlags {
    /// Highest ratio of lost to sent probes on one path over the last 10 seconds, 0 to 1. Default 0.01.
    #[arg(long, value_name = "RATIO", value_parser = value::ratio)]
    pub max_loss_ratio: Option<f64>,
    /// Longest time without an answer on one path, in milliseconds. Default 2000.
    #[arg(long, value_name = "MILLISECONDS", value_parser = clap::value_parser!(u32).range(200..=60_000))]
    pub max_gap: Option<u32>,
    /// Whether traffic pods probe each other continuously, and losses halt the rollout. Default watch.
    #[arg(long, value_enum, ignore_case = true)]
    pub traffic: Option<Traffic>,
    /// Whether to wait while packets of the new network arrive from other addresses than those of their pods. Default keep.
    #[arg(long, value_enum, ignore_case = true)]
    pub source_addresses: Option<SourceAddresses>,
    /// Condition that ends stage Soak, in which old addresses still answer. Applies to serviceCidr. Default unused.
    #[arg(long = "soak-ends", id = "soak_ends", value_enum, ignore_case = true)]
    pub soak: Option<Soak>,
}

/// Whether packets have to keep their source addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SourceAddresses {
    /// The migration waits while packets of the new network are masqueraded, and those of the old network are not.
    Keep,
    /// The migration does not wait.
    Ignore,
}

/// The condition that ends stage Soak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Soak {
    /// No old address has been in use for the soak time, and no object of a tenant names one.
    Unused,
    /// The soak time has passed, even if an old address is in use.
    Elapsed,
}

/// Whether traffic is the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Traffic {
    /// A traffic pod on every node sends and counts probes.
    Watch,
    /// No traffic pods: each node is probed once, after its change.
    Ignore,
}

impl GateFlags {
    /// The existing gates, overridden by the flags.
    pub fn over(&self, there: &GateRules) -> GateRules {
        GateRules {
            traffic: self.traffic.map_or(there.traffic, |traffic| match traffic {
                Traffic::Watch => TrafficGate::Watch,
                Traffic::Ignore => TrafficGate::Ignore,
            }),
            max_loss_ratio: self.max_loss_ratio.or(there.max_loss_ratio),
            max_gap_milliseconds: self.max_gap.or(there.max_gap_milliseconds),
            source_addresses: self.source_addresses.map_or(
                there.source_addresses,
                |addresses| match addresses {
                    SourceAddresses::Keep => SourceAddressGate::Keep,
                    SourceAddresses::Ignore => SourceAddressGate::Ignore,
                },
            ),
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
    fn gates_without_a_flag_are_unchanged() {
        let there = GateRules {
            traffic: TrafficGate::Ignore,
            max_loss_ratio: Some(0.05),
            max_gap_milliseconds: None,
            source_addresses: SourceAddressGate::Ignore,
            soak: SoakGate::Elapsed,
        };
        assert_eq!(GateFlags::default().over(&there), there);
        let flags = GateFlags {
            max_loss_ratio: Some(0.0),
            max_gap: Some(500),
            traffic: Some(Traffic::Watch),
            source_addresses: None,
            soak: None,
        };
        let said = flags.over(&there);
        assert_eq!(
            (said.traffic, said.max_loss_ratio, said.max_gap_milliseconds),
            (TrafficGate::Watch, Some(0.0), Some(500))
        );
        assert_eq!(
            (said.soak, said.source_addresses),
            (SoakGate::Elapsed, SourceAddressGate::Ignore)
        );
        let flags = GateFlags {
            source_addresses: Some(SourceAddresses::Keep),
            ..GateFlags::default()
        };
        assert_eq!(flags.over(&there).source_addresses, SourceAddressGate::Keep);
    }
}
