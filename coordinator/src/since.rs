//! Since when something has held. Lost at a restart of ours: then the time counts again.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// What holds at the moment, each with the look that saw it first. The clock of the machine may be set meanwhile.
#[derive(Debug)]
pub struct Since<Key>(BTreeMap<Key, Instant>);

impl<Key> Default for Since<Key> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<Key: Ord> Since<Key> {
    /// Keeps what holds now. The time of everything else is over.
    pub fn keep(&mut self, holding: impl IntoIterator<Item = Key>) {
        let mut before = std::mem::take(&mut self.0);
        let now = Instant::now();
        self.0 = holding
            .into_iter()
            .map(|key| {
                let since = before.remove(&key).unwrap_or(now);
                (key, since)
            })
            .collect();
    }

    /// Whether this has held for so long.
    pub fn is_as_long_as<Same>(&self, key: &Same, time: Duration) -> bool
    where
        Key: Borrow<Same>,
        Same: Ord + ?Sized,
    {
        self.0.get(key).is_some_and(|since| since.elapsed() >= time)
    }

    /// Everything has held for so much longer.
    #[cfg(test)]
    pub(crate) fn age(&mut self, time: Duration) {
        for since in self.0.values_mut() {
            *since = since.checked_sub(time).unwrap();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_each_begins_when_it_is_seen_and_ends_when_it_is_not() {
        const LONG: Duration = Duration::from_mins(2);
        let mut since = Since::default();
        since.keep(["a", "b"]);
        assert!(!since.is_as_long_as(&"a", LONG) && since.is_as_long_as(&"a", Duration::ZERO));
        since.age(LONG);
        since.keep(["b", "c"]);
        let long = |since: &Since<&str>| ["a", "b", "c"].map(|key| since.is_as_long_as(&key, LONG));
        assert_eq!(long(&since), [false, true, false]);
        since.keep(["a", "c"]);
        assert_eq!(long(&since), [false; 3]);
    }
}
