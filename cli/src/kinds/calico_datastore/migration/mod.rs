//! The conversion in a cluster: what a person may say about it by flags, what it works with, how far it is, and what going back comes to.

pub mod flags;
pub mod generate;
pub mod rollback;
pub mod settings;
pub mod status;
