//! Whether a rule matches a connection.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::certainty::Match;
use crate::cluster::{Candidates, Cluster, Owner};
use crate::flow::{Flow, Protocol};
use crate::pod::Pod;
use crate::rules::{Peer, PortMatch, Ports, Rule};
use crate::selector::Selector;
use crate::verdict::UnknownReason;

/// One side of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Party<'cluster> {
    who: Who<'cluster>,
    addresses: Candidates,
}

#[derive(Clone, Copy, Debug)]
enum Who<'cluster> {
    Pod(&'cluster Pod),
    NoPod,
    Unknown(UnknownReason),
}

impl<'cluster> Party<'cluster> {
    /// The side with this address.
    pub(crate) fn of(owner: &Owner<'cluster>, address: IpAddr) -> Self {
        let who = match owner {
            Owner::Pod(pod) => Who::Pod(pod),
            Owner::OwnNode | Owner::OtherNode(_) | Owner::Outside => Who::NoPod,
            Owner::NoPod => Who::Unknown(UnknownReason::AddressWithoutPod),
            Owner::Several => Who::Unknown(UnknownReason::AddressOfSeveral),
        };
        let addresses = match owner {
            Owner::OtherNode(candidates) => candidates.clone(),
            Owner::Pod(_) | Owner::OwnNode | Owner::Outside | Owner::NoPod | Owner::Several => Candidates {
                addresses: vec![address],
                is_complete: true,
            },
        };
        Self { who, addresses }
    }

    /// Whether the address is in the range and in none of the exceptions.
    fn is_in(&self, range: &IpNet, except: &[IpNet]) -> Match {
        let is_meant = |address: &IpAddr| {
            range.contains(address) && !except.iter().any(|excepted| excepted.contains(address))
        };
        let addresses = &self.addresses.addresses;
        let count = addresses.iter().filter(|address| is_meant(address)).count();
        match (count, self.addresses.is_complete) {
            (0, true) => Match::No,
            (count, true) if count == addresses.len() => Match::Yes,
            (_, true) => Match::Unknown(UnknownReason::AddressOfNode),
            (_, false) => Match::Unknown(UnknownReason::TunnelAddressMissing),
        }
    }

    fn is_selected(
        &self,
        cluster: &Cluster,
        own_namespace: &str,
        namespaces: Option<&Selector>,
        pods: &Selector,
    ) -> Match {
        let pod = match self.who {
            Who::Pod(pod) => pod,
            Who::NoPod => return Match::No,
            Who::Unknown(why) => return Match::Unknown(why),
        };
        let is_in_namespace = || match namespaces {
            None => Match::from(*pod.namespace == *own_namespace),
            Some(selector) => cluster
                .namespace(&pod.namespace)
                .map_or(Match::Unknown(UnknownReason::NamespaceMissing), |labels| {
                    selector.matches_namespace(&pod.namespace, labels)
                }),
        };
        pods.matches(&pod.labels).and(is_in_namespace)
    }
}

/// Whether a rule matches. The peer is the other side of the pod that is judged; the port is that of the destination.
pub(crate) fn matches(
    cluster: &Cluster,
    rule: &Rule,
    own_namespace: &str,
    flow: &Flow,
    peer: &Party<'_>,
    destination: &Party<'_>,
) -> Match {
    let is_peer = || {
        Match::any(rule.peers.iter().map(|wanted| match wanted {
            Peer::Anything => Match::Yes,
            Peer::Block { range, except } => peer.is_in(range, except),
            Peer::Pods { namespaces, pods } => {
                peer.is_selected(cluster, own_namespace, namespaces.as_ref(), pods)
            }
        }))
    };
    let is_port = || {
        Match::any(
            rule.ports
                .iter()
                .map(|port| is_port(cluster, port, flow, destination)),
        )
    };
    let of_ports = if rule.ports.is_empty() {
        Match::Yes
    } else {
        is_port()
    };
    of_ports.and(|| {
        if rule.peers.is_empty() {
            Match::Yes
        } else {
            is_peer()
        }
    })
}

fn is_port(cluster: &Cluster, wanted: &PortMatch, flow: &Flow, destination: &Party<'_>) -> Match {
    if wanted.protocol.is_some_and(|protocol| protocol != flow.protocol) {
        return Match::No;
    }
    match &wanted.ports {
        Ports::All => Match::Yes,
        Ports::Range(first, last) => flow
            .port
            .is_some_and(|port| (*first..=*last).contains(&port))
            .into(),
        Ports::Named(name) => match (destination.who, flow.port) {
            (_, None) | (Who::NoPod, Some(_)) => Match::No,
            (Who::Unknown(why), Some(_)) => Match::Unknown(why),
            (Who::Pod(pod), Some(number)) => names(cluster, pod, flow.protocol, number)
                .any(|known| *known == **name)
                .into(),
        },
        Ports::Unreadable => Match::Unknown(UnknownReason::UnreadablePort),
    }
}

/// The names that a pod gives to a port, as far as Calico reads them.
pub(crate) fn names<'pod>(
    cluster: &Cluster,
    pod: &'pod Pod,
    protocol: Protocol,
    number: u16,
) -> impl Iterator<Item = &'pod str> {
    let reads_init = cluster.settings().version.reads_init_containers();
    let ports = pod.ports.iter().filter(move |port| {
        (port.protocol, port.number) == (protocol, number) && (reads_init || !port.is_init)
    });
    ports.filter_map(|port| port.name.as_deref())
}
