//! Reads and changes the kernel's network state with netlink. The only file that uses `rtnetlink`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use anyhow::{Context, Error, Result, anyhow};
use futures::TryStreamExt;
use ipnet::Ipv4Net;
use netlink_packet_route::AddressFamily;
use netlink_packet_route::address::AddressAttribute;
use netlink_packet_route::link::{InfoData, InfoVeth, LinkMessage};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{
    RouteAttribute, RouteMessage, RouteMetric, RouteProtocol, RouteScope, RouteType,
};
use nix::libc;
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec, LinkVeth, LinkVxlan, RouteMessageBuilder};

use super::decode::{link, neighbour, route};
use super::{Link, Mac, Route, Target, Vxlan};

/// A connection to the kernel, in the network namespace of the thread that opened it.
pub struct Netlink {
    handle: Handle,
}

impl Netlink {
    /// Connects. Needs a runtime: a task reads the answers.
    pub fn open() -> Result<Self> {
        let (connection, handle, _) = rtnetlink::new_connection().context("open a netlink socket")?;
        tokio::spawn(connection);
        Ok(Self { handle })
    }

    /// Every device.
    pub async fn links(&self) -> Result<Vec<Link>> {
        let messages: Vec<LinkMessage> = self
            .handle
            .link()
            .get()
            .execute()
            .try_collect()
            .await
            .context("list the devices")?;
        Ok(messages.iter().map(link).collect())
    }

    /// A device by its name.
    pub async fn link(&self, name: &str) -> Result<Option<Link>> {
        let request = self.handle.link().get().match_name(name.to_owned());
        match request.execute().try_collect::<Vec<LinkMessage>>().await {
            Ok(messages) => Ok(messages.first().map(link)),
            Err(error) if code(&error) == Some(libc::ENODEV) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("find the device {name}")),
        }
    }

    /// Creates a VXLAN device without learning. [`exists`] tells whether the failure was an existing device with the
    /// same VNI and port.
    pub async fn add_vxlan(&self, name: &str, vxlan: Vxlan, mac: Mac) -> Result<()> {
        let message = LinkVxlan::new(name, vxlan.vni)
            .dev(vxlan.parent)
            .local(vxlan.local)
            .port(vxlan.port)
            .learning(false)
            .address(mac.0.to_vec())
            .build();
        let made = self.handle.link().add(message).execute().await;
        made.with_context(|| {
            format!(
                "create the VXLAN device {name} (VNI {}, port {})",
                vxlan.vni, vxlan.port
            )
        })
    }

    /// Creates a pair of devices, one of them in another network namespace.
    pub async fn add_veth(
        &self,
        name: &str,
        peer: &str,
        namespace: BorrowedFd<'_>,
        mtu: u32,
        mac: Mac,
    ) -> Result<()> {
        let peer_message = LinkMessageBuilder::<LinkUnspec>::new()
            .name(peer)
            .mtu(mtu)
            .setns_by_fd(namespace.as_raw_fd())
            .build();
        let message = LinkVeth::new(name, peer)
            .mtu(mtu)
            .address(mac.0.to_vec())
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer_message)))
            .build();
        let made = self.handle.link().add(message).execute().await;
        made.with_context(|| format!("create the pair {name} and {peer}"))
    }

    /// Deletes a device.
    pub async fn delete_link(&self, link: &Link) -> Result<()> {
        let deleted = self.handle.link().del(link.index).execute().await;
        deleted.with_context(|| format!("delete the device {}", link.name))
    }

    /// Sets a device up.
    pub async fn set_up(&self, link: &Link) -> Result<()> {
        let message = LinkUnspec::new_with_index(link.index).up().build();
        let set = self.handle.link().set(message).execute().await;
        set.with_context(|| format!("set the device {} up", link.name))
    }

    /// Sets the MTU of a device.
    pub async fn set_mtu(&self, link: &Link, mtu: u32) -> Result<()> {
        let message = LinkUnspec::new_with_index(link.index).mtu(mtu).build();
        let set = self.handle.link().set(message).execute().await;
        set.with_context(|| format!("set the MTU of {} to {mtu} (it is {})", link.name, link.mtu))
    }

    /// IPv4 addresses by the index of their device.
    pub async fn addresses(&self) -> Result<BTreeMap<u32, Vec<Ipv4Net>>> {
        let mut answers = self.handle.address().get().execute();
        let mut addresses: BTreeMap<u32, Vec<Ipv4Net>> = BTreeMap::new();
        while let Some(message) = answers.try_next().await.context("list the addresses")? {
            let local = message.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Local(IpAddr::V4(address)) => Some(*address),
                _ => None,
            });
            if let Some(range) = local.and_then(|local| Ipv4Net::new(local, message.header.prefix_len).ok()) {
                addresses.entry(message.header.index).or_default().push(range);
            }
        }
        Ok(addresses)
    }

    /// Adds an address to a device.
    pub async fn add_address(&self, link: &Link, address: Ipv4Net) -> Result<()> {
        let request = self
            .handle
            .address()
            .add(link.index, address.addr().into(), address.prefix_len());
        request
            .execute()
            .await
            .with_context(|| format!("add the address {address} to {}", link.name))
    }

    /// Removes an address from a device.
    pub async fn delete_address(&self, link: &Link, address: Ipv4Net) -> Result<()> {
        let message = rtnetlink::AddressMessageBuilder::<Ipv4Addr>::new()
            .index(link.index)
            .address(address.addr(), address.prefix_len())
            .build();
        let taken = self.handle.address().del(message).execute().await;
        taken.with_context(|| format!("remove the address {address} from {}", link.name))
    }

    /// IPv4 routes of the main table.
    pub async fn routes(&self) -> Result<Vec<Route>> {
        let message = RouteMessageBuilder::<Ipv4Addr>::new().build();
        let messages: Vec<RouteMessage> = self
            .handle
            .route()
            .get(message)
            .execute()
            .try_collect()
            .await
            .context("list the routes")?;
        Ok(messages.iter().filter_map(route).collect())
    }

    /// Adds a route. [`exists`] tells whether the failure was an existing route to the same destination.
    pub async fn add_route(&self, route: &Route) -> Result<()> {
        let added = self.handle.route().add(route_message(route)).execute().await;
        added.with_context(|| format!("add the route {route:?}"))
    }

    /// Replaces the route to the same destination, or adds the route.
    pub async fn replace_route(&self, route: &Route) -> Result<()> {
        let replaced = self
            .handle
            .route()
            .add(route_message(route))
            .replace()
            .execute()
            .await;
        replaced.with_context(|| format!("set the route {route:?}"))
    }

    /// Deletes a route; a missing route is not an error.
    pub async fn delete_route(&self, route: &Route) -> Result<()> {
        match self.handle.route().del(route_message(route)).execute().await {
            Err(error) if code(&error) == Some(libc::ESRCH) => Ok(()),
            result => result.with_context(|| format!("delete the route {route:?}")),
        }
    }

    /// Permanent neighbours on a device.
    pub async fn neighbours(&self, link: &Link) -> Result<BTreeMap<Ipv4Addr, Mac>> {
        let found = self.permanent(link, AddressFamily::Inet).await?;
        Ok(found.into_iter().map(|(mac, address)| (address, mac)).collect())
    }

    /// Permanent forwarding entries of a VXLAN device: the host behind each hardware address.
    pub async fn forwarding(&self, link: &Link) -> Result<Vec<(Mac, Ipv4Addr)>> {
        self.permanent(link, AddressFamily::Bridge).await
    }

    async fn permanent(&self, link: &Link, family: AddressFamily) -> Result<Vec<(Mac, Ipv4Addr)>> {
        let mut answers = self
            .handle
            .neighbours()
            .get()
            .set_address_family(family)
            .execute();
        let mut found = Vec::new();
        while let Some(message) = answers
            .try_next()
            .await
            .with_context(|| format!("list the {family:?} neighbours"))?
        {
            let ours = message.header.ifindex == link.index
                && message.header.family == family
                && message.header.state == NeighbourState::Permanent;
            if let (true, Some(entry)) = (ours, neighbour(&message)) {
                found.push(entry);
            }
        }
        Ok(found)
    }

    /// Sets a permanent neighbour.
    pub async fn set_neighbour(&self, link: &Link, address: Ipv4Addr, mac: Mac) -> Result<()> {
        let request = self
            .handle
            .neighbours()
            .add(link.index, address.into())
            .link_layer_address(&mac.0);
        let set = request.state(NeighbourState::Permanent).replace().execute().await;
        set.with_context(|| format!("set the neighbour {address} with {mac} on {}", link.name))
    }

    /// Sets a permanent forwarding entry.
    pub async fn set_forwarding(&self, link: &Link, mac: Mac, host: Ipv4Addr) -> Result<()> {
        let request = self
            .handle
            .neighbours()
            .add_bridge(link.index, &mac.0)
            .destination(host.into());
        let set = request
            .state(NeighbourState::Permanent)
            .flags(NeighbourFlags::Own)
            .replace()
            .execute()
            .await;
        set.with_context(|| format!("set the forwarding of {mac} to {host} on {}", link.name))
    }

    /// Deletes a neighbour.
    pub async fn delete_neighbour(&self, link: &Link, address: Ipv4Addr) -> Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Inet;
        message.header.ifindex = link.index;
        message
            .attributes
            .push(NeighbourAttribute::Destination(NeighbourAddress::Inet(address)));
        let deleted = self.handle.neighbours().del(message).execute().await;
        deleted.with_context(|| format!("delete the neighbour {address} on {}", link.name))
    }

    /// Deletes a forwarding entry.
    pub async fn delete_forwarding(&self, link: &Link, mac: Mac, host: Ipv4Addr) -> Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Bridge;
        message.header.ifindex = link.index;
        message.header.flags = NeighbourFlags::Own;
        message
            .attributes
            .push(NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()));
        message
            .attributes
            .push(NeighbourAttribute::Destination(NeighbourAddress::Inet(host)));
        let deleted = self.handle.neighbours().del(message).execute().await;
        deleted.with_context(|| format!("delete the forwarding of {mac} to {host} on {}", link.name))
    }
}

/// Whether a change failed because the object exists.
pub fn exists(error: &Error) -> bool {
    error.downcast_ref::<rtnetlink::Error>().and_then(code) == Some(libc::EEXIST)
}

fn code(error: &rtnetlink::Error) -> Option<i32> {
    match error {
        rtnetlink::Error::NetlinkError(message) => Some(message.raw_code().abs()),
        _ => None,
    }
}

fn route_message(route: &Route) -> RouteMessage {
    let message = RouteMessageBuilder::<Ipv4Addr>::new()
        .destination_prefix(route.destination.network(), route.destination.prefix_len())
        .protocol(RouteProtocol::from(route.protocol));
    let mut message = match route.target {
        Target::Device(device) => message.output_interface(device).scope(RouteScope::Link),
        Target::Gateway(device, gateway) => message.output_interface(device).gateway(gateway).onlink(),
        Target::Router(device, gateway) => message.output_interface(device).gateway(gateway),
        Target::Blackhole => message.kind(RouteType::BlackHole),
        Target::Other => message,
    };
    if let Some(mtu) = route.mtu {
        message
            .get_mut()
            .attributes
            .push(RouteAttribute::Metrics(vec![RouteMetric::Mtu(mtu)]));
    }
    message.build()
}

/// The index of a device that must exist.
pub async fn existing(netlink: &Netlink, name: &str) -> Result<Link> {
    netlink
        .link(name)
        .await?
        .ok_or_else(|| anyhow!("find the device {name}: not found"))
}
