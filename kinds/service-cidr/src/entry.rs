//! The fields of a Service that decisions about all Services need: some hundred bytes, whatever the size of the Service.

use std::net::IpAddr;

use ipnet::IpNet;
use jiff::Timestamp;
use serde_json::Value;

use super::class::{self, Class, Kind};
use super::decide::Turn;
use super::objects::{BEFORE_ANNOTATION, SERVICE_LABEL, is_helper};
use engine::owner::KUBE_SYSTEM;

/// A node port of a Service: its protocol and number.
pub type NodePort = (String, u64);

/// One Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its `resourceVersion`.
    pub version: String,
    /// Its size as JSON, in bytes.
    pub size: usize,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Its kind.
    pub kind: Kind,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its node ports.
    pub node_ports: Vec<NodePort>,
    /// The node port for health checks of a load balancer.
    pub health_port: Option<u64>,
    /// Whether it is the Service of the cluster DNS.
    pub is_name_server: bool,
    /// The Service of which it is a helper, if it is one.
    pub helper_of: Option<String>,
    /// Whether it has the annotation with its saved spec, for the time without an address.
    pub is_marked: bool,
    /// Whether it has a selector: then kube-controller-manager manages its endpoints, and those of its helpers.
    pub is_selected: bool,
}

impl Entry {
    /// Reads a Service.
    pub fn of(service: &Value) -> Self {
        let metadata = &service["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let spec = &service["spec"];
        Self {
            namespace: text(&metadata["namespace"]),
            name: text(&metadata["name"]),
            version: text(&metadata["resourceVersion"]),
            size: service.to_string().len(),
            created: metadata["creationTimestamp"]
                .as_str()
                .and_then(|time| time.parse().ok()),
            kind: Kind::of(spec),
            addresses: class::addresses(spec),
            node_ports: node_ports(spec),
            health_port: spec["healthCheckNodePort"].as_u64(),
            is_name_server: metadata["namespace"] == KUBE_SYSTEM
                && metadata["labels"]["k8s-app"] == "kube-dns",
            helper_of: is_helper(service).then(|| text(&metadata["labels"][SERVICE_LABEL])),
            is_marked: metadata["annotations"][BEFORE_ANNOTATION].is_string(),
            is_selected: spec["selector"]
                .as_object()
                .is_some_and(|selector| !selector.is_empty()),
        }
    }

    /// `namespace/name`.
    pub fn key(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// Its class, for these source ranges.
    pub fn class(&self, source: &[IpNet]) -> Class {
        Class::new(self.kind, &self.addresses, source)
    }

    /// Whether it has all of these addresses, and is not of type `LoadBalancer`.
    pub fn is_at(&self, addresses: &[IpAddr]) -> bool {
        self.kind == Kind::Plain && addresses.iter().all(|address| self.addresses.contains(address))
    }

    /// Whether it has no address, in the middle of a change of address.
    pub fn is_away(&self) -> bool {
        self.kind == Kind::Name && self.is_marked
    }

    /// Its turn.
    pub fn turn(&self) -> Turn {
        if self.namespace == "default" && self.name == "kubernetes" {
            Turn::Kubernetes
        } else if self.is_name_server {
            Turn::NameServer
        } else {
            Turn::Other
        }
    }
}

/// The node ports of a spec. For other types the API server may store node ports, which are not in use.
pub fn node_ports(spec: &Value) -> Vec<NodePort> {
    let ports = spec["ports"].as_array().into_iter().flatten();
    let has_them = ["NodePort", "LoadBalancer"].contains(&spec["type"].as_str().unwrap_or_default());
    ports
        .filter(|_| has_them)
        .filter_map(|port| {
            let protocol = port["protocol"].as_str().unwrap_or("TCP").to_owned();
            Some((protocol, port["nodePort"].as_u64()?))
        })
        .collect()
}

/// The Services that are not helpers.
pub fn of_migration<'entry>(
    services: impl IntoIterator<Item = &'entry Entry>,
) -> impl Iterator<Item = &'entry Entry> {
    services.into_iter().filter(|service| service.helper_of.is_none())
}
