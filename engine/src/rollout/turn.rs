//! Which nodes turn around and go back.

use super::{MaxUnavailable, Seat, Standing, is_unavailable, turn_message};
use crate::decision::{Wait, WaitReason};

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

impl Back {
    /// Whether this node is to go back, and is not back.
    pub fn means(&self, seat: &Seat<'_>) -> bool {
        let named = match self {
            Self::InWork => matches!(seat.standing, Standing::Working | Standing::Halted),
            Self::All => true,
            Self::Named(names) => names.iter().any(|name| name == seat.name),
        };
        named && !is_back(seat)
    }
}

/// Whether the node is on the old network and not in work.
pub fn is_back(seat: &Seat<'_>) -> bool {
    match seat.standing {
        // One that was never taken into work may have been moved by somebody else, or by an earlier migration.
        Standing::Waiting | Standing::Skipped | Standing::Kept | Standing::Fallen => seat.on_old,
        Standing::Done(_) | Standing::Working | Standing::Halted | Standing::Returning => false,
    }
}

/// Which nodes turn around now, and why the next one does not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Turned<'node> {
    /// Nodes that turn around, in order.
    pub now: Vec<&'node str>,
    /// What the next one waits for; `None` when none is left.
    pub held: Option<Wait>,
}

/// Which nodes turn around now. Nodes in work do at once: they are out of work already. Nodes that are done follow, the
/// last one first, as long as no more nodes than the limit are in work or NotReady.
pub fn turn_back<'node>(seats: &[Seat<'node>], back: &Back, limit: MaxUnavailable) -> Turned<'node> {
    let in_work = |seat: &&Seat<'node>| matches!(seat.standing, Standing::Working | Standing::Halted);
    let mut turned = Turned {
        now: seats
            .iter()
            .filter(|seat| back.means(seat))
            .filter(in_work)
            .map(|seat| seat.name)
            .collect(),
        held: None,
    };
    let limit = limit.resolve(seats.len());
    let mut unavailable = seats.iter().filter(|seat| is_unavailable(seat)).count();
    let mut queue: Vec<&Seat<'node>> = seats.iter().rev().filter(|seat| back.means(seat)).collect();
    queue.sort_by_key(|seat| seat.tries);
    for seat in queue {
        if in_work(&seat) || seat.standing == Standing::Returning || seat.rests {
            continue;
        }
        let hold = |reason, message| {
            Some(Wait {
                reason,
                message,
                until: None,
            })
        };
        if !seat.ready {
            // It is counted already, and goes back when it returns itself.
            let message = format!("node {} is NotReady; it goes back when it returns", seat.name);
            turned.held = turned.held.or_else(|| hold(WaitReason::NodeNotReady, message));
        } else if unavailable < limit {
            turned.now.push(seat.name);
            unavailable += 1;
        } else {
            let message = turn_message(seats, &turned.now, seat.name, limit);
            let in_work = |seat: &Seat<'_>| {
                matches!(
                    seat.standing,
                    Standing::Working | Standing::Halted | Standing::Returning
                )
            };
            // Nobody in work who would make room: it waits for a node that is away, and that has a deadline.
            let reason = if seats.iter().any(in_work) || !turned.now.is_empty() {
                WaitReason::Turn
            } else {
                WaitReason::NodeNotReady
            };
            turned.held = turned.held.or_else(|| hold(reason, message));
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
            on_old: matches!(standing, Standing::Waiting),
            rests: false,
            tries: 0,
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
        let turn = |back: &Back, limit| turn_back(&seats, back, MaxUnavailable::Nodes(limit)).now;
        assert_eq!(turn(&Back::InWork, 9), ["c"]);
        assert_eq!(turn(&Back::All, 1), ["c"]);
        assert_eq!(turn(&Back::All, 2), ["c", "b"]);
        assert_eq!(turn(&Back::All, 9), ["c", "b", "a"]);
        assert_eq!(turn(&Back::Named(vec!["a".to_owned(), "d".to_owned()]), 2), ["a"]);
        assert_eq!(turn(&Back::Named(vec!["a".to_owned()]), 1), Vec::<&str>::new());
    }

    #[test]
    fn a_node_that_is_away_is_named_and_so_is_who_waits_for_it() {
        let mut seats = [seat("a", Standing::Done(NOW)), seat("b", Standing::Done(NOW))];
        seats[1].ready = false;
        let turned = turn_back(&seats, &Back::All, MaxUnavailable::Nodes(1));
        assert_eq!(turned.now, Vec::<&str>::new());
        let held = turned.held.unwrap();
        assert_eq!(held.reason, WaitReason::NodeNotReady);
        assert!(held.message.contains("node b is NotReady"), "{}", held.message);
        seats[1].standing = Standing::Waiting;
        seats[1].on_old = true;
        let held = turn_back(&seats, &Back::All, MaxUnavailable::Nodes(1))
            .held
            .unwrap();
        assert_eq!(held.reason, WaitReason::NodeNotReady);
        assert!(held.message.contains("NotReady: b"), "{}", held.message);
    }

    #[test]
    fn a_node_that_rests_lets_another_turn_around() {
        let mut seats = [seat("a", Standing::Done(NOW)), seat("b", Standing::Done(NOW))];
        seats[1].rests = true;
        let turned = turn_back(&seats, &Back::All, MaxUnavailable::Nodes(1));
        assert_eq!((turned.now, turned.held), (vec!["a"], None));
        seats[1].rests = false;
        let turned = turn_back(&seats, &Back::All, MaxUnavailable::Nodes(1));
        assert_eq!(turned.now, ["b"]);
        seats[1].tries = 1;
        let turned = turn_back(&seats, &Back::All, MaxUnavailable::Nodes(1));
        assert_eq!(turned.now, ["a"]);
    }

    #[test]
    fn a_node_that_somebody_else_has_moved_goes_back_too() {
        let mut seats = [seat("a", Standing::Waiting), seat("b", Standing::Skipped)];
        (seats[0].on_old, seats[1].on_old) = (false, false);
        let turned = turn_back(&seats, &Back::All, MaxUnavailable::Nodes(2));
        assert_eq!(turned.now, ["b", "a"]);
        assert!(!is_back(&seats[0]) && is_back(&seat("c", Standing::Waiting)));
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
                .map(|((standing, ready), name)| Seat {
                    name, standing: *standing, ready: *ready, on_old: true, rests: false, tries: 0,
                })
                .collect();
            let before = seats.iter().filter(|seat| is_unavailable(seat)).count();
            let turned = turn_back(&seats, &Back::All, MaxUnavailable::Nodes(limit)).now;
            let were_done = turned.iter()
                .filter(|name| seats.iter().any(|seat| seat.name == **name && matches!(seat.standing, Standing::Done(_))))
                .count();
            prop_assert!(were_done == 0 || before + were_done <= limit as usize);
        }
    }
}
