//! `cargo lab up`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};

use super::{Place, interrupted};
use crate::assets::{self, Build, Program};
use crate::cluster::{
    Cluster, Directory, Images, IpFamilies, KubeProxy, PacketFilter, PodNetwork, ProxyMode, Site, Traffic,
    Tunnel, UpOptions,
};
use crate::demo::Tools;
use crate::image::Calico;
use crate::progress::Progress;

/// Default milliseconds between two probes of each flow.
const PROBE_INTERVAL: u64 = 10;

/// Options that every command that makes a cluster has.
#[derive(Clone, Debug, clap::Args)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is one switch of the command line"
)]
pub struct ClusterArguments {
    /// The lab.
    #[command(flatten)]
    pub place: Place,
    /// Number of nodes; the first has the control plane's role
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub nodes: usize,
    /// Folder with ready programs, or an empty one to build them into
    #[arg(long, value_name = "DIR", env = "KUBEBUILDER_ASSETS")]
    pub assets: Option<PathBuf>,
    /// Folder with the real `calico-node` and `calico`; without it a stand-in plays Calico. With `--network calico-v2`
    /// these programs are of v3, and a stand-in plays v2.6 and BIRD; `kube-controllers` and `check-status` are taken
    /// from the folder if they exist.
    #[arg(long, value_name = "DIR")]
    pub calico_bin: Option<PathBuf>,
    /// Pod network. Default: flannel.
    #[arg(long, value_enum, value_name = "WHO")]
    pub network: Option<PodNetwork>,
    /// With `--network calico-etcd`: the encapsulation of Calico's pool. Default: none. With VXLAN there is no BIRD,
    /// and with `--calico-bin` no program is a stand-in.
    #[arg(long, value_enum, value_name = "WHICH")]
    pub tunnel: Option<Tunnel>,
    /// Beside flannel: do not apply Calico's manifest
    #[arg(long)]
    pub no_calico: bool,
    /// How kube-proxy routes traffic to Services
    #[arg(long, value_enum, default_value_t)]
    pub proxy_mode: ProxyMode,
    /// How kube-proxy runs
    #[arg(long, value_enum, default_value_t)]
    pub kube_proxy: KubeProxy,
    /// Tool with which flannel writes its packet filter rules
    #[arg(long, value_enum, default_value_t)]
    pub packet_filter: PacketFilter,
    /// Address families of nodes, pods and Services
    #[arg(long, value_enum, default_value_t)]
    pub ip_families: IpFamilies,
    /// Start no sample workloads
    #[arg(long)]
    pub no_sample: bool,
    /// Start no traffic generator
    #[arg(long)]
    pub no_traffic: bool,
    /// Milliseconds between two probes of each flow. Default: 10, and 5 for `demo --strategy in-place`.
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub probe_interval: Option<u64>,
    /// More pods on the second node, each of which gets a datagram from the host every 20 ms
    #[arg(long, value_name = "PODS", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=100))]
    pub crowd: u8,
    /// Build replumb and install it
    #[arg(long)]
    pub replumb: bool,
    /// Use release builds of replumb and the traffic generator, for measurements. The first build takes minutes longer.
    #[arg(long)]
    pub release: bool,
    /// Probers hold a stream of datagrams and a connection to the Service: no pod of it ends
    #[arg(skip)]
    pub holds_service: bool,
    /// Use a test build of replumb, which stops at given points
    #[arg(skip)]
    pub crash_points: bool,
    /// Play a kernel before Linux 6.2, which does not rename a link that is up. Only its refusal is played
    #[arg(long)]
    pub old_kernel: bool,
    /// After a failure, keep the lab for inspection
    #[arg(long)]
    pub keep: bool,
}

/// `cargo lab up`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// The cluster.
    #[command(flatten)]
    pub cluster: ClusterArguments,
}

impl ClusterArguments {
    /// The build of replumb and the traffic generator.
    pub fn build(&self) -> Build {
        Build {
            release: self.release,
            crash_points: self.crash_points,
            old_kernel: self.old_kernel,
        }
    }

    /// The pod network.
    fn pod_network(&self) -> PodNetwork {
        self.network.unwrap_or_default()
    }

    /// For a migration that starts from this network: another network must not be requested, and the components that
    /// the migration needs must be installed.
    pub fn start_on(&mut self, network: PodNetwork) -> Result<()> {
        let wanted = *self.network.get_or_insert(network);
        if wanted != network {
            bail!(
                "--network {}: the migration starts from {}; omit the option",
                wanted.option(),
                network.name()
            );
        }
        if self.no_calico {
            bail!("--no-calico: a migration needs Calico; omit it");
        }
        self.validate()?;
        self.calico_plays_every_family()
    }

    /// Refuses a cluster that cannot work.
    fn validate(&self) -> Result<()> {
        if self.crowd > 0 && (self.no_traffic || self.nodes < 2) {
            bail!(
                "--crowd {}: it runs on the second node, and gets probes; omit --no-traffic, and use --nodes 2 or more",
                self.crowd
            );
        }
        if self.tunnel.is_some() && self.pod_network() != PodNetwork::CalicoEtcd {
            bail!(
                "--tunnel with --network {}: only --network calico-etcd has this option (in demos: pod-cidr --datastore etcd); omit it",
                self.pod_network().option()
            );
        }
        match self.pod_network() {
            PodNetwork::Calico if self.no_calico => {
                bail!(
                    "--no-calico with --network calico: the cluster would have no pod network; leave one of them out"
                )
            }
            PodNetwork::Calico => self.calico_plays_every_family(),
            network @ (PodNetwork::CalicoV2 | PodNetwork::CalicoEtcd) if self.no_calico => {
                bail!(
                    "--no-calico with --network {}: the cluster would have no pod network; leave one of them out",
                    network.option()
                )
            }
            // The real v3 would support both, but the stand-in plays v2.6 and BIRD in any case.
            network @ (PodNetwork::CalicoV2 | PodNetwork::CalicoEtcd) if self.ip_families.has_ipv6() => {
                bail!(
                    "--ip-families dual-stack with --network {}: the stand-in plays IPv4 only",
                    network.option()
                )
            }
            PodNetwork::Flannel | PodNetwork::CalicoV2 | PodNetwork::CalicoEtcd => Ok(()),
        }
    }

    fn calico_plays_every_family(&self) -> Result<()> {
        if self.ip_families.has_ipv6() && self.calico_bin.is_none() {
            bail!(
                "--ip-families dual-stack: the stand-in for Calico plays IPv4 only; add --calico-bin DIR with the real \
                 calico-node and calico"
            );
        }
        Ok(())
    }

    /// Builds the needed programs and returns the size and form of the cluster.
    pub async fn options(&self) -> Result<UpOptions> {
        self.validate()?;
        let progress = Progress::default();
        let mut programs = vec![Program::Traffic];
        if !self.no_calico && (self.calico_bin.is_none() || self.pod_network().has_etcd()) {
            programs.push(Program::StandIn);
        }
        if self.replumb {
            programs.extend([Program::Agent, Program::Coordinator, Program::CommandLine]);
        }
        let wanted = assets::Options {
            folder: self.assets.clone(),
            calico: self.calico_bin.clone(),
            programs,
            build: self.build(),
        };
        let mut assets = assets::ensure(&wanted, &progress).await?;
        let mut calico_etcd = None;
        if self.pod_network().has_etcd() {
            calico_etcd = Some(assets::old_etcd(&progress).await?);
            let real = match assets.calico.take() {
                Some(Calico::Real(real)) => Some(real),
                _ => None,
            };
            let stand_in = assets.rust.need(Program::StandIn)?;
            assets.calico = Some(Calico::WithEtcd { stand_in, real });
        }
        Ok(UpOptions {
            directory: self.place.open()?,
            nodes: self.nodes,
            archives: assets.archives(&Images::default(), &progress).await?,
            binaries: assets.binaries,
            plugins: assets.plugins,
            program: "/proc/self/exe".into(),
            proxy_mode: self.proxy_mode,
            kube_proxy: self.kube_proxy,
            packet_filter: self.packet_filter,
            ip_families: self.ip_families,
            pod_network: self.pod_network(),
            tunnel: self.tunnel.unwrap_or_default(),
            calico_etcd,
            calico_waits: !self.no_calico,
            sample: !self.no_sample,
            crowd: self.crowd,
            traffic: (!self.no_traffic).then(|| Traffic {
                interval_ms: self.probe_interval.unwrap_or(PROBE_INTERVAL),
                holds_service: self.holds_service,
            }),
            progress,
        })
    }

    /// Builds the programs of a control plane and returns their folder.
    pub async fn binaries(&self, progress: &Progress) -> Result<PathBuf> {
        let wanted = assets::Options {
            folder: self.assets.clone(),
            calico: None,
            programs: Vec::new(),
            build: self.build(),
        };
        Ok(assets::ensure(&wanted, progress).await?.binaries)
    }

    /// The programs and options for the cluster once it runs.
    pub async fn tools(&self) -> Result<Tools> {
        let calico = match &self.calico_bin {
            Some(folder) if self.pod_network().has_etcd() && self.tunnel != Some(Tunnel::Vxlan) => format!(
                "v3 real, from {}; v2.6 and BIRD from the stand-in",
                folder.display()
            ),
            Some(folder) => format!("real, from {}", folder.display()),
            None => "a stand-in".to_owned(),
        };
        Ok(Tools {
            command_line: assets::command_line(self.build(), &Progress::default()).await?,
            calico,
            calico_is_real: self.calico_bin.is_some(),
        })
    }

    /// Makes the cluster; after a failure or an interruption, removes it.
    pub async fn up(&self) -> Result<Cluster> {
        let claim = async { Site::claim(self.options().await?).await };
        let site = tokio::select! {
            site = claim => site?,
            signal = interrupted() => bail!("ended by {}: nothing was made", signal?),
        };
        let directory = site.directory().clone();
        // From here on the lab has something to remove.
        let build = async {
            let cluster = site.build().await?;
            if self.replumb {
                cluster.install_replumb().await?;
            }
            Ok(cluster)
        };
        let error = tokio::select! {
            cluster = build => match cluster {
                Ok(cluster) => return Ok(cluster),
                Err(error) => error,
            },
            signal = interrupted() => anyhow::anyhow!("ended by {}", signal?),
        };
        Err(self.abandon(&directory, error).await)
    }

    /// Removes a cluster after an error, and returns the error with the things that could not be removed.
    pub async fn abandon(&self, directory: &Directory, error: anyhow::Error) -> anyhow::Error {
        if self.keep {
            let place = directory.path().display();
            eprintln!("the lab is kept in {place} for inspection; `cargo lab down` removes it");
            return match Cluster::keep(directory) {
                Ok(()) => error,
                Err(failure) => error.context(format!("the lab could not be marked as kept: {failure:#}")),
            };
        }
        eprintln!("removing the lab");
        match Cluster::down(directory).await {
            Ok(left) if left.is_empty() => error,
            Ok(left) => error.context(format!("the lab left behind: {}", left.join("; "))),
            Err(failure) => error.context(format!("removing the lab failed, too: {failure:#}")),
        }
    }
}

/// Makes the cluster.
pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    let cluster = arguments.cluster.up().await?;
    Cluster::keep(cluster.directory())?;
    println!("kubeconfig: {}", cluster.kubeconfig().display());
    println!("`cargo lab kubectl get pods -A` shows its pods, `cargo lab down` removes it");
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn cluster(options: &str) -> ClusterArguments {
        #[derive(Parser)]
        struct Line {
            #[command(flatten)]
            cluster: ClusterArguments,
        }
        Line::parse_from(format!("up {options}").split_whitespace()).cluster
    }

    fn refusal(result: Result<()>) -> String {
        result.map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn flannel_is_the_default_network() {
        assert_eq!(cluster("").pod_network(), PodNetwork::Flannel);
        assert_eq!(cluster("--network calico").pod_network(), PodNetwork::Calico);
        let mut unset = cluster("");
        unset.start_on(PodNetwork::Calico).unwrap();
        assert_eq!(unset.pod_network(), PodNetwork::Calico);
    }

    #[test]
    fn a_cluster_that_cannot_work_or_migrate_is_refused_before_the_build() {
        assert!(cluster("--network calico").validate().is_ok());
        let other = cluster("--network calico").start_on(PodNetwork::Flannel);
        assert!(refusal(other).contains("--network calico: the migration starts from flannel"));
        assert!(refusal(cluster("--no-calico").start_on(PodNetwork::Flannel)).contains("--no-calico"));
        assert!(
            refusal(cluster("--network calico --no-calico").validate()).contains("leave one of them out")
        );
        for network in ["calico-v2", "calico-etcd"] {
            for more in ["", " --calico-bin /nowhere"] {
                let line = format!("--network {network}{more}");
                assert!(cluster(&line).validate().is_ok(), "{line}");
                let without = refusal(cluster(&format!("{line} --no-calico")).validate());
                assert!(without.contains("leave one of them out"), "{line}: {without}");
                let dual = refusal(cluster(&format!("{line} --ip-families dual-stack")).validate());
                assert!(dual.contains("the stand-in plays IPv4 only"), "{line}: {dual}");
            }
        }
        assert!(cluster("--network calico-etcd --tunnel vxlan").validate().is_ok());
        for network in ["flannel", "calico", "calico-v2"] {
            let said = refusal(cluster(&format!("--network {network} --tunnel vxlan")).validate());
            assert!(said.contains("--tunnel") && said.contains(network), "{said}");
        }
        let other = cluster("--network calico-v2").start_on(PodNetwork::Calico);
        assert!(refusal(other).contains("--network calico-v2: the migration starts from Calico"));
        let dual = "--network calico --ip-families dual-stack";
        assert!(refusal(cluster(dual).validate()).contains("--calico-bin"));
        assert!(
            cluster(&format!("{dual} --calico-bin /nowhere"))
                .validate()
                .is_ok()
        );
        assert!(cluster("--ip-families dual-stack").validate().is_ok());
        assert!(
            refusal(cluster("--ip-families dual-stack").start_on(PodNetwork::Flannel))
                .contains("--calico-bin")
        );
    }
}
