//! Output: the answer goes to standard output, all other texts to standard error.

use std::io::{self, Write as _};

use serde::Serialize;

use crate::error::CliError;

/// Prints a note, which is not part of the answer.
pub fn note(text: &str) {
    // A closed standard error is no reason to stop.
    let _ = writeln!(io::stderr(), "{text}");
}

/// Prints the answer. A reader that closes the pipe (`| head`) is no error.
pub fn answer(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(CliError::Write(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Prints the answer as one indented JSON object.
pub fn json<T: Serialize>(value: &T) -> Result<(), CliError> {
    let mut text = serde_json::to_string_pretty(value).map_err(CliError::Json)?;
    text.push('\n');
    answer(&text)
}

/// Prints one of several answers as one JSON object on one line.
pub fn json_line<T: Serialize>(value: &T) -> Result<(), CliError> {
    let mut text = serde_json::to_string(value).map_err(CliError::Json)?;
    text.push('\n');
    answer(&text)
}
