//! What of the kernel's tables shares an address with some ranges, and what of it is Calico's. Somebody else's comes first in each list: of many
//! only the first are listed, and Calico's are many.

use engine::kernel::{Address, FELIX, KERNEL, Listed, Route, RouteKind, Rule, Tables};
use engine::ranges::overlap;
use ipnet::IpNet;

/// Calico's tunnel links: VXLAN, IPIP and `WireGuard`.
const TUNNELS: [&str; 5] = [
    "vxlan.calico",
    "vxlan-v6.calico",
    "tunl0",
    "wireguard.cali",
    "wg-v6.cali",
];
/// Beginning of the names of Calico's ends of cables to pods.
const PODS: &str = "cali";

/// What shares an address with some ranges, whatever kind of migration asks.
pub struct Shared {
    /// Routes, all of them.
    pub routes: Vec<Route>,
    /// Addresses of links.
    pub addresses: Listed<Address>,
    /// Rules.
    pub rules: Listed<Rule>,
}

/// What shares an address with any of these ranges; default routes aside, and the routes and links of whom the ranges are for.
pub fn shared(
    ranges: &[IpNet],
    tables: &Tables,
    is_its_route: impl Fn(&Route) -> bool,
    is_its_link: impl Fn(&str) -> bool,
) -> Shared {
    let shares = |net: &IpNet| net.prefix_len() > 0 && ranges.iter().any(|range| overlap(net, range));
    Shared {
        routes: listed_routes(tables, |route| shares(&route.destination) && !is_its_route(route)),
        addresses: addresses(tables, |address| {
            shares(&address.address) && !is_its_link(&address.link)
        }),
        rules: rules(tables, shares),
    }
}

/// Those that are wanted, somebody else's first: of many only the first are listed, and Calico's are many.
pub fn listed_routes(tables: &Tables, wanted: impl Fn(&Route) -> bool) -> Vec<Route> {
    let mut routes: Vec<Route> = tables
        .routes
        .iter()
        .filter(|route| wanted(route) && !comes_with_an_address(route, tables))
        .cloned()
        .collect();
    routes.sort_by(|left, right| {
        let key = |route: &Route| (is_calicos(route), route.table, route.destination, route.metric);
        key(left)
            .cmp(&key(right))
            .then_with(|| left.hops.cmp(&right.hops))
    });
    routes
}

/// Addresses of links that are wanted, somebody else's first.
pub fn addresses(tables: &Tables, wanted: impl Fn(&Address) -> bool) -> Listed<Address> {
    let mut addresses: Vec<Address> = tables
        .devices
        .iter()
        .flat_map(|device| {
            device.addresses.iter().map(|address| Address {
                address: *address,
                link: device.name.clone(),
            })
        })
        .filter(|address| wanted(address))
        .collect();
    addresses.sort_by_cached_key(|address| (is_calicos_link(&address.link), address.clone()));
    addresses.into_iter().collect()
}

/// Rules of which an end is wanted.
pub fn rules(tables: &Tables, wanted: impl Fn(&IpNet) -> bool) -> Listed<Rule> {
    let mut rules: Vec<Rule> = tables
        .rules
        .iter()
        .filter(|rule| [&rule.from, &rule.to].into_iter().flatten().any(&wanted))
        .cloned()
        .collect();
    rules.sort();
    rules.into_iter().collect()
}

/// What the kernel adds by itself for an address, and takes away with it: the address stands for it.
fn comes_with_an_address(route: &Route, tables: &Tables) -> bool {
    if route.protocol != KERNEL {
        return false;
    }
    let mut devices = tables.devices.iter().filter(|device| match route.kind {
        // Some kernels name the loopback here.
        RouteKind::Local | RouteKind::Broadcast | RouteKind::Anycast => true,
        RouteKind::Unicast
        | RouteKind::Multicast
        | RouteKind::Blackhole
        | RouteKind::Unreachable
        | RouteKind::Prohibit
        | RouteKind::Throw
        | RouteKind::Other => {
            let mut links = route.hops.iter().map(|hop| hop.link.as_deref());
            links.all(|link| link == Some(&device.name))
        }
    });
    // The other end of a cable (`peer`) has a route, too, and is not in the address's network.
    devices.any(|device| {
        let mut networks = device.addresses.iter().map(IpNet::trunc);
        networks.any(|network| network.contains(&route.destination))
    })
}

/// Whether it is a route to a single address through the interface of a pod of this host.
pub fn is_to_pod(route: &Route) -> bool {
    let is_pods = |link: &Option<String>| link.as_deref().is_some_and(|name| name.starts_with(PODS));
    route.kind == RouteKind::Unicast
        && route.destination.prefix_len() == route.destination.max_prefix_len()
        && !route.hops.is_empty()
        && route
            .hops
            .iter()
            .all(|hop| hop.gateway.is_none() && is_pods(&hop.link))
}

/// Whether Calico laid it: under its number, or through its links, where older versions and its CNI plugin give no number.
pub fn is_calicos(route: &Route) -> bool {
    let is_calicos_hop = |link: &Option<String>| link.as_deref().is_some_and(is_calicos_link);
    route.protocol == FELIX
        || (!route.hops.is_empty() && route.hops.iter().all(|hop| is_calicos_hop(&hop.link)))
}

/// Whether it is a tunnel of Calico's, or its end of a cable to a pod.
pub fn is_calicos_link(name: &str) -> bool {
    is_tunnel(name) || name.starts_with(PODS)
}

/// Whether it is a tunnel of Calico's.
pub fn is_tunnel(name: &str) -> bool {
    TUNNELS.contains(&name)
}
