//! Waits for the end of processes of the host. The kernel announces it through a file descriptor of each.

use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// The longest wait in one call: a thread waits, and the agent does not end before its threads.
const LIMIT: Duration = Duration::from_millis(500);

/// Returns once one of these processes has ended. Does not return if none ends within half a second, or if none can be awaited: all
/// have ended before, or the kernel is older than Linux 5.3. The caller has to look again after a while in any case.
pub async fn one_ended(numbers: &[u32]) {
    let processes: Vec<OwnedFd> = numbers.iter().filter_map(|number| open(*number)).collect();
    if !processes.is_empty() {
        let waited = tokio::task::spawn_blocking(move || wait(&processes)).await;
        if matches!(waited, Ok(true)) {
            return;
        }
    }
    std::future::pending::<()>().await;
}

fn open(number: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(number).ok()?)?;
    let opened = pidfd_open(pid, PidfdFlags::empty());
    opened
        .inspect_err(|error| tracing::debug!(number, %error, "the end of this process is not announced"))
        .ok()
}

/// Whether one of the processes ends within the limit.
fn wait(processes: &[OwnedFd]) -> bool {
    let each = processes
        .iter()
        .map(|process| PollFd::new(process, PollFlags::IN));
    let limit = Timespec::try_from(LIMIT).ok();
    let ended = poll(&mut each.collect::<Vec<_>>(), limit.as_ref());
    ended
        .inspect_err(|error| tracing::debug!(%error, "waiting for the end of a process failed"))
        .is_ok_and(|number| number > 0)
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use super::*;

    fn sleeper() -> Child {
        Command::new("sleep").arg("60").spawn().unwrap()
    }

    fn end(mut child: Child) {
        child.kill().unwrap();
        child.wait().unwrap();
    }

    async fn ends_within(numbers: &[u32], limit: Duration) -> bool {
        tokio::time::timeout(limit, one_ended(numbers)).await.is_ok()
    }

    #[tokio::test]
    async fn the_end_of_one_of_several_processes_is_seen() {
        let (first, mut second) = (sleeper(), sleeper());
        let numbers = [first.id(), second.id()];
        assert!(!ends_within(&numbers, 2 * LIMIT).await, "both processes run");
        let waits = tokio::spawn(async move { one_ended(&numbers).await });
        tokio::time::sleep(LIMIT / 5).await;
        assert!(!waits.is_finished());
        second.kill().unwrap();
        // Without the announcement, the wait ends never.
        tokio::time::timeout(Duration::from_secs(30), waits)
            .await
            .expect("the process has ended, and is not reaped yet")
            .unwrap();
        end(second);
        end(first);
    }

    #[tokio::test]
    async fn a_process_that_has_ended_before_is_not_awaited() {
        let ended = sleeper();
        let number = ended.id();
        end(ended);
        let ever = ends_within(&[number, 0, u32::MAX], 2 * LIMIT).await;
        assert!(!ever, "no busy loop of observations");
    }
}
