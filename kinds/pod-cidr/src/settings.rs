//! Settings of the migration: from the spec, detected in the cluster, or the default.

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use strum::IntoStaticStr;

use super::datastore::{Datastore, in_kubernetes};
use engine::sourced::Sourced;

/// `Mode` is the order in which pods move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Mode {
    /// Workload by workload, on any node.
    #[default]
    ByWorkload,
    /// Node by node: each node is cordoned, drained, checked by its agent and uncordoned.
    ByNode,
}

/// `Family` is an address family. If set, both ranges must be of this family. Possible values: `IPv4`, `IPv6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema, IntoStaticStr)]
pub enum Family {
    /// IPv4.
    #[serde(rename = "IPv4")]
    #[strum(serialize = "IPv4")]
    Ipv4,
    /// IPv6.
    #[serde(rename = "IPv6")]
    #[strum(serialize = "IPv6")]
    Ipv6,
}

impl Family {
    /// The address family of this range.
    pub fn of(range: &IpNet) -> Self {
        match range {
            IpNet::V4(_) => Self::Ipv4,
            IpNet::V6(_) => Self::Ipv6,
        }
    }

    /// The family as written in the API.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// The fields of the spec on which the settings depend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Range of the old pool.
    pub from: IpNet,
    /// Range of the new pool.
    pub to: IpNet,
    /// Address family of both ranges, if the user set it.
    pub family: Option<Family>,
    /// Prefix length of the new pool's blocks, if the user set it.
    pub block_size: Option<u8>,
}

/// `Settings` are the settings of a change of the pod range, each with its source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Settings {
    /// `from` is the range of the old IPPool, in CIDR notation.
    #[schemars(with = "Sourced<String>")]
    pub from: Sourced<IpNet>,
    /// `to` is the range of the new IPPool, in CIDR notation.
    #[schemars(with = "Sourced<String>")]
    pub to: Sourced<IpNet>,
    /// `oldPool` is the name of the old IPPool.
    pub old_pool: Sourced<String>,
    /// `newPool` is the name of the new IPPool.
    pub new_pool: Sourced<String>,
    /// `blockSize` is the prefix length of the IPAM blocks of the new IPPool.
    pub block_size: Sourced<u8>,
    /// `calicoDaemonSetNamespace` is the namespace of the DaemonSet of calico-node.
    pub calico_daemon_set_namespace: Sourced<String>,
    /// `calicoDaemonSetName` is the name of the DaemonSet of calico-node.
    pub calico_daemon_set_name: Sourced<String>,
    /// `datastore` is where Calico stores its `IPPools` and its IPAM data.
    #[serde(default = "in_kubernetes")]
    pub datastore: Sourced<Datastore>,
}

impl Settings {
    /// Namespace and name of Calico's `DaemonSet`.
    pub fn calico_daemon_set(&self) -> (&str, &str) {
        (
            &self.calico_daemon_set_namespace.value,
            &self.calico_daemon_set_name.value,
        )
    }

    /// Ranges whose pods do not move while pods move to the range `target`: `target` itself, and the ranges of all pools that
    /// this migration does not change. `pools` is the name and the range of every pool.
    pub fn remaining_ranges<'pools>(
        &self,
        target: &IpNet,
        pools: impl Iterator<Item = (&'pools str, IpNet)>,
    ) -> Vec<IpNet> {
        pools
            .filter(|(name, _)| *name != self.old_pool.value && *name != self.new_pool.value)
            .map(|(_, range)| range)
            .chain([*target])
            .collect()
    }
}

/// Name of the pool that is created for this range: a valid Kubernetes name that depends on the range only.
pub fn pool_name(range: &IpNet) -> String {
    let address: String = range
        .addr()
        .to_string()
        .chars()
        .map(|letter| {
            if letter.is_ascii_alphanumeric() {
                letter
            } else {
                '-'
            }
        })
        .collect();
    let family = match range {
        IpNet::V4(_) => "ipv4",
        IpNet::V6(_) => "ipv6",
    };
    format!("{family}-{}-{}", address.trim_matches('-'), range.prefix_len())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("10.200.0.0/16", "ipv4-10-200-0-0-16")]
    #[case("fd00:10:200::/56", "ipv6-fd00-10-200-56")]
    #[case("::/8", "ipv6--8")]
    fn a_pool_name_contains_family_address_and_length(#[case] range: &str, #[case] name: &str) {
        assert_eq!(pool_name(&range.parse().unwrap()), name);
    }
}
