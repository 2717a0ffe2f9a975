//! Checks of the tunnels on the hosts, compared with flannel's configuration and the API.

use std::net::IpAddr;

use ipnet::IpNet;

use super::CheckName;
use crate::cluster::ClusterFacts;
use crate::detect::{flannel_nodes, network_configuration};
use crate::facts::{HostFacts, VxlanDevice};
use crate::flannel::{NodeAnnotations, annotation_key};
use crate::host::{HostSettings, Tunnel};
use crate::objects::family::{self, Family};
use crate::objects::tunnel_address;
use crate::settings::{PodNetwork, Settings};
use calico::{calico_node, variable};
use engine::check::{Check, Finding, Report, Verdict, names};
use engine::cluster::{DaemonSet, Node};

pub(super) fn check(
    settings: &Settings,
    facts: &ClusterFacts,
    flannel: Option<&DaemonSet>,
    calico: Option<&DaemonSet>,
) -> Vec<Check> {
    [
        devices(settings, facts),
        direct_routing(facts, flannel),
        public_address(settings, facts, calico),
    ]
    .concat()
}

/// Hosts of nodes on flannel. A node without host facts is a finding of the check.
pub(super) fn hosts<'facts>(
    facts: &'facts ClusterFacts,
    report: &mut Report,
) -> Vec<(&'facts Node, &'facts HostFacts)> {
    let mut found = Vec::new();
    for node in flannel_nodes(facts) {
        match facts.hosts.get(&node.name) {
            Some(host) => found.push((node, host)),
            None => report.unknown(
                "Node",
                &node.name,
                Finding::new(
                    "host",
                    "no report from the agent",
                    "the facts of the host",
                    "see check AgentMissing",
                ),
            ),
        }
    }
    found
}

fn devices(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::NetworkConfigurationMatchesDevice);
    let all = expected(settings);
    let hosts = hosts(facts, &mut report);
    for (node, host) in &hosts {
        for expected in &all {
            let tunnel = &expected.tunnel;
            match host.vxlan(&tunnel.flannel_name) {
                Some(device) => device_fits(settings, expected, node, device, &mut report),
                None => no_device(settings, node, host, &tunnel.flannel_name, &mut report),
            }
            if host.vxlan(tunnel.calico_name).is_some() {
                report.warn(
                    "Node",
                    &node.name,
                    Finding::new(
                        &format!("link {}", tunnel.calico_name),
                        "exists beside flannel's link",
                        "no such link yet",
                        "none: an earlier attempt left the link, and calico-node uses it when it starts",
                    ),
                );
            }
        }
    }
    let links: Vec<&str> = all
        .iter()
        .map(|expected| expected.tunnel.flannel_name.as_str())
        .collect();
    let sizes: Vec<String> = all
        .iter()
        .map(|expected| expected.tunnel.mtu.to_string())
        .collect();
    report.finish(
        format!("link {} of {} hosts", links.join(" and "), hosts.len()),
        format!(
            "VNI {}, port {}, MTU {}, the subnet of the node",
            settings.flannel_vni.value,
            settings.flannel_port.value,
            sizes.join(" and ")
        ),
    )
}

/// The tunnel device of one address family as it should be.
struct Expected {
    tunnel: Tunnel,
    /// The source of the MTU.
    mtu_source: String,
    /// The network whose packets the tunnel carries.
    network: IpNet,
}

/// One device for each address family of the pods.
fn expected(settings: &Settings) -> Vec<Expected> {
    let mtu = &settings.flannel_mtu;
    let tunnels = HostSettings::of(settings).tunnels().into_iter();
    tunnels
        .zip(settings.pod_networks())
        .map(|(tunnel, PodNetwork { range, .. })| Expected {
            tunnel,
            mtu_source: match range {
                IpNet::V4(_) => mtu.source.to_string(),
                IpNet::V6(_) => format!("20 less than MTU {} ({})", mtu.value, mtu.source),
            },
            network: range,
        })
        .collect()
}

fn no_device(settings: &Settings, node: &Node, host: &HostFacts, name: &str, report: &mut Report) {
    let others: Vec<String> = host
        .vxlan_devices
        .iter()
        .filter(|device| device.name.starts_with("flannel"))
        .map(|device| format!("{} (VNI {}, port {})", device.name, device.vni, device.port))
        .collect();
    let (found, fix) = if others.is_empty() {
        (
            "not found".to_owned(),
            "check the log of flannel's pod on the node, which creates the link",
        )
    } else {
        (
            format!("not found; existing links: {}", names(&others)),
            "flannel uses another VNI than its configuration: restart flannel's pods, or set flannelVni in \
             spec.flannelToCalico.options",
        )
    };
    let needed = format!(
        "flannel's device with VNI {}, {}",
        settings.flannel_vni.value, settings.flannel_vni.source
    );
    report.fail(
        "Node",
        &node.name,
        Finding::new(&format!("link {name}"), found, needed, fix),
    );
}

fn device_fits(
    settings: &Settings,
    expected: &Expected,
    node: &Node,
    device: &VxlanDevice,
    report: &mut Report,
) {
    let part = format!("link {}", device.name);
    let mut fail = |found: String, needed: String, fix: &str| {
        report.fail("Node", &node.name, Finding::new(&part, found, needed, fix));
    };
    let restart = "restart flannel's pods so that configuration and device agree, or correct the option";
    if device.vni != settings.flannel_vni.value {
        let needed = format!(
            "VNI {}, {}",
            settings.flannel_vni.value, settings.flannel_vni.source
        );
        fail(format!("VNI {}", device.vni), needed, restart);
    }
    if device.port != settings.flannel_port.value {
        let needed = format!(
            "port {}, {}",
            settings.flannel_port.value, settings.flannel_port.source
        );
        fail(format!("port {}", device.port), needed, restart);
    }
    if device.mtu != expected.tunnel.mtu {
        let needed = format!("MTU {}, {}", expected.tunnel.mtu, expected.mtu_source);
        fail(format!("MTU {}", device.mtu), needed, restart);
    }
    if !device.up {
        fail(
            "down".to_owned(),
            "up".to_owned(),
            "check the log of flannel's pod on the node",
        );
    }
    let Some(range) = node.range_of(&expected.network) else {
        // The check PodCidr names this Node.
        return;
    };
    let end = tunnel_address(range);
    if !device.addresses.iter().any(|address| address.addr() == end) {
        let found: Vec<String> = device.addresses.iter().map(ToString::to_string).collect();
        fail(
            if found.is_empty() {
                "no address".to_owned()
            } else {
                format!("address {}", names(&found))
            },
            format!("address {end}, the first of spec.podCIDR {range}"),
            "flannel uses another subnet than the podCIDR of the Node: restart flannel's pod on the node",
        );
    }
}

fn direct_routing(facts: &ClusterFacts, flannel: Option<&DaemonSet>) -> Vec<Check> {
    let mut report = Report::new(CheckName::DirectRouting);
    let configuration = flannel.and_then(|set| network_configuration(set, facts).ok().flatten());
    let fix = "set Backend.DirectRouting to false in net-conf.json and restart flannel's pods: while nodes change, \
               replies that bypass the tunnel are dropped";
    if let Some((configuration, object)) = &configuration
        && configuration.direct_routing
    {
        report.fail(
            "",
            object,
            Finding::new("Backend.DirectRouting", "true", "false", fix),
        );
    }
    let hosts = hosts(facts, &mut report);
    for (node, host) in &hosts {
        if host.direct_routes.is_empty() {
            continue;
        }
        let routes: Vec<String> = host
            .direct_routes
            .iter()
            .map(|route| format!("{} via {} dev {}", route.destination, route.gateway, route.link))
            .collect();
        let finding = Finding::new(
            "routes",
            names(&routes),
            "only routes through the tunnel to pods of other nodes",
            fix,
        );
        report.fail("Node", &node.name, finding);
    }
    report.finish(
        format!("routes of {} hosts", hosts.len()),
        "all through the tunnel",
    )
}

/// How calico-node will detect the address of its node.
enum Detection<'facts> {
    /// By `first-found`: the agent predicts the result.
    FirstFound,
    /// By the `InternalIP` of the Node.
    InternalAddress,
    /// Not at all: the annotation that the migration writes remains.
    Kept,
    /// By another method.
    Other(&'facts str),
}

fn detection<'facts>(
    facts: &'facts ClusterFacts,
    calico: Option<&'facts DaemonSet>,
    family: &Family,
) -> Detection<'facts> {
    let read = |name| {
        let set = calico?;
        variable(&facts.config_maps, set, calico_node(set)?, name)
    };
    match (read(family.address_variable), read(family.detection_variable)) {
        (Some("autodetect"), None | Some("" | "first-found")) => Detection::FirstFound,
        (Some("autodetect"), Some("kubernetes-internal-ip")) => Detection::InternalAddress,
        (Some("autodetect"), Some(method)) => Detection::Other(method),
        (None | Some("" | "none"), _) if calico.is_some() => Detection::Kept,
        (None | Some(_), _) => Detection::FirstFound,
    }
}

fn public_address(settings: &Settings, facts: &ClusterFacts, calico: Option<&DaemonSet>) -> Vec<Check> {
    let mut report = Report::new(CheckName::PublicAddress);
    let hosts = hosts(facts, &mut report);
    for expected in expected(settings) {
        public_address_of(settings, facts, calico, &expected, &hosts, &mut report);
    }
    report.finish(
        format!("public-ip of {} Nodes", hosts.len()),
        "equal to the local address of the tunnel, and to the address that Calico announces",
    )
}

/// Warns of a detection method whose result cannot be predicted.
fn warn_of_method(method: &str, family: &Family, calico: Option<&DaemonSet>, report: &mut Report) {
    let variable = format!("environment {} of calico-node", family.detection_variable);
    let finding = Finding::new(
        &variable,
        method,
        "first-found or kubernetes-internal-ip, whose results can be compared in advance",
        format!(
            "make sure that the method chooses the address in flannel's {} on every node: packets from other addresses \
             are dropped",
            family.public_address_annotation
        ),
    );
    report.add(
        Verdict::Warn,
        "DaemonSet",
        calico.map(DaemonSet::key).unwrap_or_default(),
        finding,
    );
}

fn public_address_of(
    settings: &Settings,
    facts: &ClusterFacts,
    calico: Option<&DaemonSet>,
    expected: &Expected,
    hosts: &[(&Node, &HostFacts)],
    report: &mut Report,
) {
    let family = family::of(&expected.network);
    let prefix = &settings.flannel_annotation_prefix.value;
    let overwrite = format!("{}-overwrite", family.public_address_annotation);
    let overwrite = annotation_key(prefix, &overwrite).unwrap_or_default();
    let device = &expected.tunnel.flannel_name;
    let method = detection(facts, calico, family);
    if let Detection::Other(method) = method {
        warn_of_method(method, family, calico, report);
    }
    for (node, host) in hosts {
        // The check NodeAnnotations names malformed annotations.
        let Ok(Some(annotations)) = NodeAnnotations::read(&node.annotations, prefix) else {
            continue;
        };
        let address = match &expected.network {
            IpNet::V4(_) => Some(annotations.public_address),
            IpNet::V6(_) => annotations.ipv6.map(|ipv6| IpAddr::V6(ipv6.public_address)),
        };
        let Some(address) = address else {
            report.fail(
                "Node",
                &node.name,
                Finding::new(
                    &format!("annotation {prefix}/{}", family.public_address_annotation),
                    "missing",
                    "the node's address of flannel's tunnel",
                    "restart flannel's pod on the node: flanneld writes the annotation",
                ),
            );
            continue;
        };
        let needed = format!("{address}, flannel's {}", family.public_address_annotation);
        let mut compare = |verdict: Verdict, part: &str, found: Option<IpAddr>, fix: &str| {
            if found != Some(address) {
                let found = found.map_or_else(|| "none".to_owned(), |found| found.to_string());
                report.add(
                    verdict,
                    "Node",
                    &node.name,
                    Finding::new(part, found, &needed, fix),
                );
            }
        };
        if let Some(local) = host.vxlan(device).and_then(|device| device.local) {
            compare(
                Verdict::Fail,
                &format!("local address of {device}"),
                Some(local),
                "Felix drops tunnel packets from other addresses than the announced one: restart flannel's pod with the \
                 right link in --iface",
            );
        }
        let detected = format!(
            "Calico would announce this address and drop packets from flannel's address: set {} of calico-node so that \
             it chooses flannel's address",
            family.detection_variable
        );
        match method {
            Detection::FirstFound => {
                compare(
                    Verdict::Fail,
                    "address that Calico detects (first-found)",
                    match &expected.network {
                        IpNet::V4(_) => host.detected_address,
                        IpNet::V6(_) => host.detected_ipv6_address,
                    },
                    &detected,
                );
            }
            Detection::InternalAddress => {
                let same_family = |found: &&IpAddr| found.is_ipv4() == address.is_ipv4();
                let internal = node.internal_addresses.iter().find(same_family);
                compare(
                    Verdict::Fail,
                    "address of type InternalIP",
                    internal.copied(),
                    &detected,
                );
            }
            Detection::Kept | Detection::Other(_) => {}
        }
        if let Some(value) = node.annotations.get(&overwrite) {
            report.fail(
                "Node",
                &node.name,
                Finding::new(
                    &format!("annotation {overwrite}"),
                    value,
                    "no such annotation",
                    "Calico does not support address translation between nodes: make nodes reach each other by their \
                     own addresses",
                ),
            );
        }
    }
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
