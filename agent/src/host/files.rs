//! Reads folders and files of the host, and removes them durably. Touches only the given paths.

mod write;

use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::{fs, path};

use api::FailureCategory;
use nix::fcntl::OFlag;
use thiserror::Error;

pub use write::{write_durably, write_durably_as};

/// Maximum size of a file in bytes: no file of CNI or flannel is larger, and a larger one is not read.
pub const MOST: u64 = 1 << 20;

/// A file or folder could not be read or changed.
#[derive(Debug, Error)]
#[error("could not {attempt} {path}")]
pub struct FileError {
    /// The operation that failed.
    pub attempt: &'static str,
    /// The file or folder.
    pub path: path::PathBuf,
    /// The kernel's error.
    #[source]
    pub source: io::Error,
}

impl FileError {
    /// The category for metrics and status.
    pub fn category(&self) -> FailureCategory {
        FailureCategory::HostFile
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

/// Content and metadata of a file.
#[derive(Debug)]
pub struct FileContent {
    /// The whole content.
    pub bytes: Vec<u8>,
    /// Owner and permissions.
    pub metadata: fs::Metadata,
}

/// Reads a file; `None` when it does not exist. A file with more than [`MOST`] bytes is an error.
///
/// The folder must exist: in a container, a folder that is not mounted looks like an empty host.
///
/// # Errors
///
/// The folder of the file is missing, or the file cannot be read or has more than [`MOST`] bytes.
pub fn read_if_exists(path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    Ok(read_limited_if_exists(path, MOST)?.map(|file| file.bytes))
}

/// The same for a file of at most this many bytes, with its metadata.
///
/// # Errors
///
/// The folder of the file is missing, or the file cannot be read or has more than `most` bytes.
pub fn read_limited_if_exists(path: &Path, most: u64) -> Result<Option<FileContent>, FileError> {
    match whole(path, most) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if let Some(folder) = path.parent() {
                fs::metadata(folder).map_err(FileError::of("access folder (is it mounted?)", folder))?;
            }
            Ok(None)
        }
        Err(error) => Err(FileError::of("read", path)(error)),
    }
}

/// Opens without blocking: a pipe or a device in place of the file is an error, and does not hang.
fn whole(path: &Path, most: u64) -> io::Result<FileContent> {
    let file = fs::OpenOptions::new()
        .read(true)
        .custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits())
        .open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let too_large = || Err(io::Error::other(format!("file has more than {most} bytes")));
    if metadata.len() > most {
        return too_large();
    }
    let mut bytes = Vec::new();
    // One byte more than allowed: the file may have grown, and files of the kernel have no length.
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return too_large();
    }
    Ok(FileContent { bytes, metadata })
}

/// Reads the first bytes of a file; may block.
///
/// # Errors
///
/// The file is missing or cannot be read.
pub fn read_at_most(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(most as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a small file of the kernel as text.
///
/// # Errors
///
/// The file is missing, cannot be read, has more than 64 KiB, or is not UTF-8.
pub fn read_small(path: &Path) -> io::Result<String> {
    let bytes = whole(path, 64 << 10)?.bytes;
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Sorted names of a folder's regular files, links to regular files, and files whose type cannot be read. `None` when the folder
/// does not exist.
///
/// # Errors
///
/// The folder exists and cannot be listed.
pub fn list_if_exists(folder: &Path) -> Result<Option<Vec<String>>, FileError> {
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
            // Deleted after the listing, or a dangling link: there is nothing to read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            // A link to itself, or another unreadable entry: reading it reports the error.
            Err(_) => names.extend(path.file_name().and_then(OsStr::to_str).map(str::to_owned)),
        }
    }
    names.sort();
    Ok(Some(names))
}

/// Removes a file so that the removal survives a power cut. A file that does not exist is not an error.
///
/// # Errors
///
/// The file cannot be removed, or its folder cannot be synced.
pub fn remove_durably(path: &Path) -> Result<(), FileError> {
    match fs::remove_file(path) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(FileError::of("remove", path)(error)),
    }
    path.parent().map_or(Ok(()), sync_folder)
}

/// Removes an empty folder. A folder that is not empty is kept; a missing folder is not an error.
///
/// # Errors
///
/// The folder is empty and cannot be removed, or its parent cannot be synced.
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

/// Reads a file that must exist.
///
/// # Errors
///
/// The file is missing, cannot be read, or has more than [`MOST`] bytes.
pub fn read(path: &Path) -> Result<Vec<u8>, FileError> {
    whole(path, MOST)
        .map(|file| file.bytes)
        .map_err(FileError::of("read", path))
}

/// Syncs a folder, so that its file names survive a power cut.
///
/// # Errors
///
/// The folder is missing or cannot be synced.
pub fn sync_folder(folder: &Path) -> Result<(), FileError> {
    fs::File::open(folder)
        .and_then(|file| file.sync_all())
        .map_err(FileError::of("sync folder", folder))
}

#[cfg(test)]
mod tests;
