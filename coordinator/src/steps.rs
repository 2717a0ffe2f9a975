//! What a node in work does now, and has done, as it is written down.

use api::node_migration::{NodeMigrationSpec, StepDone, StepNow};
use jiff::Timestamp;

use crate::context::Context;

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
