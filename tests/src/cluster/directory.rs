//! The files of a lab, and the names derived from its folder.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use super::cgroup;

/// The folder of one lab. Every name in the lab is derived from it, so two folders are two labs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    path: PathBuf,
    instance: String,
}

impl Directory {
    /// The default folder of a lab.
    pub const DEFAULT: &str = "/var/lib/replumb-lab/default";

    /// Opens the folder and creates it if it does not exist.
    pub fn open(path: &Path) -> Result<Self> {
        std::fs::create_dir_all(path)
            .with_context(|| format!("create the lab's folder {}", path.display()))?;
        let path = path
            .canonicalize()
            .with_context(|| format!("find the lab's folder {}", path.display()))?;
        let hash = Sha256::digest(path.as_os_str().as_encoded_bytes());
        let instance = format!("{hash:x}").chars().take(8).collect();
        Ok(Self { path, instance })
    }

    /// The folder itself.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Eight hexadecimal digits that name this lab in interfaces and cgroups.
    pub fn instance(&self) -> &str {
        &self.instance
    }

    /// The cgroup of the whole lab, below each hierarchy.
    pub fn cgroup(&self) -> String {
        format!("{}/{}", cgroup::PARENT, self.instance)
    }

    /// The cgroup of one machine.
    pub fn machine_cgroup(&self, name: &str) -> String {
        format!("{}/{name}", self.cgroup())
    }

    /// The host's end of the link to the lab.
    pub fn host_link(&self) -> String {
        format!("lab{}", self.instance)
    }

    /// The folder of one machine.
    pub fn machine(&self, name: &str) -> PathBuf {
        self.machines().join(name)
    }

    /// The folders of all machines.
    pub fn machines(&self) -> PathBuf {
        self.path.join("nodes")
    }

    /// The logs of one machine's services.
    pub fn machine_logs(&self, name: &str) -> PathBuf {
        self.logs().join(name)
    }

    /// All logs. `down` keeps them.
    pub fn logs(&self) -> PathBuf {
        self.path.join("logs")
    }

    /// Keys and certificates.
    pub fn keys(&self) -> PathBuf {
        self.path.join("pki")
    }

    /// The image archives that every node imports.
    pub fn images(&self) -> PathBuf {
        self.path.join("images")
    }

    /// The program of holder and process 1: a copy, because the program that was started may be rebuilt while the lab runs.
    pub fn program(&self) -> PathBuf {
        self.path.join("lab")
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.path.join("admin.conf")
    }

    /// The manifest to which a lab on Calico v2.6 is rolled manually.
    pub fn calico_v3(&self) -> PathBuf {
        self.path.join("calico-v3.yaml")
    }

    /// The state file, written before each change.
    pub fn state(&self) -> PathBuf {
        self.path.join("state.json")
    }

    /// Lock that a command holds while it changes the lab.
    pub fn lock(&self) -> PathBuf {
        self.path.join("lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_the_kernel_and_differ_for_each_folder() {
        let temporary = tempfile::tempdir().unwrap();
        let one = Directory::open(&temporary.path().join("one")).unwrap();
        let two = Directory::open(&temporary.path().join("two")).unwrap();
        assert!(
            one.host_link().len() <= 15,
            "interface names have at most 15 characters: {}",
            one.host_link()
        );
        assert_ne!(one.instance(), two.instance());
        assert_eq!(
            one,
            Directory::open(&temporary.path().join("two/../one")).unwrap()
        );
    }
}
