//! Links, addresses, routes, neighbours and forwarding entries over netlink. Only this module uses rtnetlink and
//! netlink-packet-route: reads are here, conversion of messages in `messages`, changes in `change`. Touches the network namespace
//! of the connecting thread.

use std::io;
use std::num::NonZeroI32;
use std::sync::Arc;
use std::time::Duration;

use flannel_to_calico::host::SUBNET_TABLE;
use futures::{StreamExt, TryStreamExt};
use ipnet::IpNet;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::LinkMessage;
use netlink_packet_route::neighbour::{NeighbourMessage, NeighbourState};
use netlink_packet_route::route::RouteMessage;
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use rtnetlink::packet_core::{ErrorMessage, NetlinkPayload};
use rtnetlink::{Handle, MulticastGroup};
use thiserror::Error;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

mod change;
mod labels;
mod messages;
mod proxies;
mod subnets;
mod tables;

pub use self::change::{FELIX, KERNEL, ROUTE_PROTOCOL, Renamed};
use self::messages::{blackhole, forwarding_entry, link, neighbour, proxy, route};
use super::snapshot::{Address, Link, MAIN_TABLE, Snapshot};

/// The kernel's network state could not be read or changed.
#[derive(Debug, Error)]
pub enum NetlinkError {
    /// No netlink socket could be opened.
    #[error("could not open a netlink socket")]
    Connect(#[source] io::Error),
    /// The kernel refused a request, or its answer was invalid.
    #[error("could not {attempt}")]
    Request {
        /// The operation and its object.
        attempt: String,
        /// The kernel's error.
        #[source]
        source: rtnetlink::Error,
    },
}

/// Timeout of one request to the kernel.
const LIMIT: Duration = Duration::from_secs(30);

/// The kernel's answer to a request. With a full socket buffer the answer is lost and would never arrive: the request then ends
/// with ETIMEDOUT, and the agent repeats it.
async fn answer<T>(
    request: impl Future<Output = Result<T, rtnetlink::Error>>,
) -> Result<T, rtnetlink::Error> {
    tokio::time::timeout(LIMIT, request).await.unwrap_or_else(|_| {
        let mut late = ErrorMessage::default();
        late.code = NonZeroI32::new(-(nix::errno::Errno::ETIMEDOUT as i32));
        Err(rtnetlink::Error::NetlinkError(late))
    })
}

impl NetlinkError {
    /// The category for metrics and status.
    pub fn category(&self) -> &'static str {
        match self {
            Self::Connect(_) => "NetlinkSocket",
            Self::Request { .. } => "NetlinkRequest",
        }
    }
}

/// A netlink connection to the namespace of the thread that created it.
#[derive(Debug)]
pub struct Netlink {
    handle: Handle,
    connection: JoinHandle<()>,
}

impl Drop for Netlink {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Netlink {
    /// Opens a socket in the current thread's network namespace.
    pub fn connect() -> Result<Self, NetlinkError> {
        let (connection, handle, _) = rtnetlink::new_connection().map_err(NetlinkError::Connect)?;
        Ok(Self {
            handle,
            connection: tokio::spawn(connection),
        })
    }

    /// Reads the network state that the agent observes.
    pub async fn snapshot(&self) -> Result<Snapshot, NetlinkError> {
        let links = self.links().await?;
        let mut routes = self.route_messages(AddressFamily::Inet).await?;
        routes.extend(self.route_messages(AddressFamily::Inet6).await?);
        let forwarding = self
            .neighbour_messages(AddressFamily::Bridge)
            .await?
            .iter()
            .filter_map(forwarding_entry)
            .filter(|entry| {
                links
                    .iter()
                    .any(|link| link.index == entry.link && link.vxlan.is_some())
            })
            .collect();
        Ok(Snapshot {
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

/// `IFA_LOCAL` is the link's own address if the two differ (point-to-point); IPv6 has `IFA_ADDRESS` only.
fn own_address(message: &AddressMessage) -> Option<IpNet> {
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

fn reading(what: &str, source: rtnetlink::Error) -> NetlinkError {
    NetlinkError::Request {
        attempt: format!("read the {what} of the host"),
        source,
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

#[cfg(test)]
mod limit_tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lost_answer_ends_the_request_with_a_timeout() {
        for what in ["read the links of the host", "add the route to 10.244.1.0/24"] {
            let error = answer::<()>(std::future::pending()).await.unwrap_err();
            let error = change::request(what.to_owned(), error);
            assert_eq!(error.category(), "NetlinkRequest");
            let text = runtime::error::chain(&error);
            assert!(
                text.starts_with(&format!("could not {what}: ")) && text.contains("timed out"),
                "{text}"
            );
        }
    }
}
