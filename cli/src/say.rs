//! Where texts go: the answer to the standard output, everything beside it to the standard error.

use std::io::{self, Write as _};

use serde::Serialize;

use crate::error::CliError;

/// A remark on the way; never part of the answer.
pub fn note(text: &str) {
    // Nobody reads it: that is no reason to stop.
    let _ = writeln!(io::stderr(), "{text}");
}

/// The answer. A reader that went away (`| head`) has what it wanted.
pub fn answer(text: &str) -> Result<(), CliError> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(CliError::Write(error)),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// The answer as one JSON object, indented.
pub fn json<T: Serialize>(value: &T) -> Result<(), CliError> {
    let mut text = serde_json::to_string_pretty(value).map_err(CliError::Json)?;
    text.push('\n');
    answer(&text)
}

/// The answer as one JSON object on one line: one of many.
pub fn json_line<T: Serialize>(value: &T) -> Result<(), CliError> {
    let mut text = serde_json::to_string(value).map_err(CliError::Json)?;
    text.push('\n');
    answer(&text)
}
