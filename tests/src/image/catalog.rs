//! The list of images and their contents.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail};

use super::archive::Image;
pub use super::calico::{Calico, RealCalico, RealControllers};
use super::{Tree, calico, calico_etcd};
use crate::cluster::Images;
use crate::cluster::images::image_of;
use crate::cluster::manifests::LEGACY_FOLDER;

/// Programs that write and read packet filter rules, for both backends.
const FILTER_TOOLS: [&str; 22] = [
    "conntrack",
    "ip",
    "ip6tables",
    "ip6tables-legacy",
    "ip6tables-legacy-restore",
    "ip6tables-legacy-save",
    "ip6tables-nft",
    "ip6tables-nft-restore",
    "ip6tables-nft-save",
    "ip6tables-restore",
    "ip6tables-save",
    "ipset",
    "iptables",
    "iptables-legacy",
    "iptables-legacy-restore",
    "iptables-legacy-save",
    "iptables-nft",
    "iptables-nft-restore",
    "iptables-nft-save",
    "iptables-restore",
    "iptables-save",
    "nft",
];

/// The sources of the images.
#[derive(Clone, Debug)]
pub struct Sources {
    /// The names of the images.
    pub names: Images,
    /// The folder with the programs of the Go modules.
    pub binaries: PathBuf,
    /// The folder with the basic CNI plugins.
    pub plugins: PathBuf,
    /// The traffic generator.
    pub traffic: PathBuf,
    /// The agent, if its image is needed.
    pub agent: Option<PathBuf>,
    /// The coordinator, if its image is needed.
    pub coordinator: Option<PathBuf>,
    /// Calico or its stand-in, if its images are needed.
    pub calico: Option<Calico>,
}

impl Sources {
    fn binary(&self, name: &str) -> PathBuf {
        self.binaries.join(name)
    }
}

/// Every image that can be built from these sources.
pub fn all(sources: &Sources) -> Result<Vec<Image>> {
    let mut images = vec![
        pause(sources)?,
        busybox(sources)?,
        traffic(sources)?,
        flannel(sources)?,
        flannel_cni_plugin(sources)?,
        kube_proxy(sources)?,
        coredns(sources)?,
    ];
    if let Some(program) = &sources.agent {
        images.push(agent(sources, program)?);
    }
    if let Some(program) = &sources.coordinator {
        images.push(coordinator(sources, program)?);
    }
    match &sources.calico {
        Some(Calico::WithEtcd { stand_in, real }) => {
            images.extend(calico_etcd::all(sources, stand_in, real.as_ref())?);
        }
        Some(chosen) => {
            images.push(calico::node(sources, chosen)?);
            images.push(calico::cni(sources, chosen)?);
        }
        None => {}
    }
    Ok(images)
}

/// Returns the archives of all images, and first writes the missing ones to `folder`.
pub fn archives(sources: &Sources, folder: &Path) -> Result<Vec<PathBuf>> {
    std::fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let archives: Result<Vec<_>> = all(sources)?.iter().map(|image| image.archive(folder)).collect();
    let archives = archives?;
    for path in superseded(folder)? {
        if !archives.contains(&path) {
            unless_missing(std::fs::remove_file(&path))
                .with_context(|| format!("remove the old {}", path.display()))?;
        }
    }
    Ok(archives)
}

/// `None` for a file that has been removed: another lab removes old archives at the same time.
fn unless_missing<T>(result: std::io::Result<T>) -> std::io::Result<Option<T>> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Archives of earlier contents: all except the newest few of each image. Those few are for another build that is
/// used alternately with this one; running labs have their own links. Otherwise a day of work on the agent would
/// leave 10 GB.
fn superseded(folder: &Path) -> Result<Vec<PathBuf>> {
    const KEPT: usize = 3;
    let list = || format!("list {}", folder.display());
    let mut of_image: BTreeMap<String, Vec<(SystemTime, PathBuf)>> = BTreeMap::new();
    for entry in std::fs::read_dir(folder).with_context(list)? {
        let entry = entry.with_context(list)?;
        let Some(metadata) = unless_missing(entry.metadata()).with_context(list)? else {
            continue;
        };
        let name = entry.file_name().to_string_lossy().into_owned();
        if metadata.is_file() {
            of_image
                .entry(image_of(&name).to_owned())
                .or_default()
                .push((metadata.modified().with_context(list)?, entry.path()));
        }
    }
    Ok(of_image
        .into_values()
        .flat_map(|mut archives| {
            archives.sort_by(|one, other| other.cmp(one));
            archives.into_iter().skip(KEPT).map(|(_, path)| path)
        })
        .collect())
}

fn image(name: &str, tree: Tree, entrypoint: &[&str], description: &str) -> Image {
    Image {
        name: name.to_owned(),
        tree,
        entrypoint: entrypoint.iter().map(|word| (*word).to_owned()).collect(),
        environment: Vec::new(),
        description: format!("{description}, packed by the replumb lab"),
    }
}

fn pause(sources: &Sources) -> Result<Image> {
    let mut tree = Tree::default();
    tree.program("usr/bin/traffic", &sources.traffic)?;
    Ok(image(
        &sources.names.pause,
        tree,
        &["/usr/bin/traffic", "pause"],
        "holder of a pod's namespaces",
    ))
}

fn busybox(sources: &Sources) -> Result<Image> {
    let mut tree = Tree::default();
    tree.busybox()?;
    Ok(image(&sources.names.busybox, tree, &["sh"], "busybox"))
}

fn traffic(sources: &Sources) -> Result<Image> {
    let mut tree = Tree::default();
    tree.program("usr/bin/traffic", &sources.traffic)?;
    tree.busybox()?;
    Ok(image(
        &sources.names.traffic,
        tree,
        &["/usr/bin/traffic"],
        "the lab's traffic generator",
    ))
}

fn flannel(sources: &Sources) -> Result<Image> {
    let mut tree = Tree::default();
    tree.program("opt/bin/flanneld", &sources.binary("flanneld"))?;
    filter_tools(&mut tree)?;
    tree.busybox()?;
    Ok(image(
        &sources.names.flannel,
        tree,
        &["/opt/bin/flanneld"],
        "flanneld",
    ))
}

fn flannel_cni_plugin(sources: &Sources) -> Result<Image> {
    let mut tree = Tree::default();
    tree.program("flannel", &sources.binary("flannel"))?;
    tree.busybox()?;
    Ok(image(
        &sources.names.flannel_cni_plugin,
        tree,
        &[],
        "flannel's CNI plugin",
    ))
}

fn kube_proxy(sources: &Sources) -> Result<Image> {
    let mut tree = Tree::default();
    tree.program("usr/local/bin/kube-proxy", &sources.binary("kube-proxy"))?;
    filter_tools(&mut tree)?;
    Ok(image(
        &sources.names.kube_proxy,
        tree,
        &["/usr/local/bin/kube-proxy"],
        "kube-proxy",
    ))
}

fn coredns(sources: &Sources) -> Result<Image> {
    let mut tree = Tree::default();
    tree.program("coredns", &sources.binary("coredns"))?;
    Ok(image(&sources.names.coredns, tree, &["/coredns"], "CoreDNS"))
}

fn agent(sources: &Sources, program: &Path) -> Result<Image> {
    let mut tree = Tree::default();
    tree.program("usr/bin/replumb-agent", program)?;
    filter_tools(&mut tree)?;
    Ok(image(
        &sources.names.agent,
        tree,
        &["/usr/bin/replumb-agent"],
        "replumb's agent",
    ))
}

fn coordinator(sources: &Sources, program: &Path) -> Result<Image> {
    let mut tree = Tree::default();
    tree.program("usr/bin/replumb-coordinator", program)?;
    Ok(image(
        &sources.names.coordinator,
        tree,
        &["/usr/bin/replumb-coordinator"],
        "replumb's coordinator",
    ))
}

/// The packet filter programs with the modules that iptables loads, and the tables of names that they read.
pub(super) fn filter_tools(tree: &mut Tree) -> Result<()> {
    tree.host_programs(&FILTER_TOOLS)?;
    // For programs with this folder first in their search path (see `PacketFilter::path`).
    for name in ["iptables", "ip6tables"] {
        for verb in ["", "-save", "-restore"] {
            let target = format!("/usr/sbin/{name}-legacy{verb}");
            tree.link(&format!("{LEGACY_FOLDER}/{name}{verb}"), &target);
        }
    }
    tree.host_modules(&xtables_folder()?)?;
    for name in ["protocols", "services"] {
        let source = Path::new("/etc").join(name);
        if source.is_file() {
            tree.file(&format!("etc/{name}"), 0o644, &source)?;
        }
    }
    Ok(())
}

/// The folder of iptables' modules: on Debian below a folder named after the machine's architecture.
fn xtables_folder() -> Result<PathBuf> {
    let library = Path::new("/usr/lib");
    let mut folders = vec![library.to_owned(), PathBuf::from("/usr/lib64")];
    for entry in std::fs::read_dir(library).context("list /usr/lib")? {
        folders.push(entry?.path());
    }
    folders.sort();
    match folders
        .into_iter()
        .map(|folder| folder.join("xtables"))
        .find(|folder| folder.is_dir())
    {
        Some(folder) => Ok(folder),
        None => bail!("there is no folder xtables in /usr/lib or below: install the package iptables"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_the_versions_that_are_built() {
        let images = Images::default();
        let built = [
            (
                &images.kube_proxy,
                include_str!("../../modules/kubernetes/go.mod"),
                "k8s.io/kubernetes",
            ),
            (
                &images.flannel,
                include_str!("../../modules/flannel/go.mod"),
                "github.com/flannel-io/flannel",
            ),
            (
                &images.coredns,
                include_str!("../../modules/coredns/go.mod"),
                "github.com/coredns/coredns",
            ),
        ];
        for (reference, module_file, module) in built {
            let version = crate::assets::required_version(module_file, module).unwrap();
            assert!(
                reference.ends_with(&format!(":{version}")),
                "{reference} is built from {module} {version}"
            );
        }
    }

    #[test]
    fn the_newest_archives_of_every_image_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let archive = |name: &str, age: u64| {
            let file = std::fs::File::create(folder.path().join(name)).unwrap();
            file.set_modified(SystemTime::now() - std::time::Duration::from_mins(age))
                .unwrap();
        };
        for (name, age) in [("flannel-1.tar", 5), ("flannel-2.tar", 4), ("flannel-3.tar", 3)] {
            archive(name, age);
        }
        archive("flannel-cni-plugin-1.tar", 9);
        assert_eq!(superseded(folder.path()).unwrap(), Vec::<PathBuf>::new());
        archive("flannel-4.tar", 1);
        assert_eq!(
            superseded(folder.path()).unwrap(),
            [folder.path().join("flannel-1.tar")]
        );
    }

    #[test]
    fn own_images_have_the_names_in_the_shipped_manifests() {
        let images = Images::default();
        let agent = include_str!("../../../deploy/base/agent.yaml");
        let coordinator = include_str!("../../../deploy/base/coordinator.yaml");
        assert!(agent.contains(&format!("image: {}\n", images.agent)));
        assert!(coordinator.contains(&format!("image: {}\n", images.coordinator)));
        assert!(
            coordinator.contains(&format!("value: {}\n", images.agent)),
            "probe pods run the agent's image"
        );
    }
}
