//! Converts the store of Calico v2 (etcd v2) to a store of Calico v3 (etcd v3), and decides each step of such a migration.
//!
//! [`convert::convert`] converts a whole store, as Calico's own conversion does (libcalico-go, `lib/upgrade`), except for the
//! differences in [`difference::Difference`]. [`version`] decides which stores can be converted, [`verify`] checks the IPAM's
//! data, [`run`] decides the steps on the stores, and [`cluster`] the steps in a live cluster.

pub mod api;
mod as_number;
pub mod awaited;
mod bgp_configuration;
mod bgp_peer;
pub mod cluster;
mod cluster_information;
pub mod controller_objects;
mod conversion;
pub mod convert;
mod decode;
pub mod difference;
mod endpoint_port;
mod escape;
mod felix;
mod felix_settings;
mod finding;
#[cfg(test)]
mod fixture;
mod go_duration;
mod go_number;
mod go_values;
mod hardware_address;
mod host_endpoint;
mod ip_pool;
mod ipam;
mod json;
pub mod key;
mod mismatch;
mod names;
mod network;
mod node;
pub mod note;
mod object;
mod policy;
mod policy_name;
mod profile;
mod protocol;
pub mod report;
mod resource;
mod rule;
pub mod run;
mod selector;
pub mod sources;
mod spec;
pub mod v2;
mod validate;
pub mod verify;
pub mod version;
mod workload_endpoint;
