//! Wakes the loop when a file of a watched folder changes. Opens one inotify instance.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::files::FileError;

/// What counts as a change: a file that comes, goes, or is written to its end.
const CHANGES: AddWatchFlags = AddWatchFlags::IN_CREATE
    .union(AddWatchFlags::IN_CLOSE_WRITE)
    .union(AddWatchFlags::IN_MOVED_TO)
    .union(AddWatchFlags::IN_MOVED_FROM)
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_DELETE_SELF);

/// Watches folders until it is dropped.
#[derive(Debug)]
pub struct FolderWatch(Option<Watching>);

#[derive(Debug)]
struct Watching {
    inotify: Inotify,
    task: JoinHandle<()>,
}

impl FolderWatch {
    /// Watches no folder yet. `changed` is woken by each change. Where the kernel gives no watch, since a user has used all of them up, it is
    /// never woken: the slow look at the host goes on without it.
    pub fn start(changed: Arc<Notify>) -> Self {
        let watching = Watching::start(changed);
        if let Err(error) = &watching {
            tracing::warn!(
                %error,
                "no folder is watched, and changes in it are seen later; see `sysctl fs.inotify.max_user_instances`"
            );
        }
        Self(watching.ok())
    }

    /// Watches this folder. A folder that is watched already is watched once.
    pub fn add(&self, folder: &Path) -> Result<(), FileError> {
        let Some(Watching { inotify, .. }) = &self.0 else {
            return Ok(());
        };
        inotify
            .add_watch(folder, CHANGES)
            .map(|_| ())
            .map_err(|errno| FileError::of("watch folder (is it mounted?)", folder)(errno.into()))
    }
}

impl Watching {
    fn start(changed: Arc<Notify>) -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        // To a reader an inotify instance is a pipe: what the events say does not matter here, only that they come.
        let mut events = Receiver::from_owned_fd_unchecked(inotify.as_fd().try_clone_to_owned()?)?;
        let task = tokio::spawn(async move {
            let mut buffer = [0; 4096];
            loop {
                match events.read(&mut buffer).await {
                    Ok(1..) => changed.notify_one(),
                    ended => {
                        // The slow look at the host goes on without it.
                        tracing::warn!(?ended, "the folders are no longer watched");
                        return;
                    }
                }
            }
        });
        Ok(Self { inotify, task })
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_file_that_comes_wakes_the_loop() {
        let folder = tempfile::tempdir().unwrap();
        let changed = Arc::new(Notify::new());
        let watch = FolderWatch::start(Arc::clone(&changed));
        watch.add(folder.path()).unwrap();
        std::fs::write(folder.path().join("10-calico.conflist"), "{}").unwrap();
        tokio::time::timeout(Duration::from_secs(10), changed.notified())
            .await
            .unwrap();
    }

    #[tokio::test]
    async fn a_folder_that_is_not_there_is_an_error_that_names_it() {
        let watch = FolderWatch::start(Arc::default());
        let error = watch.add(Path::new("/nowhere/net.d")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/net.d"), "{error}");
    }
}
