//! What was typed, as values.

#![expect(
    clippy::doc_markdown,
    reason = "these are help texts: a terminal shows the backticks"
)]

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::gate_flags::GateFlags;
use crate::kinds::calico_datastore::flags::Datastore;
use crate::kinds::calico_datastore::migration::generate::CalicoObjectsArguments;
use crate::kinds::pod_cidr::generate::PodCidrArguments;
use crate::kinds::{flannel_to_calico, pod_cidr, service_cidr};
use crate::{help, value};

/// Change a live cluster's pod network, node by node, while it carries traffic.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "kubectl-replumb",
    bin_name = "kubectl replumb",
    version,
    after_help = help::EXIT_CODES,
    disable_help_subcommand = true
)]
pub struct Args {
    /// Which cluster, as whom.
    #[command(flatten)]
    pub connection: Connection,
    /// What is to be done.
    #[command(subcommand)]
    pub command: Command,
}

/// Which cluster, as whom.
#[derive(Clone, Debug, ClapArgs)]
#[command(next_help_heading = "Cluster")]
pub struct Connection {
    /// The kubeconfig file; else KUBECONFIG, else ~/.kube/config, else the pod's own ServiceAccount.
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig.
    #[arg(long, global = true, value_name = "NAME")]
    pub context: Option<String>,
    /// Cluster of the kubeconfig.
    #[arg(long, global = true, value_name = "NAME")]
    pub cluster: Option<String>,
    /// User of the kubeconfig.
    #[arg(long, global = true, value_name = "NAME")]
    pub user: Option<String>,
    /// User to act as.
    #[arg(long = "as", global = true, value_name = "USER")]
    pub impersonate: Option<String>,
    /// Group to act as; may be given several times.
    #[arg(long = "as-group", global = true, value_name = "GROUP")]
    pub impersonate_groups: Vec<String>,
    /// Namespace that replumb is installed in. Migrations themselves have no namespace.
    #[arg(long, short, global = true, value_name = "NAMESPACE", default_value = api::names::NAMESPACE,
        value_parser = value::namespace)]
    pub namespace: String,
    /// How long one request to the API server may take.
    #[arg(long, global = true, value_name = "DURATION", default_value = "10s", value_parser = value::wait)]
    pub request_timeout: Duration,
}

/// What is to be done.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Judge every prerequisite and print the checks, refusals first. Changes nothing on any node.
    #[command(after_help = help::PREFLIGHT_EXAMPLES)]
    Preflight(Look),
    /// Print every action on every object, node by node, then what blocks it. Changes nothing on any node.
    #[command(after_help = help::PLAN_EXAMPLES)]
    Plan(Look),
    /// Show the plan, ask, and start the migration.
    #[command(after_help = help::APPLY_EXAMPLES)]
    Apply(Apply),
    /// Show how far a migration is, node by node, and what blocks it.
    #[command(after_help = help::STATUS_EXAMPLES)]
    Status(Status),
    /// Start no other node. Nodes in work are finished first: none is left half-way.
    #[command(after_help = help::PAUSE_EXAMPLES)]
    Pause(Change),
    /// Go on after a pause, a halt or a way back; deadlines count anew.
    #[command(after_help = help::RESUME_EXAMPLES)]
    Resume(Change),
    /// Take the nodes in work back to the old network and start no other. Nodes that are done stay.
    #[command(after_help = help::ABORT_EXAMPLES)]
    Abort(Change),
    /// Take nodes back to the old network, as they were before; with --all everything.
    #[command(after_help = help::ROLLBACK_EXAMPLES)]
    Rollback(Rollback),
    /// Write the manifest of a Migration. Asks no cluster, changes nothing.
    #[command(after_help = help::GENERATE_EXAMPLES)]
    Generate(Generate),
    /// Calico's data from v2 (etcd v2) to v3 (etcd v3), by both etcds alone: asks no cluster.
    Datastore(Datastore),
    /// Print the version of this tool, and of the agents where there are any.
    Version(Shown),
}

/// `preflight` and `plan`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Look {
    /// Name of the Migration; not needed when there is none, one, or one that is under way.
    pub name: Option<String>,
    /// How long to wait for the checks and the plan.
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = value::wait)]
    pub timeout: Duration,
    /// How it is shown.
    #[command(flatten)]
    pub shown: Shown,
    /// What is asked for. Last: what comes after it stands below the last of its headings.
    #[command(flatten)]
    pub wanted: Wanted,
}

/// `apply`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Apply {
    /// Start only if the plan has this hash (`kubectl replumb plan`).
    #[arg(long, value_name = "HASH", value_parser = value::plan_hash)]
    pub plan_hash: Option<String>,
    /// Do not ask.
    #[arg(long, short)]
    pub yes: bool,
    /// Follow it to its end, as `status --watch` does.
    #[arg(long, short)]
    pub watch: bool,
    /// Which Migration, and how it is shown. Last, as in `Look`.
    #[command(flatten)]
    pub look: Look,
}

/// `status`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Status {
    /// Name of the Migration; not needed when there is one, or one that is under way.
    pub name: Option<String>,
    /// Follow it to its end.
    #[arg(long, short)]
    pub watch: bool,
    /// With --watch: give up after this time with exit code 1.
    #[arg(long, value_name = "DURATION", value_parser = value::wait, requires = "watch")]
    pub timeout: Option<Duration>,
    /// How it is shown.
    #[command(flatten)]
    pub shown: Shown,
}

/// `rollback`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Rollback {
    /// Nodes to take back.
    #[arg(value_name = "NODE", required_unless_present_any = ["all", "services"], conflicts_with_all = ["all", "services"])]
    pub nodes: Vec<String>,
    /// Every node, and then everything that was written for the cluster.
    #[arg(long)]
    pub all: bool,
    /// Of a change of the Services' range: Services that take their old addresses back and keep them, with commas between them.
    #[arg(long = "service", value_name = "NAMESPACE/NAME", value_delimiter = ',', conflicts_with = "all",
        value_parser = value::namespaced_name)]
    pub services: Vec<String>,
    /// Name of the Migration; not needed when there is one, or one that is under way.
    #[arg(long, value_name = "NAME")]
    pub migration: Option<String>,
    /// Do not ask.
    #[arg(long, short)]
    pub yes: bool,
    /// Follow it until the nodes, or everything, are back.
    #[arg(long, short)]
    pub wait: bool,
    /// How long to wait until the coordinator has taken notice.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = value::wait)]
    pub timeout: Duration,
    /// How it is shown.
    #[command(flatten)]
    pub shown: Shown,
}

/// `pause`, `resume` and `abort`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Change {
    /// Name of the Migration; not needed when there is one, or one that is under way.
    pub name: Option<String>,
    /// Follow it as `status --watch` does.
    #[arg(long, short)]
    pub wait: bool,
    /// How long to wait until the coordinator has taken notice.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = value::wait)]
    pub timeout: Duration,
    /// How it is shown.
    #[command(flatten)]
    pub shown: Shown,
}

/// `generate`.
#[derive(Clone, Debug, ClapArgs)]
#[command(disable_help_subcommand = true)]
pub struct Generate {
    /// Of which kind.
    #[command(subcommand)]
    pub kind: GenerateKind,
}

/// Of which kind a manifest is written.
#[derive(Clone, Debug, Subcommand)]
pub enum GenerateKind {
    /// Another range for the pods of a cluster with Calico, from what kops says or from two ranges.
    #[command(after_help = help::GENERATE_POD_CIDR_EXAMPLES)]
    PodCidr(PodCidrArguments),
    /// What of Calico's manifest for v3 has to be in the cluster before its datastore is converted: all but what that migration writes
    /// itself, and Secrets.
    #[command(after_help = help::GENERATE_CALICO_OBJECTS_EXAMPLES)]
    CalicoV3Objects(CalicoObjectsArguments),
}

/// How the answer is shown.
#[derive(Clone, Copy, Debug, ClapArgs)]
pub struct Shown {
    /// For people, or for programs.
    #[arg(long, short, value_name = "FORMAT", value_enum, default_value_t = Output::Table)]
    pub output: Output,
}

/// How the answer is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// For people.
    Table,
    /// One JSON object.
    Json,
}

/// What is asked for, by file, by Calico's variables or by flags; what is said later in this list wins.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct Wanted {
    /// A file with one Migration, YAML or JSON; `-` is the standard input. Its `desired` is not looked at.
    #[arg(long = "filename", short = 'f', value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Take the variables of Calico's own migration controller: FLANNEL_NETWORK, FLANNEL_DAEMONSET_NAME,
    /// CALICO_DAEMONSET_NAME, CNI_CONFIG_DIR and the others.
    #[arg(long)]
    pub from_env: bool,
    /// What flannel to Calico lets one choose.
    #[command(flatten)]
    pub flannel_to_calico: flannel_to_calico::flags::Flags,
    /// What another range for the pods lets one choose.
    #[command(flatten)]
    pub pod_cidr: pod_cidr::flags::Flags,
    /// What another range for the Services lets one choose.
    #[command(flatten)]
    pub service_cidr: service_cidr::flags::Flags,
    /// What a conversion of Calico's datastore lets one choose.
    #[command(flatten)]
    pub calico_datastore: crate::kinds::calico_datastore::migration::flags::Flags,
    /// How many nodes, how their pods leave.
    #[command(flatten)]
    pub rollout: RolloutFlags,
    /// What traffic may lose.
    #[command(flatten)]
    pub gates: GateFlags,
}

/// How many nodes at a time, which first, how their pods leave.
#[derive(Clone, Debug, Default, PartialEq, ClapArgs)]
#[command(next_help_heading = "Rollout")]
pub struct RolloutFlags {
    /// Nodes that may be out of work at the same time: a number, or a percentage rounded up. Default 1.
    #[arg(long, value_name = "N|N%", value_parser = value::max_unavailable)]
    pub max_unavailable: Option<IntOrString>,
    /// Nodes that go first, alone.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub canary: Option<u32>,
    /// How long those must be done before the others start.
    #[arg(long, value_name = "DURATION", value_parser = value::seconds, requires = "canary")]
    pub canary_soak: Option<u32>,
    /// Pause between the end of one node and the start of the next.
    #[arg(long, value_name = "DURATION", value_parser = value::seconds)]
    pub interval: Option<u32>,
    /// How long one step of one node may take before the rollout halts. Default 10m.
    #[arg(long, value_name = "DURATION", value_parser = value::seconds)]
    pub step_timeout: Option<u32>,
    /// How long the pods of one node may take to leave. Default 15m.
    #[arg(long, value_name = "DURATION", value_parser = value::seconds)]
    pub drain_timeout: Option<u32>,
    /// Grace period that overrides the pods' own.
    #[arg(long, value_name = "DURATION", value_parser = value::grace_period)]
    pub grace_period: Option<u32>,
    /// What happens when pods do not leave in that time. Default Pause.
    #[arg(long, value_enum, ignore_case = true)]
    pub on_blocked: Option<OnBlocked>,
    /// Evict pods with emptyDir volumes: their data is lost.
    #[arg(long, value_name = "BOOL", value_parser = value::truth, num_args = 0..=1, require_equals = true,
        default_missing_value = "true")]
    pub delete_emptydir_data: Option<bool>,
    /// Evict pods that no controller creates again.
    #[arg(long, value_name = "BOOL", value_parser = value::truth, num_args = 0..=1, require_equals = true,
        default_missing_value = "true")]
    pub force: Option<bool>,
}

/// What happens when a drain is blocked past its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnBlocked {
    /// Halt; the node keeps its old network and its cordon until a person decides.
    #[value(name = "Pause")]
    Pause,
    /// Keep waiting.
    #[value(name = "Wait")]
    Wait,
    /// Uncordon the node and try it again after all others.
    #[value(name = "Skip")]
    Skip,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn flags_do_not_contradict_each_other() {
        Args::command().debug_assert();
    }

    #[test]
    fn every_option_stands_below_its_own_heading() {
        let command = Args::command();
        for name in ["preflight", "plan", "apply"] {
            let command = command.find_subcommand(name).unwrap();
            for plain in [
                "timeout",
                "output",
                "file",
                "from_env",
                "yes",
                "plan_hash",
                "watch",
            ] {
                let option = command.get_arguments().find(|option| option.get_id() == plain);
                let heading = option.and_then(|option| option.get_help_heading());
                assert_eq!(heading, None, "{name} --{plain}");
            }
        }
    }

    #[test]
    fn switches_can_be_taken_back() {
        let read = |line: &[&str]| {
            let args = Args::try_parse_from([&["kubectl-replumb", "plan"], line].concat()).unwrap();
            let Command::Plan(look) = args.command else {
                panic!("not a plan")
            };
            look.wanted.rollout.force
        };
        assert_eq!(read(&[]), None);
        assert_eq!(read(&["--force"]), Some(true));
        assert_eq!(read(&["--force=false"]), Some(false));
    }
}
