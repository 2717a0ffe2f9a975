//! `generate pod-cidr`: the manifest of a podCidr migration, from a kops cluster spec or from two ranges. Needs no cluster.

use std::path::{Path, PathBuf};

use api::Kind;
use api::migration::PodCidr;
use clap::{ArgGroup, Args, Subcommand};
use ipnet::IpNet;
use pod_cidr::kops;

use super::error::RangeError;
use super::flags::{EtcdFlags, Mode, PodFlags, between};
use super::help;
use super::manifest::{self, Hop, Origin};
use super::route::{End, RangeChange};
use crate::error::CliError;
use crate::file;
use crate::kinds::kind::GenerateManifest;
use crate::value;

/// The subcommands of `generate`.
#[derive(Clone, Debug, Subcommand)]
pub enum Manifest {
    /// A Migration that moves pods to a new range (Calico), from a kops cluster spec or from two ranges.
    #[command(after_help = help::GENERATE_POD_CIDR_EXAMPLES)]
    PodCidr(PodCidrArguments),
}

impl GenerateManifest for Manifest {
    fn text(&self) -> Result<String, CliError> {
        let Self::PodCidr(arguments) = self;
        arguments.text()
    }
}

/// `generate pod-cidr`.
#[derive(Clone, Debug, Args)]
#[command(
    group(ArgGroup::new("source").required(true).args(["kops", "from"])),
    override_usage = "kubectl replumb generate pod-cidr --kops FILE [OPTIONS]\n       \
                      kubectl replumb generate pod-cidr --from RANGE --to RANGE [OPTIONS]"
)]
pub struct PodCidrArguments {
    /// Output of `kops get cluster NAME -o yaml --full` (or json); `-` is standard input. Pods move from spec.nonMasqueradeCIDR, which was
    /// the range of the IPPool before kops 1.7, to spec.kubeControllerManager.clusterCIDR.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "to"])]
    kops: Option<PathBuf>,
    /// Range of the IPPool that pods move from.
    #[arg(long, value_name = "RANGE", value_parser = value::range, requires = "to")]
    from: Option<IpNet>,
    /// Range of the IPPool that pods move to.
    #[arg(long, value_name = "RANGE", value_parser = value::range, requires = "from")]
    to: Option<IpNet>,
    /// Temporary range, if one range is within the other: two Migrations are printed, one into it and one out of it. The range
    /// must be unused in your networks.
    #[arg(long, value_name = "RANGE", value_parser = value::range)]
    via: Option<IpNet>,
    /// Print only the first or the second of two Migrations, for `kubectl replumb plan -f` and `apply -f`, which accept one.
    #[arg(long, value_name = "1|2", value_parser = clap::value_parser!(u8).range(1..=2), requires = "via")]
    hop: Option<u8>,
    /// Name of the Migration; two Migrations get the suffixes -hop-1 and -hop-2.
    #[arg(long, value_name = "NAME", value_parser = value::object_name, default_value = Kind::PodCidr.default_name())]
    name: String,
    /// Prefix length of the blocks of the new IPPool: 20 to 32, or 116 to 128 for IPv6. Default: as in the old IPPool.
    #[arg(long, value_name = "LENGTH", value_parser = value::pool_block_size)]
    block_size: Option<u8>,
    /// Order in which pods move. Default by-workload.
    #[arg(long, value_enum, ignore_case = true)]
    mode: Option<Mode>,
    /// How long the empty old IPPool is kept; a rollback is possible until then. Default 24h.
    #[arg(long, value_name = "DURATION", value_parser = value::seconds)]
    soak: Option<u32>,
    /// Options of pods.
    #[command(flatten)]
    pods: PodFlags,
    /// The connection to Calico's etcd.
    #[command(flatten)]
    etcd: EtcdFlags,
}

impl PodCidrArguments {
    /// The manifests.
    pub fn text(&self) -> Result<String, CliError> {
        let (journey, cluster) = self.journey()?;
        let hops = journey.hops()?;
        let mut ranges = vec![("from", journey.from.clone())];
        ranges.extend(journey.via.map(|range| {
            let name = "--via".to_owned();
            ("via", End { name, range })
        }));
        ranges.push(("to", journey.to.clone()));
        let origin = Origin {
            note: cluster.is_some().then(|| {
                "The old IPPool is that of kops before 1.7, with the range spec.nonMasqueradeCIDR. Without an IPPool of this \
                 range, the checks refuse the migration."
                    .to_owned()
            }),
            cluster: cluster.filter(|name| !name.is_empty()),
            ranges,
        };
        match hops.as_slice() {
            [(first, between), (_, second)] => {
                let hops = [
                    self.hop("-hop-1", *first, *between),
                    self.hop("-hop-2", *between, *second),
                ];
                value::object_name(&hops[1].name).map_err(|needed| RangeError::Ranges {
                    errors: vec![format!(
                        "--name: found {:?} for the second hop, {needed}",
                        hops[1].name
                    )],
                    hint: None,
                })?;
                manifest::two(&origin, &hops, self.hop.map(|hop| usize::from(hop) - 1))
            }
            _ => manifest::one(&origin, &self.hop("", journey.from.range, journey.to.range)),
        }
    }

    /// The requested change of the range, and the name of the cluster from kops.
    fn journey(&self) -> Result<(RangeChange, Option<String>), CliError> {
        let end = |name: String, range: IpNet| End { name, range };
        let journey = |from: End, to: End, others: Vec<End>| RangeChange {
            from,
            to,
            via: self.via,
            others,
            block_size: self.block_size,
        };
        if let (Some(from), Some(to)) = (self.from, self.to) {
            let (from, to) = (end("--from".to_owned(), from), end("--to".to_owned(), to));
            return Ok((journey(from, to, Vec::new()), None));
        }
        // Without both ranges, the parser accepts only a file.
        let path = self.kops.as_deref().unwrap_or(Path::new("-"));
        let name = path.display().to_string();
        let failed = |errors: Vec<String>| CliError::File {
            file: name.clone(),
            why: errors.join(&format!("\n       file {name}: ")),
        };
        let text = file::text(path)?;
        let documents = file::documents(&text).map_err(|error| failed(vec![error]))?;
        let found = kops::read(&documents).map_err(failed)?;
        let source = if path == Path::new("-") {
            "standard input"
        } else {
            &name
        };
        let named = |field: &str| format!("{field} of {source}");
        let others = found
            .others
            .into_iter()
            .map(|(field, range)| end(named(&field), range))
            .collect();
        let (from, to) = (end(named(kops::FROM), found.from), end(named(kops::TO), found.to));
        Ok((journey(from, to, others), Some(found.name)))
    }

    fn hop(&self, suffix: &str, from: IpNet, to: IpNet) -> Hop {
        let mut pod_cidr = PodCidr {
            block_size: self.block_size,
            soak_seconds: self.soak,
            ..between(from, to)
        };
        pod_cidr.mode = self.mode.map_or(pod_cidr.mode, Mode::wire);
        self.pods.over(&mut pod_cidr);
        self.etcd.merged_with(&mut pod_cidr);
        Hop {
            name: format!("{}{suffix}", self.name),
            pod_cidr,
        }
    }
}

#[cfg(test)]
mod tests;
