//! The coordinator: sets goals, evicts, labels, and owns the cluster-wide objects.

pub mod admin;
pub mod args;
pub mod cache;
pub mod clock;
pub mod context;
pub mod evict;
pub mod facts;
#[cfg(test)]
pub(crate) mod fake_api;
pub mod flannel_to_calico;
pub mod lease;
pub mod metrics;
pub mod pass;
pub mod tell;
pub mod write;
