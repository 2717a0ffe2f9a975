//! The policies, round by round: each round has some for each namespace.

use std::net::IpAddr;

use anyhow::{Context, Result, bail};
use k8s_openapi::api::core::v1::Pod;

use super::facts::Objects;
use super::fleet;
use crate::cluster::Values;

/// A round: policies that hold at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Round {
    /// The name on the command line.
    pub name: &'static str,
    manifest: &'static str,
}

macro_rules! rounds {
    ($($name:literal),* $(,)?) => {
        [$(Round { name: $name, manifest: include_str!(concat!("../../manifests/policies/", $name, ".yaml")) }),*]
    };
}

/// All of them, in their order.
pub const ROUNDS: [Round; 12] = rounds![
    "none",
    "default-deny",
    "peers",
    "expressions",
    "ports",
    "named-ports",
    "ranges",
    "egress",
    "union",
    "both-sides",
    "nodes",
    "unclear",
];

impl Round {
    /// The rounds with these names; all of them without a name.
    pub fn find(names: &[String]) -> Result<Vec<Self>> {
        let known = || ROUNDS.map(|round| round.name).join(", ");
        if names.is_empty() {
            return Ok(ROUNDS.to_vec());
        }
        let find = |name: &String| match ROUNDS.iter().find(|round| round.name == name) {
            Some(round) => Ok(*round),
            None => bail!("--round {name}: no such round; the rounds are {}", known()),
        };
        names.iter().map(find).collect()
    }

    /// Whether the round has policies: the first has none.
    pub fn has_policies(self) -> bool {
        self.manifest.contains("kind: NetworkPolicy")
    }

    /// The policies, with the addresses of this cluster.
    pub fn manifest(self, values: &Values) -> Result<String> {
        values
            .fill(self.manifest)
            .with_context(|| format!("fill the policies of round {}", self.name))
    }
}

/// The values of a cluster with the addresses that policies name: of pods, and of tunnels.
pub fn values(values: Values, pods: &[Pod], objects: &Objects) -> Values {
    let ipv4 = |addresses: Vec<IpAddr>| addresses.into_iter().find(IpAddr::is_ipv4);
    let of_pods = pods.iter().filter_map(|pod| {
        let name = fleet::name_of(pod).replace('/', "-");
        Some((format!("address-{name}"), ipv4(fleet::addresses(pod))?))
    });
    let of_tunnels = objects
        .tunnels()
        .into_iter()
        .filter_map(|(node, tunnels)| Some((format!("tunnel-{node}"), ipv4(tunnels)?)));
    of_pods.chain(of_tunnels).fold(values, |values, (name, address)| {
        values.with(&name, &address.to_string())
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::Ipv4Addr;

    use k8s_openapi::api::networking::v1::NetworkPolicy;
    use serde::Deserialize as _;

    use super::*;
    use crate::cluster::{Images, IpFamilies, PacketFilter, PodNetwork, ProxyMode, Tunnel};

    /// The policies of a round, with an address for each placeholder.
    fn policies(round: Round) -> Vec<NetworkPolicy> {
        let mut values = Values::new(
            &Images::default(),
            Ipv4Addr::new(172, 30, 0, 2),
            ProxyMode::default(),
            PacketFilter::default(),
            IpFamilies::default(),
            PodNetwork::Calico,
            Tunnel::default(),
        );
        for name in ["control-plane", "lab-control", "lab-worker-1", "lab-worker-2"] {
            values = values
                .with(name, "172.30.0.11")
                .with(&format!("tunnel-{name}"), "10.244.1.0");
        }
        for name in ["shop-web-0", "shop-api-0", "crm-cli-0"] {
            values = values.with(&format!("address-{name}"), "10.244.1.5");
        }
        let text = round.manifest(&values).unwrap();
        yaml_serde::Deserializer::from_str(&text)
            .filter_map(|document| Option::<NetworkPolicy>::deserialize(document).unwrap())
            .collect()
    }

    #[test]
    fn there_are_at_least_20_policies_with_names_of_their_own() {
        let all: Vec<NetworkPolicy> = ROUNDS.into_iter().flat_map(policies).collect();
        assert!(all.len() >= 20, "{}", all.len());
        let names: BTreeSet<_> = all
            .iter()
            .map(|policy| (&policy.metadata.namespace, &policy.metadata.name))
            .collect();
        assert_eq!(names.len(), all.len());
    }

    #[test]
    fn each_policy_is_in_a_namespace_of_the_fleet_and_only_the_first_round_has_none() {
        for round in ROUNDS {
            let policies = policies(round);
            assert_eq!(policies.is_empty(), round.name == "none", "{}", round.name);
            assert_eq!(round.has_policies(), !policies.is_empty());
            for policy in policies {
                let namespace = policy.metadata.namespace.unwrap();
                assert!(
                    fleet::NAMESPACES.iter().any(|(name, _)| *name == namespace),
                    "{namespace}"
                );
            }
        }
    }

    #[test]
    fn an_unknown_round_is_an_error_with_the_names_of_all() {
        let error = Round::find(&["nothing".to_owned()]).unwrap_err().to_string();
        assert!(
            error.contains("nothing") && error.contains("default-deny"),
            "{error}"
        );
        assert_eq!(Round::find(&["peers".to_owned()]).unwrap().len(), 1);
        assert_eq!(Round::find(&[]).unwrap().len(), ROUNDS.len());
    }
}
