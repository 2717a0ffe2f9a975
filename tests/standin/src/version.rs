//! The played version of Calico: a file beside the program in the image, which is copied with the plugins to the host.

use std::path::Path;

use anyhow::{Context, Result, bail};

/// The file, in the program's own folder; it has the Calico release of the image: `v2.6.12`.
pub const FILE: &str = "calico.version";
/// The version without this file.
pub const WITHOUT_FILE: &str = "v3.31.7-standin";

/// Calico's datastore.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Datastore {
    /// The Kubernetes API: Calico v3 today.
    Kubernetes,
    /// In etcd.
    Etcd(Generation),
}

/// The store of etcd, and so the data model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Generation {
    /// Calico v2: etcd's v2 API.
    V2,
    /// Calico v3: etcd's v3 API.
    V3,
}

/// The played Calico.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Played {
    /// The version in the datastore.
    pub version: String,
    /// The datastore.
    pub datastore: Datastore,
}

impl Played {
    /// Reads the file beside the running program.
    pub fn of_program() -> Result<Self> {
        let program = std::env::current_exe().context("find the own program")?;
        Self::beside(&program)
    }

    fn beside(program: &Path) -> Result<Self> {
        let file = program.with_file_name(FILE);
        match std::fs::read_to_string(&file) {
            Ok(text) => Self::of_release(text.trim()).with_context(|| format!("read {}", file.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self {
                version: WITHOUT_FILE.to_owned(),
                datastore: Datastore::Kubernetes,
            }),
            Err(error) => Err(error).with_context(|| format!("read {}", file.display())),
        }
    }

    fn of_release(version: &str) -> Result<Self> {
        let generation = match version.split('.').next() {
            Some("v2") => Generation::V2,
            Some("v3") => Generation::V3,
            _ => bail!(
                "{version:?} is not a Calico release of the stand-in: use v2. or v3. with minor and patch"
            ),
        };
        Ok(Self {
            version: version.to_owned(),
            datastore: Datastore::Etcd(generation),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_beside_the_program_selects_the_version() {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("calico");
        let played = || Played::beside(&program);
        assert_eq!(played().unwrap().datastore, Datastore::Kubernetes);
        std::fs::write(folder.path().join(FILE), "v2.6.12\n").unwrap();
        assert_eq!(
            played().unwrap(),
            Played {
                version: "v2.6.12".to_owned(),
                datastore: Datastore::Etcd(Generation::V2),
            }
        );
        std::fs::write(folder.path().join(FILE), "v3.8.9").unwrap();
        assert_eq!(played().unwrap().datastore, Datastore::Etcd(Generation::V3));
        std::fs::write(folder.path().join(FILE), "v1.0").unwrap();
        assert!(format!("{:#}", played().unwrap_err()).contains("calico.version"));
    }
}
