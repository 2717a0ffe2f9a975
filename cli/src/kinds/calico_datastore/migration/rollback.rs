//! What going back comes to.

use api::Migration;

use crate::args::Rollback;
use crate::error::CliError;
use crate::render::table::wrap;

/// Width of the text.
const WIDTH: usize = 110;

/// Refuses to take back single nodes of a conversion, and one that is past the point of no return.
pub fn possible(migration: &Migration, rollback: &Rollback) -> Result<(), CliError> {
    if migration.spec.calico_datastore.is_none() {
        return Ok(());
    }
    let not_now = |state: &str, hint: &str| CliError::NotNow {
        name: migration.metadata.name.clone().unwrap_or_default(),
        state: state.to_owned(),
        hint: hint.to_owned(),
    };
    if !rollback.nodes.is_empty() {
        return Err(not_now(
            "converts Calico's datastore, which all nodes share: no node goes back by itself",
            "`kubectl replumb rollback --all` takes everything back; `kubectl replumb pause` stops it where it is",
        ));
    }
    let known = migration
        .status
        .as_ref()
        .and_then(|status| status.calico_datastore.as_ref());
    if known.is_some_and(|known| known.opened_at.is_some()) {
        return Err(not_now(
            "has let Calico work with etcd v3: what has been written since then is in v3 alone, and pods that were made since then would lose \
             their network",
            "let it end. Whoever has to go back all the same waits until it is Completed, undoes calico-node, its ConfigMap and the controllers by \
             hand (`kubectl rollout undo`), and then runs `kubectl replumb datastore abort --after-completion --no-nodes-of-v3`",
        ));
    }
    Ok(())
}

/// What happens, for people; `None` of another kind.
pub fn describe(migration: &Migration) -> Option<String> {
    let known = migration.status.as_ref()?.calico_datastore.as_ref()?;
    let text = format!(
        "Calico works with etcd v2 again at once, where it is paused. Then calico-node goes back to {}, one node after the other, and the \
         controllers with it; no other pod starts again. etcd v3 is made as it was before.",
        known.settings.from_image.value
    );
    Some(
        wrap(&text, WIDTH)
            .into_iter()
            .map(|line| format!("{line}\n"))
            .collect(),
    )
}
