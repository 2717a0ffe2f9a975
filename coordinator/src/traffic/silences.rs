//! Traffic pods without a report: the coordinator waits for a while, then names the node and watches traffic without it.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::traffic::Generation;

use crate::since::Since;

/// Time to wait for a report. A running traffic pod is heard within seconds.
pub const PATIENCE: Duration = Duration::from_mins(2);

/// Traffic pods without a report, and since when.
#[derive(Debug, Default)]
pub struct Silences {
    since: Since<(String, Generation)>,
    told: BTreeMap<String, String>,
}

impl Silences {
    /// Keeps the silent pods; the others have reported, or need not.
    pub(super) fn keep<'node>(&mut self, silent: impl Iterator<Item = (&'node str, Generation)>) {
        self.since
            .keep(silent.map(|(node, generation)| (node.to_owned(), generation)));
    }

    /// Whether this pod has been silent for too long.
    pub(super) fn is_long(&self, node: &str, generation: Generation) -> bool {
        self.since.has_lasted(&(node.to_owned(), generation), PATIENCE)
    }

    /// Keeps the nodes that are not waited for, and why.
    pub(super) fn set_reported(&mut self, told: BTreeMap<String, String>) {
        self.told = told;
    }

    /// Nodes that are not waited for, and why.
    pub fn reported(&self) -> impl Iterator<Item = (&str, &str)> {
        self.told.iter().map(|(node, why)| (node.as_str(), why.as_str()))
    }

    /// Ages every silence.
    #[cfg(test)]
    pub fn hurry(&mut self) {
        self.since.age(PATIENCE);
    }
}
