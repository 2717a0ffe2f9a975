//! `ConnectionSample`: the connections of the pods of one node, as its agent has seen them. The policy preview reads them.

#![expect(
    clippy::duplicated_attributes,
    reason = "each printcolumn has a type of its own"
)]

use std::net::IpAddr;

use jiff::Timestamp;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The highest value of `spec.capacity`. A status with so many connections has about 400 KiB.
pub const MAX_CAPACITY: u32 = 2000;

/// `ConnectionSampleSpec` is what the agent of a node samples. The coordinator writes it.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "replumb.dev",
    version = "v1alpha1",
    kind = "ConnectionSample",
    doc = "ConnectionSample has connections of the pods of one node, as connection tracking of the node has them. The object has the name of the node. The coordinator creates and deletes the object and writes its spec; the agent on the node writes its status.",
    plural = "connectionsamples",
    shortname = "csample",
    status = "ConnectionSampleStatus",
    derive = "PartialEq",
    printcolumn(name = "Migration", type_ = "string", json_path = ".spec.migration"),
    printcolumn(name = "Since", type_ = "date", json_path = ".status.since"),
    printcolumn(name = "Last", type_ = "date", json_path = ".status.last")
)]
#[x_kube(validation = Rule::new("self.nodeName == oldSelf.nodeName").message("nodeName is immutable"))]
#[serde(rename_all = "camelCase")]
pub struct ConnectionSampleSpec {
    /// `nodeName` is the name of the Node, and of this object. 1 to 253 characters. Immutable.
    #[schemars(length(min = 1, max = 253))]
    pub node_name: String,
    /// `migration` is the name of the Migration.
    pub migration: String,
    /// `capacity` is the maximum number of items of `status.connections`. 1 to 2000.
    #[schemars(range(min = 1, max = 2000))]
    pub capacity: u32,
    /// `ingress` is the list of addresses of pods of the node whose ingress a policy will restrict. Connections to them are
    /// sampled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub ingress: Vec<IpAddr>,
    /// `egress` is the list of addresses of pods of the node whose egress a policy will restrict. Connections from them are
    /// sampled.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub egress: Vec<IpAddr>,
}

/// `ConnectionSampleStatus` is what the agent has seen. The agent on the node writes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConnectionSampleStatus {
    /// `since` is the time of the first complete reading of connection tracking. Unset before. An agent that starts again counts from
    /// its own first reading.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub since: Option<Timestamp>,
    /// `last` is the time of the last complete reading when the agent wrote the status. The agent reads every 10 s, or less often if
    /// a reading takes longer than 0.5 s, and writes at most every 30 s: after five minutes if only times and counts have changed.
    /// Unset before the first complete reading.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub last: Option<Timestamp>,
    /// `problem` is why the last reading of connection tracking was not complete. Unset if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// `limitation` is why connections may be missing in `connections` although the readings were complete, such as those that began
    /// and ended between two readings, or why counts may be too small. Unset if no reason is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limitation: Option<String>,
    /// `replaced` is how many kinds of connections are at most missing in `connections`, because of `spec.capacity`.
    #[serde(default)]
    pub replaced: u64,
    /// `clientPorts` is the range of ports that the host gives to clients (`net.ipv4.ip_local_port_range`). Unset before the first
    /// reading.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_ports: Option<PortRange>,
    /// `connections` is the list of kinds of connections that the agent has seen, the most frequent first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub connections: Vec<SeenConnection>,
}

/// `PortRange` is a range of ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PortRange {
    /// `first` is the first port of the range.
    pub first: u16,
    /// `last` is the last port of the range.
    pub last: u16,
}

/// `SeenConnection` is one kind of connection: all connections with the same addresses, protocol and port of the server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SeenConnection {
    /// `protocol` is the number of the protocol, as assigned by IANA: 6 is TCP, 17 is UDP.
    pub protocol: u8,
    /// `source` is the address of the sender of the first packet.
    #[schemars(with = "String")]
    pub source: IpAddr,
    /// `sourcePort` is the port of the sender. Set only if `port` is unset and the protocol has ports: the sender may be the server
    /// then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_port: Option<u16>,
    /// `destination` is the address that received the first packet: that of the pod, if the packet was sent to a Service.
    #[schemars(with = "String")]
    pub destination: IpAddr,
    /// `port` is the port of the receiver. Unset if the protocol has no ports, or if it is one of `status.clientPorts`, the port of the
    /// sender is not, and the host has translated nothing: the first packet that was seen may be an answer then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// `isTranslated` is whether the host has changed an address or a port.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_translated: bool,
    /// `count` is how many of these connections were seen, at most.
    pub count: u64,
    /// `replied` is of how many an answer was seen, at least.
    pub replied: u64,
    /// `first` is the time at which the first one was seen, as far as known.
    #[schemars(with = "String")]
    pub first: Timestamp,
    /// `last` is the time at which the last one was seen.
    #[schemars(with = "String")]
    pub last: Timestamp,
}
