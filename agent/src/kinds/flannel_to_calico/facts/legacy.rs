//! Pods of flannel and their links, from libcni's records and the kernel's tables. Pure.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;

use calico::pod_link;
use flannel_to_calico::attachment::Attachment;
use flannel_to_calico::facts::{LegacyPod, PodLink};
use flannel_to_calico::host::{BRIDGE, KEPT_LABEL, frame_rule};
use ipnet::IpNet;

use crate::host::netlink::ROUTE_PROTOCOL;
use crate::host::snapshot::{Neighbour, Snapshot};

/// What the kernel does on links, beside the tables of the snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkParameters {
    /// Links whose reverse path filter accepts packets whose way back is another link.
    pub loose: BTreeSet<String>,
    /// Links that answer for all addresses, as far as parameters decide that.
    pub answering: BTreeSet<String>,
    /// Links of pods with IPv6 addresses that have IPv6.
    pub with_ipv6: BTreeSet<String>,
    /// Rules that accept frames to other MAC addresses, by the names of their links.
    pub frame_rules: Vec<String>,
}

/// Plugins whose work does not depend on the name or the bridge of the pod's link.
const PLUGINS: [&str; 4] = ["flannel", "bridge", "portmap", "host-local"];

/// The names that the link of a pod on the host may have: that of its record and Calico's.
pub fn link_names(attachment: &Attachment) -> Option<(&str, String)> {
    // Plugins name the pair of links of a pod veth…; the bridge has any name, and a chained plugin may add a link of its own.
    let mut links = attachment.links.iter();
    let link = links
        .find(|name| name.starts_with("veth"))
        .or_else(|| attachment.links.iter().find(|name| *name != BRIDGE))?;
    Some((link, pod_link(&attachment.namespace, &attachment.pod)))
}

/// IPv6 addresses that pods of flannel look for on their own link: those of `cni0`, those that `cni0` answers for, and those of the
/// pods.
pub fn on_bridge(
    snapshot: &Snapshot,
    attachments: &[(PathBuf, Result<Attachment, String>)],
) -> BTreeSet<Ipv6Addr> {
    let bridge = snapshot.link(BRIDGE).map(|link| snapshot.of_link(link.index));
    let bridge = bridge.iter();
    let answered = bridge
        .clone()
        .flat_map(|bridge| &bridge.proxies)
        .map(|proxy| proxy.address);
    let own = bridge
        .flat_map(|bridge| &bridge.addresses)
        .map(|own| own.address.addr());
    let known = attachments
        .iter()
        .filter_map(|(_, attachment)| attachment.as_ref().ok());
    let pods = known.flat_map(|attachment| attachment.addresses.iter().copied());
    let configured = own.chain(pods).filter_map(|address| match address {
        IpAddr::V6(address) => Some(address),
        IpAddr::V4(_) => None,
    });
    answered
        .chain(configured)
        .filter(|address| !address.is_unicast_link_local())
        .collect()
}

/// The addresses that the link of this pod has to answer for: all that are expected on the bridge, except its own.
pub fn neighbours_of(attachment: &Attachment, expected: &BTreeSet<Ipv6Addr>) -> BTreeSet<Ipv6Addr> {
    let is_own = |address: &Ipv6Addr| attachment.addresses.contains(&IpAddr::V6(*address));
    expected
        .iter()
        .filter(|address| !is_own(address))
        .copied()
        .collect()
}

/// The link that leads to a pod, and its state. The MAC address tells it from the link of a later pod with the same name.
fn pod_link_of(
    snapshot: &Snapshot,
    attachment: &Attachment,
    expected: &BTreeSet<Ipv6Addr>,
    parameters: &LinkParameters,
) -> Option<PodLink> {
    let (name, calico_name) = link_names(attachment)?;
    let mac = attachment.link_macs.get(name)?;
    let link = snapshot.links.iter().find(|link| {
        (link.name == name || link.name == calico_name) && link.kind == "veth" && link.mac == *mac
    })?;
    let routes = |address: &IpAddr| {
        let destination = IpNet::from(*address);
        let routes = snapshot.routes.iter();
        routes
            .filter(move |route| route.destination == destination && route.hops == [(None, Some(link.index))])
    };
    let is_routed = |address: &IpAddr| {
        let is_neighbour = |entry: &Neighbour| {
            (entry.link, entry.address, &entry.mac) == (link.index, *address, &attachment.mac)
        };
        routes(address).next().is_some() && snapshot.neighbours.iter().any(is_neighbour)
    };
    let is_taken = |address: &IpAddr| routes(address).any(|route| route.protocol != ROUTE_PROTOCOL);
    let bridge = snapshot.link(BRIDGE).map(|bridge| bridge.index);
    let is_delivered = |bridge: u32| {
        let mut entries = snapshot.deliveries.iter();
        entries.any(|entry| entry.link == bridge && entry.mac == attachment.mac)
    };
    let own = attachment.addresses.iter().find(|address| address.is_ipv6());
    let proxies = snapshot.proxies.iter().filter(|proxy| proxy.link == link.index);
    let answered: BTreeSet<Ipv6Addr> = proxies.map(|proxy| proxy.address).collect();
    let rule = frame_rule(name, &calico_name);
    Some(PodLink {
        name: link.name.clone(),
        name_taken: {
            let mut links = snapshot.links.iter();
            links.any(|other| other.name == calico_name && other.index != link.index)
        },
        loose: parameters.loose.contains(&link.name)
            && (own.is_none() || parameters.with_ipv6.contains(&link.name)),
        routed: attachment.addresses.iter().all(is_routed),
        answers: parameters.answering.contains(&link.name)
            && (own.is_none() || answered.is_superset(&neighbours_of(attachment, expected))),
        accepts_frames: parameters.frame_rules.contains(&rule),
        frame_delivery: bridge.is_none_or(is_delivered),
        taken: attachment.addresses.iter().all(is_taken),
        calico_name,
    })
}

/// A link with a name of the pod's link that is not where flannel or an adoption puts it. `attached`: its link is on `cni0`.
fn other_link(
    snapshot: &Snapshot,
    attachment: &Attachment,
    attached: bool,
    pod_link: Option<&PodLink>,
) -> Option<String> {
    if attached {
        return None;
    }
    let (name, calico_name) = link_names(attachment)?;
    // Calico's name may be that of a later pod with the same name, which is Calico's own.
    let link = snapshot.link(name).or_else(|| {
        let known = pod_link.filter(|link| link.name == calico_name);
        known.and_then(|link| snapshot.link(&link.name))
    })?;
    if link.kind != "veth" {
        return None;
    }
    match link.controller.map(|index| snapshot.name(index)) {
        Some(bridge) => Some(format!(
            "link {} on {}",
            link.name,
            bridge.unwrap_or("another link")
        )),
        // Without a bridge, a link that is known to lead to the pod is being adopted.
        None if pod_link.is_some() => None,
        None => Some(format!(
            "link {}, whose MAC address its record does not have",
            link.name
        )),
    }
}

/// Why a pod cannot be adopted, as its record shows.
fn obstacle(attachment: &Attachment) -> Option<String> {
    if attachment.namespace.is_empty() || attachment.pod.is_empty() {
        return Some("the record does not name the pod".to_owned());
    }
    let known = |plugin: &&String| PLUGINS.contains(&plugin.as_str());
    let other = attachment.plugins.iter().find(|plugin| !known(plugin))?;
    Some(format!(
        "CNI plugin {other} took part, and may depend on the name of the link"
    ))
}

/// Pods that were attached to the old network according to libcni's records: a pod whose link is on the bridge, or leads to the
/// pod without it, is running.
pub fn legacy_pods(
    snapshot: &Snapshot,
    attachments: &[(PathBuf, Result<Attachment, String>)],
    parameters: &LinkParameters,
) -> Vec<LegacyPod> {
    let bridge = snapshot.link(BRIDGE).map(|link| link.index);
    let expected = on_bridge(snapshot, attachments);
    let mut pods: Vec<LegacyPod> = attachments
        .iter()
        .filter_map(|(_, attachment)| attachment.as_ref().ok())
        .map(|attachment| {
            let port = snapshot.links.iter().find(|link| {
                bridge.is_some() && link.controller == bridge && attachment.links.contains(&link.name)
            });
            let has_route = |address: &IpAddr| {
                snapshot.routes.iter().any(|route| {
                    route.destination == IpNet::from(*address)
                        && route
                            .hops
                            .iter()
                            .any(|(_, link)| link.is_some() && *link == bridge)
                })
            };
            let link = link_names(attachment).map(|(link, _)| link.to_owned());
            let pod_link = pod_link_of(snapshot, attachment, &expected, parameters);
            LegacyPod {
                namespace: attachment.namespace.clone(),
                name: attachment.pod.clone(),
                sandbox: attachment.sandbox.clone(),
                link: link.unwrap_or_default(),
                attached: port.is_some(),
                routed: attachment.addresses.iter().all(has_route),
                addresses: attachment.addresses.clone(),
                mac: attachment.mac.clone(),
                other_link: other_link(snapshot, attachment, port.is_some(), pod_link.as_ref()),
                pod_link,
                obstacle: obstacle(attachment),
                // Only the journal knows.
                not_taken_within: None,
            }
        })
        .collect();
    pods.sort_by(|one, other| one.sandbox.cmp(&other.sandbox));
    pods
}

/// Malformed records of attachments, one text each.
pub fn legacy_problems(attachments: &[(PathBuf, Result<Attachment, String>)]) -> Vec<String> {
    attachments
        .iter()
        .filter_map(|(path, attachment)| {
            let problem = attachment.as_ref().err()?;
            Some(format!(
                "{}: {problem}, so the address of its pod is unknown: delete that pod, or the file if no such pod runs, or use strategy Drain",
                path.display()
            ))
        })
        .collect()
}

/// The host's veth links to Calico's pods, without those of adopted pods.
pub fn calico_pods(snapshot: &Snapshot, legacy: &[LegacyPod]) -> Vec<String> {
    let is_adopted = |name: &String| {
        let mut links = legacy.iter().filter_map(|pod| pod.pod_link.as_ref());
        links.any(|link| link.name == *name)
    };
    let mut pods: Vec<String> = snapshot
        .links
        .iter()
        .filter(|link| link.name.starts_with("cali") && link.kind == "veth")
        .map(|link| link.name.clone())
        .filter(|name| !is_adopted(name))
        .collect();
    pods.sort();
    pods
}

/// Addresses of the bridge that replumb has put on the loopback interface.
pub fn kept_addresses(snapshot: &Snapshot) -> Vec<IpAddr> {
    let on_loopback = |link: u32| {
        let mut links = snapshot.links.iter();
        links.any(|other| other.index == link && other.loopback)
    };
    let addresses = snapshot.addresses.iter();
    let kept = addresses.filter(|own| own.label == KEPT_LABEL && on_loopback(own.link));
    kept.map(|own| own.address.addr()).collect()
}

#[cfg(test)]
mod tests;
