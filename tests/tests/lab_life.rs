//! A lab removes itself completely, however it ends: checked without the lab's own code.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test says that it failed by a panic"
)]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use lab::cluster::Directory;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The first start includes the build of missing programs.
const START: Duration = Duration::from_mins(20);
const PACE: Duration = Duration::from_millis(20);

struct Lab {
    folder: tempfile::TempDir,
}

impl Lab {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir_in("/var/tmp").unwrap(),
        }
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
        command
            .arg(name)
            .arg("--dir")
            .arg(self.path())
            .stdin(Stdio::null());
        command
    }

    fn up(&self) -> Command {
        let mut command = self.command("up");
        command.args(["--nodes=1", "--no-calico", "--no-sample", "--no-traffic"]);
        if let Some(assets) = std::env::var_os("REPLUMB_LAB_ASSETS") {
            command.arg("--assets").arg(assets);
        }
        command
    }

    fn down(&self) -> Output {
        self.command("down").output().unwrap()
    }

    /// The remains of this lab on the machine.
    fn leftovers(&self) -> BTreeSet<String> {
        let directory = Directory::open(self.path()).unwrap();
        let mut found = BTreeSet::new();
        for hierarchy in folders(Path::new("/sys/fs/cgroup")) {
            let cgroup = hierarchy.join("replumb-lab").join(directory.instance());
            if cgroup.exists() {
                found.insert(format!("cgroup {}", cgroup.display()));
            }
        }
        if Path::new("/sys/class/net").join(directory.host_link()).exists() {
            found.insert(format!("link {}", directory.host_link()));
        }
        let place = self.path().to_string_lossy().into_owned();
        for process in folders(Path::new("/proc")) {
            // A process that ends meanwhile is not a leftover.
            let read = |name: &str| fs::read(process.join(name)).unwrap_or_default();
            let has = |name: &str, word: &str| String::from_utf8_lossy(&read(name)).contains(word);
            let command = String::from_utf8_lossy(&read("cmdline")).replace('\0', " ");
            // A process without a command line has ended, and only waits to be reaped.
            if command.is_empty() {
                continue;
            }
            if has("cmdline", &place) || has("cgroup", directory.instance()) || has("mountinfo", &place) {
                found.insert(format!("process {} {command}", process.display()));
            }
        }
        for entry in fs::read_dir(self.path()).unwrap() {
            let name = entry.unwrap().file_name().to_string_lossy().into_owned();
            if !["lock", "logs"].contains(&name.as_str()) {
                found.insert(format!("file {name}"));
            }
        }
        found
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        // A failed test leaves a lab; its folder must not be removed before its processes.
        self.down();
    }
}

fn folders(parent: &Path) -> Vec<PathBuf> {
    fs::read_dir(parent)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_dir())
        .collect()
}

fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
}

/// Waits for a file that shows the progress of the start.
fn reaches(child: &mut Child, file: &Path) {
    let started = Instant::now();
    while !file.exists() {
        if let Some(status) = child.try_wait().unwrap() {
            panic!("the start ended ({status}) before it created {}", file.display());
        }
        assert!(
            started.elapsed() < START,
            "no {} after {} s",
            file.display(),
            START.as_secs()
        );
        std::thread::sleep(PACE);
    }
}

/// The progress of a start, by a file below the lab's folder.
const STAGES: [&str; 4] = [
    "state.json",
    "nodes/control-plane/pid",
    "logs/control-plane/kube-apiserver.log",
    "nodes/lab-control/root/var/lib/containerd/io.containerd.metadata.v1.bolt/meta.db",
];

#[test]
#[ignore = "needs root, and builds the programs of the lab"]
fn down_removes_everything_of_a_killed_start() {
    for stage in STAGES {
        let lab = Lab::new();
        let mut start = lab.up().stdout(Stdio::null()).spawn().unwrap();
        reaches(&mut start, &lab.path().join(stage));
        signal(&start, Signal::SIGKILL);
        start.wait().unwrap();
        assert!(
            lab.path().join("state.json").exists(),
            "{stage}: the state is written before anything is made"
        );
        let down = lab.down();
        assert!(
            down.status.success(),
            "{stage}: {}",
            String::from_utf8_lossy(&down.stderr)
        );
        assert_eq!(lab.leftovers(), BTreeSet::new(), "{stage}");
    }
}

#[test]
#[ignore = "needs root, and builds the programs of the lab"]
fn an_interrupted_start_removes_everything_that_it_has_made() {
    for (stage, sent) in [(STAGES[0], Signal::SIGINT), (STAGES[3], Signal::SIGTERM)] {
        let lab = Lab::new();
        let mut start = lab
            .up()
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        reaches(&mut start, &lab.path().join(stage));
        signal(&start, sent);
        assert_eq!(start.wait().unwrap().code(), Some(1), "{stage}");
        assert_eq!(lab.leftovers(), BTreeSet::new(), "{stage}");
    }
}

/// The command dies after its lab is up and before it marks the lab as kept: the next start takes the folder.
#[test]
#[ignore = "needs root, and builds the programs of the lab"]
fn the_next_start_removes_the_lab_of_a_killed_command() {
    let lab = Lab::new();
    let phase = |phase: &str| {
        let file = lab.path().join("state.json");
        let mut state: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        let before = std::mem::replace(&mut state["phase"], phase.into());
        fs::write(&file, state.to_string()).unwrap();
        before
    };
    assert!(lab.up().output().unwrap().status.success());
    assert_eq!(phase("Up"), "Standing");
    let again = lab.up().output().unwrap();
    let said = String::from_utf8_lossy(&again.stdout).into_owned();
    assert!(
        again.status.success() && said.contains("an earlier command was killed"),
        "{said}{}",
        String::from_utf8_lossy(&again.stderr)
    );
    assert!(lab.down().status.success());
    assert_eq!(lab.leftovers(), BTreeSet::new());
}

#[test]
#[ignore = "needs root, and builds the programs of the lab"]
fn a_second_start_is_refused_and_changes_nothing() {
    let lab = Lab::new();
    let mut first = lab.up().stdout(Stdio::null()).spawn().unwrap();
    reaches(&mut first, &lab.path().join(STAGES[1]));
    let beside = lab.up().output().unwrap();
    assert_eq!(beside.status.code(), Some(1));
    let said = String::from_utf8_lossy(&beside.stderr).into_owned();
    assert!(
        said.contains(&first.id().to_string()) && said.contains("--dir"),
        "{said}"
    );
    assert!(first.wait().unwrap().success());
    // No pod started before flannel had written the subnet of its node.
    let failed = lab
        .command("kubectl")
        .args([
            "get",
            "events",
            "-A",
            "--field-selector=reason=FailedCreatePodSandBox",
        ])
        .args(["-o", "jsonpath={.items[*].message}"])
        .output()
        .unwrap();
    let failed = (
        failed.status.success(),
        String::from_utf8_lossy(&failed.stdout).into_owned(),
    );
    assert!(failed.0 && !failed.1.contains("subnet.env"), "{failed:?}");

    let after = lab.up().output().unwrap();
    assert_eq!(after.status.code(), Some(1));
    let said = String::from_utf8_lossy(&after.stderr).into_owned();
    assert!(
        said.contains("there is a lab") && said.contains("cargo lab down"),
        "{said}"
    );
    let status = lab.command("status").output().unwrap();
    let shown = String::from_utf8_lossy(&status.stdout).into_owned();
    assert!(
        status.status.success() && shown.contains("node lab-control: Ready"),
        "{shown}"
    );

    assert!(!lab.leftovers().is_empty(), "the check finds an existing lab");
    assert!(lab.down().status.success());
    assert_eq!(lab.leftovers(), BTreeSet::new());
    // Without a lab the command succeeds, too.
    assert!(lab.down().status.success());
}
