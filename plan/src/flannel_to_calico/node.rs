//! The next step of one node, as the coordinator sees it. Level-triggered: the same facts give the same step,
//! whatever was decided before, so that a restart or a crash changes nothing.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use super::phase::{Goal, Phase};
use crate::decision::{Decision, Halt, HaltReason, Wait, WaitReason};
use crate::drain::{self, Budget, Pod, Residents};

/// Which network a Node's label says that it is on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkLabel {
    /// No label yet.
    Missing,
    /// flannel's pods run here.
    Flannel,
    /// Neither runs here.
    Neither,
    /// Calico's pods run here.
    Calico,
    /// A value that nobody of us writes.
    Other(String),
}

impl NetworkLabel {
    /// Reads the label's value.
    pub fn read(value: Option<&str>) -> Self {
        match value {
            None => Self::Missing,
            Some("flannel") => Self::Flannel,
            Some("none") => Self::Neither,
            Some("calico") => Self::Calico,
            Some(other) => Self::Other(other.to_owned()),
        }
    }
}

/// What the node's agent reported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AgentReport {
    /// Whether the agent's pod on the node is Ready.
    pub ready: bool,
    /// The phase that it proved.
    pub phase: Option<Phase>,
    /// What it does or waits for.
    pub message: String,
    /// A failure that it does not mend by itself.
    pub failure: Option<String>,
    /// Lines of its checks that do not allow going on.
    pub failing_checks: Vec<String>,
}

/// A refused eviction, kept until it is tried again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Since when this pod has been refused.
    pub since: Timestamp,
    /// When it is tried again.
    pub next_try: Timestamp,
    /// Whether the refusal was a 429, which is a `PodDisruptionBudget`'s.
    pub by_budget: bool,
    /// The API server's words.
    pub message: String,
}

/// The pod that proves the node's pod network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbePod {
    /// UID.
    pub uid: String,
    /// Its address, once it runs and is Ready.
    pub address: Option<std::net::IpAddr>,
    /// Why it does not run, as far as its status tells.
    pub message: String,
}

/// One other node that was asked to reach the probe pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prober {
    /// Name of the node that probes.
    pub node: String,
    /// `old` when it is on flannel, `new` when on Calico.
    pub side: &'static str,
    /// Whether the newest result for this very pod says reached; `None` without a result.
    pub reached: Option<bool>,
    /// The words of the result.
    pub message: String,
}

/// Everything that the decision about one node depends on.
#[derive(Clone, Debug)]
pub struct NodeView<'facts> {
    /// Name of the node.
    pub name: &'facts str,
    /// Whether the Node reports Ready.
    pub ready: bool,
    /// `spec.unschedulable`.
    pub unschedulable: bool,
    /// Whether the cordon is ours.
    pub cordoned_by_us: bool,
    /// The Node's label.
    pub network: NetworkLabel,
    /// The goal that the agent was given.
    pub goal: Goal,
    /// What the agent reported.
    pub agent: AgentReport,
    /// Pods on the node.
    pub residents: Residents<'facts>,
    /// Every `PodDisruptionBudget`.
    pub budgets: &'facts [Budget],
    /// Refused evictions by pod UID.
    pub refusals: &'facts BTreeMap<String, Refusal>,
    /// Names of flannel's pods on the node, terminating ones included.
    pub flannel_pods: Vec<String>,
    /// Names of Calico's pods on the node, and whether each is Ready and not terminating.
    pub calico_pods: Vec<(String, bool)>,
    /// The probe pod, if there is one.
    pub probe_pod: Option<ProbePod>,
    /// Who was asked to reach it.
    pub probers: Vec<Prober>,
    /// The stage that was recorded last, and since when.
    pub stage: Option<(Stage, Timestamp)>,
}

/// Limits and permissions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// How long one stage may take.
    pub step_timeout: SignedDuration,
    /// How long the pods of one node may take to leave.
    pub drain_timeout: SignedDuration,
    /// What happens then.
    pub on_blocked: OnBlocked,
    /// What a drain may do.
    pub permissions: drain::Permissions,
    /// Deadlines count from here when it is later than the stage's start: a person said "resume".
    pub resumed_at: Option<Timestamp>,
}

/// What happens when a drain is blocked past its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnBlocked {
    /// Halt.
    Pause,
    /// Keep waiting.
    Wait,
    /// Set the node aside.
    Skip,
}

/// Where a node in work is. Ordered; the name is a metric label, an Event reason and a line of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// New pods go elsewhere.
    Cordon,
    /// Pods leave by eviction.
    Drain,
    /// The label moves away from flannel, and its pod ends.
    StopFlannel,
    /// flannel's CNI plugin refuses new pods.
    HoldNewPods,
    /// `DaemonSet` pods leave by eviction; their successors wait for the new network.
    DrainDaemonSets,
    /// The old network is removed from the host.
    Detach,
    /// The label moves to Calico, and calico-node becomes Ready.
    StartCalico,
    /// The host is on Calico, and the agent's checks pass.
    Attach,
    /// A pod on the node is reached from an old and a new node.
    Probe,
    /// The cordon is lifted, if it was ours.
    Uncordon,
}

impl Stage {
    /// Every stage, in order.
    pub const ALL: [Self; 10] = [
        Self::Cordon,
        Self::Drain,
        Self::StopFlannel,
        Self::HoldNewPods,
        Self::DrainDaemonSets,
        Self::Detach,
        Self::StartCalico,
        Self::Attach,
        Self::Probe,
        Self::Uncordon,
    ];

    /// The stage as it stands in status, metrics and reports.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cordon => "Cordon",
            Self::Drain => "Drain",
            Self::StopFlannel => "StopFlannel",
            Self::HoldNewPods => "HoldNewPods",
            Self::DrainDaemonSets => "DrainDaemonSets",
            Self::Detach => "Detach",
            Self::StartCalico => "StartCalico",
            Self::Attach => "Attach",
            Self::Probe => "Probe",
            Self::Uncordon => "Uncordon",
        }
    }

    /// Reads [`Stage::as_str`].
    pub fn read(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|stage| stage.as_str() == text)
    }
}

/// One change that the coordinator makes for a node: idempotent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeStep {
    /// Set `unschedulable`, with our annotation in the same write.
    Cordon,
    /// Evict these pods, by UID, namespace and name.
    Evict(Vec<PodName>),
    /// Write the Node's network label.
    Label(&'static str),
    /// Give the agent this goal.
    Goal(Goal),
    /// Create the probe pod.
    CreateProbePod,
    /// Lift our cordon.
    Uncordon,
    /// Record that the node is done.
    Complete,
    /// Set the node aside: lift our cordon, try again after all others.
    Skip,
}

/// A pod to evict. The UID goes along as a precondition: a pod of the same name elsewhere is another pod (R5).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodName {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID.
    pub uid: String,
}

impl PodName {
    fn of(pod: &Pod) -> Self {
        Self {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: pod.uid.clone(),
        }
    }
}

/// Where the node is, and what comes next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Next {
    /// Where the node is.
    pub stage: Stage,
    /// What comes next.
    pub decision: Decision<NodeStep>,
}

/// Chooses the next step of a node that is in work.
pub fn decide(view: &NodeView<'_>, policy: &Policy, now: Timestamp) -> Next {
    let next = undelayed(view, policy, now);
    let Next {
        stage,
        decision: Decision::Wait(wait),
    } = next
    else {
        return next;
    };
    if !view.ready && wait.reason != WaitReason::NodeNotReady {
        // Nothing on an unreachable node can be waited for with a deadline: it is taken up when it returns.
        return Next {
            stage,
            decision: Decision::Wait(Wait {
                reason: WaitReason::NodeNotReady,
                message: format!(
                    "Node {} is NotReady; until it returns: {}",
                    view.name, wait.message
                ),
                until: None,
            }),
        };
    }
    Next {
        stage,
        decision: at_deadline(view, policy, stage, wait, now),
    }
}

/// Gives the wait its deadline, and turns it into what the policy says once that is past.
fn at_deadline(
    view: &NodeView<'_>,
    policy: &Policy,
    stage: Stage,
    wait: Wait,
    now: Timestamp,
) -> Decision<NodeStep> {
    if wait.reason == WaitReason::NodeNotReady {
        return Decision::Wait(wait);
    }
    let is_drain = matches!(stage, Stage::Drain | Stage::DrainDaemonSets);
    let timeout = if is_drain {
        policy.drain_timeout
    } else {
        policy.step_timeout
    };
    let since = match view.stage {
        Some((recorded, since)) if recorded == stage => since,
        Some(_) | None => now,
    };
    let until = since.max(policy.resumed_at.unwrap_or(since)) + timeout;
    if now < until {
        return Decision::Wait(Wait {
            until: Some(until),
            ..wait
        });
    }
    let waited = format!("stage {} of node {} began at {since}", stage.as_str(), view.name);
    match (is_drain, policy.on_blocked) {
        (true, OnBlocked::Wait) => Decision::Wait(Wait { until: None, ..wait }),
        // Once flannel is off the node there is no way to set it aside.
        (true, OnBlocked::Skip) if stage == Stage::Drain => Decision::Run(NodeStep::Skip),
        (true, OnBlocked::Pause | OnBlocked::Skip) => Decision::Halt(Halt {
            reason: HaltReason::DrainBlocked,
            message: format!(
                "{}. {waited} and drain.timeoutSeconds is {}. Remove what blocks, then `kubectl replumb resume`",
                wait.message,
                timeout.as_secs()
            ),
        }),
        (false, OnBlocked::Wait | OnBlocked::Skip | OnBlocked::Pause) => Decision::Halt(Halt {
            reason: HaltReason::DeadlineExceeded,
            message: format!(
                "{}. {waited} and rollout.stepTimeoutSeconds is {}. Mend it, then `kubectl replumb resume`",
                wait.message,
                timeout.as_secs()
            ),
        }),
    }
}

/// The next step or wait, without regard to deadlines.
fn undelayed(view: &NodeView<'_>, policy: &Policy, now: Timestamp) -> Next {
    if let Some(failure) = &view.agent.failure {
        return next(
            Stage::Attach.min(view.stage.map_or(Stage::Cordon, |(stage, _)| stage)),
            Decision::Halt(Halt {
                reason: HaltReason::AgentFailure,
                message: format!("the agent of node {} reports: {failure}", view.name),
            }),
        );
    }
    match &view.network {
        NetworkLabel::Missing | NetworkLabel::Flannel => from_flannel(view, policy, now),
        NetworkLabel::Neither => between(view, policy, now),
        NetworkLabel::Calico => to_calico(view),
        NetworkLabel::Other(value) => next(
            view.stage.map_or(Stage::Cordon, |(stage, _)| stage),
            Decision::Halt(Halt {
                reason: HaltReason::Contradiction,
                message: format!(
                    "Node {}: label projectcalico.org/node-network-during-migration is {value:?}, \
                     needed flannel, none or calico. Somebody else wrote it; set it back",
                    view.name
                ),
            }),
        ),
    }
}

/// The node is on flannel: cordon, drain, label away.
fn from_flannel(view: &NodeView<'_>, policy: &Policy, now: Timestamp) -> Next {
    if view.goal.phase().is_some() {
        return next(
            Stage::StopFlannel,
            Decision::Halt(Halt {
                reason: HaltReason::Contradiction,
                message: format!(
                    "Node {} is labelled for flannel, but its agent was already told to remove flannel. \
                     Somebody set the label back; set it to none to go on",
                    view.name
                ),
            }),
        );
    }
    if !view.unschedulable {
        return next(Stage::Cordon, Decision::Run(NodeStep::Cordon));
    }
    if !view.agent.ready {
        return wait(
            Stage::Drain,
            WaitReason::AgentSilent,
            format!(
                "no agent is Ready on node {}; nothing is evicted before",
                view.name
            ),
        );
    }
    match evict(view, &view.residents.movable, policy, now) {
        Some(decision) => next(Stage::Drain, decision),
        None => next(Stage::StopFlannel, Decision::Run(NodeStep::Label("none"))),
    }
}

/// The node is labelled for neither: flannel goes, the host is detached, then Calico's label.
fn between(view: &NodeView<'_>, policy: &Policy, now: Timestamp) -> Next {
    if !view.unschedulable {
        return next(Stage::Cordon, Decision::Run(NodeStep::Cordon));
    }
    if !view.flannel_pods.is_empty() {
        return wait(
            Stage::StopFlannel,
            WaitReason::FlannelPodRunning,
            format!(
                "flannel's pod is still on node {}: {}",
                view.name,
                view.flannel_pods.join(", ")
            ),
        );
    }
    if let Some(next) = agent_reaches(view, Stage::HoldNewPods, Goal::Held, Phase::Held) {
        return next;
    }
    // A pod without an address waits for the new network already; one with an address lives on the old one.
    let old: Vec<&Pod> = view
        .residents
        .daemon_set
        .iter()
        .chain(&view.residents.movable)
        .copied()
        .filter(|pod| !pod.addresses.is_empty())
        .collect();
    // A host that is detached has no old pod left: an address that is still in the API is about to go.
    if view.agent.phase < Some(Phase::Detached)
        && let Some(decision) = evict(view, &old, policy, now)
    {
        return next(Stage::DrainDaemonSets, decision);
    }
    if let Some(next) = agent_reaches(view, Stage::Detach, Goal::Detached, Phase::Detached) {
        return next;
    }
    next(Stage::StartCalico, Decision::Run(NodeStep::Label("calico")))
}

/// The node is labelled for Calico: wait for it, prove it, lift the cordon.
fn to_calico(view: &NodeView<'_>) -> Next {
    match view.calico_pods.as_slice() {
        [] => {
            return wait(
                Stage::StartCalico,
                WaitReason::CalicoNodeNotReady,
                format!("Calico's DaemonSet has no pod on node {} yet", view.name),
            );
        }
        pods if !pods.iter().any(|(_, ready)| *ready) => {
            let names: Vec<&str> = pods.iter().map(|(name, _)| name.as_str()).collect();
            return wait(
                Stage::StartCalico,
                WaitReason::CalicoNodeNotReady,
                format!("{} on node {} is not Ready", names.join(", "), view.name),
            );
        }
        _ => {}
    }
    if let Some(next) = agent_reaches(view, Stage::Attach, Goal::Calico, Phase::Calico) {
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
    let Some(pod) = &view.probe_pod else {
        return next(Stage::Probe, Decision::Run(NodeStep::CreateProbePod));
    };
    if pod.address.is_none() {
        return wait(
            Stage::Probe,
            WaitReason::ProbePodNotReady,
            format!(
                "the probe pod on node {} is not Ready: {}",
                view.name, pod.message
            ),
        );
    }
    if let Some(prober) = view.probers.iter().find(|prober| prober.reached != Some(true)) {
        return wait(
            Stage::Probe,
            WaitReason::ProbeUnanswered,
            format!(
                "the pod network of node {} is not reached from {} node {}: {}",
                view.name, prober.side, prober.node, prober.message
            ),
        );
    }
    if view.probers.is_empty() {
        return wait(
            Stage::Probe,
            WaitReason::ProbeUnanswered,
            format!("no other Ready node can probe node {}", view.name),
        );
    }
    if view.cordoned_by_us {
        return next(Stage::Uncordon, Decision::Run(NodeStep::Uncordon));
    }
    next(Stage::Uncordon, Decision::Run(NodeStep::Complete))
}

/// Gives the agent its goal and waits until the host is there; `None` once it is.
fn agent_reaches(view: &NodeView<'_>, stage: Stage, goal: Goal, phase: Phase) -> Option<Next> {
    if view.goal.phase() < goal.phase() {
        return Some(next(stage, Decision::Run(NodeStep::Goal(goal))));
    }
    if view.agent.phase >= Some(phase) {
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

/// Evicts these pods; `None` once none is left and none is terminating.
fn evict(view: &NodeView<'_>, pods: &[&Pod], policy: &Policy, now: Timestamp) -> Option<Decision<NodeStep>> {
    let obstacles: Vec<String> = pods
        .iter()
        .chain(&view.residents.static_pods)
        .filter_map(|pod| drain::obstacle(pod, policy.permissions).map(|obstacle| (pod, obstacle)))
        .map(|(pod, obstacle)| describe_obstacle(pod, &obstacle))
        .collect();
    if let Some(first) = obstacles.first() {
        return Some(Decision::Wait(Wait {
            reason: WaitReason::EvictionRefused,
            message: format!("node {}: {first}", view.name),
            until: None,
        }));
    }
    let due: Vec<PodName> = pods
        .iter()
        .filter(|pod| {
            view.refusals
                .get(&pod.uid)
                .is_none_or(|refusal| refusal.next_try <= now)
        })
        .map(|pod| PodName::of(pod))
        .collect();
    if !due.is_empty() && !blocked_past_deadline(view, policy, now) {
        return Some(Decision::Run(NodeStep::Evict(due)));
    }
    if let Some((pod, refusal)) = pods
        .iter()
        .find_map(|pod| Some((*pod, view.refusals.get(&pod.uid)?)))
    {
        return Some(Decision::Wait(Wait {
            reason: if refusal.by_budget {
                WaitReason::DisruptionBudget
            } else {
                WaitReason::EvictionRefused
            },
            message: describe_refusal(pod, refusal, view.budgets),
            until: None,
        }));
    }
    if !pods.is_empty() {
        return Some(Decision::Wait(Wait {
            reason: WaitReason::PodsTerminating,
            message: format!("{} pods are still on node {}", pods.len(), view.name),
            until: None,
        }));
    }
    let terminating: Vec<&Pod> = view
        .residents
        .terminating
        .iter()
        .copied()
        .filter(|pod| !pod.addresses.is_empty())
        .collect();
    terminating.first().map(|pod| {
        Decision::Wait(Wait {
            reason: WaitReason::PodsTerminating,
            message: format!(
                "{} pods terminate on node {}; the first is {} (grace period {} s)",
                terminating.len(),
                view.name,
                pod.key(),
                pod.deletion_grace_seconds.unwrap_or_default()
            ),
            until: None,
        })
    })
}

/// With `onBlocked: Pause` nothing is evicted any more once the time is over: a person has to say "resume".
fn blocked_past_deadline(view: &NodeView<'_>, policy: &Policy, now: Timestamp) -> bool {
    let Some((Stage::Drain | Stage::DrainDaemonSets, since)) = view.stage else {
        return false;
    };
    let until = since.max(policy.resumed_at.unwrap_or(since)) + policy.drain_timeout;
    policy.on_blocked != OnBlocked::Wait && now >= until && !view.refusals.is_empty()
}

fn describe_obstacle(pod: &Pod, obstacle: &drain::Obstacle) -> String {
    match obstacle {
        drain::Obstacle::Bare => {
            format!(
                "pod {} has no controller; delete it or set drain.force",
                pod.key()
            )
        }
        drain::Obstacle::EmptyDir(volumes) => format!(
            "pod {} would lose its emptyDir volumes {}; set drain.deleteEmptyDirData or delete it",
            pod.key(),
            volumes.join(", ")
        ),
        drain::Obstacle::Static => format!(
            "pod {} is a static pod on the pod network; move its manifest out of the kubelet's folder",
            pod.key()
        ),
    }
}

/// The exact budget, its sum and the age: what a person needs at 3 a.m. (R1).
fn describe_refusal(pod: &Pod, refusal: &Refusal, budgets: &[Budget]) -> String {
    let named: Vec<String> = drain::budgets_of(pod, budgets)
        .into_iter()
        .filter(|budget| budget.disruptions_allowed <= 0)
        .map(|budget| {
            format!(
                "PodDisruptionBudget {}/{} allows {} disruptions ({} healthy, {} needed, {} expected)",
                budget.namespace,
                budget.name,
                budget.disruptions_allowed,
                budget.current_healthy,
                budget.desired_healthy,
                budget.expected_pods
            )
        })
        .collect();
    let because = if named.is_empty() {
        refusal.message.clone()
    } else {
        named.join("; ")
    };
    // A time, not an age: the words stay the same from look to look, so they are written once.
    format!(
        "eviction of pod {} refused since {:.0}: {because}",
        pod.key(),
        refusal.since
    )
}

fn next(stage: Stage, decision: Decision<NodeStep>) -> Next {
    Next { stage, decision }
}

fn wait(stage: Stage, reason: WaitReason, message: String) -> Next {
    next(
        stage,
        Decision::Wait(Wait {
            reason,
            message,
            until: None,
        }),
    )
}
