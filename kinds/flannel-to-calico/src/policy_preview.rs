//! The preview of network policies in the API.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `PolicyPreview` sets the preview of network policies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyPreview {
    /// `observeSeconds` is for how long the connections of each node are observed before the migration may start, in seconds, if
    /// network policies select pods. 0: the policies are listed, and no connection is observed. Defaults to 600. Maximum 604800.
    #[serde(default = "observe_seconds")]
    #[schemars(range(max = 604_800))]
    pub observe_seconds: u32,
    /// `acceptedDenials` is the list of network policies whose denials are accepted: connections that only they would refuse do
    /// not refuse the migration. `NAMESPACE/NAME` of a policy of a namespace, or `NAME` of a policy of the whole cluster. At most 1000
    /// items.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 1000),
        inner(
            length(max = 317),
            regex(pattern = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?/)?[a-z0-9]([-.a-z0-9]*[a-z0-9])?$")
        )
    )]
    pub accepted_denials: Vec<String>,
}

/// The default of `observeSeconds`.
fn observe_seconds() -> u32 {
    600
}

impl Default for PolicyPreview {
    fn default() -> Self {
        Self {
            observe_seconds: observe_seconds(),
            accepted_denials: Vec::new(),
        }
    }
}

/// `PolicyPreviewStatus` is what network policies would do with the connections that the agents have seen.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PolicyPreviewStatus {
    /// `unread` is the list of lists of policies or samples that could not be read, with the error. The other fields are not known
    /// then. At most 5 items of 512 bytes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<String>,
    /// `policies` is the number of network policies that begin to hold.
    #[serde(default)]
    pub policies: u32,
    /// `dormantPolicies` is the list of these policies, those that select the most pods first. At most 30 items.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dormant_policies: Vec<DormantPolicy>,
    /// `selectedPods` is the number of pods that at least one policy may restrict.
    #[serde(default)]
    pub selected_pods: u32,
    /// `since` is the time since which connections are observed. Unset if none are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub since: Option<Timestamp>,
    /// `observedSeconds` is for how many seconds the connections of each node are observed, at least. Nodes that got such pods in
    /// the second half of `observeSeconds` do not count.
    #[serde(default)]
    pub observed_seconds: u64,
    /// `connections` is the number of observed connections, by what the policies would do with them.
    #[serde(default)]
    pub connections: PreviewCounts,
    /// `refusedKinds` is the number of kinds of connections that would be refused: of pairs of workloads with a port and policies.
    #[serde(default)]
    pub refused_kinds: u32,
    /// `refused` is the list of connections that would be refused, the most frequent first. At most 20 items.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<RefusedConnections>,
    /// `unknown` is the list of reasons for which it is not known whether connections would be refused, the most frequent first.
    /// At most 5 items.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<UnknownConnections>,
    /// `missingKinds` is how many kinds of connections the agents have left out at most, because they had seen too many.
    #[serde(default)]
    pub missing_kinds: u64,
    /// `incompleteNodeCount` is the number of nodes that have not been observed for long enough.
    #[serde(default)]
    pub incomplete_node_count: u32,
    /// `incompleteNodes` is the list of these nodes, by name. At most 10 items.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub incomplete_nodes: Vec<String>,
}

/// `DormantPolicy` is a network policy that begins to hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DormantPolicy {
    /// `policy` is the kind and the name of the policy, such as `NetworkPolicy shop/db`.
    pub policy: String,
    /// `pods` is the number of pods that the policy selects. Unset if it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pods: Option<u32>,
    /// `ingress` is whether the policy restricts connections to these pods.
    #[serde(default)]
    pub ingress: bool,
    /// `egress` is whether the policy restricts connections from these pods.
    #[serde(default)]
    pub egress: bool,
}

/// `PreviewCounts` are numbers of connections. A connection between two nodes may count twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PreviewCounts {
    /// `allowed` is the number of connections that would be allowed.
    #[serde(default)]
    pub allowed: u64,
    /// `refused` is the number of connections that would be refused.
    #[serde(default)]
    pub refused: u64,
    /// `unknown` is the number of connections of which this is not known.
    #[serde(default)]
    pub unknown: u64,
    /// `unanswered` is the number of TCP connections without an answer. They fail without policies, and are not judged.
    #[serde(default)]
    pub unanswered: u64,
}

/// `RefusedConnections` are connections between two workloads that would be refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RefusedConnections {
    /// `client` is the workload, the node or the address that connects.
    pub client: String,
    /// `server` is the workload, the node or the address that is connected to.
    pub server: String,
    /// `protocol` is the protocol, such as `TCP`.
    pub protocol: String,
    /// `port` is the port of the server: of the pod, not of the Service. Unset for a protocol without ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// `direction` is the direction in which they would be refused. Possible values: `Ingress`: at the server. `Egress`: at the
    /// client.
    pub direction: String,
    /// `policies` is the list of policies that would refuse them. Empty if Calico refuses them without a policy. At most 3 items.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub policies: Vec<String>,
    /// `policyCount` is the number of these policies.
    #[serde(default)]
    pub policy_count: u32,
    /// `reason` is the reason. Possible values: `NoRuleMatches`: policies isolate the pod, and none of their rules allows the
    /// connection. `AdminRule`: a rule of a policy of the whole cluster denies. `Encapsulation`: a pod sends packets of a tunnel.
    /// `EndpointToHost`: Calico is set to drop packets from pods to their node.
    pub reason: String,
    /// `count` is how many such connections were seen, at most.
    pub count: u64,
    /// `last` is the time of the last one.
    #[schemars(with = "String")]
    pub last: Timestamp,
    /// `isAccepted` is whether `acceptedDenials` names all of its policies.
    #[serde(default)]
    pub is_accepted: bool,
}

/// `UnknownConnections` are connections of which it is not known whether they would be refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnknownConnections {
    /// `reason` is the reason, in `CamelCase`.
    pub reason: String,
    /// `count` is how many such connections were seen, at most.
    pub count: u64,
    /// `example` is one of them: client, server, port and protocol.
    pub example: String,
}
