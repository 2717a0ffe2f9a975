//! Parts of all walks: visit every reachable state, and check that each state can reach an end state.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

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

/// All states that are reachable from these, each with its next states.
pub(super) fn reachable<W: Copy + Ord>(
    starts: impl IntoIterator<Item = W>,
    next: impl Fn(W) -> Vec<W>,
) -> BTreeMap<W, Vec<W>> {
    let mut edges = BTreeMap::new();
    let mut queue: VecDeque<W> = starts.into_iter().collect();
    while let Some(world) = queue.pop_front() {
        if edges.contains_key(&world) {
            continue;
        }
        let next = next(world);
        queue.extend(next.iter().copied());
        edges.insert(world, next);
    }
    edges
}

/// States from which no end state is reachable: those that a search backwards from the end states does not find.
pub(super) fn stuck<W: Copy + Ord>(edges: &BTreeMap<W, Vec<W>>, is_end: impl Fn(&W) -> bool) -> Vec<W> {
    let mut previous: BTreeMap<W, Vec<W>> = BTreeMap::new();
    for (world, next) in edges {
        for after in next {
            previous.entry(*after).or_default().push(*world);
        }
    }
    let mut finishing: BTreeSet<W> = BTreeSet::new();
    let mut queue: VecDeque<W> = edges.keys().filter(|world| is_end(world)).copied().collect();
    assert!(!queue.is_empty(), "no state is an end");
    while let Some(world) = queue.pop_front() {
        if finishing.insert(world) {
            queue.extend(previous.get(&world).into_iter().flatten().copied());
        }
    }
    edges
        .keys()
        .filter(|world| !finishing.contains(world))
        .copied()
        .collect()
}
