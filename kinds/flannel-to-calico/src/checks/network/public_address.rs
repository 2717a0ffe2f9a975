//! Check of the addresses between which the tunnels run: those of flannel, and those that Calico announces.

use std::net::IpAddr;

use calico::{calico_node, variable};
use engine::check::{Check, Finding, Report, Verdict};
use engine::cluster::{DaemonSet, Node};
use engine::environment::Variable::{self, Known, Unknown, Unset};
use engine::words::number;
use ipnet::IpNet;

use super::device::{Expected, expected};
use super::hosts::hosts;
use crate::checks::CheckName;
use crate::facts::{ClusterFacts, HostFacts};
use crate::flannel::{NodeAnnotations, annotation_key};
use crate::objects::family::{self, Family};
use crate::settings::Settings;

/// How calico-node will detect the address of its node.
enum Detection {
    /// By `first-found`: the agent predicts the result.
    FirstFound,
    /// By the `InternalIP` of the Node.
    InternalAddress,
    /// Not at all: the annotation that the migration writes remains.
    Kept,
    /// By another method.
    Other(String),
}

fn detection(facts: &ClusterFacts, calico: Option<&DaemonSet>, family: &Family) -> Detection {
    let read = |name| match calico.and_then(|set| Some((set, calico_node(set)?))) {
        Some((set, container)) => variable(&facts.config_maps, set, container, name),
        None => Variable::Unset,
    };
    match (read(family.address_variable), read(family.detection_variable)) {
        (Known("autodetect"), Unset | Known("" | "first-found")) => Detection::FirstFound,
        (Known("autodetect"), Known("kubernetes-internal-ip")) => Detection::InternalAddress,
        (Known("autodetect"), Known(method)) => Detection::Other(method.to_owned()),
        // For example the address of the host, from a field of the pod.
        (Known("autodetect"), Unknown(place)) | (Unknown(place), _) => {
            Detection::Other(format!("a value that is not known, from {place}"))
        }
        (Unset | Known("" | "none"), _) if calico.is_some() => Detection::Kept,
        (Unset | Known(_), _) => Detection::FirstFound,
    }
}

pub(super) fn public_address(
    settings: &Settings,
    facts: &ClusterFacts,
    calico: Option<&DaemonSet>,
) -> Vec<Check> {
    let mut report = Report::new(CheckName::PublicAddress);
    let hosts = hosts(facts, &mut report);
    for expected in expected(settings) {
        public_address_of(settings, facts, calico, &expected, &hosts, &mut report);
    }
    report.finish(
        format!("public-ip of {}", number(hosts.len(), "Node", "Nodes")),
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
    if let Detection::Other(method) = &method {
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
        if let Some((part, found)) = announced(&method, node, host, &expected.network, address) {
            compare(Verdict::Fail, part, found, &detected);
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

/// The address that Calico will announce for a node in the family of this network, and its source; `None` if no address is
/// detected, or the result cannot be predicted.
fn announced(
    method: &Detection,
    node: &Node,
    host: &HostFacts,
    network: &IpNet,
    address: IpAddr,
) -> Option<(&'static str, Option<IpAddr>)> {
    match method {
        Detection::FirstFound => {
            let found = match network {
                IpNet::V4(_) => host.detected_address,
                IpNet::V6(_) => host.detected_ipv6_address,
            };
            Some(("address that Calico detects (first-found)", found))
        }
        Detection::InternalAddress => {
            let same_family = |found: &&IpAddr| found.is_ipv4() == address.is_ipv4();
            let internal = node.internal_addresses.iter().find(same_family);
            Some(("address of type InternalIP", internal.copied()))
        }
        Detection::Kept | Detection::Other(_) => None,
    }
}
