//! The store of Calico v2 (etcd v2) as a store of Calico v3 (etcd v3).

pub mod escape;
pub mod version;
