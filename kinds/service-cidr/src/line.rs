//! Which Services are looked at in a pass: the others wait for their turn, or have nothing to be done. A look costs requests; there may be
//! tens of thousands of Services.

use super::decide::{LIGHT_AT_ONCE, Turn};
use super::swap;
use engine::decision::Decision;

/// A Service by what is known of it without a look.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Place {
    /// `namespace/name`.
    pub name: String,
    /// When it goes.
    pub turn: Turn,
    /// Whether it has the address that it is to have, or its owner has made something else of it.
    pub is_there: bool,
    /// Whether it has no address, in the middle of an exchange.
    pub is_away: bool,
    /// Whether it is to go back by itself.
    pub is_held_back: bool,
    /// Whether it has a helper.
    pub is_begun: bool,
    /// Whether an endpoint of it answers.
    pub is_served: bool,
    /// What was decided of it stands, since nothing of it has changed.
    pub stands: Option<Standing>,
}

/// What was decided at an earlier look and stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// There is nothing to do.
    Settled,
    /// It cannot go on: a person has to see to it, or the API server refuses its writes for now.
    Stuck,
}

impl Standing {
    /// How a decision stands; `None` for one that is made anew at every look.
    pub fn of(decision: &Decision<swap::Step>) -> Option<Self> {
        match decision {
            Decision::Settled => Some(Self::Settled),
            Decision::Halt(_) => Some(Self::Stuck),
            Decision::Run(_) | Decision::Wait(_) => None,
        }
    }
}

/// Places of the Services that are looked at next, as indexes of `line`, which is in the order in which Services go. `seen` are those that
/// this pass has looked at, by index.
pub fn to_look(line: &[Place], seen: impl Fn(usize) -> bool, at_once: usize) -> Vec<usize> {
    let first_turn = line
        .iter()
        .filter(|place| !place.is_there && !place.is_held_back && place.stands != Some(Standing::Stuck))
        .map(|place| place.turn)
        .min();
    let (mut heavy, mut light, mut there) = (at_once.max(1), LIGHT_AT_ONCE, LIGHT_AT_ONCE);
    let mut take = |place: &Place| {
        if place.is_away || place.is_held_back {
            return true;
        }
        let is_in_turn = first_turn.is_none_or(|turn| place.turn <= turn);
        let left = match (place.is_there, place.is_begun, place.is_served) {
            (true, _, _) => &mut there,
            (false, _, _) if !is_in_turn => return false,
            (false, true, _) => return true,
            (false, false, true) => &mut heavy,
            (false, false, false) => &mut light,
        };
        let has_place = *left > 0;
        *left = left.saturating_sub(1);
        has_place
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

    fn place(name: &str) -> Place {
        Place {
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

    fn looked_at(line: &[Place], at_once: usize) -> Vec<&str> {
        let found = to_look(line, |_| false, at_once);
        found.into_iter().map(|index| line[index].name.as_str()).collect()
    }

    #[test]
    fn a_service_that_waits_for_its_turn_costs_no_look() {
        let mut line = vec![
            Place {
                turn: Turn::Kubernetes,
                ..place("default/kubernetes")
            },
            place("a/a"),
            place("b/b"),
            place("c/c"),
        ];
        assert_eq!(looked_at(&line, 2), ["default/kubernetes"]);
        line[0].is_there = true;
        assert_eq!(looked_at(&line, 2), ["default/kubernetes", "a/a", "b/b"]);
        line[0].stands = Some(Standing::Settled);
        assert_eq!(looked_at(&line, 2), ["a/a", "b/b"]);
        line[3].is_begun = true;
        assert_eq!(looked_at(&line, 1), ["a/a", "c/c"], "one that has begun goes on");
        line[3].is_away = true;
        (line[0].is_there, line[0].stands) = (false, None);
        assert_eq!(looked_at(&line, 1), ["default/kubernetes", "c/c"]);
    }

    #[test]
    fn a_service_that_is_stuck_keeps_no_other_from_being_looked_at() {
        let stuck = |name: &str, turn| Place {
            stands: Some(Standing::Stuck),
            turn,
            ..place(name)
        };
        let line = [
            stuck("default/kubernetes", Turn::Kubernetes),
            stuck("a/a", Turn::Other),
            place("b/b"),
        ];
        assert_eq!(looked_at(&line, 1), ["b/b"]);
    }

    #[test]
    fn services_without_endpoints_take_no_places_of_others_and_are_few_at_a_time() {
        let crowd = (0..1000).map(|number| Place {
            is_served: false,
            ..place(&format!("crowd/{number}"))
        });
        let mut line: Vec<Place> = crowd.chain([place("shop/web")]).collect();
        let found = looked_at(&line, 1);
        assert_eq!(found.len(), LIGHT_AT_ONCE + 1);
        assert_eq!(found.last(), Some(&"shop/web"));
        for place in &mut line {
            place.is_there = true;
        }
        assert_eq!(looked_at(&line, 1).len(), LIGHT_AT_ONCE);
        let rest = to_look(&line, |index| index < LIGHT_AT_ONCE, 1);
        assert_eq!((rest.len(), rest[0]), (LIGHT_AT_ONCE, LIGHT_AT_ONCE));
        for place in &mut line {
            place.stands = Some(Standing::Settled);
        }
        assert_eq!(looked_at(&line, 1), Vec::<&str>::new());
    }
}
