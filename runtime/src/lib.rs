//! What the programs share.

pub mod admin;
pub mod api_metrics;
pub mod client;
pub mod error;
pub mod log;
pub mod metrics_access;
pub mod secure_metrics;
