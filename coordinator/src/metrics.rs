//! Metrics of the coordinator. Label values come from enums only.

use prometheus::{
    GaugeVec, Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts,
    Registry, TextEncoder,
};
use runtime::api_metrics::ApiMetrics;

/// Every metric of the coordinator, in a registry of its own.
pub struct Metrics {
    registry: Registry,
    /// 1 for the phase that the Migration is in.
    pub phase: IntGaugeVec,
    /// Nodes by stage, `Waiting` and `Done` included.
    pub nodes: IntGaugeVec,
    /// Seconds that a stage of a node took.
    pub step_duration: HistogramVec,
    /// 1 for each reason that something waits for now.
    pub blocked: IntGaugeVec,
    /// Evictions by result.
    pub evictions: IntCounterVec,
    /// Checks that do not pass, by name.
    pub check_failed: IntGaugeVec,
    /// Pods that have a node and no network, while Calico's datastore is converted.
    pub pods_without_network: IntGauge,
    /// 1 while Calico is paused by a conversion of its datastore.
    pub calico_paused: IntGauge,
    /// 1 while this process leads.
    pub leading: IntGauge,
    /// Passes of the loop.
    pub passes: IntCounter,
    /// Seconds that a pass took.
    pub pass_duration: Histogram,
    /// Writes that failed, by category.
    pub write_errors: IntCounterVec,
    /// Requests to the API server and its warnings.
    pub api: ApiMetrics,
}

impl Metrics {
    /// Registers every metric.
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
                    "1 for the phase that the Migration is in, 0 for every other.",
                ),
                &["phase"],
            )?,
            nodes: IntGaugeVec::new(
                Opts::new("replumb_nodes", "Nodes of the Migration by where they stand."),
                &["phase"],
            )?,
            step_duration: step_duration()?,
            blocked: IntGaugeVec::new(
                Opts::new(
                    "replumb_blocked",
                    "Nodes in work that wait for this reason now; 1 when only the whole migration waits for it.",
                ),
                &["reason"],
            )?,
            evictions: IntCounterVec::new(
                Opts::new(
                    "replumb_evictions_total",
                    "Evictions that were requested, by result.",
                ),
                &["result"],
            )?,
            check_failed: IntGaugeVec::new(
                Opts::new(
                    "replumb_check_failed",
                    "Checks that refuse the migration, by name.",
                ),
                &["check"],
            )?,
            pods_without_network: IntGauge::new(
                "replumb_pods_without_network",
                "Pods that have a node and no network yet, while Calico's datastore is converted.",
            )?,
            calico_paused: IntGauge::new(
                "replumb_calico_paused",
                "1 while Calico is paused by a conversion of its datastore: no pod gets a network.",
            )?,
            leading: IntGauge::new("replumb_leading", "1 while this coordinator holds the Lease.")?,
            passes: IntCounter::new("replumb_passes_total", "Passes of the coordinator's loop.")?,
            pass_duration: pass_duration()?,
            write_errors: IntCounterVec::new(
                Opts::new(
                    "replumb_write_errors_total",
                    "Writes to the API that failed, by category.",
                ),
                &["category"],
            )?,
            api: ApiMetrics::new()?,
            registry,
        };
        for collector in [
            Box::new(metrics.phase.clone()) as Box<dyn prometheus::core::Collector>,
            Box::new(metrics.nodes.clone()),
            Box::new(metrics.step_duration.clone()),
            Box::new(metrics.blocked.clone()),
            Box::new(metrics.evictions.clone()),
            Box::new(metrics.check_failed.clone()),
            Box::new(metrics.pods_without_network.clone()),
            Box::new(metrics.calico_paused.clone()),
            Box::new(metrics.leading.clone()),
            Box::new(metrics.passes.clone()),
            Box::new(metrics.pass_duration.clone()),
            Box::new(metrics.write_errors.clone()),
        ]
        .into_iter()
        .chain(metrics.api.collectors())
        {
            metrics.registry.register(collector)?;
        }
        for result in [
            "evicted",
            "gone",
            "replaced",
            "refused_by_budget",
            "refused",
            "error",
        ] {
            metrics.evictions.with_label_values(&[result]).inc_by(0);
        }
        Ok(metrics)
    }

    /// Warnings of the API server about requests of ours.
    pub fn api_warnings(&self) -> u64 {
        self.api.warnings()
    }

    /// Every metric in the text format that Prometheus scrapes.
    pub fn text(&self) -> Result<String, prometheus::Error> {
        TextEncoder::new().encode_to_string(&self.registry.gather())
    }
}

fn step_duration() -> Result<HistogramVec, prometheus::Error> {
    HistogramVec::new(
        HistogramOpts::new(
            "replumb_node_step_duration_seconds",
            "Seconds that a stage of a node took.",
        )
        .buckets(vec![
            0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0,
        ]),
        &["step"],
    )
}

fn pass_duration() -> Result<Histogram, prometheus::Error> {
    Histogram::with_opts(
        HistogramOpts::new(
            "replumb_pass_duration_seconds",
            "Seconds that a pass of the coordinator's loop took, waiting for the API server included.",
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
    fn every_metric_has_a_name_once() {
        let text = Metrics::new().unwrap().text().unwrap();
        assert!(text.contains("replumb_build_info{component=\"coordinator\""));
        assert!(text.contains("replumb_evictions_total{result=\"refused_by_budget\"} 0"));
    }
}
