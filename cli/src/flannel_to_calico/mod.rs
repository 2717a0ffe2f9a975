//! flannel VXLAN → Calico VXLAN: what a person may say about it, by flags or by Calico's own variables.

pub mod environment;
pub mod flags;
