//! Reading folders and files of the host, and removing them durably. Touches the paths that it is given.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::{fs, path};

use thiserror::Error;

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

/// Reads a file; `None` when there is none.
///
/// The folder must be there: in a container a folder that was not mounted looks like an empty host.
pub fn read_if_there(path: &Path) -> Result<Option<Vec<u8>>, FileError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if let Some(folder) = path.parent() {
                fs::metadata(folder).map_err(FileError::of("look into folder (is it mounted?)", folder))?;
            }
            Ok(None)
        }
        Err(error) => Err(FileError::of("read", path)(error)),
    }
}

/// Names of the regular files (or links to them) of a folder, sorted. `None` when there is no such folder.
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
            Err(error) => return Err(FileError::of("look at", &path)(error)),
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
    fs::read(path).map_err(FileError::of("read", path))
}

/// Writes a file so that a crash leaves the old content or the new, never a part.
pub fn write_durably(path: &Path, bytes: &[u8]) -> Result<(), FileError> {
    replace(path, bytes, |_| Ok(()))
}

/// The same, with these permission bits and this owner (user and group) from the first moment on.
pub fn write_durably_as(path: &Path, bytes: &[u8], mode: u32, owner: (u32, u32)) -> Result<(), FileError> {
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, fchown};
    replace(path, bytes, |file| {
        // In this order: once the file is somebody else's, its permissions are not ours to change.
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        let own = file.metadata()?;
        if (own.uid(), own.gid()) == owner {
            return Ok(());
        }
        fchown(file, Some(owner.0), Some(owner.1))
    })
}

fn replace(
    path: &Path,
    bytes: &[u8],
    prepare: impl Fn(&fs::File) -> io::Result<()>,
) -> Result<(), FileError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary: PathBuf = folder.join(format!(".{name}.part"));
    let write = || -> io::Result<()> {
        let mut file = fs::File::create(&temporary)?;
        prepare(&file)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    };
    if let Err(error) = write() {
        // A part on a full disk keeps the room that the next try needs. Whether it can go changes nothing.
        let _ = fs::remove_file(&temporary);
        return Err(FileError::of("write", path)(error));
    }
    sync_folder(folder)
}

/// Makes the names in a folder last over a power cut.
pub fn sync_folder(folder: &Path) -> Result<(), FileError> {
    fs::File::open(folder)
        .and_then(|file| file.sync_all())
        .map_err(FileError::of("sync folder", folder))
}
