//! Limits answers per source: datagrams above the limit are not answered, and the source is named. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Answered datagrams per second and source. Traffic pods and agents send some tens.
pub const MOST_OF_ONE: u32 = 500;
/// Sources that are counted separately within a second. All others share one limit.
const MOST_SOURCES: usize = 1024;
/// Period of counting.
const SECOND: Duration = Duration::from_secs(1);
/// How long a flood is still reported after its last second: probers whose questions were lost ask again within this time.
const REPORTED_FOR: Duration = Duration::from_secs(5);

/// Counts of the current second, and the last flood.
#[derive(Debug, Default)]
pub struct Sources {
    since: Option<Instant>,
    counts: BTreeMap<IpAddr, u32>,
    /// Datagrams of sources that are not counted separately.
    others: u32,
    flood: Option<(IpAddr, Instant)>,
}

impl Sources {
    /// Counts one datagram, and returns whether it may be answered.
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

    /// The source that exceeds its limit, or exceeded it a moment ago.
    pub fn flooded_by(&self, now: Instant) -> Option<IpAddr> {
        let (source, at) = self.flood?;
        (now.duration_since(at) < REPORTED_FOR).then_some(source)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn a_flooding_source_is_named_and_other_sources_are_answered() {
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
            "the next second"
        );
        assert_eq!(sources.flooded_by(later), Some(at("10.244.1.7")));
        assert_eq!(sources.flooded_by(now + REPORTED_FOR), None);
    }

    #[test]
    fn a_million_sources_use_bounded_memory_and_share_one_limit() {
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
