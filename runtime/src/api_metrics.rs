//! Requests to the API server and its warnings as metrics.

use http::Method;
use prometheus::core::Collector;
use prometheus::{IntCounter, IntCounterVec, Opts};
use tracing::warn;

use crate::client::Observer;

/// Counts the requests of a program and the warnings about them.
#[derive(Clone, Debug)]
pub struct ApiMetrics {
    requests: IntCounterVec,
    warnings: IntCounter,
}

impl ApiMetrics {
    /// The metrics, not registered yet.
    ///
    /// # Errors
    /// If Prometheus does not accept a name or a label.
    pub fn new() -> Result<Self, prometheus::Error> {
        Ok(Self {
            requests: IntCounterVec::new(
                Opts::new(
                    "replumb_api_requests_total",
                    "Requests to the API server, by HTTP method and resource.",
                ),
                &["method", "resource"],
            )?,
            warnings: IntCounter::new(
                "replumb_api_warnings_total",
                "Warnings of the API server about requests of this program.",
            )?,
        })
    }

    /// The number of warnings so far.
    pub fn warnings(&self) -> u64 {
        self.warnings.get()
    }

    /// The collectors to register.
    pub fn collectors(&self) -> [Box<dyn Collector>; 2] {
        [Box::new(self.requests.clone()), Box::new(self.warnings.clone())]
    }
}

impl Observer for ApiMetrics {
    fn request(&self, method: &Method, resource: &str) {
        self.requests
            .with_label_values(&[method.as_str(), resource])
            .inc();
    }

    fn warning(&self, text: &str) {
        self.warnings.inc();
        warn!(warning = text, "the API server warns about a request");
    }
}
