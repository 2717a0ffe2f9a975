//! A connection that is planned: from a client to a server, as each node on its way sees it. Connection tracking shows what
//! happened in a few days; a connection that happens in an outage only has to be asked about.

use std::net::IpAddr;
use std::sync::Arc;

use crate::cluster::{Cluster, Node};
use crate::evaluate::{SourceAddress, judge};
use crate::flow::{Flow, Protocol, State};
use crate::settings::{DataPlane, Encapsulation};
use crate::verdict::{AllowReason, UnknownReason, Verdict};

/// A connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The client.
    pub client: Client,
    /// Address of the server: of the pod behind a Service.
    pub server: IpAddr,
    /// Port of the server: the target port of a Service. `None` for a protocol without ports.
    pub port: Option<u16>,
    /// The protocol.
    pub protocol: Protocol,
    /// The way to the server.
    pub route: Route,
    /// Whether its packets are judged.
    pub state: State,
}

/// The client of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Client {
    /// A pod, or an address outside of the cluster.
    Address(IpAddr),
    /// A program of a node, or a `hostNetwork` pod on it.
    Node(Arc<str>),
}

/// The way to a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Route {
    /// To its own address.
    Direct,
    /// Through an address of a Service in the range of Services.
    Service,
    /// Through an external address of a Service, such as that of a load balancer: kube-proxy keeps such a connection in the
    /// cluster. A client outside of the cluster comes by [`Route::NodePort`].
    LoadBalancer {
        /// `externalTrafficPolicy` is `Local`: the source is kept.
        is_local: bool,
    },
    /// Through a node port.
    NodePort {
        /// The node that is asked.
        node: Arc<str>,
        /// The node port.
        port: u16,
        /// `externalTrafficPolicy` is `Local`: the source is kept, and the server is on the same node.
        is_local: bool,
    },
}

/// What Calico does with a connection on all nodes of its way.
///
/// # Examples
///
/// ```
/// use policy::{AllowReason, Client, Cluster, Connection, Facts, Protocol, Route, State, Verdict, forecast};
///
/// let own = "10.244.1.5".parse().unwrap();
/// let connection = Connection {
///     client: Client::Address(own),
///     server: own,
///     port: Some(8080),
///     protocol: Protocol::Tcp,
///     route: Route::Direct,
///     state: State::New,
/// };
/// let cluster = Cluster::new(Facts::default());
/// assert_eq!(forecast(&cluster, &connection), Verdict::Allowed { why: AllowReason::OwnAddress });
/// ```
pub fn forecast(cluster: &Cluster, connection: &Connection) -> Verdict {
    if connection.route == Route::Direct && connection.client == Client::Address(connection.server) {
        return Verdict::Allowed {
            why: AllowReason::OwnAddress,
        };
    }
    let Some(hops) = connection.hops(cluster) else {
        return Verdict::Unknown {
            why: UnknownReason::NodeMissing,
            objects: Vec::new(),
        };
    };
    let not_judged = Verdict::Allowed {
        why: AllowReason::NotJudgedHere,
    };
    hops.iter().fold(not_judged, |verdict, hop| {
        verdict.and(judge(cluster, &hop.flow, hop.source))
    })
}

/// A connection as one node on its way sees it.
struct Hop {
    flow: Flow,
    source: SourceAddress,
}

impl Connection {
    /// The connection as each node on its way sees it; `None` if a node that it names is not in the cluster.
    pub fn flows(&self, cluster: &Cluster) -> Option<Vec<Flow>> {
        let hops = self.hops(cluster)?;
        Some(hops.into_iter().map(|hop| hop.flow).collect())
    }

    fn hops(&self, cluster: &Cluster) -> Option<Vec<Hop>> {
        let (start, source) = match &self.client {
            Client::Address(address) => (cluster.home(*address, None), *address),
            Client::Node(name) => {
                let node = cluster.node(name)?;
                (Some(node), self.source_of(cluster, node)?)
            }
        };
        match &self.route {
            Route::Direct | Route::Service | Route::LoadBalancer { .. } => {
                self.straight(cluster, start, source)
            }
            Route::NodePort { node, port, is_local } => {
                let entry = cluster.node(node)?;
                self.through(cluster, start, source, entry, *port, *is_local)
            }
        }
    }

    fn straight(&self, cluster: &Cluster, start: Option<&Node>, source: IpAddr) -> Option<Vec<Hop>> {
        let end = cluster.home(self.server, start);
        let Some(first) = start.or(end) else {
            return Some(Vec::new());
        };
        let mut hops = vec![self.seen_by(first, source)];
        let settings = cluster.settings();
        let masquerades = match self.route {
            Route::Service => settings.masquerades_all,
            Route::LoadBalancer { is_local } => {
                settings.masquerades_all || !is_local && settings.data_plane != DataPlane::Ebpf
            }
            Route::Direct | Route::NodePort { .. } => false,
        };
        if let Some(second) = end.filter(|end| end.name != first.name) {
            let source = if masquerades {
                self.source_of(cluster, first)?
            } else {
                source
            };
            hops.push(self.seen_by(second, source));
        }
        Some(hops)
    }

    fn through(
        &self,
        cluster: &Cluster,
        start: Option<&Node>,
        source: IpAddr,
        entry: &Node,
        node_port: u16,
        is_local: bool,
    ) -> Option<Vec<Hop>> {
        let mut hops = Vec::new();
        let mut at_entry = self.seen_by(entry, source);
        // The client's own node judges a connection to an address of another node, and masquerades it. A host has this address
        // in any case.
        if let Some(first) = start.filter(|start| start.name != entry.name) {
            let own = self.of_family(&first.addresses);
            let mut hop = self.seen_by(first, source);
            hop.flow.destination = self.of_family(&entry.addresses)?;
            hop.flow.port = Some(node_port);
            hops.push(hop);
            if cluster.settings().masquerades_outgoing.to(self.server)
                || matches!(self.client, Client::Node(_))
            {
                at_entry.flow.source = own?;
                at_entry.source = SourceAddress::Final;
            }
        }
        let (source, is) = (at_entry.flow.source, at_entry.source);
        hops.push(at_entry);
        let end = cluster.home(self.server, Some(entry));
        if let Some(end) = end.filter(|end| end.name != entry.name) {
            let keeps_source = is_local || cluster.settings().data_plane == DataPlane::Ebpf;
            hops.push(if keeps_source {
                let hop = self.seen_by(end, source);
                Hop { source: is, ..hop }
            } else {
                self.seen_by(end, self.source_of(cluster, entry)?)
            });
        }
        Some(hops)
    }

    fn seen_by(&self, node: &Node, source: IpAddr) -> Hop {
        let flow = Flow {
            node: Arc::clone(&node.name),
            source,
            destination: self.server,
            protocol: self.protocol,
            port: self.port,
            state: self.state,
        };
        Hop {
            flow,
            source: SourceAddress::Seen,
        }
    }

    fn of_family(&self, addresses: &[IpAddr]) -> Option<IpAddr> {
        let same = |address: &&IpAddr| address.is_ipv4() == self.server.is_ipv4();
        addresses.iter().find(same).copied()
    }

    /// The address that another node sees when a program of this node is the source, or this node masquerades.
    fn source_of(&self, cluster: &Cluster, node: &Node) -> Option<IpAddr> {
        let tunnel = self.of_family(&node.tunnels);
        let underlay = || self.of_family(&node.addresses);
        match cluster.settings().encapsulation {
            Encapsulation::Always => tunnel.or_else(underlay),
            Encapsulation::CrossSubnet | Encapsulation::Never => underlay(),
        }
    }
}

#[cfg(test)]
mod tests;
