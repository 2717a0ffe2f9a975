//! What a node in work does now, and has done, as it is written down.

use api::node_migration::{NodeMigrationSpec, StepDone, StepNow};
use jiff::Timestamp;

use crate::context::Context;

/// More steps than this of a node are not kept: who goes there and back again and again has seen the first ones.
const MOST_STEPS: usize = 60;

/// Puts a stage that is over into the history.
pub fn finish_stage(context: &Context, spec: &mut NodeMigrationSpec, over: StepNow, now: Timestamp) {
    let seconds = now.duration_since(over.since).as_secs_f64();
    context
        .metrics
        .step_duration
        .with_label_values(&[over.name.as_str()])
        .observe(seconds);
    spec.history.push(StepDone {
        name: over.name,
        started_at: over.since,
        finished_at: now,
    });
    let surplus = spec.history.len().saturating_sub(MOST_STEPS);
    spec.history.drain(..surplus);
}

/// A stage that begins.
pub fn step_now(stage: &str, now: Timestamp) -> StepNow {
    StepNow {
        name: stage.to_owned(),
        since: now,
        reason: String::new(),
        message: String::new(),
        halted: false,
        patience: None,
    }
}
