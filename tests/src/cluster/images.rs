//! The images of a lab, by name, and their archives.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Names of images; every one of them must be in one of the archives.
#[derive(Clone, Debug)]
pub struct Images {
    /// Holds a pod's namespaces.
    pub pause: String,
    /// A shell with small tools, for the sample workloads.
    pub busybox: String,
    /// flanneld at `/opt/bin/flanneld`, with iptables, nft and `cp`.
    pub flannel: String,
    /// flannel's CNI plugin at `/flannel`, with `cp`.
    pub flannel_cni_plugin: String,
    /// kube-proxy at `/usr/local/bin/kube-proxy`, with iptables and nft.
    pub kube_proxy: String,
    /// `CoreDNS` as the entry point.
    pub coredns: String,
    /// calico-node at `/bin/calico-node`, real or stand-in.
    pub calico_node: String,
    /// Calico's CNI plugin and its installer at `/opt/cni/bin/`, real or stand-in.
    pub calico_cni: String,
    /// Calico v2.6 with etcd: the release before the conversion of a datastore.
    pub calico_v2: CalicoRelease,
    /// Calico v3.8 with etcd: the release after the conversion.
    pub calico_v3: CalicoRelease,
    /// The traffic generator.
    pub traffic: String,
    /// replumb's agent.
    pub agent: String,
    /// replumb's coordinator.
    pub coordinator: String,
}

/// The images of a release of Calico with etcd: the stand-in's or, for v3, the real ones under the same names.
#[derive(Clone, Debug)]
pub struct CalicoRelease {
    /// The release.
    pub version: String,
    /// calico-node at `/bin/calico-node`.
    pub node: String,
    /// The CNI plugins at `/opt/cni/bin/`, and their installer at `/install-cni.sh`.
    pub cni: String,
    /// kube-controllers as the entry point, and `/usr/bin/check-status`.
    pub kube_controllers: String,
}

impl CalicoRelease {
    fn new(version: &str, cni: &str, kube_controllers: &str) -> Self {
        Self {
            version: version.to_owned(),
            node: format!("docker.io/calico/node:{version}"),
            cni: format!("docker.io/calico/cni:{cni}"),
            kube_controllers: format!("docker.io/calico/kube-controllers:{kube_controllers}"),
        }
    }
}

impl Default for Images {
    fn default() -> Self {
        Self {
            pause: "registry.k8s.io/pause:3.10".into(),
            busybox: "docker.io/library/busybox:1.35".into(),
            flannel: "ghcr.io/flannel-io/flannel:v0.28.4".into(),
            flannel_cni_plugin: "ghcr.io/flannel-io/flannel-cni-plugin:v1.9.1-flannel1".into(),
            kube_proxy: "registry.k8s.io/kube-proxy:v1.36.3".into(),
            coredns: "registry.k8s.io/coredns/coredns:v1.15.0".into(),
            calico_node: "docker.io/calico/node:v3.31.7".into(),
            calico_cni: "docker.io/calico/cni:v3.31.7".into(),
            // Before v3 the parts of Calico had separate versions.
            calico_v2: CalicoRelease::new("v2.6.12", "v1.11.8", "v1.0.5"),
            calico_v3: CalicoRelease::new("v3.8.9", "v3.8.9", "v3.8.9"),
            traffic: "replumb.dev/lab/traffic:0.1.0".into(),
            agent: "ghcr.io/replumb/agent:0.1.0".into(),
            coordinator: "ghcr.io/replumb/coordinator:0.1.0".into(),
        }
    }
}

/// Puts archives into the folder that every node sees, replaces older archives of the same images, and returns the
/// file names of the archives that are new there: each name includes the hash of the contents.
pub fn take(folder: &Path, archives: &[PathBuf]) -> Result<Vec<String>> {
    std::fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    let mut names = Vec::new();
    for archive in archives {
        let name = archive
            .file_name()
            .with_context(|| format!("{} is not a file", archive.display()))?;
        names.push(name.to_string_lossy().into_owned());
    }
    for entry in std::fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let path = entry?.path();
        let old = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        if !names.contains(&old) && names.iter().any(|name| image_of(name) == image_of(&old)) {
            std::fs::remove_file(&path).with_context(|| format!("remove the old {}", path.display()))?;
        }
    }
    let mut new = Vec::new();
    for (archive, name) in archives.iter().zip(names) {
        let target = folder.join(&name);
        if target.exists() {
            continue;
        }
        link_or_copy(archive, &target)?;
        new.push(name);
    }
    Ok(new)
}

/// A link costs no space; another file system needs a copy.
pub(super) fn link_or_copy(from: &Path, to: &Path) -> Result<()> {
    if std::fs::hard_link(from, to).is_err() {
        std::fs::copy(from, to).with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
    }
    Ok(())
}

/// The name of an archive has the image and the hash of the contents.
pub(crate) fn image_of(archive: &str) -> &str {
    archive.rsplit_once('-').map_or(archive, |(image, _)| image)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_archive_replaces_only_the_old_one_of_the_same_image() {
        let temporary = tempfile::tempdir().unwrap();
        let (cache, folder) = (temporary.path().join("cache"), temporary.path().join("images"));
        std::fs::create_dir(&cache).unwrap();
        let file = |name: &str| {
            std::fs::write(cache.join(name), name).unwrap();
            cache.join(name)
        };
        take(
            &folder,
            &[file("flannel-1a.tar"), file("flannel-cni-plugin-2b.tar")],
        )
        .unwrap();
        assert_eq!(
            take(&folder, &[file("flannel-3c.tar")]).unwrap(),
            ["flannel-3c.tar"]
        );
        assert!(
            take(&folder, &[file("flannel-3c.tar")]).unwrap().is_empty(),
            "the archive exists already"
        );
        let mut there: Vec<_> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        there.sort();
        assert_eq!(there, ["flannel-3c.tar", "flannel-cni-plugin-2b.tar"]);
        // The cache keeps its archives: only the links were removed.
        assert!(cache.join("flannel-1a.tar").exists());
    }
}
