//! Specs of objects of v3 that are validated.

pub(super) mod host_endpoint;
pub(super) mod ip_pool;
pub(super) mod policy;
pub(super) mod workload_endpoint;
