//! The migration as decisions: facts come in as values, steps go out as values.
//!
//! Nothing here reads a clock, a file, a socket or an API; `clippy.toml` beside this crate bans them.
//! The story of a migration, in the order in which the modules are used:
//!
//! 1. [`flannel_to_calico::settings`] merges what the user wrote, what was detected and the defaults.
//! 2. [`flannel_to_calico::checks`] judges every prerequisite and refuses by name ([`check`]).
//! 3. [`order`] and [`rollout`] choose which nodes may be in work at the same time.
//! 4. [`flannel_to_calico::node`] chooses the next step of one node; [`drain`] chooses pods to evict.
//! 5. [`flannel_to_calico::host`] is the node agent's side: the phase that a host is in, and the next
//!    change to that host.

pub mod calico;
pub mod calico_datastore;
pub mod check;
pub mod cluster;
pub mod cni;
pub mod command_line;
pub mod corefile;
pub mod decision;
pub mod document;
pub mod drain;
pub mod evict;
pub mod field_patch;
pub mod flannel;
pub mod flannel_to_calico;
pub mod found;
mod go_json;
pub mod labels;
pub mod moves;
pub mod order;
pub mod owner;
pub mod pod_cidr;
pub mod pods;
pub mod probe;
pub mod ranges;
pub mod residents;
pub mod rollout;
pub mod service_cidr;
pub mod sourced;
pub mod stalls;
pub mod standstill;
pub mod traffic;
pub mod words;
