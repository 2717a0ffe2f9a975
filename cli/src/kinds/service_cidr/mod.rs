//! A new range for Services: flags, settings, progress, and the effect of a rollback.

pub mod flags;
pub mod rollback;
pub mod settings;
pub mod status;
