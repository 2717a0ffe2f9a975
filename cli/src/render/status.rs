//! How far a migration is: one view of it, for people and for programs.

use api::migration::{Desired, LegacyPods, MigrationPhase, Progress};
use api::traffic::ClassCount;
use api::{Migration, NodeMigration};
use jiff::Timestamp;
use kube::ResourceExt;
use plan::decision::WaitReason;
use plan::flannel_to_calico::phase::Phase;
use serde::Serialize;

use super::table::{cut, table, wrap};
use crate::age::age;
use crate::cluster::phase_text;
use crate::exit::Outcome;
use crate::pod_cidr::status::RangeView;

/// The reason of a Migration that was to go back and cannot any more.
const PAST_RETURN: &str = "PastReturn";

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
    /// How far a change of the pods' range is; absent of another kind.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<RangeView>,
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
            range: RangeView::of(&status),
            blocked: status.blocked,
            message: status.message,
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
                if self.range.is_some() && self.paused && self.blocked == WaitReason::Paused.as_str() =>
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
    fn is_blocked(&self) -> bool {
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

/// The migration on a line, without what changes with the clock alone.
pub fn line(view: &View) -> String {
    let mut line = format!("Migration {}: {}", view.migration, words(view));
    if view.progress.nodes > 0 {
        line.push_str(&format!(", {}", done(view)));
    }
    for part in [&view.blocked, &view.message] {
        if !part.is_empty() {
            line.push_str(": ");
            line.push_str(part);
        }
    }
    line
}

/// One class of path: what was lost of how much, and for how long at a time.
fn traffic(count: &ClassCount) -> String {
    let lost = count.totals;
    let gap = if lost.lost == 0 {
        String::new()
    } else {
        format!(", longest gap {} ms", lost.longest_gap_milliseconds)
    };
    format!(
        "{}: {} of {} lost{gap}",
        count.class.words(),
        lost.lost,
        lost.sent
    )
}

/// How many nodes are where they should be.
fn done(view: &View) -> String {
    let what = match view.phase {
        MigrationPhase::RollingBack | MigrationPhase::RolledBack => "back",
        MigrationPhase::Pending
        | MigrationPhase::Planning
        | MigrationPhase::Planned
        | MigrationPhase::Refused
        | MigrationPhase::Preparing
        | MigrationPhase::Rolling
        | MigrationPhase::Mixed
        | MigrationPhase::Finishing
        | MigrationPhase::Completed
        | MigrationPhase::Halted => "done",
    };
    if view.range.is_some() {
        return format!("{} {what}", view.progress.text);
    }
    format!("{} nodes {what}", view.progress.text)
}

fn words(view: &View) -> String {
    let phase = phase_text(view.phase);
    if view.paused {
        format!("{phase}, paused")
    } else {
        phase
    }
}

/// The whole of it for people. `width` cuts the table's lines, not the texts below it.
pub fn status(view: &View, now: Timestamp, width: Option<usize>) -> String {
    let mut head = vec![
        vec!["Migration".to_owned(), view.migration.clone()],
        vec!["Phase".to_owned(), words(view)],
    ];
    let mut add = |name: &str, text: String| {
        if !text.is_empty() {
            head.push(vec![name.to_owned(), text]);
        }
    };
    if view.progress.nodes > 0 {
        add("Progress", done(view));
    }
    for (name, text) in view.range.iter().flat_map(|range| range.rows(now)) {
        add(name, text);
    }
    match (view.started_at, view.completed_at) {
        (Some(started), Some(completed)) => add(
            "Took",
            format!(
                "{} (completed {} ago)",
                age(started, completed),
                age(completed, now)
            ),
        ),
        (Some(started), None) => add("Running", age(started, now)),
        (None, _) => add("Running", "not started; nothing has changed".to_owned()),
    }
    add("Blocked", view.blocked.clone());
    let message = wrap(&view.message, width.unwrap_or(110).saturating_sub(11).max(40));
    for (index, text) in message.into_iter().enumerate() {
        add(if index == 0 { "Message" } else { "" }, text);
    }
    for (index, count) in view.traffic.iter().enumerate() {
        add(if index == 0 { "Traffic" } else { "" }, traffic(count));
    }
    if !view.current {
        add(
            "Note",
            "the coordinator has not looked at the newest spec yet".to_owned(),
        );
    }
    let mut text = table(&[], &head);
    // Pods of a range move wherever they are: no node has a step of its own.
    if !view.nodes.is_empty() && view.range.is_none() {
        text.push('\n');
        text.push_str(&nodes(view, now, width));
    }
    text.push_str(&blockers(view, now, width));
    let next = view.next();
    if !next.is_empty() {
        text.push_str(&format!("\n{next}\n"));
    }
    text
}

fn nodes(view: &View, now: Timestamp, width: Option<usize>) -> String {
    let rows: Vec<Vec<String>> = view
        .nodes
        .iter()
        .map(|node| {
            let message = if node.is_blocked() {
                let what = if node.halted { "halted, " } else { "" };
                let reason = if node.reason.is_empty() {
                    "AgentFailure"
                } else {
                    &node.reason
                };
                format!("{what}{reason}: see below")
            } else if node.step == "Done" && !node.leftovers.is_empty() {
                format!("left of the old network: {}", node.leftovers.join(", "))
            } else if let Some(seconds) = node.seconds {
                format!("took {seconds} s")
            } else {
                node.message.clone()
            };
            vec![
                node.node.clone(),
                node.phase.map_or("-", Phase::as_str).to_owned(),
                node.step.clone(),
                node.since.map_or_else(|| "-".to_owned(), |since| age(since, now)),
                message,
            ]
        })
        .collect();
    let text = table(&["NODE", "PHASE", "STEP", "AGE", "MESSAGE"], &rows);
    match width {
        Some(width) => text
            .lines()
            .map(|line| format!("{}\n", cut(line, width)))
            .collect(),
        None => text,
    }
}

/// Who blocks, in full: the pod, its budget and what the budget says stand in the message.
fn blockers(view: &View, now: Timestamp, width: Option<usize>) -> String {
    let mut text = String::new();
    for node in view.nodes.iter().filter(|node| node.is_blocked()) {
        let since = node
            .since
            .map(|since| format!(" for {}", age(since, now)))
            .unwrap_or_default();
        let reason = if node.reason.is_empty() {
            "AgentFailure"
        } else {
            &node.reason
        };
        text.push_str(&format!(
            "\nnode {} is in {}{since}: {reason}\n",
            node.node, node.step
        ));
        let parts = [Some(&node.message), node.failure.as_ref()];
        for part in parts.into_iter().flatten().filter(|part| !part.is_empty()) {
            for line in wrap(part, width.unwrap_or(110).saturating_sub(4).max(40)) {
                text.push_str(&format!("    {line}\n"));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn nodes_in_order_with_step_age_and_who_blocks() {
        let (migration, nodes) = fixture::rolling();
        let view = View::of(&migration, &nodes);
        assert_eq!(view.end(), None);
        insta::assert_snapshot!(status(&view, fixture::now(), None), @r"
        Migration  flannel-to-calico
        Phase      Rolling
        Progress   1/3 nodes done
        Running    5m0s
        Blocked    DisruptionBudget
        Message    eviction of pod default/web-1 refused since 2026-03-01T10:04:10Z: PodDisruptionBudget default/web
                   allows 0 disruptions (2 healthy, 2 needed, 2 expected)

        NODE      PHASE    STEP     AGE   MESSAGE
        worker-1  Calico   Done     -     took 42 s
        worker-2  Flannel  Drain    1m0s  DisruptionBudget: see below
        worker-3  Flannel  Waiting  -

        node worker-2 is in Drain for 1m0s: DisruptionBudget
            eviction of pod default/web-1 refused since 2026-03-01T10:04:10Z: PodDisruptionBudget default/web allows 0
            disruptions (2 healthy, 2 needed, 2 expected)
        ");
    }

    #[test]
    fn a_terminal_cuts_the_table_and_not_the_blockers() {
        let (migration, nodes) = fixture::rolling();
        let text = status(&View::of(&migration, &nodes), fixture::now(), Some(60));
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
        assert!(text.contains("default/web"), "{text}");
    }

    #[test]
    fn every_end_has_its_exit_code_and_an_old_status_has_none() {
        let (mut migration, nodes) = fixture::rolling();
        let mut of = |phase, paused, working: &[&str]| {
            let status = migration.status.as_mut().unwrap();
            status.phase = phase;
            status.paused = paused;
            status.progress.working = working.iter().map(|node| (*node).to_owned()).collect();
            View::of(&migration, &nodes).end()
        };
        assert_eq!(of(MigrationPhase::Completed, false, &[]), Some(Outcome::Done));
        assert_eq!(of(MigrationPhase::Halted, false, &["a"]), Some(Outcome::Failed));
        assert_eq!(of(MigrationPhase::Refused, false, &[]), Some(Outcome::Refused));
        assert_eq!(of(MigrationPhase::Rolling, true, &[]), Some(Outcome::Paused));
        assert_eq!(of(MigrationPhase::Rolling, true, &["a"]), None);
        assert_eq!(of(MigrationPhase::Finishing, true, &[]), None);
        migration.metadata.generation = Some(9);
        migration.status.as_mut().unwrap().phase = MigrationPhase::Halted;
        assert_eq!(View::of(&migration, &nodes).end(), None);
    }

    #[test]
    fn a_line_does_not_change_with_the_clock() {
        let (migration, nodes) = fixture::rolling();
        let view = View::of(&migration, &nodes);
        assert_eq!(view.nodes[0].line(), "node worker-1: Calico, Done in 42 s");
        assert!(
            view.nodes[1]
                .line()
                .contains("Drain: DisruptionBudget: eviction of pod default/web-1")
        );
        assert!(
            line(&view).starts_with("Migration flannel-to-calico: Rolling, 1/3 nodes done"),
            "{}",
            line(&view)
        );
    }

    #[test]
    fn a_silent_agent_is_told() {
        let (migration, mut nodes) = fixture::rolling();
        nodes[2].status = None;
        let view = View::of(&migration, &nodes);
        assert_eq!(view.nodes[2].phase, None);
        assert_eq!(view.nodes[2].message, "no report from its agent");
        nodes[1].status = None;
        let message = &View::of(&migration, &nodes).nodes[1].message;
        assert!(
            message.starts_with("eviction of pod") && message.ends_with("; no report from its agent"),
            "{message}"
        );
    }
}
