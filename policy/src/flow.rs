//! A connection as one node sees it.

use std::net::IpAddr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// A connection as the node sees it that judges: after DNAT and before SNAT. For an entry of connection tracking on this node:
/// the source is `orig.src`, the destination is `reply.src`, the port is `reply.sport`.
///
/// Egress is judged on the node of the source pod, ingress on that of the destination pod. A connection between nodes is two
/// flows, and the second one may have another source, because the first node masqueraded.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Flow {
    /// The node that sees the connection.
    pub node: Arc<str>,
    /// Address of the client.
    pub source: IpAddr,
    /// Address of the server.
    pub destination: IpAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// Port of the server; `None` for a protocol without ports.
    pub port: Option<u16>,
    /// Whether Calico would judge its packets.
    pub state: State,
}

/// Whether packets of a connection are judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum State {
    /// They are: a new connection, the next one after an open one, or UDP without a reply, of which every packet is new.
    #[default]
    New,
    /// They are not: packets went both ways before the policy came.
    Established,
}

/// A protocol above IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
    /// ICMP.
    Icmp,
    /// `ICMPv6`, with its type.
    Icmpv6(u8),
    /// IP in IP.
    Ipip,
    /// Another one, by its number.
    Other(u8),
}

impl Protocol {
    /// The protocol with this number. The type of `ICMPv6` counts for neighbor discovery only; 0 is none of its types.
    pub fn of_number(number: u8) -> Self {
        match number {
            1 => Self::Icmp,
            4 => Self::Ipip,
            6 => Self::Tcp,
            17 => Self::Udp,
            58 => Self::Icmpv6(0),
            132 => Self::Sctp,
            other => Self::Other(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn protocols_have_the_numbers_of_iana() {
        let named = [1, 4, 6, 17, 58, 132].map(Protocol::of_number);
        let expected = [
            Protocol::Icmp,
            Protocol::Ipip,
            Protocol::Tcp,
            Protocol::Udp,
            Protocol::Icmpv6(0),
            Protocol::Sctp,
        ];
        assert_eq!(named, expected);
        assert_eq!(Protocol::of_number(47), Protocol::Other(47));
    }
}
