//! The node agent: drives its own node to its goal.
//!
//! Data flows one way: [`host`] is read into facts, `plan` decides, a step changes the host, the outcome is
//! reported.

pub mod host;
