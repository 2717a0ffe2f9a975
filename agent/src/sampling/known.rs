//! Which open connections are counted already. Keeps eight bytes for each, of a bounded number. Pure.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

use crate::host::netlink::conntrack::TrackedConnection;

/// The number of connections of sampled pods that are remembered: more than most hosts track at all, and the most that fits into
/// 4.5 MiB (a table of 2^19 places that is full to seven eighths).
pub const MOST: usize = (1 << 19) / 8 * 7;

/// In the lowest bit of a remembered connection: whether a reply was seen.
const REPLIED: u64 = 1;

/// Whether a connection was seen before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sighting {
    /// Never.
    First,
    /// Yes, but its reply is seen for the first time.
    FirstReply,
    /// Yes.
    Again,
    /// There is no place to remember the connection, so that this is not known.
    Unknown,
}

/// The connections that are open, by a hash of their number, zone, protocol, addresses and ports. The hash has a random key: a pod
/// cannot make connections that look like another one.
#[derive(Debug)]
pub struct KnownConnections {
    hasher: RandomState,
    most: usize,
    known: HashSet<u64>,
    /// Those of the listing that is being read.
    listed: Option<HashSet<u64>>,
}

impl KnownConnections {
    /// No connection is known. At most so many will be.
    pub fn new(most: usize) -> Self {
        Self {
            hasher: RandomState::new(),
            most,
            known: HashSet::new(),
            listed: None,
        }
    }

    /// A listing of all open connections begins.
    pub fn begin(&mut self) {
        self.end(false);
        self.listed = Some(HashSet::new());
    }

    /// The listing ended. What a complete one does not have is closed, and forgotten.
    pub fn end(&mut self, is_complete: bool) {
        let Some(listed) = self.listed.take() else {
            return;
        };
        if is_complete {
            self.known = listed;
            return;
        }
        for key in listed {
            if self.known.len() >= self.most {
                return;
            }
            self.known.insert(key);
        }
    }

    /// Sees a connection that is open.
    pub fn see(&mut self, connection: &TrackedConnection) -> Sighting {
        let (unreplied, replied) = self.keys(connection);
        let was_replied = self.has(replied);
        let was_known = was_replied || self.has(unreplied);
        let is_replied = was_replied || connection.is_replied;
        let set = self.listed.as_mut().unwrap_or(&mut self.known);
        if is_replied {
            set.remove(&unreplied);
        }
        let key = if is_replied { replied } else { unreplied };
        let is_remembered = set.contains(&key) || (set.len() < self.most && set.insert(key));
        match (was_known, is_remembered) {
            (true, _) if is_replied && !was_replied => Sighting::FirstReply,
            (true, _) => Sighting::Again,
            (false, true) => Sighting::First,
            (false, false) => Sighting::Unknown,
        }
    }

    /// Sees a connection that has ended. A listing that is being read may still have it, so that it is remembered until the next one.
    pub fn see_end(&mut self, connection: &TrackedConnection) -> Sighting {
        let sighting = self.see(connection);
        if self.listed.is_none() {
            let (unreplied, replied) = self.keys(connection);
            self.known.remove(&unreplied);
            self.known.remove(&replied);
        }
        match sighting {
            // No place is needed for a connection that does not come again, unless a listing may have it.
            Sighting::Unknown if self.listed.is_none() => Sighting::First,
            other => other,
        }
    }

    /// The number of connections that are remembered.
    pub fn count(&self) -> usize {
        self.known.len() + self.listed.as_ref().map_or(0, HashSet::len)
    }

    fn has(&self, key: u64) -> bool {
        self.known.contains(&key) || self.listed.as_ref().is_some_and(|listed| listed.contains(&key))
    }

    /// How the connection is remembered without a reply, and with one.
    fn keys(&self, connection: &TrackedConnection) -> (u64, u64) {
        let TrackedConnection {
            id,
            zone,
            protocol,
            original,
            reply: _,
            is_replied: _,
        } = connection;
        let hash = self.hasher.hash_one((
            id,
            zone,
            protocol,
            original.source,
            original.destination,
            original.source_port,
            original.destination_port,
        ));
        (hash & !REPLIED, hash | REPLIED)
    }
}

#[cfg(test)]
mod tests;
