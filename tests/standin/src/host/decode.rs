//! Converts the kernel's messages to the types of the stand-in.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use netlink_packet_route::link::{InfoData, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteMetric, RouteType,
};

use super::{Link, Mac, Route, Target, Vxlan};

/// A device.
pub fn link(message: &LinkMessage) -> Link {
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        up: message.header.flags.contains(LinkFlags::Up),
        mtu: 0,
        mac: None,
        vxlan: None,
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Address(bytes) => link.mac = mac(bytes),
            LinkAttribute::LinkInfo(infos) => {
                link.vxlan = infos.iter().find_map(|info| match info {
                    LinkInfo::Data(InfoData::Vxlan(data)) => vxlan(data),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    link
}

fn vxlan(data: &[InfoVxlan]) -> Option<Vxlan> {
    let (mut vni, mut parent, mut local, mut port) = (None, None, None, None);
    for info in data {
        match info {
            InfoVxlan::Id(value) => vni = Some(*value),
            InfoVxlan::Link(value) => parent = Some(*value),
            InfoVxlan::Local(value) => local = Some(*value),
            InfoVxlan::Port(value) => port = Some(*value),
            _ => {}
        }
    }
    Some(Vxlan {
        vni: vni?,
        parent: parent?,
        local: local?,
        port: port?,
    })
}

fn mac(bytes: &[u8]) -> Option<Mac> {
    bytes.try_into().ok().map(Mac)
}

/// A route; `None` for a route of another table than the main one.
pub fn route(message: &RouteMessage) -> Option<Route> {
    let (mut table, mut destination) = (u32::from(message.header.table), Ipv4Addr::UNSPECIFIED);
    let (mut device, mut gateway, mut mtu) = (None, None, None);
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(value) => table = *value,
            RouteAttribute::Destination(RouteAddress::Inet(value)) => destination = *value,
            RouteAttribute::Gateway(RouteAddress::Inet(value)) => gateway = Some(*value),
            RouteAttribute::Oif(value) => device = Some(*value),
            RouteAttribute::Metrics(metrics) => {
                mtu = metrics.iter().find_map(|metric| match metric {
                    RouteMetric::Mtu(value) => Some(*value),
                    _ => None,
                });
            }
            _ => {}
        }
    }
    if table != u32::from(RouteHeader::RT_TABLE_MAIN) {
        return None;
    }
    let target = match (message.header.kind, device, gateway) {
        (RouteType::BlackHole, _, _) => Target::Blackhole,
        (RouteType::Unicast, Some(device), Some(gateway))
            if message.header.flags.contains(RouteFlags::Onlink) =>
        {
            Target::Gateway(device, gateway)
        }
        (RouteType::Unicast, Some(device), Some(gateway)) => Target::Router(device, gateway),
        (RouteType::Unicast, Some(device), None) => Target::Device(device),
        _ => Target::Other,
    };
    let destination = Ipv4Net::new(destination, message.header.destination_prefix_length).ok()?;
    Some(Route {
        destination,
        target,
        protocol: message.header.protocol.into(),
        mtu,
    })
}

/// A hardware address and the address to which it belongs, or the host behind which it is.
pub fn neighbour(message: &NeighbourMessage) -> Option<(Mac, Ipv4Addr)> {
    let (mut hardware, mut address) = (None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::LinkLayerAddress(bytes) => hardware = mac(bytes),
            NeighbourAttribute::Destination(NeighbourAddress::Inet(value)) => address = Some(*value),
            // The family of a forwarding entry does not tell the family of the host behind it.
            NeighbourAttribute::Destination(NeighbourAddress::Other(bytes)) => {
                address = <[u8; 4]>::try_from(bytes.as_slice()).ok().map(Ipv4Addr::from);
            }
            _ => {}
        }
    }
    Some((hardware?, address?))
}
