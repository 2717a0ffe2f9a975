//! Reads policies of administrators and of Calico from JSON, with what Calico makes of them: a rule that Calico cannot convert
//! vanishes if it allows, and denies everything otherwise (`clusternetworkpolicy.go`, and `conversion.go` of v3.31).

use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use serde_json::Value;

use super::{Action, AdminPolicy, AdminRule, Content, Tier, TierRules};
use crate::cidr;
use crate::flow::Protocol;
use crate::name::{ObjectKind, ObjectName};
use crate::rules::{Peer, PortMatch, Ports, Rule};
use crate::selector::Selector;
use crate::verdict::Direction;

/// Fields that differ between the two versions of the API.
#[derive(Clone, Copy)]
enum Form {
    /// `v1alpha1`.
    Admin,
    /// `v1alpha2`.
    Cluster,
}

impl AdminPolicy {
    /// Reads an object of this kind. `None` for `NetworkPolicy` of Kubernetes, which is a [`crate::rules::Policy`], and for one
    /// that Calico skips: without a tier that it knows, or without a subject.
    pub fn read(kind: ObjectKind, object: &Value) -> Option<Self> {
        let text = |path: &str| object.pointer(path).and_then(Value::as_str);
        let spec = &object["spec"];
        let content = match kind {
            ObjectKind::NetworkPolicy => return None,
            ObjectKind::CalicoNetworkPolicy | ObjectKind::GlobalNetworkPolicy => {
                Content::Opaque(directions(&spec["types"]))
            }
            ObjectKind::AdminNetworkPolicy => rules(spec, Tier::Admin, Form::Admin)?,
            ObjectKind::BaselineAdminNetworkPolicy => rules(spec, Tier::Baseline, Form::Admin)?,
            ObjectKind::ClusterNetworkPolicy => match spec["tier"].as_str() {
                Some("Admin") => rules(spec, Tier::Admin, Form::Cluster)?,
                Some("Baseline") => rules(spec, Tier::Baseline, Form::Cluster)?,
                _ => return None,
            },
        };
        let namespace = (kind == ObjectKind::CalicoNetworkPolicy).then(|| text("/metadata/namespace"));
        Some(Self {
            object: ObjectName {
                kind,
                namespace: namespace.flatten().map(Arc::from),
                name: Arc::from(text("/metadata/name").unwrap_or_default()),
            },
            content,
        })
    }
}

/// `types` of a policy of Calico. Felix takes both if there are none.
fn directions(types: &Value) -> Vec<Direction> {
    let both = [Direction::Ingress, Direction::Egress];
    let names: Vec<&str> = types
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let is_named = |direction: &Direction| {
        names
            .iter()
            .any(|name| name.eq_ignore_ascii_case(direction.as_str()))
    };
    both.into_iter()
        .filter(|direction| names.is_empty() || is_named(direction))
        .collect()
}

fn rules(spec: &Value, tier: Tier, form: Form) -> Option<Content> {
    let (namespaces, pods) = selected(&spec["subject"])?;
    let list = |name: &str, peers: &str| -> Box<[AdminRule]> {
        let rules = spec[name].as_array().into_iter().flatten();
        rules
            .filter_map(|given| rule(given, &given[peers], form))
            .collect()
    };
    Some(Content::Rules(TierRules {
        tier,
        priority: spec["priority"].as_i64().unwrap_or_default(),
        namespaces,
        pods,
        ingress: list("ingress", "from"),
        egress: list("egress", "to"),
    }))
}

/// A subject or a peer: `namespaces`, or `pods` with both selectors.
fn selected(value: &Value) -> Option<(Selector, Selector)> {
    let selector = |value: &Value| serde_json::from_value::<LabelSelector>(value.clone()).unwrap_or_default();
    if !value["pods"].is_null() {
        let pods = &value["pods"];
        let namespaces = Selector::of_namespaces(&selector(&pods["namespaceSelector"]));
        return Some((
            namespaces,
            Selector::of_pods(Some(&selector(&pods["podSelector"]))),
        ));
    }
    let namespaces = value
        .get("namespaces")
        .filter(|namespaces| !namespaces.is_null())?;
    Some((
        Selector::of_namespaces(&selector(namespaces)),
        Selector::everything(),
    ))
}

/// A rule; `None` if it has no effect.
fn rule(given: &Value, peers: &Value, form: Form) -> Option<AdminRule> {
    let (action, denies_if_unreadable) = match given["action"].as_str()? {
        "Accept" | "Allow" => (Action::Allow, false),
        "Deny" => (Action::Deny, true),
        "Pass" => (Action::Pass, true),
        _ => return None,
    };
    let peers: Option<Vec<Vec<Peer>>> = peers.as_array().into_iter().flatten().map(peer).collect();
    let ports = match form {
        Form::Admin => ports(&given["ports"], port_of_v1alpha1),
        Form::Cluster => ports(&given["protocols"], port_of_v1alpha2),
    };
    match (peers, ports) {
        // Without a peer Calico makes no rule; an empty list would be any peer here.
        (Some(peers), Some(_)) if peers.is_empty() => None,
        (Some(peers), Some(ports)) => Some(AdminRule {
            action,
            rule: Rule {
                peers: peers.concat().into(),
                ports,
            },
        }),
        _ => denies_if_unreadable.then(|| AdminRule {
            action: Action::Deny,
            rule: Rule::default(),
        }),
    }
}

/// A peer; `None` if Calico does not support it: `nodes`, `domainNames`, and fields of later versions.
fn peer(value: &Value) -> Option<Vec<Peer>> {
    let networks = value["networks"]
        .as_array()
        .filter(|networks| !networks.is_empty());
    if let Some(networks) = networks {
        let block = |network: &Value| {
            Some(Peer::Block {
                range: cidr::parse(network.as_str()?)?,
                except: Box::default(),
            })
        };
        return networks.iter().map(block).collect();
    }
    let (namespaces, pods) = selected(value)?;
    Some(vec![Peer::Pods {
        namespaces: Some(namespaces),
        pods,
    }])
}

/// A port, all ports of all protocols, or an error.
enum Read {
    Port(PortMatch),
    Everything,
    Unreadable,
}

/// Ports of a rule; `None` if Calico cannot read one.
fn ports(value: &Value, read: fn(&Value) -> Read) -> Option<Box<[PortMatch]>> {
    let mut ports = Vec::new();
    for port in value.as_array().into_iter().flatten() {
        match read(port) {
            Read::Port(port) => ports.push(port),
            Read::Everything => return Some(Box::default()),
            Read::Unreadable => return None,
        }
    }
    Some(ports.into())
}

fn range(protocol: Protocol, first: &Value, last: &Value) -> Read {
    let number = |value: &Value| value.as_u64().and_then(|number| u16::try_from(number).ok());
    match (number(first), number(last)) {
        (Some(first), Some(last)) if first <= last => Read::Port(PortMatch {
            protocol: Some(protocol),
            ports: Ports::Range(first, last),
        }),
        _ => Read::Unreadable,
    }
}

/// A name of a port is no restriction: v3.31 does not read it.
fn port_of_v1alpha1(value: &Value) -> Read {
    let protocol = |value: &Value| match value["protocol"].as_str() {
        None | Some("" | "TCP") => Some(Protocol::Tcp),
        Some("UDP") => Some(Protocol::Udp),
        Some("SCTP") => Some(Protocol::Sctp),
        Some(_) => None,
    };
    let (given, first, last) = match (&value["portNumber"], &value["portRange"]) {
        (Value::Null, Value::Null) => return Read::Everything,
        (Value::Null, given) => (given, &given["start"], &given["end"]),
        (given, _) => (given, &given["port"], &given["port"]),
    };
    let unreadable = Read::Port(PortMatch {
        protocol: None,
        ports: Ports::Unreadable,
    });
    protocol(given).map_or(unreadable, |protocol| range(protocol, first, last))
}

fn port_of_v1alpha2(value: &Value) -> Read {
    let protocols = [
        ("tcp", Protocol::Tcp),
        ("udp", Protocol::Udp),
        ("sctp", Protocol::Sctp),
    ];
    for (name, protocol) in protocols {
        let Some(given) = value.get(name).filter(|given| !given.is_null()) else {
            continue;
        };
        let port = &given["destinationPort"];
        return match (&port["number"], &port["range"]) {
            (Value::Null, Value::Null) => Read::Port(PortMatch {
                protocol: Some(protocol),
                ports: Ports::All,
            }),
            (Value::Null, given) => range(protocol, &given["start"], &given["end"]),
            (number, _) => range(protocol, number, number),
        };
    }
    match value["destinationNamedPort"].as_str() {
        Some(name) if !name.is_empty() => Read::Port(PortMatch {
            protocol: None,
            ports: Ports::Named(Arc::from(name)),
        }),
        _ => Read::Everything,
    }
}
