//! Writes a file so that after a crash, or with another program writing into the same folder, it has either the old or the new
//! content.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::fd::OwnedFd;
use std::path::Path;

use nix::dir::Dir;
use nix::fcntl::{OFlag, open, openat, renameat};
use nix::sys::stat::Mode;
use nix::unistd::{UnlinkatFlags, fsync, unlinkat};

use super::FileError;
use crate::host::random;

/// Hexadecimal digits in the name of a temporary file.
const DIGITS: usize = 16;
/// Suffix of the names of temporary files.
const PART: &str = ".part";

/// Writes a file so that after a crash it has either the old or the new content, never a part.
///
/// # Errors
///
/// The new file cannot be written, synced or renamed.
pub fn write_durably(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    replace(path, bytes, |_| Ok(()))
}

/// The same, with these permission bits and this owner (user and group) from its creation.
///
/// # Errors
///
/// The new file cannot be written, synced or renamed, or cannot get the permissions or the owner.
pub fn write_durably_as(path: &Path, bytes: &[u8], mode: u32, owner: (u32, u32)) -> Result<(), FileError> {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
    replace(path, bytes, |file| {
        // In this order: once the file belongs to another user, its permissions cannot be changed any more.
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        let own = file.metadata()?;
        if (own.uid(), own.gid()) == owner {
            return Ok(());
        }
        fchown(file, Some(owner.0), Some(owner.1))
    })
}

fn replace(path: &Path, bytes: &[u8], prepare: impl Fn(&File) -> io::Result<()>) -> Result<(), FileError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default();
    let write = || -> io::Result<()> {
        // Every name below is resolved in this open folder, since the path may be moved or replaced by a link meanwhile.
        let folder = open(
            folder,
            OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC,
            Mode::empty(),
        )?;
        remove_parts(&folder, &name.to_string_lossy())?;
        let temporary = format!(".{}.{:016x}{PART}", name.to_string_lossy(), random::number()?);
        let written = fill(&folder, &temporary, bytes, &prepare)
            .and_then(|()| Ok(renameat(&folder, temporary.as_str(), &folder, name)?));
        if let Err(error) = written {
            // On a full disk the temporary file occupies space that the next attempt needs. A failed removal does not matter.
            let _ = unlinkat(&folder, temporary.as_str(), UnlinkatFlags::NoRemoveDir);
            return Err(error);
        }
        Ok(fsync(&folder)?)
    };
    write().map_err(FileError::of("write", path))
}

/// Creates a new file: an existing file or link with this name belongs to another program, and is not written into.
fn fill(
    folder: &OwnedFd,
    name: &str,
    bytes: &[u8],
    prepare: impl Fn(&File) -> io::Result<()>,
) -> io::Result<()> {
    let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut file = File::from(openat(folder, name, flags, Mode::from_bits_truncate(0o644))?);
    prepare(&file)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Removes temporary files of earlier attempts that a crash interrupted.
fn remove_parts(folder: &OwnedFd, name: &str) -> io::Result<()> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut listing = Dir::from_fd(openat(folder, ".", flags, Mode::empty())?)?;
    let mut parts: Vec<OsString> = Vec::new();
    for entry in listing.iter() {
        let entry = entry?;
        if let Ok(found) = entry.file_name().to_str()
            && is_part(found, name)
        {
            parts.push(found.into());
        }
    }
    for part in parts {
        match unlinkat(folder, part.as_os_str(), UnlinkatFlags::NoRemoveDir) {
            Ok(()) | Err(nix::errno::Errno::ENOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn is_part(found: &str, name: &str) -> bool {
    let digits = found
        .strip_prefix('.')
        .and_then(|rest| rest.strip_prefix(name))
        .and_then(|rest| rest.strip_prefix('.'))
        .and_then(|rest| rest.strip_suffix(PART));
    digits.is_some_and(|digits| digits.len() == DIGITS && digits.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_files_of_this_file_are_recognized() {
        let name = "10-calico.conflist";
        assert!(is_part(".10-calico.conflist.0123456789abcdef.part", name));
        for other in [
            ".10-calico.conflist.part",
            ".10-calico.conflist.0123456789abcde.part",
            ".10-calico.conflist.0123456789abcdeg.part",
            ".11-calico.conflist.0123456789abcdef.part",
            "10-calico.conflist",
            "10-calico.conflist.0123456789abcdef.part",
        ] {
            assert!(!is_part(other, name), "{other}");
        }
    }
}
