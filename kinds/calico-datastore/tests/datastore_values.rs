//! Every value of Calico v2 is written or reported; none is lost silently. The fuzzer in `kinds/calico-datastore/fuzz` searches
//! for exceptions.

mod values;

use proptest::prelude::*;

#[test]
fn every_shape_can_be_converted() {
    for (shape, (_, value)) in values::SHAPES.into_iter().enumerate() {
        values::check(shape, value);
    }
}

/// Variants of a value with removed, inserted and replaced characters.
fn mutated(value: &'static str) -> impl Strategy<Value = String> {
    let characters: Vec<char> = value.chars().collect();
    let edits = prop::collection::vec((any::<prop::sample::Index>(), 0..4_u8, any::<char>()), 0..4);
    edits.prop_map(move |edits| {
        let mut text = characters.clone();
        for (place, kind, other) in edits {
            if text.is_empty() {
                text.push(other);
                continue;
            }
            let at = place.index(text.len());
            match kind {
                0 => drop(text.remove(at)),
                1 => text[at] = other,
                2 => text.insert(at, other),
                _ => text.truncate(at),
            }
        }
        text.into_iter().collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_mutated_value_is_written_or_reported((shape, value) in (0..values::SHAPES.len()).prop_flat_map(|shape| {
        mutated(values::SHAPES[shape].1).prop_map(move |value| (shape, value))
    })) {
        values::check(shape, &value);
    }

    #[test]
    fn any_text_is_written_or_reported(shape in 0..values::SHAPES.len(), value in any::<String>()) {
        values::check(shape, &value);
    }
}
