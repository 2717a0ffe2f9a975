//! The command line of `datastore`.

#![expect(
    clippy::doc_markdown,
    reason = "these are help texts: a terminal shows the backticks"
)]

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::help;
use crate::output::OutputFlags;
use crate::value;

/// The commands of this kind.
#[derive(Clone, Debug, Subcommand)]
pub enum Standalone {
    /// Convert Calico's data from v2 (etcd v2) to v3 (etcd v3). Uses only both etcds, no cluster.
    Datastore(Datastore),
}

/// `datastore`.
#[derive(Clone, Debug, Args)]
#[command(disable_help_subcommand = true)]
pub struct Datastore {
    /// The subcommand.
    #[command(subcommand)]
    pub verb: Verb,
}

/// The subcommands.
#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// Convert all data in memory, and report values that cannot be converted and names that change. Changes nothing.
    #[command(after_help = help::DATASTORE_DRY_RUN_EXAMPLES)]
    DryRun(DryRun),
    /// Pause Calico, write all data to etcd v3 and read it back. Continues a conversion that was killed.
    #[command(after_help = help::DATASTORE_START_EXAMPLES)]
    Start(Start),
    /// Switch Calico to etcd v3, once every calico-node runs v3. Only verified data is opened.
    Complete(Complete),
    /// Switch Calico back to etcd v2, and restore the previous state of etcd v3.
    Abort(Abort),
    /// Show the store that Calico uses, and the progress of a conversion. Changes nothing.
    #[command(after_help = help::DATASTORE_STATUS_EXAMPLES)]
    Status(StoreArguments),
    /// Write Calico's data of both stores into one file with a checksum. Changes nothing.
    Export(StoreArguments),
}

/// Options of every subcommand.
#[derive(Clone, Debug, Args)]
pub struct StoreArguments {
    /// The connections to both stores.
    #[command(flatten)]
    pub stores: StoreFlags,
    /// The folder of reports and backups.
    #[command(flatten)]
    pub folder: Folder,
    /// Output options.
    #[command(flatten)]
    pub shown: OutputFlags,
}

/// `dry-run`.
#[derive(Clone, Debug, Args)]
pub struct DryRun {
    /// As for `start`: existing Calico data in etcd v3 is no reason to refuse.
    #[arg(long)]
    pub ignore_v3_data: bool,
    /// The connections to both stores, and output options.
    #[command(flatten)]
    pub look: StoreArguments,
}

/// The folder of reports and backups.
#[derive(Clone, Debug, Args)]
pub struct Folder {
    /// Directory for reports and backups.
    #[arg(long, value_name = "DIR", default_value = "./calico-datastore")]
    pub output_dir: PathBuf,
}

/// Options of every subcommand that changes data.
#[derive(Clone, Debug, Args)]
pub struct Change {
    /// Do not ask for confirmation.
    #[arg(long, short)]
    pub yes: bool,
    /// The connections to both stores, and output options.
    #[command(flatten)]
    pub look: StoreArguments,
}

/// `start`.
#[derive(Clone, Debug, Args)]
pub struct Start {
    /// Continue although etcd v3 has Calico data: equal keys are overwritten, profiles of namespaces and Kubernetes policies are
    /// deleted (calico-kube-controllers of v3 recreates them), other keys stay. The previous data is backed up, and restored by
    /// `abort`.
    #[arg(long)]
    pub ignore_v3_data: bool,
    /// Time between the pause and the first read of etcd v2, so that running CNI plugins can finish.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = value::seconds)]
    pub settle: u32,
    /// Longest pause, including the upgrade of every calico-node: new pods get no network during the pause. The conversion is
    /// rolled back after this time.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = value::wait)]
    pub pause_limit: Duration,
    /// Exit once all data is written. The conversion is then not rolled back after --pause-limit, unless `start` is run again.
    #[arg(long)]
    pub no_hold: bool,
    /// Keys per transaction; by default, etcd accepts 128 changes and as many conditions.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(3..=126), hide_short_help = true)]
    pub batch: u16,
    /// Options of every change.
    #[command(flatten)]
    pub change: Change,
}

/// `complete`.
#[derive(Clone, Debug, Args)]
pub struct Complete {
    /// Continue although etcd v2 has changed since the conversion: those changes are lost.
    #[arg(long)]
    pub despite_changes: bool,
    /// Continue although calico-kube-controllers of v3 have not written all their objects yet: until then, new connections of
    /// pods without a profile are dropped, and missing policies do not apply.
    #[arg(long)]
    pub despite_missing: bool,
    /// Options of every change.
    #[command(flatten)]
    pub change: Change,
}

/// `abort`.
#[derive(Clone, Debug, Args)]
pub struct Abort {
    /// Also abort after `complete`: etcd v3 is closed first. Pods that were created since then lose their network.
    #[arg(long)]
    pub after_completion: bool,
    /// Confirm that no calico-node of v3 runs on any node: nothing is kept in etcd v3 for them.
    #[arg(long)]
    pub no_nodes_of_v3: bool,
    /// Options of every change.
    #[command(flatten)]
    pub change: Change,
}

/// The connections to both stores. Unset options are read from the files, then from the environment.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Stores")]
pub struct StoreFlags {
    /// Endpoints of the etcd of Calico v2, such as https://10.0.0.1:2379, separated by commas. Default: APIV1_ETCD_ENDPOINTS.
    #[arg(long, value_name = "URLS", value_delimiter = ',')]
    pub v2_endpoints: Vec<String>,
    /// File with the CA certificates of etcd v2. Default: APIV1_ETCD_CA_CERT_FILE.
    #[arg(long, value_name = "FILE")]
    pub v2_ca_cert_file: Option<PathBuf>,
    /// File with the client certificate for etcd v2. Default: APIV1_ETCD_CERT_FILE.
    #[arg(long, value_name = "FILE")]
    pub v2_cert_file: Option<PathBuf>,
    /// File with the client key for etcd v2. Default: APIV1_ETCD_KEY_FILE.
    #[arg(long, value_name = "FILE")]
    pub v2_key_file: Option<PathBuf>,
    /// Configuration file of calicoctl for etcd v2, which may have user name and password.
    #[arg(long, value_name = "FILE")]
    pub apiconfigv1: Option<PathBuf>,
    /// Endpoints of the etcd of Calico v3, which may be the same. Default: ETCD_ENDPOINTS.
    #[arg(long, value_name = "URLS", value_delimiter = ',')]
    pub v3_endpoints: Vec<String>,
    /// File with the CA certificates of etcd v3. Default: ETCD_CA_CERT_FILE.
    #[arg(long, value_name = "FILE")]
    pub v3_ca_cert_file: Option<PathBuf>,
    /// File with the client certificate for etcd v3. Default: ETCD_CERT_FILE.
    #[arg(long, value_name = "FILE")]
    pub v3_cert_file: Option<PathBuf>,
    /// File with the client key for etcd v3. Default: ETCD_KEY_FILE.
    #[arg(long, value_name = "FILE")]
    pub v3_key_file: Option<PathBuf>,
    /// Configuration file of calicoctl for etcd v3, which may have user name and password.
    #[arg(long, value_name = "FILE")]
    pub apiconfigv3: Option<PathBuf>,
}
