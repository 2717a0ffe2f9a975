//! What the process says with its exit code; a pipeline goes cluster by cluster by it (R37).

use std::process::ExitCode;

/// How a command ended, as far as the caller's next step depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// What was asked for is so.
    Done,
    /// It is not, or nobody could find out.
    Failed,
    /// A check refuses it; nothing has changed.
    Refused,
    /// The migration is paused and nothing is in work.
    Paused,
}

impl Outcome {
    /// The number.
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
