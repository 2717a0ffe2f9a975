//! What going back comes to.

use api::Migration;

use crate::error::CliError;
use crate::render::table::wrap;

/// Width of the text.
const WIDTH: usize = 110;

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
    let text = format!(
        "IPPool {} is opened again, IPPool {} closed. {} pods with an address of {} are evicted under their budgets, one of each \
         workload at a time; those in {} stay where they are. Then IPPool {} is deleted, with its blocks.",
        settings.old_pool.value,
        settings.new_pool.value,
        known.pods_in_new_range,
        settings.to.value,
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
    fn it_goes_back_as_a_whole() {
        let (migration, _) = fixture::range_rolling();
        assert!(possible(&migration, true).is_ok());
        let error = possible(&migration, false).unwrap_err();
        insta::assert_snapshot!(format!("{error}\n{}", error.hint().unwrap()), @r"
        Migration pod-cidr changes the range of pods, which has no nodes to take back
        `kubectl replumb rollback --all` leads every pod back to the old range; `kubectl replumb pause` stops it where it is
        ");
        let (flannel, _) = fixture::rolling();
        assert!(possible(&flannel, false).is_ok());
    }

    #[test]
    fn what_happens_is_told_pool_by_pool() {
        let (migration, _) = fixture::range_rolling();
        insta::assert_snapshot!(describe(&migration).unwrap(), @r"
        IPPool default-ipv4-ippool is opened again, IPPool ipv4-10-200-0-0-16 closed. 12 pods with an address of
        10.200.0.0/16 are evicted under their budgets, one of each workload at a time; those in 10.244.0.0/16 stay
        where they are. Then IPPool ipv4-10-200-0-0-16 is deleted, with its blocks.
        ");
        let (flannel, _) = fixture::rolling();
        assert_eq!(describe(&flannel), None);
    }
}
