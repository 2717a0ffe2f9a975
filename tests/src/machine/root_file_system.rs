//! The machine's root file system: a folder on disk, with the host's `/usr` and new `/proc` and `/sys` in it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use sha2::{Digest, Sha256};

use super::MachineSpec;

/// Files and folders of `/etc` that programs from `/usr` need to run; no file with settings of the host itself.
const ETC: [&str; 13] = [
    "alternatives",
    "ca-certificates.conf",
    "ethertypes",
    "group",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "nsswitch.conf",
    "os-release",
    "passwd",
    "protocols",
    "services",
    "ssl",
];

/// Settings of the whole machine that a kubelet corrects at its start. The lab must not change them: the kubelet gets
/// files to read and write instead.
const GUARDED: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// Builds the root and makes it the root of this mount namespace. Runs in process 1.
pub fn enter(spec: &MachineSpec) -> Result<()> {
    let root = spec.root();
    for folder in [
        "usr",
        "etc/cni/net.d",
        "etc/kubernetes",
        "proc",
        "sys",
        "dev",
        "run",
        "tmp",
        "root",
        "mnt",
        "srv",
        "var/log/lab",
        "var/lib",
        "var/tmp",
        "opt/cni/bin",
        ".old",
    ] {
        create(&root.join(folder))?;
    }
    copy_etc(spec)?;

    bind(&root, &root, false)?;
    bind(Path::new("/usr"), &root.join("usr"), true)?;
    for name in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
        same_as_host(&root, name)?;
    }
    bind_tree(Path::new("/dev"), &root.join("dev"))?;
    mount_new("tmpfs", &root.join("dev/shm"), "mode=1777")?;
    mount_new("proc", &root.join("proc"), "")?;
    // A new /sys shows this network namespace's devices; the cgroup hierarchies are the host's.
    mount_new("sysfs", &root.join("sys"), "")?;
    bind_tree(Path::new("/sys/fs/cgroup"), &root.join("sys/fs/cgroup"))?;
    if let Err(error) = mount_new("bpf", &root.join("sys/fs/bpf"), "mode=700") {
        println!("no bpf file system, continuing without: {error:#}");
    }
    mount_new("tmpfs", &root.join("run"), "mode=755")?;
    create(&root.join("run/lock"))?;
    let var_run = root.join("var/run");
    if !var_run.is_symlink() {
        symlink("/run", &var_run).with_context(|| format!("link {}", var_run.display()))?;
    }
    empty(&root.join("tmp"))?;

    for (from, to) in &spec.binds {
        let target = root.join(to.strip_prefix("/").unwrap_or(to));
        create(&target)?;
        bind(from, &target, true)?;
    }
    bind(&spec.logs, &root.join("var/log/lab"), false)?;
    guard_settings(&root)?;
    swap(&root)
}

fn swap(root: &Path) -> Result<()> {
    nix::unistd::pivot_root(root, &root.join(".old"))
        .with_context(|| format!("make {} the root", root.display()))?;
    std::env::set_current_dir("/").context("enter the new root")?;
    umount2("/.old", MntFlags::MNT_DETACH).context("unmount the host's root")?;
    // Volumes that a kubelet mounts must reach its pods, and the other way round for mount propagation to work.
    mount(
        None::<&str>,
        "/",
        None::<&str>,
        MsFlags::MS_REC | MsFlags::MS_SHARED,
        None::<&str>,
    )
    .context("make the machine's mounts shared")
}

fn copy_etc(spec: &MachineSpec) -> Result<()> {
    let etc = spec.root().join("etc");
    for name in ETC {
        let from = Path::new("/etc").join(name);
        let to = etc.join(name);
        if to.is_symlink() || to.exists() || !(from.is_symlink() || from.exists()) {
            continue;
        }
        let status = Command::new("cp")
            .arg("-a")
            .arg(&from)
            .arg(&to)
            .status()
            .context("run cp")?;
        if !status.success() {
            bail!("copy {} to {}: cp: {status}", from.display(), to.display());
        }
    }
    let machine_id = Sha256::digest(format!("{} {}", spec.cgroup, spec.name));
    let machine_id: String = format!("{machine_id:x}").chars().take(32).collect();
    write(&etc.join("machine-id"), &format!("{machine_id}\n"))?;
    write(&etc.join("hostname"), &format!("{}\n", spec.name))?;
    write(
        &etc.join("hosts"),
        &format!("127.0.0.1 localhost\n127.0.1.1 {}\n", spec.name),
    )?;
    write(
        &etc.join("resolv.conf"),
        "# The lab has no name server outside the cluster.\n",
    )
}

fn guard_settings(root: &Path) -> Result<()> {
    let store = root.join("run/lab-settings");
    create(&store)?;
    for (name, value) in GUARDED {
        let real = root.join("proc/sys").join(name);
        if !real.exists() {
            continue;
        }
        let file = store.join(name.replace('/', "."));
        write(&file, &format!("{value}\n"))?;
        bind(&file, &real, false)?;
    }
    Ok(())
}

fn same_as_host(root: &Path, name: &str) -> Result<()> {
    let host = Path::new("/").join(name);
    let here = root.join(name);
    if host.is_symlink() {
        if !here.is_symlink() {
            let target = fs::read_link(&host).with_context(|| format!("read the link {}", host.display()))?;
            symlink(&target, &here).with_context(|| format!("link {}", here.display()))?;
        }
    } else if host.is_dir() {
        create(&here)?;
        bind(&host, &here, true)?;
    }
    Ok(())
}

fn bind(from: &Path, to: &Path, read_only: bool) -> Result<()> {
    mount(Some(from), to, None::<&str>, MsFlags::MS_BIND, None::<&str>)
        .with_context(|| format!("bind {} to {}", from.display(), to.display()))?;
    if read_only {
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(None::<&str>, to, None::<&str>, flags, None::<&str>)
            .with_context(|| format!("make {} read-only", to.display()))?;
    }
    Ok(())
}

fn bind_tree(from: &Path, to: &Path) -> Result<()> {
    mount(
        Some(from),
        to,
        None::<&str>,
        MsFlags::MS_BIND | MsFlags::MS_REC,
        None::<&str>,
    )
    .with_context(|| format!("bind the tree {} to {}", from.display(), to.display()))
}

fn mount_new(kind: &str, to: &Path, options: &str) -> Result<()> {
    let flags = if kind == "tmpfs" {
        MsFlags::MS_NOSUID
    } else {
        MsFlags::empty()
    };
    mount(Some(kind), to, Some(kind), flags, Some(options))
        .with_context(|| format!("mount a new {kind} at {}", to.display()))
}

fn create(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("create {}", folder.display()))
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("write {}", file.display()))
}

/// A machine that is powered on has an empty /tmp.
fn empty(folder: &Path) -> Result<()> {
    fs::remove_dir_all(folder).with_context(|| format!("empty {}", folder.display()))?;
    create(folder)
}
