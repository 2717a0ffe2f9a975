//! The output formats of the commands.

use clap::{Args, ValueEnum};

/// Output options.
#[derive(Clone, Copy, Debug, Args)]
pub struct OutputFlags {
    /// Output format.
    #[arg(long, short, value_name = "FORMAT", value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// The output formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Tables and text.
    Table,
    /// One JSON object.
    Json,
}
