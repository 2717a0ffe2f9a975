//! Every state of a Service and its helpers, killed between any two writes, turned around, robbed by somebody else.

use std::collections::BTreeSet;

use super::*;
use engine::decision::WaitReason;

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

/// Where a part of the bridge is in the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Pier {
    #[default]
    Absent,
    /// It is there, and does not say where it answers.
    Silent,
    Answers,
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
    bridge: Parts<Pier>,
    has_endpoints: BTreeSet<Role>,
    /// Helpers that were written before the owner of the Service edited it.
    edited: BTreeSet<Role>,
    has_node_ports: bool,
    /// Nobody selects pods for the Service.
    is_copied: bool,
    /// Addresses that answered when rules were last written.
    alive: BTreeSet<Side>,
    /// Whether node ports did.
    node_ports_answer: bool,
    stolen: BTreeSet<Side>,
    stolen_port: bool,
    is_marked: bool,
    left_is_used: bool,
    /// No range gives out the address that is left.
    is_closed: bool,
    /// Whether the Service has endpoints at all.
    is_served: bool,
    goal: Side,
}

impl World {
    fn start(goal: Side) -> Self {
        let mut world = Self {
            service: Place::At(goal.other()),
            helpers: Sides::each(|_| Place::Absent),
            bridge: Parts::default(),
            has_endpoints: BTreeSet::new(),
            edited: BTreeSet::new(),
            has_node_ports: true,
            is_copied: false,
            alive: BTreeSet::new(),
            node_ports_answer: false,
            stolen: BTreeSet::new(),
            stolen_port: false,
            is_marked: false,
            left_is_used: true,
            is_closed: false,
            is_served: true,
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
        self.edited = Role::ALL
            .into_iter()
            .filter(|role| self.is_there(*role))
            .collect();
    }

    fn is_there(&self, role: Role) -> bool {
        match role {
            Role::Address(side) => self.helper(side) != Place::Absent,
            Role::Bridge(part) => *self.bridge.of(part) != Pier::Absent,
        }
    }

    fn answers(&self, part: Part) -> bool {
        *self.bridge.of(part) == Pier::Answers && self.has_endpoints.contains(&Role::Bridge(part))
    }

    /// kube-proxy writes its rules.
    fn sync(&mut self) {
        self.alive = Side::ALL
            .into_iter()
            .filter(|side| {
                let has_endpoints = self.has_endpoints.contains(&Role::Address(*side));
                let by_helper = self.helper(*side) == Place::At(*side) && has_endpoints;
                self.service == Place::At(*side) || by_helper || self.answers(Part::Addresses)
            })
            .collect();
        self.node_ports_answer = matches!(self.service, Place::At(_)) || self.answers(Part::NodePorts);
    }

    /// Endpoints are made for what has an address.
    fn endpoints_are_made(&mut self) {
        for role in Role::ALL {
            let has_address = match role {
                Role::Address(side) => matches!(self.helper(side), Place::At(_) | Place::Spare),
                Role::Bridge(_) => self.is_there(role),
            };
            if !self.is_copied && has_address {
                self.has_endpoints.insert(role);
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
            let is_given = !world.is_closed || side == world.goal;
            assert!(is_given, "{write:?}: no range gives the address in {world:?}");
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
                self.has_endpoints.remove(&Role::Address(side));
                self.edited.remove(&Role::Address(side));
            }
            Write::CreateBridge(part) => {
                assert_eq!(*self.bridge.of(part), Pier::Absent, "{write:?} in {self:?}");
                *self.bridge.of_mut(part) = Pier::Silent;
                self.has_endpoints.remove(&Role::Bridge(part));
                self.edited.remove(&Role::Bridge(part));
            }
            Write::BridgeAnswers(part) => {
                assert_eq!(*self.bridge.of(part), Pier::Silent, "{write:?} in {self:?}");
                *self.bridge.of_mut(part) = Pier::Answers;
            }
            Write::CopyEndpoints(role) => {
                assert!(self.is_copied && self.is_there(role), "{write:?} in {self:?}");
                self.has_endpoints.insert(role);
            }
            Write::HelperLike(role) => {
                assert!(self.edited.remove(&role), "{write:?} in {self:?}");
                // Its endpoints are those of the new selector, some time later; copies are as they were.
                if !self.is_copied {
                    self.has_endpoints.remove(&role);
                }
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
            Write::Delete(role) => {
                match role {
                    Role::Address(side) => self.set(side, Place::Absent),
                    Role::Bridge(part) => *self.bridge.of_mut(part) = Pier::Absent,
                }
                self.edited.remove(&role);
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
        let endpoints = |role: Role| {
            if self.edited.contains(&role) {
                Endpoints::Edited
            } else if self.has_endpoints.contains(&role) {
                Endpoints::Same
            } else if self.is_copied {
                Endpoints::ToCopy
            } else {
                Endpoints::Missing(wait("endpoints"))
            }
        };
        let bridge = |part: Part| match (self.bridge.of(part), part) {
            (Pier::Absent, Part::NodePorts) if !self.has_node_ports => Bridge::NotNeeded,
            // It is to the Service what its node ports are.
            (Pier::Absent, Part::ExternalAddresses) => Bridge::NotNeeded,
            (Pier::Absent, _) => Bridge::Absent,
            (Pier::Silent, _) => Bridge::Silent,
            (Pier::Answers, _) => Bridge::Stands(endpoints(Role::Bridge(part))),
        };
        let helper = |side: Side| {
            let endpoints = endpoints(Role::Address(side));
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
            helpers: Sides::each(helper),
            bridge: Parts::each(bridge),
            taken: Taken {
                addresses: Sides::each(taken),
                node_port: self
                    .stolen_port
                    .then(|| "Service thief has node port 30080".to_owned()),
            },
            is_marked: self.is_marked,
            left_is_used: self.left_is_used,
            left_is_given: !self.is_closed,
            is_served: self.is_served,
        }
    }

    /// Whether no helper is to have the address that is left: none has it, and no client has got an answer there.
    fn leaves_none(&self) -> bool {
        let left = self.goal.other();
        let is_there = self.service == Place::At(self.goal);
        self.is_closed && (is_there || !self.is_served) && self.helper(left) != Place::At(left)
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
                decision if waits_for_left(&decision) => {
                    assert!(self.is_closed, "{self:?}");
                    self.is_closed = false;
                }
                Decision::Wait(_) => self.endpoints_are_made(),
                Decision::Run(step) => {
                    for write in step.writes(self.goal) {
                        if self.write(write).is_err() {
                            // The pass is given up; the next look decides anew, some time later.
                            break;
                        }
                        writes += 1;
                        // kube-proxy may write its rules at any time.
                        self.sync();
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

/// Every state that the five objects can be in without two of them having the same address.
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
                if service == old || service == new {
                    continue;
                }
                for (bits, goal) in (0..32).flat_map(|bits| Side::ALL.map(|goal| (bits, goal))) {
                    for (has_node_ports, bridge, bridged) in every_bridge() {
                        let roles = [Role::Address(Side::Old), Role::Address(Side::New)].into_iter();
                        let with_endpoints = roles.zip([1, 2]).filter(|(_, bit)| bits & bit != 0);
                        worlds.push(World {
                            service,
                            helpers: Sides { old, new },
                            bridge,
                            has_endpoints: with_endpoints.map(|(role, _)| role).chain(bridged).collect(),
                            has_node_ports,
                            left_is_used: bits & 4 != 0,
                            is_marked: bits & 8 != 0,
                            is_copied: bits & 16 != 0,
                            goal,
                            ..World::start(goal)
                        });
                    }
                }
            }
        }
    }
    worlds
}

/// Whether the Service has node ports, the bridge, and which parts of it have endpoints.
fn every_bridge() -> Vec<(bool, Parts<Pier>, Vec<Role>)> {
    let both = |addresses, node_ports| Parts {
        addresses,
        node_ports,
        external_addresses: Pier::Absent,
    };
    let roles = [Role::Bridge(Part::Addresses), Role::Bridge(Part::NodePorts)];
    vec![
        (false, both(Pier::Absent, Pier::Absent), Vec::new()),
        (true, both(Pier::Silent, Pier::Absent), vec![roles[0]]),
        (false, both(Pier::Answers, Pier::Absent), Vec::new()),
        (true, both(Pier::Answers, Pier::Silent), vec![roles[0]]),
        (true, both(Pier::Answers, Pier::Answers), roles.to_vec()),
        // Its owner has taken its node ports away meanwhile.
        (false, both(Pier::Answers, Pier::Answers), roles.to_vec()),
    ]
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
    assert_eq!(world.bridge, Parts::default(), "{world:?}");
}

#[test]
fn from_every_state_it_arrives() {
    let states = every_state();
    assert!(states.len() > 15_000, "{}", states.len());
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

/// A Service that came late, once the range that it leaves is closed: what a helper asks for is covered before.
#[test]
fn from_every_state_it_arrives_although_the_address_that_it_leaves_is_not_given() {
    let is_possible = |world: &World| {
        world.service != Place::At(world.goal.other()) || !world.is_served || world.left_is_used
    };
    for (mut world, is_served) in every_state()
        .into_iter()
        .flat_map(|world| [(world.clone(), false), (world, true)])
    {
        (world.is_closed, world.is_served) = (true, is_served);
        if !is_possible(&world) {
            continue;
        }
        let before = world.clone();
        world.sync();
        let (mut left, mut name) = (false, false);
        let ended = world.go_on(None, |world, write| {
            let (left_answers, name_answers) = answers(world);
            let may_go = !is_served || !before.left_is_used || world.leaves_none();
            assert!(
                left_answers || !left || may_go,
                "{write:?}: {world:?} from {before:?}"
            );
            assert!(
                name_answers || !name || !is_served,
                "{write:?}: {world:?} from {before:?}"
            );
            left |= left_answers;
            name |= name_answers;
        });
        assert_eq!(ended, Ended::Settled, "{before:?}");
        world.left_is_used &= !world.leaves_none();
        is_arrived(&world);
    }
}

#[test]
fn a_late_service_without_endpoints_goes_by_two_writes_and_one_with_them_leaves_a_helper() {
    for goal in Side::ALL {
        let mut world = World {
            is_closed: true,
            ..unserved(goal)
        };
        let mut writes = 0;
        let ended = world.go_on(None, |_, write| writes += usize::from(write.is_some()));
        assert_eq!((ended, writes), (Ended::Settled, 2));
        assert!(world.is_closed, "nobody asked for the address that it left");
        let mut world = World {
            is_closed: true,
            ..World::start(goal)
        };
        assert_eq!(
            world.go_on(None, |world, write| nobody_notices(world, write)),
            Ended::Settled
        );
        is_arrived(&world);
        assert_eq!(world.helper(goal.other()), Place::At(goal.other()));
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

/// What holds after every write of a Service that had its address: whenever kube-proxy writes its rules, clients of the address that it
/// left are answered, those of its node ports, and those of its name.
#[track_caller]
fn nobody_notices(world: &World, write: Option<Write>) {
    assert!(world.alive.contains(&world.goal.other()), "{write:?}: {world:?}");
    assert!(world.node_ports_answer, "{write:?}: {world:?}");
    let name = world.name().unwrap_or_else(|| panic!("{write:?}: {world:?}"));
    assert!(world.alive.contains(&name), "{write:?}: {world:?}");
}

#[test]
fn nobody_notices_an_exchange() {
    for goal in Side::ALL {
        let mut world = World::start(goal);
        let mut was_named = false;
        let ended = world.go_on(None, |world, write| {
            nobody_notices(world, write);
            // Once somebody was told the goal's address it answers.
            was_named |= world.name() == Some(goal);
            assert!(!was_named || world.alive.contains(&goal), "{write:?}: {world:?}");
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
fn killed_after_any_write_it_goes_on_and_nobody_notices() {
    let mut kills = 0;
    for goal in Side::ALL {
        for killed_after in 1..20 {
            let mut world = World::start(goal);
            let mut writes = 0;
            let ended = world.go_on(Some(killed_after), |world, write| {
                nobody_notices(world, write);
                writes += usize::from(write.is_some());
            });
            assert_eq!(ended, Ended::Settled);
            is_arrived(&world);
            kills += usize::from(writes >= killed_after);
        }
    }
    assert_eq!(kills, 2 * 14, "writes of an exchange, there and back");
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
            assert_eq!(world.bridge, Parts::default());
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
                // Only to give a Service back an address comes before it.
                let is_at_home = matches!(world.service, Place::At(_));
                assert!(
                    world.edited.is_empty() || step != Step::Swap || !is_at_home,
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
            assert_eq!(world.edited, BTreeSet::new(), "{world:?}");
            assert!(refreshed <= 4, "{refreshed}: {world:?}");
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
fn what_its_owner_changed_is_left_alone_and_its_helpers_go() {
    for (mut world, left_is_used) in every_state()
        .into_iter()
        .flat_map(|world| [true, false].map(|used| (world.clone(), used)))
    {
        let left = world.goal.other();
        let was_home = world.helper(left) == Place::At(left);
        world.service = Place::Spare;
        world.left_is_used = left_is_used;
        assert_eq!(world.go_on(None, |_, _| {}), Ended::Settled, "{world:?}");
        assert_eq!(world.service, Place::Spare, "the owner's word stays: {world:?}");
        assert!(
            Part::ALL
                .iter()
                .all(|part| *world.bridge.of(*part) == Pier::Absent)
        );
        assert_eq!(world.helper(world.goal), Place::Absent, "{world:?}");
        // Clients that know the address that is left are answered there as long as there may be any.
        let kept = world.helper(left) == Place::At(left);
        assert_eq!(kept, was_home && left_is_used, "{world:?}");
    }
}

/// One that no endpoint answers for.
fn unserved(goal: Side) -> World {
    World {
        is_served: false,
        ..World::start(goal)
    }
}

#[test]
fn a_service_without_endpoints_goes_by_three_writes_and_both_its_addresses_stay_its_own() {
    for goal in Side::ALL {
        let mut world = unserved(goal);
        let mut writes = 0;
        let mut look = |world: &World, write: Option<Write>| {
            writes += usize::from(write.is_some());
            if write.is_none() {
                assert!(Side::ALL.iter().all(|side| !world.is_free(*side)), "{world:?}");
            }
        };
        assert_eq!(world.go_on(None, &mut look), Ended::Settled);
        assert_eq!(writes, 3);
        is_arrived(&world);
        let mut back = World {
            goal: goal.other(),
            ..world.clone()
        };
        let mut writes = 0;
        let mut look = |world: &World, write: Option<Write>| {
            writes += usize::from(write.is_some());
            let name = world.name();
            assert!(name.is_some(), "its name leads to an address: {world:?}");
        };
        assert_eq!(back.go_on(None, &mut look), Ended::Settled);
        assert_eq!(writes, 5, "four writes, and a helper that goes");
        is_arrived(&back);
        world.left_is_used = false;
        assert_eq!(world.go_on(None, |_, _| {}), Ended::Settled);
        assert_eq!(world.helper(goal.other()), Place::Absent);
    }
}

#[test]
fn a_service_without_endpoints_arrives_whenever_its_exchange_is_cut_and_turned_around() {
    for (step, goal, killed_after, gets_endpoints, turns) in Side::ALL.into_iter().flat_map(|goal| {
        [Step::Move, Step::MoveBack, Step::MoveAlone]
            .into_iter()
            .flat_map(move |step| {
                (1..=4).flat_map(move |killed| {
                    [false, true].into_iter().flat_map(move |served| {
                        [false, true].map(|turns| (step, goal, killed, served, turns))
                    })
                })
            })
    }) {
        let mut world = unserved(goal);
        world.is_closed = step == Step::MoveAlone;
        if step == Step::MoveBack {
            world.set(goal, Place::At(goal));
        }
        assert_eq!(decide(&world.view()), Decision::Run(step));
        for write in step.writes(goal).into_iter().take(killed_after) {
            world.write(write).unwrap();
        }
        world.is_served = gets_endpoints;
        if turns {
            world.goal = goal.other();
            // On the way back the range is made again first.
            world.is_closed = false;
        }
        assert_eq!(world.go_on(None, |_, _| {}), Ended::Settled, "{world:?}");
        world.left_is_used &= !world.leaves_none();
        is_arrived(&world);
    }
}

#[test]
fn a_service_without_endpoints_whose_old_address_is_taken_halts_nothing() {
    for goal in Side::ALL {
        let mut world = unserved(goal);
        world.service = Place::At(goal);
        world.stolen.insert(goal.other());
        assert_eq!(world.go_on(None, |_, _| {}), Ended::Settled);
        world.is_served = true;
        assert!(
            matches!(world.go_on(None, |_, _| {}), Ended::Halted(_)),
            "a person is told"
        );
    }
}

#[test]
fn whatever_is_taken_of_a_service_without_endpoints_it_gets_an_address() {
    for (goal, stolen, after) in Side::ALL.into_iter().flat_map(|goal| {
        Side::ALL
            .into_iter()
            .flat_map(move |stolen| (0..=3).map(move |after| (goal, stolen, after)))
    }) {
        let mut world = unserved(goal);
        for (number, write) in Step::Move.writes(goal).into_iter().enumerate() {
            if number == after && world.is_free(stolen) {
                world.stolen.insert(stolen);
            }
            if world.write(write).is_err() {
                break;
            }
        }
        world.go_on(None, |_, _| {});
        let has_one = matches!(world.service, Place::At(_));
        assert!(has_one, "{goal:?} {stolen:?} {after}: {world:?}");
        world.stolen.clear();
        assert_eq!(world.go_on(None, |_, _| {}), Ended::Settled, "{world:?}");
        is_arrived(&world);
    }
}

#[test]
fn no_bridge_answers_in_the_place_of_somebody_else() {
    for mut world in every_state() {
        for side in Side::ALL {
            let mut world = world.clone();
            if !world.is_free(side) {
                continue;
            }
            world.stolen.insert(side);
            let ended = world.go_on(None, |_, _| {});
            if matches!(world.service, Place::At(_)) {
                assert_eq!(
                    *world.bridge.of(Part::Addresses),
                    Pier::Absent,
                    "{ended:?} {world:?}"
                );
            }
        }
        world.stolen.clear();
    }
}
