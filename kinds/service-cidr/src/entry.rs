//! What decisions about all Services read of one Service: some hundred bytes, whatever the owner writes into it.

use std::net::IpAddr;

use ipnet::IpNet;
use jiff::Timestamp;
use serde_json::Value;

use super::class::{self, Class};
use super::decide::Turn;
use super::objects::{BEFORE_ANNOTATION, SERVICE_LABEL, is_helper};
use engine::owner::KUBE_SYSTEM;

/// How a Service is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// By an address of its own, and by node ports where there are any.
    Plain,
    /// By a load balancer, too.
    LoadBalancer,
    /// By the addresses of its pods.
    Headless,
    /// The Service is a name for something else.
    Name,
}

impl Kind {
    /// The kind of a Service of this spec.
    pub(super) fn of(spec: &Value) -> Self {
        match spec["type"].as_str() {
            Some("ExternalName") => Self::Name,
            _ if class::is_headless(spec) => Self::Headless,
            Some("LoadBalancer") => Self::LoadBalancer,
            Some(_) | None => Self::Plain,
        }
    }
}

/// A port of every node that one Service has: its protocol, and the port.
pub type NodePort = (String, u64);

/// One Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its version, as the API server counts them.
    pub version: String,
    /// Its bytes as JSON.
    pub size: usize,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// How it is reached.
    pub kind: Kind,
    /// Its addresses.
    pub addresses: Vec<IpAddr>,
    /// Its node ports.
    pub node_ports: Vec<NodePort>,
    /// The node port at which a load balancer asks for the health of a node.
    pub health_port: Option<u64>,
    /// Whether it stands before the name servers of the cluster.
    pub is_name_server: bool,
    /// The Service that it helps, if it is a helper of an exchange.
    pub helper_of: Option<String>,
    /// Whether it carries what was saved for the time without an address.
    pub is_marked: bool,
    /// Whether it has a selector: kube-controller-manager keeps its endpoints, and those of its helpers.
    pub is_selected: bool,
}

impl Entry {
    /// What is read of a Service.
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

    /// What is done with it while these ranges are left.
    pub fn class(&self, left: &[IpNet]) -> Class {
        Class::new(self.kind, &self.addresses, left)
    }

    /// Whether it has all of these addresses, and none by a load balancer.
    pub fn is_at(&self, addresses: &[IpAddr]) -> bool {
        self.kind == Kind::Plain && addresses.iter().all(|address| self.addresses.contains(address))
    }

    /// Whether it has no address in the middle of an exchange.
    pub fn is_away(&self) -> bool {
        self.kind == Kind::Name && self.is_marked
    }

    /// When it goes.
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

/// The node ports of a spec. The API server stores those of a Service of another type, and gives them to no Service.
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

/// Services that are no helpers.
pub fn of_migration<'entry>(
    services: impl IntoIterator<Item = &'entry Entry>,
) -> impl Iterator<Item = &'entry Entry> {
    services.into_iter().filter(|service| service.helper_of.is_none())
}
