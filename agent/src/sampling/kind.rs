//! The kinds of connections, and which of them are sampled. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;

use api::connection_sample::{ConnectionSampleSpec, PortRange};

use crate::host::netlink::conntrack::TrackedConnection;

/// Numbers of the protocols whose ports policies know: TCP, UDP, SCTP. The keys of other protocols (GRE) are no ports.
const WITH_PORTS: [u8; 3] = [6, 17, 132];

/// All connections with the same addresses, protocol and port of the server. The port of the client is left out: each connection has
/// another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionKind {
    /// The number of the protocol.
    pub protocol: u8,
    /// Address of the sender of the first packet, before the host changed it.
    pub source: IpAddr,
    /// Address of the receiver, after the host changed it.
    pub destination: IpAddr,
    /// The port of the server.
    pub port: ServerPort,
    /// The host changed an address or a port.
    pub is_translated: bool,
}

/// The port of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServerPort {
    /// The protocol has no ports.
    None,
    /// The port of the receiver. No packet of a client of this port is known as an answer.
    OfReceiver(u16),
    /// The port of the sender. The receiver has a port of clients: after connection tracking was flushed, or when it began, the first
    /// packet that was seen may be an answer.
    OfSender(u16),
}

/// The kind of a connection. After a flush no entry has NAT, so a connection with NAT has the direction in which it was seen.
pub fn kind(connection: &TrackedConnection, client_ports: PortRange) -> ConnectionKind {
    let (original, reply) = (&connection.original, &connection.reply);
    let is_translated = (original.source, original.destination) != (reply.destination, reply.source)
        || (original.source_port, original.destination_port) != (reply.destination_port, reply.source_port);
    let is_of_client = |port: u16| (client_ports.first..=client_ports.last).contains(&port);
    let port = if !WITH_PORTS.contains(&connection.protocol) {
        ServerPort::None
    } else if !is_translated && is_of_client(reply.source_port) && !is_of_client(original.source_port) {
        ServerPort::OfSender(original.source_port)
    } else {
        ServerPort::OfReceiver(reply.source_port)
    };
    ConnectionKind {
        protocol: connection.protocol,
        source: original.source,
        destination: reply.source,
        port,
        is_translated,
    }
}

/// The addresses whose connections are sampled.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SampledAddresses {
    ingress: BTreeSet<IpAddr>,
    egress: BTreeSet<IpAddr>,
}

impl SampledAddresses {
    /// Those of a spec.
    pub fn of(spec: &ConnectionSampleSpec) -> Self {
        Self {
            ingress: spec.ingress.iter().copied().collect(),
            egress: spec.egress.iter().copied().collect(),
        }
    }

    /// Adds those of a spec.
    pub fn add(&mut self, spec: &ConnectionSampleSpec) {
        self.ingress.extend(&spec.ingress);
        self.egress.extend(&spec.egress);
    }

    /// Whether IPv4 addresses are among them, and IPv6 addresses.
    pub fn families(&self) -> (bool, bool) {
        let all = || self.ingress.iter().chain(&self.egress);
        (all().any(IpAddr::is_ipv4), all().any(IpAddr::is_ipv6))
    }

    /// Whether connections of this kind are sampled: in the direction that was seen, or in the other one if the first packet may be an
    /// answer.
    pub fn have(&self, kind: &ConnectionKind, client_ports: PortRange) -> bool {
        let is_between =
            |client: IpAddr, server: IpAddr| self.ingress.contains(&server) || self.egress.contains(&client);
        let may_be_answer = match kind.port {
            ServerPort::None => false,
            ServerPort::OfSender(_) => true,
            ServerPort::OfReceiver(port) => {
                !kind.is_translated && (client_ports.first..=client_ports.last).contains(&port)
            }
        };
        is_between(kind.source, kind.destination)
            || (may_be_answer && is_between(kind.destination, kind.source))
    }
}

#[cfg(test)]
mod tests;
