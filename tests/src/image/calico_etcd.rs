//! The images of Calico with etcd, of both releases between which a datastore is converted: the stand-in in all of them, with a
//! file beside it that says which release it plays.

use std::path::Path;

use anyhow::Result;

use super::Tree;
use super::archive::Image;
use super::calico::PLUGINS;
use super::catalog::{Sources, filter_tools};
use crate::cluster::images::CalicoRelease;

/// Where the stand-in looks, next to itself.
const VERSION_FILE: &str = "calico.version";

/// All of them: every node has both releases, so that a roll pulls nothing.
pub(super) fn all(sources: &Sources, stand_in: &Path) -> Result<Vec<Image>> {
    let mut images = Vec::new();
    for release in [&sources.names.calico_v2, &sources.names.calico_v3] {
        images.push(node(release, stand_in)?);
        images.push(cni(sources, release, stand_in)?);
        images.push(kube_controllers(release, stand_in)?);
    }
    Ok(images)
}

fn node(release: &CalicoRelease, stand_in: &Path) -> Result<Image> {
    let mut tree = program("usr/bin/calico-node", release, stand_in)?;
    filter_tools(&mut tree)?;
    tree.busybox()?;
    tree.link("usr/sbin/start_runit", "/usr/bin/calico-node");
    Ok(image(
        release,
        &release.node,
        tree,
        &["/usr/sbin/start_runit"],
        "node",
    ))
}

fn cni(sources: &Sources, release: &CalicoRelease, stand_in: &Path) -> Result<Image> {
    let mut tree = program("opt/cni/bin/calico", release, stand_in)?;
    tree.busybox()?;
    for link in ["opt/cni/bin/calico-ipam", "install-cni.sh"] {
        tree.link(link, "/opt/cni/bin/calico");
    }
    for name in PLUGINS {
        tree.program(&format!("opt/cni/bin/{name}"), &sources.plugins.join(name))?;
    }
    Ok(image(release, &release.cni, tree, &[], "CNI plugins"))
}

fn kube_controllers(release: &CalicoRelease, stand_in: &Path) -> Result<Image> {
    let mut tree = program("usr/bin/kube-controllers", release, stand_in)?;
    tree.link("usr/bin/check-status", "/usr/bin/kube-controllers");
    Ok(image(
        release,
        &release.kube_controllers,
        tree,
        &["/usr/bin/kube-controllers"],
        "controllers",
    ))
}

fn program(path: &str, release: &CalicoRelease, stand_in: &Path) -> Result<Tree> {
    let mut tree = Tree::default();
    tree.program(path, stand_in)?;
    let (folder, _) = path.rsplit_once('/').unwrap_or_default();
    tree.bytes(
        &format!("{folder}/{VERSION_FILE}"),
        0o644,
        release.version.as_bytes(),
    );
    Ok(tree)
}

fn image(release: &CalicoRelease, name: &str, tree: Tree, entrypoint: &[&str], part: &str) -> Image {
    Image {
        name: name.to_owned(),
        tree,
        entrypoint: entrypoint.iter().map(|word| (*word).to_owned()).collect(),
        environment: Vec::new(),
        description: format!(
            "a stand-in for Calico {}: {part}, packed by the replumb lab",
            release.version
        ),
    }
}
