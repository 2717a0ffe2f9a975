//! Every state of a Service and its helpers, killed between any two writes, turned around, robbed by somebody else.

use std::collections::BTreeSet;

use super::*;
use crate::decision::WaitReason;

/// Where an object is in the model: `None` is no object or no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    At(Side),
    /// An address of neither.
    Spare,
    /// No address; the name leads to this helper.
    Name(Side),
    Absent,
}

/// The objects as the API has them, the rules as kube-proxy last wrote them, and who else has what.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a fact of its own about one Service"
)]
struct World {
    service: Place,
    helpers: Sides<Place>,
    has_endpoints: Sides<bool>,
    /// The owner of the Service has edited it since this helper was written.
    is_edited: Sides<bool>,
    /// Nobody selects pods for the Service.
    is_copied: bool,
    /// Addresses that answered when rules were last written.
    alive: BTreeSet<Side>,
    stolen: BTreeSet<Side>,
    stolen_port: bool,
    is_marked: bool,
    left_is_used: bool,
    goal: Side,
}

impl World {
    fn start(goal: Side) -> Self {
        let mut world = Self {
            service: Place::At(goal.other()),
            helpers: Sides::each(|_| Place::Absent),
            has_endpoints: Sides::default(),
            is_edited: Sides::default(),
            is_copied: false,
            alive: BTreeSet::new(),
            stolen: BTreeSet::new(),
            stolen_port: false,
            is_marked: false,
            left_is_used: true,
            goal,
        };
        world.sync();
        world
    }

    fn helper(&self, side: Side) -> Place {
        *self.helpers.of(side)
    }

    fn set(&mut self, side: Side, place: Place) {
        *self.helpers.of_mut(side) = place;
    }

    /// The owner gives the Service another selector.
    fn edit(&mut self) {
        self.is_edited = Sides::each(|side| self.helper(side) != Place::Absent);
    }

    /// kube-proxy writes its rules.
    fn sync(&mut self) {
        self.alive = Side::ALL
            .into_iter()
            .filter(|side| {
                let by_helper = self.helper(*side) == Place::At(*side) && *self.has_endpoints.of(*side);
                self.service == Place::At(*side) || by_helper
            })
            .collect();
    }

    /// Endpoints are made for what has an address.
    fn endpoints_are_made(&mut self) {
        for side in Side::ALL {
            if !self.is_copied && matches!(self.helper(side), Place::At(_) | Place::Spare) {
                *self.has_endpoints.of_mut(side) = true;
            }
        }
        self.sync();
    }

    fn is_free(&self, side: Side) -> bool {
        !self.stolen.contains(&side)
            && self.service != Place::At(side)
            && self.helper(side) != Place::At(side)
    }

    /// Makes one write, as the API would; an error is its refusal.
    fn write(&mut self, write: Write) -> Result<(), String> {
        let free = |world: &Self, side: Side| {
            world
                .is_free(side)
                .then_some(())
                .ok_or_else(|| format!("{write:?}: the address is taken in {world:?}"))
        };
        match write {
            Write::ServiceAway(to) => {
                self.service = Place::Name(to);
                self.is_marked = true;
            }
            Write::ServiceUnmarked => self.is_marked = false,
            Write::ServiceAt(side) => {
                assert!(matches!(self.service, Place::Name(_)), "{write:?} in {self:?}");
                free(self, side)?;
                if self.stolen_port {
                    return Err(format!("{write:?}: node port is taken"));
                }
                self.service = Place::At(side);
                self.is_marked = false;
            }
            Write::CreateHome(side) | Write::CreateWarm(side) => {
                assert_eq!(self.helper(side), Place::Absent, "{write:?} in {self:?}");
                let place = if write == Write::CreateHome(side) {
                    free(self, side)?;
                    Place::At(side)
                } else {
                    Place::Spare
                };
                self.set(side, place);
                *self.has_endpoints.of_mut(side) = false;
                *self.is_edited.of_mut(side) = false;
            }
            Write::CopyEndpoints(side) => {
                assert!(
                    self.is_copied && self.helper(side) != Place::Absent,
                    "{write:?} in {self:?}"
                );
                *self.has_endpoints.of_mut(side) = true;
            }
            Write::HelperLike(side) => {
                assert!(*self.is_edited.of(side), "{write:?} in {self:?}");
                *self.is_edited.of_mut(side) = false;
                // Its endpoints are those of the new selector, some time later; copies are as they were.
                *self.has_endpoints.of_mut(side) &= self.is_copied;
            }
            Write::HelperWarm(side) => {
                assert!(
                    matches!(self.helper(side), Place::Name(_)),
                    "{write:?} in {self:?}"
                );
                self.set(side, Place::Spare);
            }
            Write::HelperParked(side) => {
                assert!(
                    matches!(self.helper(side), Place::At(_) | Place::Spare),
                    "{write:?} in {self:?}"
                );
                self.set(side, Place::Name(side.other()));
            }
            Write::HelperHome(side) => {
                assert!(
                    matches!(self.helper(side), Place::Name(_)),
                    "{write:?} in {self:?}"
                );
                free(self, side)?;
                self.set(side, Place::At(side));
            }
            Write::Delete(side) => {
                self.set(side, Place::Absent);
                *self.is_edited.of_mut(side) = false;
            }
        }
        Ok(())
    }

    /// Which address the Service's name leads to now, by CNAMEs as a name server follows them.
    fn name(&self) -> Option<Side> {
        let mut place = self.service;
        for _ in 0..4 {
            match place {
                Place::At(side) => return Some(side),
                Place::Name(side) => place = self.helper(side),
                Place::Spare | Place::Absent => return None,
            }
        }
        None
    }

    fn view(&self) -> View {
        let helper = |side: Side, has_endpoints: bool| {
            let endpoints = if *self.is_edited.of(side) {
                Endpoints::Edited
            } else if has_endpoints {
                Endpoints::Same
            } else if self.is_copied {
                Endpoints::ToCopy
            } else {
                Endpoints::Missing(wait("endpoints"))
            };
            match self.helper(side) {
                Place::At(_) => Helper::Home(endpoints),
                Place::Spare => Helper::Warming(endpoints),
                Place::Name(_) => Helper::Parked(endpoints),
                Place::Absent => Helper::Absent,
            }
        };
        let taken = |side: Side| {
            self.stolen
                .contains(&side)
                .then(|| format!("Service thief has {}", side.as_str()))
        };
        View {
            name: "shop/web".to_owned(),
            goal: self.goal,
            own: match self.service {
                Place::At(side) => Own::At(side),
                Place::Name(side) => Own::Away(Some(side)),
                Place::Spare => Own::Elsewhere("has address 10.1.1.1".to_owned()),
                Place::Absent => Own::Away(None),
            },
            helpers: Sides::each(|side| helper(side, *self.has_endpoints.of(side))),
            taken: Taken {
                addresses: Sides::each(taken),
                node_port: self
                    .stolen_port
                    .then(|| "Service thief has node port 30080".to_owned()),
            },
            is_marked: self.is_marked,
            left_is_used: self.left_is_used,
            unquiet: None,
        }
    }

    /// Goes on until nothing more is to be done, or somebody has to decide. `killed_after` is after how many writes in all the
    /// process is killed once.
    fn go_on(
        &mut self,
        mut killed_after: Option<usize>,
        mut look: impl FnMut(&Self, Option<Write>),
    ) -> Ended {
        let mut writes = 0;
        for _ in 0..40 {
            match decide(&self.view()) {
                Decision::Settled => return Ended::Settled,
                Decision::Halt(halt) => return Ended::Halted(halt.message),
                Decision::Wait(_) => self.endpoints_are_made(),
                Decision::Run(step) => {
                    for write in step.writes(self.goal) {
                        if self.write(write).is_err() {
                            // The pass is given up; the next look decides anew, some time later.
                            break;
                        }
                        writes += 1;
                        look(self, Some(write));
                        if killed_after == Some(writes) {
                            killed_after = None;
                            break;
                        }
                    }
                    self.sync();
                    look(self, None);
                }
            }
        }
        panic!("no end: {self:?}, {:?}", decide(&self.view()));
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Ended {
    Settled,
    Halted(String),
}

fn wait(message: &str) -> Wait {
    Wait {
        reason: WaitReason::AgentWorking,
        message: message.to_owned(),
        until: None,
    }
}

/// Every state that the three objects can be in without two of them having the same address.
fn every_state() -> Vec<World> {
    let mut worlds = Vec::new();
    let helper_places = |side: Side| {
        [
            Place::Absent,
            Place::Spare,
            Place::Name(side.other()),
            Place::At(side),
        ]
    };
    let services = [
        Place::At(Side::Old),
        Place::At(Side::New),
        Place::Name(Side::Old),
        Place::Name(Side::New),
    ];
    for service in services {
        for old in helper_places(Side::Old) {
            for new in helper_places(Side::New) {
                for (bits, goal) in (0..32).flat_map(|bits| Side::ALL.map(|goal| (bits, goal))) {
                    let world = World {
                        service,
                        helpers: Sides { old, new },
                        has_endpoints: Sides {
                            old: bits & 1 != 0,
                            new: bits & 2 != 0,
                        },
                        left_is_used: bits & 4 != 0,
                        is_marked: bits & 8 != 0,
                        is_copied: bits & 16 != 0,
                        goal,
                        ..World::start(goal)
                    };
                    if service != old && service != new {
                        worlds.push(world);
                    }
                }
            }
        }
    }
    worlds
}

fn is_arrived(world: &World) {
    let left = world.goal.other();
    assert_eq!(world.service, Place::At(world.goal), "{world:?}");
    assert_eq!(world.helper(world.goal), Place::Absent, "{world:?}");
    let shadow = if world.left_is_used {
        Place::At(left)
    } else {
        Place::Absent
    };
    assert_eq!(world.helper(left), shadow, "{world:?}");
    assert!(!world.is_marked, "{world:?}");
}

#[test]
fn from_every_state_it_arrives() {
    let states = every_state();
    assert!(states.len() > 700, "{}", states.len());
    for mut world in states {
        let before = world.clone();
        world.sync();
        let (mut left, mut name) = (false, false);
        let ended = world.go_on(None, |world, write| {
            // What answers does so to the end: the address that clients know, and the name.
            let (left_answers, name_answers) = answers(world);
            assert!(
                left_answers || !left || !world.left_is_used,
                "{write:?}: {world:?} from {before:?}"
            );
            assert!(name_answers || !name, "{write:?}: {world:?} from {before:?}");
            left |= left_answers;
            name |= name_answers;
        });
        assert_eq!(ended, Ended::Settled, "{before:?}");
        is_arrived(&world);
    }
}

/// Whether the address that is left answers, and the Service's name.
fn answers(world: &World) -> (bool, bool) {
    let name = world.name().is_some_and(|side| world.alive.contains(&side));
    (world.alive.contains(&world.goal.other()), name)
}

#[test]
fn what_answers_nobody_comes_first() {
    for world in every_state() {
        let (goal, left) = (world.goal, world.goal.other());
        let is_dead = world.service == Place::At(goal) && world.helper(left) != Place::At(left);
        if is_dead && world.left_is_used {
            let expected = match world.helper(left) {
                Place::Absent => Step::MakeHome(left),
                Place::Spare => Step::Park(left),
                Place::Name(_) | Place::At(_) => Step::Home(left),
            };
            assert_eq!(decide(&world.view()), Decision::Run(expected), "{world:?}");
        }
    }
}

#[test]
fn nobody_notices_an_exchange() {
    for goal in Side::ALL {
        let mut world = World::start(goal);
        let mut swapped = false;
        let ended = world.go_on(None, |world, write| {
            // Rules are written at any time but within an exchange: what was alive stays so.
            assert!(world.alive.contains(&goal.other()), "{world:?}");
            swapped |= world.service == Place::At(goal);
            assert!(!swapped || world.alive.contains(&goal), "{world:?}");
            // And at every single write the name leads to an address that answers.
            let name = world.name().unwrap_or_else(|| panic!("{write:?}: {world:?}"));
            assert!(world.alive.contains(&name), "{write:?}: {world:?}");
        });
        assert_eq!(ended, Ended::Settled);
        is_arrived(&world);
        // Nobody uses the old one any more.
        world.left_is_used = false;
        assert_eq!(world.go_on(None, |_, _| {}), Ended::Settled);
        is_arrived(&world);
    }
}

#[test]
fn killed_after_any_write_it_goes_on_and_the_name_never_leads_to_nothing() {
    let mut kills = 0;
    for goal in Side::ALL {
        for killed_after in 1..20 {
            let mut world = World::start(goal);
            let mut left_was_dead = 0;
            let ended = world.go_on(Some(killed_after), |world, write| {
                let name = world
                    .name()
                    .unwrap_or_else(|| panic!("{killed_after} {write:?}: {world:?}"));
                assert!(world.alive.contains(&name), "{killed_after} {write:?}: {world:?}");
                if write.is_none() {
                    left_was_dead += usize::from(!world.alive.contains(&goal.other()));
                }
            });
            assert_eq!(ended, Ended::Settled);
            is_arrived(&world);
            // After the first write of the exchange alone, and the very next step mends it.
            assert!(left_was_dead <= 1, "{killed_after}: {left_was_dead}");
            kills += 1;
        }
    }
    assert_eq!(kills, 38);
}

#[test]
fn turned_around_after_any_write_it_is_as_before() {
    for goal in Side::ALL {
        for turned_after in 1..20 {
            let mut world = World::start(goal);
            let mut writes = 0;
            let before = world.service;
            'there: loop {
                match decide(&world.view()) {
                    Decision::Run(step) => {
                        for write in step.writes(goal) {
                            world.write(write).unwrap();
                            writes += 1;
                            if writes == turned_after {
                                world.sync();
                                break 'there;
                            }
                        }
                    }
                    Decision::Wait(_) => world.endpoints_are_made(),
                    Decision::Settled => break,
                    Decision::Halt(halt) => panic!("{halt:?}"),
                }
                world.sync();
            }
            world.goal = goal.other();
            assert_eq!(world.go_on(None, |_, _| {}), Ended::Settled);
            world.left_is_used = false;
            assert_eq!(world.go_on(None, |_, _| {}), Ended::Settled);
            assert_eq!(world.service, before, "{turned_after}: {world:?}");
            assert_eq!(world.helpers, Sides::each(|_| Place::Absent));
        }
    }
}

#[test]
fn edited_after_any_write_its_helpers_say_the_same_before_anything_is_exchanged() {
    let mut edits = 0;
    for goal in Side::ALL {
        for (is_copied, edited_after) in (0..16).flat_map(|after| [false, true].map(|copied| (copied, after)))
        {
            let mut world = World {
                is_copied,
                ..World::start(goal)
            };
            let (mut writes, mut refreshed) = (0, 0);
            for _ in 0..40 {
                let step = match decide(&world.view()) {
                    Decision::Run(step) => step,
                    Decision::Wait(_) => {
                        world.endpoints_are_made();
                        continue;
                    }
                    Decision::Settled => break,
                    Decision::Halt(halt) => panic!("{halt:?}"),
                };
                // Only to give back an address that nobody answers at comes before it.
                let is_urgent = !world.alive.contains(&goal.other());
                let is_edited = world.is_edited != Sides::default();
                assert!(
                    !is_edited || !step.is_primed() || is_urgent,
                    "{step:?} in {world:?}"
                );
                for write in step.writes(goal) {
                    world.write(write).unwrap();
                    writes += 1;
                    refreshed += usize::from(matches!(write, Write::HelperLike(_)));
                    if writes == edited_after {
                        world.edit();
                        edits += 1;
                        break;
                    }
                }
                world.sync();
            }
            is_arrived(&world);
            assert_eq!(world.is_edited, Sides::default(), "{world:?}");
            assert!(refreshed <= 2, "{refreshed}: {world:?}");
        }
    }
    assert!(edits > 30, "{edits}");
}

/// What somebody else may take.
#[derive(Clone, Copy, Debug)]
enum Theft {
    Address(Side),
    NodePort,
}

#[test]
fn whatever_somebody_else_takes_after_any_write_is_named_and_what_can_answer_does() {
    let thefts = [
        Theft::Address(Side::Old),
        Theft::Address(Side::New),
        Theft::NodePort,
    ];
    let mut stolen = 0;
    let cases = Side::ALL
        .into_iter()
        .flat_map(|goal| thefts.map(|theft| (goal, theft)));
    for (goal, theft, is_killed) in
        cases.flat_map(|(goal, theft)| [false, true].map(|killed| (goal, theft, killed)))
    {
        for stolen_after in 0..16 {
            let mut world = World::start(goal);
            let mut writes = 0;
            let mut is_done = false;
            let mut steal = |world: &mut World, writes: usize| {
                let is_free = match theft {
                    Theft::Address(side) => world.is_free(side),
                    Theft::NodePort => matches!(world.service, Place::Name(_)),
                };
                if writes >= stolen_after && is_free && !is_done {
                    is_done = true;
                    match theft {
                        Theft::Address(side) => {
                            world.stolen.insert(side);
                        }
                        Theft::NodePort => world.stolen_port = true,
                    }
                    return true;
                }
                false
            };
            let mut end = None;
            for _ in 0..60 {
                match decide(&world.view()) {
                    Decision::Run(step) => {
                        for write in step.writes(goal) {
                            if world.write(write).is_err() {
                                break;
                            }
                            writes += 1;
                            if steal(&mut world, writes) && is_killed {
                                break;
                            }
                        }
                    }
                    Decision::Wait(_) => world.endpoints_are_made(),
                    Decision::Settled => {
                        end = Some(Ended::Settled);
                        break;
                    }
                    Decision::Halt(halt) => {
                        end = Some(Ended::Halted(halt.message));
                        break;
                    }
                }
                world.sync();
            }
            world.endpoints_are_made();
            let at = format!("{theft:?} after {stolen_after}, to {goal:?}: {world:?}");
            match end.unwrap_or_else(|| panic!("no end: {at}")) {
                Ended::Settled => is_arrived(&world),
                Ended::Halted(message) => {
                    stolen += 1;
                    assert!(
                        message.contains("thief") && message.contains("shop/web"),
                        "{message}"
                    );
                    // An address that is taken does not keep the Service from having the other one.
                    let has_one = matches!(world.service, Place::At(_));
                    assert!(has_one || matches!(theft, Theft::NodePort), "{at}");
                }
            }
            // Whoever asks by name is answered, and so is every address that nobody else has.
            let name = world.name().unwrap_or_else(|| panic!("{at}"));
            assert!(world.alive.contains(&name), "{at}");
            // Given back, it goes on.
            world.stolen.clear();
            world.stolen_port = false;
            assert_eq!(world.go_on(None, |_, _| {}), Ended::Settled, "{at}");
            is_arrived(&world);
        }
    }
    assert!(stolen > 20, "{stolen}");
}

#[test]
fn without_its_node_port_a_service_is_answered_by_its_helper() {
    for mut world in every_state() {
        if !matches!(world.service, Place::Name(_)) {
            continue;
        }
        let before = world.clone();
        world.stolen_port = true;
        let Ended::Halted(message) = world.go_on(None, |_, _| {}) else {
            panic!("{before:?}");
        };
        assert!(message.contains("node port 30080"), "{message}");
        world.endpoints_are_made();
        assert_eq!(answers(&world), (true, true), "{world:?} from {before:?}");
    }
}

#[test]
fn whose_old_address_is_somebody_elses_takes_the_new_one() {
    for mut world in every_state() {
        let left = world.goal.other();
        if world.is_free(left) {
            let before = world.clone();
            world.stolen.insert(left);
            let ended = world.go_on(None, |_, _| {});
            assert_eq!(world.service, Place::At(world.goal), "{world:?} from {before:?}");
            let is_told = matches!(&ended, Ended::Halted(message) if message.contains("thief"));
            assert_eq!(is_told, world.left_is_used, "{ended:?}");
        }
    }
}

#[test]
fn what_somebody_else_changed_is_left_alone() {
    let mut world = World::start(Side::New);
    world.service = Place::Spare;
    let Decision::Halt(halt) = decide(&world.view()) else {
        panic!("{:?}", decide(&world.view()));
    };
    assert_eq!(halt.reason, HaltReason::Drift);
    assert!(
        halt.message.contains("shop/web has address 10.1.1.1") && halt.message.contains("old addresses"),
        "{}",
        halt.message
    );
}

#[test]
fn an_exchange_waits_until_rules_are_quiet_and_nothing_else_does() {
    for mut world in every_state() {
        for _ in 0..20 {
            let quiet = decide(&world.view());
            let unquiet = decide(&View {
                unquiet: Some(wait("rules are written all the time")),
                ..world.view()
            });
            match quiet {
                Decision::Run(step) if step.is_primed() => {
                    assert_eq!(unquiet, Decision::Wait(wait("rules are written all the time")));
                    assert!([Step::Swap, Step::Finish, Step::Return].contains(&step));
                }
                Decision::Run(_) | Decision::Wait(_) | Decision::Settled | Decision::Halt(_) => {
                    assert_eq!(unquiet, quiet);
                }
            }
            match quiet {
                Decision::Run(step) => {
                    for write in step.writes(world.goal) {
                        world.write(write).unwrap();
                    }
                }
                Decision::Wait(_) => world.endpoints_are_made(),
                Decision::Settled | Decision::Halt(_) => break,
            }
        }
    }
}
