//! Another range for the Services: what a person may say about it by flags, what it works with, how far it is, and what going back comes to.

pub mod flags;
pub mod rollback;
pub mod settings;
pub mod status;
