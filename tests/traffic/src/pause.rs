//! The first process of every pod.

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};

/// Waits for the signal to end, and meanwhile reaps orphans of the pod.
pub fn run() -> Result<()> {
    let mut signals = SigSet::empty();
    for signal in [Signal::SIGCHLD, Signal::SIGINT, Signal::SIGTERM] {
        signals.add(signal);
    }
    // Process 1 of a namespace gets no signal that it neither handles nor waits for.
    signals.thread_block().context("block signals")?;
    loop {
        match signals.wait().context("wait for a signal")? {
            Signal::SIGCHLD => reap()?,
            _ => return Ok(()),
        }
    }
}

/// Several children may have ended for one signal.
fn reap() -> Result<()> {
    loop {
        match waitid(Id::All, WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG) {
            Ok(WaitStatus::StillAlive) | Err(Errno::ECHILD) => return Ok(()),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error).context("reap a process"),
        }
    }
}
