//! Reads what the container runtime of the host sets about the pod network: its command line, and the files of CRI-O.

use std::path::Path;

use flannel_to_calico::runtime::{
    CRI_DOCKERD, CRIO, CRIO_FILE, CRIO_FOLDER, CRIO_SUBFOLDER, Runtime, RuntimeFile,
};
use runtime::error::chain;

use super::files::{FileError, list_if_exists, read_limited_if_exists};
use super::paths::Paths;
use super::processes::{Processes, Running};

/// Process names of the runtimes that choose the pod network by more than the CNI configuration directory.
pub const NAMES: [&str; 2] = [CRIO, CRI_DOCKERD];
/// Largest file that is read: the file of CRI-O with all its comments has a tenth of that.
const LARGEST: u64 = 256 << 10;

/// The settings of the runtime that runs; `None` if none of these runs.
pub async fn read(processes: &Processes, running: &Running, paths: &Paths) -> Option<Runtime> {
    let numbers = |name: &'static str| running.numbers(name).first().map(|number| (name, *number));
    let (name, number) = NAMES.into_iter().find_map(numbers)?;
    Some(match processes.arguments(&paths.proc, number).await {
        Err(problem) => Runtime::unread(name, problem),
        Ok(arguments) if name == CRIO => Runtime::crio(&arguments, &files(&paths.crio)),
        Ok(arguments) => Runtime::cri_dockerd(&arguments),
    })
}

/// The files of CRI-O in the order in which it reads them, or why they cannot be listed. `folder` is [`CRIO_FOLDER`] of the host.
fn files(folder: &Path) -> Result<Vec<RuntimeFile>, String> {
    if !folder.is_dir() {
        return Err(format!(
            "folder {CRIO_FOLDER} of the host is not mounted into the agent's pod"
        ));
    }
    let text = |error: FileError| chain(&error);
    let below = list_if_exists(&folder.join(CRIO_SUBFOLDER)).map_err(text)?;
    let below = below.unwrap_or_default().into_iter();
    let names = below.map(|name| format!("{CRIO_SUBFOLDER}/{name}"));
    let names = [CRIO_FILE.to_owned()].into_iter().chain(names);
    let read = |name: String| {
        let content = match read_limited_if_exists(&folder.join(&name), LARGEST) {
            Ok(file) => String::from_utf8(file?.bytes).map_err(|error| error.to_string()),
            Err(error) => Err(chain(&error)),
        };
        Some((format!("{CRIO_FOLDER}/{name}"), content))
    };
    Ok(names.filter_map(read).collect())
}

#[cfg(test)]
mod tests {
    use flannel_to_calico::runtime::SettingName;

    use super::*;

    #[test]
    fn files_of_crio_are_read_in_its_order() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, network: &str| {
            let text = format!("[crio.network]\ncni_default_network = \"{network}\"\n");
            std::fs::write(folder.path().join(name), text).unwrap();
        };
        std::fs::create_dir(folder.path().join("crio.conf.d")).unwrap();
        write("crio.conf.d/20-last.conf", "last");
        write("crio.conf", "first");
        write("crio.conf.d/10-network.conf", "second");
        let files = files(folder.path());
        let names: Vec<&str> = files.iter().flatten().map(|(name, _)| name.as_str()).collect();
        let expected = [
            "/etc/crio/crio.conf",
            "/etc/crio/crio.conf.d/10-network.conf",
            "/etc/crio/crio.conf.d/20-last.conf",
        ];
        assert_eq!(names, expected);
        let found = Runtime::crio(&[], &files);
        assert_eq!(found.setting(SettingName::Network).unwrap().value, "last");
    }

    #[test]
    fn a_host_without_the_main_file_has_the_others_only() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(files(folder.path()), Ok(Vec::new()));
    }

    #[test]
    fn a_folder_that_is_not_mounted_is_a_problem() {
        let problem = files(Path::new("/nowhere/crio")).unwrap_err();
        assert!(
            problem.contains("/etc/crio") && problem.contains("not mounted"),
            "{problem}"
        );
    }

    #[test]
    fn a_file_that_is_no_text_is_a_problem_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("crio.conf"), [0xff, 0xfe]).unwrap();
        let found = Runtime::crio(&[], &files(folder.path()));
        assert!(found.problem.unwrap().contains("/etc/crio/crio.conf"));
    }
}
