//! Exit codes, by which a pipeline decides whether to continue with the next cluster (R37).

use std::process::ExitCode;

/// The result of a command, as far as the caller's next step depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Success.
    Done,
    /// Error, or the result is unknown.
    Failed,
    /// Refused by a check; nothing has changed.
    Refused,
    /// The migration is paused and no node is in progress.
    Paused,
}

impl Outcome {
    /// The exit code.
    pub fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Refused => 2,
            Self::Paused => 3,
        }
    }
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        Self::from(outcome.code())
    }
}
