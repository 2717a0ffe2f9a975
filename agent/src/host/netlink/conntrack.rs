//! Connection tracking of the host: a listing of the whole table, events of connections that end, and the replacement of single
//! entries. Opens netlink sockets in the network namespace of the calling thread. No more than one datagram is in memory.

mod decode;
mod encode;
mod socket;
mod table;

use std::fmt;
use std::io;
use std::net::SocketAddr;

use api::FailureCategory;
use nix::errno::Errno;
use policy::conntrack::Tuple;
use thiserror::Error;

use self::decode::Datagram;
pub use self::decode::MalformedEntry;
use self::socket::Socket;
pub use self::table::{EntryError, Replaced, Table};

/// An entry of connection tracking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrackedConnection {
    /// The kernel's number of the entry. Two entries that exist at the same time have different numbers.
    pub id: u32,
    /// The zone; 0 unless a rule sets one.
    pub zone: u16,
    /// The number of the protocol, as assigned by IANA.
    pub protocol: u8,
    /// The first direction that was seen. Ports are 0 for a protocol without ports.
    pub original: Tuple,
    /// The direction of the replies, which shows what NAT changed.
    pub reply: Tuple,
    /// A reply was seen.
    pub is_replied: bool,
}

impl fmt::Display for TrackedConnection {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tuple {
            source,
            destination,
            source_port,
            destination_port,
        } = self.original;
        let (from, to) = (
            SocketAddr::new(source, source_port),
            SocketAddr::new(destination, destination_port),
        );
        write!(formatter, "{from} → {to} (protocol {})", self.protocol)
    }
}

/// The table could not be read, or not completely.
#[derive(Debug, Error)]
pub enum ConntrackError {
    /// No socket could be opened, or the request could not be sent.
    #[error("could not {attempt}")]
    Socket {
        /// What was attempted.
        attempt: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The kernel refused the request.
    #[error(
        "the kernel does not list connections (needed: module nf_conntrack_netlink and capability NET_ADMIN)"
    )]
    Refused(#[source] io::Error),
    /// The table was changed in a way that the listing may miss entries.
    #[error("the table of connections changed while the kernel listed it, so entries may be missing")]
    Interrupted,
    /// The kernel dropped a part of the listing.
    #[error("the kernel dropped a part of the list of connections, because it was not read in time")]
    Overrun,
    /// Entries could not be decoded. The others were.
    #[error("{} could not be decoded; the first: {first}", engine::words::number(*count, "entry of connection tracking", "entries of connection tracking"))]
    Malformed {
        /// Number of these entries.
        count: usize,
        /// What is wrong with the first one.
        first: MalformedEntry,
    },
}

impl ConntrackError {
    fn socket(attempt: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Socket { attempt, source }
    }

    /// The category for metrics and status.
    pub fn category(&self) -> FailureCategory {
        match self {
            Self::Socket { .. } => FailureCategory::NetlinkSocket,
            Self::Refused(_) | Self::Interrupted | Self::Overrun | Self::Malformed { .. } => {
                FailureCategory::NetlinkRequest
            }
        }
    }
}

/// Whether a listing has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listed {
    /// There is more.
    Partly,
    /// All entries were listed.
    Completely,
}

/// A listing of the whole table, of both families.
#[derive(Debug)]
pub struct Listing {
    socket: Socket,
    progress: Progress,
}

/// What the datagrams of a listing have said so far.
#[derive(Debug, Default)]
struct Progress {
    is_interrupted: bool,
    malformed: Option<(usize, MalformedEntry)>,
}

impl Progress {
    /// Adds a datagram. Whatever is wrong, the listing is read to its end, because the other entries exist.
    fn add(&mut self, datagram: Datagram) -> Result<Listed, ConntrackError> {
        let Datagram {
            is_last,
            is_interrupted,
            refused,
            malformed,
        } = datagram;
        self.is_interrupted |= is_interrupted;
        add(&mut self.malformed, malformed);
        if let Some(refused) = refused {
            return Err(ConntrackError::Refused(refused));
        }
        if !is_last {
            return Ok(Listed::Partly);
        }
        match (self.is_interrupted, self.malformed.take()) {
            (true, _) => Err(ConntrackError::Interrupted),
            (false, Some((count, first))) => Err(ConntrackError::Malformed { count, first }),
            (false, None) => Ok(Listed::Completely),
        }
    }
}

impl Listing {
    /// Asks the kernel for the table.
    ///
    /// # Errors
    ///
    /// The kernel gives no socket, or does not take the request.
    pub fn start() -> Result<Self, ConntrackError> {
        let socket =
            Socket::open(0).map_err(ConntrackError::socket("open a socket for connection tracking"))?;
        socket
            .send(&encode::listing())
            .map_err(ConntrackError::socket("ask the kernel for its connections"))?;
        Ok(Self {
            socket,
            progress: Progress::default(),
        })
    }

    /// Waits for the next part and gives each of its entries to `each`. An error ends the listing; entries that were given before
    /// exist nevertheless.
    ///
    /// # Errors
    ///
    /// The listing is not complete: the kernel refuses it, says that it is interrupted, dropped a part, or an entry could not be
    /// decoded.
    pub async fn next(&mut self, mut each: impl FnMut(TrackedConnection)) -> Result<Listed, ConntrackError> {
        let datagram = self.socket.receive().await.map_err(|source| {
            if is(&source, Errno::ENOBUFS) {
                ConntrackError::Overrun
            } else {
                ConntrackError::Socket {
                    attempt: "receive the list of connections",
                    source,
                }
            }
        })?;
        self.progress.add(decode::datagram(datagram, &mut each))
    }
}

/// Counts more entries that could not be decoded.
fn add(all: &mut Option<(usize, MalformedEntry)>, more: Option<(usize, MalformedEntry)>) {
    *all = match (all.take(), more) {
        (Some((count, first)), Some((more, _))) => Some((count + more, first)),
        (all, more) => all.or(more),
    };
}

/// The group with the events of connections that end (`NFNLGRP_CONNTRACK_DESTROY` is 3).
const ENDED_CONNECTIONS: u32 = 1 << 2;
/// Memory of the kernel for events that were not received yet: some 6 000.
const BUFFER: usize = 4 << 20;

/// Events of connections that end, with their last state. Between them, a listing and these events have every connection: an event of
/// a new connection says nothing about replies.
#[derive(Debug)]
pub struct EndedConnections {
    socket: Socket,
    /// How often the kernel dropped events while they were waited for.
    overflows: u64,
}

/// What the events that had arrived say about others.
#[derive(Debug, Default)]
pub struct Received {
    /// More events have arrived than were to be received.
    pub has_more: bool,
    /// How often the kernel dropped events, because they were not received in time.
    pub overflows: u64,
    /// Number of events that could not be decoded, and what is wrong with the first one.
    pub malformed: Option<(usize, MalformedEntry)>,
}

impl EndedConnections {
    /// Asks the kernel for events from now on.
    ///
    /// # Errors
    ///
    /// The kernel gives no socket or no events.
    pub fn subscribe() -> Result<Self, ConntrackError> {
        let socket = Socket::open(ENDED_CONNECTIONS)
            .map_err(ConntrackError::socket("subscribe to events of connections"))?;
        socket.set_buffer(BUFFER).map_err(ConntrackError::socket(
            "enlarge the buffer for events of connections",
        ))?;
        Ok(Self { socket, overflows: 0 })
    }

    /// Waits until an event arrives.
    ///
    /// # Errors
    ///
    /// The socket cannot be read.
    pub async fn arrived(&mut self) -> Result<(), ConntrackError> {
        match self.socket.arrived().await {
            // Counted at the next call of `receive`.
            Err(error) if is(&error, Errno::ENOBUFS) => {
                self.overflows += 1;
                Ok(())
            }
            waited => waited.map_err(ConntrackError::socket("wait for events of connections")),
        }
    }

    /// Gives each connection of the events that have arrived to `each`, without waiting. Receives at most `most` events: a host
    /// with more of them needs its processor for its pods, and the kernel drops the rest.
    ///
    /// # Errors
    ///
    /// The socket cannot be read.
    pub fn receive(
        &mut self,
        most: usize,
        mut each: impl FnMut(TrackedConnection),
    ) -> Result<Received, ConntrackError> {
        let mut received = Received {
            overflows: std::mem::take(&mut self.overflows),
            ..Received::default()
        };
        for _ in 0..most {
            match self.socket.try_receive() {
                Ok(None) => return Ok(received),
                Ok(Some(event)) => {
                    let event = decode::datagram(event, &mut each);
                    add(&mut received.malformed, event.malformed);
                }
                Err(error) if is(&error, Errno::ENOBUFS) => received.overflows += 1,
                Err(source) => return Err(ConntrackError::socket("receive events of connections")(source)),
            }
        }
        received.has_more = true;
        Ok(received)
    }
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn malformed(count: usize) -> Datagram {
        Datagram {
            malformed: Some((count, MalformedEntry::from("no source"))),
            ..Datagram::default()
        }
    }

    fn last() -> Datagram {
        Datagram {
            is_last: true,
            ..Datagram::default()
        }
    }

    fn outcome(datagrams: impl IntoIterator<Item = Datagram>) -> Result<Listed, ConntrackError> {
        let mut progress = Progress::default();
        let mut outcomes = datagrams.into_iter().map(|datagram| progress.add(datagram));
        outcomes
            .find(|outcome| !matches!(outcome, Ok(Listed::Partly)))
            .unwrap()
    }

    #[test]
    fn a_listing_with_its_end_is_complete() {
        assert_eq!(
            outcome([Datagram::default(), last()]).unwrap(),
            Listed::Completely
        );
    }

    #[test]
    fn an_interruption_anywhere_is_an_error_at_the_end() {
        let interrupted = || Datagram {
            is_interrupted: true,
            ..Datagram::default()
        };
        let at_the_end = Datagram {
            is_last: true,
            ..interrupted()
        };
        for datagrams in [vec![interrupted(), malformed(1), last()], vec![at_the_end]] {
            let error = outcome(datagrams).unwrap_err();
            assert!(matches!(error, ConntrackError::Interrupted), "{error}");
        }
    }

    #[test]
    fn malformed_entries_are_counted_and_an_error_at_the_end() {
        let error = outcome([malformed(2), Datagram::default(), malformed(3), last()]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "5 entries of connection tracking could not be decoded; the first: no source"
        );
    }

    #[test]
    fn a_refusal_ends_the_listing() {
        let refused = Datagram {
            refused: Some(io::Error::from_raw_os_error(Errno::EPERM as i32)),
            ..Datagram::default()
        };
        let error = outcome([refused, last()]).unwrap_err();
        let text = runtime::error::chain(&error);
        assert!(
            text.contains("NET_ADMIN") && text.contains("not permitted"),
            "{text}"
        );
    }
}
