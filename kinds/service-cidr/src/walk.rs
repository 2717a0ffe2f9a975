//! Explores every state of a change of the Service range, by every step and every reaction of the cluster and of the user, with
//! a reversal of the direction at any moment: every address is always within a range, no write is refused, and every migration
//! completes.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::LazyLock;

use explore::Follows;
use ipnet::IpNet;

use super::covers::Kept;
use super::decide::{Next, Policy, ServiceView, Turn, View, decide};
use super::exchange::{self, Role};
use super::facts::Mention;
use super::mentions::AddressUses;
use super::objects::BridgePolicy;
use super::ranges::{DEFAULT, DeletionEffect, ServiceCidr, fate, is_assignable};
use super::settings::Settings;
use super::side::{Side, Sides};
use super::step::{Missing, Stage, Step};
use engine::decision::{Decision, Wait, WaitReason};
use engine::evict::PodName;
use engine::owner::Owner;
use engine::sourced::Sourced;

const RANGES: Sides<&str> = Sides {
    old: "10.96.0.0/16",
    new: "172.30.0.0/16",
};
/// Addresses of the Service that moves from the start.
const ADDRESSES: Sides<&str> = Sides {
    old: "10.96.0.1",
    new: "172.30.0.1",
};
/// Addresses of a late Service.
const LATE: Sides<&str> = Sides {
    old: "10.96.7.9",
    new: "172.30.7.9",
};
/// The address of a load balancer.
const KEPT: &str = "10.96.3.9";

/// An existing `ServiceCIDR`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Range {
    ranges: Vec<IpNet>,
    ready: bool,
    terminating: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct World {
    goal: Side,
    ranges: BTreeMap<String, Range>,
    /// The side of the Service's address, and whether a helper has the other address.
    service: (Side, bool),
    /// The same for the late Service, if there is one.
    late: Option<(Side, bool)>,
    has_load_balancer: bool,
    /// The side of the API servers' flag, and of objects that contain addresses.
    flag: Side,
    said: Side,
    /// Whether an object of a tenant contains addresses of both sides.
    tenant_says: bool,
    /// The side of the addresses that a pod has received when it started.
    told: Side,
    soaked: bool,
    done: bool,
}

fn ranges(text: &str) -> Vec<IpNet> {
    vec![text.parse().unwrap()]
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn waits(message: &str) -> Wait {
    Wait {
        reason: WaitReason::ConfigurationFollowUp,
        message: message.to_owned(),
        until: None,
    }
}

static SETTINGS: LazyLock<Settings> = LazyLock::new(settings);

fn settings() -> Settings {
    fn sourced<T: Clone>(value: T) -> Sourced<T> {
        Sourced::choose(Some(value.clone()), None, value)
    }
    Settings {
        from: sourced(ranges(RANGES.old)),
        to: sourced(ranges(RANGES.new)),
        domain: sourced("cluster.local".to_owned()),
        bridge_policy: sourced(BridgePolicy::Local),
    }
}

impl World {
    fn start(has_load_balancer: bool, has_late: bool, tenant_says: bool) -> Self {
        let default = Range {
            ranges: ranges(RANGES.old),
            ready: true,
            terminating: false,
        };
        Self {
            goal: Side::New,
            ranges: BTreeMap::from([(DEFAULT.to_owned(), default)]),
            service: (Side::Old, false),
            late: has_late.then_some((Side::Old, false)),
            has_load_balancer,
            flag: Side::Old,
            said: Side::Old,
            tenant_says,
            told: Side::Old,
            soaked: false,
            done: false,
        }
    }

    fn cidrs(&self) -> Vec<ServiceCidr> {
        self.ranges
            .iter()
            .map(|(name, range)| ServiceCidr {
                name: name.clone(),
                ranges: range.ranges.clone(),
                ready: range.ready && !range.terminating,
                terminating: range.terminating,
            })
            .collect()
    }

    fn kept(&self) -> Kept {
        let is_left = self.goal == Side::New;
        let kept = (self.has_load_balancer && is_left).then(|| address(KEPT));
        Kept::of(kept.into_iter().collect())
    }

    /// Addresses in use.
    fn held(&self) -> Vec<IpAddr> {
        let both = [(Some(self.service), ADDRESSES), (self.late, LATE)].into_iter();
        let of_services = both.filter_map(|(place, addresses)| Some((place?, addresses)));
        let of_services = of_services.flat_map(|((side, shadow), addresses)| {
            let other = shadow.then(|| address(addresses.of(side.other())));
            [Some(address(addresses.of(side))), other].into_iter().flatten()
        });
        let kept = self.has_load_balancer.then(|| address(KEPT));
        of_services.chain(kept).collect()
    }

    /// Objects that contain source addresses.
    fn says(&self) -> AddressUses {
        static CHANGED: LazyLock<Sides<Vec<IpNet>>> = LazyLock::new(|| SETTINGS.changed());
        let mention = |owner: Owner, range: &str| Mention {
            object: "an object".to_owned(),
            owner,
            addresses: ranges(range),
            more: 0,
            fix: String::new(),
        };
        let of_the_cluster = mention(Owner::Cluster, RANGES.of(self.said));
        let of_a_tenant = |side| mention(Owner::Tenant("shop".to_owned()), RANGES.of(side));
        let of_tenants = Side::ALL
            .into_iter()
            .filter(|_| self.tenant_says)
            .map(of_a_tenant);
        let all: Vec<Mention> = of_tenants.chain([of_the_cluster]).collect();
        AddressUses::of(&all, &CHANGED, self.goal)
    }

    /// Why the source addresses are not released yet.
    fn soaks(&self, said: &AddressUses) -> Option<Wait> {
        let is_over = self.soaked && self.said == self.goal && self.told == self.goal;
        match (is_over, said.release.is_empty()) {
            (false, _) => Some(waits("soak")),
            (true, false) => Some(waits("the tenant")),
            (true, true) => None,
        }
    }

    fn next(&self) -> Next {
        let said = self.says();
        let soak = self.soaks(&said);
        let service = |name: &str, (side, shadow): (Side, bool)| ServiceView {
            name: name.to_owned(),
            turn: Turn::Kubernetes,
            has_target_address: side == self.goal,
            is_rolled_back: false,
            has_no_address: false,
            is_slow: false,
            is_late: false,
            uncovered: Vec::new(),
            is_served: true,
            decision: Some(match (side == self.goal, shadow) {
                (false, _) => Decision::Run(exchange::Step::Swap),
                (true, true) if soak.is_none() => {
                    Decision::Run(exchange::Step::Remove(Role::Address(self.goal.other())))
                }
                (true, _) => Decision::Settled,
            }),
        };
        let late = |place: (Side, bool)| {
            let found = service("shop/late", place);
            let source = address(LATE.of(self.goal.other()));
            // After a reversal the changes may take until the end of the rollback.
            let is_late = self.goal == Side::New;
            if found.has_target_address || !is_late || is_assignable(&source, &self.cidrs()) {
                return ServiceView {
                    is_late,
                    turn: Turn::Other,
                    ..found
                };
            }
            ServiceView {
                is_late,
                turn: Turn::Other,
                uncovered: vec![source],
                decision: Some(Decision::Wait(waits("the cover"))),
                ..found
            }
        };
        let services: Vec<ServiceView> = [
            Some(service("default/kubernetes", self.service)),
            self.late.map(late),
        ]
        .into_iter()
        .flatten()
        .collect();
        let pod = PodName {
            namespace: "shop".to_owned(),
            name: "web-1".to_owned(),
            uid: "1".to_owned(),
        };
        let view = View {
            goal: self.goal,
            settings: &SETTINGS,
            ranges: &self.cidrs(),
            api_servers: (self.flag != self.goal).then(|| waits("the flag")),
            services: &services,
            without_address: &[],
            kept: &self.kept(),
            addresses: &self.held(),
            follow_up: (!said.follow_up.is_empty()).then(|| waits("clusterDNS")),
            pods_with_old_addresses: (self.told != self.goal).then(|| Missing::Evict(vec![pod])),
            soak: soak.clone(),
        };
        let policy = Policy {
            services_at_once: 1,
            hold: None,
        };
        decide(&view, &policy)
    }

    /// Performs a step, as the API server would.
    fn make(&mut self, step: Step) {
        match step {
            Step::CreateRange(name, ranges) => {
                assert!(!self.ranges.contains_key(&name), "{name} in {self:?}");
                let range = Range {
                    ranges,
                    ready: false,
                    terminating: false,
                };
                self.ranges.insert(name, range);
            }
            Step::DeleteRange(name) => self.ranges.get_mut(&name).unwrap().terminating = true,
            Step::Exchange(steps) => {
                for (name, step) in steps {
                    let is_late = name == "shop/late";
                    let (goal, cidrs) = (self.goal, self.cidrs());
                    let world = format!("{self:?}");
                    let place = if is_late {
                        self.late.as_mut().unwrap()
                    } else {
                        &mut self.service
                    };
                    match step {
                        exchange::Step::Swap => {
                            let addresses = if is_late { LATE } else { ADDRESSES };
                            // An address of a helper is also released and assigned again.
                            for side in Side::ALL {
                                let asked = address(addresses.of(side));
                                assert!(is_assignable(&asked, &cidrs), "{asked}: {world}");
                            }
                            *place = (goal, true);
                        }
                        exchange::Step::Remove(_) => place.1 = false,
                        other => panic!("{other:?}"),
                    }
                }
            }
            Step::Evict(_) => {
                // The replacement pod receives the current addresses.
                self.told = self.service.0;
            }
            Step::Complete => self.done = true,
        }
    }

    /// The next reactions of the cluster and of the user to this decision.
    fn reactions(&self, decision: &Decision<Step>) -> Vec<Self> {
        let mut worlds = Vec::new();
        let mut with = |change: &dyn Fn(&mut Self)| {
            let mut world = self.clone();
            change(&mut world);
            if world != *self {
                worlds.push(world);
            }
        };
        let cidrs = self.cidrs();
        for cidr in &cidrs {
            let name = cidr.name.clone();
            if cidr.terminating && fate(cidr, &cidrs, &self.held()) == DeletionEffect::Goes {
                with(&|world| {
                    world.ranges.remove(&name);
                });
            } else if !cidr.terminating {
                with(&|world| world.ranges.get_mut(&name).unwrap().ready = true);
            }
        }
        if !self.ranges.contains_key(DEFAULT) {
            with(&|world| {
                let range = Range {
                    ranges: ranges(RANGES.of(world.flag)),
                    ready: false,
                    terminating: false,
                };
                world.ranges.insert(DEFAULT.to_owned(), range);
            });
        }
        if let Decision::Wait(wait) = decision {
            match wait.message.as_str() {
                "the flag" => with(&|world| world.flag = world.goal),
                "clusterDNS" => with(&|world| world.said = world.goal),
                "soak" => with(&|world| world.soaked = true),
                "the tenant" => {
                    // All pods have received new addresses by then, and a rollback does not wait for tenants.
                    assert!(self.goal == Side::New && self.told == Side::New, "{self:?}");
                    with(&|world| world.tenant_says = false);
                }
                _ => {}
            }
        }
        worlds
    }

    fn turned(&self) -> Self {
        Self {
            goal: self.goal.other(),
            soaked: false,
            ..self.clone()
        }
    }

    /// Asserts that every address in use is within a range: otherwise it could be assigned twice.
    fn is_safe(&self) {
        let cidrs = self.cidrs();
        for address in self.held() {
            let held = cidrs.iter().any(|cidr| {
                cidr.ranges
                    .iter()
                    .any(|range| super::covers::contains(range, &address))
            });
            assert!(held, "{address} is in no range: {self:?}");
        }
    }
}

/// Asserts that the migration has completed.
fn assert_arrived(world: &World) {
    assert_eq!(world.service, (world.goal, false), "{world:?}");
    let late = world.late.map(|_| (world.goal, false));
    assert_eq!(world.late, late, "{world:?}");
    assert_eq!(world.ranges[DEFAULT].ranges, ranges(RANGES.of(world.goal)));
    let giving: Vec<&String> = world
        .ranges
        .iter()
        .filter(|(_, range)| !range.terminating)
        .map(|(name, _)| name)
        .collect();
    assert_eq!(giving, [DEFAULT], "{world:?}");
    if !world.has_load_balancer {
        assert_eq!(world.ranges.len(), 1, "{world:?}");
    }
}

/// What a walk has seen.
#[derive(Default)]
struct Seen {
    stages: BTreeSet<Stage>,
    has_cover: bool,
}

/// The states after a state: first the one after the step, or after the first reaction that the migration waits for.
fn follows(world: &World, seen: &mut Seen) -> Follows<World> {
    world.is_safe();
    let next = world.next();
    seen.stages.insert(next.stage);
    let reactions = world.reactions(&next.decision);
    if world.done {
        assert_arrived(world);
        return Follows::own(reactions);
    }
    let mut own = Vec::new();
    match next.decision {
        Decision::Run(step) => {
            seen.has_cover |= step.name() == "CreateCover";
            let mut made = world.clone();
            made.make(step);
            own.push(made);
        }
        Decision::Wait(wait) => assert!(
            !reactions.is_empty(),
            "endless wait: {} in {world:?}",
            wait.message
        ),
        Decision::Settled => panic!("settled before the end: {world:?}"),
        Decision::Halt(halt) => panic!("{}: {world:?}", halt.message),
    }
    own.extend(reactions);
    let mut others = vec![world.turned()];
    if !next.helper_updates.is_empty() {
        let mut made = world.clone();
        made.make(Step::Exchange(next.helper_updates));
        others.push(made);
    }
    Follows { own, others }
}

#[test]
fn every_reachable_state_is_safe_and_completes() {
    // One of these at a time: all combinations would be too many states.
    for (has_load_balancer, has_late, tenant_says) in
        [(false, false, true), (true, false, false), (false, true, false)]
    {
        let start = World::start(has_load_balancer, has_late, tenant_says);
        let mut seen = Seen::default();
        let states = explore::states([start], |world| follows(world, &mut seen));
        states.assert_each_arrives(80, |world| world.done);
        states.assert_more_than(1000);
        let ends: BTreeSet<(Side, bool)> = states
            .iter()
            .filter(|world| world.done)
            .map(|world| (world.goal, world.tenant_says))
            .collect();
        // Only forward the tenant had to change its object.
        let expected = [(Side::Old, tenant_says), (Side::Old, false), (Side::New, false)];
        assert_eq!(ends, expected.into());
        assert_eq!(
            seen.stages,
            Stage::ALL.iter().copied().collect(),
            "stages reached"
        );
        assert_eq!(seen.has_cover, has_load_balancer || has_late);
    }
}
