//! Starts threads that read.

use std::io;
use std::thread::JoinHandle;

/// Starts a thread that the agent does not wait for when it exits: a thread that hangs in the kernel cannot be ended.
pub(super) fn thread(run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name("reads-apart".to_owned())
        .spawn(run)
}
