//! A new range for pods: flags, manifests from a kops cluster spec, settings, progress, and the effect of a rollback.

pub mod flags;
pub mod generate;
mod manifest;
pub mod rollback;
mod route;
pub mod settings;
pub mod status;
