//! flannel VXLAN → Calico VXLAN on this host: read it into facts, change it by one step, written down in the journal first.

pub mod apply;
pub mod facts;
pub mod journal;
pub mod observe;
mod quiet;
pub mod work;
