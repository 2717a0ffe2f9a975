//! Parts of the walks of a node: the label of the Node and the coordinator's record of it.

mod fixture;
mod in_place;
mod node;
mod rollback;

use super::node::{NetworkLabel, drift};

/// Whether another client writes the label of the Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Flip {
    /// Not in this walk.
    Never,
    /// Once, at any time.
    Possible,
    /// Already.
    Happened,
}

/// The coordinator's record of the label. Each change of the record is a separate state, after which a crash may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LabelRecord {
    written: Option<&'static str>,
    next: Option<&'static str>,
}

impl LabelRecord {
    /// A record without an announced value.
    pub(super) const fn of(written: Option<&'static str>) -> Self {
        Self { written, next: None }
    }

    /// A record with an announced next value, which may be written already.
    pub(super) fn announced(written: &'static str, next: &'static str) -> Self {
        Self {
            written: Some(written),
            next: Some(next),
        }
    }

    /// Announces the value. Returns whether it was announced before, so that the label is written now.
    pub(super) fn write(&mut self, value: &'static str) -> bool {
        let announced = self.next == Some(value);
        self.next = Some(value);
        announced
    }

    /// Drops an announced value when the node reaches its end.
    pub(super) fn end(&mut self) {
        self.next = None;
    }

    /// Handles the label before anything else: an announced value that exists counts as written, and a value of another client
    /// is replaced. Returns the new label, or `None` if there was nothing to do.
    pub(super) fn keep(&mut self, label: Option<&'static str>, flip: Flip) -> Option<&'static str> {
        if self.next.is_some() && self.next == label {
            *self = Self::of(label);
            return label;
        }
        let drift = drift(&NetworkLabel::read(label), self.written, self.next)?;
        assert_eq!(
            flip,
            Flip::Happened,
            "no client wrote the label: {drift}: {self:?}"
        );
        assert_eq!(self.written, Some(drift.needed.as_str()));
        self.written
    }
}
