//! Code that all programs share: admin server, client of the API server, logs and metrics.

pub mod admin;
pub mod api_metrics;
pub mod client;
pub mod error;
pub mod log;
pub mod metrics_access;
pub mod secure_metrics;
