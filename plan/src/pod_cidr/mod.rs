//! Another range for the pods of a cluster with Calico's IPAM: a new pool, every pod moved, the old pool gone.

pub mod decide;
pub mod moves;
pub mod pools;
#[cfg(test)]
mod walk;
