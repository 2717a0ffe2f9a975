//! flannel VXLAN → Calico VXLAN.

pub mod api;
pub mod attachment;
mod check_name;
pub mod checks;
pub mod cni;
pub mod detect;
pub mod document;
pub mod facts;
#[cfg(test)]
mod fixture;
pub mod flannel;
pub mod foreign_rules;
pub mod host;
pub mod host_checks;
mod host_report;
pub mod import;
pub mod node;
pub mod objects;
pub mod phase;
pub mod plugin;
pub mod policy_facts;
mod policy_preview;
pub mod preview;
pub mod runtime;
pub mod settings;
mod version;
#[cfg(test)]
mod walk;
