//! Traffic as the gate: who probes whom without pause, what counts as lost, and how much may be.
//!
//! 1. [`mesh`] chooses pairs of traffic pods, so that each pod has the same few however large the cluster is.
//! 2. [`pods`] says which traffic pods a node has.
//! 3. [`stream`] counts what one pod sends to one target over one protocol.
//! 4. [`gates`] judges the last seconds of a stream.
//! 5. [`watch`] says whether so many nodes watch that all this is a gate.

pub mod gates;
pub mod mesh;
pub mod pods;
pub mod stream;
pub mod watch;

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Which of the two networks gave a pod its address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Generation {
    /// The network that is left.
    Old,
    /// The network that is gone to.
    New,
}

/// A kind of path through the cluster: its packets take the same kind of way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum PathClass {
    /// Between nodes, from a pod of the old network to another one.
    OldToOld,
    /// Between nodes, from the old network to the new one.
    OldToNew,
    /// Between nodes, from the new network to the old one.
    NewToOld,
    /// Between nodes, from a pod of the new network to another one.
    NewToNew,
    /// On one node, between the two networks.
    SameNode,
    /// To a Service, and whichever of its pods answers.
    PodToService,
    /// To the cluster's DNS, by its Service.
    PodToDns,
    /// To the API server, by its Service.
    PodToApi,
}

impl PathClass {
    /// Every class.
    pub const ALL: [Self; 8] = [
        Self::OldToOld,
        Self::OldToNew,
        Self::NewToOld,
        Self::NewToNew,
        Self::SameNode,
        Self::PodToService,
        Self::PodToDns,
        Self::PodToApi,
    ];

    /// The class of a path between pods on two nodes.
    pub fn between(source: Generation, target: Generation) -> Self {
        match (source, target) {
            (Generation::Old, Generation::Old) => Self::OldToOld,
            (Generation::Old, Generation::New) => Self::OldToNew,
            (Generation::New, Generation::Old) => Self::NewToOld,
            (Generation::New, Generation::New) => Self::NewToNew,
        }
    }

    /// The class as it stands in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::OldToOld => "OldToOld",
            Self::OldToNew => "OldToNew",
            Self::NewToOld => "NewToOld",
            Self::NewToNew => "NewToNew",
            Self::SameNode => "SameNode",
            Self::PodToService => "PodToService",
            Self::PodToDns => "PodToDns",
            Self::PodToApi => "PodToApi",
        }
    }

    /// The class as a person says it.
    pub fn words(self) -> &'static str {
        match self {
            Self::OldToOld => "old→old",
            Self::OldToNew => "old→new",
            Self::NewToOld => "new→old",
            Self::NewToNew => "new→new",
            Self::SameNode => "old↔new on one node",
            Self::PodToService => "pod→Service",
            Self::PodToDns => "pod→DNS",
            Self::PodToApi => "pod→API server",
        }
    }

    /// What is sent on such a path.
    pub fn protocols(self) -> &'static [Protocol] {
        match self {
            Self::OldToOld | Self::OldToNew | Self::NewToOld | Self::NewToNew | Self::SameNode => {
                &[Protocol::Udp, Protocol::LargeUdp, Protocol::Tcp]
            }
            Self::PodToService => &[Protocol::Tcp],
            Self::PodToDns => &[Protocol::Dns],
            Self::PodToApi => &[Protocol::Connect],
        }
    }
}

/// What one probe is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Protocol {
    /// A small datagram, answered by the pod that is meant.
    Udp,
    /// A datagram as large as the pod network carries, with "do not fragment", in both directions.
    LargeUdp,
    /// A new connection, a line and its answer.
    Tcp,
    /// A question to a DNS server over UDP; any answer counts.
    Dns,
    /// A new connection, closed at once.
    Connect,
}

impl Protocol {
    /// The protocol as it stands in metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Udp => "Udp",
            Self::LargeUdp => "LargeUdp",
            Self::Tcp => "Tcp",
            Self::Dns => "Dns",
            Self::Connect => "Connect",
        }
    }

    /// The protocol as a person says it.
    pub fn words(self) -> &'static str {
        match self {
            Self::Udp => "UDP",
            Self::LargeUdp => "full-MTU UDP",
            Self::Tcp => "TCP",
            Self::Dns => "DNS",
            Self::Connect => "TCP connect",
        }
    }

    /// One probe in how many ticks of [`TICK`].
    pub fn ticks(self) -> u32 {
        match self {
            Self::Udp => 1,
            Self::LargeUdp | Self::Tcp | Self::Dns | Self::Connect => 5,
        }
    }
}

/// The beat of a traffic pod. With it a pod sends about 50 probes a second, in a cluster of any size.
pub const TICK: std::time::Duration = std::time::Duration::from_millis(100);

/// What one traffic pod sends to one address without pause.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Flow {
    /// The kind of path.
    pub class: PathClass,
    /// UID of the traffic pod that sends; it is on the node of the NodeMigration.
    pub source: String,
    /// Whom it sends to, as a person says it: `node worker-2` or `Service kube-system/kube-dns`.
    pub to: String,
    /// Address that it sends to.
    #[schemars(with = "String")]
    pub address: IpAddr,
    /// UDP and TCP port.
    pub port: u16,
    /// UID of the pod that has to answer; absent where any answer counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
}
