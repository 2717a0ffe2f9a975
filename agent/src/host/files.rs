//! Reading folders and files of the host, and removing them durably. Touches the paths that it is given.

mod write;

use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::{fs, path};

use nix::fcntl::OFlag;
use thiserror::Error;

pub use write::{write_durably, write_durably_as};

/// No file of CNI's or flannel's has more bytes; one that has is not read.
pub const MOST: u64 = 1 << 20;

/// Why a file or folder could not be read or changed.
#[derive(Debug, Error)]
#[error("could not {attempt} {path}")]
pub struct FileError {
    /// What was attempted.
    pub attempt: &'static str,
    /// The file or folder.
    pub path: path::PathBuf,
    /// The kernel's answer.
    #[source]
    pub source: io::Error,
}

impl FileError {
    /// The category for metrics and status.
    pub fn category(&self) -> &'static str {
        "HostFile"
    }

    pub(crate) fn of<'path>(
        attempt: &'static str,
        path: &'path Path,
    ) -> impl FnOnce(io::Error) -> Self + 'path {
        move |source| Self {
            attempt,
            path: path.to_owned(),
            source,
        }
    }
}

/// A file as it was when it was opened.
#[derive(Debug)]
pub struct Whole {
    /// All of its bytes.
    pub bytes: Vec<u8>,
    /// Its owner and permissions.
    pub metadata: fs::Metadata,
}

/// Reads a file; `None` when there is none. One that has more than [`MOST`] bytes is an error.
///
/// The folder must be there: in a container a folder that was not mounted looks like an empty host.
pub fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    Ok(whole_if_there(path, MOST)?.map(|file| file.bytes))
}

/// The same, of a file that may have this many bytes, and with what else the kernel says of it.
pub fn whole_if_there(path: &Path, most: u64) -> Result<Option<Whole>, FileError> {
    match whole(path, most) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if let Some(folder) = path.parent() {
                fs::metadata(folder).map_err(FileError::of("look into folder (is it mounted?)", folder))?;
            }
            Ok(None)
        }
        Err(error) => Err(FileError::of("read", path)(error)),
    }
}

/// A pipe or a device in a file's place keeps nothing waiting: it is opened without waiting, and is not read.
fn whole(path: &Path, most: u64) -> io::Result<Whole> {
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits())
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let too_large = || Err(io::Error::other(format!("it has more than {most} bytes")));
    if metadata.len() > most {
        return too_large();
    }
    let mut bytes = Vec::new();
    // One more than there may be: it may have grown, and files of the kernel have no length.
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return too_large();
    }
    Ok(Whole { bytes, metadata })
}

/// The first bytes of a file, which are waited for.
pub fn read_at_most(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(most as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A small file of the kernel, as text.
pub fn read_small(path: &Path) -> io::Result<String> {
    let bytes = whole(path, 64 << 10)?.bytes;
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Names of the regular files (or links to them) of a folder, sorted, and of what cannot be looked at. `None` when there is no such folder.
pub fn list_if_there(folder: &Path) -> Result<Option<Vec<String>>, FileError> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(FileError::of("list folder", folder)(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(FileError::of("list folder", folder))?;
        let path = entry.path();
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => {
                if let Some(name) = path.file_name().and_then(OsStr::to_str) {
                    names.push(name.to_owned());
                }
            }
            Ok(_) => {}
            // Gone between listing and looking, or a link to nowhere: nothing to read either way.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // A link to itself, or what else leads to no file: who reads it is told.
            Err(_) => names.extend(path.file_name().and_then(OsStr::to_str).map(str::to_owned)),
        }
    }
    names.sort();
    Ok(Some(names))
}

/// Removes a file and makes that last over a power cut. A file that is gone already is no error.
pub fn remove_durably(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(FileError::of("remove", path)(error)),
    }
    path.parent().map_or(Ok(()), sync_folder)
}

/// Removes a folder if nothing is in it. One that somebody still uses is left; so is one that is gone.
pub fn remove_folder_if_empty(folder: &Path) -> Result<(), FileError> {
    match fs::remove_dir(folder) {
        Ok(()) => folder.parent().map_or(Ok(()), sync_folder),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::DirectoryNotEmpty
            ) =>
        {
            Ok(())
        }
        Err(error) => Err(FileError::of("remove folder", folder)(error)),
    }
}

/// Reads a file that has to be there.
pub fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    whole(path, MOST)
        .map(|file| file.bytes)
        .map_err(FileError::of("read", path))
}

/// Makes the names in a folder last over a power cut.
pub fn sync_folder(folder: &Path) -> Result<(), FileError> {
    fs::File::open(folder)
        .and_then(|file| file.sync_all())
        .map_err(FileError::of("sync folder", folder))
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
