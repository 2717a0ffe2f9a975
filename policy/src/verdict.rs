//! The verdict on a connection, with its reason. Names of reasons are derived from the variants, as in `engine::reason`.

use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

use crate::name::ObjectName;

/// A direction, as a policy names it: seen from the pod that the policy selects.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    IntoStaticStr,
    VariantArray,
    Serialize,
    Deserialize,
)]
pub enum Direction {
    /// To the pod.
    Ingress,
    /// From the pod.
    Egress,
}

impl Direction {
    /// The name, as in `policyTypes`.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// What Calico does with a connection.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Verdict {
    /// Calico lets the connection through.
    Allowed {
        /// The reason.
        why: AllowReason,
    },
    /// Calico drops the connection: the client times out.
    Refused {
        /// The direction in which it is dropped.
        direction: Direction,
        /// The policies that cause it: those that isolate the pod, or the one that denies. Empty for a drop without any policy.
        policies: Vec<ObjectName>,
        /// The reason.
        why: RefuseReason,
    },
    /// The facts do not decide.
    Unknown {
        /// The first reason.
        why: UnknownReason,
        /// The objects that could not be evaluated. Empty if a fact of the cluster is missing.
        objects: Vec<ObjectName>,
    },
}

impl Verdict {
    /// Whether Calico lets the connection through for certain.
    pub fn is_allowed(&self) -> bool {
        matches!(self, Self::Allowed { .. })
    }

    /// Whether Calico drops the connection for certain.
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Refused { .. })
    }

    /// The verdict on a connection that both must let through: a refusal is certain whatever the other one is.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let weight = |verdict: &Self| match verdict {
            Self::Allowed { .. } => 0,
            Self::Unknown { .. } => 1,
            Self::Refused { .. } => 2,
        };
        match (&self, &other) {
            (Self::Allowed { why }, Self::Allowed { why: of_other }) => Self::Allowed {
                why: *why.max(of_other),
            },
            _ if weight(&other) > weight(&self) => other,
            _ => self,
        }
    }
}

/// Why Calico lets a connection through. A later variant is the stronger reason: of the two sides of a connection, its reason is
/// reported.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    IntoStaticStr,
    VariantArray,
    Serialize,
    Deserialize,
)]
pub enum AllowReason {
    /// The node that sees the connection has neither the source pod nor the destination pod: other nodes judge.
    NotJudgedHere,
    /// The destination is the host network, and no pod on this node sends: hosts have no policy.
    HostNetwork,
    /// No policy isolates the pod in this direction.
    NotIsolated,
    /// The pod is still on flannel's bridge, where Calico enforces nothing.
    NotEnforced,
    /// The pod connects to its own address: the packet never leaves the pod.
    OwnAddress,
    /// The host of the pod is the source: kubelet, port-forward, `hostNetwork` pods of the same node.
    OwnNode,
    /// Neighbor discovery of IPv6 to the host passes before any policy.
    NeighborDiscovery,
    /// A rule of a policy matches.
    Rule,
    /// A rule of an administrator's policy matches.
    AdminRule,
    /// The connection was open before the policy. Its next one is judged.
    Established,
}

/// Why Calico drops a connection.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    IntoStaticStr,
    VariantArray,
    Serialize,
    Deserialize,
)]
pub enum RefuseReason {
    /// Policies isolate the pod, and none of their rules matches.
    NoRuleMatches,
    /// A rule of an administrator's policy denies.
    AdminRule,
    /// A pod sends packets of a tunnel: VXLAN to the port of Felix, or IPIP.
    Encapsulation,
    /// `DefaultEndpointToHostAction` of Felix is `DROP`.
    EndpointToHost,
}

/// Why no verdict is possible.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    IntoStaticStr,
    VariantArray,
    Serialize,
    Deserialize,
)]
pub enum UnknownReason {
    /// An address in a range of pods belongs to no known pod.
    AddressWithoutPod,
    /// More than one pod or node has the address.
    AddressOfSeveral,
    /// Pods had the address one after the other, and the verdicts on them differ.
    AddressReused,
    /// The node is not in the cluster.
    NodeMissing,
    /// The namespace of a pod is not in the cluster, so its labels are not known.
    NamespaceMissing,
    /// Source and destination may be exchanged: connection tracking began in the middle of the connection.
    AmbiguousDirection,
    /// Calico's data plane shows another source than the one that was seen.
    SourceChanges,
    /// Another node is the source. Its address under Calico is one of several, and the policies tell them apart.
    AddressOfNode,
    /// Another node is the source, and its tunnel address under Calico is not known.
    TunnelAddressMissing,
    /// The host's own firewall decides after the pod's egress policy: `DefaultEndpointToHostAction` is `RETURN`.
    EndpointToHost,
    /// Calico's selector language cannot express a selector, or gives it another meaning.
    UnreadableSelector,
    /// The protocol of a port is none of TCP, UDP and SCTP.
    UnreadablePort,
    /// A policy has more entries than are kept.
    PolicyTooLarge,
    /// A field of a policy cannot be read.
    UnreadablePolicy,
    /// Calico's own policies are not evaluated.
    CalicoPolicy,
}

macro_rules! names {
    ($($reason:ty),*) => {$(
        impl $reason {
            /// The name of the reason.
            pub fn as_str(self) -> &'static str {
                self.into()
            }
        }
    )*};
}

names!(AllowReason, RefuseReason, UnknownReason);

#[cfg(test)]
mod tests {
    use super::*;

    fn allowed(why: AllowReason) -> Verdict {
        Verdict::Allowed { why }
    }

    fn unknown() -> Verdict {
        Verdict::Unknown {
            why: UnknownReason::AddressWithoutPod,
            objects: Vec::new(),
        }
    }

    fn refused(direction: Direction) -> Verdict {
        Verdict::Refused {
            direction,
            policies: Vec::new(),
            why: RefuseReason::NoRuleMatches,
        }
    }

    #[test]
    fn a_refusal_is_certain_whatever_the_other_side_is() {
        for other in [allowed(AllowReason::Rule), unknown()] {
            assert_eq!(
                other.clone().and(refused(Direction::Ingress)),
                refused(Direction::Ingress)
            );
            assert_eq!(refused(Direction::Egress).and(other), refused(Direction::Egress));
        }
        assert_eq!(
            refused(Direction::Egress).and(refused(Direction::Ingress)),
            refused(Direction::Egress)
        );
    }

    #[test]
    fn an_unknown_side_makes_an_allowed_connection_unknown() {
        assert_eq!(allowed(AllowReason::Rule).and(unknown()), unknown());
        assert_eq!(unknown().and(allowed(AllowReason::Rule)), unknown());
        assert_eq!(
            allowed(AllowReason::Rule).and(allowed(AllowReason::NotIsolated)),
            allowed(AllowReason::Rule)
        );
    }

    #[test]
    fn reasons_have_the_names_of_their_variants() {
        assert_eq!(AllowReason::NotIsolated.as_str(), "NotIsolated");
        assert_eq!(RefuseReason::NoRuleMatches.as_str(), "NoRuleMatches");
        assert_eq!(UnknownReason::CalicoPolicy.as_str(), "CalicoPolicy");
        assert_eq!(Direction::Egress.as_str(), "Egress");
    }
}
