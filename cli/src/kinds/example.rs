//! The kind of docs/adding-a-kind.md in the commands: a flag, the setting, the stage, and the effect of a rollback.

use ::example::api::{Settings, Spec};
use ::example::decide::Stage;
use api::migration::Direction;
use api::{Migration, MigrationSpec, MigrationStatus};
use clap::Args;
use futures::future::LocalBoxFuture;
use jiff::Timestamp;
use serde::Serialize;

use super::kind::{KindCommands, KindFlags, KindProgress, KindSettings, KindTypes};
use super::nothing::Nothing;
use super::stage::stage_row;
use crate::cluster::Cluster;
use crate::error::CliError;
use crate::rollback_targets::RollbackTargets;
use crate::value;

/// The kind in the commands.
pub struct Commands;

impl KindTypes for Commands {
    type Flags = Flags;
    type Manifest = Nothing;
    type Standalone = Nothing;
    type Settings = Settings;
    type Progress = Progress;
}

impl KindCommands for Commands {
    fn extent(&self, spec: &MigrationSpec) -> Option<String> {
        let kind = spec.example.as_ref()?;
        Some(format!("labels ConfigMap {}", kind.config_map))
    }

    fn check_rollback<'run>(
        &'run self,
        _cluster: &'run Cluster,
        migration: &'run Migration,
        targets: &'run RollbackTargets,
    ) -> LocalBoxFuture<'run, Result<Option<String>, CliError>> {
        Box::pin(async {
            targets.require_no_services(migration)?;
            Ok(Some("The label of the ConfigMap is removed.\n".to_owned()))
        })
    }
}

/// Flags of this kind.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Example (a label of a ConfigMap)")]
#[group(skip)]
pub struct Flags {
    /// Name of the ConfigMap in the namespace of replumb.
    #[arg(long = "example-config-map", value_name = "NAME", value_parser = value::object_name)]
    config_map: Option<String>,
}

impl KindFlags for Flags {
    fn set_flags(&self) -> Vec<&'static str> {
        let flag = self.config_map.as_ref().map(|_| "--example-config-map");
        flag.into_iter().collect()
    }

    fn merge(&self, spec: &mut MigrationSpec) -> Result<(), CliError> {
        let kind = spec.example.get_or_insert_with(Spec::default);
        if let Some(name) = &self.config_map {
            kind.config_map.clone_from(name);
        }
        Ok(())
    }
}

impl KindSettings for Settings {
    fn of(status: &MigrationStatus) -> Option<&Self> {
        status.example.as_ref().map(|known| &known.settings)
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let Self { config_map } = self;
        vec![vec![
            "ConfigMap".to_owned(),
            config_map.value.clone(),
            format!("({})", config_map.source),
        ]]
    }
}

/// The progress of the migration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Progress {
    /// The stage; null before the first change and after the last.
    stage: Option<Stage>,
    /// The direction of the migration; null without a stage.
    direction: Option<Direction>,
    /// Since when; null without a stage.
    since: Option<Timestamp>,
}

impl KindProgress for Progress {
    fn of(status: &MigrationStatus) -> Option<Self> {
        let stage = status.example.as_ref()?.stage.as_ref();
        Some(Self {
            stage: stage.map(|stage| stage.name),
            direction: stage.map(|stage| stage.direction),
            since: stage.map(|stage| stage.since),
        })
    }

    fn stage(&self) -> Option<&'static str> {
        self.stage.map(Stage::as_str)
    }

    fn direction(&self) -> Option<Direction> {
        self.direction
    }

    fn rows(&self, _begun: bool, now: Timestamp) -> Vec<(&'static str, String)> {
        let row = stage_row(self.stage(), self.direction, self.since, now);
        row.into_iter().collect()
    }
}
