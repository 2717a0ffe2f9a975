//! `NetworkPolicy` of `networking.k8s.io/v1`, with what Calico makes of it (`K8sNetworkPolicyToCalico` in
//! `libcalico-go/lib/backend/k8s/conversion/conversion.go`).

mod read;

use std::collections::BTreeSet;
use std::sync::Arc;

use ipnet::IpNet;

use crate::flow::Protocol;
use crate::name::{ObjectKind, ObjectName};
use crate::selector::{Selector, share};
use crate::verdict::{Direction, UnknownReason};

/// A `NetworkPolicy`, in the form in which it is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
    /// The pods of its namespace that it selects.
    pub selector: Selector,
    /// Rules for connections to these pods; `None` if the policy does not isolate them in this direction.
    pub ingress: Option<Rules>,
    /// Rules for connections from these pods; `None` if the policy does not isolate them in this direction.
    pub egress: Option<Rules>,
}

impl Policy {
    /// A policy of which nothing but its name is known.
    pub fn unreadable(namespace: &str, name: &str) -> Self {
        let rules = Rules::Unreadable(UnknownReason::UnreadablePolicy);
        Self {
            namespace: Arc::from(namespace),
            name: Arc::from(name),
            selector: Selector::unreadable(UnknownReason::UnreadablePolicy),
            ingress: Some(rules.clone()),
            egress: Some(rules),
        }
    }

    /// Its kind, namespace and name.
    pub fn object(&self) -> ObjectName {
        ObjectName {
            kind: ObjectKind::NetworkPolicy,
            namespace: Some(Arc::clone(&self.namespace)),
            name: Arc::clone(&self.name),
        }
    }

    /// The rules for a direction; `None` if the policy does not isolate in this direction.
    pub fn rules(&self, direction: Direction) -> Option<&Rules> {
        match direction {
            Direction::Ingress => self.ingress.as_ref(),
            Direction::Egress => self.egress.as_ref(),
        }
    }

    /// Shares names with other policies.
    pub(crate) fn share(&mut self, names: &mut BTreeSet<Arc<str>>) {
        share(&mut self.namespace, names);
        self.selector.share(names);
        for rules in [&mut self.ingress, &mut self.egress].into_iter().flatten() {
            if let Rules::Listed(rules) = rules {
                rules.iter_mut().for_each(|rule| rule.share(names));
            }
        }
    }
}

/// Rules of one direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rules {
    /// Each of them allows.
    Listed(Box<[Rule]>),
    /// They are not kept.
    Unreadable(UnknownReason),
}

impl Rules {
    /// The rules that are kept.
    pub fn listed(&self) -> &[Rule] {
        match self {
            Self::Listed(rules) => rules,
            Self::Unreadable(_) => &[],
        }
    }
}

/// A rule: one peer and one port must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// The other side; empty for any.
    pub peers: Box<[Peer]>,
    /// The port of the destination; empty for any port of any protocol.
    pub ports: Box<[PortMatch]>,
}

impl Rule {
    /// Shares names with other rules.
    pub(crate) fn share(&mut self, names: &mut BTreeSet<Arc<str>>) {
        for peer in &mut self.peers {
            if let Peer::Pods { namespaces, pods } = peer {
                pods.share(names);
                if let Some(namespaces) = namespaces {
                    namespaces.share(names);
                }
            }
        }
        for port in &mut self.ports {
            if let Ports::Named(name) = &mut port.ports {
                share(name, names);
            }
        }
    }
}

/// The other side of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Pods.
    Pods {
        /// Their namespaces; `None` for that of the policy.
        namespaces: Option<Selector>,
        /// Their labels.
        pods: Selector,
    },
    /// Addresses, those of pods included.
    Block {
        /// The addresses.
        range: IpNet,
        /// Addresses among them that are not meant. Another peer may mean them.
        except: Box<[IpNet]>,
    },
    /// Anything: Calico reads a range that it cannot parse as no restriction.
    Anything,
}

/// Ports of a protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortMatch {
    /// The protocol; `None` for any protocol that has a port with this name.
    pub protocol: Option<Protocol>,
    /// The ports.
    pub ports: Ports,
}

/// Port numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ports {
    /// Every port.
    All,
    /// From the first to the last one.
    Range(u16, u16),
    /// The ports to which the destination pod gives this name.
    Named(Arc<str>),
    /// What Calico makes of it is not known.
    Unreadable,
}

#[cfg(test)]
mod tests;
