//! Derives the facts for decisions from the kernel's tables. Pure.

mod legacy;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use flannel_to_calico::facts::{Bridge, DirectRoute, Found, SubnetRoutes, VxlanDevice};
use flannel_to_calico::host::{BRIDGE, CALICO_DEVICE, CALICO_DEVICE_V6, FLANNEL_DEVICES};
use ipnet::{IpNet, Ipv6Net};

pub use self::legacy::{
    LinkParameters, calico_pods, kept_addresses, legacy_pods, legacy_problems, link_names, neighbours_of,
    on_bridge,
};
use crate::host::netlink::{FELIX, KERNEL, ROUTE_PROTOCOL};
use crate::host::snapshot::{Link, Route, Snapshot};

/// Interfaces that Calico's `first-found` detection skips, by the start of their names.
const SKIPPED: [&str; 16] = [
    "docker",
    "cbr",
    "dummy",
    "virbr",
    "lxcbr",
    "veth",
    "lo",
    "cali",
    "tunl",
    "flannel",
    "kube-ipvs",
    "cni",
    "vxlan.calico",
    "vxlan-v6.calico",
    "wireguard.cali",
    "nodelocaldns",
];

/// Every VXLAN link with its addresses and counts of its objects, sorted by name.
pub fn vxlan_devices(snapshot: &Snapshot) -> Vec<VxlanDevice> {
    let mut devices: Vec<VxlanDevice> = snapshot
        .links
        .iter()
        .filter_map(|link| {
            let vxlan = link.vxlan.as_ref()?;
            let own = snapshot.of_link(link.index);
            let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
            Some(VxlanDevice {
                name: link.name.clone(),
                vni: vxlan.vni,
                port: vxlan.port,
                mtu: link.mtu,
                local: vxlan.local,
                parent: vxlan
                    .parent
                    .and_then(|index| snapshot.name(index))
                    .map(str::to_owned),
                learning: vxlan.learning,
                mac: link.mac.clone(),
                up: link.up,
                addresses: addresses(snapshot, link),
                routes: count(
                    own.routes
                        .iter()
                        .filter(|route| is_configured(&route.destination))
                        .count(),
                ),
                block_routes: count(block_routes(link, &own.routes)),
                neighbours: count(own.neighbours.len()),
                forwarding_entries: count(own.forwarding.len()),
            })
        })
        .collect();
    devices.sort_by(|one, other| one.name.cmp(&other.name));
    devices
}

/// The bridge of flannel's CNI plugin. A link with its name of another kind is malformed.
pub fn bridge(snapshot: &Snapshot, answers_for_pods: bool, parameters: &LinkParameters) -> Found<Bridge> {
    let Some(link) = snapshot.link(BRIDGE) else {
        return Found::Absent;
    };
    if link.kind != "bridge" {
        return Found::Malformed(format!(
            "kind of link {BRIDGE} is {:?}, needed \"bridge\"",
            link.kind
        ));
    }
    let mut ports: Vec<String> = snapshot
        .links
        .iter()
        .filter(|port| port.controller == Some(link.index))
        .map(|port| port.name.clone())
        .collect();
    ports.sort();
    Found::Present(Bridge {
        name: link.name.clone(),
        mtu: link.mtu,
        addresses: addresses(snapshot, link),
        ports,
        answers_for_pods,
        answered: answered(snapshot, link),
        open: parameters.loose.contains(BRIDGE) && parameters.frame_rules.iter().any(|rule| rule == BRIDGE),
    })
}

/// IPv6 addresses that a link answers for.
fn answered(snapshot: &Snapshot, link: &Link) -> Vec<Ipv6Net> {
    let own = snapshot.proxies.iter().filter(|proxy| proxy.link == link.index);
    Ipv6Net::aggregate(&own.map(|proxy| Ipv6Net::from(proxy.address)).collect())
}

/// Whether a link has a configured IPv6 address.
pub fn speaks_ipv6(snapshot: &Snapshot, name: &str) -> bool {
    snapshot.link(name).is_some_and(|link| {
        addresses(snapshot, link)
            .iter()
            .any(|address| matches!(address, IpNet::V6(_)))
    })
}

/// Calico's blackhole routes for its own blocks.
pub fn blackholes(snapshot: &Snapshot) -> impl Iterator<Item = &Route> {
    snapshot.blackholes.iter().filter(|route| route.protocol == FELIX)
}

/// replumb's routes to single pods.
pub fn pod_routes(snapshot: &Snapshot) -> impl Iterator<Item = &Route> {
    snapshot
        .routes
        .iter()
        .filter(|route| route.protocol == ROUTE_PROTOCOL)
}

/// Number of a tunnel's routes that Calico creates: with its route protocol, or to the tunnel end of another node. flannel
/// creates neither.
fn block_routes(tunnel: &Link, own: &[Route]) -> usize {
    if !is_tunnel(&tunnel.name) {
        return 0;
    }
    let is_gateway = |address: IpAddr| {
        let mut hops = own.iter().flat_map(|route| &route.hops);
        hops.any(|(gateway, _)| *gateway == Some(address))
    };
    // Other routes through the tunnel belong to other programs.
    let is_end = |route: &Route| {
        let direct = route.hops.iter().all(|(gateway, _)| gateway.is_none());
        let is_address = route.destination.prefix_len() == route.destination.max_prefix_len();
        direct && is_address && is_gateway(route.destination.addr())
    };
    own.iter()
        .filter(|route| route.protocol != KERNEL && is_configured(&route.destination))
        .filter(|route| route.protocol == FELIX || is_end(route))
        .count()
}

/// Counts routes to whole subnets: existing ones, and nodes behind the IPv6 tunnel without one.
pub fn subnet_routes(snapshot: &Snapshot) -> SubnetRoutes {
    let is_ipv6_tunnel =
        |link: &&Link| link.name == CALICO_DEVICE_V6 || link.name.starts_with(FLANNEL_DEVICES[1]);
    let missing = snapshot.links.iter().filter(is_ipv6_tunnel).map(|link| {
        let own = snapshot.of_link(link.index);
        let existing: BTreeSet<IpAddr> = own
            .subnet_routes
            .iter()
            .flat_map(|route| &route.hops)
            .filter_map(|(gateway, _)| *gateway)
            .collect();
        own.ipv6_ends()
            .keys()
            .filter(|end| !existing.contains(*end))
            .count()
    });
    let count = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    SubnetRoutes {
        found: count(snapshot.subnet_routes.len()),
        missing: count(missing.sum()),
        looked_up: snapshot.subnet_rule,
    }
}

/// Whether a link has the name of a tunnel of flannel or Calico, in either family.
fn is_tunnel(name: &str) -> bool {
    FLANNEL_DEVICES.iter().any(|start| name.starts_with(start))
        || [CALICO_DEVICE, CALICO_DEVICE_V6].contains(&name)
}

/// Maximum number of reported routes: one already fails the check, and with `DirectRouting` there is one to each other node.
const MOST_DIRECT_ROUTES: usize = 20;

/// Routes to pods of other nodes that do not use a tunnel. Without flannel's networks such routes cannot be recognized.
pub fn direct_routes(snapshot: &Snapshot, networks: &[IpNet]) -> Vec<DirectRoute> {
    let mut routes = Vec::new();
    for route in &snapshot.routes {
        let destination = route.destination;
        if !networks.iter().any(|network| network.contains(&destination)) {
            continue;
        }
        for (gateway, link) in &route.hops {
            let Some(link) = link.and_then(|index| snapshot.links.iter().find(|link| link.index == index))
            else {
                continue;
            };
            let Some(gateway) = gateway else { continue };
            if link.vxlan.is_none() && link.name != BRIDGE {
                routes.push(DirectRoute {
                    destination,
                    gateway: *gateway,
                    link: link.name.clone(),
                });
            }
        }
    }
    routes.sort_by_key(|route| (route.destination, route.gateway));
    routes.truncate(MOST_DIRECT_ROUTES);
    routes
}

/// The address that Calico's `first-found` detection selects, and its interface: the detection checks the interfaces in reverse
/// order, skips those of container networks, and selects the first global unicast address of the family.
pub fn detected_address(snapshot: &Snapshot, family: Family) -> Option<(IpAddr, String)> {
    snapshot
        .links
        .iter()
        .rev()
        .filter(|link| {
            // `wg-v6.cali` carries IPv6 only, so that the list above does not contain it.
            !SKIPPED.iter().any(|prefix| link.name.starts_with(prefix))
        })
        .find_map(|link| {
            let address = snapshot
                .addresses
                .iter()
                .filter(|address| address.link == link.index)
                .map(|address| address.address.addr())
                .find(|address| match (family, address) {
                    (Family::Ipv4, IpAddr::V4(address)) => is_global_unicast(*address),
                    (Family::Ipv6, IpAddr::V6(address)) => is_global_unicast_ipv6(*address),
                    (Family::Ipv4, IpAddr::V6(_)) | (Family::Ipv6, IpAddr::V4(_)) => false,
                })?;
            Some((address, link.name.clone()))
        })
}

/// The interface of the default route with the lowest metric, else the interface with the address that Calico would select.
pub fn uplink(snapshot: &Snapshot) -> Option<String> {
    snapshot
        .routes
        .iter()
        .filter(|route| matches!(route.destination, IpNet::V4(net) if net.prefix_len() == 0))
        .min_by_key(|route| route.metric)
        .and_then(|route| route.hops.first()?.1)
        .and_then(|index| snapshot.name(index))
        .map(str::to_owned)
        .or_else(|| detected_address(snapshot, Family::Ipv4).map(|(_, link)| link))
}

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// Like Go's definition, which Calico uses: unique local addresses (`fc00::/7`) count.
fn is_global_unicast_ipv6(address: Ipv6Addr) -> bool {
    !(address.is_unspecified()
        || address.is_loopback()
        || address.is_multicast()
        || address.is_unicast_link_local())
}

fn is_global_unicast(address: Ipv4Addr) -> bool {
    !(address.is_unspecified()
        || address.is_loopback()
        || address.is_multicast()
        || address.is_link_local()
        || address.is_broadcast())
}

/// Whether an address is configured: link-local IPv6 addresses are created automatically with a link.
fn is_configured(net: &IpNet) -> bool {
    !matches!(net, IpNet::V6(net) if net.addr().is_unicast_link_local())
}

fn addresses(snapshot: &Snapshot, link: &Link) -> Vec<IpNet> {
    snapshot
        .addresses
        .iter()
        .filter(|address| address.link == link.index)
        .map(|address| address.address)
        .filter(is_configured)
        .collect()
}

#[cfg(test)]
mod tests;
