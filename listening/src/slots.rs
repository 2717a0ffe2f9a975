//! Counts open connections, in total and by client. No I/O.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The limits of open connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// From all other hosts and pods together.
    pub all: usize,
    /// From one address.
    pub per_address: usize,
    /// From this host, separate from others so that the kubelet can always connect.
    pub own: usize,
}

/// The slots for connections. Clones share them.
#[derive(Clone, Debug)]
pub struct ConnectionSlots {
    limits: Limits,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    /// The number of the next slot.
    next: u64,
    /// Every used slot by its number, and so by its age.
    by_source: BTreeMap<Source, BTreeMap<u64, Arc<Notify>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Own,
    Other(IpAddr),
}

/// A slot for one connection, released when dropped.
#[derive(Debug)]
pub struct ConnectionSlot {
    source: Source,
    number: u64,
    closed: Arc<Notify>,
    slots: ConnectionSlots,
}

impl ConnectionSlots {
    /// Slots within these limits, all free.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            taken: Arc::default(),
        }
    }

    /// A slot for a connection from `peer` to the local address `local`. If none is free, the oldest connection of the source
    /// with the most slots is closed: clients that hold connections, however many, do not block other clients.
    pub fn take(&self, peer: IpAddr, local: IpAddr) -> ConnectionSlot {
        let (peer, local) = (peer.to_canonical(), local.to_canonical());
        // A connection from this host to itself has the same address at both ends.
        let source = if peer == local || peer.is_loopback() {
            Source::Own
        } else {
            Source::Other(peer)
        };
        let mut taken = self.lock();
        if let Some(full) = taken.full(source, self.limits) {
            taken.close_oldest(full);
        }
        let (number, closed) = (taken.next, Arc::<Notify>::default());
        taken.next += 1;
        let slots = taken.by_source.entry(source).or_default();
        slots.insert(number, Arc::clone(&closed));
        drop(taken);
        ConnectionSlot {
            source,
            number,
            closed,
            slots: self.clone(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // Every change is complete before anything can panic.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn of(&self, source: Source) -> usize {
        self.by_source.get(&source).map_or(0, BTreeMap::len)
    }

    /// The source that has to lose a slot before this source can have another.
    fn full(&self, source: Source, limits: Limits) -> Option<Source> {
        let of_this = self.of(source);
        match source {
            Source::Own => (of_this >= limits.own).then_some(source),
            Source::Other(_) if of_this >= limits.per_address => Some(source),
            Source::Other(_) => {
                let all: usize = self.by_source.values().map(BTreeMap::len).sum();
                let is_full = all - self.of(Source::Own) >= limits.all;
                is_full.then(|| self.largest()).flatten()
            }
        }
    }

    /// The other source with the most slots; of several, the source with the oldest slot.
    fn largest(&self) -> Option<Source> {
        let others = self
            .by_source
            .iter()
            .filter(|(source, _)| **source != Source::Own);
        let oldest = |slots: &BTreeMap<u64, Arc<Notify>>| slots.keys().next().map(|number| u64::MAX - number);
        let largest = others.max_by_key(|(_, slots)| (slots.len(), oldest(slots)));
        largest.map(|(source, _)| *source)
    }

    fn close_oldest(&mut self, source: Source) {
        if let Some((number, closed)) = self
            .by_source
            .get(&source)
            .and_then(|slots| slots.first_key_value())
        {
            closed.notify_one();
            let number = *number;
            self.release(source, number);
        }
    }

    fn release(&mut self, source: Source, number: u64) {
        if let Some(slots) = self.by_source.get_mut(&source) {
            slots.remove(&number);
            if slots.is_empty() {
                self.by_source.remove(&source);
            }
        }
    }
}

impl ConnectionSlot {
    /// The result of this work; `None` if another connection took the slot before.
    pub async fn hold<T>(self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            () = self.closed() => None,
        }
    }

    async fn closed(&self) {
        self.closed.notified().await;
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.slots.lock().release(self.source, self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    const LIMITS: Limits = Limits {
        all: 5,
        per_address: 2,
        own: 3,
    };

    fn at(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn is_closed(slot: &ConnectionSlot) -> bool {
        let closed = std::pin::pin!(slot.closed());
        closed.poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }

    /// The indices of closed slots.
    fn closed(slots: &[ConnectionSlot]) -> Vec<usize> {
        (0..slots.len())
            .filter(|number| is_closed(&slots[*number]))
            .collect()
    }

    fn take(slots: &ConnectionSlots, peer: &str, count: usize) -> Vec<ConnectionSlot> {
        (0..count)
            .map(|_| slots.take(at(peer), at("192.0.2.1")))
            .collect()
    }

    #[test]
    fn a_source_above_its_limit_loses_its_oldest_connection() {
        let slots = ConnectionSlots::new(LIMITS);
        let other = take(&slots, "10.244.1.1", 1);
        let mut held = take(&slots, "10.244.0.7", 4);
        assert_eq!(closed(&held), [0, 1]);
        // The same source as an IPv4-mapped IPv6 address.
        held.splice(..2, take(&slots, "::ffff:10.244.0.7", 1));
        assert_eq!(closed(&held), [1]);
        assert_eq!(closed(&other), [0_usize; 0]);
    }

    #[test]
    fn sources_that_hold_all_slots_do_not_block_a_new_source() {
        let slots = ConnectionSlots::new(LIMITS);
        let mut held: Vec<ConnectionSlot> = ["10.244.0.1", "10.244.0.2"]
            .iter()
            .flat_map(|peer| take(&slots, peer, 2))
            .collect();
        held.extend(take(&slots, "10.244.0.3", 1));
        let new = take(&slots, "10.244.0.4", 1);
        assert_eq!(closed(&held), [0], "the oldest of the sources with the most");
        // All sources but the second have one now.
        held.extend(new);
        let next = take(&slots, "10.244.0.5", 1);
        assert_eq!(closed(&held), [2]);
        held.extend(next);
        let last = take(&slots, "10.244.0.6", 1);
        assert_eq!(closed(&held), [1], "each source has one: the oldest of all");
        assert_eq!(closed(&last), [0_usize; 0]);
    }

    #[test]
    fn the_host_has_separate_slots_and_closed_sources_are_removed() {
        let slots = ConnectionSlots::new(LIMITS);
        let others: Vec<ConnectionSlot> = (1..=9)
            .flat_map(|host| take(&slots, &format!("10.244.1.{host}"), 1))
            .collect();
        let own = [
            take(&slots, "192.0.2.1", 1),
            take(&slots, "127.0.0.1", 1),
            take(&slots, "::1", 1),
        ];
        let own: Vec<ConnectionSlot> = own.into_iter().flatten().collect();
        assert_eq!(closed(&own), [0_usize; 0]);
        assert_eq!(closed(&others), [0, 1, 2, 3]);
        let next = take(&slots, "192.0.2.1", 1);
        assert_eq!(closed(&own), [0]);
        drop((others, own, next));
        assert!(slots.lock().by_source.is_empty());
    }
}
