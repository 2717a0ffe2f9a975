//! The part of the agent: its settings, its facts, and their evaluation. In this kind of migration an agent changes only the
//! addresses of `kept`. Kernel and files are read in `agent`; the relevant parts are selected in `select`.

mod conflist;
mod kept;
mod select;

use std::collections::BTreeSet;
use std::net::IpAddr;

pub use conflist::{Conflist, conflist};
use engine::kernel::{Address, Device, Listed, Route, Rule};
use engine::local_traffic::LocalTraffic;
use ipnet::IpNet;
pub use kept::{AddressChange, ChangedTunnelAddress, KEPT_LABEL, LOOPBACK, LinkAddress, changes, refused};
use schemars::JsonSchema;
pub use select::facts;
use serde::{Deserialize, Serialize};

use engine::found::Found;

/// `podCidr` is what the agent reports in `status.podCidr`, for migrations of this kind. The agent changes nothing on its host
/// but the addresses in `tunnelAddresses`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostSettings {
    /// `from` is the range that pods leave, in CIDR notation. During a rollback, it is the new range.
    #[schemars(with = "String")]
    pub from: IpNet,
    /// `to` is the range that pods move to, in CIDR notation. During a rollback, it is the old range.
    #[schemars(with = "String")]
    pub to: IpNet,
    /// `mtu` is the MTU of pods, in bytes, for the largest probes. Defaults to 1280.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// `cniConfigurationDirectory` is the CNI configuration directory on the host. Defaults to `/etc/cni/net.d`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cni_configuration_directory: Option<String>,
    /// `tunnelAddresses` is the list of tunnel addresses of this node that change. While an item is in the list, the agent keeps
    /// its old address on the loopback link; the agent removes that address when the item is removed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tunnel_addresses: Vec<ChangedTunnelAddress>,
}

/// `podCidr` is what the agent has found in both ranges on its host. Unset if the host cannot be read, and if `spec.podCidr` is
/// unset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostFacts {
    /// `conflist` is the CNI configuration that the container runtime uses for new pods.
    pub conflist: Found<Conflist>,
    /// `source` is what lies in `from` (the range that pods leave).
    pub source: SourceFacts,
    /// `target` is what overlaps `to` (the range that pods move to) and does not belong to Calico.
    pub target: TargetFacts,
    /// `tunnels` is the list of Calico's tunnel links, ordered by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tunnels: Vec<Device>,
    /// `uplink` is the link of the default route of the address family of the ranges. Unset if there is no default route.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink: Option<Uplink>,
    /// `localTraffic` is how kube-proxy recognizes connections of pods, read from the rules of the first Service of each address
    /// family. `malformed` if the rules cannot be read.
    #[serde(default)]
    pub local_traffic: Found<LocalTraffic>,
}

/// `SourceFacts` is what lies in the range that pods leave, and not in the range that they move to. Items that do not belong to
/// Calico come first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SourceFacts {
    /// `pods` is the list of routes to single addresses through the links of pods on this host.
    #[serde(default, skip_serializing_if = "Listed::is_empty")]
    pub pods: Listed<Route>,
    /// `blocks` is the list of all other routes that forward packets: to IPAM blocks of other nodes, through a tunnel or a
    /// gateway.
    #[serde(default, skip_serializing_if = "Listed::is_empty")]
    pub blocks: Listed<Route>,
    /// `discards` is the list of routes that drop packets, such as the blackhole routes of Calico for the IPAM blocks of this
    /// node.
    #[serde(default, skip_serializing_if = "Listed::is_empty")]
    pub discards: Listed<Route>,
    /// `addresses` is the list of addresses of links.
    #[serde(default, skip_serializing_if = "Listed::is_empty")]
    pub addresses: Listed<Address>,
    /// `rules` is the list of policy routing rules with a part of the range. Calico has no such rules, so their owner has to
    /// remove them.
    #[serde(default, skip_serializing_if = "Listed::is_empty")]
    pub rules: Listed<Rule>,
}

/// `TargetFacts` is what overlaps the range that pods move to, without default routes and without what Calico has there for its
/// IPPool.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TargetFacts {
    /// `routes` is the list of routes.
    #[serde(default, skip_serializing_if = "Listed::is_empty")]
    pub routes: Listed<Route>,
    /// `announced` is the list of routes of BIRD within the range. Calico has such routes once the IPPool is in use; before,
    /// another router announces them.
    #[serde(default, skip_serializing_if = "Listed::is_empty")]
    pub announced: Listed<Route>,
    /// `addresses` is the list of addresses of links.
    #[serde(default, skip_serializing_if = "Listed::is_empty")]
    pub addresses: Listed<Address>,
    /// `rules` is the list of policy routing rules with a part of the range.
    #[serde(default, skip_serializing_if = "Listed::is_empty")]
    pub rules: Listed<Rule>,
}

/// `Uplink` is the link of the default route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Uplink {
    /// `name` is the name of the link.
    pub name: String,
    /// `mtu` is the MTU in bytes.
    pub mtu: u32,
}

impl HostFacts {
    /// The IPAM plugin of new pods (`calico-ipam`, `host-local`), or why it is unknown.
    ///
    /// # Errors
    ///
    /// No CNI configuration of the host is in use, or its IPAM plugin is missing or malformed.
    pub fn ipam(&self) -> Result<&str, String> {
        let conflist = self.used_conflist()?;
        match &conflist.ipam {
            Found::Present(ipam) => Ok(ipam),
            Found::Absent => Err(format!(
                "{}: plugin {} has no IPAM plugin",
                conflist.path, conflist.plugin
            )),
            Found::Malformed(problem) => Err(format!("{}: {problem}", conflist.path)),
        }
    }

    /// Pools of the family of `range` to which the CNI configuration pins new pods, by name or range; empty if there are none.
    /// The error states why they are unknown.
    ///
    /// # Errors
    ///
    /// No CNI configuration of the host is in use, or its list of pools is malformed.
    pub fn pins(&self, range: &IpNet) -> Result<&[String], String> {
        let conflist = self.used_conflist()?;
        let pools = match range {
            IpNet::V4(_) => &conflist.ipv4_pools,
            IpNet::V6(_) => &conflist.ipv6_pools,
        };
        match pools {
            Found::Present(pools) => Ok(pools),
            Found::Absent => Ok(&[]),
            Found::Malformed(problem) => Err(format!("{}: {problem}", conflist.path)),
        }
    }

    fn used_conflist(&self) -> Result<&Conflist, String> {
        match &self.conflist {
            Found::Present(conflist) => Ok(conflist),
            Found::Absent => Err("no CNI configuration".to_owned()),
            Found::Malformed(problem) => Err(problem.clone()),
        }
    }

    /// Addresses of Calico's tunnel links, each with the name of its link.
    pub fn tunnel_addresses(&self) -> impl Iterator<Item = (&str, IpNet)> {
        self.tunnels.iter().flat_map(|tunnel| {
            let addresses = tunnel.addresses.iter();
            addresses.map(|address| (tunnel.name.as_str(), *address))
        })
    }
}

impl SourceFacts {
    /// Number of routes and addresses.
    pub fn count(&self) -> usize {
        self.pods.count() + self.blocks.count() + self.discards.count() + self.addresses.count()
    }
}

/// Routes and addresses of the source range that are still on the host, as texts; empty once there are none.
pub fn remaining(facts: &HostFacts) -> Vec<String> {
    let SourceFacts {
        pods,
        blocks,
        discards,
        addresses,
        // These do not belong to Calico, which will not remove them: the migration must not wait for that.
        rules: _,
    } = &facts.source;
    let mut remaining = addresses.words("addresses");
    remaining.extend(pods.words("routes to pods"));
    remaining.extend(blocks.words("routes"));
    remaining.extend(discards.words("routes that drop packets"));
    remaining
}

/// A route to a pod of the source range that is still on the host, as text. `ours` are the addresses of traffic pods, which
/// stay in the source range until all other pods have moved.
pub fn route_to_pod(facts: &HostFacts, ours: &BTreeSet<IpAddr>) -> Option<String> {
    let pods = &facts.source.pods;
    let mut others = pods
        .items
        .iter()
        .filter(|route| !ours.contains(&route.destination.addr()));
    others.next().map(ToString::to_string).or_else(|| {
        let more = usize::try_from(pods.remaining).unwrap_or(usize::MAX);
        (more > 0).then(|| format!("{more} more routes to pods"))
    })
}

/// Addresses, routes and rules that overlap the target range and do not belong to Calico, as texts: they would receive packets
/// for new pods.
///
/// Routes of BIRD are not included ([`announced`]).
pub fn foreign(facts: &HostFacts) -> Vec<String> {
    let TargetFacts {
        routes,
        announced: _,
        addresses,
        rules,
    } = &facts.target;
    let mut foreign = addresses.words("addresses");
    foreign.extend(routes.words("routes"));
    foreign.extend(rules.words("rules"));
    foreign
}

/// Routes of BIRD within the target range, as texts. Before the pool exists, they belong to another router; afterwards they are
/// Calico's, if nodes announce their blocks by BGP.
pub fn announced(facts: &HostFacts) -> Vec<String> {
    facts.target.announced.words("routes")
}

/// Whether the migration may wait for this change: another CNI configuration, another tunnel, other rules of kube-proxy, or a list that becomes empty or
/// is no longer empty. Pods that start or stop while others stay are no such change, except when only one remains: it may be
/// the traffic pod, which stays in the source range until all other pods have moved.
pub fn is_news(before: &HostFacts, after: &HostFacts) -> bool {
    let emptiness = |facts: &HostFacts| {
        let (old, new) = (&facts.source, &facts.target);
        [
            old.pods.is_empty(),
            old.blocks.is_empty(),
            old.discards.is_empty(),
            old.addresses.is_empty(),
            old.rules.is_empty(),
            new.routes.is_empty(),
            new.announced.is_empty(),
            new.addresses.is_empty(),
            new.rules.is_empty(),
        ]
    };
    before.conflist != after.conflist
        || before.tunnels != after.tunnels
        || before.local_traffic != after.local_traffic
        || emptiness(before) != emptiness(after)
        || before.source.pods.count().min(2) != after.source.pods.count().min(2)
}

#[cfg(test)]
mod tests;
