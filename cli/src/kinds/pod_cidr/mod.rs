//! Another range for the pods: what a person may say about it, by flags or out of kops' spec, what it works with, and how far it is.

pub mod flags;
pub mod generate;
mod manifest;
pub mod rollback;
mod route;
pub mod settings;
pub mod status;
