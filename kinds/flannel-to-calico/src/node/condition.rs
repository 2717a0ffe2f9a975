//! Conditions of all strategies: a label of this migration, an answer of the probe pod, the end of flannel, a phase of the host.

use engine::daemon_pod::{DaemonPod, DaemonPodState, names};
use engine::decision::{Decision, Halt, HaltReason, WaitReason};
use engine::probe::{self, Missing};

use super::next::{next, wait};
use super::{Next, NodeStep, NodeView, Stage};
use crate::phase::{Goal, Phase};

/// The halt for a label value that this migration never writes.
pub(super) fn foreign_label(view: &NodeView<'_>, value: &str) -> Next {
    next(
        view.stage.map_or(Stage::Cordon, |(stage, _)| stage),
        Decision::Halt(Halt {
            reason: HaltReason::Drift,
            message: format!(
                "Node {}: label projectcalico.org/node-network-during-migration is {value:?}, \
                 needed flannel, none or calico. Another client wrote it: restore the previous value",
                view.name
            ),
        }),
    )
}

/// The next step or wait until a pod on the node is reached; `None` if it is reached.
pub(super) fn next_until_probed(view: &NodeView<'_>) -> Option<Next> {
    let missing = probe::missing(view.name, view.probe_pod.as_ref(), &view.probers)?;
    let decision = match missing {
        Missing::Pod => Decision::Run(NodeStep::CreateProbePod),
        Missing::Answer(wait) => Decision::Wait(wait),
    };
    Some(next(Stage::Probe, decision))
}

/// Waits until flannel's pod is being deleted; `None` if it is. The kubelet ends its containers, and the agent of the node sees when
/// flanneld has ended, some time before the pod is gone.
pub(super) fn flannel_is_deleted(view: &NodeView<'_>) -> Option<Next> {
    let pods = view.flannel_pods.iter();
    let running = pods.filter(|pod| pod.state != DaemonPodState::Terminating);
    flannel_pods_end(view, Stage::StopFlannel, &running.cloned().collect::<Vec<_>>())
}

/// Waits for the end of flannel's pod; `None` if it is gone.
pub(super) fn flannel_is_gone(view: &NodeView<'_>, stage: Stage) -> Option<Next> {
    flannel_pods_end(view, stage, &view.flannel_pods)
}

fn flannel_pods_end(view: &NodeView<'_>, stage: Stage, pods: &[DaemonPod]) -> Option<Next> {
    (!pods.is_empty()).then(|| {
        wait(
            stage,
            WaitReason::FlannelPodRunning,
            format!("flannel's pod is still on node {}: {}", view.name, names(pods)),
        )
    })
}

/// Gives the agent its goal and waits until the host reaches the phase; `None` if it has.
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
                "no agent is Ready on node {}; needed to bring the host to phase {}",
                view.name,
                phase.as_str()
            ),
        ));
    }
    Some(wait(
        stage,
        WaitReason::AgentWorking,
        format!(
            "the agent of node {} brings the host to phase {}: {}",
            view.name,
            phase.as_str(),
            view.agent.message
        ),
    ))
}
