//! The effect of a rollback of calicoDatastore.

use api::Migration;

use crate::error::CliError;
use crate::rollback_targets::RollbackTargets;
use crate::table::wrap;

/// Width of the text.
const WIDTH: usize = 110;

/// Refuses a rollback of single nodes, and a rollback after the point of no return.
pub fn possible(migration: &Migration, targets: &RollbackTargets) -> Result<(), CliError> {
    let not_now = |state: &str, hint: &str| CliError::NotPossible {
        name: migration.metadata.name.clone().unwrap_or_default(),
        state: state.to_owned(),
        hint: hint.to_owned(),
    };
    if !targets.nodes.is_empty() {
        return Err(not_now(
            "converts Calico's datastore, which all nodes share: single nodes cannot be rolled back",
            "`kubectl replumb rollback --all` rolls back the whole migration; `kubectl replumb pause` stops it",
        ));
    }
    let known = migration
        .status
        .as_ref()
        .and_then(|status| status.calico_datastore.as_ref());
    if known.is_some_and(|known| known.opened_at.is_some()) {
        return Err(not_now(
            "has switched Calico to etcd v3: later writes are only in v3, and pods that were created since then would lose their \
             network",
            "let the migration complete. To return to v2 nevertheless, wait until it is Completed, roll back calico-node, its \
             ConfigMap and the controllers (`kubectl rollout undo`), then run `kubectl replumb datastore abort \
             --after-completion --no-nodes-of-v3`",
        ));
    }
    Ok(())
}

/// Describes the effect; `None` for another kind.
pub fn describe(migration: &Migration) -> Option<String> {
    let known = migration.status.as_ref()?.calico_datastore.as_ref()?;
    let text = format!(
        "A paused Calico switches back to etcd v2 at once. Then calico-node is rolled back to {}, one node after the other, \
         together with the controllers; no other pod restarts. The previous state of etcd v3 is restored.",
        known.settings.from_image.value
    );
    Some(
        wrap(&text, WIDTH)
            .into_iter()
            .map(|line| format!("{line}\n"))
            .collect(),
    )
}
