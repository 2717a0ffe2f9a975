//! Notifies the loop when a file of a watched folder changes. Opens one inotify instance.

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

/// Events that count as a change: a file is created, removed, moved, or closed after a write.
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
    /// Without a folder. Each change notifies `changed`. If the kernel refuses an inotify instance because the user's limit is
    /// reached, `changed` is never notified: the agent still observes the host periodically.
    pub fn start(changed: Arc<Notify>) -> Self {
        let watching = Watching::start(changed);
        if let Err(error) = &watching {
            tracing::warn!(
                %error,
                "folders could not be watched; changes in them are seen later: raise fs.inotify.max_user_instances"
            );
        }
        Self(watching.ok())
    }

    /// Watches this folder. Adding a folder twice has no effect.
    ///
    /// # Errors
    ///
    /// The folder is missing, or the kernel refuses another watch.
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
        // An inotify instance can be read like a pipe: only the arrival of events matters, not their content.
        let mut events = Receiver::from_owned_fd_unchecked(inotify.as_fd().try_clone_to_owned()?)?;
        let task = tokio::spawn(async move {
            let mut buffer = [0; 4096];
            loop {
                match events.read(&mut buffer).await {
                    Ok(1..) => changed.notify_one(),
                    ended => {
                        // The agent still observes the host periodically.
                        tracing::warn!(?ended, "watch of folders ended");
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
    async fn a_new_file_notifies_the_loop() {
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
    async fn a_missing_folder_is_named_in_the_error() {
        let watch = FolderWatch::start(Arc::default());
        let error = watch.add(Path::new("/nowhere/net.d")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/net.d"), "{error}");
    }
}
