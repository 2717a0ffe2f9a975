//! The pause program as process 1 of a process namespace, as in every pod.

#![expect(clippy::unwrap_used, reason = "a test says what it expects by failing")]

use std::fs;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const LIMIT: Duration = Duration::from_secs(20);

/// Repeats the check until it has a result; the message names the expected result.
fn until<T>(what: &str, mut observe: impl FnMut() -> Option<T>) -> T {
    let started = Instant::now();
    loop {
        if let Some(found) = observe() {
            return found;
        }
        assert!(
            started.elapsed() < LIMIT,
            "{what} did not happen in {} s",
            LIMIT.as_secs()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Name, state and pid of each child of a process.
fn children(pid: i32) -> Vec<(String, String, i32)> {
    let list = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let describe = |child: &str| {
        let stat = fs::read_to_string(format!("/proc/{child}/stat")).ok()?;
        let (name, rest) = stat.split_once('(')?.1.rsplit_once(')')?;
        let state = rest.split_whitespace().next()?;
        Some((name.to_owned(), state.to_owned(), child.parse().ok()?))
    };
    list.split_whitespace().filter_map(describe).collect()
}

fn holder_pid(holder: &Child) -> i32 {
    i32::try_from(holder.id()).unwrap()
}

/// A namespace whose process 1 becomes the pause program after it has started an orphan.
fn start(orphan_seconds: &str) -> (Child, i32) {
    let script = format!(
        "(sleep {orphan_seconds} &); exec {} pause",
        env!("CARGO_BIN_EXE_traffic")
    );
    let holder = Command::new("unshare")
        .args([
            "--map-root-user",
            "--pid",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            &script,
        ])
        .spawn()
        .unwrap();
    let pause = until("the pause program", || {
        children(holder_pid(&holder))
            .into_iter()
            .find(|(name, ..)| name == "traffic")
            .map(|(.., pid)| pid)
    });
    (holder, pause)
}

/// Tells the pause program to end; returns its exit status.
fn end(holder: &mut Child, pause: i32) -> ExitStatus {
    until("the end", || {
        // More than once: a new process 1 does not get a signal before it waits for it.
        if children(holder_pid(holder)).iter().any(|(.., pid)| *pid == pause) {
            kill(Pid::from_raw(pause), Signal::SIGTERM).ok();
        }
        holder.try_wait().unwrap()
    })
}

#[test]
fn orphans_are_reaped() {
    let (mut holder, pause) = start("0.5");
    // The kernel keeps an ended process as a zombie until it is reaped.
    until("the end of the orphan", || {
        children(pause).is_empty().then_some(())
    });
    end(&mut holder, pause);
}

#[test]
fn the_pause_program_ends_on_sigterm() {
    let (mut holder, pause) = start("600");
    assert!(!children(pause).is_empty(), "the orphan exists");
    let status = end(&mut holder, pause);
    assert!(status.success(), "{status}");
}
