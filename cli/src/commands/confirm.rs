//! The question before something starts, at the terminal that is there.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};

use crate::error::CliError;

/// Whether somebody will be there to answer. Asked before anything is made.
pub(crate) fn possible(yes: bool) -> Result<(), CliError> {
    if yes || io::stdin().is_terminal() {
        Ok(())
    } else {
        Err(CliError::NobodyToAsk)
    }
}

/// Asks; anything but yes is an error.
pub(crate) fn ask(question: &str) -> Result<(), CliError> {
    // The question goes where a person sees it, also when the answer goes into a file.
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
