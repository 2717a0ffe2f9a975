//! Proxy neighbour entries: IPv6 addresses that a link answers for. `proxy_arp` answers for every address that the host has a
//! route to; its IPv6 counterpart answers only for listed addresses.

use std::net::{IpAddr, Ipv6Addr};

use netlink_packet_route::neighbour::NeighbourFlags;

use super::Netlink;
use super::ports::entry;
use super::request::{NetlinkError, answer, request};
use crate::host::snapshot::Proxy;

impl Netlink {
    /// Adds a proxy neighbour entry. An existing entry is not an error.
    ///
    /// # Errors
    ///
    /// The kernel refuses the request, or the netlink socket fails.
    pub async fn add_proxy(&self, link: u32, address: Ipv6Addr) -> Result<(), NetlinkError> {
        let add = self.handle.neighbours().add(link, IpAddr::V6(address));
        answer(add.flags(NeighbourFlags::Proxy).replace().execute())
            .await
            .map_err(|source| request(format!("add proxy neighbour {address} to link {link}"), source))
    }

    /// Deletes a proxy neighbour entry. A missing entry is not an error.
    ///
    /// # Errors
    ///
    /// The kernel refuses the request, or the netlink socket fails.
    pub async fn delete_proxy(&self, proxy: &Proxy) -> Result<(), NetlinkError> {
        let mut message = entry(proxy.link, IpAddr::V6(proxy.address));
        message.header.flags = NeighbourFlags::Proxy;
        let attempt = || format!("delete proxy neighbour {} of link {}", proxy.address, proxy.link);
        self.delete_entry(message, attempt).await
    }
}
