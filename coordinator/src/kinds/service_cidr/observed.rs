//! The observed Services: whole objects of those in the pass, and the addresses and node ports of all.

use std::net::IpAddr;

use serde_json::Value;
use service_cidr::entry::NodePort;

use super::whole_objects::Whole;
use crate::service_index::{Index, Name, Slice};

/// The observed Services.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'pass> {
    /// All Services.
    pub index: &'pass Index,
    /// The Services in the pass.
    pub whole: &'pass Whole,
}

impl Observed<'_> {
    /// A Service, if it exists.
    pub fn service(&self, namespace: &str, name: &str) -> Option<&Value> {
        self.whole.service(&named(namespace, name))
    }

    /// The slices of a Service.
    pub fn slices(&self, namespace: &str, service: &str) -> Vec<&Slice> {
        let service = named(namespace, service);
        let slices = self.index.slices(&service);
        slices.map(|(_, slice)| slice).collect()
    }

    /// The whole slices of a Service without a selector.
    pub fn whole_slices(&self, namespace: &str, service: &str) -> Vec<Value> {
        self.whole.slices(self.index, &named(namespace, service))
    }

    /// The Service that has this address: `namespace/name`; `None` when no Service has it.
    pub fn holder(&self, address: &IpAddr) -> Option<String> {
        self.index.holder(address).map(service_cidr::entry::Entry::key)
    }

    /// The Service that has this node port: `namespace/name`; `None` when no Service has it.
    pub fn has_node_port(&self, port: &NodePort) -> Option<String> {
        self.index
            .has_node_port(port)
            .map(service_cidr::entry::Entry::key)
    }
}

fn named(namespace: &str, name: &str) -> Name {
    (namespace.to_owned(), name.to_owned())
}
