//! Flags of podCidr: the old range, the new range, and how pods move.

use api::MigrationSpec;
use api::migration::{EtcdAccess, PodCidr};
use clap::{Args, ValueEnum};
use ipnet::IpNet;

use super::error::RangeError;
use crate::error::CliError;
use crate::kinds::kind::KindFlags;
use crate::value;

/// Flags of this kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[command(next_help_heading = "Pod CIDR (new range for pods, with Calico's IPAM)")]
#[group(skip)]
pub struct Flags {
    /// Range of the IPPool that pods move from. Any option of this group selects podCidr instead of flannelToCalico.
    #[arg(long = "pod-cidr-from", value_name = "RANGE", value_parser = value::range)]
    from: Option<IpNet>,
    /// Range of the IPPool that pods move to. The IPPool is created if it does not exist.
    #[arg(long = "pod-cidr-to", value_name = "RANGE", value_parser = value::range)]
    to: Option<IpNet>,
    /// Prefix length of the blocks of the new IPPool: 20 to 32, or 116 to 128 for IPv6. Default: as in the old IPPool.
    #[arg(long = "pod-cidr-block-size", value_name = "LENGTH", value_parser = value::pool_block_size)]
    block_size: Option<u8>,
    /// Order in which pods move. Default by-workload.
    #[arg(long = "pod-cidr-mode", value_enum, ignore_case = true)]
    mode: Option<Mode>,
    /// How long the empty old IPPool is kept; a rollback is possible until then. Default 24h.
    #[arg(long = "pod-cidr-soak", value_name = "DURATION", value_parser = value::seconds)]
    soak: Option<u32>,
    /// Options of pods.
    #[command(flatten)]
    pods: PodFlags,
    /// The connection to Calico's etcd.
    #[command(flatten)]
    etcd: EtcdFlags,
}

/// The connection to Calico's etcd.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[group(skip)]
pub struct EtcdFlags {
    /// Endpoints of etcd v3, separated by commas, if Calico stores its data there. Default: the endpoints of calico-node.
    #[arg(long = "calico-etcd", value_name = "URL", value_delimiter = ',')]
    calico_etcd: Vec<String>,
    /// Secret in the namespace of replumb with etcd-ca, etcd-cert and etcd-key.
    #[arg(long = "calico-etcd-secret", value_name = "NAME", requires = "calico_etcd")]
    calico_etcd_secret: Option<String>,
}

impl EtcdFlags {
    /// Overrides the spec of the kind by the flags.
    pub fn merged_with(&self, kind: &mut PodCidr) {
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

/// Options of pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
#[group(skip)]
pub struct PodFlags {
    /// Pods that may move at the same time. Default 5.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pods_at_once: Option<u32>,
    /// Evict pods without a controller, after all others. They are not recreated.
    #[arg(long, value_name = "BOOL", value_parser = value::truth, num_args = 0..=1, require_equals = true,
        default_missing_value = "true")]
    delete_bare_pods: Option<bool>,
    /// Confirm that the nodes take both ranges for ranges of pods, where no kube-proxy is found in the API.
    #[arg(long, value_name = "BOOL", value_parser = value::truth, num_args = 0..=1, require_equals = true,
        default_missing_value = "true")]
    local_ranges_checked: Option<bool>,
}

impl PodFlags {
    /// Overrides the spec of the kind by the flags.
    pub fn over(self, kind: &mut PodCidr) {
        let Self {
            pods_at_once,
            delete_bare_pods,
            local_ranges_checked,
        } = self;
        kind.local_ranges_checked = local_ranges_checked.unwrap_or(kind.local_ranges_checked);
        kind.pods_at_once = pods_at_once.or(kind.pods_at_once);
        kind.delete_bare_pods = delete_bare_pods.unwrap_or(kind.delete_bare_pods);
    }
}

/// The order in which pods move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Workload by workload, on any node.
    ByWorkload,
    /// Node by node: cordon, drain, uncordon.
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

impl KindFlags for Flags {
    fn set_flags(&self) -> Vec<&'static str> {
        // Destructured, so that a new field cannot be forgotten here.
        let Self {
            from,
            to,
            block_size,
            mode,
            soak,
            pods:
                PodFlags {
                    pods_at_once,
                    delete_bare_pods,
                    local_ranges_checked,
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
            ("--local-ranges-checked", local_ranges_checked.is_some()),
            ("--calico-etcd", !calico_etcd.is_empty()),
            ("--calico-etcd-secret", calico_etcd_secret.is_some()),
        ]
        .into_iter()
        .filter_map(|(flag, is_set)| is_set.then_some(flag))
        .collect()
    }

    fn merge(&self, spec: &mut MigrationSpec) -> Result<(), CliError> {
        spec.pod_cidr = Some(self.over(spec.pod_cidr.take())?);
        Ok(())
    }
}

impl Flags {
    /// The existing spec, overridden by the flags; a new spec needs both ranges.
    fn over(&self, there: Option<PodCidr>) -> Result<PodCidr, CliError> {
        let ends = (
            self.from.or(there.as_ref().map(|kind| kind.from)),
            self.to.or(there.as_ref().map(|kind| kind.to)),
        );
        let (Some(from), Some(to)) = ends else {
            let missing = [("--pod-cidr-from", ends.0), ("--pod-cidr-to", ends.1)];
            let missing = missing
                .into_iter()
                .filter_map(|(flag, range)| range.is_none().then_some(flag))
                .collect();
            return Err(RangeError::NoRange { missing }.into());
        };
        let mut kind = there.unwrap_or_else(|| between(from, to));
        (kind.from, kind.to) = (from, to);
        kind.block_size = self.block_size.or(kind.block_size);
        kind.mode = self.mode.map_or(kind.mode, Mode::wire);
        kind.soak_seconds = self.soak.or(kind.soak_seconds);
        self.pods.over(&mut kind);
        self.etcd.merged_with(&mut kind);
        Ok(kind)
    }
}

/// A spec with these ranges and all defaults.
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
        local_ranges_checked: false,
        etcd: None,
    }
}
