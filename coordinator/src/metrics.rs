//! Metrics of the coordinator. Label values come from enums only.

use prometheus::{
    GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};
use runtime::api_metrics::ApiMetrics;

/// Results of evictions: each is exposed from the start, so that a rate is known at the first eviction.
const EVICTION_RESULTS: [&str; 6] = [
    "evicted",
    "gone",
    "replaced",
    "refused_by_budget",
    "refused",
    "error",
];

/// Every metric of the coordinator, in a registry of its own.
pub struct Metrics {
    registry: Registry,
    /// 1 for the current phase of the Migration.
    pub phase: IntGaugeVec,
    /// Nodes by stage, `Waiting` and `Done` included.
    pub nodes: IntGaugeVec,
    /// Seconds that a stage of a node took.
    pub step_duration: HistogramVec,
    /// 1 for each current reason for waiting.
    pub blocked: IntGaugeVec,
    /// Evictions by result.
    pub evictions: IntCounterVec,
    /// Failed checks, by name.
    pub check_failed: IntGaugeVec,
    /// Network policies that begin to hold.
    pub dormant_policies: IntGauge,
    /// Observed connections by what network policies would do with them.
    pub preview_connections: IntGaugeVec,
    /// Pods on a node without a network, during a conversion of Calico's datastore.
    pub pods_without_network: IntGauge,
    /// 1 while Calico is paused by a conversion of its datastore.
    pub calico_paused: IntGauge,
    /// 1 while this process is the leader.
    pub leading: IntGauge,
    /// Passes of the loop.
    pub passes: IntCounter,
    /// Duration of a pass in seconds.
    pub pass_duration: Histogram,
    /// Writes that failed, by category.
    pub write_errors: IntCounterVec,
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
        let registry = Registry::new();
        let build = GaugeVec::new(
            Opts::new("replumb_build_info", "Always 1; the version is the label."),
            &["version", "component"],
        )?;
        build
            .with_label_values(&[env!("CARGO_PKG_VERSION"), "coordinator"])
            .set(1.0);
        registry.register(Box::new(build))?;
        let metrics = Self {
            phase: IntGaugeVec::new(
                Opts::new(
                    "replumb_migration_phase",
                    "1 for the current phase of the Migration, 0 for all others.",
                ),
                &["phase"],
            )?,
            nodes: IntGaugeVec::new(
                Opts::new(
                    "replumb_nodes",
                    "Nodes of the Migration, by phase of the rollout.",
                ),
                &["phase"],
            )?,
            step_duration: step_duration()?,
            blocked: IntGaugeVec::new(
                Opts::new(
                    "replumb_blocked",
                    "Nodes in the rollout that wait for this reason; 1 if only the migration as a whole waits.",
                ),
                &["reason"],
            )?,
            evictions: IntCounterVec::new(
                Opts::new("replumb_evictions_total", "Requested evictions, by result."),
                &["result"],
            )?,
            check_failed: IntGaugeVec::new(
                Opts::new(
                    "replumb_check_failed",
                    "Checks that refuse the migration, by name.",
                ),
                &["check"],
            )?,
            dormant_policies: IntGauge::new(
                "replumb_dormant_policies",
                "Network policies that begin to hold once Calico has the pods.",
            )?,
            preview_connections: preview_connections()?,
            pods_without_network: IntGauge::new(
                "replumb_pods_without_network",
                "Pods on a node without a network, during a conversion of Calico's datastore.",
            )?,
            calico_paused: IntGauge::new(
                "replumb_calico_paused",
                "1 while a conversion of Calico's datastore pauses Calico: new pods get no network.",
            )?,
            leading: IntGauge::new("replumb_leading", "1 while this coordinator holds the Lease.")?,
            passes: IntCounter::new("replumb_passes_total", "Passes of the coordinator's loop.")?,
            pass_duration: pass_duration()?,
            write_errors: IntCounterVec::new(
                Opts::new(
                    "replumb_write_errors_total",
                    "Failed writes to the API, by category.",
                ),
                &["category"],
            )?,
            api: ApiMetrics::new()?,
            registry,
        };
        for collector in metrics.collectors().into_iter().chain(metrics.api.collectors()) {
            metrics.registry.register(collector)?;
        }
        for result in EVICTION_RESULTS {
            metrics.evictions.with_label_values(&[result]).inc_by(0);
        }
        Ok(metrics)
    }

    /// The metrics of this module, for their registration.
    fn collectors(&self) -> [Box<dyn prometheus::core::Collector>; 14] {
        [
            Box::new(self.phase.clone()),
            Box::new(self.nodes.clone()),
            Box::new(self.step_duration.clone()),
            Box::new(self.blocked.clone()),
            Box::new(self.evictions.clone()),
            Box::new(self.check_failed.clone()),
            Box::new(self.dormant_policies.clone()),
            Box::new(self.preview_connections.clone()),
            Box::new(self.pods_without_network.clone()),
            Box::new(self.calico_paused.clone()),
            Box::new(self.leading.clone()),
            Box::new(self.passes.clone()),
            Box::new(self.pass_duration.clone()),
            Box::new(self.write_errors.clone()),
        ]
    }

    /// Warnings of the API server about the coordinator's requests.
    pub fn api_warnings(&self) -> u64 {
        self.api.warnings()
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

fn step_duration() -> Result<HistogramVec, prometheus::Error> {
    HistogramVec::new(
        HistogramOpts::new(
            "replumb_node_step_duration_seconds",
            "Duration of a stage of a node in seconds.",
        )
        .buckets(vec![
            0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0,
        ]),
        &["step"],
    )
}

fn preview_connections() -> Result<IntGaugeVec, prometheus::Error> {
    IntGaugeVec::new(
        Opts::new(
            "replumb_policy_preview_connections",
            "Connections that agents have seen, by what network policies would do with them.",
        ),
        &["verdict"],
    )
}

fn pass_duration() -> Result<Histogram, prometheus::Error> {
    Histogram::with_opts(
        HistogramOpts::new(
            "replumb_pass_duration_seconds",
            "Duration of a pass of the coordinator's loop in seconds, including waits for the API server.",
        )
        .buckets(vec![
            0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
        ]),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_register_and_expose_zero_counters() {
        let text = Metrics::new().unwrap().text().unwrap();
        assert!(text.contains("replumb_build_info{component=\"coordinator\""));
        assert!(text.contains("replumb_evictions_total{result=\"refused_by_budget\"} 0"));
    }
}
