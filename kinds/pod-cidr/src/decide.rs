//! The next step of the whole migration. The decision is level-triggered: the same facts give the same step, whatever was decided
//! before, so a restart or a crash changes nothing.
//!
//! The way forward and the rollback are the same sequence between two pools: open the target pool, close the source pool, move
//! the pods, verify that the source range is empty, delete the source pool. At least one pool is always open, because a pod
//! that is created without an open pool gets no address.

use std::collections::BTreeMap;

use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::by_node;
use super::pools::{self, Openness};
use super::tunnel::TunnelAllocation;
use engine::decision::{Decision, Direction, Halt, HaltReason, Wait, WaitReason};
use engine::evict::{self, PodName};
use engine::moves;

/// Interval between the two observations that must both find the range empty.
const EMPTY_INTERVAL: SignedDuration = SignedDuration::from_secs(30);

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

    /// The stage as written in status, metrics and reports.
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

/// One of the two pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PoolRole {
    /// The pool that existed before the migration.
    Old,
    /// The pool that this migration creates.
    New,
}

impl PoolRole {
    /// The source pool of this direction.
    pub fn source(direction: Direction) -> Self {
        match direction {
            Direction::Forward => Self::Old,
            Direction::Rollback => Self::New,
        }
    }

    /// The value of [`pools::OFF_LABEL`] on a Node that was removed from this pool.
    pub fn mark(self) -> &'static str {
        match self {
            Self::Old => "old",
            Self::New => "new",
        }
    }
}

/// One pool, and the contents of its range.
#[derive(Clone, Debug)]
pub struct PoolView<'facts> {
    /// Old or new pool.
    pub which: PoolRole,
    /// Its name.
    pub name: &'facts str,
    /// Its range.
    pub range: IpNet,
    /// Its spec, as stored; `None` if the pool does not exist.
    pub spec: Option<&'facts Value>,
    /// Whether it is being deleted. Calico assigns no addresses of such a pool.
    pub terminating: bool,
    /// Blocks and block affinities of Calico's IPAM in the range.
    pub blocks: &'facts [IpNet],
    /// Holders of addresses of the range, other than pods that have to move: the object, and the fix.
    pub holders: &'facts [String],
    /// Time since which no address of the range has been in use; `None` while any is.
    pub empty_since: Option<Timestamp>,
    /// Routes into the range on hosts, as reported by the agents.
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

/// All inputs of the decision.
#[derive(Clone, Debug)]
pub struct View<'facts> {
    /// Direction in which pods move.
    pub direction: Direction,
    /// The old pool.
    pub old: PoolView<'facts>,
    /// The new pool.
    pub new: PoolView<'facts>,
    /// The spec of the new pool once it is open.
    pub wanted: &'facts Value,
    /// Objects that do not allow both ranges yet, each with its fix.
    pub widen: &'facts [String],
    /// Next step or wait until no tunnel address is in the source range ([`super::ends`]); `None` once none is.
    pub tunnel_changes: Option<Unmet>,
    /// Wait while agents keep addresses of the source range on their hosts for established connections.
    pub kept_in_source: Option<Wait>,
    /// Wait while agents keep addresses of the target range. A pod with such an address would be unreachable from that host.
    pub kept_in_target: Option<Wait>,
    /// Wait while it is unknown which former tunnel addresses are free in the target range; `None` once known.
    pub unknown_former_addresses: Option<Wait>,
    /// Wait for a pool with an unknown range, which may overlap both ranges. Until then no pool is created, opened, closed or
    /// deleted on the way forward. A rollback ignores the wait, because both of its pools existed before.
    pub unclear_pool: Option<Wait>,
    /// Former tunnel addresses in the target range that are free now.
    pub former_addresses_to_allocate: &'facts [TunnelAllocation],
    /// Addresses of the source range that are still allocated to tunnels in Calico's IPAM, and that the tunnels no longer use.
    pub to_release: &'facts [TunnelAllocation],
    /// Wait until the calico-node of every node uses the pools as they are open now; `None` once all do.
    pub switched: Option<Wait>,
    /// Wait until the canary of the new pool succeeds; `None` once its pods were reached from every node.
    pub canary: Option<Wait>,
    /// Next step or wait until name servers and admission webhooks have more than one pod; `None` once they have.
    pub redundancy: Option<Unmet>,
    /// Objects that still contain the old range, each with its fix.
    pub follow_up: &'facts [String],
    /// Wait while the rollout of Calico's `DaemonSet` is not complete, as after a change of its environment; `None` once it is.
    pub rolling: Option<Wait>,
    /// The pods, with the target pool of this direction.
    pub moves: moves::View<'facts>,
    /// Every Node in rollout order, in mode `ByNode`; `None` in mode `ByWorkload`.
    pub nodes: Option<&'facts [by_node::Node<'facts>]>,
}

/// An unmet condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unmet {
    /// The step that meets it.
    Step(Step),
    /// The wait for it.
    Answer(Wait),
}

/// Limits and permissions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Limits and permissions for moving pods.
    pub moves: moves::Policy,
    /// Maximum number of Nodes that are drained at the same time, in mode `ByNode`.
    pub nodes_at_once: usize,
    /// How long the old pool is kept, empty and closed.
    pub soak: SignedDuration,
    /// Why no step may run now: the user has paused the migration, or has to review it first.
    pub hold: Option<Wait>,
}

/// One Node that is removed from a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemovedNode {
    /// Its name.
    pub node: String,
    /// The addresses that its tunnels get, by the last part of the annotation's key. Calico chooses for tunnels without an entry.
    pub ends: BTreeMap<String, TunnelAllocation>,
}

/// One idempotent change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Create the new pool.
    CreatePool,
    /// Scale this Deployment to this number of pods.
    Scale(String, u32),
    /// Open a pool to this degree, or close it.
    Open(PoolRole, Openness),
    /// Restrict the pool to Nodes that were not removed from it. The number identifies the set of removed Nodes.
    Narrow(PoolRole, u32),
    /// Remove these Nodes from the pool.
    RemoveNodes(PoolRole, Vec<RemovedNode>),
    /// Restart this pod of calico-node: older versions of Calico choose a new tunnel address only when they start.
    RestartCalicoNode(PodName),
    /// Allocate these addresses to the Nodes whose tunnels had them, before pods can get them.
    HoldEnds(Vec<TunnelAllocation>),
    /// Release these addresses of tunnels that have other addresses now.
    ReleaseEnds(Vec<TunnelAllocation>),
    /// Cordon this Node.
    Cordon(String),
    /// Evict these pods.
    Evict(Vec<PodName>),
    /// Uncordon this Node.
    Uncordon(String),
    /// Release these empty blocks and their affinities.
    ReleaseBlocks(Vec<IpNet>),
    /// Delete this pool.
    DeletePool(PoolRole),
    /// Scale Deployments back, and record the migration as complete.
    Complete,
}

impl Step {
    /// Whether it creates, opens, closes or deletes a pool.
    fn changes_a_pool(&self) -> bool {
        match self {
            Self::CreatePool | Self::Open(..) | Self::Narrow(..) | Self::DeletePool(_) => true,
            Self::Scale(..)
            | Self::RemoveNodes(..)
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

    /// The name of the step, bounded, without names of objects.
    pub fn name(&self) -> &'static str {
        match self {
            Self::CreatePool => "CreatePool",
            Self::Scale(..) => "Scale",
            Self::Open(PoolRole::Old, Openness::AllPods | Openness::Narrowed) => "OpenOldPool",
            Self::Open(PoolRole::New, Openness::AllPods | Openness::Narrowed) => "OpenNewPool",
            Self::Open(_, Openness::OptIn) => "OpenNewPoolToCanary",
            Self::Open(PoolRole::Old, Openness::Closed | Openness::Absent) => "CloseOldPool",
            Self::Open(PoolRole::New, Openness::Closed | Openness::Absent) => "CloseNewPool",
            Self::Narrow(..) => "NarrowPool",
            Self::RemoveNodes(..) => "TakeNodeOff",
            Self::RestartCalicoNode(_) => "RestartCalicoNode",
            Self::HoldEnds(_) => "HoldEnds",
            Self::ReleaseEnds(_) => "ReleaseEnds",
            Self::Cordon(_) => "CordonNode",
            Self::Evict(_) => "Evict",
            Self::Uncordon(_) => "UncordonNode",
            Self::ReleaseBlocks(_) => "ReleaseBlocks",
            Self::DeletePool(PoolRole::Old) => "DeleteOldPool",
            Self::DeletePool(PoolRole::New) => "DeleteNewPool",
            Self::Complete => "Complete",
        }
    }
}

/// The stage of the migration, and the next step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Next {
    /// The current stage.
    pub stage: Stage,
    /// The next step, wait or halt.
    pub decision: Decision<Step>,
}

/// Chooses the next step.
pub fn decide(view: &View<'_>, policy: &Policy, now: Timestamp) -> Next {
    let next = match view.direction {
        Direction::Forward => decide_forward(view, policy, now),
        Direction::Rollback => decide_rollback(view, policy, now),
    };
    match (&next.decision, &policy.hold) {
        // Without an open pool no pod starts, so a hold does not apply to opening the only pool.
        (Decision::Run(step), Some(hold)) if !opens_the_only_pool(step, view) => {
            wait(next.stage, hold.clone())
        }
        (Decision::Run(_) | Decision::Wait(_) | Decision::Settled | Decision::Halt(_), _) => {
            respect_unclear_pool(next, view)
        }
    }
}

fn respect_unclear_pool(next: Next, view: &View<'_>) -> Next {
    match (&next.decision, &view.unclear_pool, view.direction) {
        (Decision::Run(step), Some(strange), Direction::Forward)
            if step.changes_a_pool() && !opens_the_only_pool(step, view) =>
        {
            wait(next.stage, strange.clone())
        }
        _ => next,
    }
}

fn opens_the_only_pool(step: &Step, view: &View<'_>) -> bool {
    let is_open = |pool: &PoolView<'_>| pool.openness() == Openness::AllPods;
    matches!(step, Step::Open(_, Openness::AllPods)) && !is_open(&view.old) && !is_open(&view.new)
}

fn decide_forward(view: &View<'_>, policy: &Policy, now: Timestamp) -> Next {
    let (old, new) = (view.old.openness(), view.new.openness());
    match (old, new) {
        (Openness::Absent, Openness::Absent) => halt(
            Stage::Switch,
            format!(
                "IPPool {} and IPPool {} are missing, so no pod gets an address. Create IPPool {} again",
                view.old.name, view.new.name, view.new.name
            ),
        ),
        // This comes first: a pod that is created now must get an address.
        (Openness::Absent, Openness::Closed | Openness::OptIn | Openness::Narrowed) => {
            run(Stage::Switch, Step::Open(PoolRole::New, Openness::AllPods))
        }
        // Until the new pool is open to all pods, only another program or a rollback narrows or closes the old one.
        (
            Openness::Closed | Openness::OptIn | Openness::Narrowed,
            Openness::Absent | Openness::Closed | Openness::OptIn | Openness::Narrowed,
        ) => run(Stage::Switch, Step::Open(PoolRole::Old, Openness::AllPods)),
        (Openness::AllPods, Openness::Absent) => {
            widened(view, view.new.range).unwrap_or_else(|| run(Stage::CreatePool, Step::CreatePool))
        }
        (Openness::AllPods, Openness::Closed) => agrees(view)
            .or_else(|| widened(view, view.new.range))
            .unwrap_or_else(|| run(Stage::Canary, Step::Open(PoolRole::New, Openness::OptIn))),
        (Openness::AllPods, Openness::OptIn | Openness::Narrowed) => proved(view)
            .or_else(|| waited(Stage::Switch, view.unknown_former_addresses.as_ref()))
            .unwrap_or_else(|| run(Stage::Switch, Step::Open(PoolRole::New, Openness::AllPods))),
        // Another program may have opened it.
        (Openness::AllPods | Openness::Narrowed | Openness::OptIn, Openness::AllPods) => proved(view)
            .or_else(|| missing(Stage::Switch, view.tunnel_changes.as_ref()))
            .unwrap_or_else(|| run(Stage::Switch, Step::Open(PoolRole::Old, Openness::Closed))),
        (Openness::Closed, Openness::AllPods) => agrees(view)
            .or_else(|| view.switched.clone().map(|found| wait(Stage::Switch, found)))
            .unwrap_or_else(|| empty_source(&view.old, view, policy, now)),
        (Openness::Absent, Openness::AllPods) => gone(&view.old, view, policy, now),
    }
}

/// Halts if the new pool differs from the needed spec: pods of the two pools would not reach each other.
fn agrees(view: &View<'_>) -> Option<Next> {
    let differences = pools::differences(view.new.spec?, view.wanted);
    (!differences.is_empty()).then(|| {
        let message = format!(
            "IPPool {}: {}. Set the needed values; pods of the two pools reach each other only with equal settings",
            view.new.name,
            differences.join(", ")
        );
        halt(Stage::CreatePool, message)
    })
}

fn widened(view: &View<'_>, target: IpNet) -> Option<Next> {
    let first = view.widen.first()?;
    Some(wait_for_user(
        Stage::Widen,
        format!(
            "objects that must allow both ranges before pods get addresses of {target}: {}. The first: {first}",
            view.widen.len()
        ),
    ))
}

/// What is missing until the new pool may be opened to all pods.
fn proved(view: &View<'_>) -> Option<Next> {
    agrees(view)
        .or_else(|| widened(view, view.new.range))
        .or_else(|| view.canary.clone().map(|found| wait(Stage::Canary, found)))
        .or_else(|| missing(Stage::Redundancy, view.redundancy.as_ref()))
        .or_else(|| hold_tunnel_addresses(view))
        .or_else(|| waited(Stage::Switch, view.kept_in_target.as_ref()))
}

/// Allocates former tunnel addresses to their tunnels before the pool is opened to pods.
fn hold_tunnel_addresses(view: &View<'_>) -> Option<Next> {
    (!view.former_addresses_to_allocate.is_empty()).then(|| {
        run(
            Stage::Switch,
            Step::HoldEnds(view.former_addresses_to_allocate.to_vec()),
        )
    })
}

/// Releases the addresses of tunnels that have other addresses now: Calico does not know that these are free.
fn release_tunnel_addresses(view: &View<'_>) -> Option<Next> {
    (!view.to_release.is_empty()).then(|| run(Stage::Verify, Step::ReleaseEnds(view.to_release.to_vec())))
}

fn waited(stage: Stage, found: Option<&Wait>) -> Option<Next> {
    Some(wait(stage, found?.clone()))
}

fn decide_rollback(view: &View<'_>, policy: &Policy, now: Timestamp) -> Next {
    let (old, new) = (view.old.openness(), view.new.openness());
    match (old, new) {
        (Openness::Absent, _) => halt(
            Stage::Switch,
            format!(
                "IPPool {} is deleted: the migration is past the point of no return. Create another Migration from {} to {} to \
                 move the pods back",
                view.old.name, view.new.range, view.old.range
            ),
        ),
        (Openness::Closed | Openness::OptIn | Openness::Narrowed, Openness::AllPods) => {
            widened(view, view.old.range)
                .or_else(|| waited(Stage::Switch, view.unknown_former_addresses.as_ref()))
                .or_else(|| hold_tunnel_addresses(view))
                .or_else(|| waited(Stage::Switch, view.kept_in_target.as_ref()))
                .unwrap_or_else(|| run(Stage::Switch, Step::Open(PoolRole::Old, Openness::AllPods)))
        }
        // No pool is open: a pod that is created now must get an address.
        (Openness::Closed | Openness::OptIn | Openness::Narrowed, _) => {
            run(Stage::Switch, Step::Open(PoolRole::Old, Openness::AllPods))
        }
        (Openness::AllPods, Openness::AllPods | Openness::Narrowed | Openness::OptIn) => {
            hold_tunnel_addresses(view)
                .or_else(|| missing(Stage::Switch, view.tunnel_changes.as_ref()))
                .unwrap_or_else(|| run(Stage::Switch, Step::Open(PoolRole::New, Openness::Closed)))
        }
        (Openness::AllPods, Openness::Closed) => match &view.switched {
            Some(found) => wait(Stage::Switch, found.clone()),
            None => empty_source(&view.new, view, policy, now),
        },
        (Openness::AllPods, Openness::Absent) => gone(&view.new, view, policy, now),
    }
}

/// The source pool is deleted: by this migration, or by another program that may not have waited for its pods.
fn gone(pool: &PoolView<'_>, view: &View<'_>, policy: &Policy, now: Timestamp) -> Next {
    let open = moved(view, policy, now)
        .or_else(|| release_tunnel_addresses(view))
        .or_else(|| emptied(pool, now))
        .or_else(|| followed(pool, view));
    if let Some(next) = open {
        return next;
    }
    if !pool.blocks.is_empty() {
        if let Some(next) = waited(Stage::DeletePool, view.kept_in_source.as_ref()) {
            return next;
        }
        return run(Stage::DeletePool, Step::ReleaseBlocks(pool.blocks.to_vec()));
    }
    if let Some(first) = pool.routes.first() {
        return leftovers(
            Stage::Routes,
            format!(
                "hosts with routes into {}: {}. The first: {first}",
                pool.range,
                pool.routes.len()
            ),
        );
    }
    run(Stage::CleanUp, Step::Complete)
}

/// The source pool is closed and the target pool is open to all pods: pods move, then the source pool is deleted.
fn empty_source(pool: &PoolView<'_>, view: &View<'_>, policy: &Policy, now: Timestamp) -> Next {
    let open = moved(view, policy, now)
        .or_else(|| release_tunnel_addresses(view))
        .or_else(|| emptied(pool, now))
        .or_else(|| followed(pool, view))
        // A calico-node that starts at this time would not notice that the pool is deleted.
        .or_else(|| view.rolling.clone().map(|found| wait(Stage::FollowUp, found)))
        .or_else(|| soaked(pool, view, policy, now))
        // The routes to kept addresses are removed together with their blocks.
        .or_else(|| waited(Stage::DeletePool, view.kept_in_source.as_ref()));
    if let Some(next) = open {
        return next;
    }
    if pool.blocks.is_empty() {
        run(Stage::DeletePool, Step::DeletePool(pool.which))
    } else {
        run(Stage::DeletePool, Step::ReleaseBlocks(pool.blocks.to_vec()))
    }
}

/// The next move of pods; `None` once no pod has to move.
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

/// Waits until two observations find no address of the range in use; `None` after the second.
fn emptied(pool: &PoolView<'_>, now: Timestamp) -> Option<Next> {
    if let Some(first) = pool.holders.first() {
        return Some(leftovers(
            Stage::Verify,
            format!(
                "addresses of {} in use: {}. The first: {first}",
                pool.range,
                pool.holders.len()
            ),
        ));
    }
    let message = format!(
        "no address of {} is in use; waiting for a second observation",
        pool.range
    );
    let Some(empty_since) = pool.empty_since else {
        return Some(leftovers(Stage::Verify, message));
    };
    let until = empty_since + EMPTY_INTERVAL;
    (now < until).then(|| {
        let found = Wait {
            reason: WaitReason::Leftovers,
            message,
            until: Some(until),
        };
        wait(Stage::Verify, found)
    })
}

/// Waits for objects that still contain the old range.
fn followed(pool: &PoolView<'_>, view: &View<'_>) -> Option<Next> {
    let first = view.follow_up.first().filter(|_| pool.which == PoolRole::Old)?;
    Some(wait_for_user(
        Stage::FollowUp,
        format!(
            "objects that still contain {}: {}. The first: {first}",
            pool.range,
            view.follow_up.len()
        ),
    ))
}

/// Keeps the old pool for the soak time: until then a rollback is cheap.
fn soaked(pool: &PoolView<'_>, view: &View<'_>, policy: &Policy, now: Timestamp) -> Option<Next> {
    let end = pool.empty_since.filter(|_| pool.which == PoolRole::Old)? + policy.soak;
    (now < end).then(|| {
        let found = Wait {
            reason: WaitReason::PoolSoak,
            message: format!(
                "every pod has an address of {}; IPPool {} is kept until {end:.0} for a rollback",
                view.new.range, pool.name
            ),
            until: Some(end),
        };
        wait(Stage::Soak, found)
    })
}

fn missing(stage: Stage, missing: Option<&Unmet>) -> Option<Next> {
    Some(match missing? {
        Unmet::Step(step) => run(stage, step.clone()),
        Unmet::Answer(found) => wait(stage, found.clone()),
    })
}

/// A wait for changes that the user has to make.
fn wait_for_user(stage: Stage, message: String) -> Next {
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
