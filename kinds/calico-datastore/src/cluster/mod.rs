//! The conversion of Calico's datastore in a live cluster: which objects change, in which order, and what is next.
//!
//! [`manifest`] takes apart what Calico ships for v3, [`etcd`] reads off a pod template how the stores are reached, [`checks`] judges,
//! [`document`] plans, [`decide`] says the next step there and back. What is done to the stores themselves [`super::run`] decides.

pub mod calico;
pub mod checks;
pub mod decide;
pub mod detect;
pub mod document;
pub mod facts;
pub mod manifest;
pub mod nodes;
pub mod settings;
pub mod step;
pub mod view;
#[cfg(test)]
mod walk;
