//! Changes by netlink except deletion: routes to pods, the name of a link, recreation of a VXLAN link from the journal.

use std::net::IpAddr;

use flannel_to_calico::objects::blocks;
use ipnet::IpNet;
use netlink_packet_route::neighbour::{NeighbourFlags, NeighbourState};
use netlink_packet_route::route::{RouteMessage, RouteProtocol, RouteScope, RouteType};
use rtnetlink::{LinkVxlan, RouteMessageBuilder};

use super::Netlink;
use super::request::{NetlinkError, answer, request};
use crate::host::snapshot::{Link, MAIN_TABLE, Route, Snapshot};

/// Route protocol of replumb's routes: a number that no routing daemon in iproute2's list has.
pub const ROUTE_PROTOCOL: u8 = 82;
/// Route protocol of Felix: Felix adds and removes routes with this number on its device.
pub const FELIX: u8 = 80;
/// Route protocol of routes that the kernel creates together with an address.
pub const KERNEL: u8 = 2;
/// Route protocol of flannel's routes: the default of netlink clients.
pub(super) const BOOT: u8 = 3;

/// The kernel's metric of a route that comes with an IPv6 address.
const METRIC_OF_ADDRESSES: u32 = 256;

impl Netlink {
    /// Adds a route to one address through a link, or replaces an existing one.
    ///
    /// # Errors
    ///
    /// The kernel refuses the request, or the netlink socket fails.
    pub async fn add_host_route(&self, address: IpAddr, link: u32) -> Result<(), NetlinkError> {
        self.add_route(&host_route(address, link)).await
    }

    /// Adds Felix' routes beside each route of a tunnel to a node: one to the node's end of the tunnel, and one to each of the
    /// node's address blocks. The next hop is the same, so that no packet takes another path.
    ///
    /// # Errors
    ///
    /// The kernel refuses the request, or the netlink socket fails.
    pub async fn add_block_routes(&self, tunnel: &Snapshot, block_size: u8) -> Result<(), NetlinkError> {
        for route in &tunnel.routes {
            let [(Some(gateway), Some(link))] = route.hops.as_slice() else {
                continue;
            };
            let range = route.destination;
            // A node's range is never smaller than a block: a smaller one is a route to a block already.
            let Ok(blocks) = blocks(range, block_size) else {
                continue;
            };
            if range.prefix_len() == block_size {
                continue;
            }
            self.add_route(&Route {
                protocol: FELIX,
                ..host_route(*gateway, *link)
            })
            .await?;
            for block in blocks {
                self.add_route(&Route {
                    destination: block,
                    protocol: FELIX,
                    ..route.clone()
                })
                .await?;
            }
        }
        Ok(())
    }

    /// The reverse of [`Self::add_block_routes`]: adds flannel's route to each node behind the tunnel, then deletes all other
    /// routes. The routes to the nodes' tunnel ends are deleted last: while one remains, this step is not complete.
    ///
    /// # Errors
    ///
    /// The kernel refuses the request, or the netlink socket fails.
    pub async fn restore_node_routes(&self, tunnel: &Snapshot, length: u8) -> Result<(), NetlinkError> {
        let mut kept: Vec<IpNet> = Vec::new();
        for route in &tunnel.routes {
            let [(Some(gateway), Some(_))] = route.hops.as_slice() else {
                continue;
            };
            // A node exists if a route leads into the range whose tunnel end is the gateway.
            let Ok(range) = IpNet::new(*gateway, length) else {
                continue;
            };
            let leads_there = range.network() == *gateway && range.contains(&route.destination);
            if !leads_there || kept.contains(&range) {
                continue;
            }
            self.add_route(&Route {
                destination: range,
                protocol: BOOT,
                ..route.clone()
            })
            .await?;
            kept.push(range);
        }
        // Other routes through the tunnel belong to other programs.
        let is_end = |route: &Route| {
            kept.iter()
                .any(|range| route.destination == IpNet::from(range.network()))
        };
        let is_block = |route: &Route| {
            let block = route.destination;
            let inside = |range: &IpNet| range.contains(&block) && *range != block;
            kept.iter().any(inside)
        };
        let ours = |route: &&Route| route.protocol != KERNEL && (route.protocol == FELIX || is_block(route));
        for ends in [false, true] {
            for route in tunnel.routes.iter().filter(ours) {
                let stays = kept.contains(&route.destination);
                if is_end(route) == ends && !stays {
                    self.delete_route(route).await?;
                }
            }
        }
        Ok(())
    }

    /// Adds the routes again that the kernel creates with an IPv6 address, and that Felix deletes from its device.
    ///
    /// # Errors
    ///
    /// The kernel refuses the request, or the netlink socket fails.
    pub async fn restore_own_routes(&self, tunnel: &Snapshot) -> Result<(), NetlinkError> {
        for address in &tunnel.addresses {
            let own = address.address.trunc();
            let is_there = tunnel.routes.iter().any(|route| route.destination == own);
            let IpNet::V6(own_of_ipv6) = own else { continue };
            if is_there || own_of_ipv6.addr().is_unicast_link_local() {
                continue;
            }
            self.add_route(&Route {
                destination: own,
                hops: vec![(None, Some(address.link))],
                protocol: KERNEL,
                scope: u8::from(RouteScope::Universe),
                on_link: false,
                source: None,
                metric: METRIC_OF_ADDRESSES,
                table: MAIN_TABLE,
            })
            .await?;
        }
        Ok(())
    }

    /// Deletes a route of a snapshot. A missing route is not an error.
    ///
    /// # Errors
    ///
    /// The kernel refuses the request, or the netlink socket fails.
    pub async fn delete_route(&self, route: &Route) -> Result<(), NetlinkError> {
        let message = message(route)?;
        match answer(self.handle.route().del(message).execute()).await {
            Err(rtnetlink::Error::NetlinkError(message))
                if message.raw_code() == -(nix::errno::Errno::ESRCH as i32) =>
            {
                Ok(())
            }
            Err(source) => Err(request(
                format!("delete the route to {}", route.destination),
                source,
            )),
            Ok(()) => Ok(()),
        }
    }

    /// Creates a VXLAN link with this name and the attributes, addresses, neighbours, forwarding entries and routes in `saved`.
    /// Existing objects are kept or replaced, so that an interrupted call can be repeated.
    ///
    /// # Errors
    ///
    /// `saved` has no link, the kernel refuses a request, or the netlink socket fails.
    pub async fn restore_vxlan(&self, saved: &Snapshot, name: &str) -> Result<u32, NetlinkError> {
        let Some(link) = saved.links.first() else {
            return Err(request(
                format!("recreate link {name}: the journal has no record of it"),
                rtnetlink::Error::RequestFailed,
            ));
        };
        let mut links = self.links().await?;
        if !links.iter().any(|other| other.name == name) {
            self.create_vxlan(link, name).await?;
            links = self.links().await?;
        }
        let Some(index) = links
            .iter()
            .find(|other| other.name == name)
            .map(|other| other.index)
        else {
            return Err(request(
                format!("find link {name}, which was created a moment ago"),
                rtnetlink::Error::RequestFailed,
            ));
        };
        if let Some(found) = links.iter().find(|other| other.index == index && !other.up)
            && link.up
        {
            self.set_up(found, true).await?;
        }
        for address in &saved.addresses {
            let (own, length) = (address.address.addr(), address.address.prefix_len());
            answer(self.handle.address().add(index, own, length).replace().execute())
                .await
                .map_err(|source| request(format!("add {} to link {name}", address.address), source))?;
        }
        for neighbour in &saved.neighbours {
            let add = self
                .handle
                .neighbours()
                .add(index, neighbour.address)
                .link_layer_address(&bytes(&neighbour.mac));
            answer(add.replace().execute()).await.map_err(|source| {
                request(
                    format!("add neighbour {} to link {name}", neighbour.address),
                    source,
                )
            })?;
        }
        for entry in &saved.forwarding {
            let add = self
                .handle
                .neighbours()
                .add_bridge(index, &bytes(&entry.mac))
                .flags(NeighbourFlags::Own)
                .state(if entry.permanent {
                    NeighbourState::Permanent
                } else {
                    NeighbourState::Reachable
                });
            let add = match entry.destination {
                Some(destination) => add.destination(destination),
                None => add,
            };
            answer(add.replace().execute()).await.map_err(|source| {
                request(
                    format!("add forwarding entry {} to link {name}", entry.mac),
                    source,
                )
            })?;
        }
        let routes = saved.routes.iter().chain(&saved.subnet_routes);
        for route in routes.filter(|route| route.protocol != KERNEL) {
            self.add_route(&route.through(index)).await?;
        }
        Ok(index)
    }

    async fn create_vxlan(&self, link: &Link, name: &str) -> Result<(), NetlinkError> {
        let vxlan = link.vxlan.clone().unwrap_or_default();
        let mut message = LinkVxlan::new(name, vxlan.vni)
            .port(vxlan.port)
            .learning(vxlan.learning)
            .mtu(link.mtu)
            .address(bytes(&link.mac));
        // The host may have been restarted since: the link that has the address counts, not the saved index.
        let addresses = self.addresses().await?;
        let carrier = addresses
            .iter()
            .find(|address| Some(address.address.addr()) == vxlan.local)
            .map(|address| address.link);
        if let Some(parent) = carrier.or(vxlan.parent) {
            message = message.dev(parent);
        }
        message = match vxlan.local {
            Some(IpAddr::V4(local)) => message.local(local),
            Some(IpAddr::V6(local)) => message.local6(local),
            None => message,
        };
        if link.up {
            message = message.up();
        }
        answer(self.handle.link().add(message.build()).execute())
            .await
            .map_err(|source| request(format!("create VXLAN link {name}"), source))
    }

    pub(super) async fn add_route(&self, route: &Route) -> Result<(), NetlinkError> {
        answer(self.handle.route().add(message(route)?).replace().execute())
            .await
            .map_err(|source| request(format!("add the route to {}", route.destination), source))
    }
}

/// A route to one address directly on the link.
fn host_route(address: IpAddr, link: u32) -> Route {
    Route {
        destination: address.into(),
        hops: vec![(None, Some(link))],
        protocol: ROUTE_PROTOCOL,
        scope: u8::from(RouteScope::Link),
        on_link: false,
        source: None,
        metric: 0,
        table: MAIN_TABLE,
    }
}

fn message(route: &Route) -> Result<RouteMessage, NetlinkError> {
    let malformed = |error: &dyn std::error::Error| {
        request(
            format!("build the route to {}: {error}", route.destination),
            rtnetlink::Error::RequestFailed,
        )
    };
    let mut builder = RouteMessageBuilder::<IpAddr>::new()
        .destination_prefix(route.destination.addr(), route.destination.prefix_len())
        .map_err(|error| malformed(&error))?
        .protocol(RouteProtocol::from(route.protocol))
        .scope(RouteScope::from(route.scope))
        .table_id(route.table);
    if route.hops.is_empty() {
        builder = builder.kind(RouteType::BlackHole);
    }
    // Routes of tunnels have one next hop; replumb creates no route with several.
    if let Some((gateway, link)) = route.hops.first() {
        if let Some(link) = link {
            builder = builder.output_interface(*link);
        }
        if let Some(gateway) = gateway {
            builder = builder.gateway(*gateway).map_err(|error| malformed(&error))?;
        }
    }
    if route.on_link {
        builder = builder.onlink();
    }
    if let Some(source) = route.source {
        builder = builder.pref_source(source).map_err(|error| malformed(&error))?;
    }
    if route.metric != 0 {
        builder = builder.priority(route.metric);
    }
    Ok(builder.build())
}

/// A link-layer address as bytes; parts that are not hexadecimal are omitted.
pub(super) fn bytes(mac: &str) -> Vec<u8> {
    mac.split(':')
        .filter_map(|part| u8::from_str_radix(part, 16).ok())
        .collect()
}
