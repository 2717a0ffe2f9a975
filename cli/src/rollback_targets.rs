//! The nodes or Services that a rollback is about.

use api::Migration;
use clap::Args;

use crate::error::CliError;
use crate::value;

/// The nodes or Services that a rollback is about.
#[derive(Clone, Debug, Default, Args)]
#[group(skip)]
pub struct RollbackTargets {
    /// Nodes to roll back.
    #[arg(value_name = "NODE", required_unless_present_any = ["all", "services"], conflicts_with_all = ["all", "services"])]
    pub nodes: Vec<String>,
    /// Roll back every node, then all cluster-wide objects.
    #[arg(long)]
    pub all: bool,
    /// Services to roll back to their old addresses and to keep there, separated by commas. Applies to serviceCidr.
    #[arg(long = "service", value_name = "NAMESPACE/NAME", value_delimiter = ',', conflicts_with = "all",
        value_parser = value::namespaced_name)]
    pub services: Vec<String>,
}

impl RollbackTargets {
    /// Refuses a rollback of Services, for kinds that change no Service.
    pub fn require_no_services(&self, migration: &Migration) -> Result<(), CliError> {
        if self.services.is_empty() {
            return Ok(());
        }
        Err(CliError::NotPossible {
            name: migration.metadata.name.clone().unwrap_or_default(),
            state: "has no Services to roll back".to_owned(),
            hint: "omit --service".to_owned(),
        })
    }
}
