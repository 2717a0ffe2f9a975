//! Which Migration is meant.

use api::Migration;
use kube::ResourceExt;

use crate::cluster::phase;
use crate::error::CliError;

/// Name of a Migration that is made without a name.
pub const DEFAULT_NAME: &str = "flannel-to-calico";

/// The Migration of this name; without a name the only one.
pub fn existing(migrations: &[Migration], name: Option<&str>) -> Result<Migration, CliError> {
    match (name, migrations) {
        (Some(name), _) => migrations
            .iter()
            .find(|migration| migration.name_any() == name)
            .cloned()
            .ok_or_else(|| CliError::NoSuchMigration {
                name: name.to_owned(),
                existing: list(migrations),
            }),
        (None, []) => Err(CliError::NoMigration),
        (None, [one]) => Ok(one.clone()),
        (None, _) => Err(CliError::WhichMigration {
            existing: list(migrations),
        }),
    }
}

/// The same for a command that may make one: the name under which it is made is an answer as well.
///
/// Beside a Migration that is not over none is made: most such names are slips of the finger.
pub fn existing_or_new(
    migrations: &[Migration],
    name: Option<&str>,
) -> Result<Result<Migration, String>, CliError> {
    match (name, migrations) {
        (None, []) => return Ok(Err(DEFAULT_NAME.to_owned())),
        (None, [one]) => return Ok(Ok(one.clone())),
        (None, _) => {
            // Those that are completed are a record; the one that is not is meant.
            let mut open = migrations.iter().filter(|migration| !is_over(migration));
            return match (open.next(), open.next()) {
                (Some(one), None) => Ok(Ok(one.clone())),
                _ => Err(CliError::WhichMigration {
                    existing: list(migrations),
                }),
            };
        }
        (Some(_), _) => {}
    }
    let name = name.unwrap_or(DEFAULT_NAME);
    if let Some(found) = migrations.iter().find(|migration| migration.name_any() == name) {
        return Ok(Ok(found.clone()));
    }
    if migrations.iter().all(is_over) {
        return Ok(Err(name.to_owned()));
    }
    Err(CliError::Another {
        name: name.to_owned(),
        existing: list(migrations),
    })
}

fn is_over(migration: &Migration) -> bool {
    migration
        .status
        .as_ref()
        .is_some_and(|status| status.phase.is_over())
}

fn list(migrations: &[Migration]) -> Vec<(String, String)> {
    migrations
        .iter()
        .map(|migration| (migration.name_any(), phase(migration)))
        .collect()
}

#[cfg(test)]
mod tests {
    use api::{MigrationSpec, MigrationStatus};

    use api::migration::MigrationPhase;

    use super::*;

    fn migration(name: &str, phase: MigrationPhase) -> Migration {
        let mut migration = Migration::new(name, serde_json::from_str::<MigrationSpec>("{}").unwrap());
        migration.status = Some(MigrationStatus {
            phase,
            ..MigrationStatus::default()
        });
        migration
    }

    #[test]
    fn the_only_one_needs_no_name() {
        let one = [migration("a", MigrationPhase::Rolling)];
        assert_eq!(existing(&one, None).unwrap().name_any(), "a");
        assert_eq!(existing(&one, Some("a")).unwrap().name_any(), "a");
        assert!(matches!(existing(&[], None), Err(CliError::NoMigration)));
        let error = existing(&one, Some("b")).unwrap_err();
        assert!(error.to_string().contains("a (Rolling)"), "{error}");
        let two = [
            migration("a", MigrationPhase::Completed),
            migration("b", MigrationPhase::Planned),
        ];
        assert!(matches!(
            existing(&two, None),
            Err(CliError::WhichMigration { .. })
        ));
    }

    #[test]
    fn a_slip_of_the_finger_makes_no_second_one() {
        let one = [migration("flannel-to-calico", MigrationPhase::Rolling)];
        assert!(matches!(
            existing_or_new(&one, Some("flanel-to-calico")),
            Err(CliError::Another { .. })
        ));
        assert_eq!(existing_or_new(&[], None).unwrap().unwrap_err(), DEFAULT_NAME);
        assert_eq!(existing_or_new(&[], Some("mine")).unwrap().unwrap_err(), "mine");
        let over = [migration("first", MigrationPhase::Completed)];
        assert_eq!(
            existing_or_new(&over, Some("second")).unwrap().unwrap_err(),
            "second"
        );
        let two = [
            migration("a", MigrationPhase::Completed),
            migration("b", MigrationPhase::Planned),
        ];
        assert_eq!(existing_or_new(&two, None).unwrap().unwrap().name_any(), "b");
    }
}
