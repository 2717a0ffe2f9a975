//! Chooses the Migration that a command is about.

use api::{Kind, Migration};
use kube::ResourceExt;

use crate::cluster::{has_begun, phase};
use crate::error::CliError;

/// The Migration with this name; without a name, the only candidate.
pub fn existing(migrations: &[Migration], name: Option<&str>) -> Result<Migration, CliError> {
    if let Some(name) = name {
        let found = migrations.iter().find(|migration| migration.name_any() == name);
        return found.cloned().ok_or_else(|| CliError::NoSuchMigration {
            name: name.to_owned(),
            existing: list(migrations),
        });
    }
    match candidates(migrations, None).as_slice() {
        [] => Err(CliError::NoMigration),
        [one] => Ok((*one).clone()),
        _ => Err(CliError::NameNeeded {
            existing: list(migrations),
        }),
    }
}

/// The same for a command that may create a Migration: `Err` is the name of the Migration to create. `kind` is the requested
/// kind, if any.
///
/// No Migration is created while another one has not ended: most such names are typing errors.
pub fn existing_or_new(
    migrations: &[Migration],
    name: Option<&str>,
    kind: Option<Kind>,
) -> Result<Result<Migration, String>, CliError> {
    let name = match name {
        Some(name) => name,
        None => match candidates(migrations, kind).as_slice() {
            [] => kind.unwrap_or(Kind::DEFAULT).default_name(),
            [one] => return Ok(Ok((*one).clone())),
            _ => {
                return Err(CliError::NameNeeded {
                    existing: list(migrations),
                });
            }
        },
    };
    if let Some(found) = migrations.iter().find(|migration| migration.name_any() == name) {
        return Ok(Ok(found.clone()));
    }
    if migrations.iter().all(is_over) {
        return Ok(Err(name.to_owned()));
    }
    Err(CliError::OtherMigrationExists {
        name: name.to_owned(),
        existing: list(migrations),
    })
}

/// The candidates without a name. Migrations that have not ended precede ended ones, and among them those of the requested kind.
/// Among these, started Migrations precede others, which wait for them.
fn candidates(migrations: &[Migration], kind: Option<Kind>) -> Vec<&Migration> {
    let of_kind = |migration: &&Migration| kind.is_none_or(|kind| Kind::of(&migration.spec) == Some(kind));
    let (over, mut open): (Vec<&Migration>, Vec<&Migration>) =
        migrations.iter().partition(|migration| is_over(migration));
    if open.is_empty() {
        return over.into_iter().filter(of_kind).collect();
    }
    if open.iter().any(of_kind) {
        open.retain(of_kind);
    }
    if open.iter().any(|migration| has_begun(migration)) {
        open.retain(|migration| has_begun(migration));
    }
    open
}

/// Whether the Migration has ended: it is completed or rolled back.
pub fn is_over(migration: &Migration) -> bool {
    migration
        .status
        .as_ref()
        .is_some_and(|status| status.phase.is_over())
}

fn list(migrations: &[Migration]) -> Vec<(String, String)> {
    migrations
        .iter()
        .map(|migration| (migration.name_any(), phase(migration).to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use api::{MigrationSpec, MigrationStatus};

    use api::migration::MigrationPhase;
    use serde_json::json;

    use super::*;
    use crate::fixture;

    fn migration(name: &str, phase: MigrationPhase) -> Migration {
        let mut migration = Migration::new(name, serde_json::from_str::<MigrationSpec>("{}").unwrap());
        migration.status = Some(MigrationStatus {
            phase,
            ..MigrationStatus::default()
        });
        migration
    }

    #[test]
    fn the_only_migration_needs_no_name() {
        let one = [migration("a", MigrationPhase::Rolling)];
        assert_eq!(existing(&one, None).unwrap().name_any(), "a");
        assert_eq!(existing(&one, Some("a")).unwrap().name_any(), "a");
        assert!(matches!(existing(&[], None), Err(CliError::NoMigration)));
        let error = existing(&one, Some("b")).unwrap_err();
        assert!(error.to_string().contains("a (Rolling)"), "{error}");
        let mut three = [
            migration("a", MigrationPhase::Completed),
            migration("b", MigrationPhase::Planned),
            migration("c", MigrationPhase::Refused),
        ];
        // An ended Migration is only a record, and others wait for a started one.
        assert_eq!(existing(&three[..2], None).unwrap().name_any(), "b");
        let which =
            |migrations: &[Migration]| matches!(existing(migrations, None), Err(CliError::NameNeeded { .. }));
        assert!(which(&three));
        three[1].status.as_mut().unwrap().started_at = Some(fixture::now());
        assert_eq!(existing(&three, None).unwrap().name_any(), "b");
        assert!(which(&[
            three[0].clone(),
            migration("d", MigrationPhase::RolledBack)
        ]));
    }

    #[test]
    fn a_mistyped_name_creates_no_second_migration() {
        let one = [migration("flannel-to-calico", MigrationPhase::Rolling)];
        assert!(matches!(
            existing_or_new(&one, Some("flanel-to-calico"), None),
            Err(CliError::OtherMigrationExists { .. })
        ));
        let new =
            |migrations: &[Migration], name| existing_or_new(migrations, name, None).unwrap().unwrap_err();
        assert_eq!(new(&[], None), "flannel-to-calico");
        assert_eq!(new(&[], Some("mine")), "mine");
        let over = [migration("first", MigrationPhase::Completed)];
        assert_eq!(new(&over, Some("second")), "second");
        let two = [
            migration("a", MigrationPhase::Completed),
            migration("b", MigrationPhase::Planned),
        ];
        assert_eq!(
            existing_or_new(&two, None, None).unwrap().unwrap().name_any(),
            "b"
        );
    }

    #[test]
    fn without_a_name_the_kind_decides() {
        let range = |name, phase| {
            let mut found = migration(name, phase);
            found.spec = serde_json::from_value(json!({
                "podCidr": {"from": "10.244.0.0/16", "to": "10.200.0.0/16"},
            }))
            .unwrap();
            found
        };
        let flannel = |phase| {
            let mut found = migration("flannel-to-calico", phase);
            found.spec = serde_json::from_value(json!({"flannelToCalico": {}})).unwrap();
            found
        };
        let choose = |migrations: &[Migration], kind| {
            existing_or_new(migrations, None, Some(kind))
                .unwrap()
                .map(|found| found.name_any())
        };
        assert_eq!(choose(&[], Kind::PodCidr), Err("pod-cidr".to_owned()));
        // An ended Migration of another kind is ignored.
        let over = [flannel(MigrationPhase::Completed)];
        assert_eq!(choose(&over, Kind::PodCidr), Err("pod-cidr".to_owned()));
        assert_eq!(
            choose(&over, Kind::FlannelToCalico),
            Ok("flannel-to-calico".to_owned())
        );
        // A Migration that has not ended comes first, whatever its kind: no other is created.
        let open = [
            flannel(MigrationPhase::Rolling),
            range("pod-cidr", MigrationPhase::Completed),
        ];
        assert_eq!(choose(&open, Kind::PodCidr), Ok("flannel-to-calico".to_owned()));
        let both = [
            flannel(MigrationPhase::Rolling),
            range("pod-cidr", MigrationPhase::Refused),
        ];
        assert_eq!(choose(&both, Kind::PodCidr), Ok("pod-cidr".to_owned()));
        let hops = [
            range("pod-cidr-hop-1", MigrationPhase::Planned),
            range("pod-cidr-hop-2", MigrationPhase::Refused),
        ];
        assert!(matches!(
            existing_or_new(&hops, None, Some(Kind::PodCidr)),
            Err(CliError::NameNeeded { .. })
        ));
    }
}
