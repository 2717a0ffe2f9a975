//! Another range for Services, on this host: read what kube-proxy knows, what the kubelet tells new pods, and who was told an address
//! that is left. Nothing is changed.

pub mod carriers;
pub mod connections;
pub mod expected;
pub mod kubelet;
mod left;
pub mod observe;
pub mod proxy;
