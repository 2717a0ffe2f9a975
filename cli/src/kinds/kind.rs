//! The traits that a kind implements for the commands.

use api::migration::Direction;
use api::{Migration, MigrationSpec, MigrationStatus, NodeMigration, NodeMigrationStatus};
use clap::{Args, Subcommand};
use futures::future::LocalBoxFuture;
use jiff::Timestamp;
use serde::Serialize;

use crate::cluster::Cluster;
use crate::error::CliError;
use crate::exit::Outcome;
use crate::rollback_targets::RollbackTargets;

/// The types of a kind: its part of the command line and of the output.
pub trait KindTypes {
    /// Flags of `preflight`, `plan` and `apply`.
    type Flags: Args + KindFlags;
    /// Subcommands of `generate`; [`Nothing`](super::nothing::Nothing) if there are none.
    type Manifest: Subcommand + GenerateManifest;
    /// Commands that need no cluster; [`Nothing`](super::nothing::Nothing) if there are none.
    type Standalone: Subcommand + RunStandalone;
    /// The settings in the status.
    type Settings: Serialize + KindSettings;
    /// The progress in stages; [`Nothing`](super::nothing::Nothing) for a kind whose nodes change one by one.
    type Progress: Serialize + KindProgress;
}

/// Flags of `preflight`, `plan` and `apply`.
pub trait KindFlags {
    /// The flags that are set, as they are typed.
    fn set_flags(&self) -> Vec<&'static str>;

    /// Reads environment variables, if a flag requests it. Returns warnings, one line each.
    fn read_environment(&mut self, _variables: &[(String, String)]) -> Result<Vec<String>, CliError> {
        Ok(Vec::new())
    }

    /// Overrides the part of the spec of this kind, or creates it.
    fn merge(&self, spec: &mut MigrationSpec) -> Result<(), CliError>;
}

/// A subcommand of `generate`, which needs no cluster.
pub trait GenerateManifest {
    /// The manifest.
    fn text(&self) -> Result<String, CliError>;
}

/// A command that needs no cluster.
pub trait RunStandalone {
    /// Runs the command.
    async fn run(&self, variables: impl IntoIterator<Item = (String, String)>) -> Result<Outcome, CliError>;
}

/// The settings in the status.
pub trait KindSettings {
    /// The settings; `None` for another kind and before the detection.
    fn of(status: &MigrationStatus) -> Option<&Self>;

    /// Every setting with its value and its source.
    fn rows(&self) -> Vec<Vec<String>>;
}

/// The progress in stages.
pub trait KindProgress {
    /// The progress in the status; `None` for another kind.
    fn of(status: &MigrationStatus) -> Option<Self>
    where
        Self: Sized;

    /// The stage; `None` before the first change and after the last.
    fn stage(&self) -> Option<&'static str>;

    /// The direction of the migration; `None` without a stage.
    fn direction(&self) -> Option<Direction>;

    /// Rows of the status: name and text. There are no counts before the first change.
    fn rows(&self, begun: bool, now: Timestamp) -> Vec<(&'static str, String)>;
}

/// The progress of a node, for a kind whose nodes change one by one.
#[derive(Clone, Debug, Default)]
pub struct NodeProgress {
    /// The phase that the agent reports.
    pub phase: Option<&'static str>,
    /// Leftovers of the old network.
    pub leftovers: Vec<String>,
    /// The changes on the host that a rollback would undo.
    pub changes: Vec<String>,
}

/// A part of the plan that only one kind has.
#[derive(Clone, Debug)]
pub struct PlanPart {
    /// Its title.
    pub title: &'static str,
    /// Its text.
    pub text: String,
    /// Its fields in the JSON output.
    pub fields: serde_json::Map<String, serde_json::Value>,
}

/// The answers of a kind to the commands.
pub trait KindCommands: Sync {
    /// What `apply` changes, for its confirmation. `None`: nodes, whose number is shown.
    fn extent(&self, _spec: &MigrationSpec) -> Option<String> {
        None
    }

    /// A part of the plan beside settings and actions.
    fn plan_part(&self, _status: &MigrationStatus) -> Option<PlanPart> {
        None
    }

    /// Whether a migration in phase `Mixed` continues without the user.
    fn continues_when_mixed(&self, _spec: &MigrationSpec) -> bool {
        false
    }

    /// What the agent of a node reports; `None` if the report has no part of this kind.
    fn node_progress(&self, _report: &NodeMigrationStatus) -> Option<NodeProgress> {
        None
    }

    /// The nodes or Services in the spec that are rolled back while the others stay; `None` for a kind without such a list.
    fn rolled_back_alone<'spec>(&self, _spec: &'spec mut MigrationSpec) -> Option<&'spec mut Vec<String>> {
        None
    }

    /// Refuses a rollback that is not possible. Describes the effect of another one; `None` if the effect differs by node.
    fn check_rollback<'run>(
        &'run self,
        cluster: &'run Cluster,
        migration: &'run Migration,
        targets: &'run RollbackTargets,
    ) -> LocalBoxFuture<'run, Result<Option<String>, CliError>>;

    /// Describes the effect of a rollback of these nodes, for a kind whose effect differs by node.
    fn describe_nodes<'run>(
        &'run self,
        _cluster: &'run Cluster,
        _nodes: &'run [&'run NodeMigration],
        _all: bool,
    ) -> LocalBoxFuture<'run, String> {
        Box::pin(async { String::new() })
    }
}
