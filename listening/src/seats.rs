//! How many connections are open, in all and by whom. No I/O.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// How many connections may be open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// From other hosts and pods, together.
    pub all: usize,
    /// From one address.
    pub of_one: usize,
    /// From this host itself, so that other clients never keep its kubelet out.
    pub own: usize,
}

/// The seats, and who has them. Cloning shares them.
#[derive(Clone, Debug)]
pub struct Seats {
    limits: Limits,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    /// The number of the next seat.
    next: u64,
    /// Every seat by its number, and so by its age.
    by_source: BTreeMap<Source, BTreeMap<u64, Arc<Notify>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Source {
    Own,
    Other(IpAddr),
}

/// A seat that is given back when this is dropped.
#[derive(Debug)]
pub struct Seat {
    source: Source,
    number: u64,
    lost: Arc<Notify>,
    seats: Seats,
}

impl Seats {
    /// All of them free.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            taken: Arc::default(),
        }
    }

    /// A seat for a connection from `peer` to our address `local`. Where there is none, the oldest one of the source with the most seats is
    /// lost: clients that hold connections keep no other client out, however many they are.
    pub fn take(&self, peer: IpAddr, local: IpAddr) -> Seat {
        let (peer, local) = (peer.to_canonical(), local.to_canonical());
        // The kernel gives a connection of this host to itself the same address at both ends.
        let source = if peer == local || peer.is_loopback() {
            Source::Own
        } else {
            Source::Other(peer)
        };
        let mut taken = self.lock();
        if let Some(full) = taken.full(source, self.limits) {
            taken.lose_oldest(full);
        }
        let (number, lost) = (taken.next, Arc::<Notify>::default());
        taken.next += 1;
        let seats = taken.by_source.entry(source).or_default();
        seats.insert(number, Arc::clone(&lost));
        drop(taken);
        Seat {
            source,
            number,
            lost,
            seats: self.clone(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // Every change of it is whole before something can fail.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn of(&self, source: Source) -> usize {
        self.by_source.get(&source).map_or(0, BTreeMap::len)
    }

    /// The source that has to lose a seat before this one can have another.
    fn full(&self, source: Source, limits: Limits) -> Option<Source> {
        let of_this = self.of(source);
        match source {
            Source::Own => (of_this >= limits.own).then_some(source),
            Source::Other(_) if of_this >= limits.of_one => Some(source),
            Source::Other(_) => {
                let all: usize = self.by_source.values().map(BTreeMap::len).sum();
                let is_full = all - self.of(Source::Own) >= limits.all;
                is_full.then(|| self.largest()).flatten()
            }
        }
    }

    /// The other source with the most seats; of several, the one whose first seat is the oldest.
    fn largest(&self) -> Option<Source> {
        let others = self
            .by_source
            .iter()
            .filter(|(source, _)| **source != Source::Own);
        let oldest = |seats: &BTreeMap<u64, Arc<Notify>>| seats.keys().next().map(|number| u64::MAX - number);
        let largest = others.max_by_key(|(_, seats)| (seats.len(), oldest(seats)));
        largest.map(|(source, _)| *source)
    }

    fn lose_oldest(&mut self, source: Source) {
        if let Some((number, lost)) = self
            .by_source
            .get(&source)
            .and_then(|seats| seats.first_key_value())
        {
            lost.notify_one();
            let number = *number;
            self.give_back(source, number);
        }
    }

    fn give_back(&mut self, source: Source, number: u64) {
        if let Some(seats) = self.by_source.get_mut(&source) {
            seats.remove(&number);
            if seats.is_empty() {
                self.by_source.remove(&source);
            }
        }
    }
}

impl Seat {
    /// What this work comes to; `None` where the seat was given to another connection before.
    pub async fn hold<T>(self, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            done = work => Some(done),
            () = self.lost() => None,
        }
    }

    async fn lost(&self) {
        self.lost.notified().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.seats.lock().give_back(self.source, self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    const LIMITS: Limits = Limits {
        all: 5,
        of_one: 2,
        own: 3,
    };

    fn at(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn is_lost(seat: &Seat) -> bool {
        let lost = std::pin::pin!(seat.lost());
        lost.poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }

    /// Which of these are lost.
    fn lost(seats: &[Seat]) -> Vec<usize> {
        (0..seats.len())
            .filter(|number| is_lost(&seats[*number]))
            .collect()
    }

    fn take(seats: &Seats, peer: &str, count: usize) -> Vec<Seat> {
        (0..count)
            .map(|_| seats.take(at(peer), at("192.0.2.1")))
            .collect()
    }

    #[test]
    fn one_source_has_few_and_loses_its_own_oldest() {
        let seats = Seats::new(LIMITS);
        let other = take(&seats, "10.244.1.1", 1);
        let mut held = take(&seats, "10.244.0.7", 4);
        assert_eq!(lost(&held), [0, 1]);
        // The same source by the other family's socket.
        held.splice(..2, take(&seats, "::ffff:10.244.0.7", 1));
        assert_eq!(lost(&held), [1]);
        assert_eq!(lost(&other), [0_usize; 0]);
    }

    #[test]
    fn sources_that_hold_all_seats_keep_no_other_one_out() {
        let seats = Seats::new(LIMITS);
        let mut held: Vec<Seat> = ["10.244.0.1", "10.244.0.2"]
            .iter()
            .flat_map(|peer| take(&seats, peer, 2))
            .collect();
        held.extend(take(&seats, "10.244.0.3", 1));
        let new = take(&seats, "10.244.0.4", 1);
        assert_eq!(lost(&held), [0], "of those with the most, the oldest");
        // All have one now but the second.
        held.extend(new);
        let next = take(&seats, "10.244.0.5", 1);
        assert_eq!(lost(&held), [2]);
        held.extend(next);
        let last = take(&seats, "10.244.0.6", 1);
        assert_eq!(lost(&held), [1], "each has one: the oldest of all");
        assert_eq!(lost(&last), [0_usize; 0]);
    }

    #[test]
    fn the_host_has_its_own_and_nothing_is_kept_of_who_has_left() {
        let seats = Seats::new(LIMITS);
        let others: Vec<Seat> = (1..=9)
            .flat_map(|host| take(&seats, &format!("10.244.1.{host}"), 1))
            .collect();
        let own = [
            take(&seats, "192.0.2.1", 1),
            take(&seats, "127.0.0.1", 1),
            take(&seats, "::1", 1),
        ];
        let own: Vec<Seat> = own.into_iter().flatten().collect();
        assert_eq!(lost(&own), [0_usize; 0]);
        assert_eq!(lost(&others), [0, 1, 2, 3]);
        let next = take(&seats, "192.0.2.1", 1);
        assert_eq!(lost(&own), [0]);
        drop((others, own, next));
        assert!(seats.lock().by_source.is_empty());
    }
}
