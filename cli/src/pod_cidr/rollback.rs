//! What going back comes to.

use api::Migration;

use crate::error::CliError;

/// Refuses to take back single nodes: pods move workload by workload, wherever they are.
pub fn possible(migration: &Migration, all: bool) -> Result<(), CliError> {
    if migration.spec.pod_cidr.is_none() || all {
        return Ok(());
    }
    Err(CliError::NotNow {
        name: migration.metadata.name.clone().unwrap_or_default(),
        state: "changes the range of pods, which has no nodes to take back".to_owned(),
        hint: "`kubectl replumb rollback --all` leads every pod back to the old range; `kubectl replumb pause` stops it where it is"
            .to_owned(),
    })
}

/// What happens, for people; `None` of another kind.
pub fn describe(migration: &Migration) -> Option<String> {
    let known = migration.status.as_ref()?.pod_cidr.as_ref()?;
    let settings = &known.settings;
    Some(format!(
        "IPPool {} is opened again, IPPool {} closed. {} pods with an address of {} are evicted under their budgets, one of each \
         workload at a time; those in {} stay where they are. Then IPPool {} is deleted, with its blocks.\n",
        settings.old_pool.value,
        settings.new_pool.value,
        known.pods_in_new_range,
        settings.to.value,
        settings.from.value,
        settings.new_pool.value,
    ))
}
