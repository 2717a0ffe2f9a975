//! flannel VXLAN → Calico VXLAN on this host: reads the host into facts, and changes it step by step; the journal is written
//! before each step.

pub mod apply;
pub mod facts;
mod inactivity;
pub mod journal;
pub mod observe;
pub mod work;
