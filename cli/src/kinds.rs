//! The kinds of migration in the commands: one folder and one `mod` line for each. A kind implements [`kind::KindTypes`] and
//! [`kind::KindCommands`] in its folder, for a type with the name `Commands`.

mod calico_datastore;
#[cfg(feature = "example-kind")]
mod example;
mod flannel_to_calico;
mod pod_cidr;
mod service_cidr;

pub mod kind;
mod nothing;
mod stage;

use api::migration::Direction;
use api::{Kind, MigrationSpec, MigrationStatus, NodeMigrationStatus};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde::Serialize;

use self::kind::{
    GenerateManifest, KindCommands, KindFlags, KindProgress, KindSettings, KindTypes, NodeProgress,
    RunStandalone,
};
use self::stage::stage_text;
use crate::error::CliError;
use crate::exit::Outcome;

/// Defines what has a part for each kind. The flags in the help have the order of [`Kind::ALL`].
macro_rules! kinds {
    ($($(#[cfg($($cfg:tt)*)])? $kind:ident $folder:ident $api_field:literal $default_name:literal,)+) => {
        /// The answers of a kind to the commands.
        fn commands(kind: Kind) -> &'static dyn KindCommands {
            match kind {
                $($(#[cfg($($cfg)*)])? Kind::$kind => &$folder::Commands,)+
            }
        }

        /// Flags of every kind.
        #[derive(Clone, Debug, Default, Args)]
        #[group(skip)]
        pub struct Flags {
            $(
                $(#[cfg($($cfg)*)])?
                #[command(flatten)]
                $folder: <$folder::Commands as KindTypes>::Flags,
            )+
        }

        impl Flags {
            /// The flags of each kind.
            pub fn each(&self) -> Vec<(Kind, &dyn KindFlags)> {
                let flags: &[(Kind, &dyn KindFlags)] = &[
                    $($(#[cfg($($cfg)*)])? (Kind::$kind, &self.$folder),)+
                ];
                flags.to_vec()
            }

            /// Reads environment variables, if a flag requests it. Returns warnings, one line each.
            pub fn read_environment(
                &mut self,
                variables: &[(String, String)],
            ) -> Result<Vec<String>, CliError> {
                let mut warnings = Vec::new();
                $($(#[cfg($($cfg)*)])? warnings.extend(self.$folder.read_environment(variables)?);)+
                Ok(warnings)
            }
        }

        /// The subcommands of `generate`, by kind.
        #[derive(Clone, Debug, Subcommand)]
        pub enum GenerateKind {
            $(
                $(#[cfg($($cfg)*)])?
                #[command(flatten)]
                $kind(<$folder::Commands as KindTypes>::Manifest),
            )+
        }

        impl GenerateKind {
            /// The manifest.
            pub fn text(&self) -> Result<String, CliError> {
                match self {
                    $($(#[cfg($($cfg)*)])? Self::$kind(arguments) => arguments.text(),)+
                }
            }
        }

        /// The commands of single kinds, which need no cluster.
        #[derive(Clone, Debug, Subcommand)]
        pub enum StandaloneCommand {
            $(
                $(#[cfg($($cfg)*)])?
                #[command(flatten)]
                $kind(Box<<$folder::Commands as KindTypes>::Standalone>),
            )+
        }

        impl StandaloneCommand {
            /// Runs the command.
            pub async fn run(
                &self,
                variables: impl IntoIterator<Item = (String, String)>,
            ) -> Result<Outcome, CliError> {
                match self {
                    $($(#[cfg($($cfg)*)])? Self::$kind(command) => command.run(variables).await,)+
                }
            }
        }

        /// The settings of a migration.
        #[derive(Clone, Copy, Debug, Serialize)]
        #[serde(untagged)]
        pub enum Settings<'status> {
            $($(#[cfg($($cfg)*)])? $kind(&'status <$folder::Commands as KindTypes>::Settings),)+
        }

        impl<'status> Settings<'status> {
            /// The settings in the status; `None` before the detection.
            pub fn of(status: &'status MigrationStatus) -> Option<Self> {
                $(
                    $(#[cfg($($cfg)*)])?
                    if let Some(settings) = KindSettings::of(status) {
                        return Some(Self::$kind(settings));
                    }
                )+
                None
            }

            /// Every setting with its value and its source.
            pub fn rows(self) -> Vec<Vec<String>> {
                match self {
                    $($(#[cfg($($cfg)*)])? Self::$kind(settings) => settings.rows(),)+
                }
            }
        }

        /// The progress of a migration of a kind with stages.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
        #[serde(untagged)]
        pub enum KindView {
            $($(#[cfg($($cfg)*)])? $kind(Box<<$folder::Commands as KindTypes>::Progress>),)+
        }

        impl KindView {
            /// The progress in the status; `None` for a kind without stages.
            pub fn of(status: &MigrationStatus) -> Option<Self> {
                $(
                    $(#[cfg($($cfg)*)])?
                    if let Some(progress) = KindProgress::of(status) {
                        return Some(Self::$kind(Box::new(progress)));
                    }
                )+
                None
            }

            fn progress(&self) -> &dyn KindProgress {
                match self {
                    $($(#[cfg($($cfg)*)])? Self::$kind(progress) => progress.as_ref(),)+
                }
            }
        }
    };
}

api::for_each_kind!(kinds);

/// The answers of the kind of a spec; those of the default kind for a spec without a known kind.
pub fn of(spec: &MigrationSpec) -> &'static dyn KindCommands {
    commands(Kind::of(spec).unwrap_or(Kind::DEFAULT))
}

/// What the agent of a node reports, of the first kind with a part in the report.
pub fn node_progress(report: &NodeMigrationStatus) -> Option<NodeProgress> {
    Kind::ALL
        .iter()
        .find_map(|kind| commands(*kind).node_progress(report))
}

impl Flags {
    /// Overrides the part of the spec of this kind, or creates it.
    pub fn merge(&self, kind: Kind, spec: &mut MigrationSpec) -> Result<(), CliError> {
        let flags = self.each().into_iter().find(|(other, _)| *other == kind);
        flags.map_or(Ok(()), |(_, flags)| flags.merge(spec))
    }
}

impl KindView {
    /// Whether the migration is being rolled back.
    pub fn goes_back(&self) -> bool {
        self.progress().direction() == Some(Direction::Rollback)
    }

    /// The stage as text; `None` before the first change and after the last.
    pub fn stage_text(&self) -> Option<String> {
        let progress = self.progress();
        Some(stage_text(progress.stage()?, progress.direction()?))
    }

    /// Rows of the status: name and text. There are no counts before the first change.
    pub fn rows(&self, begun: bool, now: Timestamp) -> Vec<(&'static str, String)> {
        self.progress().rows(begun, now)
    }
}
