//! Check of flannel's links: as in the configuration, with the address of their node.

use engine::check::{Check, Finding, Report, names};
use engine::cluster::Node;
use engine::words::number;
use ipnet::IpNet;

use super::hosts::hosts;
use crate::checks::CheckName;
use crate::facts::{ClusterFacts, HostFacts, VxlanDevice};
use crate::host::{HostSettings, Tunnel};
use crate::objects::tunnel_address;
use crate::settings::{PodNetwork, Settings};

pub(super) fn devices(settings: &Settings, facts: &ClusterFacts) -> Vec<Check> {
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
        format!(
            "link {} of {}",
            links.join(" and "),
            number(hosts.len(), "host", "hosts")
        ),
        format!(
            "VNI {}, port {}, MTU {}, the subnet of the node",
            settings.flannel_vni.value,
            settings.flannel_port.value,
            sizes.join(" and ")
        ),
    )
}

/// The tunnel device of one address family as it should be.
pub(super) struct Expected {
    pub(super) tunnel: Tunnel,
    /// The source of the MTU.
    mtu_source: String,
    /// The network whose packets the tunnel carries.
    pub(super) network: IpNet,
}

/// One device for each address family of the pods.
pub(super) fn expected(settings: &Settings) -> Vec<Expected> {
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
