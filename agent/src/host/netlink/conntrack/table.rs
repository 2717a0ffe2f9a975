//! The table of connection tracking, to read and replace single entries.

use std::io;

use api::FailureCategory;
use netlink_packet_netfilter::conntrack::{ConntrackAttribute, Status};
use nix::errno::Errno;
use thiserror::Error;

use super::decode::{self, Answer};
use super::socket::Socket;
use super::{TrackedConnection, encode, is};

/// An entry could not be read or changed.
#[derive(Debug, Error)]
pub enum EntryError {
    /// No socket could be opened, or the request could not be sent.
    #[error("could not {attempt}")]
    Socket {
        /// What was attempted.
        attempt: &'static str,
        /// The kernel's error.
        #[source]
        source: io::Error,
    },
    /// The kernel refused the request, or its answer is malformed.
    #[error("could not {attempt} the entry of connection tracking for {connection}")]
    Request {
        /// What was attempted.
        attempt: &'static str,
        /// The connection.
        connection: Box<TrackedConnection>,
        /// The kernel's error, or what is wrong with its answer.
        #[source]
        source: io::Error,
    },
}

impl EntryError {
    /// The category for metrics and status.
    pub fn category(&self) -> FailureCategory {
        match self {
            Self::Socket { .. } => FailureCategory::NetlinkSocket,
            Self::Request { .. } => FailureCategory::NetlinkRequest,
        }
    }

    fn socket(attempt: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Socket { attempt, source }
    }

    fn request(attempt: &'static str, connection: &TrackedConnection) -> impl Fn(io::Error) -> Self {
        let connection = *connection;
        move |source| Self::Request {
            attempt,
            connection: Box::new(connection),
            source,
        }
    }
}

/// An entry with all its attributes.
#[derive(Debug)]
pub struct Entry {
    connection: TrackedConnection,
    attributes: Vec<ConntrackAttribute>,
}

impl Entry {
    /// Whether netfilter's own NAT has changed the destination. IPVS changes it without.
    pub fn is_destination_translated(&self) -> bool {
        self.attributes.iter().any(|attribute| match attribute {
            ConntrackAttribute::CtaStatus(status) => status.contains(Status::DstNat),
            _ => false,
        })
    }
}

/// The result of a replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaced {
    /// Another one with a fixed translation has its place.
    Yes,
    /// The connection had ended.
    Ended,
    /// A packet came between deletion and creation, and the kernel has an entry of its own for the connection.
    Overtaken,
}

/// The table.
#[derive(Debug)]
pub struct Table {
    socket: Socket,
    /// The number of the last request.
    sequence: u32,
}

impl Table {
    /// Opens a socket.
    ///
    /// # Errors
    ///
    /// The kernel gives no socket.
    pub fn open() -> Result<Self, EntryError> {
        let socket = Socket::open(0).map_err(EntryError::socket("open a socket for connection tracking"))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// The entry of a connection; `None` if the connection has ended.
    ///
    /// # Errors
    ///
    /// The kernel refuses the request or its answer is malformed, or the socket fails.
    pub async fn get(&mut self, connection: &TrackedConnection) -> Result<Option<Entry>, EntryError> {
        let failed = EntryError::request("read", connection);
        let sequence = self.number();
        self.send(&encode::get(connection, sequence))?;
        match self.answer(sequence).await.map_err(&failed)? {
            Answer::Entry(attributes) => {
                let connection = decode::connection(&attributes)
                    .map_err(io::Error::other)
                    .map_err(&failed)?;
                Ok(Some(Entry {
                    connection,
                    attributes,
                }))
            }
            Answer::Refused(error) if is(&error, Errno::ENOENT) => Ok(None),
            Answer::Refused(error) => Err(failed(error)),
            Answer::Done => Err(failed(io::Error::other("the kernel has sent no entry"))),
        }
    }

    /// Replaces an entry by one with the same state and a fixed translation. The kernel does both in one call, so that the time
    /// between them is some microseconds.
    ///
    /// # Errors
    ///
    /// The kernel refuses a request or its answer is malformed, or the socket fails.
    pub async fn replace(&mut self, entry: &Entry) -> Result<Replaced, EntryError> {
        let connection = &entry.connection;
        let failed = EntryError::request("replace", connection);
        let (deletion, creation) = (self.number(), self.number());
        let mut both = encode::delete(connection, deletion);
        both.extend(encode::create(connection, &entry.attributes, creation));
        self.send(&both)?;
        let deleted = done(self.answer(deletion).await.map_err(&failed)?);
        let created = done(self.answer(creation).await.map_err(&failed)?);
        match (deleted, created) {
            (Ok(()), Ok(())) => Ok(Replaced::Yes),
            (Ok(()), Err(error)) if is(&error, Errno::EEXIST) => Ok(Replaced::Overtaken),
            (Err(error), Ok(())) if is(&error, Errno::ENOENT) => {
                self.delete_created(connection).await?;
                Ok(Replaced::Ended)
            }
            (Err(error), _) if is(&error, Errno::ENOENT) => Ok(Replaced::Ended),
            (Ok(()), Err(error)) | (Err(error), _) => Err(failed(error)),
        }
    }

    /// Deletes the entry that was created for a connection that had ended.
    async fn delete_created(&mut self, connection: &TrackedConnection) -> Result<(), EntryError> {
        let Some(created) = self.get(connection).await? else {
            return Ok(());
        };
        let sequence = self.number();
        self.send(&encode::delete(&created.connection, sequence))?;
        let failed = EntryError::request("delete", connection);
        match done(self.answer(sequence).await.map_err(&failed)?) {
            Err(error) if !is(&error, Errno::ENOENT) => Err(failed(error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn number(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }

    fn send(&self, request: &[u8]) -> Result<(), EntryError> {
        let sent = self.socket.send(request);
        sent.map_err(EntryError::socket(
            "send a request about an entry of connection tracking",
        ))
    }

    async fn answer(&mut self, sequence: u32) -> io::Result<Answer> {
        loop {
            let datagram = self.socket.receive().await?;
            let answer = decode::answer(datagram, sequence);
            if let Some(answer) = answer.map_err(|error| io::Error::other(error.to_string()))? {
                return Ok(answer);
            }
        }
    }
}

fn done(answer: Answer) -> io::Result<()> {
    match answer {
        Answer::Done => Ok(()),
        Answer::Refused(error) => Err(error),
        Answer::Entry(_) => Err(io::Error::other("the kernel has answered with an entry")),
    }
}
