//! The model of one host: the state that its agent would read.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context, Result};
use engine::cni::CniDirectory;
use flannel_to_calico::cni;
use flannel_to_calico::facts::{
    Bridge, CalicoObjects, FirewallBackend, FirewallObject, Found, HostFacts, LegacyPod, ReversePathFilter,
    VxlanDevice,
};
use flannel_to_calico::flannel::SubnetEnvironment;
use flannel_to_calico::foreign_rules::ForeignRules;
use flannel_to_calico::host::{BRIDGE, CALICO_DEVICE};
use flannel_to_calico::plugin::FlannelPlugin;
use ipnet::{IpNet, Ipv4Net};
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt;

use super::pods::{PodOnHost, Role};

/// flannel's device.
const FLANNEL_DEVICE: &str = "flannel.1";
const UPLINK: &str = "eth0";
const CNI_FOLDER: &str = "/etc/cni/net.d";
const FLANNEL_CONFLIST: (&str, &str) = (
    "10-flannel.conflist",
    r#"{"name":"cbr0","cniVersion":"0.3.1","plugins":[{"type":"flannel"},{"type":"portmap"}]}"#,
);
const CALICO_CONFLIST: (&str, &str) = (
    "10-calico.conflist",
    r#"{"name":"k8s-pod-network","cniVersion":"1.0.0","plugins":[{"type":"calico"},{"type":"portmap"}]}"#,
);
const MTU: u32 = 1450;

/// The network that attached a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attached {
    ToFlannel,
    ToCalico,
}

/// The model of one host.
#[derive(Clone, Debug)]
pub struct Host {
    pub(super) facts: HostFacts,
    range: Ipv4Net,
    environment: SubnetEnvironment,
    pods: BTreeMap<String, (PodOnHost, Option<Attached>)>,
}

impl Host {
    /// The host of this Node while flannel is its network; `None` otherwise.
    pub fn of(node: &Node, network: Ipv4Net) -> Result<Option<Self>> {
        let name = node.name_any();
        let Some(data) = node.annotations().get("flannel.alpha.coreos.com/backend-data") else {
            return Ok(None);
        };
        let spec = node.spec.clone().unwrap_or_default();
        let range: Ipv4Net = spec
            .pod_cidr
            .with_context(|| format!("Node {name} has no podCIDR"))?
            .parse()
            .with_context(|| format!("read the podCIDR of Node {name}"))?;
        let addresses = node
            .status
            .clone()
            .unwrap_or_default()
            .addresses
            .unwrap_or_default();
        let address: IpAddr = addresses
            .iter()
            .find(|address| address.type_ == "InternalIP")
            .with_context(|| format!("Node {name} has no address"))?
            .address
            .parse()
            .with_context(|| format!("read the address of Node {name}"))?;
        let mac = serde_json::from_str::<serde_json::Value>(data)
            .ok()
            .and_then(|data| data["VtepMAC"].as_str().map(str::to_owned))
            .with_context(|| format!("Node {name} has no VtepMAC of flannel"))?;
        let environment = SubnetEnvironment {
            network,
            subnet: Ipv4Net::new_assert(after(range.network(), 1), range.prefix_len()),
            mtu: MTU,
            ip_masquerade: true,
            ipv6: None,
        };
        let chain = |table: &str, chain: &str| FirewallObject {
            backend: FirewallBackend::IptablesNft,
            table: table.to_owned(),
            chain: chain.to_owned(),
        };
        let interfaces = [UPLINK, "default", FLANNEL_DEVICE, BRIDGE].map(|name| (name.to_owned(), 1));
        let facts = HostFacts {
            foreign_rules: Some(ForeignRules::default()),
            runtime: None,
            lacks_nf_tables: false,
            plugin: Some(FlannelPlugin::usual("10-flannel.conflist")),
            cni: conflists(&[FLANNEL_CONFLIST]),
            vxlan_devices: vec![VxlanDevice {
                name: FLANNEL_DEVICE.to_owned(),
                vni: 1,
                port: 8472,
                mtu: MTU,
                local: Some(address),
                parent: Some(UPLINK.to_owned()),
                learning: false,
                mac,
                up: true,
                addresses: vec![tunnel_end(range)],
                // As many as there are other nodes; no decision depends on the number.
                routes: 1,
                block_routes: 0,
                neighbours: 1,
                forwarding_entries: 1,
            }],
            unread_processes: Vec::new(),
            unread_tables: Vec::new(),
            bridge: Found::Present(Bridge {
                name: BRIDGE.to_owned(),
                mtu: MTU,
                // kwok assigns the first address to a pod.
                addresses: vec![IpNet::V4(Ipv4Net::new_assert(
                    after(range.broadcast(), u32::MAX),
                    range.prefix_len(),
                ))],
                ports: Vec::new(),
                answers_for_pods: false,
                answered: Vec::new(),
                open: false,
            }),
            legacy_pods: Vec::new(),
            legacy_problems: Vec::new(),
            calico: CalicoObjects::default(),
            direct_routes: Vec::new(),
            reverse_path_filter: ReversePathFilter {
                all: 1,
                interfaces: interfaces.into(),
            },
            subnet_environment: Found::Present(environment.clone()),
            flanneld_running: false,
            firewall: vec![chain("filter", "FLANNEL-FWD"), chain("nat", "FLANNEL-POSTRTG")],
            leases: 0,
            delegates: 0,
            detected_address: Some(address),
            detected_ipv6_address: None,
            uplink: Some(UPLINK.to_owned()),
            bridge_nf_call_iptables: Some(true),
        };
        Ok(Some(Self {
            facts,
            range,
            environment,
            pods: BTreeMap::new(),
        }))
    }

    /// Adds a pod on the host, or one with a new address.
    pub fn run(&mut self, uid: &str, pod: PodOnHost) {
        let attached = match &pod.role {
            Role::Flannel | Role::CalicoNode | Role::OnHost => None,
            Role::OnPodNetwork(_) => {
                let before = self.pods.get(uid).and_then(|(_, attached)| *attached);
                Some(before.unwrap_or_else(|| self.attaches()))
            }
        };
        self.pods.insert(uid.to_owned(), (pod, attached));
        self.follow();
    }

    /// Removes a pod.
    pub fn end(&mut self, uid: &str) {
        if self.pods.remove(uid).is_some() {
            self.follow();
        }
    }

    /// The network of a new pod. kwok runs pods that would wait for a network: they get the next network.
    fn attaches(&self) -> Attached {
        let flannels = self.facts.cni.winner().is_some_and(cni::is_flannel);
        if flannels && !self.facts.subnet_environment.is_absent() {
            Attached::ToFlannel
        } else {
            Attached::ToCalico
        }
    }

    /// Applies the effects of the running pods on the host.
    fn follow(&mut self) {
        let runs = |role: &Role| self.pods.values().any(|(pod, _)| pod.role == *role);
        let (flannel, calico) = (runs(&Role::Flannel), runs(&Role::CalicoNode));
        self.facts.flanneld_running = flannel;
        if flannel {
            // flanneld writes the file at its start.
            self.facts.subnet_environment = Found::Present(self.environment.clone());
        }
        self.facts.calico.node_running = calico;
        if calico {
            self.start_calico();
        }
        let before = std::mem::take(&mut self.facts.legacy_pods);
        let routed = |sandbox: &str| before.iter().any(|pod| pod.sandbox == sandbox && pod.routed);
        let mut legacy = Vec::new();
        let mut calicos = Vec::new();
        for (uid, (pod, attached)) in &self.pods {
            let (Role::OnPodNetwork(address), Some(attached)) = (&pod.role, attached) else {
                continue;
            };
            let short: String = uid.chars().filter(char::is_ascii_hexdigit).take(8).collect();
            match attached {
                Attached::ToFlannel => {
                    let sandbox = sandbox(uid);
                    legacy.push(LegacyPod {
                        other_link: None,
                        namespace: pod.namespace.clone(),
                        name: pod.name.clone(),
                        link: format!("veth{short}"),
                        addresses: vec![*address],
                        attached: true,
                        routed: routed(&sandbox),
                        sandbox,
                        mac: String::new(),
                        pod_link: None,
                        obstacle: None,
                        not_taken_within: None,
                    });
                }
                Attached::ToCalico => calicos.push(format!("cali{short}")),
            }
        }
        legacy.sort_by(|left, right| left.sandbox.cmp(&right.sandbox));
        if let Found::Present(bridge) = &mut self.facts.bridge {
            bridge.ports = legacy.iter().map(|pod| pod.link.clone()).collect();
        }
        let number = u32::try_from(legacy.len()).unwrap_or(u32::MAX);
        self.facts.leases = number;
        self.facts.delegates = number;
        self.facts.legacy_pods = legacy;
        self.facts.calico.records = u32::try_from(calicos.len()).unwrap_or(u32::MAX);
        self.facts.calico.pods = calicos;
    }

    /// The installer writes the conflist, and Felix creates its device if it has none.
    fn start_calico(&mut self) {
        let mut files = vec![CALICO_CONFLIST];
        if cni::flannel_files(&self.facts.cni).next().is_some() {
            files.push(FLANNEL_CONFLIST);
        }
        self.facts.cni = conflists(&files);
        self.facts.calico.firewall = vec![FirewallObject {
            backend: FirewallBackend::IptablesNft,
            table: "filter".to_owned(),
            chain: String::new(),
        }];
        self.facts.calico.sets = 4;
        self.facts.calico.blackholes = 4;
        if self.facts.vxlan(CALICO_DEVICE).is_some() {
            return;
        }
        self.facts.vxlan_devices.push(VxlanDevice {
            name: CALICO_DEVICE.to_owned(),
            vni: 1,
            port: 8472,
            mtu: MTU,
            local: self.facts.detected_address,
            parent: Some(UPLINK.to_owned()),
            learning: false,
            mac: "66:00:00:00:00:01".to_owned(),
            up: true,
            addresses: vec![tunnel_end(self.range)],
            routes: 1,
            block_routes: 1,
            neighbours: 1,
            forwarding_entries: 1,
        });
    }

    /// Whether this conflist is kept; flannel's is restored under its name.
    pub(super) fn set_conflist(&mut self, name: &str, there: bool) {
        let known = [CALICO_CONFLIST, FLANNEL_CONFLIST];
        let files: Vec<_> = known
            .into_iter()
            .filter(|(known, _)| {
                let is_there = self.facts.cni.files.iter().any(|file| file.name == *known);
                if *known == name { there } else { is_there }
            })
            .collect();
        self.facts.cni = conflists(&files);
    }

    /// Whether flannel's file exists.
    pub(super) fn set_environment(&mut self, there: bool) {
        self.facts.subnet_environment = if there {
            Found::Present(self.environment.clone())
        } else {
            Found::Absent
        };
    }
}

fn conflists(files: &[(&str, &str)]) -> CniDirectory {
    let files = files
        .iter()
        .map(|(name, text)| ((*name).to_owned(), text.as_bytes().to_vec()));
    CniDirectory::read(CNI_FOLDER, files.collect())
}

/// The address of a tunnel's end is the first of the node's range.
fn tunnel_end(range: Ipv4Net) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(range.network(), 32))
}

fn after(address: Ipv4Addr, number: u32) -> Ipv4Addr {
    Ipv4Addr::from_bits(address.to_bits().wrapping_add(number))
}

/// Runtimes name sandboxes with 64 digits; these are the pod's own, twice.
fn sandbox(uid: &str) -> String {
    let digits: String = uid.chars().filter(char::is_ascii_hexdigit).collect();
    format!("{digits}{digits}")
}
