//! What every walk does: visit all that can be reached, and ask of each state whether it can come to its end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

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
