//! The tunnel between nodes of a Calico with etcd. A Calico with the Kubernetes API always has VXLAN: the lab has no BGP.

use serde::{Deserialize, Serialize};

use super::Cluster;

/// The encapsulation of the pool that calico-node creates at its first start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
pub enum Tunnel {
    /// None: the nodes share a subnet, and BIRD, which is always a stand-in, sets routes.
    #[default]
    None,
    /// VXLAN: Felix sets routes, and there is no BIRD.
    Vxlan,
}

impl Tunnel {
    /// The values of the placeholders in the manifest of Calico v3 with etcd, by their names.
    pub(super) fn values(self) -> [(&'static str, &'static str); 5] {
        let [backend, vxlan, width, live, ready] = match self {
            Self::None => [
                "bird",
                "Never",
                "1500",
                "-felix-live, -bird-live",
                "-bird-ready, -felix-ready",
            ],
            // The tunnel needs 50 bytes of each packet.
            Self::Vxlan => ["vxlan", "Always", "1450", "-felix-live", "-felix-ready"],
        };
        [
            ("calico-v3-backend", backend),
            ("calico-v3-live", live),
            ("calico-v3-mtu", width),
            ("calico-v3-ready", ready),
            ("calico-v3-vxlan", vxlan),
        ]
    }
}

impl Cluster {
    /// The tunnel between the nodes of this cluster, if Calico's data are in etcd.
    pub async fn tunnel(&self) -> Tunnel {
        self.state.lock().await.tunnel
    }
}
