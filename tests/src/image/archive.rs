//! An image as an OCI layout in one tar file.

use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::Tree;
use super::tar::Writer;

/// Changes when the format of the archives changes while their contents do not.
const FORMAT: &str = "2";

/// One image.
#[derive(Clone, Debug)]
pub struct Image {
    /// The full reference, with registry and tag.
    pub name: String,
    /// The files.
    pub tree: Tree,
    /// The default command.
    pub entrypoint: Vec<String>,
    /// Environment beyond `PATH`.
    pub environment: Vec<(String, String)>,
    /// A one-line description, stored in the image.
    pub description: String,
}

impl Image {
    /// Returns the archive in `folder`, which is written unless it exists with the same contents.
    pub fn archive(&self, folder: &Path) -> Result<PathBuf> {
        let tree = self
            .tree
            .hash()
            .with_context(|| format!("hash the contents of image {}", self.name))?;
        let mut key = Sha256::new();
        for part in [FORMAT, &self.name, &self.settings().to_string()] {
            key.update(part);
            key.update("\n");
        }
        key.update(tree);
        let key = format!("{:x}", key.finalize());
        let path = folder.join(format!("{}-{}.tar", file_name(&self.name), &key[..16]));
        if !path.is_file() {
            self.write(&path)
                .with_context(|| format!("write image {} to {}", self.name, path.display()))?;
        }
        Ok(path)
    }

    fn settings(&self) -> Value {
        let mut environment =
            vec!["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()];
        environment.extend(
            self.environment
                .iter()
                .map(|(name, value)| format!("{name}={value}")),
        );
        json!({
            "Env": environment,
            "Entrypoint": self.entrypoint,
            "WorkingDir": "/",
            "Labels": {"org.opencontainers.image.description": self.description},
        })
    }

    fn write(&self, path: &Path) -> Result<()> {
        // A separate folder beside the target: an interrupted run leaves no file that looks complete.
        let parent = path.parent().context("find the folder of the archive")?;
        let temporary = parent.join(format!(".{}-{}", file_name(&self.name), std::process::id()));
        fs::create_dir_all(&temporary).with_context(|| format!("create {}", temporary.display()))?;
        let written = self.write_in(&temporary, path);
        fs::remove_dir_all(&temporary).with_context(|| format!("remove {}", temporary.display()))?;
        written
    }

    fn write_in(&self, temporary: &Path, path: &Path) -> Result<()> {
        let layer_path = temporary.join("layer");
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&layer_path)?;
        let hashing = self.tree.write(Hashing {
            out: BufWriter::new(file),
            hash: Sha256::new(),
            size: 0,
        })?;
        let layer = Blob {
            digest: format!("{:x}", hashing.hash.finalize()),
            size: hashing.size,
        };
        let mut layer_file = hashing.out.into_inner().map_err(io::IntoInnerError::into_error)?;
        layer_file.rewind()?;

        let architecture = architecture();
        let configuration = serde_json::to_vec(&json!({
            "architecture": architecture,
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": self.settings(),
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", layer.digest)]},
            "history": [{"created": "1970-01-01T00:00:00Z", "created_by": self.description}],
        }))?;
        let configuration_blob = Blob::of(&configuration);
        let manifest = serde_json::to_vec(&json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": configuration_blob.descriptor("application/vnd.oci.image.config.v1+json"),
            "layers": [layer.descriptor("application/vnd.oci.image.layer.v1.tar")],
        }))?;
        let manifest_blob = Blob::of(&manifest);
        let mut descriptor = manifest_blob.descriptor("application/vnd.oci.image.manifest.v1+json");
        descriptor["annotations"] = json!({"io.containerd.image.name": self.name});
        descriptor["platform"] = json!({"architecture": architecture, "os": "linux"});
        let index = serde_json::to_vec(&json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [descriptor],
        }))?;

        let new = temporary.join("archive");
        let mut tar = Writer::new(BufWriter::new(File::create(&new)?));
        tar.bytes("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        tar.bytes("index.json", 0o644, &index)?;
        tar.directory("blobs", 0o755)?;
        tar.directory("blobs/sha256", 0o755)?;
        tar.bytes(&manifest_blob.path(), 0o644, &manifest)?;
        tar.bytes(&configuration_blob.path(), 0o644, &configuration)?;
        tar.file(&layer.path(), 0o644, layer.size, layer_file)?;
        tar.finish()?;
        fs::rename(&new, path).with_context(|| format!("move the archive to {}", path.display()))
    }
}

struct Blob {
    digest: String,
    size: u64,
}

impl Blob {
    fn of(bytes: &[u8]) -> Self {
        Self {
            digest: format!("{:x}", Sha256::digest(bytes)),
            size: bytes.len() as u64,
        }
    }

    fn path(&self) -> String {
        format!("blobs/sha256/{}", self.digest)
    }

    fn descriptor(&self, media_type: &str) -> Value {
        json!({"mediaType": media_type, "digest": format!("sha256:{}", self.digest), "size": self.size})
    }
}

struct Hashing<W> {
    out: W,
    hash: Sha256,
    size: u64,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.out.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// The name of this machine's processor in images.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The last part of a reference, without its tag.
fn file_name(reference: &str) -> String {
    let last = reference.rsplit('/').next().unwrap_or(reference);
    let owner = reference.rsplit('/').nth(1).unwrap_or_default();
    let last = last.split([':', '@']).next().unwrap_or(last);
    if owner.is_empty() || owner.contains(['.', ':']) {
        last.to_owned()
    } else {
        format!("{owner}-{last}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(contents: &[u8]) -> Image {
        let mut tree = Tree::default();
        tree.bytes("hello", 0o644, contents);
        Image {
            name: "example.org/some/thing:1".to_owned(),
            tree,
            entrypoint: vec!["/hello".to_owned()],
            environment: vec![("A".to_owned(), "b".to_owned())],
            description: "a test".to_owned(),
        }
    }

    fn unpacked(archive: &Path, member: &str) -> Vec<u8> {
        let output = std::process::Command::new("tar")
            .arg("-xOf")
            .arg(archive)
            .arg(member)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{member}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        output.stdout
    }

    #[test]
    fn every_digest_matches_the_bytes_of_its_blob() {
        let folder = tempfile::tempdir().unwrap();
        let archive = image(b"one").archive(folder.path()).unwrap();
        let blob = |descriptor: &Value| {
            let digest = descriptor["digest"]
                .as_str()
                .unwrap()
                .strip_prefix("sha256:")
                .unwrap()
                .to_owned();
            let bytes = unpacked(&archive, &format!("blobs/sha256/{digest}"));
            assert_eq!(format!("{:x}", Sha256::digest(&bytes)), digest);
            assert_eq!(descriptor["size"].as_u64(), Some(bytes.len() as u64));
            bytes
        };
        let index: Value = serde_json::from_slice(&unpacked(&archive, "index.json")).unwrap();
        assert_eq!(
            index["manifests"][0]["annotations"]["io.containerd.image.name"],
            "example.org/some/thing:1"
        );
        let manifest: Value = serde_json::from_slice(&blob(&index["manifests"][0])).unwrap();
        let configuration: Value = serde_json::from_slice(&blob(&manifest["config"])).unwrap();
        assert_eq!(configuration["config"]["Entrypoint"], json!(["/hello"]));
        assert_eq!(
            configuration["rootfs"]["diff_ids"][0],
            manifest["layers"][0]["digest"]
        );
        let layer = blob(&manifest["layers"][0]);
        std::fs::write(folder.path().join("layer.tar"), layer).unwrap();
        assert_eq!(unpacked(&folder.path().join("layer.tar"), "hello"), b"one");
        assert_eq!(
            unpacked(&archive, "oci-layout"),
            br#"{"imageLayoutVersion":"1.0.0"}"#
        );
    }

    #[test]
    fn an_archive_is_written_once_and_again_when_its_contents_change() {
        let folder = tempfile::tempdir().unwrap();
        let first = image(b"one").archive(folder.path()).unwrap();
        let written = fs::metadata(&first).unwrap().modified().unwrap();
        assert_eq!(image(b"one").archive(folder.path()).unwrap(), first);
        assert_eq!(
            fs::metadata(&first).unwrap().modified().unwrap(),
            written,
            "the archive was written again"
        );
        let bytes = fs::read(&first).unwrap();
        fs::remove_file(&first).unwrap();
        image(b"one").archive(folder.path()).unwrap();
        assert_eq!(
            fs::read(&first).unwrap(),
            bytes,
            "the same contents give the same bytes"
        );
        assert_ne!(image(b"two").archive(folder.path()).unwrap(), first);
        assert_eq!(
            fs::read_dir(folder.path()).unwrap().count(),
            2,
            "a temporary file remains"
        );
    }

    #[test]
    fn an_archive_has_the_name_of_its_image() {
        assert_eq!(file_name("docker.io/calico/node:v3.31.7"), "calico-node");
        assert_eq!(file_name("registry.k8s.io/pause:3.10"), "pause");
        assert_eq!(file_name("localhost:5000/pause@sha256:00"), "pause");
    }
}
