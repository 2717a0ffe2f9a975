//! The images of a lab in containerd's form: imported once, by a separate containerd beside the control plane, and
//! linked into each node before the node's containerd starts.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::Cluster;
use super::authority::write;
use super::control_plane::service;
use super::directory::Directory;
use super::images::link_or_copy;
use super::state::CONTROL_PLANE;
use super::wait::{Observation, until};

const SERVICE: &str = "image-store";
/// Path below the root of the control plane's machine.
const ROOT: &str = "var/lib/image-store";
const CONFIGURATION: &str = "etc/image-store.toml";
const SOCKET: &str = "/run/image-store/containerd.sock";
/// Root of containerd on a node, below the root of the node's machine.
const NODE_ROOT: &str = "var/lib/containerd";
/// Blobs by their hash: written once, then only read.
const BLOBS: &str = "io.containerd.content.v1.content/blobs/sha256";
/// Names of images, and the blobs that they need. containerd writes into it.
const METADATA: &str = "io.containerd.metadata.v1.bolt/meta.db";
/// The imported archives, one on a line.
const IMPORTED: &str = "imported";
const START: Duration = Duration::from_mins(1);
/// Time limit to import all images on a busy machine with two cores.
const IMPORT: Duration = Duration::from_mins(5);
/// Time limit for containerd to close its database.
const STOP: Duration = Duration::from_secs(20);

impl Cluster {
    /// Imports every archive of the lab.
    pub(super) async fn fill_image_store(&self) -> Result<()> {
        let root = self.directory.machine(CONTROL_PLANE).join("root");
        write(&root.join(CONFIGURATION), &configuration())?;
        let control = self.control(CONTROL_PLANE);
        let command = format!("containerd --config=/{CONFIGURATION}");
        control.start(service(SERVICE, &command, &[])).await?;
        self.containerd_answers(CONTROL_PLANE, SOCKET).await?;
        let archives = self.image_archives()?;
        let work = self.import(CONTROL_PLANE, SOCKET, &archives);
        tokio::time::timeout(IMPORT, work).await.with_context(|| {
            format!(
                "the import of {} images took over {} s",
                archives.len(),
                IMPORT.as_secs()
            )
        })??;
        control.stop(SERVICE, STOP).await?;
        control.forget(SERVICE).await?;
        write(&store(&self.directory).join(IMPORTED), &archives.join("\n"))
    }

    /// Names of the archives of all images.
    pub(super) fn image_archives(&self) -> Result<Vec<String>> {
        let folder = self.directory.images();
        let mut archives: Vec<String> = Vec::new();
        for entry in fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))? {
            archives.push(entry?.file_name().to_string_lossy().into_owned());
        }
        ensure!(
            !archives.is_empty(),
            "there are no image archives in {}",
            folder.display()
        );
        archives.sort();
        Ok(archives)
    }

    /// Links the images into a node on which no containerd has run yet. Returns the archives that were added later.
    pub(super) fn link_images(&self, name: &str) -> Result<Vec<String>> {
        let store = store(&self.directory);
        link(&store, &self.directory.machine(name).join("root").join(NODE_ROOT))
            .with_context(|| format!("link the images into node {name}"))?;
        let file = store.join(IMPORTED);
        let imported = fs::read_to_string(&file).with_context(|| format!("read {}", file.display()))?;
        let imported: BTreeSet<&str> = imported.lines().collect();
        let archives = self.image_archives()?;
        Ok(archives
            .into_iter()
            .filter(|name| !imported.contains(name.as_str()))
            .collect())
    }

    /// Waits until the node's CRI runtime lists every image that its containerd has.
    pub(super) async fn node_knows_images(&self, name: &str) -> Result<()> {
        let list = async |filter: &[&str]| {
            let mut command = vec!["ctr", "-n", "k8s.io", "images", "list", "-q"];
            command.extend(filter);
            let said = self.run_in_node(name, &command).await?;
            Ok::<_, anyhow::Error>(said.lines().map(str::to_owned).collect::<BTreeSet<_>>())
        };
        until(
            &format!("the images of node {name}"),
            START,
            &self.directory.machine_logs(name),
            async || {
                let all = list(&[]).await?;
                let known = list(&[r#"labels."io.cri-containerd.image"==managed"#]).await?;
                Ok(match all.difference(&known).next() {
                    _ if all.is_empty() => Observation::NotYet("containerd has no image".to_owned()),
                    None => Observation::Done(()),
                    Some(first) => Observation::NotYet(format!("{first} is not listed yet")),
                })
            },
        )
        .await
    }
}

fn store(directory: &Directory) -> PathBuf {
    directory.machine(CONTROL_PLANE).join("root").join(ROOT)
}

/// Shared blobs, and a copy of the metadata.
fn link(store: &Path, target: &Path) -> Result<()> {
    let (from, to) = (store.join(BLOBS), target.join(BLOBS));
    fs::create_dir_all(&to).with_context(|| format!("create {}", to.display()))?;
    for entry in fs::read_dir(&from).with_context(|| format!("list {}", from.display()))? {
        let blob = entry?;
        link_or_copy(&blob.path(), &to.join(blob.file_name()))?;
    }
    let (from, to) = (store.join(METADATA), target.join(METADATA));
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))?;
    }
    fs::copy(&from, &to).with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
    Ok(())
}

/// Only images: this containerd runs no container.
fn configuration() -> String {
    format!(
        r#"version = 3
root = "/{ROOT}"
state = "/run/image-store"
disabled_plugins = [
    "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri",
    "io.containerd.podsandbox.controller.v1.podsandbox", "io.containerd.nri.v1.nri",
]

[grpc]
address = "{SOCKET}"
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_shares_blobs_and_has_its_own_metadata() {
        let folder = tempfile::tempdir().unwrap();
        let (store, node) = (folder.path().join("store"), folder.path().join("node"));
        write(&store.join(BLOBS).join("abc"), "layer").unwrap();
        write(&store.join(METADATA), "names").unwrap();
        link(&store, &node).unwrap();
        fs::write(node.join(METADATA), "others").unwrap();
        fs::remove_file(node.join(BLOBS).join("abc")).unwrap();
        assert_eq!(fs::read_to_string(store.join(METADATA)).unwrap(), "names");
        assert_eq!(
            fs::read_to_string(store.join(BLOBS).join("abc")).unwrap(),
            "layer"
        );
    }
}
