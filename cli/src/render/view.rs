//! The progress of a migration: one view for text and JSON output.

use api::migration::{Desired, MigrationPhase, Progress, Warnings};
use api::traffic::ClassCount;
use api::{Migration, NodeMigration};
use engine::decision::WaitReason;
use engine::reason::{BlockReason, Reason};
use jiff::Timestamp;
use kube::ResourceExt;
use serde::Serialize;

use crate::exit::Outcome;
use crate::kinds::{self, KindView};

/// The progress of a migration.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct View {
    /// Name of the Migration.
    pub migration: String,
    /// The phase.
    pub phase: MigrationPhase,
    /// The desired action.
    pub desired: Desired,
    /// Whether no other node starts.
    pub paused: bool,
    /// Whether the status is of the current spec.
    pub current: bool,
    /// Whether legacy pods are restarted once every node is on the new network, so that the migration continues.
    pub restarts_pods: bool,
    /// The reason why the migration does not continue; empty if it does.
    pub reason: String,
    /// The current action or wait.
    pub message: String,
    /// Objects of others that affect only decisions about themselves.
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
    /// Probes sent and lost between pods, by class of path.
    pub traffic: Vec<ClassCount>,
    /// Nodes in order.
    pub nodes: Vec<NodeView>,
    /// The progress of a kind with stages; absent for other kinds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub of_kind: Option<KindView>,
}

/// The progress of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeView {
    /// Name of the node.
    pub node: String,
    /// The phase that its agent reports; null without a report.
    pub phase: Option<&'static str>,
    /// The current step; `Waiting`, `Deferred`, `Skipped`, `Returned` or `Done` if the node is not in progress.
    pub step: String,
    /// Since when; null if the node is not in progress.
    pub since: Option<Timestamp>,
    /// The reason of the wait; empty without a wait.
    pub reason: String,
    /// The awaited state and object.
    pub message: String,
    /// Whether the user has to decide.
    pub halted: bool,
    /// The failure that stops its agent.
    pub failure: Option<String>,
    /// The duration of the migration of the node, in seconds, once it is done.
    pub seconds: Option<i64>,
    /// Leftovers of the old network, once the node is done.
    pub leftovers: Vec<String>,
    /// The changes on its host that a rollback would undo.
    pub changes: Vec<String>,
}

impl View {
    /// The view of a Migration and its nodes.
    pub fn of(migration: &Migration, nodes: &[NodeMigration]) -> Self {
        let status = migration.status.clone().unwrap_or_default();
        Self {
            migration: migration.name_any(),
            phase: status.phase,
            desired: migration.spec.desired,
            paused: status.paused,
            current: status.observed_generation >= migration.metadata.generation.unwrap_or_default(),
            restarts_pods: kinds::of(&migration.spec).continues_when_mixed(&migration.spec),
            of_kind: KindView::of(&status),
            reason: status.reason,
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

    /// Whether the migration makes no progress for this reason.
    fn has(&self, reason: impl Into<Reason>) -> bool {
        Reason::read(&self.reason) == Some(reason.into())
    }

    /// The outcome of a migration that has ended or does not continue without the user; `None` while it continues.
    pub fn end(&self) -> Option<Outcome> {
        if !self.current {
            return None;
        }
        match self.phase {
            // A rollback was requested too late.
            _ if self.has(BlockReason::PastReturn) => Some(Outcome::Failed),
            MigrationPhase::Completed | MigrationPhase::RolledBack => Some(Outcome::Done),
            // In place: all nodes are done, and the remaining work waits for pods that may run for days.
            MigrationPhase::Mixed => (!self.restarts_pods).then_some(Outcome::Done),
            MigrationPhase::Halted => Some(Outcome::Failed),
            MigrationPhase::Refused => Some(Outcome::Refused),
            MigrationPhase::Rolling if self.paused && self.progress.working.is_empty() => {
                Some(Outcome::Paused)
            }
            MigrationPhase::Preparing | MigrationPhase::Finishing
                if self.of_kind.is_some() && self.paused && self.has(WaitReason::Paused) =>
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

    /// The next command for the user; empty if there is nothing to do.
    pub fn next(&self) -> String {
        match (self.phase, self.end()) {
            (MigrationPhase::Planned, _) => {
                "next: `kubectl replumb plan`, then `kubectl replumb apply`".to_owned()
            }
            (MigrationPhase::Mixed, Some(_)) => {
                "next: nothing to do; `kubectl rollout restart` of a workload moves its pods to Calico's network"
                    .to_owned()
            }
            (_, Some(Outcome::Failed)) if self.has(BlockReason::PastReturn) => {
                "next: `kubectl replumb resume` completes the migration".to_owned()
            }
            (MigrationPhase::RolledBack, _) => {
                "next: nothing to do; `kubectl delete migration` removes the Migration".to_owned()
            }
            (_, Some(Outcome::Refused)) if self.has(BlockReason::AnotherMigration) => {
                "next: end the other Migration first; this one is then planned automatically".to_owned()
            }
            (_, Some(Outcome::Refused)) => "next: `kubectl replumb preflight` shows every check".to_owned(),
            (_, Some(Outcome::Failed)) => {
                let again = match self.desired {
                    Desired::Abort => "`kubectl replumb abort` again",
                    Desired::Rollback => "`kubectl replumb rollback --all` again",
                    Desired::Plan | Desired::Run | Desired::Pause => "`kubectl replumb resume`",
                };
                format!("next: correct the cause in the message, then run {again}")
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
        let reported = report.and_then(kinds::node_progress).unwrap_or_default();
        let mut view = Self {
            node: spec.node_name.clone(),
            phase: reported.phase,
            step: "Waiting".to_owned(),
            since: None,
            reason: String::new(),
            message: String::new(),
            halted: false,
            failure,
            seconds: None,
            leftovers: Vec::new(),
            changes: reported.changes,
        };
        if let Some(finished) = spec.finished_at {
            "Done".clone_into(&mut view.step);
            view.seconds = spec
                .started_at
                .map(|started| finished.duration_since(started).as_secs());
            view.leftovers = reported.leftovers;
        } else if spec.started {
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
            "rolled back to the old network".clone_into(&mut view.message);
        } else if spec.skipped {
            "Skipped".clone_into(&mut view.step);
            "drain blocked; tried again after all other nodes".clone_into(&mut view.message);
        } else if progress.deferred.contains(&spec.node_name) {
            "Deferred".clone_into(&mut view.step);
            "NotReady or not prepared yet; starts once it is Ready".clone_into(&mut view.message);
        }
        if report.is_none() {
            let before = if view.message.is_empty() { "" } else { "; " };
            view.message = format!("{}{before}no report from its agent", view.message);
        }
        view
    }

    /// Whether the node waits for the user or for the owner of a pod.
    pub fn is_blocked(&self) -> bool {
        let by_pods = [WaitReason::DisruptionBudget, WaitReason::EvictionRefused];
        self.halted || self.failure.is_some() || by_pods.iter().any(|reason| reason.as_str() == self.reason)
    }

    /// The node on one line, without ages.
    pub fn line(&self) -> String {
        let phase = self.phase.unwrap_or("-");
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
            line.push_str(": agent failure: ");
            line.push_str(failure);
        }
        line
    }
}
