//! Creates a cluster.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures::future::try_join_all;

use super::authority::Authority;
use super::directory::Directory;
use super::families::IpFamilies;
use super::kube_proxy::KubeProxy;
use super::manifests::{PacketFilter, ProxyMode, Traffic, Values};
use super::pod_network::PodNetwork;
use super::state::{CONTROL_PLANE, Machine, Phase, State};
use super::tunnel::Tunnel;
use super::{Cluster, Images, Lock, clean, control_plane, disk_space, images, machines, network};
use crate::progress::Progress;

/// The API server is ready after about 8 s on two cores; a busy machine needs longer.
const API_LIMIT: Duration = Duration::from_mins(2);
/// From a started kubelet to a Ready node: image unpacking, flannel, the first lease.
const NODES_LIMIT: Duration = Duration::from_mins(4);
const ROLLOUT_LIMIT: Duration = Duration::from_mins(3);
/// A kubelet on two busy cores starts about one pod a second.
const CROWD_LIMIT: Duration = Duration::from_mins(8);

/// Size and form of the cluster.
#[derive(Clone, Debug)]
pub struct UpOptions {
    /// The folder of the lab.
    pub directory: Directory,
    /// Number of nodes.
    pub nodes: usize,
    /// Folder with etcd, the Kubernetes programs, containerd with its shim, and ctr.
    pub binaries: PathBuf,
    /// Folder with the basic CNI plugins.
    pub plugins: PathBuf,
    /// Archives of all images that the manifests name.
    pub archives: Vec<PathBuf>,
    /// The program of holder and process 1: the `lab` binary.
    pub program: PathBuf,
    /// The mode of kube-proxy.
    pub proxy_mode: ProxyMode,
    /// How kube-proxy runs.
    pub kube_proxy: KubeProxy,
    /// The tool with which flannel writes its rules.
    pub packet_filter: PacketFilter,
    /// The address families of nodes, pods and Services.
    pub ip_families: IpFamilies,
    /// The pod network.
    pub pod_network: PodNetwork,
    /// The tunnel of a Calico with etcd.
    pub tunnel: Tunnel,
    /// The etcd for a Calico with an etcd datastore; it has both APIs.
    pub calico_etcd: Option<PathBuf>,
    /// Beside flannel: whether Calico's manifest is applied. Calico starts on no node before the node has its label.
    pub calico_waits: bool,
    /// Whether the sample workloads are started.
    pub sample: bool,
    /// The traffic generator; `None` without traffic.
    pub traffic: Option<Traffic>,
    /// More pods on the second node, each of which gets datagrams from the host, if there is traffic; 0 for none.
    pub crowd: u8,
    /// Receives progress messages.
    pub progress: Progress,
}

/// The name of the n-th node, from 0: the first has the control plane's role.
pub fn node_name(index: usize) -> String {
    if index == 0 {
        "lab-control".to_owned()
    } else {
        format!("lab-worker-{index}")
    }
}

/// A folder that is locked for a new cluster. No part of the cluster exists yet.
#[derive(Debug)]
pub struct Site {
    options: UpOptions,
    lock: Lock,
    progress: Progress,
}

impl Site {
    /// Checks all conditions that do not need a cluster, and locks the folder. A folder with a running cluster is
    /// refused; the remains of a killed command are removed.
    pub async fn claim(options: UpOptions) -> Result<Self> {
        check(&options)?;
        let progress = options.progress;
        let directory = &options.directory;
        let lock = Lock::take(directory)?;
        if let Some(state) = State::read(directory)? {
            match state.phase {
                Phase::Standing => bail!(
                    "there is a lab in {} already: `cargo lab down` removes it, --dir creates another one",
                    directory.path().display()
                ),
                // This process has the lock, so the command that made the remains has ended.
                Phase::Starting | Phase::Up => {
                    progress.say("an earlier command was killed: removing its remains");
                }
            }
        }
        let left = clean::remove(directory).await?;
        if !left.is_empty() {
            bail!(
                "an earlier start left things that cannot be removed: {}",
                left.join("; ")
            );
        }
        Ok(Self {
            options,
            lock,
            progress,
        })
    }

    /// The folder.
    pub fn directory(&self) -> &Directory {
        &self.options.directory
    }

    /// Creates the cluster. After a failed attempt its parts stay for inspection, until [`Cluster::down`].
    pub async fn build(self) -> Result<Cluster> {
        let Self {
            options,
            lock,
            progress,
        } = self;
        let directory = options.directory.clone();
        // Until the host has an address of the subnet, no other lab may choose one.
        let alone = network::alone(&directory.logs()).await?;
        let mut state = State {
            phase: Phase::Starting,
            subnet: network::free_subnet().await?,
            binaries: options.binaries.clone(),
            plugins: options.plugins.clone(),
            program: directory.program(),
            proxy_mode: options.proxy_mode,
            kube_proxy: options.kube_proxy,
            packet_filter: options.packet_filter,
            ip_families: options.ip_families,
            pod_network: options.pod_network,
            tunnel: options.tunnel,
            machines: std::collections::BTreeMap::new(),
        };
        let address = state.control_plane();
        state
            .machines
            .insert(CONTROL_PLANE.to_owned(), Machine { address, on: true });
        for index in 0..options.nodes {
            let address = state
                .free_address()
                .context("every address of the lab's subnet is in use")?;
            state
                .machines
                .insert(node_name(index), Machine { address, on: true });
        }
        state.write(&directory)?;
        std::fs::copy(&options.program, &state.program).with_context(|| {
            format!(
                "copy {} to {}",
                options.program.display(),
                state.program.display()
            )
        })?;
        images::take(&directory.images(), &options.archives)?;

        let authority = Authority::create(&directory.keys())?;
        control_plane::prepare(&directory, &authority, address)?;
        let pid = machines::power_on(&directory, &state, CONTROL_PLANE).await?;
        network::connect_control_plane(pid, &directory.host_link(), state.subnet, state.ip_families)
            .await
            .context("connect the control plane")?;
        drop(alone);
        let api = Cluster::api_of(&directory, &state).await?;
        let cluster = Cluster {
            directory,
            state: state.into(),
            api,
            progress,
            _lock: Some(lock),
        };
        cluster.build(&options).await?;
        Ok(cluster)
    }
}

impl Cluster {
    /// Creates a cluster: [`Site::claim`], then [`Site::build`].
    pub async fn up(options: UpOptions) -> Result<Self> {
        Site::claim(options).await?.build().await
    }

    async fn build(&self, options: &UpOptions) -> Result<()> {
        let (address, families) = {
            let state = self.state.lock().await;
            (state.control_plane(), state.ip_families)
        };
        for service in control_plane::stores(address, families) {
            self.control(CONTROL_PLANE).start(service).await?;
        }
        self.progress.say("etcd and the API server are started");
        if let Some(program) = &options.calico_etcd {
            self.start_calico_etcd(program).await?;
        }
        let nodes = self.state.lock().await.nodes();
        // A kubelet that finds no API server waits for seconds before the next attempt.
        let (ready, server_is_ready) = tokio::sync::watch::channel(false);
        let (filled, store_is_filled) = tokio::sync::watch::channel(false);
        let images = async {
            self.fill_image_store().await.context("import the images")?;
            filled.send_replace(true);
            Ok(())
        };
        let machines = try_join_all(nodes.iter().map(|(name, machine)| {
            let (mut server_is_ready, mut store_is_filled) =
                (server_is_ready.clone(), store_is_filled.clone());
            async move {
                self.node_prepare(name, machine.address).await?;
                // See below.
                store_is_filled
                    .wait_for(|filled| *filled)
                    .await
                    .context("the images were not imported")?;
                self.node_start_with_images(name, machine.address).await?;
                self.progress.say(format_args!(
                    "{name} ({}) runs containerd and has the images",
                    machine.address
                ));
                // An error here means that the other half has failed, and has the reason.
                server_is_ready
                    .wait_for(|ready| *ready)
                    .await
                    .context("the API server did not become ready")?;
                self.node_start_kubelet(name, machine.address).await
            }
        }));
        let server = async {
            self.api.ready(API_LIMIT).await?;
            for service in control_plane::controllers(families) {
                self.control(CONTROL_PLANE).start(service).await?;
            }
            ready.send_replace(true);
            self.progress
                .say("the API server is ready, controller manager and scheduler are started");
            self.apply_kube_proxy().await?;
            self.begin_pod_network(options.calico_waits).await
        };
        tokio::try_join!(images, server, machines)?;
        self.progress.say("the kubelets are started");
        let names: Vec<String> = nodes.into_iter().map(|(name, _)| name).collect();
        self.settle(&names).await?;
        self.plant_foreign().await?;
        if options.sample {
            self.install_sample().await?;
        }
        if let Some(traffic) = options.traffic {
            self.install_traffic(traffic).await?;
            if options.crowd > 0 {
                self.install_crowd(options.crowd).await?;
            }
        }
        let mut state = self.state.lock().await;
        state.phase = Phase::Up;
        state.write(&self.directory)
    }

    async fn settle(&self, names: &[String]) -> Result<()> {
        self.api.nodes_registered(names, NODES_LIMIT).await?;
        if let Some(first) = names.first() {
            self.api
                .label_node(first, &[("node-role.kubernetes.io/control-plane", "")])
                .await?;
        }
        self.continue_pod_network().await?;
        self.api.nodes_ready(names, NODES_LIMIT).await?;
        self.progress.say(format_args!("{} nodes are Ready", names.len()));
        self.kube_proxy_runs(ROLLOUT_LIMIT).await?;
        self.finish_pod_network().await?;
        // Not earlier: a pod that starts before the network is complete fails, and its kubelet waits 10 s before the
        // next attempt.
        self.api
            .apply(&self.values().await.core_dns()?)
            .await
            .context("apply CoreDNS")?;
        self.api
            .rolled_out("deployment/coredns", "kube-system", ROLLOUT_LIMIT)
            .await?;
        self.progress.say("CoreDNS runs");
        Ok(())
    }

    /// The values of the manifests' placeholders for this cluster.
    pub async fn values(&self) -> Values {
        let state = self.state.lock().await;
        Values::new(
            &Images::default(),
            state.control_plane(),
            state.proxy_mode,
            state.packet_filter,
            state.ip_families,
            state.pod_network,
            state.tunnel,
        )
        .with_machines(&state.machines)
    }

    /// Starts the sample workloads and waits until they run.
    pub async fn install_sample(&self) -> Result<()> {
        self.api
            .apply(&self.values().await.sample()?)
            .await
            .context("apply the sample workloads")?;
        for workload in ["deployment/web", "statefulset/store", "daemonset/everywhere"] {
            self.api.rolled_out(workload, "sample", ROLLOUT_LIMIT).await?;
        }
        self.progress.say("the sample workloads are running");
        Ok(())
    }

    /// Starts a pod without a controller.
    pub async fn install_lonely(&self) -> Result<()> {
        self.api
            .apply(&self.values().await.lonely()?)
            .await
            .context("apply the pod without a controller")?;
        self.api.pods_ready(&["sample"], ROLLOUT_LIMIT).await
    }

    /// Starts the traffic generator and waits until it runs on every node.
    pub async fn install_traffic(&self, traffic: Traffic) -> Result<()> {
        self.api
            .apply(&self.values().await.traffic(traffic)?)
            .await
            .context("apply the traffic generator")?;
        for workload in ["deployment/echo", "daemonset/traffic", "daemonset/traffic-host"] {
            self.api.rolled_out(workload, "traffic", ROLLOUT_LIMIT).await?;
        }
        self.progress.say("traffic flows");
        Ok(())
    }

    /// Starts this number of pods on the second node, and their prober.
    async fn install_crowd(&self, pods: u8) -> Result<()> {
        let node = node_name(1);
        self.api
            .apply(&self.values().await.crowd(pods, &node)?)
            .await
            .context("apply the crowd of pods")?;
        for workload in ["deployment/crowd", "daemonset/traffic-crowd"] {
            self.api.rolled_out(workload, "traffic", CROWD_LIMIT).await?;
        }
        self.progress.say(format_args!("{pods} more pods run on {node}"));
        Ok(())
    }
}

/// Refuses known problems early and by name.
fn check(options: &UpOptions) -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        bail!("the lab creates namespaces and cgroups: start it as root");
    }
    if options.nodes == 0 || options.nodes > 100 {
        bail!("{} nodes: a lab has 1 to 100 nodes", options.nodes);
    }
    for program in super::BINARIES {
        let file = options.binaries.join(program);
        if !file.is_file() {
            bail!(
                "there is no {program} in {}: build the lab's programs, or use another folder with --assets",
                options.binaries.display()
            );
        }
    }
    disk_space::check(options.directory.path(), options.nodes, &options.archives)
}
