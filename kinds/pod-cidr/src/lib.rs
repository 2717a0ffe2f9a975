//! A change of the pod CIDR of a cluster with Calico's IPAM: create a new IPPool, move every pod, delete the old IPPool.

pub mod by_node;
pub mod calico_node;
pub mod capacity;
pub mod checks;
pub mod choice;
pub mod datastore;
pub mod decide;
pub mod detect;
pub mod document;
pub mod ends;
pub mod facts;
pub mod holders;
pub mod host;
pub mod ipam;
pub mod kops;
pub mod mentions;
pub mod pools;
pub mod returns;
pub mod settings;
pub mod tunnel;
pub mod unclear;
#[cfg(test)]
mod walk;
