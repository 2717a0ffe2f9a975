//! One pass: observe → view → decide → apply one step → report.

use api::migration::{Desired, Direction, MigrationPhase};
use api::{Migration, MigrationStatus};
use engine::decision::WaitReason;
use example::LABEL;
use example::api::{Spec, Status};
use example::decide::{Step, decide, stage};
use kube::ResourceExt as _;
use serde_json::json;

use super::apply::label;
use super::view::view;
use super::{adopt, observe};
use crate::cache::Cache;
use crate::clock;
use crate::context::Context;
use crate::memory::Memory;
use crate::pass_error::PassError;
use crate::snapshot::Snapshot;
use crate::staged::{self, Gate};
use crate::waits::wait;
use crate::write::describe;

/// One pass of a started migration.
pub(super) async fn advance(
    context: &Context,
    cache: &Cache,
    memory: &mut Memory,
    migration: &Migration,
    spec: &Spec,
    mut known: Status,
    status: &mut MigrationStatus,
) -> Result<(), PassError> {
    if status.phase.is_over() {
        return Ok(());
    }
    let now = clock::now();
    let direction = match migration.spec.desired {
        Desired::Rollback | Desired::Abort => Direction::Rollback,
        Desired::Plan | Desired::Run | Desired::Pause => Direction::Forward,
    };
    adopt(context, cache, migration).await?;
    let snapshot = Snapshot::take(cache, &migration.name_any(), &context.namespace);
    let watched = staged::watch_one_network(context, memory, migration, &snapshot, false, status).await?;
    let gate = Gate::of(
        context,
        migration,
        &watched,
        status,
        now,
        || "the ConfigMap keeps its label, or has none".to_owned(),
        |_| watched.hold(migration),
    )
    .await;
    let name = &known.settings.config_map.value;
    let Some(object) = observe::config_map(context, name).await? else {
        let message = format!("ConfigMap {name} was deleted; create it again, and the migration continues");
        wait(status, WaitReason::ConfigurationFollowUp, message);
        return Ok(());
    };
    let is_labelled = object.labels().contains_key(LABEL);
    let stage = stage(direction, is_labelled);
    staged::enter(&mut known.stage, &mut known.history, stage, direction, now);
    let view = view(spec, direction, is_labelled, &known, &snapshot, &gate, now);
    status.phase = match direction {
        Direction::Forward => MigrationPhase::Rolling,
        Direction::Rollback => MigrationPhase::RollingBack,
    };
    match staged::report(decide(&view), status) {
        Some(Step::SetLabel) => label(context, &object, json!("true"), status).await?,
        Some(Step::RemoveLabel) => label(context, &object, json!(null), status).await?,
        Some(Step::Complete) if staged::end_traffic(context, memory, &snapshot, status).await? => {
            staged::leave(&mut known.stage, &mut known.history, now);
            let state = if view.is_labelled { "has" } else { "does not have" };
            let message = format!("{} {state} the label {LABEL}", describe(&object));
            staged::complete(context, migration, direction, now, message, status).await;
        }
        Some(Step::Complete) | None => {}
    }
    gate.halt(status);
    status.example = Some(known);
    Ok(())
}
