//! The conversion in a cluster: flags, settings, progress, and the effect of a rollback.

pub mod error;
pub mod flags;
pub mod generate;
pub mod rollback;
pub mod settings;
pub mod status;
