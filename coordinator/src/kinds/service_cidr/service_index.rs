//! Every Service and its endpoints, by watches. Whole objects are dropped as they arrive: those in a pass are read by name.

mod store;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use service_cidr::endpoints::Digest;
use service_cidr::entry::{Entry, NodePort};

pub use self::store::ServiceStore;

/// Namespace and name.
pub type Name = (String, String);

/// The namespace and the name of `namespace/name`.
pub fn name_of(key: &str) -> Option<Name> {
    let (namespace, name) = key.split_once('/')?;
    Some((namespace.to_owned(), name.to_owned()))
}

/// The fields of an `EndpointSlice` that decisions about all Services need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Its resource version.
    pub version: String,
    /// Whether one of its endpoints serves.
    pub serves: bool,
    /// Its endpoints.
    pub endpoints: Digest,
    /// Its bytes as JSON.
    pub size: usize,
    /// Its Service.
    service: Arc<Name>,
}

/// The Services at one moment.
#[derive(Clone, Debug, Default)]
pub struct Index {
    services: BTreeMap<Arc<Name>, Arc<Entry>>,
    holders: BTreeMap<IpAddr, Arc<Name>>,
    node_ports: BTreeMap<NodePort, Arc<Name>>,
    health_ports: BTreeMap<u64, Arc<Name>>,
    slices: BTreeMap<Name, Arc<Slice>>,
    /// Names of slices, by their Service.
    by_service: BTreeMap<Arc<Name>, Vec<String>>,
    /// Helpers, by their Service.
    helpers: BTreeMap<Name, Vec<Arc<Name>>>,
}

impl Index {
    /// Every Service, in order of namespace and name.
    pub fn services(&self) -> impl Iterator<Item = &Entry> {
        self.services.values().map(AsRef::as_ref)
    }

    /// A Service, if it exists.
    pub fn service(&self, name: &Name) -> Option<&Entry> {
        self.services.get(name).map(AsRef::as_ref)
    }

    /// The Service that has this address.
    pub fn holder(&self, address: &IpAddr) -> Option<&Entry> {
        self.service(self.holders.get(address)?.as_ref())
    }

    /// The Service that has this node port.
    pub fn has_node_port(&self, port: &NodePort) -> Option<&Entry> {
        // The health check port of a load balancer is a node port, too, for every protocol.
        let name = self
            .node_ports
            .get(port)
            .or_else(|| self.health_ports.get(&port.1));
        self.service(name?.as_ref())
    }

    /// The helpers of a Service.
    pub fn helpers(&self, service: &Name) -> impl Iterator<Item = &Entry> {
        let names = self.helpers.get(service).into_iter().flatten();
        names.filter_map(|name| self.service(name.as_ref()))
    }

    /// The slices of a Service, each with its name.
    pub fn slices(&self, service: &Name) -> impl Iterator<Item = (Name, &Slice)> {
        let names = self.by_service.get(service).into_iter().flatten();
        names.filter_map(|name| {
            let name = (service.0.clone(), name.clone());
            let slice = self.slices.get(&name)?;
            Some((name, slice.as_ref()))
        })
    }

    /// Whether an endpoint of this Service serves.
    pub fn is_served(&self, service: &Name) -> bool {
        self.slices(service).any(|(_, slice)| slice.serves)
    }

    fn put(&mut self, name: &Arc<Name>, entry: Entry) {
        self.remove(name);
        for address in &entry.addresses {
            self.holders.insert(*address, Arc::clone(name));
        }
        for port in &entry.node_ports {
            self.node_ports.insert(port.clone(), Arc::clone(name));
        }
        if let Some(port) = entry.health_port {
            self.health_ports.insert(port, Arc::clone(name));
        }
        if let Some(of) = &entry.helper_of {
            let of = (name.0.clone(), of.clone());
            self.helpers.entry(of).or_default().push(Arc::clone(name));
        }
        self.services.insert(Arc::clone(name), Arc::new(entry));
    }

    fn remove(&mut self, name: &Arc<Name>) -> bool {
        let Some(entry) = self.services.remove(name) else {
            return false;
        };
        // Another Service may have it by now.
        for address in &entry.addresses {
            remove_own(&mut self.holders, address, name);
        }
        for port in &entry.node_ports {
            remove_own(&mut self.node_ports, port, name);
        }
        if let Some(port) = &entry.health_port {
            remove_own(&mut self.health_ports, port, name);
        }
        if let Some(of) = &entry.helper_of {
            let of = (name.0.clone(), of.clone());
            if let Some(helpers) = self.helpers.get_mut(&of) {
                helpers.retain(|helper| helper != name);
                if helpers.is_empty() {
                    self.helpers.remove(&of);
                }
            }
        }
        true
    }

    fn put_slice(&mut self, name: Name, slice: Slice) -> bool {
        let known = self.slices.get(&name);
        let is_same = known.is_some_and(|known| **known == slice);
        if known.is_none_or(|known| known.service != slice.service) {
            self.remove_slice(&name);
            let names = self.by_service.entry(Arc::clone(&slice.service)).or_default();
            names.push(name.1.clone());
        }
        self.slices.insert(name, Arc::new(slice));
        !is_same
    }

    fn remove_slice(&mut self, name: &Name) -> bool {
        let Some(slice) = self.slices.remove(name) else {
            return false;
        };
        if let Some(names) = self.by_service.get_mut(&slice.service) {
            names.retain(|known| *known != name.1);
            if names.is_empty() {
                self.by_service.remove(&slice.service);
            }
        }
        true
    }
}

fn remove_own<K: Ord>(held: &mut BTreeMap<K, Arc<Name>>, what: &K, name: &Arc<Name>) {
    if held.get(what) == Some(name) {
        held.remove(what);
    }
}
