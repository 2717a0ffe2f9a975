//! Explores every state of a change of the pod range, by every step, every reaction of the cluster, every command of the
//! operator and every change of the pools by other programs: no unsafe step is ever decided, and from every state the migration
//! completes by its own steps and the reactions of the cluster.

use std::collections::BTreeMap;

use explore::Follows;
use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};
use rstest::rstest;
use serde_json::{Value, json};

use super::by_node::{self, Cordon};
use super::decide::{Policy, PoolRole, PoolView, Step, View, decide};
use super::hardcoded_range::{self, Needs, RangeUse};
use super::movers;
use super::pools::{self, NO_NODE, Openness};
use engine::decision::{Decision, Direction, Wait, WaitReason};
use engine::drain::{Permissions, Pod};
use engine::evict::PodName;
use engine::moves::{self, Health, Resident, Role, Workload};
use engine::owner::Owner;

/// The two pods of the Deployment.
const HEALTH: Health = Health {
    stalled: false,
    wanted: 2,
    unready_before_start: 0,
    at_once: 1,
};
/// The nodes, in rollout order.
const NODES: [&str; 2] = ["a", "b"];
const OLD: &str = "10.244.0.0/16";
const NEW: &str = "10.200.0.0/16";
const SOAK: SignedDuration = SignedDuration::from_secs(3600);

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

/// The pool of a pod's address, and the state of the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Life {
    Ready(PoolRole),
    Terminates(PoolRole),
    /// Its replacement is not created, or waits for an address.
    Gone,
    Starts(PoolRole),
}

fn policy() -> Policy {
    Policy {
        moves: moves::Policy {
            pods_at_once: 10,
            permissions: Permissions::default(),
            delete_bare_pods: false,
        },
        nodes_at_once: 1,
        soak: SOAK,
        hold: None,
    }
}

impl Life {
    fn range(self) -> Option<PoolRole> {
        match self {
            Self::Ready(which) | Self::Terminates(which) | Self::Starts(which) => Some(which),
            Self::Gone => None,
        }
    }
}

/// How long no address of the source range has been in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Empty {
    No,
    Once,
    Twice,
    Soaked,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
struct World {
    direction: Direction,
    old: Openness,
    new: Openness,
    /// The first pod is on the first node, the second pod on the second node.
    pods: [Life; 2],
    /// Which nodes are cordoned by the migration; `None` in mode `ByWorkload`.
    cordons: Option<[bool; 2]>,
    /// Whether Calico's IPAM has a block of the range.
    old_block: bool,
    new_block: bool,
    /// Whether an address of the source range is leaked.
    leak: bool,
    probed: bool,
    /// Whether all configuration allows both ranges.
    widened: bool,
    followed: bool,
    /// The range with addresses that agents keep on their hosts.
    kept: Option<PoolRole>,
    empty: Empty,
    /// Whether hosts have routes into the source range.
    routes: bool,
    done: bool,
}

fn spec(base: &Value, openness: Openness) -> Option<Value> {
    match openness {
        Openness::Absent => None,
        Openness::AllPods => Some(base.clone()),
        Openness::Closed | Openness::OptIn => {
            let mut spec = base.clone();
            spec["disabled"] = (openness == Openness::Closed).into();
            spec["nodeSelector"] = NO_NODE.into();
            Some(spec)
        }
        Openness::Narrowed => {
            let mut spec = base.clone();
            let change =
                pools::patch_narrowed(base, "all()", "old", 0).expect("an open pool is not narrowed");
            spec["nodeSelector"] = change["nodeSelector"].clone();
            Some(spec)
        }
    }
}

fn some<T>(there: bool, what: T) -> Vec<T> {
    there.then_some(what).into_iter().collect()
}

fn number(pod: &PodName) -> usize {
    pod.name.trim_start_matches("web-").parse().unwrap()
}

impl World {
    const START: Self = Self {
        direction: Direction::Forward,
        old: Openness::AllPods,
        new: Openness::Absent,
        pods: [Life::Ready(PoolRole::Old); 2],
        cordons: None,
        old_block: true,
        new_block: false,
        leak: false,
        probed: false,
        widened: false,
        followed: false,
        kept: None,
        empty: Empty::No,
        routes: true,
        done: false,
    };

    fn target(&self) -> PoolRole {
        match self.direction {
            Direction::Forward => PoolRole::New,
            Direction::Rollback => PoolRole::Old,
        }
    }

    /// The source pool.
    fn source(&self) -> PoolRole {
        match self.direction {
            Direction::Forward => PoolRole::Old,
            Direction::Rollback => PoolRole::New,
        }
    }

    fn openness(&self, which: PoolRole) -> Openness {
        match which {
            PoolRole::Old => self.old,
            PoolRole::New => self.new,
        }
    }

    fn block(&mut self, which: PoolRole) -> &mut bool {
        match which {
            PoolRole::Old => &mut self.old_block,
            PoolRole::New => &mut self.new_block,
        }
    }

    fn has(&self, which: PoolRole) -> bool {
        self.pods.iter().any(|life| life.range() == Some(which))
    }

    fn pods(&self) -> Vec<Pod> {
        let pods = self.pods.iter().enumerate().filter_map(|(number, life)| {
            let address = match life.range()? {
                PoolRole::Old => "10.244.0.7",
                PoolRole::New => "10.200.0.7",
            };
            Some(Pod {
                namespace: "default".to_owned(),
                name: format!("web-{number}"),
                node: NODES[number].to_owned(),
                uid: format!("{number}-{life:?}"),
                controller: Some(("ReplicaSet".to_owned(), "web".to_owned())),
                ready: matches!(life, Life::Ready(_)),
                deleted_at: matches!(life, Life::Terminates(_)).then(|| at(0)),
                addresses: vec![address.parse().unwrap()],
                ..Pod::default()
            })
        });
        pods.collect()
    }

    fn empty_since(&self) -> Option<Timestamp> {
        match self.empty {
            Empty::No => None,
            Empty::Once => Some(at(0)),
            Empty::Twice => Some(at(-60)),
            Empty::Soaked => Some(at(-7200)),
        }
    }

    /// The decision in this state.
    fn decide(&self) -> Decision<Step> {
        let workload = Workload {
            kind: "Deployment".to_owned(),
            namespace: "default".to_owned(),
            name: "web".to_owned(),
        };
        let pods = self.pods();
        let residents: Vec<Resident<'_>> = pods
            .iter()
            .map(|pod| Resident {
                pod,
                workload: Some(&workload),
                role: Role::Any,
                created_after_close: false,
            })
            .collect();
        let health = BTreeMap::from([(workload.clone(), HEALTH)]);
        let ranges: [IpNet; 2] = [OLD.parse().unwrap(), NEW.parse().unwrap()];
        let open = json!({ "cidr": OLD, "vxlanMode": "Always", "natOutgoing": true });
        let wanted = pools::wanted(&open, &ranges[1], 26);
        let specs = [spec(&open, self.old), spec(&wanted, self.new)];
        let blocks = [some(self.old_block, ranges[0]), some(self.new_block, ranges[1])];
        let leaks = some(self.leak, "handle k8s-pod-network.1".to_owned());
        let routes = some(self.routes, "node a".to_owned());
        let target = match self.target() {
            PoolRole::Old => &ranges[..1],
            PoolRole::New => &ranges[1..],
        };
        let mentions = self.mentions(ranges);
        let source_range = ranges[usize::from(self.source() == PoolRole::New)];
        let pool = |which, index: usize| PoolView {
            which,
            name: "pool",
            range: ranges[index],
            spec: specs[index].as_ref(),
            terminating: false,
            blocks: &blocks[index],
            holders: if which == self.source() { &leaks } else { &[] },
            empty_since: self.empty_since(),
            routes: &routes,
        };
        let view = View {
            direction: self.direction,
            old: pool(PoolRole::Old, 0),
            new: pool(PoolRole::New, 1),
            wanted: &wanted,
            widen: &hardcoded_range::widen(&mentions, &source_range, &target[0]),
            tunnel_changes: None,
            kept_in_source: self.is_kept(self.source()),
            kept_in_target: self.is_kept(self.target()),
            unknown_former_addresses: None,
            unclear_pool: None,
            former_addresses_to_allocate: &[],
            to_release: &[],
            switched: None,
            canary: (!self.probed).then(|| Wait {
                reason: WaitReason::ProbePending,
                message: String::new(),
                until: None,
            }),
            redundancy: None,
            follow_up: &hardcoded_range::follow_up(&mentions, &ranges[0], &ranges[1]),
            rolling: None,
            moves: moves::View {
                residents: &residents,
                movers: movers::out_of(target),
                budgets: &[],
                refusals: &BTreeMap::new(),
                workloads: &health,
                only: None,
            },
            nodes: None,
        };
        let nodes = self.nodes();
        let view = View {
            nodes: nodes.as_ref().map(<[_; 2]>::as_slice),
            ..view
        };
        decide(&view, &policy(), at(10)).decision
    }

    /// The Nodes, in mode `ByNode`.
    fn nodes(&self) -> Option<[by_node::Node<'static>; 2]> {
        self.cordons.map(|cordons| {
            [0, 1].map(|number| by_node::Node {
                name: NODES[number],
                ready: true,
                cordon: [Cordon::None, Cordon::Ours][usize::from(cordons[number])],
                takes_pods: !cordons[number],
                remaining_routes: None,
            })
        })
    }

    /// Objects that contain ranges: the user changes those of the cluster; those of tenants keep one of the two ranges.
    fn mentions(&self, ranges: [IpNet; 2]) -> [RangeUse; 4] {
        let mention = |owner: Owner, ranges: &[IpNet], needs| RangeUse {
            object: "an object".to_owned(),
            owner,
            ranges: ranges.to_vec(),
            more: 0,
            needs,
            fix: String::new(),
            is_of_kube_proxy: false,
        };
        let tenant = || Owner::Tenant("shop".to_owned());
        let known = match (self.widened, self.source()) {
            (true, _) => &ranges[..],
            (false, PoolRole::Old) => &ranges[..1],
            (false, PoolRole::New) => &ranges[1..],
        };
        [
            mention(Owner::Cluster, known, Needs::Both),
            mention(
                Owner::Cluster,
                &ranges[usize::from(self.followed)..][..1],
                Needs::New,
            ),
            mention(tenant(), &ranges[..1], Needs::BothThenNew),
            mention(tenant(), &ranges[1..], Needs::BothThenNew),
        ]
    }

    fn is_kept(&self, which: PoolRole) -> Option<Wait> {
        (self.kept == Some(which)).then(|| Wait {
            reason: WaitReason::AgentWorking,
            message: String::new(),
            until: None,
        })
    }

    /// Asserts that the step is safe in this state.
    fn assert_safe(&self, step: &Step) {
        if let Step::Open(which, Openness::AllPods) = step {
            let is_open = |which| self.openness(which) == Openness::AllPods;
            let is_only = !is_open(PoolRole::Old) && !is_open(PoolRole::New);
            assert!(
                is_only || self.widened,
                "opened while configuration does not allow both ranges: {self:?}"
            );
            assert!(
                is_only || self.kept != Some(*which),
                "opened while a host keeps addresses of it: {self:?}"
            );
        }
        match step {
            Step::Open(PoolRole::New, Openness::AllPods) => assert!(
                self.probed || self.old == Openness::Absent,
                "opened without a successful canary: {self:?}"
            ),
            Step::Open(which, Openness::Closed) => {
                let other = match which {
                    PoolRole::Old => PoolRole::New,
                    PoolRole::New => PoolRole::Old,
                };
                let other = self.openness(other);
                assert_eq!(other, Openness::AllPods, "no pod would get an address: {self:?}");
                assert!(
                    *which == PoolRole::New || self.probed,
                    "closed without a successful canary of the other pool: {self:?}"
                );
            }
            Step::Evict(pods) => self.assert_evicts(pods),
            Step::ReleaseBlocks(_) | Step::DeletePool(_) => self.assert_deletes(step),
            Step::Cordon(_) => {
                assert_eq!(self.cordons, Some([false; 2]), "two nodes at once: {self:?}");
            }
            Step::Uncordon(node) => {
                let number = NODES.iter().position(|name| name == node).unwrap();
                assert_ne!(
                    self.pods[number].range(),
                    Some(self.source()),
                    "uncordoned before its pod has moved: {self:?}"
                );
            }
            Step::Complete => {
                assert!(
                    self.cordons.is_none_or(|cordons| cordons == [false; 2]),
                    "complete, with a cordon: {self:?}"
                );
                let source = self.source();
                assert_eq!(self.openness(source), Openness::Absent, "{self:?}");
                assert_eq!(self.openness(self.target()), Openness::AllPods, "{self:?}");
                assert!(!self.has(source) && !*self.clone().block(source), "{self:?}");
                assert!(!self.routes, "complete, with routes: {self:?}");
            }
            Step::CreatePool
            | Step::Scale(..)
            | Step::Narrow(..)
            | Step::RemoveNodes(..)
            | Step::RestartCalicoNode(_)
            | Step::HoldEnds(_)
            | Step::ReleaseEnds(_)
            | Step::Open(_, Openness::AllPods | Openness::Narrowed | Openness::OptIn | Openness::Absent) => {}
        }
    }

    /// Asserts that blocks or the pool of the source may be deleted.
    fn assert_deletes(&self, step: &Step) {
        assert!(
            !self.has(self.source()),
            "{step:?} while pods use the range: {self:?}"
        );
        assert!(!self.leak, "{step:?} with a leak: {self:?}");
        assert!(
            self.empty >= Empty::Twice,
            "{step:?} after one observation: {self:?}"
        );
        assert!(
            self.kept != Some(self.source()) || !*self.clone().block(self.source()),
            "{step:?} while a host keeps addresses of them: {self:?}"
        );
        assert!(
            self.source() == PoolRole::New || self.followed,
            "{step:?} while configuration contains the range: {self:?}"
        );
        if let Step::DeletePool(which) = step {
            assert_eq!(*which, self.source(), "{self:?}");
            assert!(!*self.clone().block(*which), "deleted with blocks: {self:?}");
            assert!(
                *which == PoolRole::New || self.empty == Empty::Soaked,
                "deleted too early: {self:?}"
            );
        }
    }

    fn assert_evicts(&self, pods: &[PodName]) {
        let target = self.openness(self.target());
        assert_eq!(
            target,
            Openness::AllPods,
            "the replacement would get an address of the same range: {self:?}"
        );
        let is_ready = |life: &&Life| matches!(life, Life::Ready(_));
        let is_cordoned = |pod: &PodName| self.cordons.is_none_or(|cordons| cordons[number(pod)]);
        assert!(pods.iter().all(is_cordoned), "its node is not cordoned: {self:?}");
        let lacking = self.pods.iter().filter(|life| !is_ready(life)).count();
        let of_ready = pods.iter().any(|pod| is_ready(&&self.pods[number(pod)]));
        assert!(
            !of_ready || (lacking == 0 && pods.len() == 1),
            "two pods of the workload would be unavailable: {self:?}"
        );
    }

    fn after(mut self, step: &Step) -> Self {
        match step {
            Step::CreatePool => self.new = Openness::Closed,
            Step::Scale(..)
            | Step::Narrow(..)
            | Step::RemoveNodes(..)
            | Step::RestartCalicoNode(_)
            | Step::HoldEnds(_)
            | Step::ReleaseEnds(_) => {}
            Step::Open(PoolRole::Old, openness) => self.old = *openness,
            Step::Open(PoolRole::New, openness) => self.new = *openness,
            Step::Evict(pods) => {
                for pod in pods {
                    let life = &mut self.pods[number(pod)];
                    *life = life.range().map_or(Life::Gone, Life::Terminates);
                }
            }
            Step::Cordon(node) | Step::Uncordon(node) => {
                let number = NODES.iter().position(|name| name == node).unwrap();
                if let Some(cordons) = &mut self.cordons {
                    cordons[number] = matches!(step, Step::Cordon(_));
                }
            }
            Step::ReleaseBlocks(ranges) if ranges[0].to_string() == OLD => self.old_block = false,
            Step::ReleaseBlocks(_) => self.new_block = false,
            Step::DeletePool(PoolRole::Old) => self.old = Openness::Absent,
            Step::DeletePool(PoolRole::New) => self.new = Openness::Absent,
            Step::Complete => self.done = true,
        }
        self
    }

    fn changed(&self, changes: &[&dyn Fn(&mut Self)]) -> Vec<Self> {
        let mut worlds: Vec<Self> = changes
            .iter()
            .map(|change| {
                let mut world = *self;
                change(&mut world);
                world
            })
            .collect();
        worlds.retain(|world| world != self);
        worlds
    }

    /// The reactions of the cluster, and of the user to a wait.
    fn reactions(&self) -> Vec<Self> {
        let open = [self.target(), self.source()]
            .into_iter()
            .find(|which| self.openness(*which) == Openness::AllPods);
        let mut worlds = Vec::new();
        for number in 0..self.pods.len() {
            worlds.extend(self.changed(&[&|world| {
                let life = &mut world.pods[number];
                match (*life, open) {
                    (Life::Terminates(_), _) => *life = Life::Gone,
                    (Life::Starts(which), _) => *life = Life::Ready(which),
                    (Life::Gone, Some(which)) => {
                        *life = Life::Starts(which);
                        *world.block(which) = true;
                    }
                    (Life::Ready(_), _) | (Life::Gone, None) => {}
                }
            }]));
        }
        let is_in_use = self.has(self.source()) || self.leak;
        worlds.extend(self.changed(&[
            &|world| {
                if world.new >= Openness::OptIn {
                    world.probed = true;
                    world.new_block = true;
                }
            },
            &|world| {
                if world.leak {
                    world.leak = false;
                    world.empty = Empty::No;
                }
            },
            &|world| world.followed = true,
            &|world| world.widened = true,
            // The agents are told to release the addresses at this moment only.
            &|world| world.kept = None,
            &|world| {
                let source = world.source();
                world.routes =
                    world.routes && (world.openness(source) != Openness::Absent || *world.block(source));
            },
            &|world| {
                world.empty = match (is_in_use, world.empty) {
                    (true, _) => Empty::No,
                    (false, Empty::No) => Empty::Once,
                    (false, Empty::Once) => Empty::Twice,
                    (false, Empty::Twice | Empty::Soaked) => Empty::Soaked,
                };
            },
        ]));
        worlds
    }

    /// Changes by the operator and by other programs, at any moment.
    fn surprises(&self) -> Vec<Self> {
        let mut worlds = self.changed(&[
            // The operator reverses the direction.
            &|world| {
                world.direction = match world.direction {
                    Direction::Forward => Direction::Rollback,
                    Direction::Rollback => Direction::Forward,
                };
                world.empty = Empty::No;
                world.probed = false;
                world.leak = false;
                world.routes = true;
            },
            // One of these at a time, and none in mode `ByNode`, where they have the same effect: all
            // combinations would be too many states.
            &|world| {
                if world.widened && !world.leak && world.cordons.is_none() {
                    world.kept = Some(world.source());
                }
            },
            &|world| {
                world.widened = world.kept.is_some() || world.leak || world.cordons.is_some();
            },
            // The sandbox of a pod is deleted and its address leaks, however long the range was empty before.
            &|world| world.leak = world.leak || (world.kept.is_none() && world.widened),
            &|world| world.old = open_or(world.old, Openness::Closed),
            &|world| world.old = open_or(world.old, Openness::Absent),
            &|world| world.old = open_or(world.old, Openness::AllPods),
            &|world| world.old = open_or(world.old, Openness::Narrowed),
            &|world| world.new = open_or(world.new, Openness::Narrowed),
            &|world| world.new = open_or(world.new, Openness::Closed),
            &|world| world.new = open_or(world.new, Openness::Absent),
            &|world| world.new = open_or(world.new, Openness::AllPods),
        ]);
        // The owner of a pod replaces it.
        for number in 0..self.pods.len() {
            worlds.extend(self.changed(&[&|world| {
                if let Life::Ready(which) = world.pods[number] {
                    world.pods[number] = Life::Terminates(which);
                }
            }]));
        }
        // A range with a pod is never observed as empty.
        for world in &mut worlds {
            if world.has(world.source()) {
                world.empty = Empty::No;
            }
        }
        worlds
    }

    /// Whether the migration has halted: the target pool cannot be opened any more.
    fn is_halted(&self) -> bool {
        match self.direction {
            Direction::Forward => (self.old, self.new) == (Openness::Absent, Openness::Absent),
            Direction::Rollback => self.old == Openness::Absent,
        }
    }
}

/// The changed openness, unless the pool does not exist.
fn open_or(current: Openness, changed: Openness) -> Openness {
    if current == Openness::Absent {
        current
    } else {
        changed
    }
}

/// The states after a state: by the step and the reactions of the cluster, and by other changes.
fn follows(world: &World) -> Follows<World> {
    if world.done {
        return Follows::own([]);
    }
    let mut own = Vec::new();
    match world.decide() {
        Decision::Run(step) => {
            world.assert_safe(&step);
            let after = world.after(&step);
            assert_ne!(after, *world, "{step:?} changes nothing");
            own.push(after);
        }
        Decision::Wait(_) => {}
        Decision::Halt(_) => assert!(world.is_halted(), "halted: {world:?}"),
        Decision::Settled => panic!("{world:?}"),
    }
    own.extend(world.reactions());
    Follows {
        own,
        others: world.surprises(),
    }
}

#[rstest]
#[case::workload_by_workload(None)]
#[case::node_by_node(Some([false; 2]))]
fn every_reachable_state_is_safe_and_completes(#[case] cordons: Option<[bool; 2]>) {
    let start = World {
        cordons,
        widened: cordons.is_some(),
        ..World::START
    };
    let states = explore::states([start], follows);
    states.assert_more_than(10_000);
    // No step reverses the direction: each direction has its own end.
    for world in states.stuck(|world| world.done) {
        assert!(world.is_halted(), "no way to completion: {world:?}");
    }
}
