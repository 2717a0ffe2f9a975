//! The confirmation on the terminal before a command changes anything.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use crate::error::CliError;

/// Checks that a confirmation is possible, before anything is created.
pub(crate) fn possible(yes: bool) -> Result<(), CliError> {
    if yes || io::stdin().is_terminal() {
        Ok(())
    } else {
        Err(CliError::ConfirmationNeeded)
    }
}

/// Asks for confirmation; any answer but yes is an error.
pub(crate) fn ask(question: &str) -> Result<(), CliError> {
    // The question goes to standard error, so that it is visible even if standard output is a file.
    let mut out = io::stderr().lock();
    write!(out, "\n{question} [y/N] ")
        .and_then(|()| out.flush())
        .map_err(CliError::Write)?;
    let mut answer = String::new();
    io::stdin()
        .lock()
        .read_line(&mut answer)
        .map_err(CliError::Write)?;
    if matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes") {
        Ok(())
    } else {
        Err(CliError::NotConfirmed)
    }
}
