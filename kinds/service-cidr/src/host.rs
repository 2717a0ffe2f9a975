//! The part of the agent: its settings and its facts. In this kind of migration an agent changes nothing; the relevant entries
//! of the kernel's tables are selected in `select`.

mod select;

use std::fmt::{self, Display, Formatter};
use std::net::IpAddr;

use data_encoding::HEXLOWER;
use ipnet::IpNet;
use jiff::Timestamp;
use schemars::JsonSchema;
pub use select::{IPVS_LINK, in_target};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use strum::IntoStaticStr;

use engine::drain::Pod;
use engine::found::Found;
use engine::kernel::{Address, Listed, Route, Rule};
use engine::local_traffic::LocalTraffic;

/// `serviceCidr` is what the agent reports in `status.serviceCidr`, for migrations of this kind. The agent changes nothing on its
/// host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostSettings {
    /// The addresses that Services leave.
    #[serde(flatten)]
    pub source: SourceAddresses,
    /// `target` is the list of ranges that Services move to, in CIDR notation. During a rollback, these are the old ranges.
    #[schemars(with = "Vec<String>")]
    pub target: Vec<IpNet>,
    /// `reportUsers` is whether the agent reports the pods and connections that use addresses of `source`. The coordinator sets
    /// it to true when the source ranges assign no more addresses. Defaults to false.
    #[serde(default)]
    pub report_users: bool,
    /// `expectedPorts` is where the ports are that kube-proxy must have rules for. Unset before the first question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_ports: Option<ExpectedPortsReference>,
}

/// Maximum number of addresses that load balancers keep. Each `NodeMigration` contains the list: with IPv6 addresses of maximum
/// length it has 170 KiB.
pub const MAX_EXCLUDED: usize = 4_000;

/// `SourceAddresses` are the addresses that Services leave: ranges, without the addresses that Services keep.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SourceAddresses {
    /// `source` is the list of ranges that Services leave, in CIDR notation. During a rollback, these are the new ranges.
    #[serde(rename = "source")]
    #[schemars(with = "Vec<String>")]
    pub ranges: Vec<IpNet>,
    /// `excluded` is the list of addresses in these ranges that Services of type `LoadBalancer` keep. Their use is not reported.
    /// At most 4000 items.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub excluded: Vec<IpAddr>,
}

/// `ExpectedPortsReference` is where the ports are that kube-proxy must have rules for. All NodeMigrations name the same record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExpectedPortsReference {
    /// `record` is the name of the `MigrationRecord`. 1 to 253 lower case letters, digits and hyphens.
    #[schemars(regex(pattern = r"^[-0-9a-z]{1,253}$"))]
    pub record: String,
}

/// `Question` is the question to all agents for which of these ports kube-proxy has no rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Question {
    /// `askedAt` is the time of the question. An answer to an earlier question about the same ports does not count.
    #[schemars(with = "String")]
    pub asked_at: Timestamp,
    /// The ports.
    #[serde(flatten)]
    pub ports: ExpectedPorts,
}

impl Question {
    /// The first half of the SHA-256 of the question, hexadecimal.
    pub fn digest(&self) -> String {
        let Self { asked_at, ports } = self;
        let mut hasher = Sha256::new();
        hasher.update(format!("{asked_at}\n"));
        // Each line has an address, a protocol and a number: none of them contains a newline.
        for (of, ports) in [
            ("servicePorts", &ports.service_ports),
            ("loadBalancerPorts", &ports.load_balancer_ports),
        ] {
            for ServicePort {
                address,
                protocol,
                port,
            } in ports
            {
                hasher.update(format!("{of} {address} {protocol} {port}\n"));
            }
        }
        HEXLOWER.encode(&hasher.finalize()[..16])
    }
}

/// `ExpectedPorts` are the ports of Services that agents look for in the rules of kube-proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExpectedPorts {
    /// `servicePorts` is the list of ports that kube-proxy must have a rule for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub service_ports: Vec<ServicePort>,
    /// `loadBalancerPorts` is the list of ports that kube-proxy must have a rule for as the address of a load balancer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub load_balancer_ports: Vec<ServicePort>,
}

impl ExpectedPorts {
    /// Whether the question has no ports.
    pub fn is_empty(&self) -> bool {
        self.service_ports.is_empty() && self.load_balancer_ports.is_empty()
    }

    /// Whether it contains all ports of `other`.
    pub fn covers(&self, other: &Self) -> bool {
        other
            .service_ports
            .iter()
            .all(|port| self.service_ports.contains(port))
            && other
                .load_balancer_ports
                .iter()
                .all(|port| self.load_balancer_ports.contains(port))
    }
}

impl SourceAddresses {
    /// Whether Services leave this address.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.ranges.iter().any(|range| range.contains(&address)) && !self.excluded.contains(&address)
    }
}

/// `ServicePort` is a port of a Service at one of its addresses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServicePort {
    /// `address` is the address.
    #[schemars(with = "String")]
    pub address: IpAddr,
    /// `protocol` is `TCP`, `UDP` or `SCTP`.
    pub protocol: String,
    /// `port` is the port of the Service.
    pub port: u16,
}

impl Display for ServicePort {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            address,
            protocol,
            port,
        } = self;
        match address {
            IpAddr::V4(_) => write!(formatter, "{address}:{port}/{protocol}"),
            IpAddr::V6(_) => write!(formatter, "[{address}]:{port}/{protocol}"),
        }
    }
}

/// `ProxyMode` is the mode of kube-proxy. Possible values: `iptables`, `nftables`, `ipvs`.
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
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum ProxyMode {
    /// Chains of iptables, in either backend.
    Iptables,
    /// A table of nftables.
    Nftables,
    /// Virtual servers of the kernel.
    Ipvs,
}

impl ProxyMode {
    /// The mode as written in kube-proxy's configuration.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// `serviceCidr` is what the agent has found about Services on its host. Unset if the host cannot be read, and if
/// `spec.serviceCidr` is unset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostFacts {
    /// `proxyMode` is the mode of kube-proxy, read from the rules in the kernel. `malformed` if there are rules of two modes.
    pub proxy_mode: Found<ProxyMode>,
    /// `missingPorts` is the list of ports in `servicePorts` and `loadBalancerPorts` that kube-proxy has no rule for. `malformed`
    /// if the rules or the question cannot be read, or if there are rules of two modes.
    pub missing_ports: Found<Vec<ServicePort>>,
    /// `expectedDigest` is the digest of the question that `unknown` answers. Unset if the agent was asked no question, or has
    /// not read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9a-f]{1,64}$"))]
    pub expected_digest: Option<String>,
    /// `localTraffic` is how kube-proxy recognizes connections of pods, read from the rules of the first Service of each address
    /// family.
    #[serde(default)]
    pub local_traffic: Found<LocalTraffic>,
    /// `clusterDns` is `clusterDNS` of the running kubelet: the name servers that new pods receive.
    #[schemars(with = "Found<Vec<String>>")]
    pub cluster_dns: Found<Vec<IpAddr>>,
    /// `apiServer` is the host name or address by which the agent reaches the API server.
    pub api_server: String,
    /// `target` is what overlaps the ranges that Services move to.
    pub target: TargetFacts,
    /// `podsWithSourceAddresses` is the list of pods on this node that have received an address of `left`. `malformed` if the
    /// agent cannot read the processes of pods.
    pub pods_with_source_addresses: Found<PodsWithSourceAddresses>,
    /// `connections` is the list of answered TCP, UDP and SCTP connections through this host to addresses of `source`.
    /// `malformed` if the kernel does not list its connections.
    pub connections: Found<Listed<Connection>>,
}

/// `TargetFacts` is what overlaps the ranges that Services move to, without default routes and without what kube-proxy has there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetFacts {
    /// `routes` is the list of routes.
    #[serde(default, skip_serializing_if = "Listed::is_empty")]
    pub routes: Listed<Route>,
    /// `addresses` is the list of addresses of links.
    #[serde(default, skip_serializing_if = "Listed::is_empty")]
    pub addresses: Listed<Address>,
    /// `rules` is the list of policy routing rules with a part of the ranges.
    #[serde(default, skip_serializing_if = "Listed::is_empty")]
    pub rules: Listed<Rule>,
}

/// Whether the agent reports at once: changes of only connections are reported later.
pub fn is_news(before: &HostFacts, after: &HostFacts) -> bool {
    let without = |facts: &HostFacts| HostFacts {
        connections: match &facts.connections {
            Found::Present(_) => Found::Absent,
            other => other.clone(),
        },
        ..facts.clone()
    };
    let count = |facts: &HostFacts| match &facts.connections {
        Found::Present(connections) => connections.count(),
        Found::Absent | Found::Malformed(_) => 0,
    };
    // The first and the last connection count.
    without(before) != without(after) || (count(before) == 0) != (count(after) == 0)
}

/// Maximum number of listed pods; more than any kubelet runs.
pub const MOST_CARRIERS: usize = 500;

/// `PodsWithSourceAddresses` are pods that have received an address of the source ranges (the ranges that Services leave).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodsWithSourceAddresses {
    /// `pods` is the list of these pods, ordered by UID. At most 500 items.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<PodWithSourceAddress>,
    /// `unread` is the list of pods, by UID, of which the agent cannot read a process, or whose processes do not show which
    /// addresses they have received. At most 500 items.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = r"^[-0-9A-Za-z]{1,128}$")))]
    pub unread: Vec<String>,
    /// `unreadReason` is the error for the first of `unread`. Empty if `unread` is.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub unread_reason: String,
}

impl PodsWithSourceAddresses {
    /// UIDs of those of `pods` that have received a source address. `pods` are the pods of the agent's node: its report must
    /// not cause the eviction of other pods. A pod whose processes cannot be read counts if it was created before `since`, when
    /// pods received source addresses.
    pub fn pods_to_restart<'pods>(
        &self,
        pods: impl IntoIterator<Item = &'pods Pod>,
        since: Timestamp,
    ) -> Vec<&'pods str> {
        let named = |pod: &Pod| {
            self.pods
                .iter()
                .any(|with_old_address| with_old_address.pod_uid == pod.uid)
        };
        let is_older =
            |pod: &Pod| self.unread.contains(&pod.uid) && pod.made_at.is_none_or(|made| made < since);
        pods.into_iter()
            .filter(|pod| named(pod) || is_older(pod))
            .map(|pod| pod.uid.as_str())
            .collect()
    }
}

/// `PodWithSourceAddress` is a pod that has received an address of the source ranges.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodWithSourceAddress {
    /// `podUid` is the UID of the pod.
    #[schemars(regex(pattern = r"^[-0-9A-Za-z]{1,128}$"))]
    pub pod_uid: String,
    /// `origin` is where the agent has found the address. Possible values: `Environment`: an environment variable of a process,
    /// such as `KUBERNETES_SERVICE_HOST`. `Resolver`: a name server in `/etc/resolv.conf`.
    pub origin: AddressOrigin,
    /// `address` is the address.
    #[schemars(with = "String")]
    pub address: IpAddr,
}

/// `AddressOrigin` is where a pod has an address from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum AddressOrigin {
    /// An environment variable of a process, such as `KUBERNETES_SERVICE_HOST`.
    Environment,
    /// A `nameserver` in `/etc/resolv.conf`.
    Resolver,
}

/// `Connection` is a connection to an address of the source ranges, as the kernel tracks it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Connection {
    /// `source` is the address of the client.
    #[schemars(with = "String")]
    pub source: IpAddr,
    /// `service` is the port of the Service that the client has connected to.
    pub service: ServicePort,
}

impl Display for Connection {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} to {}", self.source, self.service)
    }
}
#[cfg(test)]
mod tests;
