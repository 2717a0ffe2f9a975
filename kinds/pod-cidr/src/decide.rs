//! The next step of the whole migration. The decision is level-triggered: the same facts give the same step, whatever was decided
//! before, so a restart or a crash changes nothing.
//!
//! The way forward and the rollback are the same sequence between two pools: open the target pool, close the source pool, move
//! the pods, verify that the source range is empty, delete the source pool. At least one pool is always open, because a pod
//! that is created without an open pool gets no address.

mod next;
mod step;
mod view;

use ipnet::IpNet;
use jiff::{SignedDuration, Timestamp};

pub use next::Next;
pub use step::{PoolRole, RemovedNode, Stage, Step};
pub use view::{Policy, PoolView, Unmet, View};

use self::next::{halt, leftovers, run, wait, wait_for_user};
use super::by_node;
use super::pools::{self, Openness};
use engine::decision::{Decision, Direction, Wait, WaitReason};
use engine::evict;
use engine::moves;

/// Interval between the two observations that must both find the range empty.
const EMPTY_INTERVAL: SignedDuration = SignedDuration::from_secs(30);

/// Chooses the next step.
///
/// # Examples
///
/// ```
/// use engine::decision::{Decision, Direction};
/// use pod_cidr::decide::{Policy, PoolRole, PoolView, Stage, Step, View, decide};
/// use serde_json::json;
/// # use std::collections::BTreeMap;
/// # use engine::moves;
/// # use pod_cidr::movers;
/// # use jiff::{SignedDuration, Timestamp};
///
/// // The old pool is open, the new one does not exist.
/// let spec = json!({ "cidr": "10.244.0.0/16" });
/// let pool = |which, name, range: &str, spec| PoolView {
///     which,
///     name,
///     range: range.parse().unwrap(),
///     spec,
///     // …
/// #     terminating: false,
/// #     blocks: &[],
/// #     holders: &[],
/// #     empty_since: None,
/// #     routes: &[],
/// };
/// # let target = ["10.245.0.0/16".parse().unwrap()];
/// let view = View {
///     direction: Direction::Forward,
///     old: pool(PoolRole::Old, "old", "10.244.0.0/16", Some(&spec)),
///     new: pool(PoolRole::New, "new", "10.245.0.0/16", None),
///     // …
/// #     wanted: &json!({}),
/// #     widen: &[],
/// #     tunnel_changes: None,
/// #     kept_in_source: None,
/// #     kept_in_target: None,
/// #     unknown_former_addresses: None,
/// #     unclear_pool: None,
/// #     former_addresses_to_allocate: &[],
/// #     to_release: &[],
/// #     switched: None,
/// #     canary: None,
/// #     redundancy: None,
/// #     follow_up: &[],
/// #     rolling: None,
/// #     moves: moves::View {
/// #         residents: &[],
/// #         movers: movers::out_of(&target),
/// #         budgets: &[],
/// #         refusals: &BTreeMap::new(),
/// #         workloads: &BTreeMap::new(),
/// #         only: None,
/// #     },
/// #     nodes: None,
/// };
/// # let policy = Policy {
/// #     moves: moves::Policy { pods_at_once: 10, permissions: Default::default(), delete_bare_pods: false },
/// #     nodes_at_once: 1,
/// #     soak: SignedDuration::from_hours(1),
/// #     hold: None,
/// # };
/// # let now = Timestamp::UNIX_EPOCH;
/// let next = decide(&view, &policy, now);
/// assert_eq!((next.stage, next.decision), (Stage::CreatePool, Decision::Run(Step::CreatePool)));
/// ```
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
