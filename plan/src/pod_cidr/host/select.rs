//! What of the kernel's tables lies in either range.

use ipnet::IpNet;

use super::entry::{BIRD, FELIX, KERNEL, MAIN_TABLE};
use super::{
    Address, Conflist, Device, HostFacts, HostSettings, InNew, InOld, Listed, Route, RouteKind, Rule, Uplink,
};
use crate::found::Found;
use crate::ranges::overlap;

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

/// The kernel's tables of one network namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// Every link.
    pub devices: Vec<Device>,
    /// Every route of every table, both families.
    pub routes: Vec<Route>,
    /// Every rule, both families.
    pub rules: Vec<Rule>,
}

/// Chooses what counts for the change from one range to the other.
pub fn facts(settings: &HostSettings, conflist: Found<Conflist>, tables: &Tables) -> HostFacts {
    let mut tunnels: Vec<Device> = tables
        .devices
        .iter()
        .filter(|device| is_tunnel(&device.name))
        .cloned()
        .collect();
    tunnels.sort_by(|left, right| left.name.cmp(&right.name));
    HostFacts {
        conflist,
        in_old: in_old(settings, tables),
        in_new: in_new(&settings.to, tables),
        tunnels,
        uplink: uplink(&settings.to, tables),
    }
}

fn in_old(settings: &HostSettings, tables: &Tables) -> InOld {
    // A pod whose address is in the new range, too, has nowhere to go.
    let is_old = |net: &IpNet| settings.from.contains(net) && !settings.to.contains(net);
    let routes = listed_routes(tables, |route| is_old(&route.destination));
    let (discards, others): (Vec<Route>, Vec<Route>) =
        routes.into_iter().partition(|route| route.kind.discards());
    let (pods, blocks): (Vec<Route>, Vec<Route>) = others.into_iter().partition(is_to_pod);
    InOld {
        pods: pods.into_iter().collect(),
        blocks: blocks.into_iter().collect(),
        discards: discards.into_iter().collect(),
        addresses: addresses(tables, |address| is_old(&IpNet::from(address.address.addr()))),
        rules: rules(tables, is_old),
    }
}

/// What shares an address with this range, and is not Calico's.
fn in_new(to: &IpNet, tables: &Tables) -> InNew {
    let Shared {
        routes,
        addresses,
        rules,
    } = shared(std::slice::from_ref(to), tables, is_calicos, is_calicos_link);
    // The one that reaches beyond the pool is nobody's block.
    let (announced, routes): (Vec<Route>, Vec<Route>) = routes
        .into_iter()
        .partition(|route| route.protocol == BIRD && to.contains(&route.destination));
    InNew {
        routes: routes.into_iter().collect(),
        announced: announced.into_iter().collect(),
        addresses,
        rules,
    }
}

/// What shares an address with some ranges, whatever kind of migration asks.
pub(crate) struct Shared {
    /// Routes, all of them.
    pub(crate) routes: Vec<Route>,
    /// Addresses of links.
    pub(crate) addresses: Listed<Address>,
    /// Rules.
    pub(crate) rules: Listed<Rule>,
}

/// What shares an address with any of these ranges; default routes aside, and the routes and links of whom the ranges are for.
pub(crate) fn shared(
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
fn listed_routes(tables: &Tables, wanted: impl Fn(&Route) -> bool) -> Vec<Route> {
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

fn addresses(tables: &Tables, wanted: impl Fn(&Address) -> bool) -> Listed<Address> {
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

fn rules(tables: &Tables, wanted: impl Fn(&IpNet) -> bool) -> Listed<Rule> {
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
fn is_to_pod(route: &Route) -> bool {
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
fn is_calicos(route: &Route) -> bool {
    let is_calicos_hop = |link: &Option<String>| link.as_deref().is_some_and(is_calicos_link);
    route.protocol == FELIX
        || (!route.hops.is_empty() && route.hops.iter().all(|hop| is_calicos_hop(&hop.link)))
}

fn is_calicos_link(name: &str) -> bool {
    is_tunnel(name) || name.starts_with(PODS)
}

fn is_tunnel(name: &str) -> bool {
    TUNNELS.contains(&name)
}

/// The link of the default route with the lowest metric in the main table.
fn uplink(range: &IpNet, tables: &Tables) -> Option<Uplink> {
    let is_default = |route: &&Route| {
        route.kind == RouteKind::Unicast
            && route.table == MAIN_TABLE
            && route.destination.prefix_len() == 0
            && route.destination.addr().is_ipv4() == range.addr().is_ipv4()
    };
    let route = tables
        .routes
        .iter()
        .filter(is_default)
        .min_by_key(|route| route.metric)?;
    let name = route.hops.first()?.link.as_deref()?;
    let device = tables.devices.iter().find(|device| device.name == name)?;
    Some(Uplink {
        name: device.name.clone(),
        mtu: device.mtu,
    })
}
