//! The kinds of migration, one folder each.

pub(crate) mod calico_datastore;
pub mod flannel_to_calico;
pub(crate) mod pod_cidr;
pub mod service_cidr;
