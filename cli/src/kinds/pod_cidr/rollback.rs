//! The effect of a rollback of podCidr.

use api::Migration;

use crate::error::CliError;
use crate::table::wrap;

/// Width of the text.
const WIDTH: usize = 110;

/// Refuses a rollback of single nodes: pods move workload by workload, on any node.
pub fn possible(migration: &Migration, all: bool) -> Result<(), CliError> {
    if migration.spec.pod_cidr.is_none() || all {
        return Ok(());
    }
    Err(CliError::NotPossible {
        name: migration.metadata.name.clone().unwrap_or_default(),
        state: "changes the range of pods and has no nodes to roll back".to_owned(),
        hint: "`kubectl replumb rollback --all` moves every pod back to the old range; `kubectl replumb pause` stops the \
               migration"
            .to_owned(),
    })
}

/// Describes the effect; `None` for another kind.
pub fn describe(migration: &Migration) -> Option<String> {
    let known = migration.status.as_ref()?.pod_cidr.as_ref()?;
    let settings = &known.settings;
    let text = format!(
        "IPPool {} is opened again, and IPPool {} is closed. Pods with an address of {} ({}) are evicted within their \
         PodDisruptionBudgets, one of each workload at a time; pods in {} are not affected. Then IPPool {} is deleted, with its \
         blocks.",
        settings.old_pool.value,
        settings.new_pool.value,
        settings.to.value,
        known.pods_in_new_range,
        settings.from.value,
        settings.new_pool.value,
    );
    Some(
        wrap(&text, WIDTH)
            .into_iter()
            .map(|line| format!("{line}\n"))
            .collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture;

    #[test]
    fn only_a_rollback_of_all_is_possible() {
        let (migration, _) = fixture::range_rolling();
        assert!(possible(&migration, true).is_ok());
        let error = possible(&migration, false).unwrap_err();
        insta::assert_snapshot!(format!("{error}\n{}", error.hint().unwrap()), @r"
        Migration pod-cidr changes the range of pods and has no nodes to roll back
        `kubectl replumb rollback --all` moves every pod back to the old range; `kubectl replumb pause` stops the migration
        ");
        let (flannel, _) = fixture::rolling();
        assert!(possible(&flannel, false).is_ok());
    }

    #[test]
    fn the_effect_is_described_pool_by_pool() {
        let (migration, _) = fixture::range_rolling();
        insta::assert_snapshot!(describe(&migration).unwrap(), @r"
        IPPool default-ipv4-ippool is opened again, and IPPool ipv4-10-200-0-0-16 is closed. Pods with an address of
        10.200.0.0/16 (12) are evicted within their PodDisruptionBudgets, one of each workload at a time; pods in
        10.244.0.0/16 are not affected. Then IPPool ipv4-10-200-0-0-16 is deleted, with its blocks.
        ");
        let (flannel, _) = fixture::rolling();
        assert_eq!(describe(&flannel), None);
    }
}
