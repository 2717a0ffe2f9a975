//! Selection of the entries of the kernel's tables that lie in either range.

use ipnet::IpNet;

use calico::kernel::{
    Overlapping, addresses, is_calico_link, is_calico_route, is_to_pod, is_tunnel, overlapping, rules,
    sorted_routes,
};
use engine::found::Found;
use engine::kernel::{BIRD, Device, MAIN_TABLE, Route, RouteKind, Tables};
use engine::local_traffic::LocalTraffic;

use super::{Conflist, HostFacts, HostSettings, SourceFacts, TargetFacts, Uplink};

/// Selects the entries that are relevant for the change from one range to the other.
pub fn facts(
    settings: &HostSettings,
    conflist: Found<Conflist>,
    local_traffic: Found<LocalTraffic>,
    tables: &Tables,
) -> HostFacts {
    let mut tunnels: Vec<Device> = tables
        .devices
        .iter()
        .filter(|device| is_tunnel(&device.name))
        .cloned()
        .collect();
    tunnels.sort_by(|left, right| left.name.cmp(&right.name));
    HostFacts {
        conflist,
        source: in_old(settings, tables),
        target: in_new(&settings.to, tables),
        tunnels,
        uplink: uplink(&settings.to, tables),
        local_traffic,
    }
}

fn in_old(settings: &HostSettings, tables: &Tables) -> SourceFacts {
    // A pod whose address is also in the target range does not move.
    let is_old = |net: &IpNet| settings.from.contains(net) && !settings.to.contains(net);
    let routes = sorted_routes(tables, |route| is_old(&route.destination));
    let (discards, others): (Vec<Route>, Vec<Route>) =
        routes.into_iter().partition(|route| route.kind.discards());
    let (pods, blocks): (Vec<Route>, Vec<Route>) = others.into_iter().partition(is_to_pod);
    SourceFacts {
        pods: pods.into_iter().collect(),
        blocks: blocks.into_iter().collect(),
        discards: discards.into_iter().collect(),
        addresses: addresses(tables, |address| is_old(&IpNet::from(address.address.addr()))),
        rules: rules(tables, is_old),
    }
}

/// Entries that overlap this range and do not belong to Calico.
fn in_new(to: &IpNet, tables: &Tables) -> TargetFacts {
    let Overlapping {
        routes,
        addresses,
        rules,
    } = overlapping(std::slice::from_ref(to), tables, is_calico_route, is_calico_link);
    // A route that is wider than the pool is no block.
    let (announced, routes): (Vec<Route>, Vec<Route>) = routes
        .into_iter()
        .partition(|route| route.protocol == BIRD && to.contains(&route.destination));
    TargetFacts {
        routes: routes.into_iter().collect(),
        announced: announced.into_iter().collect(),
        addresses,
        rules,
    }
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
