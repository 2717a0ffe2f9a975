//! The lab's manifests and the values for their placeholders.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use super::calico_etcd;
use super::control_plane::{DNS_SERVICE, POD_NETWORK, server};
use super::families::IpFamilies;
use super::pod_network::PodNetwork;
use super::state::Machine;
use super::tunnel::Tunnel;

/// How kube-proxy routes traffic to Services. There is no ipvs: the kernels of labs rarely have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
pub enum ProxyMode {
    /// With iptables rules.
    #[default]
    Iptables,
    /// With nftables rules.
    Nftables,
}

impl ProxyMode {
    /// The value in kube-proxy's configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
        }
    }
}

/// The search path of the lab's containers.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The folder of flannel's and kube-proxy's images, without the first slash, in which the legacy iptables has the
/// name that is called.
pub const LEGACY_FOLDER: &str = "usr/local/legacy";

/// The tool with which flannel writes its packet filter rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
pub enum PacketFilter {
    /// iptables on the kernel's nftables; also for kube-proxy, unless it has another mode.
    #[default]
    IptablesNft,
    /// The legacy iptables; also for kube-proxy, unless it has another mode.
    IptablesLegacy,
    /// nftables itself.
    Nftables,
}

impl PacketFilter {
    /// Whether flannel's configuration enables nftables.
    fn is_nftables(self) -> bool {
        match self {
            Self::IptablesNft | Self::IptablesLegacy => false,
            Self::Nftables => true,
        }
    }

    /// The search path; one folder in it has the legacy iptables under the name that is called.
    fn path(self) -> String {
        match self {
            Self::IptablesNft | Self::Nftables => PATH.to_owned(),
            Self::IptablesLegacy => format!("/{LEGACY_FOLDER}:{PATH}"),
        }
    }
}

const FLANNEL: &str = include_str!("../../manifests/flannel.yaml");
const KUBE_PROXY: &str = include_str!("../../manifests/kube-proxy.yaml");
const KUBE_PROXY_STATIC_POD: &str = include_str!("../../manifests/kube-proxy-static-pod.yaml");
const CORE_DNS: &str = include_str!("../../manifests/coredns.yaml");
const CALICO_DEFINITIONS: &str = include_str!("../../manifests/calico-crds.yaml");
const CALICO: &str = include_str!("../../manifests/calico.yaml");
const CALICO_V2: &str = include_str!("../../manifests/calico-v2.yaml");
const CALICO_V3: &str = include_str!("../../manifests/calico-v3.yaml");
const SAMPLE: &str = include_str!("../../manifests/sample.yaml");
const LONELY: &str = include_str!("../../manifests/lonely.yaml");
const TRAFFIC: &str = include_str!("../../manifests/traffic.yaml");
const CROWD: &str = include_str!("../../manifests/crowd.yaml");

/// The traffic generator's flows.
#[derive(Clone, Copy, Debug)]
pub struct Traffic {
    /// Milliseconds between two probes of a flow.
    pub interval_ms: u64,
    /// Whether probers also hold a stream of datagrams and a connection to the Service: its pods must not end then.
    pub holds_service: bool,
}

/// The values of the manifests' placeholders.
#[derive(Clone, Debug)]
pub struct Values(BTreeMap<String, String>);

impl Values {
    /// The values for a cluster with its API server at this address.
    pub fn new(
        images: &super::Images,
        api_server: Ipv4Addr,
        proxy_mode: ProxyMode,
        packet_filter: PacketFilter,
        families: IpFamilies,
        network: PodNetwork,
        tunnel: Tunnel,
    ) -> Self {
        let mut values = BTreeMap::from([
            ("api-server", server(api_server)),
            ("calico-etcd", calico_etcd::url(api_server)),
            ("calico-ipv6-vxlan", network.calico_ipv6_vxlan().to_owned()),
            ("calico-ranges", network.calico_ranges(families)),
            ("calico-selector", network.calico_selector().to_owned()),
            ("dns-service", DNS_SERVICE.to_string()),
            ("filter-path", packet_filter.path()),
            ("flannel-families", families.flannel_configuration()),
            ("flannel-nftables", packet_filter.is_nftables().to_string()),
            ("image-busybox", images.busybox.clone()),
            ("image-calico-cni", images.calico_cni.clone()),
            ("image-calico-node", images.calico_node.clone()),
            ("image-calico-v2-cni", images.calico_v2.cni.clone()),
            (
                "image-calico-v2-kube-controllers",
                images.calico_v2.kube_controllers.clone(),
            ),
            ("image-calico-v2-node", images.calico_v2.node.clone()),
            ("image-calico-v3-cni", images.calico_v3.cni.clone()),
            (
                "image-calico-v3-kube-controllers",
                images.calico_v3.kube_controllers.clone(),
            ),
            ("image-calico-v3-node", images.calico_v3.node.clone()),
            ("image-coredns", images.coredns.clone()),
            ("image-flannel", images.flannel.clone()),
            ("image-flannel-cni-plugin", images.flannel_cni_plugin.clone()),
            ("image-kube-proxy", images.kube_proxy.clone()),
            ("image-traffic", images.traffic.clone()),
            ("ipv6", families.has_ipv6().to_string()),
            (
                "ipv6-detection",
                if families.has_ipv6() { "autodetect" } else { "none" }.to_owned(),
            ),
            ("pod-network", POD_NETWORK.to_owned()),
            ("pod-networks", families.pod_networks()),
            ("proxy-mode", proxy_mode.name().to_owned()),
            ("unspecified-address", families.unspecified().to_owned()),
        ]);
        let of_tunnel = tunnel.values();
        values.extend(of_tunnel.map(|(name, value)| (name, value.to_owned())));
        let named = values.into_iter().map(|(name, value)| (name.to_owned(), value));
        Self(named.collect())
    }

    /// The same values with the address of each machine, by its name: a lab beside another one has other addresses.
    #[must_use]
    pub fn with_machines(mut self, machines: &BTreeMap<String, Machine>) -> Self {
        let addresses = machines.iter();
        self.0
            .extend(addresses.map(|(name, machine)| (name.clone(), machine.address.to_string())));
        self
    }

    /// The same values with another network for pods.
    #[must_use]
    pub fn with_pod_network(mut self, network: &str) -> Self {
        self.0.insert("pod-network".to_owned(), network.to_owned());
        self
    }

    /// The same values with one more.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.0.insert(name.to_owned(), value.to_owned());
        self
    }

    /// flannel as users install it.
    pub fn flannel(&self) -> Result<String> {
        self.fill(FLANNEL)
    }

    /// The service proxy.
    pub fn kube_proxy(&self) -> Result<String> {
        self.fill(KUBE_PROXY)
    }

    /// The service proxy as a static pod of this node.
    pub fn kube_proxy_static_pod(&self, node: &str) -> Result<String> {
        self.clone().with("node-name", node).fill(KUBE_PROXY_STATIC_POD)
    }

    /// The name server.
    pub fn core_dns(&self) -> Result<String> {
        self.fill(CORE_DNS)
    }

    /// The definitions of Calico's objects.
    pub fn calico_definitions(&self) -> Result<String> {
        self.fill(CALICO_DEFINITIONS)
    }

    /// Calico: beside flannel it waits for the node label.
    pub fn calico(&self) -> Result<String> {
        self.fill(CALICO)
    }

    /// Calico v2.6, with its data in the v2 store of the lab's etcd for Calico.
    pub fn calico_v2(&self) -> Result<String> {
        self.fill(CALICO_V2)
    }

    /// Calico v3.8, with its data in the v3 store of that etcd: the release to which [`Values::calico_v2`] is rolled.
    pub fn calico_v3(&self) -> Result<String> {
        self.fill(CALICO_V3)
    }

    /// Workloads of the kinds that a usual cluster has.
    pub fn sample(&self) -> Result<String> {
        self.fill(SAMPLE)
    }

    /// A pod without an owner, to be applied after [`Values::sample`].
    pub fn lonely(&self) -> Result<String> {
        self.fill(LONELY)
    }

    /// The traffic generator: pods that answer, and on every node pods that send probes.
    pub fn traffic(&self, traffic: Traffic) -> Result<String> {
        let mut values = self.clone();
        values.0.extend([
            ("probe-interval-ms".to_owned(), traffic.interval_ms.to_string()),
            ("hold-service".to_owned(), traffic.holds_service.to_string()),
        ]);
        values.fill(TRAFFIC)
    }

    /// This number of pods on a node, each with one datagram from the host every 20 ms. To be applied after [`Values::traffic`].
    pub fn crowd(&self, pods: u8, node: &str) -> Result<String> {
        let mut values = self.clone();
        values.0.extend([
            ("crowd-pods".to_owned(), pods.to_string()),
            ("crowd-node".to_owned(), node.to_owned()),
        ]);
        values.fill(CROWD)
    }

    /// Replaces every `{{ name }}`; an unknown name is an error.
    pub fn fill(&self, template: &str) -> Result<String> {
        let mut filled = String::with_capacity(template.len());
        let mut rest = template;
        while let Some((before, after)) = rest.split_once("{{ ") {
            let Some((name, remainder)) = after.split_once(" }}") else {
                bail!(
                    "a placeholder of the manifest is not closed: {{{{ {}",
                    after.lines().next().unwrap_or_default()
                );
            };
            let Some(value) = self.0.get(name) else {
                let known: Vec<_> = self.0.keys().map(String::as_str).collect();
                bail!(
                    "the manifest has the placeholder {name:?}; known placeholders: {}",
                    known.join(", ")
                );
            };
            filled.push_str(before);
            filled.push_str(value);
            rest = remainder;
        }
        filled.push_str(rest);
        Ok(filled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values() -> Values {
        Values::new(
            &super::super::Images::default(),
            Ipv4Addr::new(172, 30, 0, 2),
            ProxyMode::Nftables,
            PacketFilter::IptablesLegacy,
            IpFamilies::DualStack,
            PodNetwork::Flannel,
            Tunnel::default(),
        )
    }

    #[test]
    fn every_placeholder_of_every_manifest_has_a_value() {
        let values = values();
        let all = [
            values.flannel(),
            values.kube_proxy(),
            values.kube_proxy_static_pod("lab-control"),
            values.core_dns(),
            values.calico_definitions(),
            values.calico(),
            values.calico_v2(),
            values.calico_v3(),
            values.sample(),
            values.lonely(),
            values.traffic(Traffic {
                interval_ms: 10,
                holds_service: true,
            }),
            values.crowd(100, "lab-worker-1"),
        ];
        for manifest in all {
            let manifest = manifest.unwrap();
            assert!(!manifest.contains("{{"), "{manifest}");
        }
    }

    /// A pod with too small a request answers late on a busy machine, and then its probe fails.
    #[test]
    fn pods_with_http_probes_have_a_long_timeout_and_a_cpu_request() {
        let values = values();
        let mut probed = 0;
        for manifest in [values.sample(), values.core_dns(), values.calico_v2()] {
            for document in manifest.unwrap().split("\n---\n") {
                let object: serde_json::Value = yaml_serde::from_str(document).unwrap();
                let containers = &object["spec"]["template"]["spec"]["containers"];
                for container in containers.as_array().into_iter().flatten() {
                    for probe in ["readinessProbe", "livenessProbe"] {
                        let probe = &container[probe];
                        if probe["httpGet"].is_null() {
                            continue;
                        }
                        probed += 1;
                        assert!(probe["timeoutSeconds"].as_u64() >= Some(3), "{container}");
                        let asked = container["resources"]["requests"]["cpu"].as_str().unwrap();
                        let asked: u32 = asked.trim_end_matches('m').parse().unwrap();
                        assert!(asked >= 50, "{container}");
                    }
                }
            }
        }
        assert_eq!(probed, 6);
    }

    #[test]
    fn an_unknown_or_unclosed_placeholder_is_an_error_with_its_name() {
        let unknown = values().fill("a: {{ image-nothing }}").unwrap_err().to_string();
        assert!(
            unknown.contains("image-nothing") && unknown.contains("image-busybox"),
            "{unknown}"
        );
        let open = values()
            .fill("a: {{ image-busybox\nb: 1")
            .unwrap_err()
            .to_string();
        assert!(open.contains("not closed"), "{open}");
    }
}
