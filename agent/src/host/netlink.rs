//! Links, addresses, routes, neighbours and forwarding entries over netlink. Only this module uses rtnetlink and
//! netlink-packet-route: reads are here, conversion of messages in `messages`, changes in `change`. Touches the network namespace
//! of the connecting thread.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use flannel_to_calico::host::SUBNET_TABLE;
use futures::{StreamExt, TryStreamExt};
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::LinkMessage;
use netlink_packet_route::neighbour::{NeighbourMessage, NeighbourState};
use netlink_packet_route::route::RouteMessage;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::packet_core::NetlinkPayload;
use rtnetlink::{Handle, MulticastGroup};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

mod change;
pub mod conntrack;
mod labels;
mod messages;
mod nf_tables;
mod ports;
mod proxies;
mod rename;
mod request;
mod subnets;
mod tables;

pub use self::change::{FELIX, KERNEL, ROUTE_PROTOCOL};
use self::messages::{blackhole, forwarding_entry, link, neighbour, own_address, own_label, proxy, route};
pub use self::nf_tables::{NfTables, nf_tables};
pub use self::rename::Renamed;
pub use self::request::NetlinkError;
use self::request::{answer, reading};
use super::snapshot::{Address, ForwardingEntry, Link, MAIN_TABLE, Snapshot};

/// A netlink connection to the namespace of the thread that created it.
#[derive(Debug)]
pub struct Netlink {
    handle: Handle,
    connection: JoinHandle<()>,
    /// Play a kernel before Linux 6.2, which does not rename a link that is up.
    plays_old_kernel: bool,
}

impl Drop for Netlink {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Netlink {
    /// Opens a socket in the current thread's network namespace.
    ///
    /// # Errors
    ///
    /// The kernel refuses the socket.
    pub fn connect() -> Result<Self, NetlinkError> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(NetlinkError::Connect)?;
        Ok(Self {
            handle,
            connection: tokio::spawn(connection),
            plays_old_kernel: cfg!(feature = "old-kernel"),
        })
    }

    /// For tests: plays the answer of a kernel before Linux 6.2 to the rename of a link that is up. Everything else is the kernel's.
    #[must_use]
    pub fn like_an_old_kernel(mut self) -> Self {
        self.plays_old_kernel = true;
        self
    }

    /// Reads the network state that the agent observes.
    ///
    /// # Errors
    ///
    /// The kernel refuses the request, or the netlink socket fails.
    pub async fn snapshot(&self) -> Result<Snapshot, NetlinkError> {
        let links = self.links().await?;
        let mut routes = self.route_messages(AddressFamily::Inet).await?;
        routes.extend(self.route_messages(AddressFamily::Inet6).await?);
        let of_link = |entry: &ForwardingEntry, is_kind: fn(&Link) -> bool| {
            let mut links = links.iter();
            links.any(|link| link.index == entry.link && is_kind(link))
        };
        let entries = self.neighbour_messages(AddressFamily::Bridge).await?;
        let entries = || entries.iter().filter_map(forwarding_entry);
        let forwarding = entries()
            .filter(|entry| of_link(entry, |link| link.vxlan.is_some()))
            .collect();
        let deliveries = entries()
            .filter(|entry| of_link(entry, |link| link.kind == "bridge"))
            .collect();
        Ok(Snapshot {
            deliveries,
            addresses: self.addresses().await?,
            blackholes: routes.iter().filter_map(blackhole).collect(),
            routes: routes
                .iter()
                .filter_map(|message| route(message, MAIN_TABLE))
                .collect(),
            subnet_routes: routes
                .iter()
                .filter_map(|message| route(message, SUBNET_TABLE))
                // Routes of other programs in a table with this number are not replumb's.
                .filter(|route| route.protocol == ROUTE_PROTOCOL && route.destination.addr().is_ipv6())
                .collect(),
            subnet_rule: self.has_subnet_rule().await?,
            proxies: self.proxy_messages().await?.iter().filter_map(proxy).collect(),
            neighbours: self
                .neighbour_messages(AddressFamily::Unspec)
                .await?
                .iter()
                .filter_map(neighbour)
                .collect(),
            forwarding,
            links,
        })
    }

    /// Deletes a link by index. A missing link is not an error.
    ///
    /// # Errors
    ///
    /// The kernel refuses the request, or the netlink socket fails.
    pub async fn delete_link(&self, index: u32, name: &str) -> Result<(), NetlinkError> {
        match answer(self.handle.link().del(index).execute()).await {
            Err(rtnetlink::Error::NetlinkError(message))
                if message.raw_code() == -(nix::errno::Errno::ENODEV as i32) =>
            {
                Ok(())
            }
            Err(source) => Err(NetlinkError::Request {
                attempt: format!("delete link {name} (index {index})"),
                source,
            }),
            Ok(()) => Ok(()),
        }
    }

    async fn links(&self) -> Result<Vec<Link>, NetlinkError> {
        let messages: Vec<LinkMessage> = answer(self.handle.link().get().execute().try_collect())
            .await
            .map_err(|source| reading("links", source))?;
        Ok(messages.iter().map(link).collect())
    }

    async fn addresses(&self) -> Result<Vec<Address>, NetlinkError> {
        let address = |message: &AddressMessage| {
            Some(Address {
                link: message.header.index,
                address: own_address(message)?,
                label: own_label(message),
            })
        };
        Ok(self
            .address_messages()
            .await?
            .iter()
            .filter_map(address)
            .collect())
    }

    async fn address_messages(&self) -> Result<Vec<AddressMessage>, NetlinkError> {
        answer(self.handle.address().get().execute().try_collect())
            .await
            .map_err(|source| reading("addresses", source))
    }

    async fn route_messages(&self, family: AddressFamily) -> Result<Vec<RouteMessage>, NetlinkError> {
        let mut request = RouteMessage::default();
        request.header.address_family = family;
        answer(self.handle.route().get(request).execute().try_collect())
            .await
            .map_err(|source| reading("routes", source))
    }

    async fn proxy_messages(&self) -> Result<Vec<NeighbourMessage>, NetlinkError> {
        let request = self.handle.neighbours().get().proxies();
        let request = request.set_address_family(AddressFamily::Inet6);
        answer(request.execute().try_collect())
            .await
            .map_err(|source| reading("proxy neighbours", source))
    }

    async fn neighbour_messages(&self, family: AddressFamily) -> Result<Vec<NeighbourMessage>, NetlinkError> {
        let request = self.handle.neighbours().get().set_address_family(family);
        answer(request.execute().try_collect())
            .await
            .map_err(|source| reading("neighbours", source))
    }
}

/// Notifies `changed` on each change of a link, address, route or configured neighbour, until the task is aborted.
///
/// When the socket fails (the kernel drops messages once its buffer is full), a new one is opened and one change is notified,
/// since messages may have been lost.
pub fn watch(changed: Arc<Notify>) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            match follow(&changed).await {
                Ok(()) => tracing::debug!("netlink watch ended; reopening"),
                Err(error) => tracing::warn!(%error, "opening the netlink watch failed; retrying"),
            }
            changed.notify_one();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    })
}

async fn follow(changed: &Notify) -> io::Result<()> {
    let (connection, _handle, mut messages) = rtnetlink::new_multicast_connection(&[
        MulticastGroup::Link,
        MulticastGroup::Neigh,
        MulticastGroup::Ipv4Ifaddr,
        MulticastGroup::Ipv6Ifaddr,
        MulticastGroup::Ipv4Route,
        MulticastGroup::Ipv6Route,
        MulticastGroup::Ipv6Rule,
    ])?;
    let connection = AbortOnDrop(tokio::spawn(connection));
    changed.notify_one();
    while let Some((message, _)) = messages.next().await {
        if is_change(&message.payload) {
            changed.notify_one();
        }
    }
    drop(connection);
    Ok(())
}

struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Whether a message is a change of configuration: neighbours that the kernel learns change all the time.
fn is_change(payload: &NetlinkPayload<RouteNetlinkMessage>) -> bool {
    match payload {
        NetlinkPayload::InnerMessage(
            RouteNetlinkMessage::NewNeighbour(message) | RouteNetlinkMessage::DelNeighbour(message),
        ) => message.header.state == NeighbourState::Permanent,
        _ => true,
    }
}
