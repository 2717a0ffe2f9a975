//! The view of one pass: everything that its decision depends on.

use api::migration::Direction;
use example::api::{Spec, Status};
use example::decide::{Stage, View};
use jiff::{SignedDuration, Timestamp};

use super::observe::kernels;
use crate::snapshot::Snapshot;
use crate::staged::Gate;

/// The view. `is_labelled`: whether the ConfigMap has the label.
pub(super) fn view(
    spec: &Spec,
    direction: Direction,
    is_labelled: bool,
    known: &Status,
    snapshot: &Snapshot,
    gate: &Gate,
    now: Timestamp,
) -> View {
    let kernels = kernels(snapshot.node_migrations.values().map(AsRef::as_ref));
    View {
        direction,
        is_labelled,
        held_until: held_until(spec, known, now),
        silent: kernels
            .into_iter()
            .filter(|(_, kernel)| kernel.is_none())
            .map(|(node, _)| node)
            .collect(),
        hold: gate.hold.clone(),
    }
}

/// When the migration may complete; `None` if that is now, or the stage is another one.
fn held_until(spec: &Spec, known: &Status, now: Timestamp) -> Option<Timestamp> {
    let stage = known.stage.as_ref().filter(|stage| stage.name == Stage::Hold)?;
    let until = stage.since + SignedDuration::from_secs(i64::from(spec.hold_seconds));
    (now < until).then_some(until)
}
