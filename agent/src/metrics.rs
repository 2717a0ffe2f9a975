//! Metrics of the agent. Label values come from enums only.

use std::sync::Arc;

use engine::check::{Check, Verdict};
use prometheus::core::Collector;
use prometheus::{
    GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};
use runtime::api_metrics::ApiMetrics;

use crate::sampling::metrics::SamplingMetrics;
use crate::traffic::metrics::TrafficMetrics;

/// Every metric of the agent, in a registry of its own.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    phase: IntGaugeVec,
    checks: IntGaugeVec,
    /// Objects of the old network on the host.
    pub leftovers: IntGauge,
    /// 1 while the agent reports a failure.
    pub failing: IntGauge,
    /// Duration of a step, by name and outcome.
    pub step_duration: HistogramVec,
    /// Duration of one observation of the host.
    pub observe_duration: Histogram,
    /// Turns of the loop.
    pub turns: IntCounter,
    /// Writes to the API by outcome.
    pub writes: IntCounterVec,
    probes: IntGaugeVec,
    /// Metrics of the traffic pods.
    pub traffic: TrafficMetrics,
    /// Metrics of the `ConnectionSample`.
    pub sampling: Arc<SamplingMetrics>,
    /// Requests to the API server and its warnings.
    pub api: ApiMetrics,
}

impl Metrics {
    /// Registers every metric.
    ///
    /// # Errors
    ///
    /// A metric has an invalid name or is registered twice.
    pub fn new() -> Result<Self, prometheus::Error> {
        let metrics = Self {
            phase: IntGaugeVec::new(
                Opts::new(
                    "replumb_agent_phase",
                    "1 for the current phase of the host, 0 for every other phase.",
                ),
                &["phase"],
            )?,
            checks: IntGaugeVec::new(
                Opts::new(
                    "replumb_agent_check",
                    "1 for the current verdict of a check, 0 for every other verdict.",
                ),
                &["check", "verdict"],
            )?,
            leftovers: IntGauge::new(
                "replumb_agent_leftovers",
                "Objects of the old network on the host.",
            )?,
            failing: IntGauge::new("replumb_agent_failing", "1 while the agent reports a failure.")?,
            step_duration: HistogramVec::new(
                HistogramOpts::new(
                    "replumb_agent_step_duration_seconds",
                    "Duration of a step on the host in seconds.",
                )
                .buckets(vec![0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0]),
                &["step", "outcome"],
            )?,
            observe_duration: Histogram::with_opts(
                HistogramOpts::new(
                    "replumb_agent_observe_duration_seconds",
                    "Duration of one observation of the host in seconds.",
                )
                .buckets(vec![0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0]),
            )?,
            turns: IntCounter::new("replumb_agent_turns_total", "Turns of the agent's loop.")?,
            writes: IntCounterVec::new(
                Opts::new(
                    "replumb_agent_status_writes_total",
                    "Writes of the status to the API, by outcome.",
                ),
                &["outcome"],
            )?,
            probes: IntGaugeVec::new(
                Opts::new(
                    "replumb_agent_probe_targets",
                    "Probe targets of the agent, by outcome.",
                ),
                &["outcome"],
            )?,
            traffic: TrafficMetrics::new()?,
            sampling: Arc::new(SamplingMetrics::new()?),
            api: ApiMetrics::new()?,
            registry: Registry::new(),
        };
        metrics.register()?;
        for outcome in ["written", "error"] {
            metrics.writes.with_label_values(&[outcome]).inc_by(0);
        }
        metrics.set_probes(0, 0);
        Ok(metrics)
    }

    fn register(&self) -> Result<(), prometheus::Error> {
        for collector in [
            Box::new(build_info()?) as Box<dyn Collector>,
            Box::new(self.phase.clone()),
            Box::new(self.checks.clone()),
            Box::new(self.leftovers.clone()),
            Box::new(self.failing.clone()),
            Box::new(self.step_duration.clone()),
            Box::new(self.observe_duration.clone()),
            Box::new(self.turns.clone()),
            Box::new(self.writes.clone()),
            Box::new(self.probes.clone()),
        ]
        .into_iter()
        .chain(self.traffic.collectors())
        .chain(self.sampling.collectors())
        .chain(self.api.collectors())
        {
            self.registry.register(collector)?;
        }
        Ok(())
    }

    /// Sets the phase of the host, one of `phases`; `None` while it is unknown.
    pub fn set_phase(&self, phases: &[&str], phase: Option<&str>) {
        for each in phases {
            self.phase
                .with_label_values(&[*each])
                .set(i64::from(phase == Some(*each)));
        }
    }

    /// Sets the verdicts of the checks with these names. A check that does not apply at the moment has no verdict.
    pub fn set_checks(&self, names: &[&str], checks: &[&Check]) {
        for each in names {
            let found = checks.iter().find(|check| check.name == *each);
            for verdict in Verdict::ALL {
                let is = found.is_some_and(|check| check.verdict == *verdict);
                self.checks
                    .with_label_values(&[*each, verdict.as_str()])
                    .set(i64::from(is));
            }
        }
    }

    /// Sets the numbers of targets that are reached and not reached.
    pub fn set_probes(&self, reached: usize, not_reached: usize) {
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        self.probes.with_label_values(&["reached"]).set(count(reached));
        self.probes
            .with_label_values(&["unreached"])
            .set(count(not_reached));
    }

    /// Every metric in the text format that Prometheus scrapes.
    ///
    /// # Errors
    ///
    /// A metric cannot be written as text.
    pub fn text(&self) -> Result<String, prometheus::Error> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

/// The version of the agent as a label.
fn build_info() -> Result<GaugeVec, prometheus::Error> {
    let build = GaugeVec::new(
        Opts::new("replumb_build_info", "Always 1; the version is the label."),
        &["version", "component"],
    )?;
    build
        .with_label_values(&[env!("CARGO_PKG_VERSION"), "agent"])
        .set(1.0);
    Ok(build)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_phase_and_one_verdict_are_set() {
        let metrics = Metrics::new().unwrap();
        metrics.set_phase(&["Flannel", "Held"], Some("Held"));
        metrics.set_checks(&["Leftovers"], &[&Check::pass("Leftovers", "Node a", "nothing")]);
        let text = metrics.text().unwrap();
        assert!(text.contains("replumb_build_info{component=\"agent\""));
        assert!(text.contains("replumb_agent_phase{phase=\"Held\"} 1"));
        assert!(text.contains("replumb_agent_phase{phase=\"Flannel\"} 0"));
        assert!(text.contains("replumb_agent_check{check=\"Leftovers\",verdict=\"Pass\"} 1"));
        assert!(text.contains("replumb_agent_check{check=\"Leftovers\",verdict=\"Fail\"} 0"));
    }
}
