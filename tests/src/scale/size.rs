//! The size of the cluster, and its migration.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, bail};
use ipnet::Ipv4Net;
use serde::Serialize;

/// The measured migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// From flannel to Calico.
    FlannelToCalico,
    /// New address range for the pods of a cluster with Calico.
    PodCidr,
    /// New address range for Services.
    ServiceCidr,
}

/// How nodes change their network, from flannel to Calico.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Strategy {
    /// Every pod leaves its node first.
    #[default]
    Drain,
    /// Every pod stays. The measured time ends when every node has both networks.
    InPlace,
}

/// The contents of an ordinary pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum PodShape {
    /// Two containers with fourteen variables and three probes each.
    #[default]
    Ordinary,
    /// A single container without probes or variables: for more pods than the memory of the API server would allow.
    Small,
}

/// The size of the cluster, and its migration.
#[derive(Clone, Debug, Serialize)]
pub struct Size {
    /// Number of nodes.
    pub nodes: u32,
    /// Number of ordinary pods.
    pub pods: u32,
    /// The contents of each pod.
    pub pod_shape: PodShape,
    /// Number of Services.
    pub services: u32,
    /// The migration.
    pub migration: Kind,
    /// How nodes change their network; `None` if the migration has only one way.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strategy: Option<Strategy>,
    /// Number of pods that start, and of pods that end, each second while the migration runs.
    pub churn: u32,
    /// Time without any change before the start.
    #[serde(skip)]
    pub idle: Duration,
    /// Time limit of the whole migration.
    #[serde(skip)]
    pub limit: Duration,
    /// Memory limit of the coordinator in bytes.
    pub memory_limit: u64,
    /// Folder with the programs of the control plane, and kwok.
    #[serde(skip)]
    pub programs: PathBuf,
    /// The coordinator's program.
    #[serde(skip)]
    pub coordinator: PathBuf,
}

impl Kind {
    /// How nodes change their network, if the migration has a choice.
    pub fn strategy(self, asked: Option<Strategy>) -> Result<Option<Strategy>> {
        match self {
            Self::FlannelToCalico => Ok(Some(asked.unwrap_or_default())),
            Self::PodCidr | Self::ServiceCidr => match asked {
                None => Ok(None),
                Some(way) => {
                    bail!("--strategy {way:?} applies only to --migration flannel-to-calico: omit it")
                }
            },
        }
    }
}

impl Size {
    /// The migration in words.
    pub fn description(&self) -> String {
        match (self.migration, self.strategy) {
            (Kind::FlannelToCalico, Some(Strategy::InPlace)) => "flannel to Calico in place",
            (Kind::FlannelToCalico, Some(Strategy::Drain) | None) => "flannel to Calico by drain",
            (Kind::PodCidr, _) => "new address range for pods",
            (Kind::ServiceCidr, _) => "new address range for Services",
        }
        .to_owned()
    }
}

/// The network of pods: large enough for 16 384 nodes.
pub const POD_NETWORK: &str = "10.128.0.0/10";
/// The new range of pods.
pub const NEW_PODS: &str = "10.0.0.0/10";
/// The new range of Services.
pub const NEW_SERVICES: &str = "172.31.0.0/16";
/// The first node's range of pods.
const FIRST_RANGE: Ipv4Addr = Ipv4Addr::new(10, 128, 0, 0);
/// The address before that of the first node.
const BEFORE_FIRST_HOST: Ipv4Addr = Ipv4Addr::new(172, 20, 0, 0);
/// Length of a node's range.
const RANGE_LENGTH: u8 = 24;

/// One node by its number, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place(pub u32);

impl Place {
    /// A name as long as those of clouds.
    pub fn name(self) -> String {
        let text = self.host().to_string().replace('.', "-");
        format!("ip-{text}.eu-central-1.compute.internal")
    }

    /// The node's address.
    pub fn host(self) -> Ipv4Addr {
        Ipv4Addr::from_bits(BEFORE_FIRST_HOST.to_bits() + self.0 + 1)
    }

    /// The range of its pods.
    pub fn pods(self) -> Ipv4Net {
        Ipv4Net::new_assert(
            Ipv4Addr::from_bits(FIRST_RANGE.to_bits() + (self.0 << 8)),
            RANGE_LENGTH,
        )
    }

    /// The link-layer address of its tunnel.
    pub fn mac(self) -> String {
        let [_, high, middle, low] = self.0.to_be_bytes();
        format!("0a:58:0a:{high:02x}:{middle:02x}:{low:02x}")
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A small size without programs.
    pub fn small(migration: Kind) -> Size {
        Size {
            nodes: 3,
            pods: 45,
            pod_shape: PodShape::default(),
            services: 3,
            migration,
            strategy: None,
            churn: 0,
            idle: Duration::ZERO,
            limit: Duration::ZERO,
            memory_limit: 0,
            programs: PathBuf::new(),
            coordinator: PathBuf::new(),
        }
    }

    #[test]
    fn every_node_has_its_own_range_in_the_network_and_its_own_address() {
        let network: Ipv4Net = POD_NETWORK.parse().unwrap();
        let last = Place(4_999);
        assert!(network.contains(&Place(0).pods()) && network.contains(&last.pods()));
        assert_eq!(Place(256).pods().to_string(), "10.129.0.0/24");
        assert_eq!(last.host(), Ipv4Addr::new(172, 20, 19, 136));
        assert_eq!(Place(0).name(), "ip-172-20-0-1.eu-central-1.compute.internal");
        assert_ne!(Place(255).mac(), Place(256).mac());
    }
}
