//! What going back comes to.

use api::Migration;
use plan::service_cidr::ranges::listed;
use plan::service_cidr::side::Side;

use crate::error::CliError;
use crate::render::table::wrap;

/// Width of the text.
const WIDTH: usize = 110;

/// Refuses to take back single nodes: Services have none.
pub fn possible(migration: &Migration, all: bool) -> Result<(), CliError> {
    if migration.spec.service_cidr.is_none() || all {
        return Ok(());
    }
    Err(CliError::NotNow {
        name: migration.metadata.name.clone().unwrap_or_default(),
        state: "changes the range of Services, which has no nodes to take back".to_owned(),
        hint: "`kubectl replumb rollback --all` leads every Service back to its old address; `kubectl replumb pause` stops it where it is"
            .to_owned(),
    })
}

/// What happens, for people; `None` of another kind.
pub fn describe(migration: &Migration) -> Option<String> {
    let known = migration.status.as_ref()?.service_cidr.as_ref()?;
    let changed = known.settings.changed();
    let text = format!(
        "{} Services with an address of {} exchange it for the one of {} that they had before, name servers and default/kubernetes first; \
         both answer meanwhile. Pods that were told a new address are started again under their budgets. People give the API servers their \
         old flag back; the migration waits for that. Then addresses of {} answer no more.",
        known.services_in_new_range,
        listed(changed.of(Side::New)),
        listed(changed.of(Side::Old)),
        listed(changed.of(Side::New)),
    );
    Some(
        wrap(&text, WIDTH)
            .into_iter()
            .map(|line| format!("{line}\n"))
            .collect(),
    )
}
