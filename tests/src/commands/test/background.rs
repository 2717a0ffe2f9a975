//! Work that uses idle processor time.

use std::process::Command;
use std::thread::JoinHandle;

use anyhow::{Context, Result, ensure};
use tokio::sync::oneshot;

/// The value of `nice` for work without a deadline.
const LOWEST: &str = "19";

/// Runs the work on its own thread. The thread and every program that it starts have the lowest priority. Dropping
/// the future ends the work and the programs that the work has started.
pub(super) async fn in_background<T, Work>(work: Work) -> Result<T>
where
    T: Send + 'static,
    Work: AsyncFnOnce() -> T + Send + 'static,
{
    let (done, result) = oneshot::channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let body = move || {
        let worked = || -> Result<Option<T>> {
            lower_this_thread()?;
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .context("create a runtime")?;
            Ok(runtime.block_on(async {
                tokio::select! {
                    value = work() => Some(value),
                    _ = stopped => None,
                }
            }))
        };
        // The other side waits for one value, unless it has been dropped.
        done.send(worked()).ok();
    };
    let thread = std::thread::Builder::new()
        .name("background".to_owned())
        .spawn(body)
        .context("start the thread of the work in the background")?;
    let _running = Running {
        stop: Some(stop),
        thread: Some(thread),
    };
    let worked = result.await.context("the work in the background panicked")??;
    worked.context("the work in the background was stopped")
}

struct Running {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // The caller that waits for the result gets the panic as an error.
            thread.join().ok();
        }
    }
}

/// Linux has a priority for each thread, and a program gets the priority of the thread that starts it.
fn lower_this_thread() -> Result<()> {
    let thread = nix::unistd::gettid().to_string();
    let output = Command::new("renice")
        .args(["-n", LOWEST, "-p", &thread])
        .output()
        .context("run renice (Debian: apt-get install bsdutils)")?;
    ensure!(
        output.status.success(),
        "renice -n {LOWEST} failed ({}): {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::*;

    async fn niceness() -> String {
        let output = tokio::process::Command::new("nice").output().await.unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    #[tokio::test]
    async fn background_programs_have_the_lowest_priority_and_others_keep_theirs() {
        let before = niceness().await;
        let seen = in_background(async || niceness().await).await.unwrap();
        assert_eq!(seen, LOWEST);
        assert_eq!(niceness().await, before);
    }

    #[tokio::test]
    async fn dropped_work_ends_with_the_programs_that_it_has_started() {
        let (says, told) = oneshot::channel();
        let work = in_background(async move || {
            let mut child = tokio::process::Command::new("sleep")
                .arg("600")
                .kill_on_drop(true)
                .spawn()
                .unwrap();
            says.send(child.id().unwrap()).unwrap();
            child.wait().await.unwrap();
        });
        let process = tokio::select! {
            _ = work => panic!("the work has ended before it was dropped"),
            process = told => process.unwrap(),
        };
        let place = format!("/proc/{process}/cmdline");
        let deadline = std::time::Instant::now() + Duration::from_secs(20);
        // The process is killed but perhaps not yet reaped: then it has no command line.
        while std::fs::read(Path::new(&place)).is_ok_and(|line| !line.is_empty()) {
            assert!(std::time::Instant::now() < deadline, "process {process} runs");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    #[tokio::test]
    async fn a_panic_of_the_work_is_an_error() {
        let error = in_background(async || panic!("as it should be")).await;
        let error = error.map(|never: ()| never).unwrap_err().to_string();
        assert!(error.contains("panicked"), "{error}");
    }
}
