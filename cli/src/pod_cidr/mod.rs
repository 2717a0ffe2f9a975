//! Another range for the pods: what it works with, and how far it is.

pub mod rollback;
pub mod settings;
pub mod status;
