//! Current action of a node, reported in its NodeMigration, in Events and in metrics.

use std::collections::BTreeMap;

use api::node_migration::{NodeMigrationSpec, TimeLimit};
use engine::decision::{Decision, Wait};
use flannel_to_calico::node::{NodeStep, Policy, Stage};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;

use crate::bounds;
use crate::context::Context;
use crate::events::EventLevel;
use crate::snapshot::Snapshot;
use crate::steps::{finish_stage, step_now};

/// Writes the current stage of the node to its spec; a finished stage is added to the history. A short wait is not
/// written yet.
pub fn record(
    context: &Context,
    spec: &mut NodeMigrationSpec,
    stage: Stage,
    decision: &Decision<NodeStep>,
    policy: &Policy,
    now: Timestamp,
) {
    let mut step = match spec.step.take() {
        Some(step) if step.name == stage.as_str() => step,
        Some(over) => {
            finish_stage(context, spec, over, now);
            step_now(stage.as_str(), now)
        }
        None => step_now(stage.as_str(), now),
    };
    let (reason, message, halted) = match decision {
        Decision::Wait(wait) if wait.is_reported(step.since, context.pace.report_after, now) => {
            (wait.reason.as_str().to_owned(), wait.message.clone(), false)
        }
        Decision::Run(_) | Decision::Settled | Decision::Wait(_) => (String::new(), String::new(), false),
        Decision::Halt(halt) => (halt.reason.as_str().to_owned(), halt.message.clone(), true),
    };
    // A repeated eviction keeps the message of the last refusal, which names the blocker.
    if !matches!(decision, Decision::Run(NodeStep::Evict(_))) {
        step.reason = reason;
        step.message = message;
        bounds::cut_to(&mut step.message, bounds::MESSAGE);
    }
    step.halted = halted;
    // After the clock was set back, the time of the stage restarts instead of waiting for the clock to catch up.
    step.since = step.since.min(now);
    step.time_limit = stage.time_limit_seconds(policy).map(|seconds| TimeLimit {
        seconds,
        from: policy.resumed_at.unwrap_or(step.since).max(step.since),
    });
    spec.step = Some(step);
}

/// Records an Event for the node's wait, if its spec has it, and for its halt.
pub async fn publish_event(
    context: &Context,
    node: &Node,
    decision: &Decision<NodeStep>,
    spec: &NodeMigrationSpec,
) {
    match decision {
        Decision::Run(_) | Decision::Settled => {}
        Decision::Wait(wait) if !is_written(wait, spec) => {}
        Decision::Wait(wait) => {
            context
                .events
                .node(node, EventLevel::Normal, wait.reason, &wait.message)
                .await;
        }
        Decision::Halt(halt) => {
            context
                .events
                .node(node, EventLevel::Warning, halt.reason, &halt.message)
                .await;
        }
    }
}

/// Whether the spec has this wait.
pub fn is_written(wait: &Wait, spec: &NodeMigrationSpec) -> bool {
    spec.step
        .as_ref()
        .is_some_and(|step| step.reason == wait.reason.as_str())
}

/// Counts nodes by stage for the metrics.
pub fn count_nodes(context: &Context, snapshot: &Snapshot) {
    let mut by_stage: BTreeMap<&str, i64> = Stage::ALL.iter().map(|stage| (stage.as_str(), 0)).collect();
    by_stage.extend([("Waiting", 0), ("Skipped", 0), ("Done", 0)]);
    for object in snapshot.node_migrations.values() {
        let spec = &object.spec;
        let phase = match (&spec.step, spec.finished_at) {
            (_, Some(_)) => "Done",
            (Some(step), None) if spec.started => Stage::read(&step.name).map_or("Waiting", Stage::as_str),
            (_, None) if spec.skipped => "Skipped",
            (_, None) => "Waiting",
        };
        *by_stage.entry(phase).or_default() += 1;
    }
    for (phase, nodes) in by_stage {
        context.metrics.nodes.with_label_values(&[phase]).set(nodes);
    }
}
