//! New Service range on this host: observes kube-proxy's rules, the kubelet's cluster DNS addresses, and pods with old addresses.
//! Changes nothing.

pub mod carriers;
pub mod connections;
pub mod expected;
pub mod kubelet;
mod left;
pub mod observe;
pub mod proxy;
