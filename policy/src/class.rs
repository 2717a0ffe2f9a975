//! Classes of connections with the same verdict. Verdicts depend on labels that selectors name, on ranges of addresses and on
//! ports that rules name, not on single pods: so many pods and connections are one [`Key`].

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::admin::Content;
use crate::cluster::{Cluster, Node, Owner};
use crate::evaluate::names;
use crate::flow::{Flow, Protocol};
use crate::pod::Pod;
use crate::rules::{Peer, Ports, Rule, Rules};
use crate::selector::Selector;
use crate::verdict::Direction;

/// What the policies of a cluster tell apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Classes {
    /// Keys of labels of pods.
    labels: BTreeSet<Arc<str>>,
    /// Ranges and exceptions.
    ranges: BTreeSet<IpNet>,
    /// Lengths of the ranges' prefixes, by family.
    lengths: [BTreeSet<u8>; 2],
    /// The first port of each class of ports.
    ports: BTreeSet<u16>,
    /// Names of ports.
    names: BTreeSet<Arc<str>>,
}

/// A class of connections: with the same policies, settings and labels of namespaces, all of them have the same verdict.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Key {
    /// The client.
    pub source: Side,
    /// The server.
    pub destination: Side,
    /// The protocol.
    pub protocol: Protocol,
    /// The port of the server.
    pub port: PortClass,
    /// What the node judges.
    pub role: Role,
}

/// One side of a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Side {
    /// Pods of a workload.
    Workload {
        /// Their namespace.
        namespace: Arc<str>,
        /// The name of the workload.
        workload: Arc<str>,
        /// Their labels, as far as selectors name them.
        labels: Arc<[(Arc<str>, Arc<str>)]>,
        /// Calico enforces policies for them.
        is_enforced: bool,
        /// Their addresses.
        range: Range,
    },
    /// The node that sees the connection: egress of its pods to its addresses is judged.
    OwnNode(Range),
    /// Another node.
    OtherNode {
        /// The addresses that it may have under Calico.
        ranges: Arc<[Range]>,
        /// Its address is one of them for certain.
        is_complete: bool,
    },
    /// Addresses outside of the cluster.
    Outside(Range),
    /// Addresses of which the owner is not known.
    Unknown {
        /// The addresses.
        range: Range,
        /// Several have the address, or none.
        has_several: bool,
        /// The owner may be a pod of the node that sees the connection.
        may_be_here: bool,
    },
}

/// Addresses that no policy tells apart: those of the smallest range that contains them, without smaller ranges in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Range {
    /// This range.
    Of(IpNet),
    /// IPv4 addresses in no range of a policy.
    OtherIpv4,
    /// IPv6 addresses in no range of a policy.
    OtherIpv6,
}

/// Ports that no policy tells apart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PortClass {
    /// The first and the last port; `None` for a protocol without ports.
    pub numbers: Option<(u16, u16)>,
    /// Names that the server gives to the port, as far as policies name them.
    pub names: Box<[Arc<str>]>,
}

/// What the node that sees a connection judges of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Role {
    /// Egress: the client is one of its pods.
    Source,
    /// Ingress: the server is one of its pods.
    Destination,
    /// Both.
    Both,
    /// Nothing.
    Neither,
}

impl Classes {
    /// What the policies of this cluster tell apart.
    pub fn of(cluster: &Cluster) -> Self {
        let mut classes = Self::default();
        for policy in cluster.policies() {
            classes.add_selector(&policy.selector);
            for direction in [Direction::Ingress, Direction::Egress] {
                let rules = policy.rules(direction).into_iter();
                rules.flat_map(Rules::listed).for_each(|rule| classes.add(rule));
            }
        }
        for policy in cluster.admin_policies() {
            if let Content::Rules(rules) = &policy.content {
                classes.add_selector(&rules.pods);
                let all = rules.ingress.iter().chain(&rules.egress);
                all.for_each(|given| classes.add(&given.rule));
            }
        }
        let vxlan = cluster.settings().vxlan_port;
        classes.add_ports(vxlan, vxlan);
        classes.lengths = [true, false].map(|is_ipv4| {
            let of_family = |range: &&IpNet| range.addr().is_ipv4() == is_ipv4;
            classes
                .ranges
                .iter()
                .filter(of_family)
                .map(IpNet::prefix_len)
                .collect()
        });
        classes
    }

    fn add_selector(&mut self, selector: &Selector) {
        self.labels.extend(selector.keys().map(Arc::from));
    }

    fn add_ports(&mut self, first: u16, last: u16) {
        self.ports.insert(first);
        self.ports.extend(last.checked_add(1));
    }

    fn add(&mut self, rule: &Rule) {
        for peer in &rule.peers {
            match peer {
                Peer::Pods { pods, .. } => self.add_selector(pods),
                Peer::Block { range, except } => {
                    self.ranges.insert(*range);
                    self.ranges.extend(except.iter().copied());
                }
                Peer::Anything => {}
            }
        }
        for port in &rule.ports {
            match &port.ports {
                Ports::Range(first, last) => self.add_ports(*first, *last),
                Ports::Named(name) => {
                    self.names.insert(Arc::clone(name));
                }
                Ports::All | Ports::Unreadable => {}
            }
        }
    }

    /// The class of a connection; `None` if the node that sees it is not in the cluster.
    ///
    /// The class is that of the next connection: whether this one is [`crate::State::Established`] does not matter.
    pub fn key(&self, cluster: &Cluster, flow: &Flow) -> Option<Key> {
        let node = cluster.node(&flow.node)?;
        let source = cluster.owner(flow.source, node);
        let destination = cluster
            .owner(flow.destination, node)
            .destination(flow.destination);
        let is_here = |owner: &Owner<'_>| matches!(owner, Owner::Pod(pod) if pod.node == node.name);
        let role = match (is_here(&source), is_here(&destination)) {
            (true, true) => Role::Both,
            (true, false) => Role::Source,
            (false, true) => Role::Destination,
            (false, false) => Role::Neither,
        };
        Some(Key {
            port: self.port(cluster, flow, &destination),
            source: self.side(&source, flow.source, node),
            destination: self.side(&destination, flow.destination, node),
            protocol: flow.protocol,
            role,
        })
    }

    fn side(&self, owner: &Owner<'_>, address: IpAddr, node: &Node) -> Side {
        let range = self.range(address);
        match owner {
            Owner::Pod(pod) => Side::Workload {
                namespace: Arc::clone(&pod.namespace),
                workload: Arc::clone(&pod.workload),
                labels: self.labels(pod),
                is_enforced: pod.is_enforced,
                range,
            },
            Owner::OwnNode => Side::OwnNode(range),
            Owner::OtherNode(candidates) => {
                let ranges: BTreeSet<Range> = candidates
                    .addresses
                    .iter()
                    .map(|address| self.range(*address))
                    .collect();
                Side::OtherNode {
                    ranges: ranges.into_iter().collect(),
                    is_complete: candidates.is_complete,
                }
            }
            Owner::Outside => Side::Outside(range),
            Owner::NoPod | Owner::Several => Side::Unknown {
                range,
                has_several: *owner == Owner::Several,
                may_be_here: node.may_have_pod(address),
            },
        }
    }

    fn labels(&self, pod: &Pod) -> Arc<[(Arc<str>, Arc<str>)]> {
        let named = pod.labels.iter().filter(|(key, _)| self.labels.contains(*key));
        named
            .map(|(key, value)| (Arc::clone(key), Arc::clone(value)))
            .collect()
    }

    /// The smallest range that contains the address. All ranges that contain it also contain the rest of this one, and smaller
    /// ranges contain none of its class.
    fn range(&self, address: IpAddr) -> Range {
        let lengths = &self.lengths[usize::from(address.is_ipv6())];
        let of_length = |length: &u8| IpNet::new(address, *length).ok().map(|range| range.trunc());
        let mut longest_first = lengths.iter().rev().filter_map(of_length);
        match longest_first.find(|range| self.ranges.contains(range)) {
            Some(range) => Range::Of(range),
            None if address.is_ipv4() => Range::OtherIpv4,
            None => Range::OtherIpv6,
        }
    }

    fn port(&self, cluster: &Cluster, flow: &Flow, destination: &Owner<'_>) -> PortClass {
        let Some(number) = flow.port else {
            return PortClass {
                numbers: None,
                names: Box::default(),
            };
        };
        let first = self.ports.range(..=number).next_back();
        let next = number
            .checked_add(1)
            .and_then(|next| self.ports.range(next..).next());
        let last = next.map_or(u16::MAX, |next| next - 1);
        let names: BTreeSet<&Arc<str>> = match destination {
            Owner::Pod(pod) => names(cluster, pod, flow.protocol, number)
                .filter_map(|name| self.names.get(name))
                .collect(),
            _ => BTreeSet::new(),
        };
        PortClass {
            numbers: Some((first.copied().unwrap_or(0), last)),
            names: names.into_iter().map(Arc::clone).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
