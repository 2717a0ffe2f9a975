//! Reads the coordinator's values once a second for the report.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::Serialize;

use super::process::Usage;

/// The values of one read.
#[derive(Clone, Copy, Debug)]
pub struct Reading {
    /// Time since the first read.
    pub at: Duration,
    /// The kernel's values.
    pub usage: Usage,
    /// Number of passes.
    pub passes: u64,
}

/// The passes in some time. A pass has no clock: the value is the processor time of a second divided by its passes,
/// so the cost of watches is included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Passes {
    /// Number of passes.
    pub count: u64,
    /// Milliseconds of processor time of one pass, median.
    pub processor_milliseconds_median: f64,
    /// The same, 99th percentile.
    pub processor_milliseconds_p99: f64,
    /// Share of one processor in this time.
    pub processor_share: f64,
}

/// All reads.
#[derive(Clone, Debug, Default)]
pub struct Readings(Vec<Reading>);

impl Readings {
    /// Adds a read.
    pub fn add(&mut self, reading: Reading) {
        self.0.push(reading);
    }

    /// Number of reads so far: a mark in time.
    pub fn mark(&self) -> usize {
        self.0.len()
    }

    /// The most anonymous memory at any read.
    pub fn peak_anonymous(&self) -> u64 {
        self.0
            .iter()
            .map(|reading| reading.usage.anonymous)
            .max()
            .unwrap_or_default()
    }

    /// The most resident memory at any time.
    pub fn peak_resident(&self) -> u64 {
        self.0
            .iter()
            .map(|reading| reading.usage.peak_resident)
            .max()
            .unwrap_or_default()
    }

    /// The passes from one mark to another.
    pub fn passes(&self, from: usize, to: usize) -> Passes {
        let readings = self.0.get(from.saturating_sub(1)..to).unwrap_or_default();
        let (Some(first), Some(last)) = (readings.first(), readings.last()) else {
            return Passes::default();
        };
        let mut costs = Vec::new();
        for pair in readings.windows(2) {
            let [before, after] = pair else { continue };
            let passes = after.passes.saturating_sub(before.passes);
            if passes > 0 {
                let spent = after.usage.processor.saturating_sub(before.usage.processor);
                costs.push(
                    spent.as_secs_f64() * 1_000.0 / f64::from(u32::try_from(passes).unwrap_or(u32::MAX)),
                );
            }
        }
        let spent = last.usage.processor.saturating_sub(first.usage.processor);
        let lasted = last.at.saturating_sub(first.at);
        Passes {
            count: last.passes.saturating_sub(first.passes),
            processor_milliseconds_median: quantile(&mut costs, 0.5),
            processor_milliseconds_p99: quantile(&mut costs, 0.99),
            processor_share: if lasted.is_zero() {
                0.0
            } else {
                spent.as_secs_f64() / lasted.as_secs_f64()
            },
        }
    }
}

/// The value below which this share of all lies; 0 for an empty list.
pub fn quantile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index between 0 and the last one"
    )]
    let index = (share * last as f64).ceil() as usize;
    values.get(index).copied().unwrap_or_default()
}

/// A counter of the coordinator, without labels.
pub fn counter(metrics: &str, name: &str) -> Result<u64> {
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
        .with_context(|| format!("the coordinator has no metric {name}"))?;
    line.trim().parse().with_context(|| format!("read {name} {line}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reading(second: u64, processor: u64, passes: u64, anonymous: u64) -> Reading {
        let usage = Usage {
            peak_resident: 9,
            anonymous,
            processor: Duration::from_millis(processor),
        };
        Reading {
            at: Duration::from_secs(second),
            usage,
            passes,
        }
    }

    #[test]
    fn the_cost_of_a_pass_is_the_cost_of_its_second_divided_by_its_passes() {
        let mut readings = Readings::default();
        for reading in [
            reading(0, 0, 0, 1),
            reading(1, 100, 1, 7),
            reading(2, 120, 5, 3),
            reading(3, 120, 5, 3),
            reading(4, 420, 6, 2),
        ] {
            readings.add(reading);
        }
        let passes = readings.passes(0, readings.mark());
        assert_eq!(passes.count, 6);
        assert!(
            (passes.processor_milliseconds_median - 100.0).abs() < 1e-9,
            "{passes:?}"
        );
        assert!(
            (passes.processor_milliseconds_p99 - 300.0).abs() < 1e-9,
            "{passes:?}"
        );
        assert!((passes.processor_share - 0.105).abs() < 1e-9, "{passes:?}");
        assert_eq!(readings.peak_anonymous(), 7);
        assert_eq!(
            readings.passes(4, 5).count,
            1,
            "from the mark before the last read"
        );
        assert_eq!(Readings::default().passes(0, 0), Passes::default());
    }

    #[test]
    fn a_counter_is_found_by_its_whole_name() {
        let text = "# HELP replumb_passes_total x\nreplumb_passes_total_x 1\nreplumb_passes_total 42\n";
        assert_eq!(counter(text, "replumb_passes_total").unwrap(), 42);
        assert!(counter(text, "replumb_passes").is_err());
    }
}
