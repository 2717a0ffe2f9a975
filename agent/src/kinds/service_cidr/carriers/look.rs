//! Files of one process of somebody else's. Reads /proc, and of the process's own files `/etc/resolv.conf`: whatever a pod has put
//! there instead, nothing outside of the pod is read, and no more of it than such a file can have.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, OpenHow, ResolveFlag, openat, openat2, readlinkat};
use nix::sys::stat::Mode;

/// More than the kernel lets a program start with (6 MiB): what is behind it was put there later.
const MOST_ENVIRONMENT: u64 = 8 << 20;
/// More than any kubelet writes into one.
const MOST_RESOLVER: u64 = 64 << 10;
/// More than any process has.
const MOST_GROUPS: u64 = 64 << 10;

/// What looking for something of a process came to.
#[derive(Debug)]
pub(super) enum Looked<T> {
    /// It is there.
    Seen(T),
    /// It is not there, or its process has ended.
    Gone,
    /// It may be there, and cannot be looked at: what was attempted, and the kernel's word.
    Refused(String),
}

impl<T> Looked<T> {
    fn of(found: io::Result<T>, what: &str) -> Self {
        match found {
            Ok(found) => Self::Seen(found),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                ) || error.raw_os_error() == Some(Errno::ESRCH as i32) =>
            {
                Self::Gone
            }
            // Without the process's number: why it cannot be looked at is the same for the next one.
            Err(error) => Self::Refused(format!("could not read {what} of a process: {error}")),
        }
    }
}

/// A process. Its folder is held open: when it ends, nobody else can come under its number.
#[derive(Debug)]
pub(super) struct Process {
    folder: OwnedFd,
}

impl Process {
    /// The process of this folder of /proc.
    pub(super) fn open(path: &Path) -> Looked<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let folder = openat(AT_FDCWD, path, flags, Mode::empty()).map_err(io::Error::from);
        Looked::of(folder.map(|folder| Self { folder }), "the folder")
    }

    /// Its control groups.
    pub(super) fn groups(&self) -> Looked<String> {
        Looked::of(
            self.file("cgroup").and_then(|file| text(file, MOST_GROUPS)),
            "cgroup",
        )
    }

    /// What `read` makes of the variables that it was started with. What is read is taken from `allowance`, and no more than that is.
    pub(super) fn environment<T>(
        &self,
        allowance: &mut u64,
        read: impl FnOnce(&mut dyn BufRead) -> io::Result<T>,
    ) -> Looked<T> {
        let found = self.file("environ").and_then(|file| {
            let most = MOST_ENVIRONMENT.min(*allowance);
            let mut entries = BufReader::new(file.take(most));
            let found = read(&mut entries);
            *allowance -= most - entries.get_ref().limit();
            found
        });
        Looked::of(found, "environ")
    }

    /// Whose mounts it sees; `None` where that cannot be read.
    pub(super) fn mounts(&self) -> Option<PathBuf> {
        readlinkat(&self.folder, "ns/mnt").ok().map(PathBuf::from)
    }

    /// The `resolv.conf` that it sees.
    pub(super) fn resolver(&self) -> Looked<String> {
        Looked::of(self.resolver_file(), "/etc/resolv.conf")
    }

    fn resolver_file(&self) -> io::Result<String> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let root = openat(&self.folder, "root", flags, Mode::empty())?;
        // Links end within the pod's own root; a pipe that nobody writes into keeps nobody waiting.
        let how = OpenHow::new()
            .flags(OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        let file = File::from(openat2(root.as_fd(), "etc/resolv.conf", how)?);
        if !file.metadata()?.is_file() {
            return Err(io::Error::other("it is no file"));
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
