//! Conversion of Calico's datastore in a live cluster: the objects that change, their order, and the next step.
//!
//! [`manifest`] splits Calico's manifest for v3, [`detect`] finds the settings, [`checks`] checks prerequisites, [`document`]
//! renders the plan, [`decide`] chooses the next step forward and back. [`super::run`] decides the steps on the stores.

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
