//! A change of the pod CIDR of a cluster with Calico's IPAM: create a new IPPool, move every pod, delete the old IPPool.

pub mod api;
pub mod by_node;
pub mod calico_node;
pub mod capacity;
pub mod checks;
pub mod datastore;
pub mod decide;
pub mod detect;
pub mod document;
pub mod facts;
pub mod former_address;
pub mod hardcoded_range;
pub mod holder;
pub mod host;
mod host_report;
pub mod ipam;
pub mod kops;
pub mod kube_proxy_rules;
pub mod movers;
pub mod pools;
pub mod settings;
pub mod tunnel;
pub mod tunnel_address;
pub mod tunnel_change;
pub mod unclear;
#[cfg(test)]
mod walk;
