//! The next step of the whole migration. Level-triggered, as a node's is: the same facts give the same step, whatever was
//! decided before, so that a restart or a crash changes nothing.
//!
//! There and back are the same way between two pools: one is opened, the other one closed, pods move, what was left is seen to
//! be empty, and goes. At no moment is no pool open: a pod that is made then would get no address.

use std::collections::BTreeMap;

use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::by_node;
use super::pools::{self, Openness};
use super::tunnel::Held;
use engine::decision::{Decision, Direction, Halt, HaltReason, Wait, WaitReason};
use engine::evict::{self, PodName};
use engine::moves;

/// Between the two looks that both have to find nothing in the range.
const TWICE: SignedDuration = SignedDuration::from_secs(30);

/// `Stage` is the stage of a change of the pod range. Stages are ordered. The name is also a metric label and the reason of an
/// Event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Stage {
    /// The user allows both ranges in all configuration that names the old one.
    Widen,
    /// The new IPPool is created, disabled.
    CreatePool,
    /// The new IPPool is opened to pods that name it, and all paths between both ranges are tested.
    Canary,
    /// Name servers and admission webhooks with a single pod are scaled up.
    Redundancy,
    /// The target IPPool is opened to all pods, then the source IPPool is closed.
    Switch,
    /// Pods move, one wave after the other.
    Move,
    /// Two observations find no address of the source range in use.
    Verify,
    /// The user replaces the old range in all configuration.
    FollowUp,
    /// The old IPPool is kept for `soakSeconds`.
    Soak,
    /// The IPAM blocks of the source range are released, then the source IPPool is deleted.
    DeletePool,
    /// Hosts lose their routes to the source range.
    Routes,
    /// Objects that exist only for the duration of the migration are removed.
    CleanUp,
}

impl Stage {
    /// Every stage, in order.
    pub const ALL: [Self; 12] = [
        Self::Widen,
        Self::CreatePool,
        Self::Canary,
        Self::Redundancy,
        Self::Switch,
        Self::Move,
        Self::Verify,
        Self::FollowUp,
        Self::Soak,
        Self::DeletePool,
        Self::Routes,
        Self::CleanUp,
    ];

    /// The stage as it stands in status, metrics and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Widen => "Widen",
            Self::CreatePool => "CreatePool",
            Self::Canary => "Canary",
            Self::Redundancy => "Redundancy",
            Self::Switch => "Switch",
            Self::Move => "Move",
            Self::Verify => "Verify",
            Self::FollowUp => "FollowUp",
            Self::Soak => "Soak",
            Self::DeletePool => "DeletePool",
            Self::Routes => "Routes",
            Self::CleanUp => "CleanUp",
        }
    }
}

/// Which of the two pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Which {
    /// The one that was there before.
    Old,
    /// The one that this migration makes.
    New,
}

impl Which {
    /// The pool that pods leave on this way.
    pub fn left(direction: Direction) -> Self {
        match direction {
            Direction::There => Self::Old,
            Direction::Back => Self::New,
        }
    }

    /// The value of [`pools::OFF_LABEL`] on a Node that was taken off it.
    pub fn mark(self) -> &'static str {
        match self {
            Self::Old => "old",
            Self::New => "new",
        }
    }
}

/// One pool, and what is in its range.
#[derive(Clone, Debug)]
pub struct PoolView<'facts> {
    /// Which.
    pub which: Which,
    /// Its name.
    pub name: &'facts str,
    /// Its range.
    pub range: IpNet,
    /// Its spec, as it is stored; `None` when there is no such pool.
    pub spec: Option<&'facts Value>,
    /// Whether it is being deleted: Calico gives no address of it any more.
    pub terminating: bool,
    /// Blocks of Calico's IPAM in the range, and affinities to some.
    pub blocks: &'facts [IpNet],
    /// Who has an address of the range besides pods that have to move: the object, and what a person does about it.
    pub holders: &'facts [String],
    /// Since when nobody has; `None` while somebody does.
    pub empty_since: Option<Timestamp>,
    /// Routes into the range on hosts, by their agents' words.
    pub routes: &'facts [String],
}

impl PoolView<'_> {
    fn openness(&self) -> Openness {
        match (self.spec.map(Openness::of), self.terminating) {
            (None, _) => Openness::Absent,
            (Some(_), true) => Openness::Closed,
            (Some(openness), false) => openness,
        }
    }
}

/// Everything that the decision depends on.
#[derive(Clone, Debug)]
pub struct View<'facts> {
    /// Where the pods are led.
    pub direction: Direction,
    /// The pool that was there before.
    pub old: PoolView<'facts>,
    /// The pool that this migration makes.
    pub new: PoolView<'facts>,
    /// The spec that the new pool has once it is open.
    pub wanted: &'facts Value,
    /// Who does not know both ranges yet, and who changes it.
    pub widen: &'facts [String],
    /// What is missing until no end of a tunnel is in the range that is left ([`super::ends`]); `None` when none is.
    pub ends: Option<Missing>,
    /// Which agents keep addresses of the range that is left on their hosts, for connections that began before.
    pub kept_in_left: Option<Wait>,
    /// Which agents keep addresses of the range that pods are led to: a pod that got one would not be reached from there.
    pub kept_in_target: Option<Wait>,
    /// Why it is not known which addresses that tunnels had are free in the range that pods are led to; `None` when it is known.
    pub unread: Option<Wait>,
    /// A pool of no known range: whether it is apart from both is not known. On the way there no pool is opened, closed or deleted
    /// meanwhile; on the way back each of the two is as it was before.
    pub strange_pool: Option<Wait>,
    /// Addresses that tunnels had in the range that is led to, which nobody has now.
    pub to_hold: &'facts [Held],
    /// Addresses that Calico's IPAM has as a tunnel's still, in the range that is left, and that the tunnel has no more.
    pub to_release: &'facts [Held],
    /// What is missing until every node's calico-node goes by the pools as they are open now; `None` when it does.
    pub switched: Option<Wait>,
    /// What is missing until the new pool is proved; `None` when pods that name it were reached from every node.
    pub canary: Option<Wait>,
    /// What is missing until what others need has more than one pod; `None` when it has.
    pub redundancy: Option<Missing>,
    /// Who does not say the new range yet, and who changes it.
    pub follow_up: &'facts [String],
    /// Why Calico's own `DaemonSet` is not in one piece, as it is after a change of its environment; `None` when it is.
    pub rolling: Option<Wait>,
    /// The pods, led to the pool that is the target now.
    pub moves: moves::View<'facts>,
    /// Every Node, where pods leave node by node; in the order in which they are worked on.
    pub nodes: Option<&'facts [by_node::Node<'facts>]>,
}

/// What is missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Missing {
    /// This is done about it.
    Step(Step),
    /// This is waited for.
    Answer(Wait),
}

/// Limits and permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Of the moves.
    pub moves: moves::Policy,
    /// How many Nodes may be in work at the same time, where pods leave node by node.
    pub nodes_at_once: usize,
    /// How long the old pool stays, empty and closed.
    pub soak: SignedDuration,
    /// Why nothing is done now: somebody said so, or has to look first.
    pub hold: Option<Wait>,
}

/// One Node that is taken off a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Off {
    /// Its name.
    pub node: String,
    /// What its tunnels get back, by the last part of the annotation's key; Calico chooses where there is none.
    pub ends: BTreeMap<String, Held>,
}

/// One change: idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Make the new pool.
    CreatePool,
    /// Give this Deployment so many pods.
    Scale(String, u32),
    /// Open a pool so far, or close it.
    Open(Which, Openness),
    /// Narrow the pool to Nodes that were not taken off it; the number stands for those that were.
    Narrow(Which, u32),
    /// Take these Nodes off the pool.
    TakeOff(Which, Vec<Off>),
    /// Let this pod of calico-node be made again: an older Calico takes another end for its tunnel at its start alone.
    RestartCalicoNode(PodName),
    /// Give these addresses back to the Nodes whose tunnels had them, before anybody else can get them.
    HoldEnds(Vec<Held>),
    /// Release these addresses, which tunnels had until they got back what they had before.
    ReleaseEnds(Vec<Held>),
    /// Let this Node take no new pods.
    Cordon(String),
    /// Evict these pods.
    Evict(Vec<PodName>),
    /// Let this Node take pods again.
    Uncordon(String),
    /// Release these blocks, which are empty, and their affinities.
    ReleaseBlocks(Vec<IpNet>),
    /// Delete this pool.
    DeletePool(Which),
    /// Put back what was raised, and record that the pods are where they were led.
    Complete,
}

impl Step {
    /// Whether it makes, opens, closes or deletes a pool.
    fn is_of_a_pool(&self) -> bool {
        match self {
            Self::CreatePool | Self::Open(..) | Self::Narrow(..) | Self::DeletePool(_) => true,
            Self::Scale(..)
            | Self::TakeOff(..)
            | Self::RestartCalicoNode(_)
            | Self::HoldEnds(_)
            | Self::ReleaseEnds(_)
            | Self::Cordon(_)
            | Self::Evict(_)
            | Self::Uncordon(_)
            | Self::ReleaseBlocks(_)
            | Self::Complete => false,
        }
    }

    /// The step by name; bounded, without names of objects.
    pub fn name(&self) -> &'static str {
        match self {
            Self::CreatePool => "CreatePool",
            Self::Scale(..) => "Scale",
            Self::Open(Which::Old, Openness::ToEverybody | Openness::Narrowed) => "OpenOldPool",
            Self::Open(Which::New, Openness::ToEverybody | Openness::Narrowed) => "OpenNewPool",
            Self::Open(_, Openness::ToWhoNamesIt) => "OpenNewPoolToCanary",
            Self::Open(Which::Old, Openness::Closed | Openness::Absent) => "CloseOldPool",
            Self::Open(Which::New, Openness::Closed | Openness::Absent) => "CloseNewPool",
            Self::Narrow(..) => "NarrowPool",
            Self::TakeOff(..) => "TakeNodeOff",
            Self::RestartCalicoNode(_) => "RestartCalicoNode",
            Self::HoldEnds(_) => "HoldEnds",
            Self::ReleaseEnds(_) => "ReleaseEnds",
            Self::Cordon(_) => "CordonNode",
            Self::Evict(_) => "Evict",
            Self::Uncordon(_) => "UncordonNode",
            Self::ReleaseBlocks(_) => "ReleaseBlocks",
            Self::DeletePool(Which::Old) => "DeleteOldPool",
            Self::DeletePool(Which::New) => "DeleteNewPool",
            Self::Complete => "Complete",
        }
    }
}

/// Where the migration is, and what comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Next {
    /// Where it is.
    pub stage: Stage,
    /// What comes next.
    pub decision: Decision<Step>,
}

/// Chooses the next step.
pub fn decide(view: &View<'_>, policy: &Policy, now: Timestamp) -> Next {
    let next = match view.direction {
        Direction::There => there(view, policy, now),
        Direction::Back => back(view, policy, now),
    };
    match (&next.decision, &policy.hold) {
        // While no pool is open no pod starts: nobody who stopped the migration meant that.
        (Decision::Run(step), Some(hold)) if !opens_the_only_pool(step, view) => {
            wait(next.stage, hold.clone())
        }
        (Decision::Run(_) | Decision::Wait(_) | Decision::Settled | Decision::Halt(_), _) => {
            beside_a_strange_pool(next, view)
        }
    }
}

fn beside_a_strange_pool(next: Next, view: &View<'_>) -> Next {
    match (&next.decision, &view.strange_pool, view.direction) {
        (Decision::Run(step), Some(strange), Direction::There)
            if step.is_of_a_pool() && !opens_the_only_pool(step, view) =>
        {
            wait(next.stage, strange.clone())
        }
        _ => next,
    }
}

fn opens_the_only_pool(step: &Step, view: &View<'_>) -> bool {
    let is_open = |pool: &PoolView<'_>| pool.openness() == Openness::ToEverybody;
    matches!(step, Step::Open(_, Openness::ToEverybody)) && !is_open(&view.old) && !is_open(&view.new)
}

fn there(view: &View<'_>, policy: &Policy, now: Timestamp) -> Next {
    let (old, new) = (view.old.openness(), view.new.openness());
    match (old, new) {
        (Openness::Absent, Openness::Absent) => halt(
            Stage::Switch,
            format!(
                "IPPool {} and IPPool {} are gone: no pod gets an address. Make {} again",
                view.old.name, view.new.name, view.new.name
            ),
        ),
        // First of all: a pod that is made now has to get an address.
        (Openness::Absent, Openness::Closed | Openness::ToWhoNamesIt | Openness::Narrowed) => {
            run(Stage::Switch, Step::Open(Which::New, Openness::ToEverybody))
        }
        // Before the new one is open to everybody nobody narrows or closes the old one but somebody else, or the way back.
        (
            Openness::Closed | Openness::ToWhoNamesIt | Openness::Narrowed,
            Openness::Absent | Openness::Closed | Openness::ToWhoNamesIt | Openness::Narrowed,
        ) => run(Stage::Switch, Step::Open(Which::Old, Openness::ToEverybody)),
        (Openness::ToEverybody, Openness::Absent) => {
            widened(view, view.new.range).unwrap_or_else(|| run(Stage::CreatePool, Step::CreatePool))
        }
        (Openness::ToEverybody, Openness::Closed) => agrees(view)
            .or_else(|| widened(view, view.new.range))
            .unwrap_or_else(|| run(Stage::Canary, Step::Open(Which::New, Openness::ToWhoNamesIt))),
        (Openness::ToEverybody, Openness::ToWhoNamesIt | Openness::Narrowed) => proved(view)
            .or_else(|| waited(Stage::Switch, view.unread.as_ref()))
            .unwrap_or_else(|| run(Stage::Switch, Step::Open(Which::New, Openness::ToEverybody))),
        // Somebody else may have opened it.
        (Openness::ToEverybody | Openness::Narrowed | Openness::ToWhoNamesIt, Openness::ToEverybody) => {
            proved(view)
                .or_else(|| missing(Stage::Switch, view.ends.as_ref()))
                .unwrap_or_else(|| run(Stage::Switch, Step::Open(Which::Old, Openness::Closed)))
        }
        (Openness::Closed, Openness::ToEverybody) => agrees(view)
            .or_else(|| view.switched.clone().map(|found| wait(Stage::Switch, found)))
            .unwrap_or_else(|| leave(&view.old, view, policy, now)),
        (Openness::Absent, Openness::ToEverybody) => gone(&view.old, view, policy, now),
    }
}

/// The new pool is not as it has to be: living pods of both would not reach each other.
fn agrees(view: &View<'_>) -> Option<Next> {
    let differences = pools::differences(view.new.spec?, view.wanted);
    (!differences.is_empty()).then(|| {
        let message = format!(
            "IPPool {}: {}. Set it back; pods of both pools reach each other only when both say the same",
            view.new.name,
            differences.join(", ")
        );
        halt(Stage::CreatePool, message)
    })
}

fn widened(view: &View<'_>, target: IpNet) -> Option<Next> {
    let first = view.widen.first()?;
    Some(people(
        Stage::Widen,
        format!(
            "{} places have to know both ranges before a pod gets an address of {}; the first: {first}",
            view.widen.len(),
            target
        ),
    ))
}

/// What is missing until everybody may get an address of the new pool.
fn proved(view: &View<'_>) -> Option<Next> {
    agrees(view)
        .or_else(|| widened(view, view.new.range))
        .or_else(|| view.canary.clone().map(|found| wait(Stage::Canary, found)))
        .or_else(|| missing(Stage::Redundancy, view.redundancy.as_ref()))
        .or_else(|| held(view))
        .or_else(|| waited(Stage::Switch, view.kept_in_target.as_ref()))
}

/// Before anybody may get an address of the pool, those that tunnels had are theirs again.
fn held(view: &View<'_>) -> Option<Next> {
    (!view.to_hold.is_empty()).then(|| run(Stage::Switch, Step::HoldEnds(view.to_hold.to_vec())))
}

/// Of tunnels that have got back what they had: Calico does not know that the other address is free.
fn released(view: &View<'_>) -> Option<Next> {
    (!view.to_release.is_empty()).then(|| run(Stage::Verify, Step::ReleaseEnds(view.to_release.to_vec())))
}

fn waited(stage: Stage, found: Option<&Wait>) -> Option<Next> {
    Some(wait(stage, found?.clone()))
}

fn back(view: &View<'_>, policy: &Policy, now: Timestamp) -> Next {
    let (old, new) = (view.old.openness(), view.new.openness());
    match (old, new) {
        (Openness::Absent, _) => halt(
            Stage::Switch,
            format!(
                "IPPool {} is deleted: that was the point of no return. Another migration, from {} to {}, leads the pods back",
                view.old.name, view.new.range, view.old.range
            ),
        ),
        (Openness::Closed | Openness::ToWhoNamesIt | Openness::Narrowed, Openness::ToEverybody) => {
            widened(view, view.old.range)
                .or_else(|| waited(Stage::Switch, view.unread.as_ref()))
                .or_else(|| held(view))
                .or_else(|| waited(Stage::Switch, view.kept_in_target.as_ref()))
                .unwrap_or_else(|| run(Stage::Switch, Step::Open(Which::Old, Openness::ToEverybody)))
        }
        // No pool is open: a pod that is made now has to get an address.
        (Openness::Closed | Openness::ToWhoNamesIt | Openness::Narrowed, _) => {
            run(Stage::Switch, Step::Open(Which::Old, Openness::ToEverybody))
        }
        (Openness::ToEverybody, Openness::ToEverybody | Openness::Narrowed | Openness::ToWhoNamesIt) => {
            held(view)
                .or_else(|| missing(Stage::Switch, view.ends.as_ref()))
                .unwrap_or_else(|| run(Stage::Switch, Step::Open(Which::New, Openness::Closed)))
        }
        (Openness::ToEverybody, Openness::Closed) => match &view.switched {
            Some(found) => wait(Stage::Switch, found.clone()),
            None => leave(&view.new, view, policy, now),
        },
        (Openness::ToEverybody, Openness::Absent) => gone(&view.new, view, policy, now),
    }
}

/// The pool that is left is deleted: by this migration, or by somebody else, who may not have waited for its pods.
fn gone(pool: &PoolView<'_>, view: &View<'_>, policy: &Policy, now: Timestamp) -> Next {
    let open = moved(view, policy, now)
        .or_else(|| released(view))
        .or_else(|| emptied(pool, now))
        .or_else(|| followed(pool, view));
    if let Some(next) = open {
        return next;
    }
    if !pool.blocks.is_empty() {
        if let Some(next) = waited(Stage::DeletePool, view.kept_in_left.as_ref()) {
            return next;
        }
        return run(Stage::DeletePool, Step::ReleaseBlocks(pool.blocks.to_vec()));
    }
    if let Some(first) = pool.routes.first() {
        return leftovers(
            Stage::Routes,
            format!(
                "{} hosts have routes into {}; the first: {first}",
                pool.routes.len(),
                pool.range
            ),
        );
    }
    run(Stage::CleanUp, Step::Complete)
}

/// The pool that is left is closed, the other one open to everybody: pods move, then it goes.
fn leave(pool: &PoolView<'_>, view: &View<'_>, policy: &Policy, now: Timestamp) -> Next {
    let open = moved(view, policy, now)
        .or_else(|| released(view))
        .or_else(|| emptied(pool, now))
        .or_else(|| followed(pool, view))
        // A calico-node that starts meanwhile would learn of the pool's end at its start, or not at all.
        .or_else(|| view.rolling.clone().map(|found| wait(Stage::FollowUp, found)))
        .or_else(|| soaked(pool, view, policy, now))
        // Their blocks go with the routes to them.
        .or_else(|| waited(Stage::DeletePool, view.kept_in_left.as_ref()));
    if let Some(next) = open {
        return next;
    }
    if pool.blocks.is_empty() {
        run(Stage::DeletePool, Step::DeletePool(pool.which))
    } else {
        run(Stage::DeletePool, Step::ReleaseBlocks(pool.blocks.to_vec()))
    }
}

/// Pods that have to move; `None` once none has to.
fn moved(view: &View<'_>, policy: &Policy, now: Timestamp) -> Option<Next> {
    let next = match view.nodes {
        None => by_node::Next::Pods(moves::next(&view.moves, &policy.moves, now)?),
        Some(nodes) => by_node::next(&view.moves, nodes, &policy.moves, policy.nodes_at_once, now)?,
    };
    Some(match next {
        by_node::Next::Cordon(node) => run(Stage::Move, Step::Cordon(node)),
        by_node::Next::Uncordon(node) => run(Stage::Move, Step::Uncordon(node)),
        by_node::Next::Pods(evict::Next::Evict(pods)) => run(Stage::Move, Step::Evict(pods)),
        by_node::Next::Pods(evict::Next::Wait(found)) => wait(Stage::Move, found),
    })
}

/// Who else has an address of the range; `None` once nobody had, twice.
fn emptied(pool: &PoolView<'_>, now: Timestamp) -> Option<Next> {
    if let Some(first) = pool.holders.first() {
        return Some(leftovers(
            Stage::Verify,
            format!(
                "{} hold addresses of {}; the first: {first}",
                pool.holders.len(),
                pool.range
            ),
        ));
    }
    let message = format!(
        "nobody has an address of {}; it is looked through twice",
        pool.range
    );
    let Some(empty_since) = pool.empty_since else {
        return Some(leftovers(Stage::Verify, message));
    };
    let until = empty_since + TWICE;
    (now < until).then(|| {
        let found = Wait {
            reason: WaitReason::Leftovers,
            message,
            until: Some(until),
        };
        wait(Stage::Verify, found)
    })
}

/// Who says the old range still.
fn followed(pool: &PoolView<'_>, view: &View<'_>) -> Option<Next> {
    let first = view.follow_up.first().filter(|_| pool.which == Which::Old)?;
    Some(people(
        Stage::FollowUp,
        format!(
            "{} places say {} still; the first: {first}",
            view.follow_up.len(),
            pool.range
        ),
    ))
}

/// The old pool stays for a while: so long going back is cheap.
fn soaked(pool: &PoolView<'_>, view: &View<'_>, policy: &Policy, now: Timestamp) -> Option<Next> {
    let end = pool.empty_since.filter(|_| pool.which == Which::Old)? + policy.soak;
    (now < end).then(|| {
        let found = Wait {
            reason: WaitReason::PoolSoak,
            message: format!(
                "every pod has an address of {}; IPPool {} stays until {end:.0}, and so long going back is cheap",
                view.new.range, pool.name
            ),
            until: Some(end),
        };
        wait(Stage::Soak, found)
    })
}

fn missing(stage: Stage, missing: Option<&Missing>) -> Option<Next> {
    Some(match missing? {
        Missing::Step(step) => run(stage, step.clone()),
        Missing::Answer(found) => wait(stage, found.clone()),
    })
}

/// What people change, in their own time.
fn people(stage: Stage, message: String) -> Next {
    let found = Wait {
        reason: WaitReason::ConfigurationFollowUp,
        message,
        until: None,
    };
    wait(stage, found)
}

fn run(stage: Stage, step: Step) -> Next {
    Next {
        stage,
        decision: Decision::Run(step),
    }
}

fn wait(stage: Stage, wait: Wait) -> Next {
    Next {
        stage,
        decision: Decision::Wait(wait),
    }
}

fn leftovers(stage: Stage, message: String) -> Next {
    wait(
        stage,
        Wait {
            reason: WaitReason::Leftovers,
            message,
            until: None,
        },
    )
}

fn halt(stage: Stage, message: String) -> Next {
    Next {
        stage,
        decision: Decision::Halt(Halt {
            reason: HaltReason::Drift,
            message,
        }),
    }
}
