//! A connection as one node sees it.

use std::net::IpAddr;
use std::sync::Arc;

pub use engine::ports::Protocol;
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
