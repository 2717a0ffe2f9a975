//! From an entry of a node's connection tracking to a [`Flow`].

use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::cluster::{Cluster, Node, Owner};
use crate::flow::{Flow, Protocol, State};
use crate::settings::DataPlane;
use crate::verdict::UnknownReason;

/// Addresses and ports of one direction of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Address of the sender.
    pub source: IpAddr,
    /// Address of the receiver.
    pub destination: IpAddr,
    /// Port of the sender; 0 for a protocol without ports.
    pub source_port: u16,
    /// Port of the receiver; 0 for a protocol without ports.
    pub destination_port: u16,
}

/// An entry of connection tracking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The protocol.
    pub protocol: Protocol,
    /// The first direction that was seen.
    pub original: Tuple,
    /// The direction of the replies, which shows what NAT changed.
    pub reply: Tuple,
    /// A reply was seen (status bit 2).
    pub is_replied: bool,
}

/// What is known of the node that has the entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// Its name.
    pub node: Arc<str>,
    /// Ports that clients get (`net.ipv4.ip_local_port_range`).
    pub client_ports: RangeInclusive<u16>,
    /// Ports of tunnels between nodes: flannel's and Calico's VXLAN.
    pub tunnel_ports: Vec<u16>,
}

/// What an entry says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// A connection. It is seen as its next one would be: [`State::New`].
    Connection(Flow),
    /// A connection without a reply. TCP fails already today; UDP may need no reply.
    WithoutReply(Flow),
    /// A connection of which source or destination are not certain.
    Unclear {
        /// The connection as the entry has it.
        flow: Flow,
        /// What is not certain.
        why: UnknownReason,
    },
    /// Nothing that a policy could refuse: loopback, or the tunnels between nodes.
    Nothing,
}

/// Reads an entry.
///
/// After connection tracking was flushed, the first packet seen of an open connection may be a reply: then source and destination
/// are exchanged. A port of clients in the place of the server's is the sign. They are exchanged back if the sender declares the
/// other port, and unclear if no side declares its port.
///
/// # Examples
///
/// A client reached a Service, so the reply comes from the pod.
///
/// ```
/// use policy::conntrack::{Entry, Host, Observation, Tuple, observe};
/// use policy::{Cluster, Facts, Node, Protocol};
///
/// let cluster = Cluster::new(Facts {
///     nodes: vec![Node { name: "n1".into(), ..Node::default() }],
///     ..Facts::default()
/// });
/// let host = Host { node: "n1".into(), client_ports: 32768..=60999, tunnel_ports: vec![8472, 4789] };
/// let tuple = |source: &str, destination: &str, source_port, destination_port| Tuple {
///     source: source.parse().unwrap(),
///     destination: destination.parse().unwrap(),
///     source_port,
///     destination_port,
/// };
/// let entry = Entry {
///     protocol: Protocol::Tcp,
///     original: tuple("10.244.1.7", "10.96.0.60", 45000, 80),
///     reply: tuple("10.244.2.6", "10.244.1.7", 8080, 45000),
///     is_replied: true,
/// };
/// let Observation::Connection(flow) = observe(&cluster, &host, &entry) else {
///     panic!("a connection");
/// };
/// assert_eq!((flow.destination.to_string(), flow.port), ("10.244.2.6".to_owned(), Some(8080)));
/// ```
pub fn observe(cluster: &Cluster, host: &Host, entry: &Entry) -> Observation {
    let flow = flow(host, entry);
    if flow.source.is_loopback() || flow.destination.is_loopback() {
        return Observation::Nothing;
    }
    let Some(node) = cluster.node(&host.node) else {
        return Observation::Unclear {
            flow,
            why: UnknownReason::NodeMissing,
        };
    };
    if is_tunnel(cluster, node, host, &flow) {
        return Observation::Nothing;
    }
    let flow = match order(cluster, node, host, entry) {
        Order::AsSeen => flow,
        Order::Exchanged => exchanged(host, entry),
        Order::Unclear => {
            return Observation::Unclear {
                flow,
                why: UnknownReason::AmbiguousDirection,
            };
        }
    };
    let is_node = matches!(cluster.owner(flow.source, node), Owner::OtherNode(_));
    if is_node && cluster.settings().data_plane == DataPlane::Ebpf {
        return Observation::Unclear {
            flow,
            why: UnknownReason::SourceChanges,
        };
    }
    if entry.is_replied {
        Observation::Connection(flow)
    } else {
        Observation::WithoutReply(flow)
    }
}

/// The connection as Calico judges it: after DNAT, before SNAT.
fn flow(host: &Host, entry: &Entry) -> Flow {
    Flow {
        node: Arc::clone(&host.node),
        source: entry.original.source,
        destination: entry.reply.source,
        protocol: entry.protocol,
        port: has_ports(entry.protocol).then_some(entry.reply.source_port),
        state: State::New,
    }
}

fn exchanged(host: &Host, entry: &Entry) -> Flow {
    Flow {
        source: entry.reply.source,
        destination: entry.original.source,
        port: Some(entry.original.source_port),
        ..flow(host, entry)
    }
}

fn has_ports(protocol: Protocol) -> bool {
    matches!(protocol, Protocol::Tcp | Protocol::Udp | Protocol::Sctp)
}

/// The outer packets of tunnels: one entry for each hash of a flow, without replies.
fn is_tunnel(cluster: &Cluster, node: &Node, host: &Host, flow: &Flow) -> bool {
    let is_node =
        |address: IpAddr| matches!(cluster.owner(address, node), Owner::OwnNode | Owner::OtherNode(_));
    let is_vxlan =
        flow.protocol == Protocol::Udp && flow.port.is_some_and(|port| host.tunnel_ports.contains(&port));
    (is_vxlan || flow.protocol == Protocol::Ipip) && is_node(flow.source) && is_node(flow.destination)
}

enum Order {
    AsSeen,
    Exchanged,
    Unclear,
}

fn order(cluster: &Cluster, node: &Node, host: &Host, entry: &Entry) -> Order {
    let (original, reply) = (&entry.original, &entry.reply);
    // After a flush no entry has NAT: its mapping is lost, and the connection with it.
    let has_nat = (original.source, original.destination) != (reply.destination, reply.source)
        || (original.source_port, original.destination_port) != (reply.destination_port, reply.source_port);
    let is_client = |port: u16| host.client_ports.contains(&port);
    if has_nat || !has_ports(entry.protocol) || !is_client(reply.source_port) {
        return Order::AsSeen;
    }
    let declares = |address: IpAddr, port: u16| match cluster.owner(address, node) {
        Owner::Pod(pod) => pod.declares(entry.protocol, port),
        _ => false,
    };
    let by_sender = declares(original.source, original.source_port);
    let by_receiver = declares(reply.source, reply.source_port);
    match (by_sender, by_receiver) {
        (false, true) => Order::AsSeen,
        (true, false) => Order::Exchanged,
        (false, false) if is_client(original.source_port) => Order::AsSeen,
        (true, true) | (false, false) => Order::Unclear,
    }
}

#[cfg(test)]
mod tests;
