//! The decisions that all kinds of migration share: facts come in as values, steps go out as values.
//!
//! Nothing here reads a clock, a file, a socket or an API; `clippy.toml` beside this crate bans them. [`check`] judges
//! prerequisites, [`order`] and [`rollout`] choose which nodes may be migrated at the same time, [`drain`], [`evict`] and
//! [`moves`] choose which pods are evicted, [`decision`] is the next action for one node, and [`reason`] has every reason to wait
//! or to halt.

pub mod check;
pub mod cluster;
pub mod cni;
pub mod command_line;
pub mod corefile;
pub mod daemon_pod;
pub mod decision;
pub mod document;
pub mod drain;
pub mod environment;
pub mod evict;
pub mod field_patch;
pub mod found;
pub mod go_json;
pub mod host_report;
pub mod kernel;
pub mod kind_fields;
pub mod labels;
pub mod local_traffic;
pub mod moves;
pub mod node_selection;
pub mod order;
pub mod owner;
pub mod pods;
pub mod ports;
pub mod probe;
pub mod ranges;
pub mod reason;
pub mod residents;
pub mod rollout;
pub mod sourced;
pub mod stage;
pub mod stalls;
pub mod standstill;
pub mod time_limit;
pub mod traffic;
pub mod words;
