use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn sample(second: i64) -> Sample<i64> {
    Sample {
        at: Timestamp::from_second(second).unwrap(),
        is_replied: second % 2 == 0,
        example: second,
    }
}

fn sketch(capacity: usize, keys: &[u8]) -> Sketch<u8, i64> {
    let mut sketch = Sketch::new(capacity);
    for (second, key) in (0..).zip(keys) {
        sketch.observe(*key, sample(second));
    }
    sketch
}

fn counts(sketch: &Sketch<u8, i64>) -> BTreeMap<u8, (u64, u64)> {
    let found = sketch.find(|_| true);
    found
        .entries
        .iter()
        .map(|(key, entry)| (**key, (entry.count, entry.error)))
        .collect()
}

fn truth(keys: &[u8]) -> BTreeMap<u8, u64> {
    let mut counts = BTreeMap::new();
    for key in keys {
        *counts.entry(*key).or_default() += 1;
    }
    counts
}

#[test]
fn an_entry_has_times_replies_and_the_first_example() {
    let sketch = sketch(2, &[7, 7, 7, 9]);
    let found = sketch.find(|key| *key == 7);
    let (_, entry) = found.entries[0];
    let expected = Entry {
        count: 3,
        error: 0,
        replied: 2,
        first: Timestamp::from_second(0).unwrap(),
        last: Timestamp::from_second(2).unwrap(),
        example: 0,
    };
    assert_eq!((entry, found.coverage), (&expected, Coverage::Complete));
}

#[test]
fn entries_are_listed_from_the_largest_count() {
    let sketch = sketch(3, &[1, 2, 2, 3, 3, 3]);
    let keys: Vec<u8> = sketch
        .find(|_| true)
        .entries
        .iter()
        .map(|(key, _)| **key)
        .collect();
    assert_eq!(keys, [3, 2, 1]);
}

#[test]
fn a_connection_that_is_seen_again_counts_once() {
    let mut sketch = Sketch::new(1);
    let at = |second| Timestamp::from_second(second).unwrap();
    sketch.observe(7, sample(1));
    assert!(sketch.observe_again(&7, at(5), false));
    assert!(sketch.observe_again(&7, at(3), true));
    assert!(!sketch.observe_again(&8, at(9), true));
    let found = sketch.find(|_| true);
    assert_eq!(found.entries.len(), 1, "no new key");
    let (_, entry) = found.entries[0];
    assert_eq!((entry.count, entry.replied), (1, 1));
    assert_eq!((entry.first, entry.last), (at(1), at(5)));
    assert_eq!(sketch.coverage(), Coverage::Complete);
}

#[test]
fn an_incomplete_sketch_never_says_none() {
    let sketch = sketch(1, &[1, 2]);
    assert!(!sketch.find(|key| *key == 1).is_none());
    assert!(sketch.find(|_| false).entries.is_empty());
    assert_eq!(sketch.coverage(), Coverage::Incomplete { replaced: 1 });
}

#[test]
fn merging_an_incomplete_sketch_is_incomplete() {
    let mut complete = sketch(10, &[1]);
    complete.merge(&sketch(1, &[2, 3]));
    assert_eq!(complete.coverage(), Coverage::Incomplete { replaced: 1 });
    // Node 2 may have seen key 1 once, and node 1 has not seen key 3 for certain.
    let expected = BTreeMap::from([(1, (2, 1)), (3, (2, 1))]);
    assert_eq!(counts(&complete), expected);
}

#[test]
fn a_sender_that_sends_too_much_makes_the_sketch_incomplete() {
    let mut wire = serde_json::to_value(sketch(3, &[1, 2, 3])).unwrap();
    wire["capacity"] = 2.into();
    let read: Sketch<u8, i64> = serde_json::from_value(wire).unwrap();
    assert_eq!(read.find(|_| true).entries.len(), 2);
    assert_eq!(read.coverage(), Coverage::Incomplete { replaced: 1 });
}

proptest! {
    #[test]
    fn up_to_its_capacity_a_sketch_is_exact(keys in vec(0..8_u8, 0..100)) {
        let sketch = sketch(8, &keys);
        let expected: BTreeMap<u8, (u64, u64)> =
            truth(&keys).into_iter().map(|(key, count)| (key, (count, 0))).collect();
        prop_assert_eq!(counts(&sketch), expected);
        prop_assert_eq!(sketch.coverage(), Coverage::Complete);
    }

    /// A count is never too small, and too large by no more than its error. A key that is missing has a count of no more than
    /// the smallest one.
    #[test]
    fn beyond_its_capacity_the_errors_are_bounded(
        one in vec(0..30_u8, 0..200),
        other in vec(0..30_u8, 0..200),
        capacities in (1..12_usize, 1..12_usize),
    ) {
        let mut merged = sketch(capacities.0, &one);
        merged.merge(&sketch(capacities.1, &other));
        let all = [one, other].concat();
        let (truth, counts) = (truth(&all), counts(&merged));
        prop_assert!(counts.len() <= capacities.0);
        for (key, number) in &truth {
            match counts.get(key) {
                Some((count, error)) => prop_assert!(number <= count && count - error <= *number),
                None => prop_assert!(*number <= merged.floor && merged.coverage() != Coverage::Complete),
            }
        }
        prop_assert!(counts.keys().all(|key| truth.contains_key(key)));
    }

    #[test]
    fn a_sketch_survives_its_way_to_the_coordinator(keys in vec(0..30_u8, 0..100)) {
        let sketch = sketch(10, &keys);
        let text = serde_json::to_string(&sketch).unwrap();
        let read: Sketch<u8, i64> = serde_json::from_str(&text).unwrap();
        prop_assert_eq!(read, sketch);
    }

    /// A merge of complete sketches is the sketch of both, in either order.
    #[test]
    fn merging_complete_sketches_is_exact(one in vec(0..10_u8, 0..60), other in vec(0..10_u8, 0..60)) {
        let mut merged = sketch(10, &one);
        merged.merge(&sketch(10, &other));
        let mut reversed = sketch(10, &other);
        reversed.merge(&sketch(10, &one));
        let expected = counts(&sketch(10, &[one, other].concat()));
        prop_assert_eq!(counts(&merged), expected.clone());
        prop_assert_eq!(counts(&reversed), expected);
    }
}
