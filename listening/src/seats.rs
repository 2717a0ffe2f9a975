//! How many connections are open, in all and by whom. No I/O.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many connections may be open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// From other hosts and pods, together.
    pub all: usize,
    /// From one address.
    pub of_one: usize,
    /// From this host itself: its kubelet is not kept out by whoever takes the other seats.
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
    all: usize,
    own: usize,
    by_source: BTreeMap<IpAddr, usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Own,
    Other(IpAddr),
}

/// A seat that is given back when this is dropped.
#[derive(Debug)]
pub struct Seat {
    source: Source,
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

    /// A seat for a connection from `peer` to our address `local`; `None` where there is none.
    pub fn take(&self, peer: IpAddr, local: IpAddr) -> Option<Seat> {
        let (peer, local) = (peer.to_canonical(), local.to_canonical());
        let Limits { all, of_one, own } = self.limits;
        let mut taken = self.lock();
        // The kernel gives a connection of this host to itself the same address at both ends.
        let source = if peer == local || peer.is_loopback() {
            if taken.own >= own {
                return None;
            }
            taken.own += 1;
            Source::Own
        } else {
            let of_this = taken.by_source.get(&peer).copied().unwrap_or_default();
            if taken.all >= all || of_this >= of_one {
                return None;
            }
            taken.all += 1;
            taken.by_source.insert(peer, of_this + 1);
            Source::Other(peer)
        };
        Some(Seat {
            source,
            seats: self.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // Every change of it is whole before something can fail.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.seats.lock();
        match self.source {
            Source::Own => taken.own = taken.own.saturating_sub(1),
            Source::Other(peer) => {
                taken.all = taken.all.saturating_sub(1);
                match taken.by_source.get_mut(&peer) {
                    Some(count) if *count > 1 => *count -= 1,
                    Some(_) | None => {
                        taken.by_source.remove(&peer);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        all: 5,
        of_one: 2,
        own: 3,
    };

    fn at(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_source_has_few_and_all_have_an_end_and_the_host_has_its_own() {
        let seats = Seats::new(LIMITS);
        let node = at("192.0.2.1");
        let take = |peer: &str, count: usize| -> Vec<Seat> {
            (0..count).filter_map(|_| seats.take(at(peer), node)).collect()
        };
        let first = take("10.244.0.7", 10);
        assert_eq!(first.len(), 2);
        // The same source by the other family's socket.
        assert_eq!(take("::ffff:10.244.0.7", 10).len(), 0);
        let others: Vec<Seat> = (1..=9)
            .flat_map(|host| take(&format!("10.244.1.{host}"), 1))
            .collect();
        assert_eq!(others.len(), 3);
        assert_eq!(
            take("192.0.2.1", 10).len(),
            3,
            "the kubelet's, given back at once"
        );
        let own = [take("192.0.2.1", 1), take("127.0.0.1", 1), take("::1", 9)].concat_len();
        assert_eq!(own, 3);
        drop(first);
        assert_eq!(take("10.244.2.1", 10).len(), 2);
        drop(others);
        assert!(
            seats.lock().by_source.is_empty(),
            "nothing is kept of who has left"
        );
    }

    trait ConcatLength {
        fn concat_len(self) -> usize;
    }

    impl<const N: usize> ConcatLength for [Vec<Seat>; N] {
        fn concat_len(self) -> usize {
            self.iter().map(Vec::len).sum()
        }
    }
}
