//! Metrics of the traffic pods. Label values come from enums only.

use std::time::Duration;

use api::traffic::TrafficReport;
use prometheus::core::Collector;
use prometheus::{GaugeVec, IntGauge, IntGaugeVec, Opts};

/// What the traffic pods of the node found.
#[derive(Debug)]
pub struct TrafficMetrics {
    probes: IntGaugeVec,
    longest_gap: GaugeVec,
    breaches: IntGauge,
    floods: IntGauge,
}

impl TrafficMetrics {
    /// The metrics, which nobody has registered yet.
    pub fn new() -> Result<Self, prometheus::Error> {
        Ok(Self {
            probes: IntGaugeVec::new(
                Opts::new(
                    "replumb_agent_traffic_probes",
                    "Probes that the node's traffic pods sent, by class of path and outcome, since the agent's start.",
                ),
                &["class", "outcome"],
            )?,
            longest_gap: GaugeVec::new(
                Opts::new(
                    "replumb_agent_traffic_longest_gap_seconds",
                    "The longest time without an answer by class of path, since the agent's start.",
                ),
                &["class"],
            )?,
            breaches: IntGauge::new(
                "replumb_agent_traffic_breaches",
                "Paths that lose more now than the gates of the Migration allow.",
            )?,
            floods: IntGauge::new(
                "replumb_agent_traffic_floods",
                "Pods that are sent more probes than they answer, by one source each; what is lost there does not count.",
            )?,
        })
    }

    /// What is registered.
    pub fn collectors(&self) -> [Box<dyn Collector>; 4] {
        [
            Box::new(self.probes.clone()),
            Box::new(self.longest_gap.clone()),
            Box::new(self.breaches.clone()),
            Box::new(self.floods.clone()),
        ]
    }

    /// What the traffic pods found.
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
    }
}
