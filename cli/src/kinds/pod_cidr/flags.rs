//! Flags: which range pods leave, which one they come to, and how.

use api::migration::{EtcdAccess, PodCidr};
use clap::{Args, ValueEnum};
use ipnet::IpNet;

use crate::error::CliError;
use crate::value;

/// What this kind lets one choose.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Pod CIDR (another range for the pods, with Calico's IPAM)")]
#[group(skip)]
pub struct Flags {
    /// Range of the IPPool that pods leave. Any option of this group asks for this kind and not for flannel to Calico.
    #[arg(long = "pod-cidr-from", value_name = "RANGE", value_parser = value::range)]
    from: Option<IpNet>,
    /// Range of the IPPool that they come to. It is made if it is not there.
    #[arg(long = "pod-cidr-to", value_name = "RANGE", value_parser = value::range)]
    to: Option<IpNet>,
    /// Prefix length of the new pool's blocks: 20 to 32, or 116 to 128 of IPv6. Default: the old pool's.
    #[arg(long = "pod-cidr-block-size", value_name = "LENGTH", value_parser = value::pool_block_size)]
    block_size: Option<u8>,
    /// How pods leave the old range. Default by-workload.
    #[arg(long = "pod-cidr-mode", value_enum, ignore_case = true)]
    mode: Option<Mode>,
    /// How long the old pool stays once it is empty: until then going back is cheap. Default 24h.
    #[arg(long = "pod-cidr-soak", value_name = "DURATION", value_parser = value::seconds)]
    soak: Option<u32>,
    /// Which pods, and how many at a time.
    #[command(flatten)]
    pods: PodFlags,
    /// Where Calico's etcd is.
    #[command(flatten)]
    etcd: EtcdFlags,
}

/// Where Calico's etcd is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[group(skip)]
pub struct EtcdFlags {
    /// Where etcd v3 is, with commas between, if Calico keeps its pools there. Default: as calico-node in the cluster has it.
    #[arg(long = "calico-etcd", value_name = "URL", value_delimiter = ',')]
    calico_etcd: Vec<String>,
    /// A Secret in replumb's namespace with etcd-ca, etcd-cert and etcd-key for it.
    #[arg(long = "calico-etcd-secret", value_name = "NAME", requires = "calico_etcd")]
    calico_etcd_secret: Option<String>,
}

impl EtcdFlags {
    /// Says the flags over the kind.
    pub fn over(&self, kind: &mut PodCidr) {
        let Self {
            calico_etcd: endpoints,
            calico_etcd_secret: secret,
        } = self;
        if !endpoints.is_empty() {
            kind.etcd = Some(EtcdAccess {
                endpoints: endpoints.clone(),
                secret: secret.clone(),
            });
        }
    }
}

/// Which pods, and how many at a time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
#[group(skip)]
pub struct PodFlags {
    /// Pods that may be on their way at the same time. Default 5.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pods_at_once: Option<u32>,
    /// Evict pods that no controller creates again, after all others.
    #[arg(long, value_name = "BOOL", value_parser = value::truth, num_args = 0..=1, require_equals = true,
        default_missing_value = "true")]
    delete_bare_pods: Option<bool>,
}

impl PodFlags {
    /// Says the flags over the kind.
    pub fn over(self, kind: &mut PodCidr) {
        let Self {
            pods_at_once,
            delete_bare_pods,
        } = self;
        kind.pods_at_once = pods_at_once.or(kind.pods_at_once);
        kind.delete_bare_pods = delete_bare_pods.unwrap_or(kind.delete_bare_pods);
    }
}

/// How pods leave the old range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Workload by workload, wherever their pods are.
    ByWorkload,
    /// Node by node: cordon, drain, uncordon. For clusters whose nodes are rolled anyway.
    ByNode,
}

impl Mode {
    /// The mode as the Migration has it.
    pub fn wire(self) -> api::migration::Mode {
        match self {
            Self::ByWorkload => api::migration::Mode::ByWorkload,
            Self::ByNode => api::migration::Mode::ByNode,
        }
    }
}

impl Flags {
    /// The flags that were given, as they are typed.
    pub fn said(&self) -> Vec<&'static str> {
        // Every field by name: one that is added is not forgotten here.
        let Self {
            from,
            to,
            block_size,
            mode,
            soak,
            pods: PodFlags {
                pods_at_once,
                delete_bare_pods,
            },
            etcd: EtcdFlags {
                calico_etcd,
                calico_etcd_secret,
            },
        } = self;
        [
            ("--pod-cidr-from", from.is_some()),
            ("--pod-cidr-to", to.is_some()),
            ("--pod-cidr-block-size", block_size.is_some()),
            ("--pod-cidr-mode", mode.is_some()),
            ("--pod-cidr-soak", soak.is_some()),
            ("--pods-at-once", pods_at_once.is_some()),
            ("--delete-bare-pods", delete_bare_pods.is_some()),
            ("--calico-etcd", !calico_etcd.is_empty()),
            ("--calico-etcd-secret", calico_etcd_secret.is_some()),
        ]
        .into_iter()
        .filter_map(|(flag, said)| said.then_some(flag))
        .collect()
    }

    /// The flags over the kind that is there; without one both ranges have to be said.
    pub fn over(&self, there: Option<PodCidr>) -> Result<PodCidr, CliError> {
        let ends = (
            self.from.or(there.as_ref().map(|kind| kind.from)),
            self.to.or(there.as_ref().map(|kind| kind.to)),
        );
        let (Some(from), Some(to)) = ends else {
            let missing = [("--pod-cidr-from", ends.0), ("--pod-cidr-to", ends.1)];
            return Err(CliError::NoRange {
                missing: missing
                    .into_iter()
                    .filter_map(|(flag, range)| range.is_none().then_some(flag))
                    .collect(),
            });
        };
        let mut kind = there.unwrap_or_else(|| between(from, to));
        (kind.from, kind.to) = (from, to);
        kind.block_size = self.block_size.or(kind.block_size);
        kind.mode = self.mode.map_or(kind.mode, Mode::wire);
        kind.soak_seconds = self.soak.or(kind.soak_seconds);
        self.pods.over(&mut kind);
        self.etcd.over(&mut kind);
        Ok(kind)
    }
}

/// A change between these ranges, with every default.
pub fn between(from: IpNet, to: IpNet) -> PodCidr {
    PodCidr {
        from,
        to,
        family: None,
        block_size: None,
        mode: api::migration::Mode::default(),
        soak_seconds: None,
        pods_at_once: None,
        delete_bare_pods: false,
        etcd: None,
    }
}
