//! The reachable states, and whether each of them leads to an end.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt::Debug;
use std::rc::Rc;

/// The states that may follow a state.
#[derive(Debug)]
pub struct Follows<State> {
    /// After the decided step, and after reactions of the environment to it. The end has to be reachable by these.
    pub own: Vec<State>,
    /// After changes by users and other programs. They are possible at any time, and the end must not depend on them.
    pub others: Vec<State>,
}

impl<State> Follows<State> {
    /// States that all may lead to the end.
    pub fn own(own: impl IntoIterator<Item = State>) -> Self {
        Self {
            own: own.into_iter().collect(),
            others: Vec::new(),
        }
    }
}

/// All reachable states, in the order in which they were found, and what follows each by [`Follows::own`].
#[derive(Debug)]
pub struct States<State> {
    all: Vec<Rc<State>>,
    own: Vec<Vec<usize>>,
}

/// Every state that is reachable from these. `next` sees each state once: it checks that the state and the decided step are safe,
/// and returns what may follow. A crash of the program after a step is the state with the result of the step, and without what
/// the program only remembered.
pub fn states<State: Ord>(
    starts: impl IntoIterator<Item = State>,
    mut next: impl FnMut(&State) -> Follows<State>,
) -> States<State> {
    let mut found = Found {
        numbers: BTreeMap::new(),
        all: Vec::new(),
    };
    for start in starts {
        found.number(start);
    }
    let mut own: Vec<Vec<usize>> = Vec::new();
    while let Some(state) = found.all.get(own.len()).cloned() {
        let follows = next(&state);
        own.push(follows.own.into_iter().map(|state| found.number(state)).collect());
        for state in follows.others {
            found.number(state);
        }
    }
    States { all: found.all, own }
}

/// The states found so far, with their numbers.
struct Found<State> {
    numbers: BTreeMap<Rc<State>, usize>,
    all: Vec<Rc<State>>,
}

impl<State: Ord> Found<State> {
    fn number(&mut self, state: State) -> usize {
        let state = Rc::new(state);
        match self.numbers.entry(Rc::clone(&state)) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(new) => {
                self.all.push(state);
                *new.insert(self.all.len() - 1)
            }
        }
    }
}

impl<State: Debug> States<State> {
    /// The number of states.
    pub fn count(&self) -> usize {
        self.all.len()
    }

    /// The states, in the order in which they were found.
    pub fn iter(&self) -> impl Iterator<Item = &State> {
        self.all.iter().map(Rc::as_ref)
    }

    /// Asserts that the walk has more states than this.
    ///
    /// # Panics
    ///
    /// If the walk is too small.
    pub fn assert_more_than(&self, least: usize) {
        assert!(
            self.count() > least,
            "the walk is too small to prove anything: {} states",
            self.count()
        );
    }

    /// Asserts that an end is reachable from every state by [`Follows::own`].
    ///
    /// # Panics
    ///
    /// If no state is an end, or some state does not lead to one.
    pub fn assert_each_leads_to(&self, is_end: impl Fn(&State) -> bool) {
        let stuck = self.stuck(is_end);
        assert!(
            stuck.is_empty(),
            "states that lead nowhere: {}; the first: {:?}",
            stuck.len(),
            stuck[0]
        );
    }

    /// States from which no end is reachable by [`Follows::own`], by a search backwards from the ends.
    ///
    /// # Panics
    ///
    /// If no state is an end.
    pub fn stuck(&self, is_end: impl Fn(&State) -> bool) -> Vec<&State> {
        let mut previous: Vec<Vec<usize>> = vec![Vec::new(); self.count()];
        for (number, next) in self.own.iter().enumerate() {
            for after in next {
                previous[*after].push(number);
            }
        }
        let mut open: Vec<usize> = (0..self.count())
            .filter(|number| is_end(&self.all[*number]))
            .collect();
        assert!(!open.is_empty(), "no state is an end");
        let mut finishing = vec![false; self.count()];
        while let Some(number) = open.pop() {
            if !finishing[number] {
                finishing[number] = true;
                open.extend(&previous[number]);
            }
        }
        let stuck = self
            .iter()
            .zip(finishing)
            .filter(|(_, is_finishing)| !is_finishing);
        stuck.map(|(state, _)| state).collect()
    }

    /// Asserts that every state reaches an end within this number of steps, if always the first of [`Follows::own`] follows: the
    /// program decides, the environment reacts, and nothing else happens.
    ///
    /// # Panics
    ///
    /// If a state has nothing that follows, or does not reach an end in time.
    pub fn assert_each_arrives(&self, within: usize, is_end: impl Fn(&State) -> bool) {
        let mut steps: Vec<Option<usize>> = vec![None; self.count()];
        for from in 0..self.count() {
            let (mut at, mut path) = (from, Vec::new());
            let rest = loop {
                if let Some(rest) = steps[at] {
                    break rest;
                }
                if is_end(&self.all[at]) {
                    break 0;
                }
                let (here, start) = (&self.all[at], &self.all[from]);
                assert!(
                    path.len() < within,
                    "no end after {within} steps: {here:?} from {start:?}"
                );
                path.push(at);
                let Some(next) = self.own[at].first() else {
                    panic!("endless wait: {here:?} from {start:?}");
                };
                at = *next;
            };
            let count = path.len() + rest;
            assert!(
                count <= within,
                "no end after {within} steps from {:?}",
                self.all[from]
            );
            steps[at] = Some(rest);
            for (done, number) in path.into_iter().enumerate() {
                steps[number] = Some(count - done);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From 0 the numbers count up to `end`; another program sets them back.
    fn counting(end: u8) -> States<u8> {
        states([0], |number| Follows {
            own: (*number < end).then(|| number + 1).into_iter().collect(),
            others: vec![number / 2],
        })
    }

    #[test]
    fn every_reachable_state_is_visited_once() {
        let mut seen = Vec::new();
        let found = states([3, 1], |number: &u8| {
            seen.push(*number);
            Follows::own((*number > 0).then(|| number - 1))
        });
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2, 3]);
        assert_eq!(found.count(), 4);
        found.assert_more_than(3);
        found.assert_each_leads_to(|number| *number == 0);
    }

    #[test]
    fn states_count_that_other_programs_make() {
        let found = states([9_u8], |number| Follows {
            own: Vec::new(),
            others: vec![number / 2],
        });
        assert_eq!(found.iter().copied().collect::<Vec<_>>(), [9, 4, 2, 1, 0]);
    }

    #[test]
    #[should_panic(expected = "states that lead nowhere: 1; the first: 9")]
    fn a_change_by_another_program_is_no_way_to_the_end() {
        let found = states([9_u8], |number| Follows {
            own: if *number == 9 { Vec::new() } else { vec![*number] },
            others: vec![0],
        });
        found.assert_each_leads_to(|number| *number == 0);
    }

    #[test]
    fn a_path_of_exactly_the_allowed_length_arrives() {
        counting(5).assert_each_arrives(5, |number| *number == 5);
    }

    #[test]
    #[should_panic(expected = "no end after 4 steps")]
    fn a_longer_path_does_not_arrive() {
        counting(5).assert_each_arrives(4, |number| *number == 5);
    }

    #[test]
    #[should_panic(expected = "endless wait: 5 from 0")]
    fn a_state_without_a_next_one_does_not_arrive() {
        counting(5).assert_each_arrives(9, |number| *number == 6);
    }

    #[test]
    #[should_panic(expected = "no end after 9 steps")]
    fn a_circle_does_not_arrive() {
        let found = states([0_u8], |number| Follows::own([1 - number]));
        found.assert_each_arrives(9, |_| false);
    }
}
