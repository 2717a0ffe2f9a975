//! The store of Calico v2 (etcd v2) as a store of Calico v3 (etcd v3): what is written, and what there is to say before anything is.
//!
//! [`convert::convert`] takes a whole store and gives a whole store; it is Calico's own conversion (libcalico-go, `lib/upgrade`) in
//! everything but what [`difference::Difference`] lists. [`version`] says which stores can be converted, [`verify`] whether
//! Calico's own addresses go together, [`run`] what is next when it is carried out, and [`cluster`]
//! what is next in a cluster that lives meanwhile.

mod as_number;
mod bgp_configuration;
mod bgp_peer;
pub mod cluster;
mod cluster_information;
pub mod convert;
mod decode;
pub mod difference;
mod endpoint_port;
mod escape;
mod felix;
mod felix_settings;
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
pub mod left;
mod names;
mod network;
mod node;
pub mod note;
mod policy;
mod profile;
mod protocol;
pub mod report;
mod resource;
mod rule;
pub mod run;
mod selector;
pub mod sources;
pub mod v2;
mod validate;
pub mod verify;
pub mod version;
mod workload_endpoint;
