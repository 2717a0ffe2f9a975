//! From the view of a node to its next step.

use jiff::{SignedDuration, Timestamp};

use super::aside::{is_unchanged, on_blocked};
use super::evict::{came_late, cordon, evict, evict_in_turn, late_ones, would_stay};
use super::in_place;
use super::{Direction, NetworkLabel, Next, NodeStep, NodeView, Policy, Stage, back};
use crate::phase::{Goal, Phase};
use crate::settings::Strategy;
use engine::decision::{Decision, Halt, HaltReason, Wait, WaitReason};
use engine::drain::Pod;
use engine::evict::OnBlocked;
use engine::probe::{self, Missing};
use engine::words;

/// Clocks of a cluster are kept closer together than this.
const CLOCKS_APART: SignedDuration = SignedDuration::from_mins(1);

/// Chooses the next step of a node that is in work, and whose label says what this migration wrote ([`super::drift`]).
pub fn decide(view: &NodeView<'_>, policy: &Policy, now: Timestamp) -> Next {
    let next = undelayed(view, policy, now);
    let Next {
        stage,
        decision: Decision::Wait(wait),
    } = next
    else {
        return next;
    };
    // Nothing on an unreachable node can be waited for: first it has to return.
    let wait = if !view.ready && wait.reason != WaitReason::NodeNotReady {
        Wait {
            reason: WaitReason::NodeNotReady,
            message: format!(
                "Node {} is NotReady; until it returns: {}",
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

/// Gives the wait its deadline, and turns it into what the policy says once that is past.
pub fn at_deadline(
    view: &NodeView<'_>,
    policy: &Policy,
    stage: Stage,
    wait: Wait,
    now: Timestamp,
) -> Decision<NodeStep> {
    let is_away = wait.reason == WaitReason::NodeNotReady;
    // A node that is away blocks no eviction: its own time is a step's.
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
    // By another's clock. One that is far ahead says nothing, and nobody waits until it is that late.
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
            "Node {} is NotReady since {away}, stage {}",
            view.name,
            stage.as_str()
        ),
        None => format!("stage {} of node {} began at {since}", stage.as_str(), view.name),
    };
    // One that is given back is tried again by itself.
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
                "{}. {waited} and drain.timeoutSeconds is {}. Remove what blocks{then}",
                wait.message,
                timeout.as_secs(),
            ),
        }),
        (false, OnBlocked::Wait | OnBlocked::Skip | OnBlocked::Pause) => Decision::Halt(Halt {
            reason: HaltReason::DeadlineExceeded,
            message: format!(
                "{}. {waited} and rollout.stepTimeoutSeconds is {}. Mend it, then {}",
                wait.message,
                timeout.as_secs(),
                view.direction.again()
            ),
        }),
    }
}

/// The next step or wait, without regard to deadlines.
fn undelayed(view: &NodeView<'_>, policy: &Policy, now: Timestamp) -> Next {
    // On the way back a failure of the way there is over once the agent has the other goal: it must be given first.
    let counts = view.direction == Direction::There || view.agent.goal == Some(Goal::Flannel);
    if let Some(failure) = view.agent.failure.as_ref().filter(|_| counts) {
        let stage = match view.direction {
            Direction::There => Stage::Attach.min(view.stage.map_or(Stage::Cordon, |(stage, _)| stage)),
            Direction::Back => Stage::PutBack,
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
        Direction::There => there(view, policy, now),
        Direction::Back => back::decide(view, policy, now),
    }
}

fn there(view: &NodeView<'_>, policy: &Policy, now: Timestamp) -> Next {
    match (&view.network, policy.strategy) {
        (NetworkLabel::Missing | NetworkLabel::Flannel, _) if view.goal.is_forward() => next(
            Stage::StopFlannel,
            Decision::Halt(Halt {
                reason: HaltReason::Drift,
                message: format!(
                    "Node {} is labelled for flannel, but its agent was already told to remove flannel. \
                     Somebody set the label back; set it to none to go on",
                    view.name
                ),
            }),
        ),
        (NetworkLabel::Missing | NetworkLabel::Flannel, Strategy::Drain) => from_flannel(view, policy, now),
        (NetworkLabel::Missing | NetworkLabel::Flannel, Strategy::InPlace) => in_place::from_flannel(view),
        (NetworkLabel::Neither, Strategy::Drain) => between(view, policy, now),
        (NetworkLabel::Neither, Strategy::InPlace) => in_place::between(view),
        (NetworkLabel::Calico, strategy) => to_calico(view, strategy),
        (NetworkLabel::Other(value), _) => foreign_label(view, value),
    }
}

/// Nobody of us wrote it, so nobody knows what it means.
pub(super) fn foreign_label(view: &NodeView<'_>, value: &str) -> Next {
    next(
        view.stage.map_or(Stage::Cordon, |(stage, _)| stage),
        Decision::Halt(Halt {
            reason: HaltReason::Drift,
            message: format!(
                "Node {}: label projectcalico.org/node-network-during-migration is {value:?}, \
                 needed flannel, none or calico. Somebody else wrote it; set it back",
                view.name
            ),
        }),
    )
}

/// The node is on flannel: cordon, drain, label away. Without an agent not even the cordon is made.
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
                "no agent is Ready on node {}; nothing is evicted before",
                view.name
            ),
        );
    }
    let (late, leaving): (Vec<&Pod>, Vec<&Pod>) = view
        .residents
        .movable
        .iter()
        .copied()
        .partition(|pod| came_late(view, pod));
    let ending = late_ones(view, &view.residents.terminating);
    let later = with_addresses(&[view.residents.daemon_set.as_slice(), &late, &ending].concat());
    let stays = || would_stay(view, &later, policy);
    if !view.unschedulable {
        return cordon(stays());
    }
    match evict(view, &leaving, policy, now).or_else(stays) {
        Some(decision) => next(Stage::Drain, decision),
        None => next(Stage::StopFlannel, Decision::Run(NodeStep::Label("none"))),
    }
}

/// Those of these pods that have an address: one without waits for the next network already.
fn with_addresses<'pods>(pods: &[&'pods Pod]) -> Vec<&'pods Pod> {
    let has_address = |pod: &&Pod| !pod.addresses.is_empty();
    pods.iter().copied().filter(has_address).collect()
}

/// The node is labelled for neither: flannel goes, the host is detached, then Calico's label.
fn between(view: &NodeView<'_>, policy: &Policy, now: Timestamp) -> Next {
    if !view.unschedulable {
        return next(Stage::Cordon, Decision::Run(NodeStep::Cordon));
    }
    if let Some(next) = flannel_is_gone(view, Stage::StopFlannel) {
        return next;
    }
    if let Some(next) = agent_reaches(view, Stage::HoldNewPods, Goal::Held, Phase::Held) {
        return next;
    }
    let old = with_addresses(&[view.residents.daemon_set.as_slice(), &view.residents.movable].concat());
    // A host that is detached has no old pod left: an address that is still in the API is about to go.
    if view.agent.phase < Some(Phase::Detached)
        && let Some(decision) = evict_in_turn(view, &old, policy, now)
    {
        return next(Stage::DrainDaemonSets, decision);
    }
    if let Some(next) = agent_reaches(view, Stage::Detach, Goal::Detached, Phase::Detached) {
        return next;
    }
    next(Stage::StartCalico, Decision::Run(NodeStep::Label("calico")))
}

/// The node is labelled for Calico: wait for it, prove it, lift the cordon.
fn to_calico(view: &NodeView<'_>, strategy: Strategy) -> Next {
    // It is there again when somebody wrote the label.
    if let Some(next) = flannel_is_gone(view, Stage::StartCalico) {
        return next;
    }
    match view.calico_pods.as_slice() {
        [] => {
            return wait(
                Stage::StartCalico,
                WaitReason::CalicoNodeNotReady,
                format!("Calico's DaemonSet has no pod on node {} yet", view.name),
            );
        }
        pods if !pods.iter().any(|(_, ready)| *ready) => {
            return wait(
                Stage::StartCalico,
                WaitReason::CalicoNodeNotReady,
                format!("{} on node {} is not Ready", names(pods), view.name),
            );
        }
        _ => {}
    }
    let (goal, phase) = match strategy {
        Strategy::Drain => (Goal::Calico, Phase::Calico),
        Strategy::InPlace => (Goal::Mixed, Phase::Mixed),
    };
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
            format!("Node {} is NotReady after its change", view.name),
        );
    }
    probe(view)
}

fn probe(view: &NodeView<'_>) -> Next {
    if let Some(next) = unproved(view) {
        return next;
    }
    if view.cordoned_by_us {
        return next(Stage::Uncordon, Decision::Run(NodeStep::Uncordon));
    }
    next(Stage::Uncordon, Decision::Run(NodeStep::Complete))
}

/// What is missing until a pod on the node has been reached; `None` once it has.
pub(super) fn unproved(view: &NodeView<'_>) -> Option<Next> {
    let missing = probe::missing(view.name, view.probe_pod.as_ref(), &view.probers)?;
    let decision = match missing {
        Missing::Pod => Decision::Run(NodeStep::CreateProbePod),
        Missing::Answer(wait) => Decision::Wait(wait),
    };
    Some(next(Stage::Probe, decision))
}

/// Waits for the end of flannel's pod; `None` once it is gone.
pub(super) fn flannel_is_gone(view: &NodeView<'_>, stage: Stage) -> Option<Next> {
    (!view.flannel_pods.is_empty()).then(|| {
        wait(
            stage,
            WaitReason::FlannelPodRunning,
            format!(
                "flannel's pod is still on node {}: {}",
                view.name,
                names(&view.flannel_pods)
            ),
        )
    })
}

/// Gives the agent its goal and waits until the host is there; `None` once it is.
pub(super) fn agent_reaches(view: &NodeView<'_>, stage: Stage, goal: Goal, phase: Phase) -> Option<Next> {
    if view.goal.phase() < goal.phase() {
        return Some(next(stage, Decision::Run(NodeStep::Goal(goal))));
    }
    if view.agent.phase.is_some_and(|at| at.reaches(phase)) {
        return None;
    }
    if !view.agent.ready {
        return Some(wait(
            stage,
            WaitReason::AgentSilent,
            format!(
                "no agent is Ready on node {}; it has to bring the host to {}",
                view.name,
                phase.as_str()
            ),
        ));
    }
    Some(wait(
        stage,
        WaitReason::AgentWorking,
        format!(
            "the agent of node {} brings the host to {}: {}",
            view.name,
            phase.as_str(),
            view.agent.message
        ),
    ))
}

/// Names of pods, without whether they are Ready.
pub(super) fn names(pods: &[(String, bool)]) -> String {
    let names: Vec<&str> = pods.iter().map(|(name, _)| name.as_str()).collect();
    words::names(&names)
}

pub(super) fn next(stage: Stage, decision: Decision<NodeStep>) -> Next {
    Next { stage, decision }
}

pub(super) fn wait(stage: Stage, reason: WaitReason, message: String) -> Next {
    next(
        stage,
        Decision::Wait(Wait {
            reason,
            message,
            until: None,
        }),
    )
}
