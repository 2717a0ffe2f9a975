//! Files and kernel parameters of the hosts: `subnet.env`, CNI configuration, `rp_filter`, bridged packets.

use ipnet::{IpNet, Ipv6Net};

use super::CheckName;
use super::network::hosts;
use super::version::Version;
use crate::cluster::ClusterFacts;
use crate::facts::Found;
use crate::settings::Settings;
use calico::calico_node;
use engine::check::{Check, Finding, Report, Verdict, names};
use engine::cluster::DaemonSet;

/// From here on Felix checks the sources of packets itself; before, it refuses to start without strict `rp_filter`.
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
        let restart = "restart flannel's pod on the node: it writes the file again";
        let environment = match &host.subnet_environment {
            Found::Present(environment) => environment,
            Found::Absent => {
                fail(
                    "not there".to_owned(),
                    "the file that flannel writes".to_owned(),
                    restart,
                );
                continue;
            }
            Found::Malformed(problem) => {
                fail(
                    problem.clone(),
                    "the file as flannel writes it".to_owned(),
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
        // A Node without a podCIDR is the check PodCidr's.
        let range = node.pod_cidr().map(|range| range.trunc());
        if let Some(range) = range.filter(|range| *range != environment.subnet.trunc()) {
            fail(
                format!("FLANNEL_SUBNET {}", environment.subnet),
                format!("an address of spec.podCIDR {range} with its length"),
                "flannel leases another subnet than the Node's: restart flannel's pod on the node, then its pods",
            );
        }
        if let Some(ipv6) = &settings.ipv6 {
            let network = &ipv6.flannel_network;
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
                    "flannel leases another subnet than the Node's: restart flannel's pod on the node, then its pods",
                );
            }
        }
    }
    report.finish(
        format!("{part} of {} hosts", hosts.len()),
        format!(
            "network {}, MTU {}, masquerade {}, the node's subnet",
            settings.flannel_network.value, settings.flannel_mtu.value, settings.flannel_ip_masquerade.value
        ),
    )
}

/// A value of the file, or that it is not there.
fn text(found: Option<Ipv6Net>) -> String {
    found.map_or_else(|| "not there".to_owned(), |found| found.to_string())
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
                    format!("the agent looked at {}", cni.path),
                    format!(
                        "the folder {directory}, {}",
                        settings.cni_configuration_directory.source
                    ),
                    "the agent looks there next; if this stays, the folder is not mounted into its pod",
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
                    "correct the file or remove it: containerd stops at it, and the node has no pod network",
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
                    "restart flannel's pod on the node; if the runtime reads another folder, set \
                     cniConfigurationDirectory",
                ),
            );
            continue;
        };
        if !winner.is_flannel() {
            report.fail(
                "Node",
                &node.name,
                Finding::new(
                    &part,
                    format!("{} wins (plugins {})", winner.name, names(&winner.plugins)),
                    "flannel's conflist, first by name",
                    "new pods do not get flannel's network: remove the file that is in front, and see who wrote it",
                ),
            );
        }
        for file in cni.files.iter().filter(|file| file.error.is_some()) {
            report.warn(
                "Node",
                &node.name,
                Finding::new(
                    &part,
                    format!("{}: {}", file.name, file.error.as_deref().unwrap_or_default()),
                    "valid files only",
                    "it does not win, so nothing reads it; remove it",
                ),
            );
        }
    }
    report.finish(
        format!("CNI configuration of {} hosts", hosts.len()),
        "flannel's conflist wins",
    )
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
        let set_it = "`sysctl -w net.ipv4.conf.all.rp_filter=1` on the node, and a file in /etc/sysctl.d so that it \
                      stays";
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
                format!("the tag of calico-node's image {image:?} says no version: give it one, or {set_it}"),
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
            "strict on {strict}, not on {others}; Calico {version} checks the sources of pods' packets itself"
        ),
        (others, None) => format!("strict on {strict}, not on {others}"),
    };
    report.finish(
        format!("net.ipv4.conf.all.rp_filter of {} hosts", hosts.len()),
        found,
    )
}

fn mode(value: u8) -> &'static str {
    match value {
        0 => "off",
        1 => "strict",
        2 => "loose",
        _ => "not a mode",
    }
}

fn bridge_netfilter(facts: &ClusterFacts) -> Vec<Check> {
    let mut report = Report::new(CheckName::BridgeNetfilter);
    let hosts = hosts(facts, &mut report);
    for (node, host) in &hosts {
        let found = match host.bridge_nf_call_iptables {
            Some(true) => continue,
            Some(false) => "0",
            None => "not there: br_netfilter is not loaded",
        };
        report.warn(
            "Node",
            &node.name,
            Finding::new(
                "net.bridge.bridge-nf-call-iptables",
                found,
                "1",
                "pods on the old network do not reach a Service whose pod is on the same bridge; Calico's pods have \
                 no bridge",
            ),
        );
    }
    report.finish(
        format!("net.bridge.bridge-nf-call-iptables of {} hosts", hosts.len()),
        "1",
    )
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;
