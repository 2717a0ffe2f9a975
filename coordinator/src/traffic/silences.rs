//! Traffic pods that have to report and do not: for a while they are waited for, then their node is named and the others watch without it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use plan::traffic::Generation;

/// A traffic pod that runs is heard within seconds. So long it is waited for.
pub const PATIENCE: Duration = Duration::from_mins(2);

/// Which traffic pods do not report, and since when.
#[derive(Debug, Default)]
pub struct Silences {
    since: BTreeMap<(String, Generation), Instant>,
    told: BTreeMap<String, String>,
}

impl Silences {
    /// Keeps who is silent now; the others have reported, or need not.
    pub(super) fn keep<'node>(&mut self, silent: impl Iterator<Item = (&'node str, Generation)>) {
        let mut before = std::mem::take(&mut self.since);
        let now = Instant::now();
        for (node, generation) in silent {
            let key = (node.to_owned(), generation);
            let since = before.remove(&key).unwrap_or(now);
            self.since.insert(key, since);
        }
    }

    /// Whether this one has been silent for too long.
    pub(super) fn is_long(&self, node: &str, generation: Generation) -> bool {
        let since = self.since.get(&(node.to_owned(), generation));
        since.is_some_and(|since| since.elapsed() >= PATIENCE)
    }

    /// Keeps the nodes that nobody waits for, and why.
    pub(super) fn tell(&mut self, told: BTreeMap<String, String>) {
        self.told = told;
    }

    /// Nodes that nobody waits for, and why.
    pub fn told(&self) -> impl Iterator<Item = (&str, &str)> {
        self.told.iter().map(|(node, why)| (node.as_str(), why.as_str()))
    }

    /// Everyone has been silent for long.
    #[cfg(test)]
    pub fn hurry(&mut self) {
        for since in self.since.values_mut() {
            *since = since.checked_sub(PATIENCE).unwrap();
        }
    }
}
