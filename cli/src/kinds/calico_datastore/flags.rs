//! What was typed after `datastore`.

#![expect(
    clippy::doc_markdown,
    reason = "these are help texts: a terminal shows the backticks"
)]

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::args::Shown;
use crate::{help, value};

/// `datastore`.
#[derive(Clone, Debug, Args)]
#[command(disable_help_subcommand = true)]
pub struct Datastore {
    /// What is to be done.
    #[command(subcommand)]
    pub verb: Verb,
}

/// What is to be done with both stores.
#[derive(Clone, Debug, Subcommand)]
pub enum Verb {
    /// Convert everything in memory and report what cannot be, and what becomes another name. Changes nothing.
    #[command(after_help = help::DATASTORE_DRY_RUN_EXAMPLES)]
    DryRun(DryRun),
    /// Pause Calico, write everything to etcd v3 and read it again. Goes on where a killed one stopped.
    #[command(after_help = help::DATASTORE_START_EXAMPLES)]
    Start(Start),
    /// Let Calico work with etcd v3: once every calico-node runs v3. Only what was read again is opened.
    Complete(Complete),
    /// Let Calico work with etcd v2 again, and make etcd v3 as it was before.
    Abort(Abort),
    /// Show which store Calico works with, and how far a conversion is. Changes nothing.
    #[command(after_help = help::DATASTORE_STATUS_EXAMPLES)]
    Status(Look),
    /// Write everything of Calico's in both stores into one file with a checksum. Changes nothing.
    Export(Look),
}

/// What every verb has.
#[derive(Clone, Debug, Args)]
pub struct Look {
    /// Where both stores are.
    #[command(flatten)]
    pub stores: StoreFlags,
    /// Where reports and backups are written.
    #[command(flatten)]
    pub folder: Folder,
    /// How it is shown.
    #[command(flatten)]
    pub shown: Shown,
}

/// `dry-run`.
#[derive(Clone, Debug, Args)]
pub struct DryRun {
    /// As `start` has it: something of Calico's in etcd v3 does not stand against it.
    #[arg(long)]
    pub ignore_v3_data: bool,
    /// Where both stores are, and how it is shown.
    #[command(flatten)]
    pub look: Look,
}

/// Where reports and backups are written.
#[derive(Clone, Debug, Args)]
pub struct Folder {
    /// Folder of reports and backups.
    #[arg(long, value_name = "DIR", default_value = "./calico-datastore")]
    pub output_dir: PathBuf,
}

/// What every change has.
#[derive(Clone, Debug, Args)]
pub struct Change {
    /// Do not ask.
    #[arg(long, short)]
    pub yes: bool,
    /// Which stores, and how it is shown.
    #[command(flatten)]
    pub look: Look,
}

/// `start`.
#[derive(Clone, Debug, Args)]
pub struct Start {
    /// Go on although something of Calico's is in etcd v3: equal keys are written over, profiles of namespaces and policies of Kubernetes
    /// are deleted (calico-kube-controllers of v3 writes them anew), others stay. What was there is kept aside; `abort` puts it back.
    #[arg(long)]
    pub ignore_v3_data: bool,
    /// How long etcd v2 is left alone after the pause: what CNI plugins had begun before ends.
    #[arg(long, value_name = "DURATION", default_value = "15s", value_parser = value::seconds)]
    pub settle: u32,
    /// How long the pause may last, the upgrade of every calico-node included: no new pod gets a network meanwhile. After that it is
    /// taken back.
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = value::wait)]
    pub pause_limit: Duration,
    /// Do not stay when everything is written. Nobody takes it back then when --pause-limit is over, but whoever runs `start` again.
    #[arg(long)]
    pub no_hold: bool,
    /// Keys of one transaction; etcd takes 128 changes and as many conditions by default.
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(3..=126), hide_short_help = true)]
    pub batch: u16,
    /// What every change has.
    #[command(flatten)]
    pub change: Change,
}

/// `complete`.
#[derive(Clone, Debug, Args)]
pub struct Complete {
    /// Go on although etcd v2 says something else than what was converted: those changes are lost.
    #[arg(long)]
    pub despite_changes: bool,
    /// Go on although calico-kube-controllers of v3 have not written all that the conversion leaves to them: new connections of pods whose
    /// profile is missing are dropped, and policies that are missing hold nothing back, until they have.
    #[arg(long)]
    pub despite_missing: bool,
    /// What every change has.
    #[command(flatten)]
    pub change: Change,
}

/// `abort`.
#[derive(Clone, Debug, Args)]
pub struct Abort {
    /// Also after `complete`: etcd v3 is closed first. Pods that got their network since then lose it.
    #[arg(long)]
    pub after_completion: bool,
    /// No calico-node of v3 runs any more, on no node: nothing is left in etcd v3 for their sake.
    #[arg(long)]
    pub no_nodes_of_v3: bool,
    /// What every change has.
    #[command(flatten)]
    pub change: Change,
}

/// Where both stores are. What is not said here is read from the files, then from the environment.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Stores")]
pub struct StoreFlags {
    /// Endpoints of the etcd of Calico v2, such as https://10.0.0.1:2379, with commas between them; else APIV1_ETCD_ENDPOINTS.
    #[arg(long, value_name = "URLS", value_delimiter = ',')]
    pub v2_endpoints: Vec<String>,
    /// Certificates that its own is signed by; else APIV1_ETCD_CA_CERT_FILE.
    #[arg(long, value_name = "FILE")]
    pub v2_ca_cert_file: Option<PathBuf>,
    /// The certificate that is shown to it; else APIV1_ETCD_CERT_FILE.
    #[arg(long, value_name = "FILE")]
    pub v2_cert_file: Option<PathBuf>,
    /// The key of that; else APIV1_ETCD_KEY_FILE.
    #[arg(long, value_name = "FILE")]
    pub v2_key_file: Option<PathBuf>,
    /// calicoctl's file about it, which has user name and password as well.
    #[arg(long, value_name = "FILE")]
    pub apiconfigv1: Option<PathBuf>,
    /// Endpoints of the etcd of Calico v3; else ETCD_ENDPOINTS. May be the same.
    #[arg(long, value_name = "URLS", value_delimiter = ',')]
    pub v3_endpoints: Vec<String>,
    /// Certificates that its own is signed by; else ETCD_CA_CERT_FILE.
    #[arg(long, value_name = "FILE")]
    pub v3_ca_cert_file: Option<PathBuf>,
    /// The certificate that is shown to it; else ETCD_CERT_FILE.
    #[arg(long, value_name = "FILE")]
    pub v3_cert_file: Option<PathBuf>,
    /// The key of that; else ETCD_KEY_FILE.
    #[arg(long, value_name = "FILE")]
    pub v3_key_file: Option<PathBuf>,
    /// calicoctl's file about it, which has user name and password as well.
    #[arg(long, value_name = "FILE")]
    pub apiconfigv3: Option<PathBuf>,
}
