//! Reads a `NetworkPolicy` of the API.

use std::sync::Arc;

use k8s_openapi::api::networking::v1::{
    IPBlock, NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Peer, Policy, PortMatch, Ports, Rule, Rules};
use crate::cidr;
use crate::flow::Protocol;
use crate::selector::Selector;
use crate::verdict::UnknownReason;

/// The most peers, ports and exceptions of a policy that are kept, about 0.5 MiB: a tenant may write objects of 1.5 MiB.
const MOST_ENTRIES: usize = 8192;

impl Policy {
    /// Reads a policy. The defaults of the API server are repeated, so a manifest means the same as the stored object.
    pub fn read(policy: &NetworkPolicy) -> Self {
        let empty = NetworkPolicySpec::default();
        let spec = policy.spec.as_ref().unwrap_or(&empty);
        let ingress = spec.ingress.as_deref().unwrap_or_default();
        let egress = spec.egress.as_deref().unwrap_or_default();
        let types = spec.policy_types.as_deref().unwrap_or_default();
        let names = |direction| types.iter().any(|name| name == direction);
        let ingress = ingress
            .iter()
            .map(|rule| (rule.from.as_deref(), rule.ports.as_deref()));
        let egress = egress
            .iter()
            .map(|rule| (rule.to.as_deref(), rule.ports.as_deref()));
        let name = |text: &Option<String>| Arc::from(text.as_deref().unwrap_or_default());
        Self {
            namespace: name(&policy.metadata.namespace),
            name: name(&policy.metadata.name),
            selector: Selector::of_pods(spec.pod_selector.as_ref()),
            // Without types: ingress always, egress if there is an egress rule.
            ingress: (types.is_empty() || names("Ingress")).then(|| rules(ingress)),
            egress: (names("Egress") || types.is_empty() && egress.len() > 0).then(|| rules(egress)),
        }
    }
}

type Sides<'policy> = (
    Option<&'policy [NetworkPolicyPeer]>,
    Option<&'policy [NetworkPolicyPort]>,
);

fn rules<'policy>(rules: impl Iterator<Item = Sides<'policy>> + Clone) -> Rules {
    let exceptions = |peer: &NetworkPolicyPeer| {
        let block = peer.ip_block.as_ref();
        block.and_then(|block| block.except.as_ref()).map_or(0, Vec::len)
    };
    let entries: usize = rules
        .clone()
        .map(|(peers, ports)| {
            let peers = peers.unwrap_or_default();
            let exceptions: usize = peers.iter().map(exceptions).sum();
            1 + peers.len() + exceptions + ports.map_or(0, <[_]>::len)
        })
        .sum();
    if entries > MOST_ENTRIES {
        return Rules::Unreadable(UnknownReason::PolicyTooLarge);
    }
    Rules::Listed(rules.filter_map(|(peers, ports)| rule(peers, ports)).collect())
}

/// Missing and empty lists are the same. Calico drops a rule with a port that it cannot read.
fn rule(peers: Option<&[NetworkPolicyPeer]>, ports: Option<&[NetworkPolicyPort]>) -> Option<Rule> {
    let ports: Option<Box<[PortMatch]>> = ports.unwrap_or_default().iter().map(port).collect();
    Some(Rule {
        peers: peers.unwrap_or_default().iter().map(peer).collect(),
        ports: ports?,
    })
}

fn peer(peer: &NetworkPolicyPeer) -> Peer {
    if let Some(block) = &peer.ip_block {
        return block_of(block);
    }
    Peer::Pods {
        namespaces: peer.namespace_selector.as_ref().map(Selector::of_namespaces),
        pods: Selector::of_pods(peer.pod_selector.as_ref()),
    }
}

/// Calico stops at the first exception that it cannot read, and keeps those before it.
fn block_of(block: &IPBlock) -> Peer {
    let Some(range) = cidr::parse(&block.cidr) else {
        return Peer::Anything;
    };
    let except = block.except.iter().flatten();
    Peer::Block {
        range,
        except: except.map_while(|range| cidr::parse(range)).collect(),
    }
}

/// One port; `None` if Calico cannot read it (`PortFromString` in `api/pkg/lib/numorstring`).
fn port(port: &NetworkPolicyPort) -> Option<PortMatch> {
    let protocol = match port.protocol.as_deref() {
        None | Some("TCP") => Protocol::Tcp,
        Some("UDP") => Protocol::Udp,
        Some("SCTP") => Protocol::Sctp,
        Some(_) => {
            return Some(PortMatch {
                protocol: None,
                ports: Ports::Unreadable,
            });
        }
    };
    let ports = match (&port.port, port.end_port) {
        (None, _) => Ports::All,
        (Some(IntOrString::Int(number)), end) => range(*number, end.unwrap_or(*number))?,
        (Some(IntOrString::String(text)), end) if is_number(text) => {
            let number = text.parse().ok()?;
            range(number, end.unwrap_or(number))?
        }
        (Some(IntOrString::String(name)), None) if is_name(name) => Ports::Named(Arc::from(name.as_str())),
        (Some(IntOrString::String(_)), _) => return None,
    };
    Some(PortMatch {
        protocol: Some(protocol),
        ports,
    })
}

fn range(first: i32, last: i32) -> Option<Ports> {
    let (first, last) = (u16::try_from(first).ok()?, u16::try_from(last).ok()?);
    (first <= last).then_some(Ports::Range(first, last))
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|digit| digit.is_ascii_digit())
}

fn is_name(text: &str) -> bool {
    let is_letter = |letter: u8| letter.is_ascii_alphanumeric() || b"_.-".contains(&letter);
    (1..=128).contains(&text.len()) && text.bytes().all(is_letter)
}
