//! Traffic pods that have to report and do not: for a while they are waited for, then their node is named and the others watch without it.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::traffic::Generation;

use crate::since::Since;

/// A traffic pod that runs is heard within seconds. So long it is waited for.
pub const PATIENCE: Duration = Duration::from_mins(2);

/// Which traffic pods do not report, and since when.
#[derive(Debug, Default)]
pub struct Silences {
    since: Since<(String, Generation)>,
    told: BTreeMap<String, String>,
}

impl Silences {
    /// Keeps who is silent now; the others have reported, or need not.
    pub(super) fn keep<'node>(&mut self, silent: impl Iterator<Item = (&'node str, Generation)>) {
        self.since
            .keep(silent.map(|(node, generation)| (node.to_owned(), generation)));
    }

    /// Whether this one has been silent for too long.
    pub(super) fn is_long(&self, node: &str, generation: Generation) -> bool {
        self.since.is_as_long_as(&(node.to_owned(), generation), PATIENCE)
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
        self.since.age(PATIENCE);
    }
}
