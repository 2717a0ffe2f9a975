//! A connection that is planned: from a client to a server, as each node on its way sees it. Connection tracking shows what
//! happened in a few days; a connection that happens in an outage only has to be asked about.

use std::net::IpAddr;
use std::sync::Arc;

use crate::cluster::{Cluster, Node};
use crate::evaluate::evaluate;
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
    /// Through an address of a Service.
    Service,
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
    let Some(flows) = connection.flows(cluster) else {
        return Verdict::Unknown {
            why: UnknownReason::NodeMissing,
            objects: Vec::new(),
        };
    };
    let not_judged = Verdict::Allowed {
        why: AllowReason::NotJudgedHere,
    };
    flows
        .iter()
        .fold(not_judged, |verdict, flow| verdict.and(evaluate(cluster, flow)))
}

impl Connection {
    /// The connection as each node on its way sees it; `None` if a node that it names is not in the cluster.
    pub fn flows(&self, cluster: &Cluster) -> Option<Vec<Flow>> {
        let (start, source) = match &self.client {
            Client::Address(address) => (cluster.home(*address, None), *address),
            Client::Node(name) => {
                let node = cluster.node(name)?;
                (Some(node), self.source_of(cluster, node)?)
            }
        };
        match &self.route {
            Route::Direct | Route::Service => self.straight(cluster, start, source),
            Route::NodePort { node, port, is_local } => {
                let entry = cluster.node(node)?;
                self.through(cluster, start, source, entry, *port, *is_local)
            }
        }
    }

    fn straight(&self, cluster: &Cluster, start: Option<&Node>, source: IpAddr) -> Option<Vec<Flow>> {
        let end = cluster.home(self.server, start);
        let Some(first) = start.or(end) else {
            return Some(Vec::new());
        };
        let mut flows = vec![self.seen_by(first, source)];
        let masquerades = self.route == Route::Service && cluster.settings().masquerades_all;
        if let Some(second) = end.filter(|end| end.name != first.name) {
            let source = if masquerades {
                self.source_of(cluster, first)?
            } else {
                source
            };
            flows.push(self.seen_by(second, source));
        }
        Some(flows)
    }

    fn through(
        &self,
        cluster: &Cluster,
        start: Option<&Node>,
        source: IpAddr,
        entry: &Node,
        node_port: u16,
        is_local: bool,
    ) -> Option<Vec<Flow>> {
        let mut flows = Vec::new();
        let mut source = source;
        // The client's own node judges a connection to an address of another node, and masquerades it.
        if let Some(first) = start.filter(|start| start.name != entry.name) {
            flows.push(Flow {
                destination: self.of_family(&entry.addresses)?,
                port: Some(node_port),
                ..self.seen_by(first, source)
            });
            if cluster.settings().masquerades_outgoing {
                source = self.of_family(&first.addresses)?;
            }
        }
        flows.push(self.seen_by(entry, source));
        let end = cluster.home(self.server, Some(entry));
        if let Some(end) = end.filter(|end| end.name != entry.name) {
            let keeps_source = is_local || cluster.settings().data_plane == DataPlane::Ebpf;
            let source = if keeps_source {
                source
            } else {
                self.source_of(cluster, entry)?
            };
            flows.push(self.seen_by(end, source));
        }
        Some(flows)
    }

    fn seen_by(&self, node: &Node, source: IpAddr) -> Flow {
        Flow {
            node: Arc::clone(&node.name),
            source,
            destination: self.server,
            protocol: self.protocol,
            port: self.port,
            state: self.state,
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
