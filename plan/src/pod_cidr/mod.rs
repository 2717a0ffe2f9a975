//! Another range for the pods of a cluster with Calico's IPAM: a new pool, every pod moved, the old pool gone.

pub mod capacity;
pub mod decide;
pub mod holders;
pub mod host;
pub mod kops;
pub mod moves;
pub mod pools;
pub mod ranges;
pub mod settings;
#[cfg(test)]
mod walk;
