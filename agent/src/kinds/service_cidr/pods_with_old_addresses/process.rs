//! Reads files of a process in a pod: files in /proc, and the pod's `/etc/resolv.conf`. Whatever a pod puts in place of that
//! file, no file outside the pod is read, and the size is limited.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat, openat2, readlinkat};
use nix::sys::stat::Mode;

/// Maximum size of an environment: the kernel limits it to 6 MiB at the start of a program, and the rest was added later.
const MOST_ENVIRONMENT: u64 = 8 << 20;
/// Maximum size of a `resolv.conf`: kubelets write less.
const MOST_RESOLVER: u64 = 64 << 10;
/// Maximum size of the list of control groups: no process has more.
const MOST_GROUPS: u64 = 64 << 10;

/// Result of a read.
#[derive(Debug)]
pub(super) enum ReadResult<T> {
    /// The value.
    Value(T),
    /// The file does not exist, or the process has ended.
    Missing,
    /// The read failed: the operation and the kernel's error.
    Refused(String),
}

impl<T> ReadResult<T> {
    fn of(found: io::Result<T>, what: &str) -> Self {
        match found {
            Ok(found) => Self::Value(found),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) || error.raw_os_error() == Some(Errno::ESRCH as i32) =>
            {
                Self::Missing
            }
            // Without the number of the process: the text is the same for all processes.
            Err(error) => Self::Refused(format!("could not read {what} of a process: {error}")),
        }
    }
}

/// A process. Its folder is held open, so that another process cannot be read under the same number.
#[derive(Debug)]
pub(super) struct Process {
    folder: OwnedFd,
}

impl Process {
    /// Opens the process with this folder in /proc.
    pub(super) fn open(path: &Path) -> ReadResult<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let folder = openat(AT_FDCWD, path, flags, Mode::empty()).map_err(io::Error::from);
        ReadResult::of(folder.map(|folder| Self { folder }), "the folder")
    }

    /// Reads the control groups.
    pub(super) fn groups(&self) -> ReadResult<String> {
        ReadResult::of(
            self.file("cgroup").and_then(|file| text(file, MOST_GROUPS)),
            "cgroup",
        )
    }

    /// Parses the environment with `read`. At most `allowance` bytes are read, and subtracted from it.
    pub(super) fn environment<T>(
        &self,
        allowance: &mut u64,
        read: impl FnOnce(&mut dyn BufRead) -> io::Result<T>,
    ) -> ReadResult<T> {
        let found = self.file("environ").and_then(|file| {
            let most = MOST_ENVIRONMENT.min(*allowance);
            let mut entries = BufReader::new(file.take(most));
            let found = read(&mut entries);
            *allowance -= most - entries.get_ref().limit();
            found
        });
        ReadResult::of(found, "environ")
    }

    /// The mount namespace; `None` if it cannot be read.
    pub(super) fn mounts(&self) -> Option<PathBuf> {
        readlinkat(&self.folder, "ns/mnt").ok().map(PathBuf::from)
    }

    /// Reads `/etc/resolv.conf` in the file system of the process.
    pub(super) fn resolver(&self) -> ReadResult<String> {
        ReadResult::of(self.resolver_file(), "/etc/resolv.conf")
    }

    fn resolver_file(&self) -> io::Result<String> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let root = openat(&self.folder, "root", flags, Mode::empty())?;
        // Links resolve within the pod's own root; a pipe without a writer does not block.
        let how = OpenHow::new()
            .flags(OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        let file = File::from(openat2(root.as_fd(), "etc/resolv.conf", how)?);
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        text(file, MOST_RESOLVER)
    }

    fn file(&self, name: &str) -> io::Result<File> {
        let file = openat(
            &self.folder,
            name,
            OFlag::O_RDONLY | OFlag::O_CLOEXEC,
            Mode::empty(),
        )?;
        Ok(File::from(file))
    }
}

fn text(file: File, most: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
