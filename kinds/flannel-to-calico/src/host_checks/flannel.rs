//! Checks of a host that should use flannel.

use super::{HostCheck, Subject};
use crate::facts::Found;
use crate::host::BRIDGE;
use engine::check::{Check, Verdict, names};

/// flanneld has written the file that its CNI plugin reads.
pub(super) fn subnet_environment(subject: Subject<'_>) -> Check {
    let name = HostCheck::SubnetEnvironment.as_str();
    let object = format!("Node {}: /run/flannel/subnet.env", subject.node);
    match &subject.facts.subnet_environment {
        Found::Present(environment) => Check::pass(
            name,
            object,
            format!(
                "network {}, subnet {}, MTU {}, masquerade {}",
                environment.network, environment.subnet, environment.mtu, environment.ip_masquerade
            ),
        ),
        Found::Malformed(problem) => Check::not_pass(
            name,
            Verdict::Fail,
            object,
            problem,
            "the file as flanneld writes it",
            "restart flannel's pod on this node: flanneld writes the file again",
        ),
        Found::Absent => Check::not_pass(
            name,
            Verdict::Fail,
            object,
            "no such file",
            "the file as flanneld writes it",
            "check the log of flannel's pod on this node",
        ),
    }
}

/// flanneld runs.
pub(super) fn process(subject: Subject<'_>) -> Check {
    let name = HostCheck::FlannelProcess.as_str();
    let object = format!("Node {}: process flanneld", subject.node);
    if subject.facts.flanneld_running {
        Check::pass(name, object, "runs")
    } else if let Some(first) = subject.facts.unread_processes.first() {
        Check::not_pass(
            name,
            Verdict::Unknown,
            object,
            first,
            "all processes of the host can be read",
            "find out what that process waits for (`cat /proc/PID/stack` on the node), and end the process",
        )
    } else {
        Check::not_pass(
            name,
            Verdict::Warn,
            object,
            "does not run",
            "a running flanneld before the migration",
            "check why flannel's pod on this node does not run",
        )
    }
}

/// The links, one for each address family, agree with the settings.
pub(super) fn device(subject: Subject<'_>) -> Check {
    let settings = subject.settings;
    let ipv4 = device_of(subject, &settings.flannel_device(), settings.mtu);
    let ipv6 = settings
        .ipv6_tunnel()
        .map(|tunnel| device_of(subject, &tunnel.flannel_name, tunnel.mtu));
    // A check name has one result: the worse of the two.
    ipv6.filter(|ipv6| ipv6.verdict > ipv4.verdict).unwrap_or(ipv4)
}

fn device_of(subject: Subject<'_>, wanted: &str, mtu: u32) -> Check {
    let name = HostCheck::FlannelDevice.as_str();
    let Subject {
        node,
        facts,
        settings,
        ..
    } = subject;
    let object = format!("Node {node}: link {wanted}");
    let needed = format!("VNI {}, port {}, MTU {mtu}, up", settings.vni, settings.port);
    let Some(device) = facts.vxlan(wanted) else {
        let others: Vec<&str> = facts
            .vxlan_devices
            .iter()
            .map(|device| device.name.as_str())
            .collect();
        let found = if others.is_empty() {
            "no VXLAN link".to_owned()
        } else {
            format!("not found; existing VXLAN links: {}", names(&others))
        };
        return Check::not_pass(
            name,
            Verdict::Fail,
            object,
            found,
            needed,
            "set flannelVni to the VNI that flannel uses, or check why flannel has created no link",
        );
    };
    let found = format!(
        "VNI {}, port {}, MTU {}, {}",
        device.vni,
        device.port,
        device.mtu,
        if device.up { "up" } else { "down" }
    );
    let same = device.vni == settings.vni && device.port == settings.port && device.mtu == mtu;
    if !same {
        return Check::not_pass(
            name,
            Verdict::Fail,
            object,
            found,
            needed,
            "restart flannel's pod on this node so that the link agrees with net-conf.json, or correct the spec",
        );
    }
    if !device.up {
        return Check::not_pass(
            name,
            Verdict::Fail,
            object,
            found,
            needed,
            "restart flannel's pod on this node",
        );
    }
    if device.learning {
        return Check::not_pass(
            name,
            Verdict::Warn,
            object,
            format!("{found}, learning"),
            format!("{needed}, not learning"),
            "set Backend.Learning to false in net-conf.json",
        );
    }
    Check::pass(name, object, found)
}

/// The link with the name of flannel's bridge, which the agent deletes later, is a bridge.
pub(super) fn bridge(subject: Subject<'_>) -> Check {
    let name = HostCheck::FlannelBridge.as_str();
    let object = format!("Node {}: link {BRIDGE}", subject.node);
    match &subject.facts.bridge {
        Found::Absent => Check::pass(
            name,
            object,
            "does not exist: no pod has used the pod network yet",
        ),
        Found::Present(bridge) => Check::pass(
            name,
            object,
            format!("a bridge, pods attached: {}", bridge.ports.len()),
        ),
        Found::Malformed(problem) => Check::not_pass(
            name,
            Verdict::Fail,
            object,
            problem,
            "a bridge, or no such link",
            format!("rename or delete link {BRIDGE}, which is not flannel's"),
        ),
    }
}

/// All routes to pods of other nodes use the tunnel.
pub(super) fn direct_routing(subject: Subject<'_>) -> Check {
    let name = HostCheck::DirectRouting.as_str();
    let Subject { node, facts, .. } = subject;
    let object = format!("Node {node}: routes to pods of other nodes");
    match facts.direct_routes.as_slice() {
        [] if facts.subnet_environment.present().is_none() => Check::not_pass(
            name,
            Verdict::Unknown,
            object,
            "flannel's network is not known, so its routes cannot be recognized",
            "a valid /run/flannel/subnet.env",
            "see check SubnetEnvironment",
        ),
        [] => Check::pass(name, object, "all through the tunnel"),
        [first, rest @ ..] => Check::not_pass(
            name,
            Verdict::Fail,
            object,
            format!(
                "{} via {} dev {}{}",
                first.destination,
                first.gateway,
                first.link,
                if rest.is_empty() {
                    String::new()
                } else {
                    format!(" and {} more", rest.len())
                }
            ),
            "all through the tunnel",
            "set Backend.DirectRouting to false in net-conf.json and restart flannel's pods",
        ),
    }
}
