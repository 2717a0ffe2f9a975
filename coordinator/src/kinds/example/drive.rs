//! One pass: the observed state gives a view, the view a decision, the decision one step.

use api::migration::{Desired, Direction, MigrationPhase};
use api::{Migration, MigrationStatus};
use engine::decision::WaitReason;
use example::LABEL;
use example::api::{Spec, Status};
use example::decide::{Stage, Step, View, decide, stage};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, ResourceExt as _};
use serde_json::json;

use super::{adopt, kernels, read};
use crate::cache::Cache;
use crate::context::Context;
use crate::memory::Memory;
use crate::snapshot::Snapshot;
use crate::staged::{self, Gate};
use crate::waits::wait;
use crate::write::{self, WriteError, describe};

/// One pass of a started migration.
pub(super) async fn advance(
    context: &Context,
    cache: &Cache,
    memory: &mut Memory,
    migration: &Migration,
    spec: &Spec,
    mut known: Status,
    status: &mut MigrationStatus,
) -> Result<(), WriteError> {
    if status.phase.is_over() {
        return Ok(());
    }
    let now = Timestamp::now();
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
    let Some(object) = read(context, name).await? else {
        let message = format!("ConfigMap {name} was deleted; create it again, and the migration continues");
        wait(status, WaitReason::ConfigurationFollowUp, message);
        return Ok(());
    };
    let is_labelled = object.labels().contains_key(LABEL);
    let stage = stage(direction, is_labelled);
    staged::enter(&mut known.stage, &mut known.history, stage, direction, now);
    let silent = kernels(snapshot.node_migrations.values().map(AsRef::as_ref));
    let view = View {
        direction,
        is_labelled,
        held_until: held_until(spec, &known, now),
        silent: silent
            .into_iter()
            .filter(|(_, kernel)| kernel.is_none())
            .map(|(node, _)| node)
            .collect(),
        hold: gate.hold.clone(),
    };
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

/// When the migration may complete; `None` if that is now, or the stage is another one.
fn held_until(spec: &Spec, known: &Status, now: Timestamp) -> Option<Timestamp> {
    let stage = known.stage.as_ref().filter(|stage| stage.name == Stage::Hold)?;
    let until = stage.since + SignedDuration::from_secs(i64::from(spec.hold_seconds));
    (now < until).then_some(until)
}

/// Sets or removes the label.
async fn label(
    context: &Context,
    object: &ConfigMap,
    value: serde_json::Value,
    status: &mut MigrationStatus,
) -> Result<(), WriteError> {
    let objects: Api<ConfigMap> = Api::namespaced(context.client.clone(), &context.namespace);
    let change = json!({ "metadata": { "labels": { LABEL: value } } });
    write::patch_as_read(&objects, object, "labelling", change).await?;
    staged::done(
        format!("label {LABEL} of {} is written", describe(object)),
        status,
    );
    Ok(())
}
