//! Calico's objects as they are stored, whatever kind of migration writes them.

/// Group and version.
pub const API_VERSION: &str = "crd.projectcalico.org/v1";
