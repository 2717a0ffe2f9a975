//! New Service range on this host: observes kube-proxy's rules, the kubelet's cluster DNS addresses, and pods with old addresses.
//! Changes nothing.

pub mod connections;
pub mod expected;
pub mod kubelet;
pub mod observe;
mod old_addresses;
pub mod pods_with_old_addresses;
pub mod proxy;
