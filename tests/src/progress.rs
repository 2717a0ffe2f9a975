//! Progress lines for a user who waits: on a terminal one line that counts, in a log one line now and then.

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;

/// Time between two lines about the same work in a log.
const LOG_INTERVAL: Duration = Duration::from_secs(15);
/// Time between two updates on a terminal.
const TERMINAL_INTERVAL: Duration = Duration::from_secs(1);

/// The present step of some work, written by the work and read by the printer.
#[derive(Debug, Default)]
pub struct Detail(Mutex<String>);

impl Detail {
    /// Replaces the text.
    pub fn set(&self, text: impl Display) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = text.to_string();
    }

    fn get(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Prints events, with the time since the start.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    started: Instant,
    terminal: bool,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            terminal: std::io::stdout().is_terminal(),
        }
    }
}

impl Progress {
    /// Prints a line.
    pub fn say(&self, line: impl Display) {
        let text = format!("[{:6.1} s] {line}", self.started.elapsed().as_secs_f32());
        if self.terminal {
            print(&format!("\r\x1b[K{text}\n"));
        } else {
            print(&format!("{text}\n"));
        }
    }

    /// Does some work, prints progress meanwhile, and prints the duration at the end.
    pub async fn during<T>(
        &self,
        what: &str,
        detail: &Detail,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let started = Instant::now();
        self.say(format_args!("{what} ..."));
        let mut work = std::pin::pin!(work);
        let interval = if self.terminal {
            TERMINAL_INTERVAL
        } else {
            LOG_INTERVAL
        };
        let result = loop {
            match tokio::time::timeout(interval, &mut work).await {
                Ok(result) => break result,
                Err(_) => self.still(what, started, &detail.get()),
            }
        };
        let outcome = if result.is_ok() { "done" } else { "failed" };
        self.say(format_args!(
            "{what}: {outcome} after {}",
            seconds(started.elapsed())
        ));
        result
    }

    fn still(&self, what: &str, started: Instant, detail: &str) {
        let separator = if detail.is_empty() { "" } else { ", " };
        let line = format!("{what}: {} so far{separator}{detail}", seconds(started.elapsed()));
        if self.terminal {
            // One line that is overwritten again and again: the line must not wrap.
            let short: String = line.chars().take(100).collect();
            print(&format!(
                "\r\x1b[K[{:6.1} s] {short}",
                self.started.elapsed().as_secs_f32()
            ));
        } else {
            self.say(line);
        }
    }
}

fn seconds(duration: Duration) -> String {
    let all = duration.as_secs();
    if all < 60 {
        format!("{:.1} s", duration.as_secs_f32())
    } else {
        format!("{} min {:02} s", all / 60, all % 60)
    }
}

/// A reader that has ended is no reason to stop the work.
fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_readable() {
        assert_eq!(seconds(Duration::from_millis(1_250)), "1.2 s");
        assert_eq!(seconds(Duration::from_secs(425)), "7 min 05 s");
    }

    #[tokio::test]
    async fn the_result_of_the_work_is_returned() {
        let progress = Progress::default();
        let detail = Detail::default();
        assert_eq!(
            progress.during("work", &detail, async { Ok(7) }).await.unwrap(),
            7
        );
        let error = progress
            .during::<()>("work", &detail, async { anyhow::bail!("broken") })
            .await
            .unwrap_err();
        assert_eq!(error.to_string(), "broken");
    }
}
