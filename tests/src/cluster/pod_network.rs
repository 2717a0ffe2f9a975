//! The pod network of a new cluster: flannel or Calico.

use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::Cluster;
use super::control_plane::POD_NETWORK;
use super::families::{IpFamilies, POD_NETWORK_IPV6};
use super::pods::{CALICO_NAMESPACE, FLANNEL_NAMESPACE};
use super::wait::{Observation, until};

const ROLLOUT_LIMIT: Duration = Duration::from_mins(3);
/// Path of the file from which flannel's CNI plugin reads the subnet of its node.
const SUBNET: &str = "/run/flannel/subnet.env";

/// The pod network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
pub enum PodNetwork {
    /// flannel with VXLAN. Calico, if installed, waits for a node label.
    #[default]
    Flannel,
    /// Calico with VXLAN, its own IPAM and the pool that it creates at its first start.
    Calico,
    /// Calico v2.6 with etcd, without a tunnel, and the manifest of v3 to roll it to. A stand-in plays v2.6.
    CalicoV2,
    /// Calico v3.8 with etcd, without a tunnel unless `--tunnel` names one. A stand-in plays it or, with the real
    /// programs, only BIRD.
    CalicoEtcd,
}

impl PodNetwork {
    /// The name in texts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Flannel => "flannel",
            Self::Calico => "Calico",
            Self::CalicoV2 => "Calico v2.6",
            Self::CalicoEtcd => "Calico v3.8 with etcd",
        }
    }

    /// The name on the command line.
    pub fn option(self) -> String {
        use clap::ValueEnum as _;
        let value = self.to_possible_value();
        value.map(|value| value.get_name().to_owned()).unwrap_or_default()
    }

    /// Whether Calico has an etcd datastore of its own.
    pub fn has_etcd(self) -> bool {
        match self {
            Self::Flannel | Self::Calico => false,
            Self::CalicoV2 | Self::CalicoEtcd => true,
        }
    }

    /// The additional node label that calico-node needs, as a line of its manifest's node selector.
    pub(super) fn calico_selector(self) -> &'static str {
        match self {
            Self::Flannel => "\n        projectcalico.org/node-network-during-migration: calico",
            Self::Calico | Self::CalicoV2 | Self::CalicoEtcd => "",
        }
    }

    /// The ranges of the pools that calico-node creates when there is none, as entries of its manifest's environment.
    /// A migration from flannel omits them, as Calico's own manifest does: the pools exist by then.
    pub(super) fn calico_ranges(self, families: IpFamilies) -> String {
        let entry = |family: &str, range: &str| {
            format!("\n            - name: CALICO_{family}POOL_CIDR\n              value: {range}")
        };
        match self {
            // Calico with etcd has its own manifests.
            Self::Flannel | Self::CalicoV2 | Self::CalicoEtcd => String::new(),
            Self::Calico if families.has_ipv6() => {
                entry("IPV4", POD_NETWORK) + &entry("IPV6", POD_NETWORK_IPV6)
            }
            Self::Calico => entry("IPV4", POD_NETWORK),
        }
    }

    /// The encapsulation of the IPv6 pool that calico-node creates.
    pub(super) fn calico_ipv6_vxlan(self) -> &'static str {
        match self {
            Self::Flannel | Self::CalicoV2 | Self::CalicoEtcd => "Never",
            // Without BGP there is no other path between nodes.
            Self::Calico => "Always",
        }
    }

    /// The `DaemonSet` of the pod network, with its namespace.
    fn daemon_set(self) -> (&'static str, &'static str) {
        match self {
            Self::Flannel => ("daemonset/kube-flannel-ds", FLANNEL_NAMESPACE),
            Self::Calico | Self::CalicoV2 | Self::CalicoEtcd => ("daemonset/calico-node", CALICO_NAMESPACE),
        }
    }
}

impl Cluster {
    /// Applies the objects that need no node yet.
    pub(super) async fn begin_pod_network(&self, calico_waits: bool) -> Result<()> {
        let values = self.values().await;
        match self.pod_network().await {
            PodNetwork::Flannel => {
                self.api
                    .apply(&values.flannel()?)
                    .await
                    .context("apply flannel")?;
                if calico_waits {
                    self.define_calico().await?;
                    self.start_calico().await?;
                }
                Ok(())
            }
            PodNetwork::Calico => self.define_calico().await,
            PodNetwork::CalicoV2 | PodNetwork::CalicoEtcd => Ok(()),
        }
    }

    /// Starts the parts that need registered nodes. Calico's installer reaches the API server through its Service
    /// address: before kube-proxy runs it would fail, and its kubelet would wait 10 s before the next attempt.
    pub(super) async fn continue_pod_network(&self) -> Result<()> {
        let network = self.pod_network().await;
        if network == PodNetwork::Flannel {
            return Ok(());
        }
        self.kube_proxy_runs(ROLLOUT_LIMIT).await?;
        match network {
            PodNetwork::Flannel => Ok(()),
            PodNetwork::Calico => self.start_calico().await,
            PodNetwork::CalicoV2 => self.start_calico_v2().await,
            PodNetwork::CalicoEtcd => self.start_calico_v3().await,
        }
    }

    /// Waits until the pod network runs on every node.
    pub(super) async fn finish_pod_network(&self) -> Result<()> {
        let network = self.pod_network().await;
        let (workload, namespace) = network.daemon_set();
        self.api.rolled_out(workload, namespace, ROLLOUT_LIMIT).await?;
        match network {
            PodNetwork::Flannel => self.subnets_are_written().await?,
            PodNetwork::Calico => {}
            PodNetwork::CalicoV2 | PodNetwork::CalicoEtcd => {
                self.api
                    .rolled_out(
                        "deployment/calico-kube-controllers",
                        CALICO_NAMESPACE,
                        ROLLOUT_LIMIT,
                    )
                    .await?;
            }
        }
        self.progress
            .say(format_args!("kube-proxy and {} are running", network.name()));
        Ok(())
    }

    /// Waits until flannel has written each node's subnet. Its pods have no readiness probe and are Ready before; a
    /// pod that starts meanwhile gets no network, and its kubelet waits more than 10 s before the next attempt.
    async fn subnets_are_written(&self) -> Result<()> {
        for node in self.node_names().await {
            let what = format!("flannel to write {SUBNET} on node {node}");
            let logs = self.directory.machine_logs(&node);
            until(&what, ROLLOUT_LIMIT, &logs, async || {
                let found = self.exec_in_node(&node, &["test", "-s", SUBNET]).await?;
                Ok(if found.status.success() {
                    Observation::Done(())
                } else {
                    Observation::NotYet("no such file".to_owned())
                })
            })
            .await?;
        }
        Ok(())
    }

    /// The pod network of this cluster.
    pub async fn pod_network(&self) -> PodNetwork {
        self.state.lock().await.pod_network
    }

    /// Applies the definitions of Calico's objects.
    async fn define_calico(&self) -> Result<()> {
        self.api
            .apply(&self.values().await.calico_definitions()?)
            .await
            .context("apply the definitions of Calico's objects")?;
        self.api
            .definitions_established("crd.projectcalico.org", ROLLOUT_LIMIT)
            .await
    }

    async fn start_calico_v2(&self) -> Result<()> {
        let values = self.values().await;
        let file = self.directory.calico_v3();
        std::fs::write(&file, values.calico_v3()?).with_context(|| format!("write {}", file.display()))?;
        self.api
            .apply(&values.calico_v2()?)
            .await
            .context("apply the manifest of Calico v2.6")
    }

    async fn start_calico_v3(&self) -> Result<()> {
        self.api
            .apply(&self.values().await.calico_v3()?)
            .await
            .context("apply the manifest of Calico v3.8")
    }

    async fn start_calico(&self) -> Result<()> {
        self.api
            .apply(&self.values().await.calico()?)
            .await
            .context("apply Calico's manifest")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::super::{Images, PacketFilter, ProxyMode, Tunnel, Values};
    use super::*;

    /// The `DaemonSet` of Calico's manifest.
    fn calico_node(network: PodNetwork, families: IpFamilies) -> Value {
        let values = Values::new(
            &Images::default(),
            "172.30.0.2".parse().unwrap(),
            ProxyMode::default(),
            PacketFilter::default(),
            families,
            network,
            Tunnel::default(),
        );
        let manifest = values.calico().unwrap();
        let documents = manifest
            .split("\n---\n")
            .map(|text| yaml_serde::from_str::<Value>(text).unwrap());
        documents
            .into_iter()
            .find(|object| object["kind"] == "DaemonSet")
            .unwrap()
    }

    fn variable(daemon_set: &Value, name: &str) -> Option<String> {
        let container = &daemon_set["spec"]["template"]["spec"]["containers"][0];
        let variables = container["env"].as_array().unwrap();
        let found = variables.iter().find(|variable| variable["name"] == name)?;
        found["value"].as_str().map(str::to_owned)
    }

    #[test]
    fn calico_waits_for_the_label_only_beside_flannel() {
        const LABEL: &str = "projectcalico.org/node-network-during-migration";
        let selector = |network| {
            let daemon_set = calico_node(network, IpFamilies::Ipv4);
            daemon_set["spec"]["template"]["spec"]["nodeSelector"].clone()
        };
        assert_eq!(selector(PodNetwork::Flannel)[LABEL], "calico");
        assert_eq!(
            selector(PodNetwork::Calico),
            serde_json::json!({ "kubernetes.io/os": "linux" })
        );
    }

    #[test]
    fn calico_gets_the_ranges_if_it_creates_the_pools() {
        let beside = calico_node(PodNetwork::Flannel, IpFamilies::Ipv4);
        assert_eq!(variable(&beside, "CALICO_IPV4POOL_CIDR"), None);
        let alone = calico_node(PodNetwork::Calico, IpFamilies::Ipv4);
        assert_eq!(
            variable(&alone, "CALICO_IPV4POOL_CIDR").as_deref(),
            Some("10.244.0.0/16")
        );
        assert_eq!(
            variable(&alone, "CALICO_IPV4POOL_VXLAN").as_deref(),
            Some("Always")
        );
        assert_eq!(variable(&alone, "CALICO_IPV6POOL_CIDR"), None);
        let both = calico_node(PodNetwork::Calico, IpFamilies::DualStack);
        assert_eq!(
            variable(&both, "CALICO_IPV6POOL_CIDR").as_deref(),
            Some("fd00:10:244::/56")
        );
        assert_eq!(
            variable(&both, "CALICO_IPV6POOL_VXLAN").as_deref(),
            Some("Always")
        );
    }
}
