//! Converts the kernel's tables: names of links instead of indices. Pure.

use engine::kernel::{self, Device, Hop, RouteKind};
use ipnet::IpNet;

use crate::host::snapshot::{Link, Route, Tables};

/// The tables with names of links.
pub fn tables(tables: &Tables) -> kernel::Tables {
    kernel::Tables {
        devices: tables.links.iter().map(|link| device(tables, link)).collect(),
        routes: tables
            .routes
            .iter()
            .map(|(kind, found)| route(tables, *kind, found))
            .collect(),
        rules: tables.rules.clone(),
    }
}

fn device(tables: &Tables, link: &Link) -> Device {
    Device {
        name: link.name.clone(),
        mtu: link.mtu,
        up: link.up,
        addresses: tables
            .addresses
            .iter()
            .filter(|address| address.link == link.index)
            .map(|address| address.address)
            // Link-local addresses are created automatically with a link, and are not configuration.
            .filter(|address| !matches!(address, IpNet::V6(net) if net.addr().is_unicast_link_local()))
            .collect(),
    }
}

fn route(tables: &Tables, kind: RouteKind, route: &Route) -> kernel::Route {
    let hop = |(gateway, link): &(Option<std::net::IpAddr>, Option<u32>)| Hop {
        gateway: *gateway,
        link: link.map(|index| name(tables, index)),
    };
    kernel::Route {
        kind,
        destination: route.destination,
        // For a discarding IPv6 route the kernel reports the loopback link as next hop.
        hops: if kind.discards() {
            Vec::new()
        } else {
            route.hops.iter().map(hop).collect()
        },
        table: route.table,
        protocol: route.protocol,
        metric: route.metric,
    }
}

/// The name of a link. A link that was created between the two reads has no name yet: its index is shown, as `ip` does.
fn name(tables: &Tables, index: u32) -> String {
    let link = tables.links.iter().find(|link| link.index == index);
    link.map_or_else(|| format!("if{index}"), |link| link.name.clone())
}

#[cfg(test)]
mod tests;
