//! Another range for the Services: what reads and writes the cluster. What is done, and when, `plan::service_cidr` decides.

pub mod batch;
pub mod exchange;
pub mod look;
mod objects;
pub mod observed;
pub mod prime;
pub mod quiet;
