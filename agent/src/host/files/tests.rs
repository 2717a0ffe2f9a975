use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::*;

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_file_that_is_too_large_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("10-large.conflist");
    let file = fs::File::create(&path).unwrap();
    file.set_len(MOST).unwrap();
    assert_eq!(read_if_exists(&path).unwrap().unwrap().len() as u64, MOST);
    file.set_len(MOST + 1).unwrap();
    let error = read_if_exists(&path).unwrap_err();
    assert!(
        runtime::error::chain(&error).contains("more than 1048576 bytes"),
        "{error}"
    );
    // A sparse file: its content must not be held in memory.
    file.set_len(1 << 40).unwrap();
    read_if_exists(&path).unwrap_err();
    read(&path).unwrap_err();
}

#[test]
fn a_pipe_a_device_and_a_folder_are_errors_and_do_not_block() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    mkfifo(&pipe, Mode::S_IRWXU).unwrap();
    for path in [pipe.as_path(), Path::new("/dev/zero"), folder.path()] {
        let error = read_if_exists(path).unwrap_err();
        assert!(
            runtime::error::chain(&error).contains("not a regular file"),
            "{error}"
        );
    }
    assert!(read_if_exists(&folder.path().join("none")).unwrap().is_none());
    read_if_exists(&folder.path().join("none/none")).unwrap_err();
}

#[test]
fn a_file_is_replaced_and_temporary_files_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("10-calico.conflist");
    // A temporary file after a crash, and a file of another program.
    for name in [
        ".10-calico.conflist.0123456789abcdef.part",
        ".10-calico.conflist.part",
    ] {
        fs::write(folder.path().join(name), "a part").unwrap();
    }
    write_durably_as(&path, b"one", 0o600, (0, 0)).unwrap();
    write_durably(&path, b"two").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"two");
    assert_eq!(
        names(folder.path()),
        [".10-calico.conflist.part", "10-calico.conflist"]
    );
    write_durably_as(&path, b"three", 0o640, (0, 0)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o640);
}

#[test]
fn a_link_in_place_of_a_file_is_replaced_and_not_followed() {
    let folder = tempfile::tempdir().unwrap();
    let target = folder.path().join("shadow");
    fs::write(&target, "not ours").unwrap();
    let path = folder.path().join("10-flannel.conflist");
    symlink(&target, &path).unwrap();
    // A link with the name that earlier versions used for temporary files is not followed.
    symlink(&target, folder.path().join(".10-flannel.conflist.part")).unwrap();
    write_durably(&path, b"ours").unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"not ours");
    assert!(fs::symlink_metadata(&path).unwrap().is_file());
    assert_eq!(fs::metadata(&target).unwrap().nlink(), 1);
}

#[test]
fn a_missing_folder_is_named_in_the_error() {
    let error = write_durably(Path::new("/nowhere/10.conflist"), b"").unwrap_err();
    assert!(error.to_string().contains("/nowhere/10.conflist"), "{error}");
}
