//! By which tunnel a Calico with etcd connects the nodes. A Calico with the Kubernetes API has VXLAN in any case: the lab has no BGP.

use serde::{Deserialize, Serialize};

use super::Cluster;

/// The encapsulation of the pool that calico-node makes at its first start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
pub enum Tunnel {
    /// None: the nodes share a subnet, and BIRD, which is a stand-in's in any case, sets routes.
    #[default]
    None,
    /// VXLAN: Felix sets routes, and there is no BIRD.
    Vxlan,
}

impl Tunnel {
    /// What the manifest of Calico v3 with etcd leaves open, by the names of its places.
    pub(super) fn values(self) -> [(&'static str, &'static str); 5] {
        let [backend, vxlan, width, live, ready] = match self {
            Self::None => [
                "bird",
                "Never",
                "1500",
                "-felix-live, -bird-live",
                "-bird-ready, -felix-ready",
            ],
            // 50 bytes of each packet are the tunnel's.
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
    /// By which tunnel the Calico of this cluster connects nodes, where its data are in etcd.
    pub async fn tunnel(&self) -> Tunnel {
        self.state.lock().await.tunnel
    }
}
