//! flannel VXLAN → Calico VXLAN: what a person may say about it, by flags or by Calico's own variables, and what it works with.

pub mod environment;
pub mod flags;
pub mod settings;
