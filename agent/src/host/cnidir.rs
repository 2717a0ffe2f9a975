//! Reads the CNI folders: configuration, host-local leases, flannel's delegate files. Files are removed with [`super::files`].

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use engine::cni::{CniDirectory, Contents, LARGEST_FILE};
use flannel_to_calico::attachment::Attachment;
use flannel_to_calico::cni::flannel_files;
use flannel_to_calico::plugin::FlannelPlugin;
use runtime::error::chain;

use super::files::{FileError, list_if_exists, read_if_exists, read_limited_if_exists};

/// Reads the configuration folder as the container runtime does, and what the file that the runtime uses sets for flannel's plugin.
/// `shown` is the folder's path on the host.
///
/// # Errors
///
/// The folder is missing or cannot be listed.
pub fn read(folder: &Path, shown: &str) -> Result<(CniDirectory, Option<FlannelPlugin>), FileError> {
    let files = files(folder)?;
    let directory = CniDirectory::of(shown, files.clone());
    let plugin = directory.winner().and_then(|winner| {
        let (name, contents) = files.iter().find(|(name, _)| *name == winner.name)?;
        FlannelPlugin::read(name, contents.as_ref().ok()?)
    });
    Ok((directory, plugin))
}

/// Reads every file of the configuration folder that a container runtime reads: name and content, or the reason why it cannot be
/// read. One unreadable file does not affect the others; files with other extensions are ignored.
///
/// # Errors
///
/// The folder is missing or cannot be listed.
pub fn files(folder: &Path) -> Result<Vec<(String, Contents)>, FileError> {
    let Some(names) = list_if_exists(folder)? else {
        return Err(FileError {
            attempt: "list folder (is it mounted?)",
            path: folder.to_owned(),
            source: std::io::ErrorKind::NotFound.into(),
        });
    };
    let mut files = Vec::with_capacity(names.len());
    for name in names.into_iter().filter(|name| engine::cni::is_read(name)) {
        match read_limited_if_exists(&folder.join(&name), LARGEST_FILE as u64) {
            Ok(Some(file)) => files.push((name, Ok(file.bytes))),
            Ok(None) => {}
            Err(error) => files.push((name, Err(chain(&error)))),
        }
    }
    Ok(files)
}

/// Names of flannel's networks, under which host-local keeps leases: from the conflists, and the default of flannel's manifest.
pub fn flannel_networks(directory: &CniDirectory) -> Vec<String> {
    let mut names: Vec<String> = flannel_files(directory)
        .filter_map(|file| file.network.clone())
        // A name is a folder below `networks`; other values would point outside of it.
        .filter(|name| !name.is_empty() && !name.contains('/') && name != "." && name != "..")
        .collect();
    names.push("cbr0".to_owned());
    names.sort();
    names.dedup();
    names
}

/// Name of Calico's network in Calico's manifest.
const CALICO_NETWORK: &str = "k8s-pod-network";

/// Folders of libcni's records below `/var/lib/cni`: that of containerd and CRI-O, and that of cri-dockerd.
const RECORDS: [&str; 2] = ["results", "cache/results"];

/// State of flannel's CNI plugins under `/var/lib/cni`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Leases: files whose name is an address.
    pub leases: Vec<PathBuf>,
    /// Other files of host-local: its lock and the last reserved address.
    pub bookkeeping: Vec<PathBuf>,
    /// flannel's delegate files.
    pub delegates: Vec<PathBuf>,
    /// Folders of the networks whose leases these are.
    pub folders: Vec<PathBuf>,
    /// libcni's records of attachments to these networks, each parsed or with the error.
    pub attachments: Vec<(PathBuf, Result<Attachment, String>)>,
    /// libcni's records of attachments to Calico's network.
    pub of_calico: Vec<PathBuf>,
}

/// Lists the leases of these networks and the delegate files.
///
/// # Errors
///
/// The folder is missing, or a folder below it cannot be listed. An unreadable record is no error.
pub fn state(folder: &Path, networks: &[String]) -> Result<State, FileError> {
    std::fs::metadata(folder).map_err(FileError::of("access folder (is it mounted?)", folder))?;
    let mut state = State::default();
    for network in networks {
        let network = folder.join("networks").join(network);
        let Some(names) = list_if_exists(&network)? else {
            continue;
        };
        for name in names {
            if is_lease(&name) {
                state.leases.push(network.join(&name));
            } else if name == "lock" || name.starts_with("last_reserved_ip.") {
                state.bookkeeping.push(network.join(&name));
            }
        }
        state.folders.push(network);
    }
    for path in records(folder)? {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        // `<network>-<sandbox>-<interface>`.
        let ours = |network: &String| {
            name.strip_prefix(network.as_str())
                .is_some_and(|rest| rest.starts_with('-'))
        };
        if !networks.iter().any(ours) {
            if ours(&CALICO_NETWORK.to_owned()) {
                state.of_calico.push(path);
            }
            continue;
        }
        let bytes = match read_if_exists(&path) {
            Ok(Some(bytes)) => bytes,
            Ok(None) => continue,
            Err(error) => {
                state.attachments.push((path, Err(chain(&error))));
                continue;
            }
        };
        match Attachment::parse(&bytes) {
            // A network whose name starts like one of flannel's.
            Ok(attachment) if !networks.contains(&attachment.network) => {}
            Ok(attachment) => state.attachments.push((path, Ok(attachment))),
            Err(error) => state.attachments.push((path, Err(error.to_string()))),
        }
    }
    let delegates = folder.join("flannel");
    state.delegates = list_if_exists(&delegates)?
        .unwrap_or_default()
        .iter()
        .map(|name| delegates.join(name))
        .collect();
    Ok(state)
}

/// The records of libcni, sorted by name. Of a record that was copied from one folder to the other, the first one.
fn records(folder: &Path) -> Result<Vec<PathBuf>, FileError> {
    let mut found: BTreeMap<String, PathBuf> = BTreeMap::new();
    for records in RECORDS {
        let records = folder.join(records);
        for name in list_if_exists(&records)?.unwrap_or_default() {
            let path = records.join(&name);
            found.entry(name).or_insert(path);
        }
    }
    Ok(found.into_values().collect())
}

fn is_lease(name: &str) -> bool {
    name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record of libcni for this pod of network `cbr0`.
    fn record(pod: &str) -> String {
        serde_json::json!({
            "kind": "cniCacheV1", "containerId": pod, "networkName": "cbr0", "ifName": "eth0",
            "cniArgs": [["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", pod]], "config": "",
            "result": { "cniVersion": "0.3.1", "interfaces": [{ "name": "veth1" }], "ips": [{ "address": "10.244.1.5/24" }] },
        })
        .to_string()
    }

    /// Mirantis/cri-dockerd#43.
    #[test]
    fn records_of_cri_dockerd_are_found_as_well() {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        write("cache/results/cbr0-b-eth0", &record("b"));
        write("cache/results/k8s-pod-network-c-eth0", "{}");
        write("results/cbr0-a-eth0", &record("a"));
        write("results/other-d-eth0", "{}");
        let read = || state(folder.path(), &["cbr0".to_owned()]).unwrap();
        let pods = |state: &State| -> Vec<String> {
            let known = state.attachments.iter();
            known
                .map(|(_, known)| known.as_ref().unwrap().pod.clone())
                .collect()
        };
        assert_eq!(pods(&read()), ["a", "b"]);
        assert_eq!(
            read().of_calico,
            [folder.path().join("cache/results/k8s-pod-network-c-eth0")]
        );
        // An operator copies the records of the other folder.
        write("results/cbr0-b-eth0", &record("b"));
        assert_eq!(pods(&read()), ["a", "b"]);
        let paths: Vec<PathBuf> = read().attachments.into_iter().map(|(path, _)| path).collect();
        assert!(
            paths
                .iter()
                .all(|path| path.starts_with(folder.path().join("results"))),
            "{paths:?}"
        );
    }

    #[test]
    fn a_host_without_records_has_no_attachments() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(
            state(folder.path(), &["cbr0".to_owned()]).unwrap(),
            State::default()
        );
        assert!(state(&folder.path().join("missing"), &[]).is_err());
    }
}
