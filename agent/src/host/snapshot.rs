//! The network state of a namespace as plain values, without netlink types. Pure.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};

use engine::kernel::{RouteKind, Rule};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// A link of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Index.
    pub index: u32,
    /// Name.
    pub name: String,
    /// MTU in bytes.
    pub mtu: u32,
    /// Link-layer address, lower-case, colon-separated; empty when it has none.
    pub mac: String,
    /// Whether it is administratively up.
    pub up: bool,
    /// Whether it is a loopback.
    pub loopback: bool,
    /// Index of the bridge that it is attached to.
    pub controller: Option<u32>,
    /// The kernel's name of its kind (`bridge`, `vxlan`, `veth`); empty for hardware.
    pub kind: String,
    /// Attributes of a VXLAN link.
    pub vxlan: Option<Vxlan>,
    /// Whether the bridge that the link is attached to sends frames back through it; `None` for a link that is not attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hairpin: Option<bool>,
}

/// Attributes of a VXLAN link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vxlan {
    /// Network identifier.
    pub vni: u32,
    /// UDP destination port.
    pub port: u16,
    /// Source address of the tunnel.
    pub local: Option<IpAddr>,
    /// Index of the underlying link.
    pub parent: Option<u32>,
    /// Whether it learns from received packets.
    pub learning: bool,
}

/// An address on a link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// Index of the link.
    pub link: u32,
    /// Address with the length of its prefix.
    pub address: IpNet,
    /// Label of an IPv4 address; empty if it is the name of the link.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub label: String,
}

/// The kernel's main table of routes.
pub const MAIN_TABLE: u32 = 254;

fn main_table() -> u32 {
    MAIN_TABLE
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// Destination.
    pub destination: IpNet,
    /// Next hops: gateway and index of the link.
    pub hops: Vec<(Option<IpAddr>, Option<u32>)>,
    /// The kernel's route protocol number.
    pub protocol: u8,
    /// The kernel's number of its scope.
    pub scope: u8,
    /// Whether the gateway is taken as reachable on the link without a route to it.
    pub on_link: bool,
    /// Preferred source address.
    pub source: Option<IpAddr>,
    /// Metric.
    pub metric: u32,
    /// Number of its table.
    #[serde(default = "main_table")]
    pub table: u32,
}

impl Route {
    /// The same route through another link, for a link that was recreated.
    #[must_use]
    pub fn through(&self, link: u32) -> Self {
        Self {
            hops: self
                .hops
                .iter()
                .map(|(gateway, _)| (*gateway, Some(link)))
                .collect(),
            ..self.clone()
        }
    }
}

/// A configured neighbour (not one that the kernel learned).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbour {
    /// Index of the link.
    pub link: u32,
    /// IP address.
    pub address: IpAddr,
    /// Link-layer address.
    pub mac: String,
}

/// An IPv6 address that a link answers for on behalf of another host (`ip neighbour add proxy`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proxy {
    /// Index of the link.
    pub link: u32,
    /// The address.
    pub address: Ipv6Addr,
}

/// An entry of a VXLAN link's forwarding database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForwardingEntry {
    /// Index of the link.
    pub link: u32,
    /// Link-layer address.
    pub mac: String,
    /// Remote tunnel end to which packets for it are sent.
    pub destination: Option<IpAddr>,
    /// Whether it was configured rather than learned.
    pub permanent: bool,
}

/// The network state of a namespace, read table by table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Links, in the kernel's order.
    pub links: Vec<Link>,
    /// Addresses, in the kernel's order.
    pub addresses: Vec<Address>,
    /// Routes of the main table, both families.
    pub routes: Vec<Route>,
    /// Blackhole routes of the main table; without next hop.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub blackholes: Vec<Route>,
    /// Routes of replumb's own table, to whole subnets of nodes (IPv6).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub subnet_routes: Vec<Route>,
    /// Whether a rule exists for that table.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub subnet_rule: bool,
    /// Addresses that links answer for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub proxies: Vec<Proxy>,
    /// Permanent neighbours, both families.
    pub neighbours: Vec<Neighbour>,
    /// Forwarding entries of VXLAN links.
    pub forwarding: Vec<ForwardingEntry>,
    /// Forwarding entries of bridges for MAC addresses whose frames are delivered to the host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deliveries: Vec<ForwardingEntry>,
}

impl Snapshot {
    /// The link of this name.
    pub fn link(&self, name: &str) -> Option<&Link> {
        self.links.iter().find(|link| link.name == name)
    }

    /// The name of the link with this index.
    pub fn name(&self, index: u32) -> Option<&str> {
        self.links
            .iter()
            .find(|link| link.index == index)
            .map(|link| link.name.as_str())
    }

    /// Other nodes' ends of an IPv6 tunnel, each with a route through it. With flannel and with Calico, a tunnel end is the first
    /// address of its node's subnet: the destination of the route to the subnet, or to its first block, starts with it.
    pub fn ipv6_ends(&self) -> BTreeMap<IpAddr, &Route> {
        let routes = self.routes.iter();
        routes
            .filter_map(|route| match route.hops.as_slice() {
                [(Some(end @ IpAddr::V6(_)), Some(_))] if *end == route.destination.network() => {
                    Some((*end, route))
                }
                _ => None,
            })
            .collect()
    }

    /// Routes and addresses of one link that was recreated with another index.
    #[must_use]
    pub fn moved_to(&self, index: u32) -> Self {
        Self {
            addresses: self
                .addresses
                .iter()
                .map(|address| Address {
                    link: index,
                    ..address.clone()
                })
                .collect(),
            routes: self.routes.iter().map(|route| route.through(index)).collect(),
            ..Self::default()
        }
    }

    /// The state of one link: everything that is deleted together with the link.
    #[must_use]
    pub fn of_link(&self, index: u32) -> Self {
        let through = |routes: &[Route]| -> Vec<Route> {
            routes
                .iter()
                .filter(|route| route.hops.iter().any(|(_, link)| *link == Some(index)))
                .cloned()
                .collect()
        };
        Self {
            links: self
                .links
                .iter()
                .filter(|link| link.index == index)
                .cloned()
                .collect(),
            addresses: self
                .addresses
                .iter()
                .filter(|address| address.link == index)
                .cloned()
                .collect(),
            routes: through(&self.routes),
            blackholes: Vec::new(),
            subnet_routes: through(&self.subnet_routes),
            subnet_rule: false,
            proxies: self
                .proxies
                .iter()
                .filter(|proxy| proxy.link == index)
                .cloned()
                .collect(),
            neighbours: self
                .neighbours
                .iter()
                .filter(|entry| entry.link == index)
                .cloned()
                .collect(),
            forwarding: self
                .forwarding
                .iter()
                .filter(|entry| entry.link == index)
                .cloned()
                .collect(),
            deliveries: Vec::new(),
        }
    }
}

/// The routing state of a namespace, read table by table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// Links, in the kernel's order.
    pub links: Vec<Link>,
    /// Addresses, in the kernel's order.
    pub addresses: Vec<Address>,
    /// Routes of every table and kind, both families.
    pub routes: Vec<(RouteKind, Route)>,
    /// Rules, both families.
    pub rules: Vec<Rule>,
}
