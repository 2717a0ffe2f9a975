//! Current stage and history of a node in the rollout.

use api::node_migration::{CurrentStep, FinishedStep, NodeMigrationSpec};
use jiff::Timestamp;

use crate::context::Context;

/// Most stages in the history of a node: after many changes of direction, the first ones are not needed.
const MOST_STEPS: usize = 60;

/// Adds a finished stage to the history.
pub fn finish_stage(context: &Context, spec: &mut NodeMigrationSpec, over: CurrentStep, now: Timestamp) {
    let seconds = now.duration_since(over.since).as_secs_f64();
    context
        .metrics
        .step_duration
        .with_label_values(&[over.name.as_str()])
        .observe(seconds);
    spec.history.push(FinishedStep {
        name: over.name,
        started_at: over.since,
        finished_at: now,
    });
    let surplus = spec.history.len().saturating_sub(MOST_STEPS);
    spec.history.drain(..surplus);
}

/// A stage that starts now.
pub fn step_now(stage: &str, now: Timestamp) -> CurrentStep {
    CurrentStep {
        name: stage.to_owned(),
        since: now,
        reason: String::new(),
        message: String::new(),
        halted: false,
        time_limit: None,
    }
}
