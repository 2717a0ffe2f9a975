//! Another range for the Services: what it works with, how far it is, and what going back comes to.

pub mod rollback;
pub mod settings;
pub mod status;
