//! A real cluster on one machine: the base of the demo and of the end-to-end cases.

#![expect(
    clippy::missing_errors_doc,
    reason = "a test prints its error with the attempt, and no crate of the product calls these functions"
)]

pub mod apilab;
pub mod assets;
mod cargo;
pub mod cluster;
pub mod commands;
pub mod crash;
pub mod datastore;
pub mod demo;
pub mod end_to_end;
pub mod http;
pub mod image;
pub mod machine;
pub mod policies;
pub mod ports;
pub mod progress;
pub mod scale;
pub mod started;
pub mod store;
