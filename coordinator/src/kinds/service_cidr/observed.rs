//! The observed Services: whole objects of those in the pass, the addresses and node ports of all, and one Service as it was
//! seen.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::Value;
use service_cidr::entry::NodePort;
use service_cidr::exchange::{Role, View};
use service_cidr::objects::Spare;
use service_cidr::side::{Side, Sides};

use super::service_index::{Index, Name, Slice};
use super::whole_objects::Whole;

/// One Service that exchanges its address, or has exchanged it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its addresses that change: the old ones, and those in the new range.
    pub addresses: Sides<Vec<IpAddr>>,
    /// Addresses for helpers that need one.
    pub spare: Spare,
    /// The side of its target address.
    pub goal: Side,
    /// Whether the source address may still be in use.
    pub source_is_used: bool,
    /// Whether a range allocates the source address to a helper.
    pub source_is_allocated: bool,
    /// Whether its owner edits it without pause: its exchange does not wait until helpers have the latest edit.
    pub is_restless: bool,
}

/// A Service and its helpers as they were read.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The Service.
    pub service: Value,
    /// Its helpers.
    pub helpers: BTreeMap<Role, Value>,
    /// Its slices, when it has no selector.
    pub slices: Vec<Value>,
    /// The slices of its helpers, likewise.
    pub copies: BTreeMap<Role, Vec<Value>>,
    /// The view for the decision.
    pub view: View,
}

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
