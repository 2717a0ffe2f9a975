//! Where an instance keeps its things, and the names that follow from it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};

use super::cgroup;

/// The folder of one lab. Everything that the lab makes is named after it, so two folders are two labs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directory {
    path: PathBuf,
    instance: String,
}

impl Directory {
    /// Where a lab lives if nobody says otherwise.
    pub const DEFAULT: &str = "/var/lib/replumb-lab/default";

    /// Opens the folder, making it if need be.
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

    /// The host's end of the cable into the lab.
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

    /// All logs. They outlive `down`.
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

    /// The program that plays holder and process 1: a copy, because the one that was started may be built anew while
    /// the lab runs.
    pub fn program(&self) -> PathBuf {
        self.path.join("lab")
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.path.join("admin.conf")
    }

    /// The manifest to which a lab on Calico v2.6 is rolled, for whoever does it by hand.
    pub fn calico_v3(&self) -> PathBuf {
        self.path.join("calico-v3.yaml")
    }

    /// What was made, written before it is made.
    pub fn state(&self) -> PathBuf {
        self.path.join("state.json")
    }

    /// Held while something is being changed.
    pub fn lock(&self) -> PathBuf {
        self.path.join("lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_the_kernel_and_differ_by_folder() {
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
