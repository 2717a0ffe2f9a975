//! flannel VXLAN → Calico VXLAN: flags, Calico's environment variables, settings, and the effect of a rollback.

pub mod environment;
pub mod flags;
pub mod rollback;
pub mod settings;
