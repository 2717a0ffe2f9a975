//! Another range for the pods: what a person may say about it, by flags, what it works with, and how far it is.

pub mod flags;
pub mod rollback;
pub mod settings;
pub mod status;
