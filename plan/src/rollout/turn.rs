//! Which nodes turn around and go back.

use super::{MaxUnavailable, Seat, Standing, is_unavailable};

/// Which nodes are to go back to the old network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Back {
    /// Those that are in work.
    InWork,
    /// Those of these names that are in work or done.
    Named(Vec<String>),
    /// All that are in work or done.
    All,
}

/// Which nodes turn around now. Nodes in work do at once: they are out of work already. Nodes that are done follow, the
/// last one first, as long as no more nodes than the limit are in work or NotReady.
pub fn turn_back<'node>(seats: &[Seat<'node>], back: &Back, limit: MaxUnavailable) -> Vec<&'node str> {
    let is_meant = |seat: &&Seat<'node>| match back {
        Back::InWork | Back::All => true,
        Back::Named(names) => names.iter().any(|name| name == seat.name),
    };
    let in_work = |seat: &&Seat<'node>| matches!(seat.standing, Standing::Working | Standing::Halted);
    let mut turned: Vec<&str> = seats
        .iter()
        .filter(is_meant)
        .filter(in_work)
        .map(|seat| seat.name)
        .collect();
    if *back == Back::InWork {
        return turned;
    }
    let limit = limit.resolve(seats.len());
    let mut unavailable = seats.iter().filter(|seat| is_unavailable(seat)).count();
    for seat in seats.iter().rev().filter(is_meant) {
        if !matches!(seat.standing, Standing::Done(_)) {
            continue;
        }
        // One that is away is counted already, and goes back when it returns.
        if seat.ready && unavailable < limit {
            turned.push(seat.name);
            unavailable += 1;
        }
    }
    turned
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use proptest::prelude::*;

    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn seat(name: &str, standing: Standing) -> Seat<'_> {
        Seat {
            name,
            standing,
            ready: true,
        }
    }

    fn standing() -> impl Strategy<Value = Standing> {
        prop_oneof![
            Just(Standing::Waiting),
            Just(Standing::Working),
            Just(Standing::Returning),
            Just(Standing::Done(NOW)),
        ]
    }

    #[test]
    fn nodes_in_work_turn_at_once_and_those_that_are_done_from_the_last() {
        let seats = [
            seat("a", Standing::Done(NOW)),
            seat("b", Standing::Done(NOW)),
            seat("c", Standing::Working),
            seat("d", Standing::Waiting),
        ];
        let turn = |back: &Back, limit| turn_back(&seats, back, MaxUnavailable::Nodes(limit));
        assert_eq!(turn(&Back::InWork, 9), ["c"]);
        assert_eq!(turn(&Back::All, 1), ["c"]);
        assert_eq!(turn(&Back::All, 2), ["c", "b"]);
        assert_eq!(turn(&Back::All, 9), ["c", "b", "a"]);
        assert_eq!(turn(&Back::Named(vec!["a".to_owned(), "d".to_owned()]), 2), ["a"]);
        assert_eq!(turn(&Back::Named(vec!["a".to_owned()]), 1), Vec::<&str>::new());
    }

    proptest! {
        /// The same on the way back, but for those that were in work before.
        #[test]
        fn never_more_than_the_limit_on_the_way_back(
            nodes in proptest::collection::vec((standing(), any::<bool>()), 1..12),
            limit in 1u32..6,
        ) {
            let names: Vec<String> = (0..nodes.len()).map(|index| format!("n{index}")).collect();
            let seats: Vec<Seat<'_>> = nodes.iter().zip(&names)
                .map(|((standing, ready), name)| Seat { name, standing: *standing, ready: *ready })
                .collect();
            let before = seats.iter().filter(|seat| is_unavailable(seat)).count();
            let turned = turn_back(&seats, &Back::All, MaxUnavailable::Nodes(limit));
            let were_done = turned.iter()
                .filter(|name| seats.iter().any(|seat| seat.name == **name && matches!(seat.standing, Standing::Done(_))))
                .count();
            prop_assert!(were_done == 0 || before + were_done <= limit as usize);
        }
    }
}
