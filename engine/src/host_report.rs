//! What an agent reports for one kind, and how soon a changed report is needed.

use jiff::Timestamp;

use crate::check::Check;

/// How soon after the last write a changed report is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Urgency {
    /// A decision may wait for it.
    Now,
    /// No decision waits for it.
    Soon,
    /// It differs only in what changes all the time, such as the pods of the node.
    Late,
}

/// What an agent reports for one kind.
pub trait HostReport: Clone + PartialEq {
    /// The part of this kind in the spec of the `NodeMigration`.
    type Orders;

    /// How soon this report is needed, if `old` was the last one written.
    fn urgency(&self, old: &Self, orders: Option<&Self::Orders>) -> Urgency;

    /// Takes over each time of the old report whose value has not changed.
    fn keep_times(&mut self, _old: Option<&Self>, _now: Timestamp) {}

    /// Number of objects of the old network on the host.
    fn count_leftovers(&self) -> usize {
        0
    }

    /// Names of the phases of a host. Empty for a kind without phases.
    fn phases() -> Vec<&'static str> {
        Vec::new()
    }

    /// The phase of the host, one of [`HostReport::phases`]; `None` while it is unknown.
    fn phase(&self) -> Option<&'static str> {
        None
    }

    /// Names of the checks of a host.
    fn check_names() -> Vec<&'static str> {
        Vec::new()
    }

    /// Checks of the host.
    fn checks(&self) -> &[Check] {
        &[]
    }
}
