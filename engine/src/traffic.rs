//! Traffic as the gate: the continuous probes between pods, the count of lost probes, and the limits.
//!
//! 1. [`mesh`] chooses pairs of traffic pods, a constant number for each pod.
//! 2. [`pods`] decides which traffic pods a node has.
//! 3. [`stream`] counts the probes of one pod to one target over one protocol.
//! 4. [`gates`] judges the last seconds of a stream.
//! 5. [`watch`] decides whether enough nodes watch for a gate.

pub mod gates;
pub mod mesh;
pub mod pods;
pub mod stream;
pub mod watch;

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::{IntoStaticStr, VariantArray};

/// `Generation` is the network that a pod has its address from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Generation {
    /// The network that the migration replaces.
    Old,
    /// The network that the migration introduces.
    New,
}

/// `PathClass` is a class of path through the cluster.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
    IntoStaticStr,
    VariantArray,
)]
pub enum PathClass {
    /// Between nodes, from the old network to the old network.
    OldToOld,
    /// Between nodes, from the old network to the new network.
    OldToNew,
    /// Between nodes, from the new network to the old network.
    NewToOld,
    /// Between nodes, from the new network to the new network.
    NewToNew,
    /// On one node, between the two networks.
    SameNode,
    /// To the Service of the traffic pods.
    PodToService,
    /// To the cluster DNS, through its Service.
    PodToDns,
    /// To the API server, through its Service.
    PodToApi,
}

impl PathClass {
    /// Every class.
    pub const ALL: &'static [Self] = Self::VARIANTS;

    /// The class of a path between pods on two nodes.
    pub fn between(source: Generation, target: Generation) -> Self {
        match (source, target) {
            (Generation::Old, Generation::Old) => Self::OldToOld,
            (Generation::Old, Generation::New) => Self::OldToNew,
            (Generation::New, Generation::Old) => Self::NewToOld,
            (Generation::New, Generation::New) => Self::NewToNew,
        }
    }

    /// The class as written in metrics.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The class, for messages.
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

    /// The protocols of the probes on such a path.
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

/// `Protocol` is the protocol of a probe. Possible values: `Udp`: a small UDP packet. `LargeUdp`: a UDP packet as large as the
/// pod network carries, not fragmented, in both directions. `Tcp`: a new connection with one request and one response. `Dns`: a
/// DNS query over UDP; any response counts. `Connect`: a new TCP connection, closed at once.
#[derive(
    Clone,
    Copy,
    Debug,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
    IntoStaticStr,
)]
pub enum Protocol {
    /// A small UDP packet, answered by the expected pod.
    Udp,
    /// A UDP packet as large as the pod network carries, not fragmented, in both directions.
    LargeUdp,
    /// A new connection with one request and one response.
    Tcp,
    /// A DNS query over UDP. Any response counts.
    Dns,
    /// A new TCP connection, closed at once.
    Connect,
}

impl Protocol {
    /// The protocol as written in metrics.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// The protocol, for messages.
    pub fn words(self) -> &'static str {
        match self {
            Self::Udp => "UDP",
            Self::LargeUdp => "full-MTU UDP",
            Self::Tcp => "TCP",
            Self::Dns => "DNS",
            Self::Connect => "TCP connect",
        }
    }

    /// The number of ticks of [`TICK`] between two probes.
    pub fn ticks(self) -> u32 {
        match self {
            Self::Udp => 1,
            Self::LargeUdp | Self::Tcp | Self::Dns | Self::Connect => 5,
        }
    }
}

/// The interval of a traffic pod: a pod sends about 50 probes a second, in a cluster of any size.
pub const TICK: std::time::Duration = std::time::Duration::from_millis(100);

/// `Flow` is a path on which a traffic pod sends probes continuously.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Flow {
    /// `class` is the class of path. Possible values: `OldToOld`, `OldToNew`, `NewToOld` and `NewToNew`: between nodes, from the
    /// old or new network to the old or new network. `SameNode`: between the two networks on one node. `PodToService`: to the
    /// Service of the traffic pods. `PodToDns`: to the cluster DNS. `PodToApi`: to the API server.
    pub class: PathClass,
    /// `source` is the UID of the traffic pod that sends. The pod is on the node of this NodeMigration.
    pub source: String,
    /// `to` is the target for people, such as `node worker-2` or `Service kube-system/kube-dns`.
    pub to: String,
    /// `address` is the address of the target.
    #[schemars(with = "String")]
    pub address: IpAddr,
    /// `port` is the UDP and TCP port of the target.
    pub port: u16,
    /// `podUid` is the UID of the pod that must answer. Unset if any answer counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_uid: Option<String>,
}
