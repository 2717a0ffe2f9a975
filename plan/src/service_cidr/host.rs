//! The node agent's side: what it looks for, and what it found on its host. In this kind of migration an agent changes nothing.

use std::fmt::{self, Display, Formatter};
use std::net::IpAddr;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::found::Found;
use crate::pod_cidr::host::{Address, Listed, Route, Rule, Tables, in_new};

/// What an agent looks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostSettings {
    /// Ranges that Services leave: whoever was told an address of them, or has a connection to one, is told of.
    #[schemars(with = "Vec<String>")]
    pub left: Vec<IpNet>,
    /// Ranges that Services come to: what shares an address with them is told of.
    #[schemars(with = "Vec<String>")]
    pub target: Vec<IpNet>,
    /// What kube-proxy has to know: it is looked for in the kernel's rules.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known: Vec<ServicePort>,
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

/// What an agent found on its host. Every list is bounded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostFacts {
    /// How kube-proxy leads connections, by the kernel's own rules; malformed where there are rules of two modes.
    pub proxy_mode: Found<ProxyMode>,
    /// Those of `known` that kube-proxy has no rule for; malformed where its rules cannot be read.
    pub unknown: Found<Vec<ServicePort>>,
    /// The kubelet's `clusterDNS`, as it runs: what new pods are told.
    #[schemars(with = "Found<Vec<String>>")]
    pub cluster_dns: Found<Vec<IpAddr>>,
    /// Host, or address, by which this agent reaches the API server.
    pub api_server: String,
    /// What shares an address with the new ranges.
    pub in_target: InTarget,
    /// Pods of this node that were told an address of the ranges that are left.
    pub carriers: Found<Carriers>,
    /// Connections through this host to an address of the ranges that are left; malformed where the kernel does not list them.
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

/// Chooses what shares an address with the ranges that Services come to.
pub fn in_target(target: &[IpNet], tables: &Tables) -> InTarget {
    let mut found = InTarget::default();
    for range in target {
        let shares = in_new(range, tables);
        for routes in [shares.routes, shares.announced] {
            found.routes.first.extend(routes.first);
            found.routes.more = found.routes.more.saturating_add(routes.more);
        }
        // kube-proxy's own, in mode ipvs: another check tells of that.
        let others = shares
            .addresses
            .first
            .into_iter()
            .filter(|address| address.link != IPVS_LINK);
        found.addresses.first.extend(others);
        found.addresses.more = found.addresses.more.saturating_add(shares.addresses.more);
        found.rules.first.extend(shares.rules.first);
        found.rules.more = found.rules.more.saturating_add(shares.rules.more);
    }
    found
}

/// The link on which kube-proxy has every address of a Service in mode ipvs.
const IPVS_LINK: &str = "kube-ipvs0";

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
    /// UIDs of pods whose processes cannot be looked into, and the kernel's word for the first; at most 500.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unread: Vec<String>,
    /// Why the first of those cannot be looked into; empty where every one can.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why_unread: String,
}

/// One pod that was told an address that is left.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Carrier {
    /// UID of the pod.
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

    #[test]
    fn ports_are_told_as_people_write_them() {
        let port = |address: &str| ServicePort {
            address: address.parse().unwrap(),
            protocol: "TCP".to_owned(),
            port: 443,
        };
        assert_eq!(port("10.96.0.1").to_string(), "10.96.0.1:443/TCP");
        assert_eq!(port("fd00:96::1").to_string(), "[fd00:96::1]:443/TCP");
    }
}
