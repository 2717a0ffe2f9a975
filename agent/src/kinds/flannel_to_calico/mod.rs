//! flannel VXLAN → Calico VXLAN on this host: reads the host into facts, and changes it step by step; the journal is written
//! before each step.

pub mod apply;
pub mod facts;
pub mod journal;
pub mod observe;
mod quiet;
pub mod work;
