//! Writes reports one after the other, even if the caller stops waiting.

use std::path::PathBuf;

use anyhow::{Context, Result};
use tokio::task::JoinHandle;

use crate::report::Report;

/// Writes to one file.
#[derive(Debug)]
pub struct Writer {
    file: PathBuf,
    running: Option<JoinHandle<Result<()>>>,
}

impl Writer {
    /// A writer before its first report.
    pub fn new(file: PathBuf) -> Self {
        Self { file, running: None }
    }

    /// Writes a report after any report that is still being written: a prober that is told to end stops waiting in
    /// the middle, and its last report must neither mix with the one before in the same file nor be replaced by it.
    pub async fn write(&mut self, report: Report) -> Result<()> {
        if self.running.is_some() {
            // The result was for the caller that waited then.
            self.wait().await.ok();
        }
        let file = self.file.clone();
        self.running = Some(tokio::task::spawn_blocking(move || report.write(&file)));
        self.wait().await
    }

    async fn wait(&mut self) -> Result<()> {
        let Some(running) = &mut self.running else {
            return Ok(());
        };
        let written = running.await;
        self.running = None;
        written.context("write the report")?
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    /// A report of this length at least.
    fn report(finished: bool, length: usize) -> Report {
        Report {
            node: "n".repeat(length),
            ..Report::empty("a", finished)
        }
    }

    #[tokio::test]
    async fn the_last_report_is_complete_after_an_abandoned_write() {
        let folder = tempfile::tempdir().unwrap();
        for round in 0..50 {
            let mut writer = Writer::new(folder.path().join("a.json"));
            let before = writer.write(report(false, 4 << 20)).now_or_never();
            assert!(before.is_none(), "the write takes longer than one poll");
            writer.write(report(true, round)).await.unwrap();
            let read = Report::read_all(folder.path()).unwrap();
            assert_eq!(read, [report(true, round)]);
        }
    }
}
