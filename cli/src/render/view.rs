//! How far a migration is: one view of it, for people and for programs.

use api::migration::{Desired, LegacyPods, MigrationPhase, Progress, Warnings};
use api::traffic::ClassCount;
use api::{Migration, NodeMigration};
use engine::decision::WaitReason;
use flannel_to_calico::phase::Phase;
use jiff::Timestamp;
use kube::ResourceExt;
use serde::Serialize;

use crate::exit::Outcome;
use crate::kinds::KindView;

/// The reason of a Migration that was to go back and cannot any more.
const PAST_RETURN: &str = "PastReturn";

/// The reason of a Migration that waits for another one's end.
const ANOTHER: &str = "AnotherMigration";

/// How far a migration is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct View {
    /// Name of the Migration.
    pub migration: String,
    /// Where it is.
    pub phase: MigrationPhase,
    /// What is wanted.
    pub desired: Desired,
    /// Whether no other node starts.
    pub paused: bool,
    /// Whether the status speaks of the spec as it is now.
    pub current: bool,
    /// Whether pods from before are restarted once every node is on the new network: then it goes on to its end.
    pub restarts_pods: bool,
    /// Why it does not go on; empty when it does.
    pub blocked: String,
    /// What happens now.
    pub message: String,
    /// Objects of others that cost decisions about them, and stop nothing else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warnings: Option<Warnings>,
    /// Nodes by phase.
    pub progress: Progress,
    /// When the first change was made.
    pub started_at: Option<Timestamp>,
    /// When it was completed.
    pub completed_at: Option<Timestamp>,
    /// Hash of the plan.
    pub plan_hash: Option<String>,
    /// What was sent and lost between pods, by class of path.
    pub traffic: Vec<ClassCount>,
    /// Nodes in order.
    pub nodes: Vec<NodeView>,
    /// How far it is, of a kind that goes in stages; absent of another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_kind: Option<KindView>,
}

/// How far a node is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeView {
    /// Name of the node.
    pub node: String,
    /// What its agent proved; absent without an agent's report.
    pub phase: Option<Phase>,
    /// The step that it is in; `Waiting`, `Deferred`, `Skipped` or `Done` out of work.
    pub step: String,
    /// Since when; absent out of work.
    pub since: Option<Timestamp>,
    /// Why it waits; empty when it does not.
    pub reason: String,
    /// What is waited for, on which object.
    pub message: String,
    /// Whether a person has to decide.
    pub halted: bool,
    /// Why its agent does not go on.
    pub failure: Option<String>,
    /// How long the node took, in seconds, once it is done.
    pub seconds: Option<i64>,
    /// What of the old network is still there, once it is done.
    pub leftovers: Vec<String>,
    /// What the way back would change on its host.
    pub changes: Vec<String>,
}

impl View {
    /// What was read, as a view.
    pub fn of(migration: &Migration, nodes: &[NodeMigration]) -> Self {
        let status = migration.status.clone().unwrap_or_default();
        Self {
            migration: migration.name_any(),
            phase: status.phase,
            desired: migration.spec.desired,
            paused: status.paused,
            current: status.observed_generation >= migration.metadata.generation.unwrap_or_default(),
            restarts_pods: migration
                .spec
                .flannel_to_calico
                .as_ref()
                .is_some_and(|kind| kind.legacy_pods == LegacyPods::Restart),
            of_kind: KindView::of(&status),
            blocked: status.blocked,
            message: status.message,
            warnings: status.warnings,
            nodes: nodes
                .iter()
                .map(|object| NodeView::of(object, &status.progress))
                .collect(),
            progress: status.progress,
            started_at: status.started_at,
            completed_at: status.completed_at,
            plan_hash: status.plan.map(|plan| plan.hash),
            traffic: status.traffic,
        }
    }

    /// How it ended, or why it does not go on by itself; `None` while it does.
    pub fn end(&self) -> Option<Outcome> {
        if !self.current {
            return None;
        }
        match self.phase {
            // It was to go back, and it is too late for that.
            _ if self.blocked == PAST_RETURN => Some(Outcome::Failed),
            MigrationPhase::Completed | MigrationPhase::RolledBack => Some(Outcome::Done),
            // In place: the swap is over, and what is left to do follows pods that may live for days.
            MigrationPhase::Mixed => (!self.restarts_pods).then_some(Outcome::Done),
            MigrationPhase::Halted => Some(Outcome::Failed),
            MigrationPhase::Refused => Some(Outcome::Refused),
            MigrationPhase::Rolling if self.paused && self.progress.working.is_empty() => {
                Some(Outcome::Paused)
            }
            MigrationPhase::Preparing | MigrationPhase::Finishing
                if self.of_kind.is_some() && self.paused && self.blocked == WaitReason::Paused.as_str() =>
            {
                Some(Outcome::Paused)
            }
            MigrationPhase::Pending
            | MigrationPhase::Planning
            | MigrationPhase::Planned
            | MigrationPhase::Preparing
            | MigrationPhase::Rolling
            | MigrationPhase::Finishing
            | MigrationPhase::RollingBack => None,
        }
    }

    /// What a person does next; empty when there is nothing to do.
    pub fn next(&self) -> String {
        match (self.phase, self.end()) {
            (MigrationPhase::Planned, _) => {
                "next: `kubectl replumb plan`, then `kubectl replumb apply`".to_owned()
            }
            (MigrationPhase::Mixed, Some(_)) => {
                "next: nothing has to be done; `kubectl rollout restart` of a workload moves its pods to Calico's network"
                    .to_owned()
            }
            (_, Some(Outcome::Failed)) if self.blocked == PAST_RETURN => {
                "next: `kubectl replumb resume` finishes it".to_owned()
            }
            (MigrationPhase::RolledBack, _) => {
                "next: nothing has to be done; `kubectl delete migration` forgets it".to_owned()
            }
            (_, Some(Outcome::Refused)) if self.blocked == ANOTHER => {
                "next: end that one first; this one is looked at by itself then".to_owned()
            }
            (_, Some(Outcome::Refused)) => "next: `kubectl replumb preflight` shows every check".to_owned(),
            (_, Some(Outcome::Failed)) => {
                let again = match self.desired {
                    Desired::Abort => "`kubectl replumb abort` once more",
                    Desired::Rollback => "`kubectl replumb rollback --all` once more",
                    Desired::Plan | Desired::Run | Desired::Pause => "`kubectl replumb resume`",
                };
                format!("next: mend what the message says, then {again}")
            }
            (_, Some(Outcome::Paused)) => "next: `kubectl replumb resume`".to_owned(),
            (_, Some(Outcome::Done) | None) => String::new(),
        }
    }
}

impl NodeView {
    fn of(object: &NodeMigration, progress: &Progress) -> Self {
        let spec = &object.spec;
        let report = object.status.as_ref();
        let failure = report
            .and_then(|report| report.failure.as_ref())
            .map(|failure| failure.message.clone());
        let mut view = Self {
            node: spec.node_name.clone(),
            phase: report.and_then(|report| report.phase),
            step: "Waiting".to_owned(),
            since: None,
            reason: String::new(),
            message: String::new(),
            halted: false,
            failure,
            seconds: None,
            leftovers: Vec::new(),
            changes: report.map(|report| report.changes.clone()).unwrap_or_default(),
        };
        if let Some(finished) = spec.finished_at {
            "Done".clone_into(&mut view.step);
            view.seconds = spec
                .started_at
                .map(|started| finished.duration_since(started).as_secs());
            view.leftovers = report.map(|report| report.leftovers.clone()).unwrap_or_default();
        } else if spec.admitted {
            "Starting".clone_into(&mut view.step);
            if let Some(step) = &spec.step {
                view.step.clone_from(&step.name);
                view.since = Some(step.since);
                view.reason.clone_from(&step.reason);
                view.message.clone_from(&step.message);
                view.halted = step.halted;
            }
            if view.message.is_empty() {
                view.message = report.map(|report| report.message.clone()).unwrap_or_default();
            }
        } else if spec.returned_at.is_some() {
            "Returned".clone_into(&mut view.step);
            "is on the old network, as it was before".clone_into(&mut view.message);
        } else if spec.skipped {
            "Skipped".clone_into(&mut view.step);
            "its drain was blocked; it comes again after all others".clone_into(&mut view.message);
        } else if progress.deferred.contains(&spec.node_name) {
            "Deferred".clone_into(&mut view.step);
            "NotReady or not prepared yet; it is taken up when it returns".clone_into(&mut view.message);
        }
        if report.is_none() {
            let before = if view.message.is_empty() { "" } else { "; " };
            view.message = format!("{}{before}no report from its agent", view.message);
        }
        view
    }

    /// Whether somebody else has to do something before the node goes on.
    pub fn is_blocked(&self) -> bool {
        let by_pods = [WaitReason::DisruptionBudget, WaitReason::EvictionRefused];
        self.halted || self.failure.is_some() || by_pods.iter().any(|reason| reason.as_str() == self.reason)
    }

    /// The node on a line, without what changes with the clock alone.
    pub fn line(&self) -> String {
        let phase = self.phase.map_or("-", Phase::as_str);
        let took = self
            .seconds
            .map(|seconds| format!(" in {seconds} s"))
            .unwrap_or_default();
        let mut line = format!("node {}: {phase}, {}{took}", self.node, self.step);
        for part in [&self.reason, &self.message] {
            if !part.is_empty() {
                line.push_str(": ");
                line.push_str(part);
            }
        }
        if let Some(failure) = &self.failure {
            line.push_str(": its agent: ");
            line.push_str(failure);
        }
        line
    }
}
