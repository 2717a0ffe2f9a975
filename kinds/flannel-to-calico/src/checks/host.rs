//! Checks of files and kernel parameters of the hosts: `subnet.env`, CNI configuration, `rp_filter`, bridged packets.

use ipnet::{IpNet, Ipv6Net};

use super::CheckName;
use super::network::hosts;
use crate::cni;
use crate::facts::{ClusterFacts, Found};
use crate::flannel::SubnetEnvironment;
use crate::settings::{Ipv6Settings, Settings};
use crate::version::Version;
use calico::calico_node;
use engine::check::{Check, Finding, Report, Verdict, names};
use engine::cluster::{DaemonSet, Node};
use engine::cni::CniFile;
use engine::words::number;

/// From this version, Felix checks the source addresses of packets. Earlier versions do not start without strict
/// `rp_filter`.
const CHECKS_SOURCES_ITSELF: Version = Version::new(3, 12, 0);

pub(super) fn check(settings: &Settings, facts: &ClusterFacts, calico: Option<&DaemonSet>) -> Vec<Check> {
    [
        subnet_environment(settings, facts),
        conflist(settings, facts),
        reverse_path_filter(facts, calico),
        bridge_netfilter(facts),
    ]
    .concat()
}

fn subnet_environment(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::SubnetEnvironment);
    let part = "/run/flannel/subnet.env";
    let hosts = hosts(facts, &mut report);
    for (node, host) in &hosts {
        let mut fail = |found: String, needed: String, fix: &str| {
            report.fail("Node", &node.name, Finding::new(part, found, needed, fix));
        };
        let restart = "restart flannel's pod on the node: flanneld writes the file again";
        let environment = match &host.subnet_environment {
            Found::Present(environment) => environment,
            Found::Absent => {
                fail(
                    "not found".to_owned(),
                    "the file as flanneld writes it".to_owned(),
                    restart,
                );
                continue;
            }
            Found::Malformed(problem) => {
                fail(
                    problem.clone(),
                    "the file as flanneld writes it".to_owned(),
                    restart,
                );
                continue;
            }
        };
        if environment.network != settings.flannel_network.value {
            fail(
                format!("FLANNEL_NETWORK {}", environment.network),
                format!(
                    "{}, {}",
                    settings.flannel_network.value, settings.flannel_network.source
                ),
                restart,
            );
        }
        if environment.mtu != settings.flannel_mtu.value {
            fail(
                format!("FLANNEL_MTU {}", environment.mtu),
                format!("{}, {}", settings.flannel_mtu.value, settings.flannel_mtu.source),
                restart,
            );
        }
        if environment.ip_masquerade != settings.flannel_ip_masquerade.value {
            fail(
                format!("FLANNEL_IPMASQ {}", environment.ip_masquerade),
                format!(
                    "{}, {}",
                    settings.flannel_ip_masquerade.value, settings.flannel_ip_masquerade.source
                ),
                restart,
            );
        }
        // The check PodCidr names a Node without a podCIDR.
        let range = node.ipv4_pod_range().map(|range| range.trunc());
        if let Some(range) = range.filter(|range| *range != environment.subnet.trunc()) {
            fail(
                format!("FLANNEL_SUBNET {}", environment.subnet),
                format!("an address of spec.podCIDR {range} with its length"),
                "flannel uses another subnet than the podCIDR of the Node: restart flannel's pod on the node, then the \
                 other pods on the node",
            );
        }
        if let Some(ipv6) = &settings.ipv6 {
            compare_ipv6(ipv6, node, environment, restart, &mut fail);
        }
    }
    report.finish(
        format!("{part} of {}", number(hosts.len(), "host", "hosts")),
        format!(
            "network {}, MTU {}, masquerade {}, the subnet of the node",
            settings.flannel_network.value, settings.flannel_mtu.value, settings.flannel_ip_masquerade.value
        ),
    )
}

/// Compares the lines of the file about IPv6 with the settings and with the Node.
fn compare_ipv6(
    settings: &Ipv6Settings,
    node: &Node,
    environment: &SubnetEnvironment,
    restart: &str,
    fail: &mut impl FnMut(String, String, &str),
) {
    let network = &settings.flannel_network;
    let range = node
        .range_of(&IpNet::V6(network.value))
        .map(|range| range.trunc());
    let found = environment.ipv6.as_ref();
    if found.map(|found| found.network) != Some(network.value) {
        fail(
            format!("FLANNEL_IPV6_NETWORK {}", text(found.map(|found| found.network))),
            format!("{}, {}", network.value, network.source),
            restart,
        );
    }
    let subnet = found.map(|found| IpNet::V6(found.subnet.trunc()));
    if let Some(range) = range.filter(|range| subnet != Some(*range)) {
        fail(
            format!("FLANNEL_IPV6_SUBNET {}", text(found.map(|found| found.subnet))),
            format!("an address of spec.podCIDRs {range} with its length"),
            "flannel uses another subnet than the podCIDR of the Node: restart flannel's pod on the node, then the \
         other pods on the node",
        );
    }
}

/// A value of the file, or that the value is missing.
fn text(found: Option<Ipv6Net>) -> String {
    found.map_or_else(|| "missing".to_owned(), |found| found.to_string())
}

fn conflist(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::ConflistMalformed);
    let directory = &settings.cni_configuration_directory.value;
    let hosts = hosts(facts, &mut report);
    for (node, host) in &hosts {
        let cni = &host.cni;
        if cni.path.trim_end_matches('/') != directory.trim_end_matches('/') {
            report.unknown(
                "Node",
                &node.name,
                Finding::new(
                    "CNI configuration",
                    format!("the agent has read {}", cni.path),
                    format!(
                        "the directory {directory}, {}",
                        settings.cni_configuration_directory.source
                    ),
                    "wait until the agent reads this directory; if that does not happen, mount it into the agent's pod",
                ),
            );
            continue;
        }
        let part = format!("CNI configuration in {directory}");
        if let Some(broken) = cni.broken() {
            report.fail(
                "Node",
                &node.name,
                Finding::new(
                    &part,
                    format!("{}: {}", broken.name, broken.error.as_deref().unwrap_or_default()),
                    "a valid file that comes first by name",
                    "correct or remove the file: with it the container runtime has no pod network",
                ),
            );
            continue;
        }
        let Some(winner) = cni.winner() else {
            report.fail(
                "Node",
                &node.name,
                Finding::new(
                    &part,
                    "no file",
                    "flannel's conflist",
                    "restart flannel's pod on the node; if the container runtime reads another directory, set \
                     cniConfigurationDirectory",
                ),
            );
            continue;
        };
        if !cni::is_flannel(winner) {
            report.fail("Node", &node.name, other_network(winner, &part));
        }
        for file in cni.files.iter().filter(|file| file.error.is_some()) {
            report.warn(
                "Node",
                &node.name,
                Finding::new(
                    &part,
                    format!("{}: {}", file.name, file.error.as_deref().unwrap_or_default()),
                    "valid files only",
                    "remove the file: another file comes before it, so it has no effect",
                ),
            );
        }
    }
    report.finish(
        format!("CNI configuration of {}", number(hosts.len(), "host", "hosts")),
        "flannel's conflist is in use",
    )
}

/// The file of another network comes first.
fn other_network<'part>(winner: &CniFile, part: &'part str) -> Finding<'part> {
    let needed = "flannel's conflist, first by name";
    match cni::meta_plugin(winner) {
        Some(plugin) => Finding::new(
            part,
            format!(
                "{} is in use: plugin {plugin}, which calls the plugins of other files",
                winner.name
            ),
            needed,
            format!(
                "replumb does not migrate nodes whose pods {plugin} attaches. Do not remove the file: pods have their other networks \
                 by it"
            ),
        ),
        None => Finding::new(
            part,
            format!("{} is in use (plugins {})", winner.name, names(&winner.plugins)),
            needed,
            "new pods do not get flannel's network: find out which program wrote this file and whether pods need it; without such a \
             program, remove the file",
        ),
    }
}

fn reverse_path_filter(facts: &ClusterFacts, calico: Option<&DaemonSet>) -> Vec<Check> {
    let mut report = Report::new(CheckName::ReversePathFilter);
    let image = calico
        .and_then(calico_node)
        .map(|container| container.image.as_str())
        .unwrap_or_default();
    let version = Version::of_image(image);
    let hosts = hosts(facts, &mut report);
    let mut strict = 0;
    for (node, host) in &hosts {
        let all = host.reverse_path_filter.all;
        if all == 1 {
            strict += 1;
            continue;
        }
        let set_it = "run `sysctl -w net.ipv4.conf.all.rp_filter=1` on the node, and add a file in /etc/sysctl.d so \
                      that the value persists";
        let (verdict, needed, fix) = match version {
            Some(version) if version >= CHECKS_SOURCES_ITSELF => continue,
            Some(version) => (
                Verdict::Fail,
                format!("1 (strict), for Calico {version}"),
                set_it.to_owned(),
            ),
            None => (
                Verdict::Unknown,
                format!("1 (strict), or Calico {CHECKS_SOURCES_ITSELF} or later"),
                format!(
                    "use an image tag with a version for calico-node (found image {image:?}), or {set_it}"
                ),
            ),
        };
        let found = format!("{all} ({})", mode(all));
        report.add(
            verdict,
            "Node",
            &node.name,
            Finding::new("net.ipv4.conf.all.rp_filter", found, needed, fix),
        );
    }
    let others = hosts.len() - strict;
    let found = match (others, version) {
        (0, _) => "1 (strict) everywhere".to_owned(),
        (others, Some(version)) => format!(
            "strict on {strict}, not on {others}; Calico {version} checks the source addresses of pods itself"
        ),
        (others, None) => format!("strict on {strict}, not on {others}"),
    };
    report.finish(
        format!(
            "net.ipv4.conf.all.rp_filter of {}",
            number(hosts.len(), "host", "hosts")
        ),
        found,
    )
}

fn mode(value: u8) -> &'static str {
    match value {
        0 => "off",
        1 => "strict",
        2 => "loose",
        _ => "unknown mode",
    }
}

fn bridge_netfilter(facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::BridgeNetfilter);
    let hosts = hosts(facts, &mut report);
    for (node, host) in &hosts {
        let found = match host.bridge_nf_call_iptables {
            Some(true) => continue,
            Some(false) => "0",
            None => "no such parameter: br_netfilter is not loaded",
        };
        report.warn(
            "Node",
            &node.name,
            Finding::new(
                "net.bridge.bridge-nf-call-iptables",
                found,
                "1",
                "without 1, pods on flannel do not reach a Service whose pod is on the same bridge; pods on Calico \
                 use no bridge",
            ),
        );
    }
    report.finish(
        format!(
            "net.bridge.bridge-nf-call-iptables of {}",
            number(hosts.len(), "host", "hosts")
        ),
        "1",
    )
}

#[cfg(test)]
mod tests;
