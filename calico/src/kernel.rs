//! Finds the entries of the kernel's tables that overlap with some ranges, and tells which of them are Calico's. Foreign entries
//! come first in each list, because a long list is cut and Calico has many entries.

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
/// Prefix of the names of Calico's veth interfaces to pods.
const PODS: &str = "cali";

/// Entries that overlap with some ranges, for any kind of migration.
pub struct Overlapping {
    /// All such routes.
    pub routes: Vec<Route>,
    /// Addresses of links.
    pub addresses: Listed<Address>,
    /// Rules.
    pub rules: Listed<Rule>,
}

/// Entries that overlap with any of these ranges, except default routes and the routes and links of the owner of the ranges.
pub fn overlapping(
    ranges: &[IpNet],
    tables: &Tables,
    is_its_route: impl Fn(&Route) -> bool,
    is_its_link: impl Fn(&str) -> bool,
) -> Overlapping {
    let shares = |net: &IpNet| net.prefix_len() > 0 && ranges.iter().any(|range| overlap(net, range));
    Overlapping {
        routes: sorted_routes(tables, |route| shares(&route.destination) && !is_its_route(route)),
        addresses: addresses(tables, |address| {
            shares(&address.address) && !is_its_link(&address.link)
        }),
        rules: rules(tables, shares),
    }
}

/// Routes that are wanted, foreign ones first: a long list is cut, and Calico has many routes.
pub fn sorted_routes(tables: &Tables, wanted: impl Fn(&Route) -> bool) -> Vec<Route> {
    let mut routes: Vec<Route> = tables
        .routes
        .iter()
        .filter(|route| wanted(route) && !comes_with_an_address(route, tables))
        .cloned()
        .collect();
    routes.sort_by(|left, right| {
        let key = |route: &Route| {
            (
                is_calico_route(route),
                route.table,
                route.destination,
                route.metric,
            )
        };
        key(left)
            .cmp(&key(right))
            .then_with(|| left.hops.cmp(&right.hops))
    });
    routes
}

/// Addresses of links that are wanted, foreign ones first.
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
    addresses.sort_by_cached_key(|address| (is_calico_link(&address.link), address.clone()));
    addresses.into_iter().collect()
}

/// Rules whose source or destination is wanted.
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

/// Whether the kernel adds the route with an address and removes it with the address. The address is listed instead.
fn comes_with_an_address(route: &Route, tables: &Tables) -> bool {
    if route.protocol != KERNEL {
        return false;
    }
    let mut devices = tables.devices.iter().filter(|device| match route.kind {
        // Some kernels name the loopback link here.
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
    // A peer address (`peer`) also has a route, and is not in the network of the address.
    devices.any(|device| {
        let mut networks = device.addresses.iter().map(IpNet::trunc);
        networks.any(|network| network.contains(&route.destination))
    })
}

/// Whether the route leads to a single address through the interface of a pod of this host.
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

/// Whether Calico added the route: it has Calico's protocol number, or goes through Calico's links (older versions and the CNI
/// plugin set no number).
pub fn is_calico_route(route: &Route) -> bool {
    let is_calicos_hop = |link: &Option<String>| link.as_deref().is_some_and(is_calico_link);
    route.protocol == FELIX
        || (!route.hops.is_empty() && route.hops.iter().all(|hop| is_calicos_hop(&hop.link)))
}

/// Whether the link is a tunnel of Calico, or Calico's interface to a pod.
pub fn is_calico_link(name: &str) -> bool {
    is_tunnel(name) || name.starts_with(PODS)
}

/// Whether the link is a tunnel of Calico.
pub fn is_tunnel(name: &str) -> bool {
    TUNNELS.contains(&name)
}
