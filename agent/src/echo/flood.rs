//! Who sends how much: what one source sends past its share is not answered, and is named. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Datagrams a second of one source that are answered. Traffic pods and agents send some tens.
pub const MOST_OF_ONE: u32 = 500;
/// Sources that are told apart within a second. Whoever is not is one of the many that have a share together.
const MOST_SOURCES: usize = 1024;
/// What is counted together.
const SECOND: Duration = Duration::from_secs(1);
/// For how long a flood is told of after its last second: those whose questions were lost ask again by then.
const TOLD: Duration = Duration::from_secs(5);

/// Counts of the present second, and the flood that there was last.
#[derive(Debug, Default)]
pub struct Sources {
    since: Option<Instant>,
    counts: BTreeMap<IpAddr, u32>,
    /// Datagrams of those that are not told apart.
    others: u32,
    flood: Option<(IpAddr, Instant)>,
}

impl Sources {
    /// Counts one datagram; whether it may be answered.
    pub fn may_answer(&mut self, source: IpAddr, now: Instant) -> bool {
        let source = source.to_canonical();
        if self.since.is_none_or(|since| now.duration_since(since) >= SECOND) {
            self.since = Some(now);
            self.counts.clear();
            self.others = 0;
        }
        let room = self.counts.len() < MOST_SOURCES;
        let count = match self.counts.get_mut(&source) {
            Some(count) => count,
            None if room => self.counts.entry(source).or_default(),
            None => &mut self.others,
        };
        *count = count.saturating_add(1);
        let may = *count <= MOST_OF_ONE;
        if !may {
            self.flood = Some((source, now));
        }
        may
    }

    /// Who sends more than it may, or did a moment ago.
    pub fn flooded_by(&self, now: Instant) -> Option<IpAddr> {
        let (source, at) = self.flood?;
        (now.duration_since(at) < TOLD).then_some(source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn one_that_floods_is_named_and_the_others_are_answered() {
        let mut sources = Sources::default();
        let now = Instant::now();
        let answered = (0..10_000)
            .filter(|_| sources.may_answer(at("10.244.1.7"), now))
            .count();
        assert_eq!(answered, MOST_OF_ONE as usize);
        assert!(sources.may_answer(at("10.244.1.8"), now));
        assert_eq!(sources.flooded_by(now), Some(at("10.244.1.7")));
        let later = now + SECOND;
        assert!(
            sources.may_answer(at("::ffff:10.244.1.7"), later),
            "another second"
        );
        assert_eq!(sources.flooded_by(later), Some(at("10.244.1.7")));
        assert_eq!(sources.flooded_by(now + TOLD), None);
    }

    #[test]
    fn many_addresses_cost_no_more_memory_and_have_one_share() {
        let mut sources = Sources::default();
        let now = Instant::now();
        let answered = (0..1_000_000_u32)
            .filter(|number| sources.may_answer(IpAddr::V4((0x0a00_0000 + number).into()), now))
            .count();
        assert_eq!(sources.counts.len(), MOST_SOURCES);
        assert_eq!(answered, MOST_SOURCES + MOST_OF_ONE as usize);
        assert!(sources.flooded_by(now).is_some());
    }
}
