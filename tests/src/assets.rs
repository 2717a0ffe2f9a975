//! The programs that a lab runs: built from pinned sources into a cache folder, or taken from a folder of ready ones.
//!
//! ```text
//! <cache>/lock                  held while something is built
//! <cache>/built/NAME-STAMP/     the programs of one Go module; the stamp is a hash of all its inputs
//! <cache>/sets/HASH/            all programs of a lab in one folder (hard links), which later builds do not change
//! <cache>/images/               image archives by the hash of their contents
//! ```
//!
//! An interrupted build leaves nothing under these names; Go's own cache lets the next build continue.

mod go;
mod lock;
mod modules;
mod old_etcd;
mod packages;
mod retry;
mod rust;
mod set;
mod tools;

pub use go::command as go_command;
pub use modules::{MODULES, Module, required_version};
pub use old_etcd::old_etcd;
pub use rust::{Build, Program, RustPrograms};
pub use tools::{cargo_deny, command_line, packages, traffic};

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::cluster::Images;
use crate::image::{Calico, RealCalico, RealControllers, Sources, archives};
use crate::progress::{Detail, Progress};

/// The programs to build, and the folders.
#[derive(Clone, Debug)]
pub struct Options {
    /// `--assets DIR`: a folder with ready programs, otherwise a folder to build into.
    pub folder: Option<PathBuf>,
    /// `--calico-bin DIR`: a folder with the real `calico-node` and `calico`, optionally `install`,
    /// `kube-controllers` and `check-status`, too.
    pub calico: Option<PathBuf>,
    /// The needed Rust programs.
    pub programs: Vec<Program>,
    /// The build options.
    pub build: Build,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            folder: None,
            calico: None,
            programs: Program::ALL.to_vec(),
            build: Build::default(),
        }
    }
}

/// All parts of a lab.
#[derive(Clone, Debug)]
pub struct Assets {
    /// One folder with `kube-apiserver`, `kube-controller-manager`, `kube-scheduler`, `kubelet`, `kube-proxy`, `kubectl`,
    /// `etcd`, `containerd`, `containerd-shim-runc-v2`, `ctr`, `flanneld`, `flannel` (the CNI plugin), `coredns`, `kwok`.
    pub binaries: PathBuf,
    /// The folder with `bridge`, `host-local`, `loopback`, `portmap` and the other basic CNI plugins.
    pub plugins: PathBuf,
    /// replumb's own programs, the traffic generator and the stand-in.
    pub rust: RustPrograms,
    /// Calico or its stand-in, if requested.
    pub calico: Option<Calico>,
    image_cache: PathBuf,
}

/// Builds missing programs and prints progress.
pub async fn ensure(options: &Options, progress: &Progress) -> Result<Assets> {
    let (cache, ready) = folders(options.folder.as_deref())?;
    std::fs::create_dir_all(&cache)
        .with_context(|| format!("create the cache folder {}", cache.display()))?;
    let calico = options.calico.as_deref().map(CalicoFolder::find).transpose()?;
    packages::ensure(progress).await?;
    let lock = lock::take(&cache, progress).await?;

    let mut folders = Vec::new();
    for module in &modules::MODULES {
        if ready
            .as_deref()
            .is_some_and(|folder| module.outputs.iter().all(|name| folder.join(name).is_file()))
        {
            continue;
        }
        folders.push(go::ensure(module, &cache, progress).await?);
    }
    let binaries = set::make(&cache, &folders, ready.as_deref())?;
    // From here on only archives are written to the cache, and they are renamed when complete.
    drop(lock);
    let mut programs = options.programs.clone();
    if calico.as_ref().is_some_and(|real| real.install.is_none()) && !programs.contains(&Program::StandIn) {
        programs.push(Program::StandIn);
    }
    let rust = rust::build(&programs, options.build, progress).await?;
    let calico = match calico {
        Some(real) => Some(Calico::Real(real.complete(&rust)?)),
        None => rust.get(Program::StandIn).map(Calico::StandIn),
    };
    Ok(Assets {
        binaries,
        plugins: packages::plugins_folder()?,
        rust,
        calico,
        image_cache: cache.join("images"),
    })
}

impl Assets {
    /// Returns the archives of all images that can be built from these programs, under these names.
    pub async fn archives(&self, names: &Images, progress: &Progress) -> Result<Vec<PathBuf>> {
        let sources = Sources {
            names: names.clone(),
            binaries: self.binaries.clone(),
            plugins: self.plugins.clone(),
            traffic: self.rust.need(Program::Traffic)?,
            agent: self.rust.get(Program::Agent),
            coordinator: self.rust.get(Program::Coordinator),
            calico: self.calico.clone(),
        };
        let folder = self.image_cache.clone();
        let work = async {
            tokio::task::spawn_blocking(move || archives(&sources, &folder))
                .await
                .context("write images")?
        };
        progress.during("packing images", &Detail::default(), work).await
    }
}

/// The cache folder, and the folder of ready programs if `--assets` names one.
fn folders(asked: Option<&Path>) -> Result<(PathBuf, Option<PathBuf>)> {
    let Some(asked) = asked else {
        return Ok((default_cache()?, None));
    };
    let ready = modules::MODULES
        .iter()
        .flat_map(|module| module.outputs)
        .any(|name| asked.join(name).is_file());
    if ready {
        Ok((
            default_cache()?,
            Some(
                asked
                    .canonicalize()
                    .with_context(|| format!("find {}", asked.display()))?,
            ),
        ))
    } else {
        Ok((
            std::path::absolute(asked).with_context(|| format!("find {}", asked.display()))?,
            None,
        ))
    }
}

fn default_cache() -> Result<PathBuf> {
    const NAME: &str = "replumb-lab";
    if let Some(folder) = std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .filter(|folder| folder.is_absolute())
    {
        return Ok(folder.join(NAME));
    }
    match std::env::home_dir() {
        Some(home) if home.is_absolute() => Ok(home.join(".cache").join(NAME)),
        _ => bail!("no home folder for the cache: set HOME or XDG_CACHE_HOME, or use --assets with a folder"),
    }
}

/// The programs in the folder of `--calico-bin`.
#[derive(Debug)]
struct CalicoFolder {
    node: PathBuf,
    plugin: PathBuf,
    install: Option<PathBuf>,
    controllers: Option<RealControllers>,
}

impl CalicoFolder {
    fn find(folder: &Path) -> Result<Self> {
        let find = |name: &str| {
            let path = folder.join(name);
            path.canonicalize().with_context(|| {
                format!(
                    "--calico-bin: no {}; the folder needs calico-node and calico (the CNI plugin), built for Linux",
                    path.display()
                )
            })
        };
        let controllers = find("kube-controllers").ok().zip(find("check-status").ok());
        Ok(Self {
            node: find("calico-node")?,
            plugin: find("calico")?,
            install: find("install").ok(),
            controllers: controllers.map(|(controllers, status)| RealControllers { controllers, status }),
        })
    }

    /// The installer is rarely built: the stand-in's does the same.
    fn complete(self, rust: &RustPrograms) -> Result<RealCalico> {
        let install = match self.install {
            Some(install) => install,
            None => rust
                .need(Program::StandIn)
                .context("--calico-bin has no program `install`")?,
        };
        Ok(RealCalico {
            node: self.node,
            plugin: self.plugin,
            install,
            controllers: self.controllers,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_with_programs_is_used_and_an_empty_one_is_built_into() {
        let folder = tempfile::tempdir().unwrap();
        let (cache, ready) = folders(Some(folder.path())).unwrap();
        assert_eq!((cache.as_path(), ready), (folder.path(), None));
        std::fs::write(folder.path().join("kube-apiserver"), "").unwrap();
        let (cache, ready) = folders(Some(folder.path())).unwrap();
        assert_eq!(ready.unwrap(), folder.path().canonicalize().unwrap());
        assert_ne!(cache, folder.path());
    }

    #[test]
    fn a_calico_folder_without_its_programs_is_refused_with_their_names() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("calico-node"), "").unwrap();
        let message = format!("{:#}", CalicoFolder::find(folder.path()).unwrap_err());
        assert!(
            message.contains("/calico;") && message.contains("--calico-bin"),
            "{message}"
        );
        std::fs::write(folder.path().join("calico"), "").unwrap();
        let real = CalicoFolder::find(folder.path()).unwrap();
        let message = format!("{:#}", real.complete(&RustPrograms::default()).unwrap_err());
        assert!(message.contains("install"), "{message}");
    }

    #[test]
    fn controllers_are_used_only_together_with_their_probe() {
        let folder = tempfile::tempdir().unwrap();
        let add = |name: &str| std::fs::write(folder.path().join(name), "").unwrap();
        ["calico-node", "calico", "install", "kube-controllers"]
            .into_iter()
            .for_each(add);
        let found = || CalicoFolder::find(folder.path()).unwrap();
        let without = found().complete(&RustPrograms::default()).unwrap();
        assert_eq!(without.controllers, None);
        add("check-status");
        let with = found().complete(&RustPrograms::default()).unwrap();
        assert!(with.controllers.is_some());
    }
}
