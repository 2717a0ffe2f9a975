//! A machine: one "computer" of the lab, made of namespaces instead of hardware.
//!
//! A machine has a network, mount, pid, uts and ipc namespace, its own root file system (only `/usr` is shared with the
//! host, read-only), and a process 1 that starts its services and restarts them after a crash. Killing process 1 is a
//! power failure; the root file system stays on disk, so the machine can be powered on again.
//!
//! Three processes are involved: the *holder* (outside the pid namespace, in the machine's cgroup, only waits),
//! *process 1* inside, and the program that sends requests to the socket of process 1 with [`Control`].

mod client;
mod holder;
mod init;
mod root_file_system;
mod service;

pub use client::Control;
pub use holder::{hold, start_time};
pub use init::init;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// The description of a machine. Written as JSON by the cluster, read by the holder and by process 1.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MachineSpec {
    /// The host name inside.
    pub name: String,
    /// The folder of this machine: `root`, `pid`, `control.sock`, `machine.json`.
    pub directory: PathBuf,
    /// The folder of the services' logs, one file each.
    pub logs: PathBuf,
    /// The cgroup folder below each hierarchy, without a leading slash.
    pub cgroup: String,
    /// Host folders that are mounted inside, read-only: (host path, path inside).
    pub binds: Vec<(PathBuf, PathBuf)>,
    /// Kernel settings below `/proc/sys`, written at start: (path with slashes, value).
    pub sysctls: Vec<(String, String)>,
}

impl MachineSpec {
    /// The file that holds this description.
    pub fn file(directory: &Path) -> PathBuf {
        directory.join("machine.json")
    }

    /// The path of the root file system on the host.
    pub fn root(&self) -> PathBuf {
        self.directory.join("root")
    }

    /// Process 1's socket.
    pub fn socket(directory: &Path) -> PathBuf {
        directory.join("control.sock")
    }

    /// The file with process 1's pid on the host and its start time.
    pub fn pid_file(directory: &Path) -> PathBuf {
        directory.join("pid")
    }

    fn read(file: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("read the machine description {}", file.display()))?;
        serde_json::from_str(&text)
            .with_context(|| format!("parse the machine description {}", file.display()))
    }

    /// Writes the description into the machine's folder.
    pub fn write(&self) -> Result<PathBuf> {
        let file = Self::file(&self.directory);
        std::fs::create_dir_all(&self.directory)
            .and_then(|()| std::fs::create_dir_all(&self.logs))
            .with_context(|| format!("create the folders of machine {}", self.name))?;
        std::fs::write(&file, serde_json::to_string_pretty(self)?)
            .with_context(|| format!("write the machine description {}", file.display()))?;
        Ok(file)
    }
}

/// A program that process 1 keeps running.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Service {
    /// The name; the log is `NAME.log`.
    pub name: String,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Environment beyond `PATH` and `HOME`.
    #[serde(default)]
    pub environment: Vec<(String, String)>,
}

/// A request to process 1.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Request {
    /// Start a service, or replace the one of that name.
    Start(Service),
    /// Stop a service without a restart: SIGTERM, then SIGKILL after the given milliseconds.
    Stop {
        /// The name.
        name: String,
        /// Time limit for the service to end after SIGTERM.
        grace_milliseconds: u64,
    },
    /// Remove a service that has ended from the list: it had a single task.
    Forget {
        /// The name.
        name: String,
    },
    /// List the services.
    Status,
}

/// Process 1's answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Reply {
    /// Success.
    Done,
    /// The services.
    Status(Vec<ServiceStatus>),
    /// The request was refused or failed.
    Failed(String),
}

/// One service as process 1 reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceStatus {
    /// The name.
    pub name: String,
    /// The pid inside the machine, if it runs.
    pub pid: Option<i32>,
    /// Number of restarts after a crash.
    pub restarts: u32,
    /// The last exit.
    pub last_exit: Option<String>,
}
