//! flannel VXLAN → Calico VXLAN: what a person may say about it, by flags or by Calico's own variables, what it works with, and what going
//! back comes to.

pub mod environment;
pub mod flags;
pub mod rollback;
pub mod settings;
