//! Start times of conditions that hold. Lost at a restart of the coordinator: the time then starts again.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Conditions that hold now, with the time of their first observation by a steady clock.
#[derive(Debug)]
pub struct Since<Key>(BTreeMap<Key, Instant>);

impl<Key> Default for Since<Key> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<Key: Ord> Since<Key> {
    /// Keeps the conditions that hold now; forgets all others.
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

    /// Whether this condition has held for this time.
    pub fn has_lasted<Same>(&self, key: &Same, time: Duration) -> bool
    where
        Key: Borrow<Same>,
        Same: Ord + ?Sized,
    {
        self.0.get(key).is_some_and(|since| since.elapsed() >= time)
    }

    /// Adds this to the age of every condition.
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
    fn the_time_of_a_condition_starts_when_seen_and_ends_when_missing() {
        const LONG: Duration = Duration::from_mins(2);
        let mut since = Since::default();
        since.keep(["a", "b"]);
        assert!(!since.has_lasted(&"a", LONG) && since.has_lasted(&"a", Duration::ZERO));
        since.age(LONG);
        since.keep(["b", "c"]);
        let long = |since: &Since<&str>| ["a", "b", "c"].map(|key| since.has_lasted(&key, LONG));
        assert_eq!(long(&since), [false, true, false]);
        since.keep(["a", "c"]);
        assert_eq!(long(&since), [false; 3]);
    }
}
