//! Connections whose source address the host translates, such as those of the host to a Service.
//!
//! The kernel ends a masqueraded connection when its packets begin to leave through another link, and when that link ends
//! (`nf_nat_oif_changed` and `masq_device_event` of Linux). An entry of connection tracking with a fixed translation belongs to no
//! link. No request makes one of the other, so the entry is replaced while packets of TCP are held back: without an entry, a
//! packet would be answered by a reset.

mod marks;
mod rules;

use std::collections::HashSet;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use api::FailureCategory;
use ipnet::IpNet;
use policy::conntrack::Tuple;
use thiserror::Error;
use tokio::time::timeout;

use super::firewall::FirewallError;
use super::netlink::conntrack::{
    ConntrackError, EntryError, Listed, Listing, Replaced, Table, TrackedConnection,
};
use super::program::ProgramError;

/// Connections for which packets are held back at the same time: some 0.05 s, less than the shortest pause of TCP before it sends a
/// packet again.
const AT_ONCE: usize = 1000;
/// Timeout of one listing, and of the replacement of the entries that are held back at the same time.
const LIMIT: Duration = Duration::from_secs(30);
/// How often a listing is begun that the kernel does not complete.
const ATTEMPTS: u32 = 3;

/// IANA's numbers of the protocols with ports that the kernel tracks: TCP, UDP, DCCP, SCTP and UDP-Lite.
const TCP: u8 = 6;
const WITH_PORTS: [u8; 5] = [TCP, 17, 33, 132, 136];

/// Connections could not be kept.
#[derive(Debug, Error)]
pub enum ConnectionsError {
    /// Connections could not be listed.
    #[error("could not keep the connections whose source address the host translates")]
    List(#[from] ConntrackError),
    /// An entry could not be replaced.
    #[error("could not keep the connections whose source address the host translates")]
    Entry(#[from] EntryError),
    /// The rules of kube-proxy could not be read.
    #[error("could not read the marks of packets that kube-proxy masquerades")]
    Marks(#[from] FirewallError),
    /// Rules for the time of the change could not be added or removed.
    #[error("could not change the rules for connections whose source address the host translates")]
    Rules(#[from] ProgramError),
    /// The kernel did not answer in time.
    #[error(
        "could not list, or not replace, connections whose source address the host translates within {} s",
        LIMIT.as_secs()
    )]
    TimedOut,
}

impl ConnectionsError {
    /// The category for metrics and status.
    pub fn category(&self) -> FailureCategory {
        match self {
            Self::List(source) => source.category(),
            Self::Entry(source) => source.category(),
            Self::Marks(source) => source.category(),
            Self::Rules(source) => source.category(),
            Self::TimedOut => FailureCategory::NetlinkRequest,
        }
    }
}

/// A change of the links through which packets leave.
#[derive(Clone, Debug)]
pub struct Change {
    /// Addresses of the host.
    pub own: Vec<IpAddr>,
    /// The links before the change.
    pub links: Vec<String>,
    /// Addresses of the host for translated connections: the first one of each family that is not link-local.
    pub source: Vec<IpAddr>,
    /// Where the packets go.
    pub destinations: Vec<IpNet>,
}

/// Makes a change of links. Connections with a translated source continue: existing ones get a fixed translation before the change
/// (not those of IPVS), and so do new ones that kube-proxy marks, until the end of the change. Returns the result of the change.
///
/// # Errors
///
/// The kernel refuses a request or does not answer, a program of the firewall fails, or `/proc` cannot be read. Then the change is not
/// begun, or it is done and connections that began in the middle may end.
pub async fn keep<E>(
    change: Change,
    proc: &Path,
    make: impl AsyncFnOnce() -> Result<(), E>,
) -> Result<Result<(), E>, ConnectionsError> {
    let mut connections = Connections {
        destinations: IpNet::aggregate(&change.destinations),
        own: &change.own,
        kept: HashSet::new(),
    };
    let result = async {
        rules::translate(&change, &marks::read(proc).await?).await?;
        connections.fix().await?;
        let made = make().await;
        if made.is_ok() {
            // Connections that began before the change, without a mark.
            connections.fix().await?;
        }
        Ok(made)
    };
    let result: Result<_, ConnectionsError> = result.await;
    let removed = rules::remove().await;
    let made = result?;
    removed?;
    Ok(made)
}

/// Removes the rules of an agent that was killed during a change.
///
/// # Errors
///
/// nft fails.
pub async fn remove_rules() -> Result<(), ConnectionsError> {
    Ok(rules::remove().await?)
}

/// The connections of a change.
struct Connections<'change> {
    destinations: Vec<IpNet>,
    /// Addresses of the host.
    own: &'change [IpAddr],
    /// Connections that need nothing any more: zone, protocol, and the first direction.
    kept: HashSet<(u16, u8, Tuple)>,
}

impl Connections<'_> {
    /// Gives all entries a fixed translation.
    async fn fix(&mut self) -> Result<(), ConnectionsError> {
        let late = |_| ConnectionsError::TimedOut;
        let found = timeout(LIMIT, self.list()).await.map_err(late)??;
        let (tcp, others): (Vec<_>, Vec<_>) = found.into_iter().partition(|found| found.protocol == TCP);
        let mut table = Table::open()?;
        // Without an entry, the kernel begins a new one with the next packet. Only TCP answers such a packet by a reset.
        for some in others.chunks(AT_ONCE) {
            timeout(LIMIT, self.replace(&mut table, some))
                .await
                .map_err(late)??;
        }
        for some in tcp.chunks(AT_ONCE) {
            rules::hold_back(some).await?;
            let replaced = timeout(LIMIT, self.replace(&mut table, some)).await;
            rules::let_pass().await?;
            replaced.map_err(late)??;
        }
        Ok(())
    }

    async fn list(&self) -> Result<Vec<TrackedConnection>, ConntrackError> {
        let mut attempt = 1;
        loop {
            match self.list_once().await {
                Err(ConntrackError::Interrupted | ConntrackError::Overrun) if attempt < ATTEMPTS => {
                    attempt += 1;
                }
                listed => return listed,
            }
        }
    }

    async fn list_once(&self) -> Result<Vec<TrackedConnection>, ConntrackError> {
        let mut found = Vec::new();
        let mut listing = Listing::start()?;
        let mut add = |connection: TrackedConnection| {
            let mut destinations = self.destinations.iter();
            let is_affected = depends_on_link(&connection, self.own)
                && destinations.any(|network| network.contains(&connection.reply.source));
            if is_affected && !self.kept.contains(&key(&connection)) {
                found.push(connection);
            }
        };
        loop {
            match listing.next(&mut add).await {
                Ok(Listed::Partly) => {}
                Ok(Listed::Completely) => return Ok(found),
                // An entry of a protocol that is not understood is no reason to stop.
                Err(error @ ConntrackError::Malformed { .. }) => {
                    tracing::warn!(%error, "connections that are not kept");
                    return Ok(found);
                }
                Err(error) => return Err(error),
            }
        }
    }

    async fn replace(
        &mut self,
        table: &mut Table,
        connections: &[TrackedConnection],
    ) -> Result<(), EntryError> {
        for connection in connections {
            // The state may have changed since it was listed.
            let Some(entry) = table.get(connection).await? else {
                continue;
            };
            if is_translated_to(connection) && !entry.is_destination_translated() {
                // IPVS has translated the destination, and does not know the new entry.
                continue;
            }
            match table.replace(&entry).await? {
                Replaced::Yes | Replaced::Ended => {
                    self.kept.insert(key(connection));
                }
                // The new entry is found by the next call.
                Replaced::Overtaken => {}
            }
        }
        Ok(())
    }
}

fn key(connection: &TrackedConnection) -> (u16, u8, Tuple) {
    (connection.zone, connection.protocol, connection.original)
}

/// Whether the kernel may have chosen the source address by the link through which packets leave, even if the result is the address
/// that the packets had before.
fn depends_on_link(connection: &TrackedConnection, own: &[IpAddr]) -> bool {
    let is_translated_from = (connection.original.source, connection.original.source_port)
        != (connection.reply.destination, connection.reply.destination_port);
    WITH_PORTS.contains(&connection.protocol)
        && (is_translated_from || is_translated_to(connection) && own.contains(&connection.original.source))
}

/// Whether the destination is translated.
fn is_translated_to(connection: &TrackedConnection) -> bool {
    (
        connection.original.destination,
        connection.original.destination_port,
    ) != (connection.reply.source, connection.reply.source_port)
}

#[cfg(test)]
mod tests;
