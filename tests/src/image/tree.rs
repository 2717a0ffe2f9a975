//! The files of an image, before they are written.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

use super::hashes::hash_of;
use super::libraries::libraries;
use super::tar::Writer;

/// Folders of the file system's root that are links into `/usr` on merged systems.
const MERGED: [&str; 5] = ["bin", "sbin", "lib", "lib32", "lib64"];

/// One entry of an image's file system.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    Directory { mode: u32 },
    Link(String),
    Bytes { mode: u32, contents: Vec<u8> },
    File { mode: u32, source: PathBuf },
}

/// The file system of an image. Paths are those inside the image, without a leading slash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    entries: BTreeMap<String, Entry>,
}

impl Default for Tree {
    fn default() -> Self {
        let mut tree = Self {
            entries: BTreeMap::new(),
        };
        // Programs of this machine search their loader and libraries in the folders of this machine.
        for name in MERGED {
            if let Ok(target) = fs::read_link(Path::new("/").join(name)) {
                let target = target.to_string_lossy().trim_start_matches('/').to_owned();
                tree.entries.insert(name.to_owned(), Entry::Link(target));
            }
        }
        tree.insert("tmp", Entry::Directory { mode: 0o1777 });
        for folder in [
            "dev", "etc", "proc", "root", "run", "sys", "usr/bin", "usr/sbin", "var",
        ] {
            tree.directory(folder);
        }
        let accounts = b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n";
        tree.bytes("etc/passwd", 0o644, accounts);
        tree.bytes("etc/group", 0o644, b"root:x:0:\nnogroup:x:65534:\n");
        tree.bytes(
            "etc/nsswitch.conf",
            0o644,
            b"passwd: files\ngroup: files\nhosts: files dns\n",
        );
        tree
    }
}

impl Tree {
    /// Adds an empty folder.
    pub fn directory(&mut self, path: &str) {
        self.insert(path, Entry::Directory { mode: 0o755 });
    }

    /// Adds a file with these bytes.
    pub fn bytes(&mut self, path: &str, mode: u32, contents: &[u8]) {
        self.insert(
            path,
            Entry::Bytes {
                mode,
                contents: contents.to_vec(),
            },
        );
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) {
        self.insert(path, Entry::Link(target.to_owned()));
    }

    /// Adds a file of this machine, without its dependencies.
    pub fn file(&mut self, path: &str, mode: u32, source: &Path) -> Result<()> {
        let source = source
            .canonicalize()
            .with_context(|| format!("find {} for an image", source.display()))?;
        self.insert(path, Entry::File { mode, source });
        Ok(())
    }

    /// Adds a program of this machine under another path, with the shared libraries that it needs.
    pub fn program(&mut self, path: &str, source: &Path) -> Result<()> {
        self.file(path, 0o755, source)?;
        self.libraries_of(&[source])
    }

    /// Adds programs of this machine under their names and links on this machine, with their libraries.
    pub fn host_programs(&mut self, names: &[&str]) -> Result<()> {
        let mut sources = Vec::new();
        for name in names {
            let found = find_program(name)?;
            let source = found
                .canonicalize()
                .with_context(|| format!("follow {}", found.display()))?;
            let real = inside(&source);
            let known_as = inside(&in_real_folder(&found)?);
            self.insert(
                &real,
                Entry::File {
                    mode: 0o755,
                    source: source.clone(),
                },
            );
            if known_as != real {
                self.link(&known_as, &format!("/{real}"));
            }
            sources.push(source);
        }
        let sources: Vec<&Path> = sources.iter().map(PathBuf::as_path).collect();
        self.libraries_of(&sources)
    }

    /// Adds the files of a folder of this machine, under the same path, with the libraries that they need.
    pub fn host_modules(&mut self, folder: &Path) -> Result<()> {
        let folder = folder
            .canonicalize()
            .with_context(|| format!("find {}", folder.display()))?;
        let mut sources = Vec::new();
        for entry in fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))? {
            let path = entry?.path();
            let source = path
                .canonicalize()
                .with_context(|| format!("follow {}", path.display()))?;
            self.insert(&inside(&path), Entry::File { mode: 0o644, source });
            sources.push(path);
        }
        let sources: Vec<&Path> = sources.iter().map(PathBuf::as_path).collect();
        self.libraries_of(&sources)
    }

    /// Adds busybox with a link for each of its programs, except those that the image already has.
    pub fn busybox(&mut self) -> Result<()> {
        let program = find_program("busybox")?;
        let output = std::process::Command::new(&program)
            .arg("--list-full")
            .output()
            .context("run busybox")?;
        let list = String::from_utf8(output.stdout).context("read busybox's list of programs")?;
        if !output.status.success() || list.trim().is_empty() {
            bail!(
                "{} --list-full names no programs ({})",
                program.display(),
                output.status
            );
        }
        self.program("bin/busybox", &program)?;
        for path in list.lines().map(str::trim).filter(|path| !path.is_empty()) {
            if !self.entries.contains_key(&self.place(path)) {
                self.link(path, "/bin/busybox");
            }
        }
        Ok(())
    }

    fn libraries_of(&mut self, sources: &[&Path]) -> Result<()> {
        for library in libraries(sources)? {
            let path = inside(&in_real_folder(&library)?);
            self.file(&path, 0o755, &library)?;
        }
        Ok(())
    }

    /// The path with a link of the root followed: `bin/sh` is `usr/bin/sh`.
    fn place(&self, path: &str) -> String {
        let path = path.trim_matches('/');
        if let Some((first, rest)) = path.split_once('/')
            && let Some(Entry::Link(target)) = self.entries.get(first)
        {
            return format!("{target}/{rest}");
        }
        path.to_owned()
    }

    fn insert(&mut self, path: &str, entry: Entry) {
        let path = self.place(path);
        let mut parent = path.as_str();
        while let Some((above, _)) = parent.rsplit_once('/') {
            self.entries
                .entry(above.to_owned())
                .or_insert(Entry::Directory { mode: 0o755 });
            parent = above;
        }
        self.entries.insert(path, entry);
    }

    /// A hash of the complete output of [`Tree::write`].
    pub fn hash(&self) -> Result<[u8; 32]> {
        let mut all = Sha256::new();
        for (path, entry) in &self.entries {
            let line = match entry {
                Entry::Directory { mode } => format!("d {mode:o} {path}\n"),
                Entry::Link(target) => format!("l {path} {target}\n"),
                Entry::Bytes { mode, contents } => {
                    format!("f {mode:o} {path} {:x}\n", Sha256::digest(contents))
                }
                Entry::File { mode, source } => format!("f {mode:o} {path} {}\n", hash_of(source)?),
            };
            all.update(line);
        }
        Ok(all.finalize().into())
    }

    /// Writes the files as a tar file.
    pub fn write<W: Write>(&self, out: W) -> Result<W> {
        let mut tar = Writer::new(out);
        for (path, entry) in &self.entries {
            let written = match entry {
                Entry::Directory { mode } => tar.directory(path, *mode),
                Entry::Link(target) => tar.link(path, target),
                Entry::Bytes { mode, contents } => tar.bytes(path, *mode, contents),
                Entry::File { mode, source } => File::open(source).and_then(|file| {
                    let size = file.metadata()?.len();
                    tar.file(path, *mode, size, file)
                }),
            };
            written.with_context(|| format!("pack {path} ({entry:?})"))?;
        }
        tar.finish().context("end the layer")
    }
}

/// The path of a program on this machine.
fn find_program(name: &str) -> Result<PathBuf> {
    const FOLDERS: [&str; 6] = [
        "/usr/local/sbin",
        "/usr/local/bin",
        "/usr/sbin",
        "/usr/bin",
        "/sbin",
        "/bin",
    ];
    match FOLDERS
        .iter()
        .map(|folder| Path::new(folder).join(name))
        .find(|path| path.is_file())
    {
        Some(path) => Ok(path),
        None => bail!(
            "the program {name:?} is in none of {}: install the package that has it",
            FOLDERS.join(", ")
        ),
    }
}

/// The path with the links of its folder followed, but not its own link: other programs use its name.
fn in_real_folder(path: &Path) -> Result<PathBuf> {
    let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
        bail!("{} is not a path of a file", path.display());
    };
    let folder = folder
        .canonicalize()
        .with_context(|| format!("find {}", folder.display()))?;
    Ok(folder.join(name))
}

fn inside(path: &Path) -> String {
    path.to_string_lossy().trim_start_matches('/').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(tree: &Tree) -> Vec<&str> {
        tree.entries.keys().map(String::as_str).collect()
    }

    #[test]
    fn parents_come_before_their_children_and_links_of_the_root_are_followed() {
        let mut tree = Tree {
            entries: BTreeMap::new(),
        };
        tree.link("bin", "usr/bin");
        tree.bytes("/bin/sh", 0o755, b"");
        tree.bytes("opt/cni/bin/calico", 0o755, b"");
        assert_eq!(
            list(&tree),
            [
                "bin",
                "opt",
                "opt/cni",
                "opt/cni/bin",
                "opt/cni/bin/calico",
                "usr",
                "usr/bin",
                "usr/bin/sh"
            ]
        );
    }

    #[test]
    fn equal_contents_give_equal_bytes_and_a_changed_byte_gives_another_hash() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path().join("program");
        let make = |contents: &str| {
            fs::write(&source, contents).unwrap();
            let mut tree = Tree::default();
            tree.file("opt/program", 0o755, &source).unwrap();
            (tree.hash().unwrap(), tree.write(Vec::new()).unwrap())
        };
        let first = make("one");
        assert_eq!(first, make("one"));
        assert_ne!(first, make("two"));
    }

    #[test]
    fn programs_run_with_only_the_files_of_the_tree() {
        let folder = tempfile::tempdir().unwrap();
        let mut tree = Tree::default();
        tree.host_programs(&["iptables-save", "iptables-legacy", "nft", "ip"])
            .unwrap();
        tree.busybox().unwrap();
        let archive = folder.path().join("layer.tar");
        tree.write(File::create(&archive).unwrap()).unwrap();
        let root = folder.path().join("root");
        fs::create_dir(&root).unwrap();
        let unpacked = std::process::Command::new("tar")
            .arg("-C")
            .arg(&root)
            .arg("-xf")
            .arg(&archive)
            .status()
            .unwrap();
        assert!(unpacked.success());
        for command in [
            &["iptables-save", "--version"][..],
            &["iptables-legacy", "--version"],
            &["nft", "--version"],
            &["ip", "-V"],
            &["sh", "-c", "ls /etc/passwd"],
        ] {
            // In a user namespace, without root.
            let output = std::process::Command::new("unshare")
                .args(["--map-root-user", "chroot"])
                .arg(&root)
                .args(command)
                .output()
                .unwrap();
            assert!(
                output.status.success(),
                "{command:?}: {}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
    }

    #[test]
    fn a_missing_program_is_named() {
        let message = Tree::default()
            .host_programs(&["no-such-program"])
            .unwrap_err()
            .to_string();
        assert!(message.contains("no-such-program"), "{message}");
    }
}
