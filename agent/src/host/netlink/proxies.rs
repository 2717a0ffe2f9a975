//! Addresses of IPv6 that a link answers for. `proxy_arp` answers for everything that the host has a way to; its counterpart of
//! IPv6 answers for addresses that are listed one by one.

use std::net::{IpAddr, Ipv6Addr};

use netlink_packet_route::AddressFamily;
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage,
};

use super::change::request;
use super::{Netlink, NetlinkError, answer};
use crate::host::snapshot::Proxy;

impl Netlink {
    /// Lets a link answer for an address. One that it answers for already is no error.
    pub async fn add_proxy(&self, link: u32, address: Ipv6Addr) -> Result<(), NetlinkError> {
        let add = self.handle.neighbours().add(link, IpAddr::V6(address));
        answer(add.flags(NeighbourFlags::Proxy).replace().execute())
            .await
            .map_err(|source| request(format!("let link {link} answer for {address}"), source))
    }

    /// Lets a link answer for an address no longer. One that it does not answer for is no error.
    pub async fn delete_proxy(&self, proxy: &Proxy) -> Result<(), NetlinkError> {
        let mut message = NeighbourMessage::default();
        message.header.family = AddressFamily::Inet6;
        message.header.ifindex = proxy.link;
        message.header.flags = NeighbourFlags::Proxy;
        message
            .attributes
            .push(NeighbourAttribute::Destination(NeighbourAddress::Inet6(
                proxy.address,
            )));
        match answer(self.handle.neighbours().del(message).execute()).await {
            Err(rtnetlink::Error::NetlinkError(message))
                if message.raw_code() == -(nix::errno::Errno::ENOENT as i32) =>
            {
                Ok(())
            }
            Err(source) => Err(request(
                format!("let link {} answer for {} no longer", proxy.link, proxy.address),
                source,
            )),
            Ok(()) => Ok(()),
        }
    }
}
