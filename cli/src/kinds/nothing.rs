//! The type of what a kind does not have. There is no value of the type.

use api::MigrationStatus;
use api::migration::Direction;
use clap::error::ErrorKind;
use clap::{ArgMatches, Command, FromArgMatches, Subcommand};
use jiff::Timestamp;
use serde::Serialize;

use super::kind::{GenerateManifest, KindProgress, RunStandalone};
use crate::error::CliError;
use crate::exit::Outcome;

/// No subcommand, or no stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Nothing {}

impl FromArgMatches for Nothing {
    fn from_arg_matches(_: &ArgMatches) -> Result<Self, clap::Error> {
        Err(clap::Error::new(ErrorKind::MissingSubcommand))
    }

    fn update_from_arg_matches(&mut self, _: &ArgMatches) -> Result<(), clap::Error> {
        match *self {}
    }
}

impl Subcommand for Nothing {
    fn augment_subcommands(command: Command) -> Command {
        command
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        command
    }

    fn has_subcommand(_: &str) -> bool {
        false
    }
}

impl GenerateManifest for Nothing {
    fn text(&self) -> Result<String, CliError> {
        match *self {}
    }
}

impl RunStandalone for Nothing {
    async fn run(&self, _: impl IntoIterator<Item = (String, String)>) -> Result<Outcome, CliError> {
        match *self {}
    }
}

impl KindProgress for Nothing {
    fn of(_: &MigrationStatus) -> Option<Self> {
        None
    }

    fn stage(&self) -> Option<&'static str> {
        match *self {}
    }

    fn direction(&self) -> Option<Direction> {
        match *self {}
    }

    fn rows(&self, _: bool, _: Timestamp) -> Vec<(&'static str, String)> {
        match *self {}
    }
}
