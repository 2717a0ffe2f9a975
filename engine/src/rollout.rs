//! Which nodes may be in work at the same time: a decision about the whole set, not about one node.

mod turn;

use jiff::{SignedDuration, Timestamp};
use thiserror::Error;

pub use turn::{Back, Turned, is_back, turn_back};

use crate::decision::{Wait, WaitReason};
use crate::words::names;

/// How many nodes may be out of work at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MaxUnavailable {
    /// That many nodes.
    Nodes(u32),
    /// That share of all nodes, in percent.
    Percent(u32),
}

/// A `maxUnavailable` that cannot be meant.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("rollout.maxUnavailable: found {found:?}, needed a number from 1 or a percentage from 1% to 100%")]
pub struct MaxUnavailableError {
    /// The text that was found.
    pub found: String,
}

impl MaxUnavailable {
    /// Reads a number (`2`) or a percentage (`25%`).
    pub fn parse(text: &str) -> Result<Self, MaxUnavailableError> {
        let error = || MaxUnavailableError {
            found: text.to_owned(),
        };
        match text.strip_suffix('%') {
            Some(number) => match number.parse::<u32>() {
                Ok(percent @ 1..=100) => Ok(Self::Percent(percent)),
                Ok(_) | Err(_) => Err(error()),
            },
            None => match text.parse::<u32>() {
                Ok(nodes) if nodes >= 1 => Ok(Self::Nodes(nodes)),
                Ok(_) | Err(_) => Err(error()),
            },
        }
    }

    /// The limit for a cluster of this size: a percentage is rounded up, and never below 1.
    pub fn resolve(self, nodes: usize) -> usize {
        match self {
            Self::Nodes(limit) => usize::try_from(limit).unwrap_or(usize::MAX).max(1),
            Self::Percent(percent) => {
                let share = (nodes as u64).saturating_mul(u64::from(percent)).div_ceil(100);
                usize::try_from(share).unwrap_or(usize::MAX).max(1)
            }
        }
    }
}

/// Where one node stands in the rollout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Not started.
    Waiting,
    /// Set aside, by `drain.onBlocked: Skip` or since it did not take its first step; taken up again after all others.
    Skipped,
    /// In work.
    Working,
    /// In work and halted: a person has to decide.
    Halted,
    /// In work, on its way back to the old network.
    Returning,
    /// On the old network, and kept there.
    Kept,
    /// On the old network, which its agent put back by itself: a person has to decide.
    Fallen,
    /// Done, since then.
    Done(Timestamp),
}

/// One node of the rollout, in the order of [`crate::order::sort`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seat<'node> {
    /// Name of the node.
    pub name: &'node str,
    /// Where it stands.
    pub standing: Standing,
    /// Whether the Node reports Ready.
    pub ready: bool,
    /// Whether the Node is on the old network by its label.
    pub on_old: bool,
    /// Whether it was given back a moment ago, and is tried again later: until then it takes no other's place.
    pub rests: bool,
    /// How often it was given back: those that were given back less often come first.
    pub tries: u32,
}

/// The rules of a rollout.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// How many nodes may be out of work at the same time.
    pub max_unavailable: MaxUnavailable,
    /// How many nodes go first, alone.
    pub canary_nodes: usize,
    /// How long they must be done before the others start.
    pub canary_soak: SignedDuration,
    /// Pause between the end of one node and the start of the next.
    pub interval: SignedDuration,
    /// Whether no new node may start.
    pub paused: bool,
    /// Why no new node may start, for a reason of the whole cluster's.
    pub hold: Option<Wait>,
    /// The last time that something was wrong with nodes that were done: canaries soak from there.
    pub clean_since: Option<Timestamp>,
}

/// Which nodes start now, and why no other does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission<'node> {
    /// Nodes to take into work now, in order.
    pub start: Vec<&'node str>,
    /// Why no more than these; `None` when no node is waiting.
    pub held: Option<Wait>,
}

/// Chooses the nodes that start now. `seats` is in order; never lets more nodes than the limit be in work or
/// NotReady at the same time.
pub fn admit<'node>(seats: &[Seat<'node>], rules: &Rules, now: Timestamp) -> Admission<'node> {
    let mut admission = Admission::default();
    let in_turn = |standing| {
        let mut queue = waiting(seats, standing);
        queue.retain(|seat| !seat.rests);
        queue.sort_by_key(|seat| seat.tries);
        queue
    };
    let mut queue: Vec<&Seat<'node>> = in_turn(Standing::Waiting);
    // Skipped nodes come after every other one, even after those that are still in work.
    let others_done = seats.iter().all(|seat| {
        seat.rests
            || matches!(
                seat.standing,
                Standing::Done(_) | Standing::Skipped | Standing::Kept
            )
    });
    if others_done {
        queue.extend(in_turn(Standing::Skipped));
    }
    let hold = |reason, message: String, until| {
        Some(Wait {
            reason,
            message,
            until,
        })
    };
    let Some(first) = queue.first() else {
        let kept: Vec<&str> = waiting(seats, Standing::Kept)
            .iter()
            .map(|seat| seat.name)
            .collect();
        if !kept.is_empty() {
            admission.held = hold(
                WaitReason::Paused,
                format!("kept on the old network by rollbackNodes: {}", names(&kept)),
                None,
            );
        }
        return admission;
    };
    let (canaries_only, held) = held_for_all(seats, rules, first.name, now);
    if held.is_some() {
        admission.held = held;
        return admission;
    }
    let limit = rules.max_unavailable.resolve(seats.len());
    let mut unavailable = seats.iter().filter(|seat| is_unavailable(seat)).count();
    for seat in queue {
        let is_canary = seats
            .iter()
            .take(rules.canary_nodes)
            .any(|canary| canary.name == seat.name);
        if canaries_only && !is_canary {
            admission.held = hold(
                WaitReason::CanarySoak,
                format!(
                    "node {} waits for the {} canary nodes",
                    seat.name, rules.canary_nodes
                ),
                None,
            );
            break;
        }
        if !seat.ready {
            // It is counted as unavailable already, and taken up when it returns.
            admission.held = hold(
                WaitReason::NodeNotReady,
                format!("node {} is NotReady", seat.name),
                None,
            );
            continue;
        }
        if unavailable >= limit {
            admission.held = hold(
                WaitReason::Turn,
                turn_message(seats, &admission.start, seat.name, limit),
                None,
            );
            break;
        }
        admission.start.push(seat.name);
        unavailable += 1;
    }
    admission
}

/// Why no node may start now, whichever it is; and whether only canaries may.
fn held_for_all(seats: &[Seat<'_>], rules: &Rules, first: &str, now: Timestamp) -> (bool, Option<Wait>) {
    let hold = |reason, message: String, until| {
        let wait = Wait {
            reason,
            message,
            until,
        };
        (false, Some(wait))
    };
    if rules.paused {
        return hold(WaitReason::Paused, format!("paused before node {first}"), None);
    }
    if rules.hold.is_some() {
        return (false, rules.hold.clone());
    }
    let stopped = |seat: &&Seat<'_>| matches!(seat.standing, Standing::Halted | Standing::Fallen);
    if let Some(seat) = seats.iter().find(stopped) {
        return hold(WaitReason::Paused, format!("node {} is halted", seat.name), None);
    }
    let (canaries_only, soak_end) = canary(seats, rules);
    if let Some(end) = soak_end.filter(|end| *end > now) {
        let message = format!(
            "{} canary nodes are done and soak until {end}",
            rules.canary_nodes
        );
        return hold(WaitReason::CanarySoak, message, Some(end));
    }
    let last_done = seats.iter().filter_map(|seat| match seat.standing {
        Standing::Done(since) => Some(since),
        Standing::Waiting
        | Standing::Skipped
        | Standing::Working
        | Standing::Halted
        | Standing::Returning
        | Standing::Fallen
        | Standing::Kept => None,
    });
    if let Some(next) = last_done
        .max()
        .map(|done| done + rules.interval)
        .filter(|next| *next > now)
    {
        let message = format!("rollout.interval: node {first} starts at {next}");
        return hold(WaitReason::Interval, message, Some(next));
    }
    (canaries_only, None)
}

/// Whether a node counts against the limit: in work, or NotReady for any reason.
fn is_unavailable(seat: &Seat<'_>) -> bool {
    match seat.standing {
        Standing::Working | Standing::Halted | Standing::Returning => true,
        Standing::Waiting | Standing::Skipped | Standing::Kept | Standing::Fallen | Standing::Done(_) => {
            !seat.ready
        }
    }
}

fn waiting<'seats, 'node>(seats: &'seats [Seat<'node>], standing: Standing) -> Vec<&'seats Seat<'node>> {
    seats.iter().filter(|seat| seat.standing == standing).collect()
}

/// Whether only canaries may start, and until when the finished ones soak.
fn canary(seats: &[Seat<'_>], rules: &Rules) -> (bool, Option<Timestamp>) {
    if rules.canary_nodes == 0 {
        return (false, None);
    }
    let mut latest: Option<Timestamp> = None;
    for seat in seats.iter().take(rules.canary_nodes) {
        match seat.standing {
            Standing::Done(since) => latest = latest.max(Some(since)),
            // Somebody wants it to stay where it is: the others do not wait for it.
            Standing::Kept => {}
            Standing::Waiting
            | Standing::Skipped
            | Standing::Working
            | Standing::Halted
            | Standing::Returning
            | Standing::Fallen => {
                return (true, None);
            }
        }
    }
    (
        false,
        latest
            .max(latest.and(rules.clean_since))
            .map(|since| since + rules.canary_soak),
    )
}

fn turn_message(seats: &[Seat<'_>], starting: &[&str], name: &str, limit: usize) -> String {
    let busy: Vec<&str> = seats
        .iter()
        .filter(|seat| is_unavailable(seat) || starting.contains(&seat.name))
        .map(|seat| seat.name)
        .collect();
    format!(
        "node {name} waits for its turn: maxUnavailable is {limit}; in work or NotReady: {}",
        names(&busy)
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn rules(limit: u32) -> Rules {
        Rules {
            max_unavailable: MaxUnavailable::Nodes(limit),
            canary_nodes: 0,
            canary_soak: SignedDuration::ZERO,
            interval: SignedDuration::ZERO,
            paused: false,
            hold: None,
            clean_since: None,
        }
    }

    fn seat(name: &str, standing: Standing) -> Seat<'_> {
        Seat {
            name,
            standing,
            ready: true,
            on_old: true,
            rests: false,
            tries: 0,
        }
    }

    #[rstest]
    #[case("1", Some(1))]
    #[case("3", Some(3))]
    #[case("10%", Some(1))]
    #[case("25%", Some(2))]
    #[case("100%", Some(5))]
    #[case("0", None)]
    #[case("0%", None)]
    #[case("101%", None)]
    #[case("-1", None)]
    #[case("two", None)]
    fn limit_of_five_nodes(#[case] text: &str, #[case] limit: Option<usize>) {
        assert_eq!(MaxUnavailable::parse(text).ok().map(|max| max.resolve(5)), limit);
    }

    #[test]
    fn a_node_that_is_not_ready_takes_a_place() {
        let mut seats = [seat("a", Standing::Waiting), seat("b", Standing::Waiting)];
        seats[1].ready = false;
        assert_eq!(admit(&seats, &rules(1), NOW).start, Vec::<&str>::new());
        assert_eq!(admit(&seats, &rules(2), NOW).start, ["a"]);
    }

    #[test]
    fn who_waits_for_a_turn_is_told_for_whom() {
        let seats = [
            seat("a", Standing::Working),
            seat("b", Standing::Waiting),
            seat("c", Standing::Waiting),
        ];
        // One that starts now is in work, too.
        let message = admit(&seats, &rules(2), NOW).held.unwrap().message;
        assert_eq!(
            message,
            "node c waits for its turn: maxUnavailable is 2; in work or NotReady: a, b"
        );
    }

    #[test]
    fn canaries_go_alone_and_soak() {
        let canary = Rules {
            canary_nodes: 1,
            canary_soak: SignedDuration::from_secs(60),
            ..rules(3)
        };
        let fresh = [seat("a", Standing::Waiting), seat("b", Standing::Waiting)];
        assert_eq!(admit(&fresh, &canary, NOW).start, ["a"]);
        let soaking = [seat("a", Standing::Done(NOW)), seat("b", Standing::Waiting)];
        let held = admit(&soaking, &canary, NOW).held.unwrap();
        assert_eq!(held.reason, WaitReason::CanarySoak);
        assert_eq!(
            admit(&soaking, &canary, NOW + SignedDuration::from_secs(60)).start,
            ["b"]
        );
    }

    #[test]
    fn a_halted_node_stops_new_starts() {
        let seats = [seat("a", Standing::Halted), seat("b", Standing::Waiting)];
        let admission = admit(&seats, &rules(2), NOW);
        assert!(admission.start.is_empty());
        assert_eq!(admission.held.unwrap().message, "node a is halted");
    }

    #[test]
    fn a_node_that_fell_back_stops_new_starts() {
        let seats = [seat("a", Standing::Fallen), seat("b", Standing::Waiting)];
        assert!(admit(&seats, &rules(2), NOW).start.is_empty());
    }

    #[test]
    fn a_skipped_node_comes_after_all_others() {
        let seats = [seat("a", Standing::Skipped), seat("b", Standing::Waiting)];
        assert_eq!(admit(&seats, &rules(2), NOW).start, ["b"]);
        let seats = [seat("a", Standing::Skipped), seat("b", Standing::Working)];
        assert!(admit(&seats, &rules(2), NOW).start.is_empty());
        let seats = [seat("a", Standing::Skipped), seat("b", Standing::Done(NOW))];
        assert_eq!(admit(&seats, &rules(2), NOW).start, ["a"]);
    }

    #[test]
    fn a_node_that_rests_takes_no_others_place_and_comes_again() {
        let mut seats = [
            seat("a", Standing::Skipped),
            seat("b", Standing::Skipped),
            seat("c", Standing::Waiting),
        ];
        seats[0].rests = true;
        seats[2].rests = true;
        assert_eq!(admit(&seats, &rules(1), NOW).start, ["b"]);
        seats[1].rests = true;
        let admission = admit(&seats, &rules(1), NOW);
        assert_eq!((admission.start, admission.held), (Vec::new(), None));
        (seats[0].rests, seats[1].rests) = (false, false);
        assert_eq!(admit(&seats, &rules(1), NOW).start, ["a"]);
        (seats[0].tries, seats[1].tries) = (2, 1);
        assert_eq!(admit(&seats, &rules(1), NOW).start, ["b"]);
    }

    #[test]
    fn a_node_that_is_kept_does_not_start_and_is_named() {
        let seats = [seat("a", Standing::Kept), seat("b", Standing::Done(NOW))];
        let admission = admit(&seats, &rules(1), NOW);
        assert!(admission.start.is_empty());
        let message = admission.held.unwrap().message;
        assert_eq!(message, "kept on the old network by rollbackNodes: a");
    }

    fn standing() -> impl Strategy<Value = Standing> {
        prop_oneof![
            Just(Standing::Waiting),
            Just(Standing::Skipped),
            Just(Standing::Working),
            Just(Standing::Returning),
            Just(Standing::Kept),
            Just(Standing::Done(NOW)),
        ]
    }

    proptest! {
        /// R9: whatever the state, the limit is never exceeded by what starts now.
        #[test]
        fn never_more_than_the_limit(
            nodes in proptest::collection::vec((standing(), any::<bool>(), any::<bool>()), 1..12),
            limit in 1u32..6,
        ) {
            let names: Vec<String> = (0..nodes.len()).map(|index| format!("n{index}")).collect();
            let seats: Vec<Seat<'_>> = nodes.iter().zip(&names)
                .map(|((standing, ready, rests), name)| Seat {
                    name, standing: *standing, ready: *ready, on_old: true, rests: *rests, tries: 0,
                })
                .collect();
            let before = seats.iter().filter(|seat| is_unavailable(seat)).count();
            let admission = admit(&seats, &rules(limit), NOW);
            prop_assert!(admission.start.is_empty() || before + admission.start.len() <= limit as usize);
            for name in &admission.start {
                let seat = seats.iter().find(|seat| &seat.name == name).unwrap();
                prop_assert!(seat.ready && !seat.rests);
            }
        }
    }
}
