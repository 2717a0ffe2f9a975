//! flannel VXLAN → Calico VXLAN.

pub mod api;
mod check_name;
pub mod checks;
pub mod detect;
pub mod document;
pub mod facts;
pub mod flannel;
pub mod host;
pub mod host_checks;
#[cfg(test)]
mod host_fixture;
mod host_report;
pub mod import;
#[cfg(test)]
mod in_place_walk;
pub mod node;
#[cfg(test)]
mod node_walk;
pub mod objects;
pub mod phase;
#[cfg(test)]
mod rollback_walk;
pub mod settings;
#[cfg(test)]
mod walk;
