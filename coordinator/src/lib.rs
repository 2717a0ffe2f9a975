//! The coordinator: sets goals, evicts, labels, and owns the cluster-wide objects.
//!
//! [`pass`] chooses the active Migration, `lifecycle` drives it for every kind, and [`kinds`] has a folder for each kind. The
//! other modules are shared by the kinds.

pub mod args;
mod bounds;
pub mod cache;
pub mod calico;
mod checks_log;
pub mod clock;
pub mod context;
pub mod cordon;
pub mod drafts;
pub mod drift;
mod etcd_access;
pub mod events;
pub mod evict;
pub mod evictions;
pub mod facts;
pub mod failure;
#[cfg(test)]
pub(crate) mod fake_api;
#[cfg(test)]
pub(crate) mod fake_etcd;
#[cfg(test)]
mod fake_json_patch;
#[cfg(test)]
mod fake_schema;
pub mod guarded;
pub mod health;
mod intern;
mod kind;
mod kind_memory;
mod kind_stores;
pub mod kinds;
pub mod lease;
pub mod lenient;
mod lenient_requests;
pub(crate) mod lifecycle;
pub mod limits;
pub mod memory;
mod memory_objects;
pub mod metrics;
mod needs;
pub mod node_migrations;
pub mod obstacles;
pub mod offline;
mod own_pods;
pub mod pass;
#[cfg(test)]
mod pass_cost;
pub mod pass_error;
mod planning;
pub mod pod_index;
pub mod probe;
pub mod read;
mod read_cache;
pub mod read_error;
pub mod records;
pub mod silence;
mod since;
pub mod snapshot;
mod staged;
mod stalls;
mod steps;
mod stop;
pub mod store;
mod summary;
pub mod traffic;
mod unready_before_start;
mod unreported;
mod unused_fields;
mod waits;
#[cfg(test)]
pub(crate) mod walk;
mod warnings;
mod watches;
mod watching;
pub mod words;
mod workload_store;
mod workloads;
pub mod write;
