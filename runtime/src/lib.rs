//! What the programs share.

pub mod api_metrics;
pub mod client;
