//! The images of Calico with etcd, of both releases between which a datastore is converted. v2.6 is always the
//! stand-in, with a file beside it that has the release to play; v3 is also the stand-in, or the real one except for
//! BIRD.

use std::path::Path;

use anyhow::Result;

use super::Tree;
use super::archive::Image;
use super::calico::{PLUGINS, RealCalico, RealControllers, START, WITHOUT_CGO, variables};
use super::catalog::{Sources, filter_tools};
use crate::cluster::images::CalicoRelease;

/// The file that the stand-in reads, in its own folder.
const VERSION_FILE: &str = "calico.version";

/// Calico's own calico-node, and the stand-in for BIRD.
const NODE: &str = include_str!("calico-etcd-node.sh");
/// Path of the stand-in when the usual path has Calico's program.
const ASIDE: &str = "usr/lib/stand-in";

/// All images: every node has both releases, so that a roll pulls no image.
pub(super) fn all(sources: &Sources, stand_in: &Path, real: Option<&RealCalico>) -> Result<Vec<Image>> {
    let (v2, v3) = (&sources.names.calico_v2, &sources.names.calico_v3);
    let mut images = vec![
        node(v2, stand_in)?,
        cni(sources, v2, stand_in)?,
        kube_controllers(v2, stand_in)?,
    ];
    if let Some(real) = real {
        images.push(real_node(v3, stand_in, real)?);
        images.push(real_cni(sources, v3, stand_in, real)?);
    } else {
        images.push(node(v3, stand_in)?);
        images.push(cni(sources, v3, stand_in)?);
    }
    images.push(match real.and_then(|real| real.controllers.as_ref()) {
        Some(controllers) => real_controllers(v3, controllers)?,
        None => kube_controllers(v3, stand_in)?,
    });
    Ok(images)
}

fn real_node(release: &CalicoRelease, stand_in: &Path, real: &RealCalico) -> Result<Image> {
    let mut tree = program(&format!("{ASIDE}/calico-node"), release, stand_in)?;
    tree.program("usr/lib/calico/calico-node", &real.node)?;
    tree.bytes("usr/bin/calico-node", 0o755, NODE.as_bytes());
    tree.bytes("usr/sbin/start_runit", 0o755, START.as_bytes());
    filter_tools(&mut tree)?;
    tree.busybox()?;
    let mut environment = variables(&WITHOUT_CGO);
    // The conflist and its kubeconfig are written by the installer, as in v3.8.
    environment.extend(variables(&[
        ("CALICO_MANAGE_CNI", "false"),
        ("DATASTORE_TYPE", "etcdv3"),
    ]));
    Ok(Image {
        name: release.node.clone(),
        tree,
        entrypoint: vec!["/usr/sbin/start_runit".to_owned()],
        environment,
        description: "Calico: node, with a stand-in for BIRD, packed by the replumb lab".to_owned(),
    })
}

/// The installer is the stand-in's: the manifest starts it under its v3.8 name.
fn real_cni(sources: &Sources, release: &CalicoRelease, stand_in: &Path, real: &RealCalico) -> Result<Image> {
    let mut tree = program(&format!("{ASIDE}/install-cni.sh"), release, stand_in)?;
    tree.link("install-cni.sh", &format!("/{ASIDE}/install-cni.sh"));
    tree.program("opt/cni/bin/calico", &real.plugin)?;
    tree.program("opt/cni/bin/calico-ipam", &real.plugin)?;
    basic_plugins(&mut tree, sources)?;
    Ok(Image {
        name: release.cni.clone(),
        tree,
        entrypoint: Vec::new(),
        environment: Vec::new(),
        description: "Calico: CNI plugins, with a stand-in's installer, packed by the replumb lab".to_owned(),
    })
}

fn real_controllers(release: &CalicoRelease, real: &RealControllers) -> Result<Image> {
    let mut tree = Tree::default();
    tree.program("usr/bin/kube-controllers", &real.controllers)?;
    tree.program("usr/bin/check-status", &real.status)?;
    // The programs write there the state that the probe reads.
    tree.directory("status");
    Ok(Image {
        name: release.kube_controllers.clone(),
        tree,
        entrypoint: vec!["/usr/bin/kube-controllers".to_owned()],
        environment: variables(&[("DATASTORE_TYPE", "etcdv3")]),
        description: "Calico: controllers, packed by the replumb lab".to_owned(),
    })
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
    basic_plugins(&mut tree, sources)?;
    Ok(image(release, &release.cni, tree, &[], "CNI plugins"))
}

/// The additional files of Calico's image.
fn basic_plugins(tree: &mut Tree, sources: &Sources) -> Result<()> {
    for name in PLUGINS {
        tree.program(&format!("opt/cni/bin/{name}"), &sources.plugins.join(name))?;
    }
    Ok(())
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
