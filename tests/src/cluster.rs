//! A cluster of real components on one machine: created by [`Cluster::up`], opened again by [`Cluster::open`],
//! removed by [`Cluster::down`].

pub mod api;
pub mod authority;
mod calico_etcd;
pub mod cgroup;
mod clean;
mod command;
pub mod control_plane;
mod directory;
pub(crate) mod disk_space;
mod families;
mod foreign;
mod image_store;
pub(crate) mod images;
mod kube_proxy;
mod machines;
pub mod manifests;
mod network;
mod node;
mod nodes;
mod pod_network;
pub mod pods;
pub mod processes;
pub mod replumb;
pub mod state;
mod tunnel;
mod up;
pub mod wait;

pub use api::ClusterApi;
pub use directory::Directory;
pub use families::IpFamilies;
pub use images::Images;
pub use kube_proxy::KubeProxy;
pub use manifests::{PacketFilter, ProxyMode, Traffic, Values};
pub use pod_network::PodNetwork;
pub use tunnel::Tunnel;
pub use up::{Site, UpOptions, node_name};

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::sync::Mutex;

use crate::machine::{Control, ServiceStatus};
use crate::progress::Progress;
use crate::store::Store;
use control_plane::NodeRanges;
use state::{CONTROL_PLANE, Phase, State};

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    directory: Directory,
    state: Mutex<State>,
    api: ClusterApi,
    progress: Progress,
    /// Held by the command that made the cluster, so that no other command removes it meanwhile.
    _lock: Option<Lock>,
}

/// The lock for changes to the lab in a folder.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

/// One machine in the output of `status`.
#[derive(Clone, Debug)]
pub struct MachineStatus {
    /// The name.
    pub name: String,
    /// The address.
    pub address: std::net::Ipv4Addr,
    /// Process 1's pid on the host, if the machine is on.
    pub pid: Option<u32>,
    /// The services.
    pub services: Vec<ServiceStatus>,
}

impl Lock {
    /// Takes the lock; an error if another command has it.
    pub fn take(directory: &Directory) -> Result<Self> {
        if let Some(lock) = Self::attempt(directory)? {
            return Ok(lock);
        }
        let path = directory.lock();
        let owner = std::fs::read_to_string(&path)
            .with_context(|| format!("read the owner of the lock {}", path.display()))?;
        bail!(
            "the lab in {} is being used by process {}: wait for it, end it, or take another folder with --dir",
            directory.path().display(),
            owner.trim()
        );
    }

    /// Takes the lock; `None` if another command has it.
    pub fn attempt(directory: &Directory) -> Result<Option<Self>> {
        let path = directory.lock();
        let mut file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .with_context(|| format!("open {}", path.display()))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => return Ok(None),
            Err(std::fs::TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("lock {}", path.display()));
            }
        }
        file.set_len(0)
            .and_then(|()| writeln!(file, "{}", std::process::id()))
            .context("write the pid into the lock")?;
        Ok(Some(Self { _file: file }))
    }
}

impl Cluster {
    /// Opens the cluster that runs in a folder.
    pub async fn open(directory: Directory) -> Result<Self> {
        let Some(state) = State::read(&directory)? else {
            bail!(
                "there is no lab in {}: `cargo lab up` creates one",
                directory.path().display()
            );
        };
        if state.phase == Phase::Starting {
            bail!(
                "the lab in {} was not finished (its `up` still runs or was interrupted): `cargo lab down` removes it",
                directory.path().display()
            );
        }
        let api = Self::api_of(&directory, &state).await?;
        Ok(Self {
            directory,
            state: Mutex::new(state),
            api,
            progress: Progress::default(),
            _lock: None,
        })
    }

    async fn api_of(directory: &Directory, state: &State) -> Result<ClusterApi> {
        ClusterApi::open(
            &directory.kubeconfig(),
            &state.binaries.join("kubectl"),
            &directory.logs(),
        )
        .await
    }

    /// Removes the lab in a folder and returns the things that could not be removed; empty is success.
    pub async fn down(directory: &Directory) -> Result<Vec<String>> {
        let _lock = Lock::take(directory)?;
        clean::remove(directory).await
    }

    /// The existing things of a lab in this folder and on this machine.
    pub async fn leftovers(directory: &Directory) -> Result<Vec<String>> {
        clean::leftovers(directory).await
    }

    /// Keeps the lab in a folder after the end of the command that made it. An unfinished start stays unfinished: the
    /// next start in this folder removes it.
    pub fn keep(directory: &Directory) -> Result<()> {
        match State::read(directory)? {
            Some(mut state) if state.phase == Phase::Up => {
                state.phase = Phase::Standing;
                state.write(directory)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Removes the things that a killed command has left in a folder, and returns whether there were any. A lab that
    /// is in use or kept is not changed.
    pub async fn remove_abandoned(directory: &Directory) -> Result<bool> {
        let Some(_lock) = Lock::attempt(directory)? else {
            return Ok(false);
        };
        match State::read(directory)?.map(|state| state.phase) {
            None | Some(Phase::Standing) => return Ok(false),
            Some(Phase::Starting | Phase::Up) => {}
        }
        let left = clean::remove(directory).await?;
        if left.is_empty() {
            Ok(true)
        } else {
            bail!(
                "a killed command left things in {} that cannot be removed: {}",
                directory.path().display(),
                left.join("; ")
            )
        }
    }

    /// Removes this cluster; an error lists the things that could not be removed.
    pub async fn remove(self) -> Result<()> {
        let left = clean::remove(&self.directory).await?;
        if left.is_empty() {
            Ok(())
        } else {
            bail!("the lab left behind: {}", left.join("; "))
        }
    }

    /// The folder of the cluster.
    pub fn directory(&self) -> &Directory {
        &self.directory
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig(&self) -> PathBuf {
        self.directory.kubeconfig()
    }

    /// The cluster's API.
    pub fn api(&self) -> &ClusterApi {
        &self.api
    }

    /// The lab's kubectl.
    pub async fn kubectl_program(&self) -> PathBuf {
        self.state.lock().await.binaries.join("kubectl")
    }

    /// The nodes' names, in the order of their creation.
    pub async fn node_names(&self) -> Vec<String> {
        self.state
            .lock()
            .await
            .nodes()
            .into_iter()
            .map(|(name, _)| name)
            .collect()
    }

    /// Kills a service of a machine with SIGKILL, as in a crash; process 1 starts it again after a second.
    pub async fn kill_service(&self, machine: &str, service: &str) -> Result<()> {
        let services = self.control(machine).status().await?;
        let pid = services
            .iter()
            .find(|one| one.name == service)
            .and_then(|one| one.pid);
        let Some(pid) = pid else {
            let names: Vec<_> = services
                .iter()
                .filter(|one| one.pid.is_some())
                .map(|one| one.name.as_str())
                .collect();
            bail!(
                "service {service:?} does not run on machine {machine}; running are {}",
                names.join(", ")
            );
        };
        self.run_in_node(machine, &["kill", "-9", &pid.to_string()])
            .await
            .map(drop)
    }

    /// The machine that the API server runs on.
    pub async fn control_plane_address(&self) -> std::net::Ipv4Addr {
        self.state.lock().await.control_plane()
    }

    /// The etcd of the API server.
    pub async fn store(&self) -> Store {
        Store::new(self.control_plane_address().await, control_plane::STORE_PORT)
    }

    /// Stops the API server: from now on no request is answered. The controller manager stops with it, as it does
    /// when it cannot renew its leader Lease: if it kept running, it would later find that no Node has renewed its
    /// Lease in time, and remove every pod from every Service.
    pub async fn stop_api_server(&self) -> Result<()> {
        let control = self.control(CONTROL_PLANE);
        control
            .stop(control_plane::CONTROLLER_MANAGER, Duration::from_secs(2))
            .await?;
        control
            .stop(control_plane::API_SERVER, Duration::from_secs(2))
            .await
    }

    /// Starts the API server again, waits until it is ready, and starts the controller manager with the settings of a new lab.
    pub async fn start_api_server(&self) -> Result<()> {
        let (address, families) = {
            let state = self.state.lock().await;
            (state.control_plane(), state.ip_families)
        };
        self.control(CONTROL_PLANE)
            .start(control_plane::api_server(address, &families.service_networks()))
            .await?;
        self.api.ready(Duration::from_mins(1)).await?;
        self.restart_controller_manager(None).await
    }

    /// Restarts the API server and the controller manager with these ranges of Services, and a certificate for these
    /// addresses of `default/kubernetes`, as a user does on a control plane of one node.
    pub async fn restart_with_services(&self, services: &str, first: &[std::net::Ipv4Addr]) -> Result<()> {
        let (address, families) = {
            let state = self.state.lock().await;
            (state.control_plane(), state.ip_families)
        };
        let authority = authority::Authority::open(&self.directory.keys())?;
        control_plane::certify(&self.directory, &authority, address, first)?;
        self.stop_api_server().await?;
        let control = self.control(CONTROL_PLANE);
        control
            .start(control_plane::api_server(address, services))
            .await?;
        self.api.ready(Duration::from_mins(1)).await?;
        let ranges = NodeRanges::of(families);
        control
            .start(control_plane::controller_manager(families, &ranges, services))
            .await
    }

    /// Restarts the controller manager with these ranges; `None`: the ranges of a new lab.
    pub async fn restart_controller_manager(&self, ranges: Option<&NodeRanges>) -> Result<()> {
        let families = self.state.lock().await.ip_families;
        let usual = NodeRanges::of(families);
        self.control(CONTROL_PLANE)
            .start(control_plane::controller_manager(
                families,
                ranges.unwrap_or(&usual),
                &families.service_networks(),
            ))
            .await
    }

    /// A service of the control plane's machine.
    pub async fn control_plane_service(&self, name: &str) -> Result<ServiceStatus> {
        let services = self.control(CONTROL_PLANE).status().await?;
        services
            .into_iter()
            .find(|service| service.name == name)
            .with_context(|| format!("there is no service {name} on the control plane's machine"))
    }

    /// Runs a program on a node, as in a login shell.
    pub async fn exec_in_node(&self, name: &str, command: &[&str]) -> Result<Output> {
        let pid = self.pid(name)?.to_string();
        let mut all = vec![
            "-t",
            &pid,
            "-n",
            "-m",
            "-p",
            "-u",
            "-i",
            "--",
            "/usr/bin/env",
            NODE_PATH,
        ];
        all.extend(command);
        command::output("nsenter", &all)
            .await
            .with_context(|| format!("on node {name}"))
    }

    /// Runs a program on a node; an exit code other than 0 is an error. Returns its standard output.
    pub async fn run_in_node(&self, name: &str, command: &[&str]) -> Result<String> {
        let output = self.exec_in_node(name, command).await?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            bail!(
                "`{}` on node {name} failed ({}): {}",
                command.join(" "),
                output.status,
                said.trim()
            );
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// The services of one machine, to stop and start them (`containerd`, `kubelet`, `etcd`, …).
    pub fn control(&self, machine: &str) -> Control {
        Control::new(&self.directory.machine(machine))
    }

    /// Every machine.
    pub async fn status(directory: &Directory) -> Result<Option<Vec<MachineStatus>>> {
        let Some(state) = State::read(directory)? else {
            return Ok(None);
        };
        let mut all = Vec::new();
        for (name, machine) in &state.machines {
            let folder = directory.machine(name);
            let pid = machines::pid(&folder);
            let services = match pid {
                Some(_) => Control::new(&folder).status().await.unwrap_or_default(),
                None => Vec::new(),
            };
            all.push(MachineStatus {
                name: name.clone(),
                address: machine.address,
                pid,
                services,
            });
        }
        all.sort_by_key(|machine| machine.address);
        Ok(Some(all))
    }

    /// The root of a machine's disk on the host. Mounts inside (`/run`, `/tmp`) are not in it.
    pub fn disk(&self, machine: &str) -> PathBuf {
        self.directory.machine(machine).join("root")
    }

    /// The pid of a machine's process 1 on the host.
    pub fn pid(&self, name: &str) -> Result<u32> {
        machines::pid(&self.directory.machine(name))
            .with_context(|| format!("machine {name} is off or does not exist"))
    }
}

impl MachineStatus {
    /// Whether the machine is on and all its services run.
    pub fn well(&self) -> bool {
        self.pid.is_some()
            && !self.services.is_empty()
            && self.services.iter().all(|service| service.pid.is_some())
    }
}

/// The programs of a lab's machines, all in one folder.
pub const BINARIES: [&str; 10] = [
    "containerd",
    "containerd-shim-runc-v2",
    "ctr",
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubectl",
    "kubelet",
];

/// The search path of a node.
const NODE_PATH: &str = "PATH=/opt/lab/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
