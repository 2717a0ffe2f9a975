//! The node agent's side: what it looks for, and what it found on its host. In this kind of migration an agent changes nothing; what
//! of the kernel's tables counts is chosen in [`select`].

mod select;

use std::fmt::{self, Display, Formatter};
use std::net::IpAddr;

use ipnet::IpNet;
use jiff::Timestamp;
use schemars::JsonSchema;
pub use select::{IPVS_LINK, in_target};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use engine::document::hexadecimal;
use engine::drain::Pod;
use engine::found::Found;
use engine::kernel::{Address, Listed, Route, Rule};

/// What an agent looks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostSettings {
    /// What Services leave.
    #[serde(flatten)]
    pub left: Left,
    /// Ranges that Services come to: what shares an address with them is told of.
    #[schemars(with = "Vec<String>")]
    pub target: Vec<IpNet>,
    /// Whether pods and connections that use an address that is left are reported. They change all the time, and decide nothing before the
    /// ranges that are left are closed.
    #[serde(default)]
    pub report_users: bool,
    /// Which record has the ports that kube-proxy has to know; absent before the first question.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected_ports: Option<ExpectedPortsIn>,
}

/// How many addresses of load balancers that keep theirs agents are told of. Each `NodeMigration` has the list: with addresses of IPv6 as long
/// as they can be it has 170 KiB of it.
pub const MOST_KEPT: usize = 4_000;

/// Addresses that Services leave: some ranges but for what stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Left {
    /// Ranges that Services leave: whoever was told an address of them, or has a connection to one, is told of.
    #[serde(rename = "left")]
    #[schemars(with = "Vec<String>")]
    pub ranges: Vec<IpNet>,
    /// Addresses of those ranges that Services keep: load balancers. Whoever uses them may.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub kept: Vec<IpAddr>,
}

/// The record that has ports for all nodes. A list in each `NodeMigration` would be stored once a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExpectedPortsIn {
    /// Name of the `MigrationRecord`.
    #[schemars(regex(pattern = r"^[-0-9a-z]{1,253}$"))]
    pub record: String,
}

/// A question to the agents of all nodes: for which of these ports does kube-proxy have no rule?
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Question {
    /// When it was asked. The same ports may be asked about again: an answer to the question before is none to this one.
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
        // Each line has an address, a protocol and a number: none of them holds the end of a line.
        for (of, ports) in [("known", &ports.known), ("balanced", &ports.balanced)] {
            for ServicePort {
                address,
                protocol,
                port,
            } in ports
            {
                hasher.update(format!("{of} {address} {protocol} {port}\n"));
            }
        }
        let mut digest = hexadecimal(&hasher.finalize());
        digest.truncate(32);
        digest
    }
}

/// What is looked for in kube-proxy's rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExpectedPorts {
    /// What kube-proxy has to know: it is looked for in the kernel's rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known: Vec<ServicePort>,
    /// What it has to know as the address of a load balancer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub balanced: Vec<ServicePort>,
}

impl ExpectedPorts {
    /// Whether there is no question.
    pub fn is_empty(&self) -> bool {
        self.known.is_empty() && self.balanced.is_empty()
    }

    /// Whether all of these questions are among its own.
    pub fn covers(&self, other: &Self) -> bool {
        other.known.iter().all(|port| self.known.contains(port))
            && other.balanced.iter().all(|port| self.balanced.contains(port))
    }
}

impl Left {
    /// Whether this address is one of them.
    pub fn has(&self, address: IpAddr) -> bool {
        self.ranges.iter().any(|range| range.contains(&address)) && !self.kept.contains(&address)
    }
}

/// A port of a Service at one of its addresses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ServicePort {
    /// The address.
    #[schemars(with = "String")]
    pub address: IpAddr,
    /// `TCP`, `UDP` or `SCTP`, as the API writes it.
    pub protocol: String,
    /// The port of the Service.
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

/// How kube-proxy leads connections to pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ProxyMode {
    /// By chains of iptables, whichever backend they are in.
    #[serde(rename = "iptables")]
    Iptables,
    /// By a table of nftables.
    #[serde(rename = "nftables")]
    Nftables,
    /// By the kernel's virtual servers.
    #[serde(rename = "ipvs")]
    Ipvs,
}

impl ProxyMode {
    /// The mode as kube-proxy's configuration has it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
            Self::Ipvs => "ipvs",
        }
    }
}

/// How kube-proxy knows which connections are of pods (`detectLocalMode`); by nothing where both lists are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalTraffic {
    /// Ranges that pods have their addresses of.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Vec<String>")]
    pub ranges: Vec<IpNet>,
    /// Links by which pods are connected to the host; `+` and `*` at the end stand for anything.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<String>,
}

impl LocalTraffic {
    /// Whether pods of these ranges are known as such.
    pub fn knows<'range>(&self, pods: impl IntoIterator<Item = &'range IpNet>) -> bool {
        let is_known = |pods: &IpNet| self.ranges.iter().any(|range| range.contains(pods));
        !self.links.is_empty() || (!self.ranges.is_empty() && pods.into_iter().all(is_known))
    }
}

/// What an agent found on its host. Every list is bounded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostFacts {
    /// How kube-proxy leads connections, by the kernel's own rules; malformed where there are rules of two modes.
    pub proxy_mode: Found<ProxyMode>,
    /// Those of `known` and `balanced` that kube-proxy has no such rule for; malformed where its rules cannot be read, and where there
    /// are rules of two modes: nobody knows then which of them packets go by.
    pub unknown: Found<Vec<ServicePort>>,
    /// The digest of the question that `unknown` answers; absent where the settings name no record, or it is not known what that holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = r"^[0-9a-f]{1,64}$"))]
    pub expected_digest: Option<String>,
    /// How kube-proxy knows connections of pods, by the rules of the first Service of each family; absent where there is none.
    #[serde(default)]
    pub local_traffic: Found<LocalTraffic>,
    /// The kubelet's `clusterDNS`, as it runs: what new pods are told.
    #[schemars(with = "Found<Vec<String>>")]
    pub cluster_dns: Found<Vec<IpAddr>>,
    /// Host, or address, by which this agent reaches the API server.
    pub api_server: String,
    /// What shares an address with the new ranges.
    pub in_target: InTarget,
    /// Pods of this node that were told an address of the ranges that are left.
    pub carriers: Found<Carriers>,
    /// Connections through this host, of TCP, UDP and SCTP, that were answered, to an address of the ranges that are left;
    /// malformed where the kernel does not list them.
    pub connections: Found<Listed<Connection>>,
}

/// What shares an address with the new ranges; default routes aside, and what kube-proxy has there.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InTarget {
    /// Routes.
    #[serde(default, skip_serializing_if = "Listed::is_empty")]
    pub routes: Listed<Route>,
    /// Addresses of links, with the networks on them.
    #[serde(default, skip_serializing_if = "Listed::is_empty")]
    pub addresses: Listed<Address>,
    /// Rules that name a part of them.
    #[serde(default, skip_serializing_if = "Listed::is_empty")]
    pub rules: Listed<Rule>,
}

/// Whether what an agent found now is news: connections come and go, and wait a little.
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
    // The first one and the last one decide.
    without(before) != without(after) || (count(before) == 0) != (count(after) == 0)
}

/// Most pods that are named one by one; more than any kubelet runs.
pub const MOST_CARRIERS: usize = 500;

/// Pods that were told an address that is left, as their processes say it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Carriers {
    /// Each once, in the order of their UIDs; at most 500.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<Carrier>,
    /// UIDs of pods of which a process cannot be looked into, or says nothing of what it was told; at most 500.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(inner(regex(pattern = r"^[-0-9A-Za-z]{1,128}$")))]
    pub unread: Vec<String>,
    /// Why the first of those cannot be; empty where every one can.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why_unread: String,
}

impl Carriers {
    /// UIDs of those of these pods, which are the node's, that were told an address that is left: an agent speaks of the pods of its own
    /// node, and by its word no other is evicted. Who cannot be looked into was told what everybody was told when it was made: before
    /// `since`, that is an address that is left.
    pub fn told<'pods>(
        &self,
        pods: impl IntoIterator<Item = &'pods Pod>,
        since: Timestamp,
    ) -> Vec<&'pods str> {
        let named = |pod: &Pod| self.pods.iter().any(|carrier| carrier.pod_uid == pod.uid);
        let is_older =
            |pod: &Pod| self.unread.contains(&pod.uid) && pod.made_at.is_none_or(|made| made < since);
        pods.into_iter()
            .filter(|pod| named(pod) || is_older(pod))
            .map(|pod| pod.uid.as_str())
            .collect()
    }
}

/// One pod that was told an address that is left.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Carrier {
    /// UID of the pod.
    #[schemars(regex(pattern = r"^[-0-9A-Za-z]{1,128}$"))]
    pub pod_uid: String,
    /// Where it says it.
    pub told_by: ToldBy,
    /// The address.
    #[schemars(with = "String")]
    pub address: IpAddr,
}

/// By what a pod was told an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ToldBy {
    /// A variable such as `KUBERNETES_SERVICE_HOST` in the environment of a process.
    Environment,
    /// A `nameserver` in its `/etc/resolv.conf`.
    Resolver,
}

/// One connection to an address that is left, as the kernel tracks it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Connection {
    /// Who asked.
    #[schemars(with = "String")]
    pub source: IpAddr,
    /// Whom it asked.
    pub service: ServicePort,
}

impl Display for Connection {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} to {}", self.source, self.service)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(address: &str) -> ServicePort {
        ServicePort {
            address: address.parse().unwrap(),
            protocol: "TCP".to_owned(),
            port: 443,
        }
    }

    #[test]
    fn ports_are_told_as_people_write_them() {
        assert_eq!(port("10.96.0.1").to_string(), "10.96.0.1:443/TCP");
        assert_eq!(port("fd00:96::1").to_string(), "[fd00:96::1]:443/TCP");
    }

    fn facts() -> HostFacts {
        HostFacts {
            proxy_mode: Found::Present(ProxyMode::Iptables),
            unknown: Found::Present(Vec::new()),
            api_server: "10.96.0.1".to_owned(),
            ..HostFacts::default()
        }
    }

    #[test]
    fn what_load_balancers_keep_is_not_left() {
        let left = Left {
            ranges: vec!["10.96.0.0/12".parse().unwrap()],
            kept: vec!["10.96.3.9".parse().unwrap()],
        };
        for (address, expected) in [("10.96.0.1", true), ("10.96.3.9", false), ("172.30.0.1", false)] {
            assert_eq!(left.has(address.parse().unwrap()), expected, "{address}");
        }
    }

    #[test]
    fn pods_are_known_by_every_range_of_theirs_or_by_their_links() {
        let nets =
            |texts: &[&str]| -> Vec<IpNet> { texts.iter().map(|text| text.parse().unwrap()).collect() };
        let by = |ranges: &[&str], links: &[&str]| LocalTraffic {
            ranges: nets(ranges),
            links: links.iter().map(|link| (*link).to_owned()).collect(),
        };
        let pods = nets(&["10.244.1.0/24", "10.244.2.0/24"]);
        assert!(by(&["10.244.0.0/16"], &[]).knows(&pods));
        assert!(!by(&["10.244.1.0/24"], &[]).knows(&pods));
        assert!(by(&[], &["cali+"]).knows(&pods));
        assert!(!by(&[], &[]).knows(&pods));
        assert!(!by(&[], &[]).knows(&[]), "nobody says where pods are");
    }

    fn connections(sources: &[&str]) -> Found<Listed<Connection>> {
        let connection = |source: &&str| Connection {
            source: source.parse().unwrap(),
            service: port("10.96.0.1"),
        };
        Found::Present(sources.iter().map(connection).collect())
    }

    #[test]
    fn connections_alone_are_no_news_but_the_first_and_the_last() {
        let with = |found| HostFacts {
            connections: found,
            ..facts()
        };
        let (none, one) = (facts(), with(connections(&["10.244.1.5"])));
        let two = with(connections(&["10.244.1.5", "10.244.1.6"]));
        assert!(is_news(&none, &one) && is_news(&one, &none));
        assert!(!is_news(&one, &two) && !is_news(&two, &one));
        assert!(!is_news(&none, &none));
        let blind = with(Found::Malformed("not listed".to_owned()));
        assert!(is_news(&none, &blind) && is_news(&two, &blind));
    }

    #[test]
    fn everything_else_is_news() {
        let carriers = Carriers {
            unread: vec!["u".to_owned()],
            ..Carriers::default()
        };
        for after in [
            HostFacts {
                unknown: Found::Present(vec![port("10.96.0.1")]),
                ..facts()
            },
            HostFacts {
                carriers: Found::Present(carriers),
                ..facts()
            },
            HostFacts {
                cluster_dns: Found::Present(vec!["10.96.0.10".parse().unwrap()]),
                ..facts()
            },
            HostFacts {
                proxy_mode: Found::Absent,
                ..facts()
            },
        ] {
            assert!(is_news(&facts(), &after), "{after:?}");
        }
    }

    #[test]
    fn an_agent_speaks_of_the_pods_of_its_own_node() {
        let carrier = |uid: &str| Carrier {
            pod_uid: uid.to_owned(),
            told_by: ToldBy::Environment,
            address: "10.96.0.1".parse().unwrap(),
        };
        let carriers = Carriers {
            pods: vec![carrier("own"), carrier("of-another-node")],
            unread: vec![
                "old".to_owned(),
                "new".to_owned(),
                "old-of-another-node".to_owned(),
            ],
            why_unread: String::new(),
        };
        let pod = |uid: &str, made: i64| Pod {
            uid: uid.to_owned(),
            made_at: Some(Timestamp::from_second(made).unwrap()),
            ..Pod::default()
        };
        let here = [pod("own", 20), pod("old", 5), pod("new", 20), pod("silent", 5)];
        let since = Timestamp::from_second(10).unwrap();
        assert_eq!(carriers.told(&here, since), ["own", "old"]);
    }
}
