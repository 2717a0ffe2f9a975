//! flannel VXLAN → Calico VXLAN on this host: read it into facts, change it by one step.

pub mod apply;
pub mod facts;
pub mod observe;
