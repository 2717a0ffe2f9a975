//! Decides the next step of a node from its view.

use jiff::{SignedDuration, Timestamp};

use super::condition::{
    agent_reaches, flannel_is_deleted, flannel_is_gone, foreign_label, next_until_probed,
};
use super::evict::{
    cordon, evict, evict_in_budget_order, late_pods, started_after_cordon, wait_for_later_obstacle,
};
use super::in_place;
use super::next::{next, wait};
use super::release::{is_unchanged, on_blocked};
use super::{Direction, NetworkLabel, Next, NodeStep, NodeView, Policy, Stage, rollback};
use crate::phase::{Goal, Phase};
use crate::settings::Strategy;
use engine::daemon_pod::{any_is_ready, names};
use engine::decision::{Decision, Halt, HaltReason, Wait, WaitReason};
use engine::drain::Pod;
use engine::evict::OnBlocked;

/// The largest expected difference between the clocks of a cluster.
const CLOCKS_APART: SignedDuration = SignedDuration::from_mins(1);

/// Decides the next step of a node that is being migrated, and whose label has the value that this migration wrote
/// ([`super::drift`]).
///
/// # Examples
///
/// ```
/// use engine::decision::Decision;
/// use flannel_to_calico::node::{AgentReport, NetworkLabel, NodeStep, NodeView, Policy, Stage, decide};
/// # use std::collections::BTreeMap;
/// # use flannel_to_calico::{node::Direction, phase::Goal, settings::Strategy};
/// # use jiff::{SignedDuration, Timestamp};
///
/// // A node on flannel whose agent is Ready.
/// let view = NodeView {
///     name: "a",
///     network: NetworkLabel::Flannel,
///     agent: AgentReport { ready: true, ..AgentReport::default() },
///     unschedulable: false,
///     // …
/// #     direction: Direction::Forward,
/// #     was_done_at: None,
/// #     ready: true,
/// #     ready_changed: None,
/// #     cordoned_by_replumb: false,
/// #     goal: Goal::Hold,
/// #     residents: Default::default(),
/// #     budgets: &[],
/// #     refusals: &BTreeMap::new(),
/// #     flannel_pods: Vec::new(),
/// #     calico_pods: Vec::new(),
/// #     to_import: Vec::new(),
/// #     to_release: Vec::new(),
/// #     legacy_pods: Vec::new(),
/// #     pods_that_stay: Vec::new(),
/// #     probe_pod: None,
/// #     probers: Vec::new(),
/// #     stage: None,
/// };
/// # let policy = Policy {
/// #     strategy: Strategy::Drain,
/// #     legacy_pods: Default::default(),
/// #     step_timeout: SignedDuration::from_mins(10),
/// #     drain_timeout: SignedDuration::from_mins(10),
/// #     on_blocked: Default::default(),
/// #     permissions: Default::default(),
/// #     grace_period_seconds: None,
/// #     resumed_at: None,
/// # };
/// # let now = Timestamp::UNIX_EPOCH;
/// let next = decide(&view, &policy, now);
/// assert_eq!((next.stage, next.decision), (Stage::Cordon, Decision::Run(NodeStep::Cordon)));
/// // An empty node: flannel's pod has to end.
/// let view = NodeView { unschedulable: true, cordoned_by_replumb: true, ..view };
/// assert_eq!(decide(&view, &policy, now).decision, Decision::Run(NodeStep::Label("none")));
/// ```
pub fn decide(view: &NodeView<'_>, policy: &Policy, now: Timestamp) -> Next {
    let next = undelayed(view, policy, now);
    let Next {
        stage,
        decision: Decision::Wait(wait),
    } = next
    else {
        return next;
    };
    // No other wait can end on a node that is NotReady.
    let wait = if !view.ready && wait.reason != WaitReason::NodeNotReady {
        Wait {
            reason: WaitReason::NodeNotReady,
            message: format!(
                "Node {} is NotReady, needed Ready; next wait: {}",
                view.name, wait.message
            ),
            until: None,
        }
    } else {
        wait
    };
    Next {
        stage,
        decision: at_deadline(view, policy, stage, wait, now),
    }
}

/// Sets the deadline of the wait. After the deadline, the result is what the policy says.
pub fn at_deadline(
    view: &NodeView<'_>,
    policy: &Policy,
    stage: Stage,
    wait: Wait,
    now: Timestamp,
) -> Decision<NodeStep> {
    let is_away = wait.reason == WaitReason::NodeNotReady;
    // A node that is NotReady blocks no eviction, so the time limit of a step applies.
    let is_drain = stage.is_drain() && !is_away;
    let timeout = if is_drain {
        policy.drain_timeout
    } else {
        policy.step_timeout
    };
    let began = match view.stage {
        Some((recorded, since)) if recorded == stage => since,
        Some(_) | None => now,
    };
    // The time is from another clock. A time too far in the future is ignored, so that it does not extend the wait.
    let away_since = view
        .ready_changed
        .filter(|changed| is_away && *changed <= now + CLOCKS_APART);
    let since = began.max(away_since.unwrap_or(began));
    let until = since.max(policy.resumed_at.unwrap_or(since)) + timeout;
    if now < until {
        return Decision::Wait(Wait {
            until: Some(until),
            ..wait
        });
    }
    let waited = match away_since {
        Some(away) => format!(
            "Node {} has been NotReady since {away}, stage {}",
            view.name,
            stage.as_str()
        ),
        None => format!("stage {} of node {} began at {since}", stage.as_str(), view.name),
    };
    // A node that is released is tried again without the user.
    let is_set_aside = on_blocked(view, policy) == OnBlocked::Skip && is_unchanged(view);
    let then = if is_set_aside {
        String::new()
    } else {
        format!(", then {}", view.direction.again())
    };
    match (is_drain, on_blocked(view, policy)) {
        (true, OnBlocked::Wait) => Decision::Wait(Wait { until: None, ..wait }),
        (true, OnBlocked::Pause | OnBlocked::Skip) => Decision::Halt(Halt {
            reason: HaltReason::DrainBlocked,
            message: format!(
                "{}. {waited}, and drain.timeoutSeconds is {}. Remove the cause{then}",
                wait.message,
                timeout.as_secs(),
            ),
        }),
        (false, OnBlocked::Wait | OnBlocked::Skip | OnBlocked::Pause) => Decision::Halt(Halt {
            reason: HaltReason::DeadlineExceeded,
            message: format!(
                "{}. {waited}, and rollout.stepTimeoutSeconds is {}. Fix the cause, then {}",
                wait.message,
                timeout.as_secs(),
                view.direction.again()
            ),
        }),
    }
}

/// The next step or wait, without deadlines.
fn undelayed(view: &NodeView<'_>, policy: &Policy, now: Timestamp) -> Next {
    // In a rollback, a failure from before counts only if the agent has the goal of the rollback: the goal must be set first.
    let counts = view.direction == Direction::Forward || view.agent.goal == Some(Goal::Flannel);
    if let Some(failure) = view.agent.failure.as_ref().filter(|_| counts) {
        let stage = match view.direction {
            Direction::Forward => Stage::Attach.min(view.stage.map_or(Stage::Cordon, |(stage, _)| stage)),
            Direction::Rollback => Stage::PutBack,
        };
        return next(
            stage,
            Decision::Halt(Halt {
                reason: HaltReason::AgentFailure,
                message: format!("the agent of node {} reports: {failure}", view.name),
            }),
        );
    }
    match view.direction {
        Direction::Forward => there(view, policy, now),
        Direction::Rollback => rollback::decide(view, policy, now),
    }
}

fn there(view: &NodeView<'_>, policy: &Policy, now: Timestamp) -> Next {
    match (&view.network, policy.strategy) {
        (NetworkLabel::Missing | NetworkLabel::Flannel, _) if view.goal.is_forward() => next(
            Stage::StopFlannel,
            Decision::Halt(Halt {
                reason: HaltReason::Drift,
                message: format!(
                    "Node {} has the label of flannel, but its agent already has the goal to remove flannel: another client \
                     changed the label. Set the label to none to continue",
                    view.name
                ),
            }),
        ),
        (NetworkLabel::Missing | NetworkLabel::Flannel, Strategy::Drain) => from_flannel(view, policy, now),
        (NetworkLabel::Missing | NetworkLabel::Flannel, Strategy::InPlace) => in_place::from_flannel(view),
        (NetworkLabel::Neither, Strategy::Drain) => between(view, policy, now),
        (NetworkLabel::Neither, Strategy::InPlace) => in_place::between(view),
        (NetworkLabel::Calico, _) => to_calico(view, policy),
        (NetworkLabel::Other(value), _) => foreign_label(view, value),
    }
}

/// The node is on flannel: cordon, drain, change the label to none. Without an agent the node is not even cordoned.
fn from_flannel(view: &NodeView<'_>, policy: &Policy, now: Timestamp) -> Next {
    if !view.agent.ready {
        let stage = if view.unschedulable {
            Stage::Drain
        } else {
            Stage::Cordon
        };
        return wait(
            stage,
            WaitReason::AgentSilent,
            format!(
                "no agent is Ready on node {}; no pod is evicted until then",
                view.name
            ),
        );
    }
    let (late, leaving): (Vec<&Pod>, Vec<&Pod>) = view
        .residents
        .movable
        .iter()
        .copied()
        .partition(|pod| started_after_cordon(view, pod));
    let ending = late_pods(view, &view.residents.terminating);
    let later = with_addresses(&[view.residents.daemon_set.as_slice(), &late, &ending].concat());
    let stays = || wait_for_later_obstacle(view, &later, policy);
    if !view.unschedulable {
        return cordon(stays());
    }
    match evict(view, &leaving, policy, now).or_else(stays) {
        Some(decision) => next(Stage::Drain, decision),
        None => next(Stage::StopFlannel, Decision::Run(NodeStep::Label("none"))),
    }
}

/// The pods that have an address: a pod without an address already waits for the next network.
fn with_addresses<'pods>(pods: &[&'pods Pod]) -> Vec<&'pods Pod> {
    let has_address = |pod: &&Pod| !pod.addresses.is_empty();
    pods.iter().copied().filter(has_address).collect()
}

/// The label is none: flannel's pod ends, the host is detached, then the label is changed to calico.
fn between(view: &NodeView<'_>, policy: &Policy, now: Timestamp) -> Next {
    if !view.unschedulable {
        return next(Stage::Cordon, Decision::Run(NodeStep::Cordon));
    }
    if let Some(next) = flannel_is_deleted(view) {
        return next;
    }
    if let Some(next) = agent_reaches(view, Stage::HoldNewPods, Goal::Held, Phase::Held) {
        return next;
    }
    // From here on the way back costs pods. A pod of flannel that does not end is found before.
    if let Some(next) = flannel_is_gone(view, Stage::HoldNewPods) {
        return next;
    }
    let old = with_addresses(&[view.residents.daemon_set.as_slice(), &view.residents.movable].concat());
    // A detached host has no old pods: a pod that still has an address in the API is about to be deleted.
    if view.agent.phase < Some(Phase::Detached)
        && let Some(decision) = evict_in_budget_order(view, &old, policy, now)
    {
        return next(Stage::DrainDaemonSets, decision);
    }
    if let Some(next) = agent_reaches(view, Stage::Detach, Goal::Detached, Phase::Detached) {
        return next;
    }
    next(Stage::StartCalico, Decision::Run(NodeStep::Label("calico")))
}

/// The label is calico: wait for Calico, probe it, uncordon the node.
fn to_calico(view: &NodeView<'_>, policy: &Policy) -> Next {
    // flannel's pod may run again after another client has changed the label.
    if let Some(next) = flannel_is_gone(view, Stage::StartCalico) {
        return next;
    }
    let (goal, phase) = match policy.strategy {
        Strategy::Drain => (Goal::Calico, Phase::Calico),
        Strategy::InPlace => (Goal::Mixed, Phase::Mixed),
    };
    match view.calico_pods.as_slice() {
        [] => {
            return wait(
                Stage::StartCalico,
                WaitReason::CalicoNodeNotReady,
                format!("Calico's DaemonSet has no pod on node {} yet", view.name),
            );
        }
        pods if !any_is_ready(pods) => {
            if let Some(step) = beside_start(view, goal, phase) {
                return next(Stage::StartCalico, Decision::Run(step));
            }
            return wait(
                Stage::StartCalico,
                WaitReason::CalicoNodeNotReady,
                format!("{} on node {} is not Ready", names(pods), view.name),
            );
        }
        _ => {}
    }
    if let Some(next) = agent_reaches(view, Stage::Attach, goal, phase) {
        return next;
    }
    if let Some(check) = view.agent.failing_checks.first() {
        return wait(
            Stage::Attach,
            WaitReason::CheckFailing,
            format!("Node {}: {check}", view.name),
        );
    }
    if !view.ready {
        return wait(
            Stage::Attach,
            WaitReason::NodeNotReady,
            format!("Node {} is NotReady after the change of its network", view.name),
        );
    }
    probe(view, policy)
}

/// The steps that follow while calico-node becomes Ready: the change to Calico's conflist once calico-node serves new pods, which ends
/// the dead man's switch, and then the probe pod.
fn beside_start(view: &NodeView<'_>, goal: Goal, phase: Phase) -> Option<NodeStep> {
    if view.agent.phase.is_some_and(|at| at.reaches(phase)) {
        return view.probe_pod.is_none().then_some(NodeStep::CreateProbePod);
    }
    let is_due = view.agent.is_served_by_calico && view.goal.phase() < goal.phase();
    is_due.then_some(NodeStep::Goal(goal))
}

fn probe(view: &NodeView<'_>, policy: &Policy) -> Next {
    if let Some(next) = next_until_probed(view) {
        return next;
    }
    // The probe pod uses Calico: running pods follow once Calico is known to work on the node.
    if let Some(next) = in_place::adopt(view, policy) {
        return next;
    }
    if view.cordoned_by_replumb {
        return next(Stage::Uncordon, Decision::Run(NodeStep::Uncordon));
    }
    next(Stage::Uncordon, Decision::Run(NodeStep::Complete))
}
