//! Adds and removes addresses of links with their labels, one by one.

use std::net::IpAddr;

use futures::TryStreamExt;
use ipnet::IpNet;
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope, CacheInfo,
};
use nix::errno::Errno;
use pod_cidr::host::{AddressChange, KEPT_LABEL, LOOPBACK, LinkAddress};

use super::Netlink;
use super::messages::{KEPT_IPV6, label, own_address};
use super::request::{NetlinkError, answer, reading};

impl Netlink {
    /// Every address of every link, except of links that were created between the two reads.
    ///
    /// # Errors
    ///
    /// The kernel refuses the request, or the netlink socket fails.
    pub async fn link_addresses(&self) -> Result<Vec<LinkAddress>, NetlinkError> {
        let links = self.links().await?;
        let found = self.address_messages().await?;
        let of_link = |message: &AddressMessage| {
            let link = links.iter().find(|link| link.index == message.header.index)?;
            Some(LinkAddress {
                link: link.name.clone(),
                address: own_address(message)?,
                label: label(message).to_owned(),
            })
        };
        Ok(found.iter().filter_map(of_link).collect())
    }

    /// Applies one change. A change that is applied already is not an error.
    ///
    /// # Errors
    ///
    /// The kernel refuses the request, or the netlink socket fails.
    pub async fn change_address(&self, change: &AddressChange) -> Result<(), NetlinkError> {
        match change {
            AddressChange::Keep(address) => self.keep_address(IpAddr::V4(*address), KEPT_LABEL).await,
            AddressChange::Add(link, address) => self.add_address(link, IpAddr::V4(*address), None).await,
            AddressChange::Drop(address) => self.drop_address(IpAddr::V4(*address), KEPT_LABEL).await,
        }
    }

    /// Puts an address on the loopback interface, with this label. An existing address is not an error.
    ///
    /// # Errors
    ///
    /// The kernel refuses the request, or the netlink socket fails.
    pub async fn keep_address(&self, address: IpAddr, label: &str) -> Result<(), NetlinkError> {
        self.add_address(LOOPBACK, address, Some(label)).await
    }

    /// Removes the address with this label. A missing address is not an error.
    ///
    /// # Errors
    ///
    /// The kernel refuses the request, or the netlink socket fails.
    pub async fn drop_address(&self, address: IpAddr, label: &str) -> Result<(), NetlinkError> {
        let found = self.address_messages().await?;
        let is_it = |message: &&AddressMessage| {
            self::label(message) == label && own_address(message).is_some_and(|own| own.addr() == address)
        };
        let Some(message) = found.iter().find(is_it) else {
            return Ok(());
        };
        match answer(self.handle.address().del(message.clone()).execute()).await {
            Err(rtnetlink::Error::NetlinkError(message))
                if message.raw_code() == -(Errno::EADDRNOTAVAIL as i32) =>
            {
                Ok(())
            }
            Err(source) => Err(NetlinkError::Request {
                attempt: format!("remove {} from link {LOOPBACK}", IpNet::from(address)),
                source,
            }),
            Ok(()) => Ok(()),
        }
    }

    /// Adds an address to a link. With a label, the address is kept for others: only this host answers for it.
    async fn add_address(
        &self,
        link: &str,
        address: IpAddr,
        label: Option<&str>,
    ) -> Result<(), NetlinkError> {
        let whole = IpNet::from(address);
        let attempt = || format!("add {whole} to link {link}");
        let index = self.index(link, attempt()).await?;
        let mut request = self.handle.address().add(index, address, whole.prefix_len());
        if let Some(label) = label {
            let message = request.message_mut();
            // Otherwise the host would use this address as the source of packets to its own pods: links without an address use
            // an address of the loopback link.
            match address {
                IpAddr::V4(_) => {
                    message.attributes.push(AddressAttribute::Label(label.to_owned()));
                    message.header.scope = AddressScope::Host;
                }
                IpAddr::V6(_) => mark_as_kept(message),
            }
        }
        match answer(request.execute()).await {
            Err(rtnetlink::Error::NetlinkError(message)) if message.raw_code() == -(Errno::EEXIST as i32) => {
                Ok(())
            }
            Err(source) => Err(NetlinkError::Request {
                attempt: attempt(),
                source,
            }),
            Ok(()) => Ok(()),
        }
    }

    async fn index(&self, link: &str, attempt: String) -> Result<u32, NetlinkError> {
        let mut found = self.handle.link().get().match_name(link.to_owned()).execute();
        match answer(found.try_next()).await {
            Ok(Some(message)) => Ok(message.header.index),
            Ok(None) => Err(reading(&format!("link {link}"), rtnetlink::Error::RequestFailed)),
            Err(source) => Err(NetlinkError::Request { attempt, source }),
        }
    }
}

/// IPv6 has neither labels nor a scope of its own: the address is deprecated from the start, so that no new connection uses it, and
/// has replumb's mark. No other host has it, and no route belongs to it.
fn mark_as_kept(message: &mut AddressMessage) {
    message.header.flags = KEPT_IPV6 | AddressHeaderFlags::Nodad;
    let flags = AddressFlags::from_bits_retain(u32::from(message.header.flags.bits()));
    let mut lifetime = CacheInfo::default();
    lifetime.ifa_valid = u32::MAX;
    message.attributes.extend([
        AddressAttribute::Flags(flags | AddressFlags::Noprefixroute),
        AddressAttribute::CacheInfo(lifetime),
    ]);
}
