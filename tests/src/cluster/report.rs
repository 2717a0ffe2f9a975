//! Lines for a person who waits: what happens now, and how long it has taken so far.

use std::time::Instant;

/// Prints one line for each thing that has happened.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    started: Instant,
}

impl Default for Report {
    fn default() -> Self {
        Self {
            started: Instant::now(),
        }
    }
}

impl Report {
    /// Prints a line with the time since the start.
    pub fn say(&self, line: &str) {
        println!("[{:6.1} s] {line}", self.started.elapsed().as_secs_f32());
    }
}
