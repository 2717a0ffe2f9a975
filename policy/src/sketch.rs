//! A bounded number of keys with their counts. Up to its capacity a sketch is exact. Beyond, it keeps the most frequent keys by
//! the algorithm Space-Saving (Metwally, Agrawal, El Abbadi, 2005), and says that it is incomplete: what it does not have may
//! exist.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::class::Key;
use crate::flow::Flow;

/// Observed connections by class, each with one example.
pub type Observed = Sketch<Key, Example>;

/// The capacity of a node's sketch. A cluster with fewer classes has an exact preview.
pub const CAPACITY: usize = 16_384;

/// One connection of a class.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Example {
    /// The connection.
    pub flow: Flow,
    /// A name of its client ([`crate::Cluster::describe`]).
    pub client: Arc<str>,
    /// A name of its server.
    pub server: Arc<str>,
}

/// Keys with their counts.
///
/// ```
/// use jiff::Timestamp;
/// use policy::sketch::{Coverage, Sample, Sketch};
///
/// let sample = |example| Sample { at: Timestamp::UNIX_EPOCH, is_replied: true, example };
/// let mut sketch = Sketch::new(1);
/// sketch.observe("a", sample(1));
/// assert_eq!(sketch.find(|key| *key == "b").is_none(), true);
/// sketch.observe("b", sample(2));
/// // One key was replaced: the sketch has no "a", and does not claim that there was none.
/// let found = sketch.find(|key| *key == "a");
/// assert!(found.entries.is_empty() && !found.is_none());
/// assert_eq!(found.coverage, Coverage::Incomplete { replaced: 1 });
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Wire<K, E>", into = "Wire<K, E>")]
#[serde(bound(
    serialize = "K: Ord + Clone + Serialize, E: Clone + Serialize",
    deserialize = "K: Ord + Clone + Deserialize<'de>, E: Clone + Deserialize<'de>"
))]
pub struct Sketch<K, E> {
    capacity: usize,
    replaced: u64,
    /// No key that is missing has a larger count.
    floor: u64,
    slots: Vec<(Arc<K>, Entry<E>)>,
    places: BTreeMap<Arc<K>, usize>,
    /// Count and place of each slot, the smallest count first.
    by_count: BTreeSet<(u64, usize)>,
}

/// What is known of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry<E> {
    /// How often the key was seen, at most.
    pub count: u64,
    /// By so much the count may be too large.
    pub error: u64,
    /// How often of these a reply was seen, at least.
    pub replied: u64,
    /// The first time that is known.
    pub first: Timestamp,
    /// The last time.
    pub last: Timestamp,
    /// One of the connections: the first that is known.
    pub example: E,
}

/// One observation of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample<E> {
    /// Its time.
    pub at: Timestamp,
    /// A reply was seen.
    pub is_replied: bool,
    /// The connection.
    pub example: E,
}

/// Whether a sketch has every key that was observed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Coverage {
    /// It has, with exact counts.
    Complete,
    /// It has not: keys are missing.
    Incomplete {
        /// How often a key was removed, so at least one key and at most so many are missing.
        replaced: u64,
    },
}

/// Keys that were asked for, with what may be missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found<'sketch, K, E> {
    /// The keys with their counts, the largest count first.
    pub entries: Vec<(&'sketch K, &'sketch Entry<E>)>,
    /// Whether more of them may exist.
    pub coverage: Coverage,
}

impl<K, E> Found<'_, K, E> {
    /// Whether no such key was observed. An incomplete sketch never says so.
    pub fn is_none(&self) -> bool {
        self.entries.is_empty() && self.coverage == Coverage::Complete
    }
}

impl<K: Ord, E: Clone> Sketch<K, E> {
    /// An empty sketch for so many keys, at least one.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            replaced: 0,
            floor: 0,
            slots: Vec::new(),
            places: BTreeMap::new(),
            by_count: BTreeSet::new(),
        }
    }

    /// Adds an observation.
    pub fn observe(&mut self, key: K, sample: Sample<E>) {
        if let Some(place) = self.places.get(&key) {
            let place = *place;
            let entry = &mut self.slots[place].1;
            self.by_count.remove(&(entry.count, place));
            entry.count += 1;
            entry.replied += u64::from(sample.is_replied);
            entry.first = entry.first.min(sample.at);
            entry.last = entry.last.max(sample.at);
            self.by_count.insert((entry.count, place));
            return;
        }
        let place = self.free_place();
        let entry = Entry {
            count: self.floor + 1,
            error: self.floor,
            replied: u64::from(sample.is_replied),
            first: sample.at,
            last: sample.at,
            example: sample.example,
        };
        self.put(place, Arc::new(key), entry);
    }

    /// Sees a connection again that was observed before, and counts it no second time. `is_first_reply` says that its reply is seen
    /// for the first time. Returns whether the key is there; one that was replaced stays away.
    pub fn observe_again(&mut self, key: &K, at: Timestamp, is_first_reply: bool) -> bool {
        let Some(place) = self.places.get(key) else {
            return false;
        };
        let entry = &mut self.slots[*place].1;
        entry.last = entry.last.max(at);
        entry.replied += u64::from(is_first_reply);
        true
    }

    /// A place for a new key: behind the others, or that of the key with the smallest count.
    fn free_place(&mut self) -> usize {
        if self.slots.len() < self.capacity {
            return self.slots.len();
        }
        let Some((count, place)) = self.by_count.pop_first() else {
            return self.slots.len();
        };
        self.places.remove(&self.slots[place].0);
        self.floor = self.floor.max(count);
        self.replaced += 1;
        place
    }

    fn put(&mut self, place: usize, key: Arc<K>, entry: Entry<E>) {
        self.by_count.insert((entry.count, place));
        self.places.insert(Arc::clone(&key), place);
        if place == self.slots.len() {
            self.slots.push((key, entry));
        } else {
            self.slots[place] = (key, entry);
        }
    }

    /// Adds the observations of another sketch, such as that of another node. A key that one of them misses may have been seen
    /// there as often as its floor says.
    pub fn merge(&mut self, other: &Self) {
        let mut merged: BTreeMap<Arc<K>, Entry<E>> = BTreeMap::new();
        for (key, own) in &self.slots {
            let mut entry = own.clone();
            if let Some(place) = other.places.get(key) {
                entry.add(&other.slots[*place].1);
            } else {
                entry.count += other.floor;
                entry.error += other.floor;
            }
            merged.insert(Arc::clone(key), entry);
        }
        for (key, theirs) in &other.slots {
            if !self.places.contains_key(key) {
                let mut entry = theirs.clone();
                entry.count += self.floor;
                entry.error += self.floor;
                merged.insert(Arc::clone(key), entry);
            }
        }
        let mut slots: Vec<(Arc<K>, Entry<E>)> = merged.into_iter().collect();
        // Equal counts stay in order of their keys: the same sketches give the same result.
        slots.sort_by_key(|(_, entry)| std::cmp::Reverse(entry.count));
        let kept = slots.len().min(self.capacity);
        let dropped = slots.split_off(kept);
        self.floor += other.floor;
        if let Some((_, largest)) = dropped.first() {
            self.floor = self.floor.max(largest.count);
        }
        self.replaced += other.replaced + dropped.len() as u64;
        self.fill(slots);
    }

    fn fill(&mut self, slots: Vec<(Arc<K>, Entry<E>)>) {
        self.slots.clear();
        self.places.clear();
        self.by_count.clear();
        for (place, (key, entry)) in slots.into_iter().enumerate() {
            self.put(place, key, entry);
        }
    }

    /// Whether every observed key is there.
    pub fn coverage(&self) -> Coverage {
        match self.replaced {
            0 => Coverage::Complete,
            replaced => Coverage::Incomplete { replaced },
        }
    }

    /// All keys for which the test holds, the largest count first, and whether more may exist.
    pub fn find(&self, test: impl Fn(&K) -> bool) -> Found<'_, K, E> {
        let places = self.by_count.iter().rev().map(|(_, place)| *place);
        let slots = places.map(|place| (&*self.slots[place].0, &self.slots[place].1));
        Found {
            entries: slots.filter(|(key, _)| test(key)).collect(),
            coverage: self.coverage(),
        }
    }
}

impl<E> Entry<E> {
    fn add(&mut self, other: &Self)
    where
        E: Clone,
    {
        self.count += other.count;
        self.error += other.error;
        self.replied += other.replied;
        self.last = self.last.max(other.last);
        if other.first < self.first {
            self.first = other.first;
            self.example = other.example.clone();
        }
    }
}

/// A sketch as it is sent.
#[derive(Serialize, Deserialize)]
struct Wire<K, E> {
    capacity: usize,
    replaced: u64,
    floor: u64,
    entries: Vec<(K, Entry<E>)>,
}

impl<K: Clone, E> From<Sketch<K, E>> for Wire<K, E> {
    fn from(sketch: Sketch<K, E>) -> Self {
        let entries = sketch.slots.into_iter();
        Self {
            capacity: sketch.capacity,
            replaced: sketch.replaced,
            floor: sketch.floor,
            entries: entries
                .map(|(key, entry)| (Arc::unwrap_or_clone(key), entry))
                .collect(),
        }
    }
}

impl<K: Ord, E: Clone> From<Wire<K, E>> for Sketch<K, E> {
    /// What does not fit the capacity, or repeats a key, is added to what is missing: the sender is not trusted to be exact.
    fn from(wire: Wire<K, E>) -> Self {
        let mut sketch = Self::new(wire.capacity);
        sketch.replaced = wire.replaced;
        sketch.floor = wire.floor;
        for (key, entry) in wire.entries {
            let key = Arc::new(key);
            if sketch.slots.len() < sketch.capacity && !sketch.places.contains_key(&key) {
                sketch.put(sketch.slots.len(), key, entry);
            } else {
                sketch.replaced += 1;
                sketch.floor = sketch.floor.max(entry.count);
            }
        }
        sketch
    }
}

#[cfg(test)]
mod tests;
