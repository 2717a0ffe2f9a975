//! The Services to observe in a pass: the others wait for their turn, or need no change. Each observation costs requests, and
//! there may be tens of thousands of Services.

use super::decide::{LIGHT_AT_ONCE, Turn};
use super::exchange;
use engine::decision::Decision;

/// The facts of a Service that are known without an observation.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct QueuedService {
    /// `namespace/name`.
    pub name: String,
    /// Its turn.
    pub turn: Turn,
    /// Whether it has its target address, or its owner has changed its type or address.
    pub is_there: bool,
    /// Whether it has no address, in the middle of a change of address.
    pub is_away: bool,
    /// Whether it is in `spec.serviceCidr.rollbackServices`, and goes back to its source address.
    pub is_held_back: bool,
    /// Whether it has a helper.
    pub is_begun: bool,
    /// Whether it has an endpoint that answers.
    pub is_served: bool,
    /// The previous decision, if it is still valid because nothing has changed.
    pub stands: Option<Standing>,
}

/// A decision of an earlier observation that is still valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The Service needs no change.
    Settled,
    /// The Service cannot continue: the user has to act, or the API server refuses its writes.
    Stuck,
}

impl Standing {
    /// The part of a decision that stays valid; `None` for a decision that is made again at every observation.
    pub fn of(decision: &Decision<exchange::Step>) -> Option<Self> {
        match decision {
            Decision::Settled => Some(Self::Settled),
            Decision::Halt(_) => Some(Self::Stuck),
            Decision::Run(_) | Decision::Wait(_) => None,
        }
    }
}

/// The Services to observe next, as indexes of `line`, which is in rollout order. `seen` returns whether this pass has observed
/// the Service of an index.
pub fn to_observe(line: &[QueuedService], seen: impl Fn(usize) -> bool, at_once: usize) -> Vec<usize> {
    let first_turn = line
        .iter()
        .filter(|place| !place.is_there && !place.is_held_back && place.stands != Some(Standing::Stuck))
        .map(|place| place.turn)
        .min();
    let (mut heavy, mut light, mut arrived) = (at_once.max(1), LIGHT_AT_ONCE, LIGHT_AT_ONCE);
    let mut take = |place: &QueuedService| {
        if place.is_away || place.is_held_back {
            return true;
        }
        let is_in_turn = first_turn.is_none_or(|turn| place.turn <= turn);
        let slots = match (place.is_there, place.is_begun, place.is_served) {
            (true, _, _) => &mut arrived,
            (false, _, _) if !is_in_turn => return false,
            (false, true, _) => return true,
            (false, false, true) => &mut heavy,
            (false, false, false) => &mut light,
        };
        let has_slot = *slots > 0;
        *slots = slots.saturating_sub(1);
        has_slot
    };
    line.iter()
        .enumerate()
        .filter(|(index, place)| place.stands.is_none() && !seen(*index) && take(place))
        .map(|(index, _)| index)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str) -> QueuedService {
        QueuedService {
            name: name.to_owned(),
            turn: Turn::Other,
            is_there: false,
            is_away: false,
            is_held_back: false,
            is_begun: false,
            is_served: true,
            stands: None,
        }
    }

    fn observed(line: &[QueuedService], at_once: usize) -> Vec<&str> {
        let found = to_observe(line, |_| false, at_once);
        found.into_iter().map(|index| line[index].name.as_str()).collect()
    }

    #[test]
    fn a_service_before_its_turn_is_not_observed() {
        let mut line = vec![
            QueuedService {
                turn: Turn::Kubernetes,
                ..place("default/kubernetes")
            },
            place("a/a"),
            place("b/b"),
            place("c/c"),
        ];
        assert_eq!(observed(&line, 2), ["default/kubernetes"]);
        line[0].is_there = true;
        assert_eq!(observed(&line, 2), ["default/kubernetes", "a/a", "b/b"]);
        line[0].stands = Some(Standing::Settled);
        assert_eq!(observed(&line, 2), ["a/a", "b/b"]);
        line[3].is_begun = true;
        assert_eq!(observed(&line, 1), ["a/a", "c/c"], "a started one continues");
        line[3].is_away = true;
        (line[0].is_there, line[0].stands) = (false, None);
        assert_eq!(observed(&line, 1), ["default/kubernetes", "c/c"]);
    }

    #[test]
    fn a_stuck_service_does_not_delay_others() {
        let stuck = |name: &str, turn| QueuedService {
            stands: Some(Standing::Stuck),
            turn,
            ..place(name)
        };
        let line = [
            stuck("default/kubernetes", Turn::Kubernetes),
            stuck("a/a", Turn::Other),
            place("b/b"),
        ];
        assert_eq!(observed(&line, 1), ["b/b"]);
    }

    #[test]
    fn services_without_endpoints_use_separate_limited_slots() {
        let crowd = (0..1000).map(|number| QueuedService {
            is_served: false,
            ..place(&format!("crowd/{number}"))
        });
        let mut line: Vec<QueuedService> = crowd.chain([place("shop/web")]).collect();
        let found = observed(&line, 1);
        assert_eq!(found.len(), LIGHT_AT_ONCE + 1);
        assert_eq!(found.last(), Some(&"shop/web"));
        for place in &mut line {
            place.is_there = true;
        }
        assert_eq!(observed(&line, 1).len(), LIGHT_AT_ONCE);
        let rest = to_observe(&line, |index| index < LIGHT_AT_ONCE, 1);
        assert_eq!((rest.len(), rest[0]), (LIGHT_AT_ONCE, LIGHT_AT_ONCE));
        for place in &mut line {
            place.stands = Some(Standing::Settled);
        }
        assert_eq!(observed(&line, 1), Vec::<&str>::new());
    }
}
