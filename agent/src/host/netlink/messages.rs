//! Converts netlink messages to plain values. Pure.

use std::net::IpAddr;

use flannel_to_calico::host::KEPT_LABEL;
use ipnet::IpNet;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoBridgePort, InfoData, InfoKind, InfoPortData, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo,
    LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType, RouteVia};

use crate::host::snapshot::{ForwardingEntry, Link, MAIN_TABLE, Neighbour, Proxy, Route, Vxlan};

pub(super) fn link(message: &LinkMessage) -> Link {
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        mtu: 0,
        mac: String::new(),
        up: message.header.flags.contains(LinkFlags::Up),
        loopback: message.header.flags.contains(LinkFlags::Loopback),
        controller: None,
        kind: String::new(),
        vxlan: None,
        hairpin: None,
    };
    let mut parent = None;
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Address(bytes) => link.mac = mac(bytes),
            LinkAttribute::Controller(index) => link.controller = Some(*index),
            LinkAttribute::Link(index) if *index != 0 => parent = Some(*index),
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    match info {
                        LinkInfo::Kind(kind) => link.kind = kind_name(kind),
                        LinkInfo::Data(InfoData::Vxlan(attributes)) => link.vxlan = Some(vxlan(attributes)),
                        LinkInfo::PortData(InfoPortData::BridgePort(attributes)) => {
                            link.hairpin = hairpin(attributes);
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    if let Some(vxlan) = &mut link.vxlan {
        vxlan.parent = vxlan.parent.or(parent);
    }
    link
}

fn hairpin(attributes: &[InfoBridgePort]) -> Option<bool> {
    attributes.iter().find_map(|attribute| match attribute {
        InfoBridgePort::HairpinMode(is_on) => Some(*is_on),
        _ => None,
    })
}

fn kind_name(kind: &InfoKind) -> String {
    match kind {
        InfoKind::Bridge => "bridge".to_owned(),
        InfoKind::Vxlan => "vxlan".to_owned(),
        other => other.to_string(),
    }
}

fn vxlan(attributes: &[InfoVxlan]) -> Vxlan {
    let mut vxlan = Vxlan::default();
    for attribute in attributes {
        match attribute {
            InfoVxlan::Id(vni) => vxlan.vni = *vni,
            InfoVxlan::Port(port) => vxlan.port = *port,
            InfoVxlan::Local(address) => vxlan.local = Some(IpAddr::V4(*address)),
            InfoVxlan::Local6(address) => vxlan.local = Some(IpAddr::V6(*address)),
            InfoVxlan::Link(index) if *index != 0 => vxlan.parent = Some(*index),
            InfoVxlan::Learning(learning) => vxlan.learning = *learning,
            _ => {}
        }
    }
    vxlan
}

/// A blackhole route of the main table.
pub(super) fn blackhole(message: &RouteMessage) -> Option<Route> {
    (message.header.kind == RouteType::BlackHole)
        .then(|| any_route(message))
        .flatten()
        .filter(|route| route.table == MAIN_TABLE)
        .map(|route| Route {
            hops: Vec::new(),
            ..route
        })
}

/// A unicast route of this table.
pub(super) fn route(message: &RouteMessage, table: u32) -> Option<Route> {
    (message.header.kind == RouteType::Unicast)
        .then(|| any_route(message))
        .flatten()
        .filter(|route| route.table == table)
}

/// A route of any table and kind.
pub(super) fn any_route(message: &RouteMessage) -> Option<Route> {
    let mut table = u32::from(message.header.table);
    let mut destination = None;
    let mut gateway = None;
    let mut link = None;
    let mut hops = Vec::new();
    let mut source = None;
    let mut metric = 0;
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Table(number) => table = *number,
            RouteAttribute::Destination(address) => destination = route_address(address),
            RouteAttribute::Gateway(address) => gateway = route_address(address),
            RouteAttribute::Via(RouteVia::Inet(address)) => gateway = Some(IpAddr::V4(*address)),
            RouteAttribute::Via(RouteVia::Inet6(address)) => gateway = Some(IpAddr::V6(*address)),
            RouteAttribute::Oif(index) => link = Some(*index),
            RouteAttribute::PrefSource(address) => source = route_address(address),
            RouteAttribute::Priority(priority) => metric = *priority,
            RouteAttribute::MultiPath(paths) => {
                for path in paths {
                    let gateway = path.attributes.iter().find_map(|attribute| match attribute {
                        RouteAttribute::Gateway(address) => route_address(address),
                        _ => None,
                    });
                    hops.push((gateway, Some(path.interface_index)));
                }
            }
            _ => {}
        }
    }
    if hops.is_empty() {
        hops.push((gateway, link));
    }
    let any = match message.header.address_family {
        AddressFamily::Inet => IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED),
        AddressFamily::Inet6 => IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    Some(Route {
        destination: IpNet::new(
            destination.unwrap_or(any),
            message.header.destination_prefix_length,
        )
        .ok()?,
        hops,
        protocol: u8::from(message.header.protocol),
        scope: u8::from(message.header.scope),
        on_link: message
            .header
            .flags
            .contains(netlink_packet_route::route::RouteFlags::Onlink),
        source,
        metric,
        table,
    })
}

fn route_address(address: &RouteAddress) -> Option<IpAddr> {
    match address {
        RouteAddress::Inet(address) => Some(IpAddr::V4(*address)),
        RouteAddress::Inet6(address) => Some(IpAddr::V6(*address)),
        _ => None,
    }
}

pub(super) fn neighbour(message: &NeighbourMessage) -> Option<Neighbour> {
    if message.header.state != NeighbourState::Permanent
        || message.header.flags.contains(NeighbourFlags::Proxy)
    {
        return None;
    }
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => Some(IpAddr::V4(*address)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => Some(IpAddr::V6(*address)),
        _ => None,
    })?;
    Some(Neighbour {
        link: message.header.ifindex,
        address,
        mac: link_layer_address(message),
    })
}

/// A proxy neighbour entry: an IPv6 address that a link answers for.
pub(super) fn proxy(message: &NeighbourMessage) -> Option<Proxy> {
    if !message.header.flags.contains(NeighbourFlags::Proxy) {
        return None;
    }
    let address = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => Some(*address),
        _ => None,
    })?;
    Some(Proxy {
        link: message.header.ifindex,
        address,
    })
}

pub(super) fn forwarding_entry(message: &NeighbourMessage) -> Option<ForwardingEntry> {
    if message.header.family != AddressFamily::Bridge {
        return None;
    }
    let destination = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(address)) => Some(IpAddr::V4(*address)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(address)) => Some(IpAddr::V6(*address)),
        // In the bridge family the library does not know the address family: the number of bytes shows it.
        NeighbourAttribute::Destination(NeighbourAddress::Other(bytes)) => {
            <[u8; 4]>::try_from(bytes.as_slice())
                .map(IpAddr::from)
                .or_else(|_| <[u8; 16]>::try_from(bytes.as_slice()).map(IpAddr::from))
                .ok()
        }
        _ => None,
    });
    Some(ForwardingEntry {
        link: message.header.ifindex,
        mac: link_layer_address(message),
        destination,
        // `bridge fdb add … permanent` sets NOARP as well.
        permanent: u16::from(message.header.state) & u16::from(NeighbourState::Permanent) != 0,
    })
}

fn link_layer_address(message: &NeighbourMessage) -> String {
    message
        .attributes
        .iter()
        .find_map(|attribute| match attribute {
            NeighbourAttribute::LinkLayerAddress(bytes) => Some(mac(bytes)),
            _ => None,
        })
        .unwrap_or_default()
}

fn mac(bytes: &[u8]) -> String {
    bytes
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect::<Vec<_>>()
        .join(":")
}

/// `IFA_LOCAL` is the link's own address if the two differ (point-to-point); IPv6 has `IFA_ADDRESS` only.
pub(super) fn own_address(message: &AddressMessage) -> Option<IpNet> {
    let own = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    let address = own.or_else(|| {
        message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        })
    })?;
    IpNet::new(address, message.header.prefix_len).ok()
}

/// The label of an IPv4 address: the name of its link unless another one was set. The kernel has no labels for IPv6: an address with
/// [`KEPT_IPV6`] has the label of addresses that are kept for adopted pods, any other one an empty label.
pub(super) fn label(message: &AddressMessage) -> &str {
    let is_kept = KEPT_IPV6 | AddressHeaderFlags::Deprecated;
    if message.header.family == AddressFamily::Inet6 && message.header.flags.contains(is_kept) {
        return KEPT_LABEL;
    }
    let mut attributes = message.attributes.iter();
    attributes
        .find_map(|attribute| match attribute {
            AddressAttribute::Label(label) => Some(label.as_str()),
            _ => None,
        })
        .unwrap_or_default()
}

/// The mark of an IPv6 address that replumb keeps: that of a Mobile IPv6 home address, which no other program sets on a deprecated
/// address.
pub(super) const KEPT_IPV6: AddressHeaderFlags = AddressHeaderFlags::Homeaddress;

/// The label of an address, if it has one of its own: `link:word`.
pub(super) fn own_label(message: &AddressMessage) -> String {
    Some(label(message))
        .filter(|label| label.contains(':'))
        .unwrap_or_default()
        .to_owned()
}
