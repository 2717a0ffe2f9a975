//! Work inside another network namespace.

use std::fs::File;
use std::path::Path;
use std::thread;

use anyhow::{Context, Result, anyhow};
use nix::sched::{CloneFlags, setns};

use super::netlink::Netlink;

/// Opens a network namespace by its path; `None` if there is no such file.
pub fn open(path: &Path) -> Result<Option<File>> {
    match File::open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("open the network namespace {}", path.display())),
    }
}

/// Runs work on a thread inside the namespace. Netlink sockets and `/proc/sys/net` belong to the namespace there; the
/// thread ends with the work, so that no other work runs in the wrong namespace.
pub fn within<T, W, F>(namespace: &File, work: W) -> Result<T>
where
    T: Send,
    W: FnOnce(Netlink) -> F + Send,
    F: Future<Output = Result<T>>,
{
    let enter_and_work = || -> Result<T> {
        setns(namespace, CloneFlags::CLONE_NEWNET).context("enter the pod's network namespace")?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        runtime.block_on(async { work(Netlink::open()?).await })
    };
    thread::scope(|scope| scope.spawn(enter_and_work).join())
        .map_err(|_| anyhow!("work in a network namespace: the thread panicked"))?
}
