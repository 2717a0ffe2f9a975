//! Metrics of the traffic pods. Label values come from enums only.

use std::time::Duration;

use api::traffic::TrafficReport;
use prometheus::core::Collector;
use prometheus::{GaugeVec, IntGauge, IntGaugeVec, Opts};

/// Metrics of the node's traffic pods.
#[derive(Debug)]
pub struct TrafficMetrics {
    probes: IntGaugeVec,
    longest_gap: GaugeVec,
    breaches: IntGauge,
    floods: IntGauge,
    masquerades: IntGauge,
}

impl TrafficMetrics {
    /// The metrics, not registered yet.
    ///
    /// # Errors
    ///
    /// A metric has an invalid name.
    pub fn new() -> Result<Self, prometheus::Error> {
        Ok(Self {
            probes: IntGaugeVec::new(
                Opts::new(
                    "replumb_agent_traffic_probes",
                    "Probes sent by the node's traffic pods since the agent's start, by path class and outcome.",
                ),
                &["class", "outcome"],
            )?,
            longest_gap: GaugeVec::new(
                Opts::new(
                    "replumb_agent_traffic_longest_gap_seconds",
                    "Longest time without an answer in seconds since the agent's start, by path class.",
                ),
                &["class"],
            )?,
            breaches: IntGauge::new(
                "replumb_agent_traffic_breaches",
                "Paths that currently lose more probes than the gates of the Migration allow.",
            )?,
            floods: IntGauge::new(
                "replumb_agent_traffic_floods",
                "Pods that receive more datagrams from one source than they answer; losses to these pods are no breach.",
            )?,
            masquerades: IntGauge::new(
                "replumb_agent_traffic_masquerades",
                "Paths on which packets of the node's traffic pods arrive from another address than that of the pod.",
            )?,
        })
    }

    /// The collectors to register.
    pub fn collectors(&self) -> [Box<dyn Collector>; 5] {
        [
            Box::new(self.probes.clone()),
            Box::new(self.longest_gap.clone()),
            Box::new(self.breaches.clone()),
            Box::new(self.floods.clone()),
            Box::new(self.masquerades.clone()),
        ]
    }

    /// Sets the metrics from the report of the traffic pods.
    pub fn set(&self, report: Option<&TrafficReport>) {
        let whole = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
        for count in report.into_iter().flat_map(|report| &report.classes) {
            let class = count.class.as_str();
            let answered = count.totals.sent.saturating_sub(count.totals.lost);
            for (outcome, number) in [("answered", answered), ("lost", count.totals.lost)] {
                self.probes
                    .with_label_values(&[class, outcome])
                    .set(whole(number));
            }
            let gap = Duration::from_millis(u64::from(count.totals.longest_gap_milliseconds));
            self.longest_gap
                .with_label_values(&[class])
                .set(gap.as_secs_f64());
        }
        let breaches = report.map_or(0, |report| report.breaches.len());
        self.breaches.set(i64::try_from(breaches).unwrap_or(i64::MAX));
        let floods = report.map_or(0, |report| report.floods.len());
        self.floods.set(i64::try_from(floods).unwrap_or(i64::MAX));
        let masquerades = report.map_or(0, |report| report.masquerades.len());
        self.masquerades
            .set(i64::try_from(masquerades).unwrap_or(i64::MAX));
    }
}
