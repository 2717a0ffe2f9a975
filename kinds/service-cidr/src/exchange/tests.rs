//! Explores every state of a Service and its helpers, with a crash between any two writes, a reversal of the direction, and
//! addresses or ports taken by another Service.

use std::collections::BTreeSet;

use super::*;
use crate::side::Sides;
use engine::decision::WaitReason;

/// The state of an object in the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    At(Side),
    /// A spare address.
    Spare,
    /// No address; the name points to this helper.
    Name(Side),
    Absent,
}

/// The state of a part of the bridge in the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Pier {
    #[default]
    Absent,
    /// The part exists, and its status is empty.
    Silent,
    Answers,
}

/// The objects in the API, the rules that kube-proxy wrote last, and what other Services have taken.
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
    /// Helpers that do not have the last edit of the Service by its owner.
    edited: BTreeSet<Role>,
    has_node_ports: bool,
    /// Whether the Service has no selector.
    is_copied: bool,
    /// Addresses that answer by the last written rules.
    alive: BTreeSet<Side>,
    /// Whether node ports answer by the last written rules.
    node_ports_answer: bool,
    stolen: BTreeSet<Side>,
    stolen_port: bool,
    is_marked: bool,
    left_is_used: bool,
    /// Whether no range assigns the source address.
    is_closed: bool,
    /// Whether the Service has endpoints.
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

    /// Creates endpoints for Services with an address.
    fn create_endpoints(&mut self) {
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

    /// Whether the API server assigns the address of this side in a write; an error is its refusal.
    fn assign(&self, write: Write, side: Side) -> Result<(), String> {
        let is_given = !self.is_closed || side == self.goal;
        assert!(is_given, "{write:?}: no range assigns the address in {self:?}");
        self.is_free(side)
            .then_some(())
            .ok_or_else(|| format!("{write:?}: the address is taken in {self:?}"))
    }

    /// Performs one write, as the API server would; an error is its refusal.
    fn write(&mut self, write: Write) -> Result<(), String> {
        match write {
            Write::ServiceAway(to) => {
                self.service = Place::Name(to);
                self.is_marked = true;
            }
            Write::ServiceUnmarked => self.is_marked = false,
            Write::ServiceAt(side) => {
                assert!(matches!(self.service, Place::Name(_)), "{write:?} in {self:?}");
                self.assign(write, side)?;
                if self.stolen_port {
                    return Err(format!("{write:?}: node port is taken"));
                }
                self.service = Place::At(side);
                self.is_marked = false;
            }
            Write::CreateHome(side) | Write::CreateWarm(side) => {
                assert_eq!(self.helper(side), Place::Absent, "{write:?} in {self:?}");
                let place = if write == Write::CreateHome(side) {
                    self.assign(write, side)?;
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
                // Some time later it has the endpoints of the new selector; copies stay as they were.
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
                self.assign(write, side)?;
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

    /// The address to which the Service's name resolves now, through CNAME records.
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
            // External addresses follow the node ports in the model.
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
            source_is_used: self.left_is_used,
            source_is_assignable: !self.is_closed,
            is_served: self.is_served,
        }
    }

    /// Whether the source address needs no helper: no helper has it, and it has never answered.
    fn needs_no_source_helper(&self) -> bool {
        let source = self.goal.other();
        let is_there = self.service == Place::At(self.goal);
        self.is_closed && (is_there || !self.is_served) && self.helper(source) != Place::At(source)
    }

    /// Performs steps until the decision is settled or a halt. `killed_after` is the number of writes after which the process
    /// is killed once.
    fn advance(
        &mut self,
        mut killed_after: Option<usize>,
        mut look: impl FnMut(&Self, Option<Write>),
    ) -> Ended {
        let mut writes = 0;
        for _ in 0..40 {
            match decide(&self.view()) {
                Decision::Settled => return Ended::Settled,
                Decision::Halt(halt) => return Ended::Halted(halt.message),
                decision if waits_for_source(&decision) => {
                    assert!(self.is_closed, "{self:?}");
                    self.is_closed = false;
                }
                Decision::Wait(_) => self.create_endpoints(),
                Decision::Run(step) => {
                    for write in step.writes(self.goal) {
                        if self.write(write).is_err() {
                            // The pass ends here; the next observation decides again, some time later.
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
        panic!("endless: {self:?}, {:?}", decide(&self.view()));
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

/// Every state of the five objects in which no two of them have the same address.
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
        // The owner has removed the node ports meanwhile.
        (false, both(Pier::Answers, Pier::Answers), roles.to_vec()),
    ]
}

fn assert_arrived(world: &World) {
    let source = world.goal.other();
    assert_eq!(world.service, Place::At(world.goal), "{world:?}");
    assert_eq!(world.helper(world.goal), Place::Absent, "{world:?}");
    let shadow = if world.left_is_used {
        Place::At(source)
    } else {
        Place::Absent
    };
    assert_eq!(world.helper(source), shadow, "{world:?}");
    assert!(!world.is_marked, "{world:?}");
    assert_eq!(world.bridge, Parts::default(), "{world:?}");
}

#[test]
fn every_state_completes() {
    let states = every_state();
    assert!(states.len() > 15_000, "{}", states.len());
    for mut world in states {
        let before = world.clone();
        world.sync();
        let (mut source, mut name) = (false, false);
        let ended = world.advance(None, |world, write| {
            // The address that clients know and the name continue to answer.
            let (left_answers, name_answers) = answers(world);
            assert!(
                left_answers || !source || !world.left_is_used,
                "{write:?}: {world:?} from {before:?}"
            );
            assert!(name_answers || !name, "{write:?}: {world:?} from {before:?}");
            source |= left_answers;
            name |= name_answers;
        });
        assert_eq!(ended, Ended::Settled, "{before:?}");
        assert_arrived(&world);
    }
}

/// A late Service after its source range was closed: a cover is created for the address of its helper.
#[test]
fn every_state_completes_if_the_source_address_cannot_be_assigned() {
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
        let (mut source, mut name) = (false, false);
        let ended = world.advance(None, |world, write| {
            let (left_answers, name_answers) = answers(world);
            let may_go = !is_served || !before.left_is_used || world.needs_no_source_helper();
            assert!(
                left_answers || !source || may_go,
                "{write:?}: {world:?} from {before:?}"
            );
            assert!(
                name_answers || !name || !is_served,
                "{write:?}: {world:?} from {before:?}"
            );
            source |= left_answers;
            name |= name_answers;
        });
        assert_eq!(ended, Ended::Settled, "{before:?}");
        world.left_is_used &= !world.needs_no_source_helper();
        assert_arrived(&world);
    }
}

#[test]
fn a_late_service_without_endpoints_moves_with_two_writes_and_one_with_them_gets_a_helper() {
    for goal in Side::ALL {
        let mut world = World {
            is_closed: true,
            ..unserved(goal)
        };
        let mut writes = 0;
        let ended = world.advance(None, |_, write| writes += usize::from(write.is_some()));
        assert_eq!((ended, writes), (Ended::Settled, 2));
        assert!(world.is_closed, "the source address was not assigned");
        let mut world = World {
            is_closed: true,
            ..World::start(goal)
        };
        assert_eq!(
            world.advance(None, |world, write| assert_answers(world, write)),
            Ended::Settled
        );
        assert_arrived(&world);
        assert_eq!(world.helper(goal.other()), Place::At(goal.other()));
    }
}

/// Whether the source address and the Service's name answer.
fn answers(world: &World) -> (bool, bool) {
    let name = world.name().is_some_and(|side| world.alive.contains(&side));
    (world.alive.contains(&world.goal.other()), name)
}

#[test]
fn an_address_that_does_not_answer_is_restored_first() {
    for world in every_state() {
        let (goal, source) = (world.goal, world.goal.other());
        let is_dead = world.service == Place::At(goal) && world.helper(source) != Place::At(source);
        if is_dead && world.left_is_used {
            let expected = match world.helper(source) {
                Place::Absent => Step::MakeHome(source),
                Place::Spare => Step::Park(source),
                Place::Name(_) | Place::At(_) => Step::Home(source),
            };
            assert_eq!(decide(&world.view()), Decision::Run(expected), "{world:?}");
        }
    }
}

/// Asserts after every write of a Service that had its address: whenever kube-proxy writes its rules, the source address, the
/// node ports and the name of the Service answer.
#[track_caller]
fn assert_answers(world: &World, write: Option<Write>) {
    assert!(world.alive.contains(&world.goal.other()), "{write:?}: {world:?}");
    assert!(world.node_ports_answer, "{write:?}: {world:?}");
    let name = world.name().unwrap_or_else(|| panic!("{write:?}: {world:?}"));
    assert!(world.alive.contains(&name), "{write:?}: {world:?}");
}

#[test]
fn all_requests_are_answered_during_an_exchange() {
    for goal in Side::ALL {
        let mut world = World::start(goal);
        let mut was_named = false;
        let ended = world.advance(None, |world, write| {
            assert_answers(world, write);
            // After a client has resolved the target address, it answers.
            was_named |= world.name() == Some(goal);
            assert!(!was_named || world.alive.contains(&goal), "{write:?}: {world:?}");
        });
        assert_eq!(ended, Ended::Settled);
        assert_arrived(&world);
        // The old address is no longer in use.
        world.left_is_used = false;
        assert_eq!(world.advance(None, |_, _| {}), Ended::Settled);
        assert_arrived(&world);
    }
}

#[test]
fn after_a_crash_at_any_write_the_exchange_continues_and_requests_are_answered() {
    let mut kills = 0;
    for goal in Side::ALL {
        kills += explore::crash_in_each_step(format_args!("goal {goal:?}"), |crash_at| {
            let mut world = World::start(goal);
            let mut writes = 0;
            let ended = world.advance(crash_at.map(|write| write + 1), |world, write| {
                assert_answers(world, write);
                writes += usize::from(write.is_some());
            });
            assert_eq!(ended, Ended::Settled);
            assert_arrived(&world);
            ((), writes)
        });
    }
    assert_eq!(kills, 2 * 14, "writes of an exchange, in both directions");
}

#[test]
fn a_reversal_after_any_write_restores_the_service() {
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
                    Decision::Wait(_) => world.create_endpoints(),
                    Decision::Settled => break,
                    Decision::Halt(halt) => panic!("{halt:?}"),
                }
                world.sync();
            }
            world.goal = goal.other();
            assert_eq!(world.advance(None, |_, _| {}), Ended::Settled);
            world.left_is_used = false;
            assert_eq!(world.advance(None, |_, _| {}), Ended::Settled);
            assert_eq!(world.service, before, "{turned_after}: {world:?}");
            assert_eq!(world.helpers, Sides::each(|_| Place::Absent));
            assert_eq!(world.bridge, Parts::default());
        }
    }
}

#[test]
fn after_an_edit_at_any_write_helpers_are_updated_before_the_exchange() {
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
                        world.create_endpoints();
                        continue;
                    }
                    Decision::Settled => break,
                    Decision::Halt(halt) => panic!("{halt:?}"),
                };
                // Only the restoration of the Service's address comes before.
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
            assert_arrived(&world);
            assert_eq!(world.edited, BTreeSet::new(), "{world:?}");
            assert!(refreshed <= 4, "{refreshed}: {world:?}");
        }
    }
    assert!(edits > 30, "{edits}");
}

/// An address or port that another Service may take.
#[derive(Clone, Copy, Debug)]
enum Theft {
    Address(Side),
    NodePort,
}

impl Theft {
    /// Another Service takes it, if it is free; whether it did.
    fn happens(self, world: &mut World) -> bool {
        match self {
            Self::Address(side) => world.is_free(side) && world.stolen.insert(side),
            Self::NodePort => {
                let is_free = matches!(world.service, Place::Name(_));
                world.stolen_port |= is_free;
                is_free
            }
        }
    }
}

#[test]
fn a_theft_after_any_write_is_named_and_the_rest_answers() {
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
                let is_now = writes >= stolen_after && !is_done && theft.happens(world);
                is_done |= is_now;
                is_now
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
                    Decision::Wait(_) => world.create_endpoints(),
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
            world.create_endpoints();
            let at = format!("{theft:?} after {stolen_after}, to {goal:?}: {world:?}");
            match end.unwrap_or_else(|| panic!("endless: {at}")) {
                Ended::Settled => assert_arrived(&world),
                Ended::Halted(message) => {
                    stolen += 1;
                    assert!(
                        message.contains("thief") && message.contains("shop/web"),
                        "{message}"
                    );
                    // If one address is taken, the Service gets the other one.
                    let has_one = matches!(world.service, Place::At(_));
                    assert!(has_one || matches!(theft, Theft::NodePort), "{at}");
                }
            }
            // The name answers, and so does every address that no other Service has.
            let name = world.name().unwrap_or_else(|| panic!("{at}"));
            assert!(world.alive.contains(&name), "{at}");
            // After the theft ends, the exchange continues.
            world.stolen.clear();
            world.stolen_port = false;
            assert_eq!(world.advance(None, |_, _| {}), Ended::Settled, "{at}");
            assert_arrived(&world);
        }
    }
    assert!(stolen > 20, "{stolen}");
}

#[test]
fn a_helper_answers_for_a_service_whose_node_port_is_taken() {
    for mut world in every_state() {
        if !matches!(world.service, Place::Name(_)) {
            continue;
        }
        let before = world.clone();
        world.stolen_port = true;
        let Ended::Halted(message) = world.advance(None, |_, _| {}) else {
            panic!("{before:?}");
        };
        assert!(message.contains("node port 30080"), "{message}");
        world.create_endpoints();
        assert_eq!(answers(&world), (true, true), "{world:?} from {before:?}");
    }
}

#[test]
fn a_service_whose_old_address_is_taken_gets_the_new_one() {
    for mut world in every_state() {
        let source = world.goal.other();
        if world.is_free(source) {
            let before = world.clone();
            world.stolen.insert(source);
            let ended = world.advance(None, |_, _| {});
            assert_eq!(world.service, Place::At(world.goal), "{world:?} from {before:?}");
            let is_told = matches!(&ended, Ended::Halted(message) if message.contains("thief"));
            assert_eq!(is_told, world.left_is_used, "{ended:?}");
        }
    }
}

#[test]
fn a_service_changed_by_its_owner_stays_and_its_helpers_are_removed() {
    for (mut world, left_is_used) in every_state()
        .into_iter()
        .flat_map(|world| [true, false].map(|used| (world.clone(), used)))
    {
        let source = world.goal.other();
        let was_home = world.helper(source) == Place::At(source);
        world.service = Place::Spare;
        world.left_is_used = left_is_used;
        assert_eq!(world.advance(None, |_, _| {}), Ended::Settled, "{world:?}");
        assert_eq!(
            world.service,
            Place::Spare,
            "the owner's address stays: {world:?}"
        );
        assert!(
            Part::ALL
                .iter()
                .all(|part| *world.bridge.of(*part) == Pier::Absent)
        );
        assert_eq!(world.helper(world.goal), Place::Absent, "{world:?}");
        // The source address answers while clients may use it.
        let kept = world.helper(source) == Place::At(source);
        assert_eq!(kept, was_home && left_is_used, "{world:?}");
    }
}

/// A Service without endpoints.
fn unserved(goal: Side) -> World {
    World {
        is_served: false,
        ..World::start(goal)
    }
}

#[test]
fn a_service_without_endpoints_moves_with_three_writes_and_keeps_both_addresses() {
    for goal in Side::ALL {
        let mut world = unserved(goal);
        let mut writes = 0;
        let mut look = |world: &World, write: Option<Write>| {
            writes += usize::from(write.is_some());
            if write.is_none() {
                assert!(Side::ALL.iter().all(|side| !world.is_free(*side)), "{world:?}");
            }
        };
        assert_eq!(world.advance(None, &mut look), Ended::Settled);
        assert_eq!(writes, 3);
        assert_arrived(&world);
        let mut back = World {
            goal: goal.other(),
            ..world.clone()
        };
        let mut writes = 0;
        let mut look = |world: &World, write: Option<Write>| {
            writes += usize::from(write.is_some());
            let name = world.name();
            assert!(name.is_some(), "its name resolves to an address: {world:?}");
        };
        assert_eq!(back.advance(None, &mut look), Ended::Settled);
        assert_eq!(writes, 5, "four writes, and the removal of a helper");
        assert_arrived(&back);
        world.left_is_used = false;
        assert_eq!(world.advance(None, |_, _| {}), Ended::Settled);
        assert_eq!(world.helper(goal.other()), Place::Absent);
    }
}

#[test]
fn a_service_without_endpoints_completes_after_a_crash_and_a_reversal_at_any_write() {
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
            // In a rollback the range is created again first.
            world.is_closed = false;
        }
        assert_eq!(world.advance(None, |_, _| {}), Ended::Settled, "{world:?}");
        world.left_is_used &= !world.needs_no_source_helper();
        assert_arrived(&world);
    }
}

#[test]
fn a_service_without_endpoints_whose_old_address_is_taken_does_not_halt() {
    for goal in Side::ALL {
        let mut world = unserved(goal);
        world.service = Place::At(goal);
        world.stolen.insert(goal.other());
        assert_eq!(world.advance(None, |_, _| {}), Ended::Settled);
        world.is_served = true;
        assert!(
            matches!(world.advance(None, |_, _| {}), Ended::Halted(_)),
            "the halt is reported"
        );
    }
}

#[test]
fn a_service_without_endpoints_gets_an_address_after_any_theft() {
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
        world.advance(None, |_, _| {});
        let has_one = matches!(world.service, Place::At(_));
        assert!(has_one, "{goal:?} {stolen:?} {after}: {world:?}");
        world.stolen.clear();
        assert_eq!(world.advance(None, |_, _| {}), Ended::Settled, "{world:?}");
        assert_arrived(&world);
    }
}

#[test]
fn no_bridge_answers_at_an_address_of_another_service() {
    for mut world in every_state() {
        for side in Side::ALL {
            let mut world = world.clone();
            if !world.is_free(side) {
                continue;
            }
            world.stolen.insert(side);
            let ended = world.advance(None, |_, _| {});
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
