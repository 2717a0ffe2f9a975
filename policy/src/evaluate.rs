//! The decision: what Calico does with a connection.

mod matching;
mod tiers;

use std::net::IpAddr;

use crate::cluster::{Cluster, Node, Owner};
use crate::flow::{Flow, Protocol, State};
use crate::pod::Pod;
use crate::settings::EndpointToHost;
use crate::verdict::{AllowReason, Direction, RefuseReason, UnknownReason, Verdict};

use self::matching::Party;

pub(crate) use self::matching::names;

/// Types of `ICMPv6` that a host accepts from its pods before any policy (`ICMPv6Filter` in `felix/rules/static.go`).
const NEIGHBOR_DISCOVERY: [u8; 6] = [130, 131, 132, 133, 135, 136];

/// What Calico does with a connection on the node that sees it. The node judges egress if the source is one of its pods, and
/// ingress if the destination is one; [`crate::connection::forecast`] combines the nodes of a connection.
///
/// # Examples
///
/// `shop/db` is isolated, and only `shop/web` may connect.
///
/// ```
/// use k8s_openapi::api::{core, networking};
/// use policy::{AllowReason, Cluster, Direction, Facts, Flow, Node, Pod, Policy, Protocol, State, Verdict, evaluate};
/// use serde_json::{Value, json};
///
/// let pod = |name: &str, address: &str| -> Pod {
///     let pod = json!({
///         "metadata": {"namespace": "shop", "name": name, "labels": {"app": name}},
///         "spec": {"nodeName": "n1", "containers": []},
///         "status": {"podIP": address},
///     });
///     let pod: core::v1::Pod = serde_json::from_value(pod).unwrap();
///     Pod::read(&pod, true).unwrap()
/// };
/// let policy: networking::v1::NetworkPolicy = serde_json::from_value(json!({
///     "metadata": {"namespace": "shop", "name": "db-only-web"},
///     "spec": {
///         "podSelector": {"matchLabels": {"app": "db"}},
///         "ingress": [{"from": [{"podSelector": {"matchLabels": {"app": "web"}}}]}],
///     },
/// }))
/// .unwrap();
/// let cluster = Cluster::new(Facts {
///     nodes: vec![Node { name: "n1".into(), ..Node::default() }],
///     namespaces: vec![("shop".into(), Default::default())],
///     pods: vec![pod("web", "10.244.1.5"), pod("api", "10.244.1.7"), pod("db", "10.244.1.9")],
///     policies: vec![Policy::read(&policy)],
///     ..Facts::default()
/// });
/// let from = |address: &str| Flow {
///     node: "n1".into(),
///     source: address.parse().unwrap(),
///     destination: "10.244.1.9".parse().unwrap(),
///     protocol: Protocol::Tcp,
///     port: Some(5432),
///     state: State::New,
/// };
/// assert_eq!(evaluate(&cluster, &from("10.244.1.5")), Verdict::Allowed { why: AllowReason::Rule });
/// let Verdict::Refused { direction, policies, .. } = evaluate(&cluster, &from("10.244.1.7")) else {
///     panic!("refused");
/// };
/// assert_eq!(direction, Direction::Ingress);
/// assert_eq!(policies[0].to_string(), "NetworkPolicy shop/db-only-web");
/// ```
pub fn evaluate(cluster: &Cluster, flow: &Flow) -> Verdict {
    judge(cluster, flow, SourceAddress::Seen)
}

/// What is known of the source of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SourceAddress {
    /// A node had the address when the connection was seen. Under Calico it may have another one.
    Seen,
    /// Calico sees exactly this address.
    Final,
}

/// Like [`evaluate`], with what is known of the source.
pub(crate) fn judge(cluster: &Cluster, flow: &Flow, is: SourceAddress) -> Verdict {
    let Some(node) = cluster.node(&flow.node) else {
        return unknown(UnknownReason::NodeMissing);
    };
    if flow.state == State::Established {
        return allowed(AllowReason::Established);
    }
    let source = cluster.owner(flow.source, node);
    let source = match is {
        SourceAddress::Seen => source,
        SourceAddress::Final => source.exactly(flow.source),
    };
    let destination = cluster
        .owner(flow.destination, node)
        .destination(flow.destination);
    let of_egress = match &source {
        Owner::Pod(pod) if pod.node == node.name => Some(egress(cluster, flow, pod, &destination)),
        other => may_be_pod(other, flow.source, node),
    };
    let of_ingress = match &destination {
        Owner::Pod(pod) if pod.node == node.name => Some(ingress(cluster, flow, pod, &source)),
        other => may_be_pod(other, flow.destination, node),
    };
    match (of_egress, of_ingress) {
        (Some(one), Some(other)) => one.and(other),
        (Some(verdict), None) | (None, Some(verdict)) => verdict,
        (None, None) if destination == Owner::OwnNode => allowed(AllowReason::HostNetwork),
        (None, None) => allowed(AllowReason::NotJudgedHere),
    }
}

/// The side of an address that may belong to a pod of this node which is not known.
fn may_be_pod(owner: &Owner<'_>, address: IpAddr, node: &Node) -> Option<Verdict> {
    match owner {
        Owner::NoPod | Owner::Several if !node.may_have_pod(address) => None,
        Owner::NoPod => Some(unknown(UnknownReason::AddressWithoutPod)),
        Owner::Several => Some(unknown(UnknownReason::AddressOfSeveral)),
        Owner::Pod(_) | Owner::OwnNode | Owner::OtherNode(_) | Owner::Outside => None,
    }
}

/// The chain from a pod (`cali-fw-`), and for its own host the chain behind it (`cali-wl-to-host`).
fn egress(cluster: &Cluster, flow: &Flow, pod: &Pod, destination: &Owner<'_>) -> Verdict {
    let settings = cluster.settings();
    if !pod.is_enforced {
        return allowed(AllowReason::NotEnforced);
    }
    let is_own_host = *destination == Owner::OwnNode;
    if is_own_host
        && let Protocol::Icmpv6(kind) = flow.protocol
        && NEIGHBOR_DISCOVERY.contains(&kind)
    {
        return allowed(AllowReason::NeighborDiscovery);
    }
    let is_vxlan = flow.protocol == Protocol::Udp && flow.port == Some(settings.vxlan_port);
    let is_tunnel = is_vxlan && !settings.tunnels_from_pods.vxlan
        || flow.protocol == Protocol::Ipip && !settings.tunnels_from_pods.ipip;
    if is_tunnel {
        return Verdict::Refused {
            direction: Direction::Egress,
            policies: Vec::new(),
            why: RefuseReason::Encapsulation,
        };
    }
    let party = Party::of(destination, flow.destination);
    let verdict = tiers::judge(cluster, flow, pod, Direction::Egress, &party);
    match (is_own_host, settings.endpoint_to_host) {
        (false, _) | (true, EndpointToHost::Accept) => verdict,
        (true, EndpointToHost::Drop) => verdict.and(Verdict::Refused {
            direction: Direction::Egress,
            policies: Vec::new(),
            why: RefuseReason::EndpointToHost,
        }),
        (true, EndpointToHost::Return) => verdict.and(unknown(UnknownReason::EndpointToHost)),
    }
}

/// The chain to a pod (`cali-tw-`).
fn ingress(cluster: &Cluster, flow: &Flow, pod: &Pod, source: &Owner<'_>) -> Verdict {
    if !pod.is_enforced {
        return allowed(AllowReason::NotEnforced);
    }
    // Packets of the host itself pass `cali-OUTPUT`, which judges none to a pod.
    if *source == Owner::OwnNode {
        return allowed(AllowReason::OwnNode);
    }
    let party = Party::of(source, flow.source);
    tiers::judge(cluster, flow, pod, Direction::Ingress, &party)
}

fn allowed(why: AllowReason) -> Verdict {
    Verdict::Allowed { why }
}

fn unknown(why: UnknownReason) -> Verdict {
    Verdict::Unknown {
        why,
        objects: Vec::new(),
    }
}

#[cfg(test)]
mod tests;
