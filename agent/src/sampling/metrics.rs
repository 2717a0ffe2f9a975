//! Metrics of sampling. Label values come from enums only.

use prometheus::core::Collector;
use prometheus::{IntCounter, IntCounterVec, IntGauge, Opts};
use strum::VariantArray;

/// How a reading of connection tracking ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::IntoStaticStr, VariantArray)]
#[strum(serialize_all = "kebab-case")]
pub enum ReadingOutcome {
    /// All entries were read.
    Complete,
    /// The table changed meanwhile.
    Interrupted,
    /// The kernel dropped a part.
    Overrun,
    /// An entry could not be decoded.
    Malformed,
    /// The kernel tracks no connection.
    Empty,
    /// The reading did not end in time.
    Late,
    /// The kernel refused.
    Refused,
}

/// Outcomes of writes, as those of the other status.
const WRITES: [&str; 2] = ["written", "error"];

/// Metrics of the `ConnectionSample` of the node.
#[derive(Debug)]
pub struct SamplingMetrics {
    readings: IntCounterVec,
    /// Kinds of connections in memory.
    pub kinds: IntGauge,
    /// Kinds that were replaced by others.
    pub replaced: IntCounter,
    /// Times in which connections may have ended unseen.
    pub gaps: IntCounter,
    writes: IntCounterVec,
}

impl SamplingMetrics {
    /// The metrics, not registered yet.
    ///
    /// # Errors
    ///
    /// A metric has an invalid name.
    pub fn new() -> Result<Self, prometheus::Error> {
        let metrics = Self {
            readings: IntCounterVec::new(
                Opts::new(
                    "replumb_agent_connection_readings_total",
                    "Readings of connection tracking for the policy preview, by outcome.",
                ),
                &["outcome"],
            )?,
            kinds: IntGauge::new(
                "replumb_agent_connection_kinds",
                "Kinds of connections that the agent keeps for the policy preview.",
            )?,
            replaced: IntCounter::new(
                "replumb_agent_connection_kinds_replaced_total",
                "Kinds of connections that were replaced by others because of the capacity of the ConnectionSample.",
            )?,
            gaps: IntCounter::new(
                "replumb_agent_connection_gaps_total",
                "Times in which connections may have begun and ended unseen, because the kernel dropped events.",
            )?,
            writes: IntCounterVec::new(
                Opts::new(
                    "replumb_agent_connection_sample_writes_total",
                    "Writes of the status of the ConnectionSample to the API, by outcome.",
                ),
                &["outcome"],
            )?,
        };
        for outcome in WRITES {
            metrics.writes.with_label_values(&[outcome]).inc_by(0);
        }
        for outcome in ReadingOutcome::VARIANTS {
            metrics
                .readings
                .with_label_values(&[<&str>::from(outcome)])
                .inc_by(0);
        }
        Ok(metrics)
    }

    /// The collectors to register.
    pub fn collectors(&self) -> [Box<dyn Collector>; 5] {
        [
            Box::new(self.readings.clone()),
            Box::new(self.kinds.clone()),
            Box::new(self.replaced.clone()),
            Box::new(self.gaps.clone()),
            Box::new(self.writes.clone()),
        ]
    }

    /// Counts a write of the status.
    pub fn count_write(&self, is_written: bool) {
        let [written, error] = WRITES;
        let outcome = if is_written { written } else { error };
        self.writes.with_label_values(&[outcome]).inc();
    }

    /// Counts a reading.
    pub fn count_reading(&self, outcome: ReadingOutcome) {
        self.readings.with_label_values(&[<&str>::from(outcome)]).inc();
    }
}
