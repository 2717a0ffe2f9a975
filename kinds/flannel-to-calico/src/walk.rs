//! What every walk does: visit all that can be reached, and ask of each state whether it can come to its end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::node::{NetworkLabel, drift};

/// Whether somebody else writes the Node's label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Flip {
    /// Not in this walk.
    Never,
    /// Once, at any time.
    Possible,
    /// It has happened.
    Happened,
}

/// What the coordinator remembers of the label. Each change of it is a state of its own, after which a crash may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LabelRecord {
    written: Option<&'static str>,
    next: Option<&'static str>,
}

impl LabelRecord {
    /// Nothing else is under way.
    pub(super) const fn of(written: Option<&'static str>) -> Self {
        Self { written, next: None }
    }

    /// The next value is announced; it is not written yet, or it is.
    pub(super) fn announced(written: &'static str, next: &'static str) -> Self {
        Self {
            written: Some(written),
            next: Some(next),
        }
    }

    /// Announces the value first. Returns whether it is to be written now.
    pub(super) fn write(&mut self, value: &'static str) -> bool {
        let announced = self.next == Some(value);
        self.next = Some(value);
        announced
    }

    /// The node is at an end: what was announced and is not there is not wanted any more.
    pub(super) fn end(&mut self) {
        self.next = None;
    }

    /// What is done about the label before anything else: what was announced and is there is taken for written; what somebody
    /// else wrote is written again. Returns the label as it is then, and `None` when there was nothing to do.
    pub(super) fn keep(&mut self, label: Option<&'static str>, flip: Flip) -> Option<&'static str> {
        if self.next.is_some() && self.next == label {
            *self = Self::of(label);
            return label;
        }
        let drift = drift(&NetworkLabel::read(label), self.written, self.next)?;
        assert_eq!(flip, Flip::Happened, "nobody wrote it: {drift}: {self:?}");
        assert_eq!(self.written, Some(drift.needed.as_str()));
        self.written
    }
}

/// Every state that can be reached from these, with the states that come next.
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

/// States from which no end can be reached: backwards from the ends, who is not met.
pub(super) fn stuck<W: Copy + Ord>(edges: &BTreeMap<W, Vec<W>>, is_end: impl Fn(&W) -> bool) -> Vec<W> {
    let mut before: BTreeMap<W, Vec<W>> = BTreeMap::new();
    for (world, next) in edges {
        for after in next {
            before.entry(*after).or_default().push(*world);
        }
    }
    let mut finishes: BTreeSet<W> = BTreeSet::new();
    let mut queue: VecDeque<W> = edges.keys().filter(|world| is_end(world)).copied().collect();
    assert!(!queue.is_empty(), "no state is an end");
    while let Some(world) = queue.pop_front() {
        if finishes.insert(world) {
            queue.extend(before.get(&world).into_iter().flatten().copied());
        }
    }
    edges
        .keys()
        .filter(|world| !finishes.contains(world))
        .copied()
        .collect()
}
