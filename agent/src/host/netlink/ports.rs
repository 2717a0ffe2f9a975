//! Changes to a bridge and its ports, for the adoption of pods and its undo.

use std::net::IpAddr;

use netlink_packet_route::AddressFamily;
use netlink_packet_route::link::LinkMessage;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use nix::errno::Errno;
use rtnetlink::{LinkBridge, LinkBridgePort, LinkUnspec};

use super::Netlink;
use super::change::bytes;
use super::request::{NetlinkError, answer, request};
use crate::host::snapshot::{Address, Link};

impl Netlink {
    /// Takes a link from its bridge. A link without a bridge is not an error.
    ///
    /// # Errors
    ///
    /// The kernel refuses the request, or the netlink socket fails.
    pub async fn detach_port(&self, link: &Link) -> Result<(), NetlinkError> {
        let message = LinkUnspec::new_with_index(link.index).nocontroller().build();
        self.set_link(message, || format!("take link {} from its bridge", link.name))
            .await
    }

    /// Attaches a link to a bridge; with `hairpin`, the bridge sends frames back through the link.
    ///
    /// # Errors
    ///
    /// The kernel refuses a request, or the netlink socket fails.
    pub async fn attach_port(&self, link: &Link, bridge: &Link, hairpin: bool) -> Result<(), NetlinkError> {
        let attempt = || format!("attach link {} to bridge {}", link.name, bridge.name);
        let message = LinkUnspec::new_with_index(link.index).controller(bridge.index);
        self.set_link(message.build(), attempt).await?;
        if hairpin {
            let message = LinkBridgePort::new(link.index).hairpin(true).build();
            answer(self.handle.link().set_port(message).execute())
                .await
                .map_err(|source| request(attempt(), source))?;
        }
        Ok(())
    }

    /// Keeps the MAC address of a bridge: a bridge whose address was not set takes that of one of its ports, and another one when
    /// that port leaves.
    ///
    /// # Errors
    ///
    /// The kernel refuses the request, or the netlink socket fails.
    pub async fn keep_mac(&self, bridge: &Link) -> Result<(), NetlinkError> {
        let message = LinkUnspec::new_with_index(bridge.index).address(bytes(&bridge.mac));
        let attempt = || format!("set the MAC address of bridge {}", bridge.name);
        self.set_link(message.build(), attempt).await
    }

    /// Sets a link up or down.
    ///
    /// # Errors
    ///
    /// The kernel refuses the request, or the netlink socket fails.
    pub async fn set_up(&self, link: &Link, up: bool) -> Result<(), NetlinkError> {
        let message = LinkUnspec::new_with_index(link.index);
        let message = if up { message.up() } else { message.down() };
        let direction = if up { "up" } else { "down" };
        self.set_link(message.build(), || format!("set link {} {direction}", link.name))
            .await
    }

    async fn set_link(
        &self,
        message: LinkMessage,
        attempt: impl FnOnce() -> String,
    ) -> Result<(), NetlinkError> {
        answer(self.handle.link().set(message).execute())
            .await
            .map_err(|source| request(attempt(), source))
    }

    /// Creates a bridge with the name and MAC address of a saved one, and returns it. An existing bridge is kept.
    ///
    /// # Errors
    ///
    /// The kernel refuses a request, or the netlink socket fails.
    pub async fn create_bridge(&self, saved: &Link) -> Result<Link, NetlinkError> {
        let find = |links: Vec<Link>| links.into_iter().find(|link| link.name == saved.name);
        if let Some(bridge) = find(self.links().await?) {
            return Ok(bridge);
        }
        let message = LinkBridge::new(&saved.name).address(bytes(&saved.mac));
        answer(self.handle.link().add(message.build()).execute())
            .await
            .map_err(|source| request(format!("create bridge {}", saved.name), source))?;
        find(self.links().await?).ok_or_else(|| {
            request(
                format!("find bridge {}, which was created a moment ago", saved.name),
                rtnetlink::Error::RequestFailed,
            )
        })
    }

    /// Gives a bridge the MTU and the addresses of a saved one, and sets it up. Existing objects are kept.
    ///
    /// # Errors
    ///
    /// The kernel refuses a request, or the netlink socket fails.
    pub async fn restore_bridge(
        &self,
        bridge: &Link,
        saved: &Link,
        addresses: &[Address],
    ) -> Result<(), NetlinkError> {
        self.set_up(bridge, true).await?;
        // A bridge follows the MTU of its ports until its own is changed after its creation.
        let mtu = LinkUnspec::new_with_index(bridge.index).mtu(saved.mtu).build();
        self.set_link(mtu, || format!("set the MTU of bridge {}", saved.name))
            .await?;
        // The kernel creates a link-local address with the link.
        let is_configured = |own: &&Address| !is_link_local(own.address.addr());
        for own in addresses.iter().filter(is_configured) {
            let add = self
                .handle
                .address()
                .add(bridge.index, own.address.addr(), own.address.prefix_len());
            answer(add.replace().execute())
                .await
                .map_err(|source| request(format!("add {} to bridge {}", own.address, saved.name), source))?;
        }
        Ok(())
    }

    /// Adds a permanent neighbour entry, or replaces an entry for the address.
    ///
    /// # Errors
    ///
    /// The kernel refuses the request, or the netlink socket fails.
    pub async fn add_neighbour(&self, link: &Link, address: IpAddr, mac: &str) -> Result<(), NetlinkError> {
        let add = self.handle.neighbours().add(link.index, address);
        let add = add
            .link_layer_address(&bytes(mac))
            .state(NeighbourState::Permanent);
        answer(add.replace().execute())
            .await
            .map_err(|source| request(format!("add neighbour {address} to link {}", link.name), source))
    }

    /// Deletes a neighbour entry. A missing entry is not an error.
    ///
    /// # Errors
    ///
    /// The kernel refuses the request, or the netlink socket fails.
    pub async fn delete_neighbour(&self, link: &Link, address: IpAddr) -> Result<(), NetlinkError> {
        let what = || format!("delete neighbour {address} of link {}", link.name);
        self.delete_entry(entry(link.index, address), what).await
    }

    /// Lets a bridge deliver frames for this MAC address to the host.
    ///
    /// # Errors
    ///
    /// The kernel refuses the request, or the netlink socket fails.
    pub async fn deliver_frames(&self, bridge: &Link, mac: &str) -> Result<(), NetlinkError> {
        let add = self.handle.neighbours().add_bridge(bridge.index, &bytes(mac));
        let add = add.flags(NeighbourFlags::Own).state(NeighbourState::Permanent);
        answer(add.replace().execute()).await.map_err(|source| {
            request(
                format!("add forwarding entry {mac} to link {}", bridge.name),
                source,
            )
        })
    }

    /// The reverse of [`Self::deliver_frames`]. A missing entry is not an error.
    ///
    /// # Errors
    ///
    /// The kernel refuses the request, or the netlink socket fails.
    pub async fn stop_delivering_frames(&self, bridge: &Link, mac: &str) -> Result<(), NetlinkError> {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Bridge;
        message.header.ifindex = bridge.index;
        message.header.flags = NeighbourFlags::Own;
        message
            .attributes
            .push(NeighbourAttribute::LinkLayerAddress(bytes(mac)));
        let what = || format!("delete forwarding entry {mac} of link {}", bridge.name);
        self.delete_entry(message, what).await
    }

    /// Deletes a neighbour or forwarding entry. A missing entry is not an error.
    pub(super) async fn delete_entry(
        &self,
        message: NeighbourMessage,
        attempt: impl FnOnce() -> String,
    ) -> Result<(), NetlinkError> {
        match answer(self.handle.neighbours().del(message).execute()).await {
            Err(rtnetlink::Error::NetlinkError(message)) if message.raw_code() == -(Errno::ENOENT as i32) => {
                Ok(())
            }
            Err(source) => Err(request(attempt(), source)),
            Ok(()) => Ok(()),
        }
    }
}

/// A neighbour entry of a link, without its hardware address.
pub(super) fn entry(link: u32, address: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    let (family, destination) = match address {
        IpAddr::V4(address) => (AddressFamily::Inet, NeighbourAddress::Inet(address)),
        IpAddr::V6(address) => (AddressFamily::Inet6, NeighbourAddress::Inet6(address)),
    };
    message.header.family = family;
    message.header.ifindex = link;
    message
        .attributes
        .push(NeighbourAttribute::Destination(destination));
    message
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}
