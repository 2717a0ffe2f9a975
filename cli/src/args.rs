//! The command line as values.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args as ClapArgs, Parser, Subcommand, ValueEnum};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use crate::connection::Connection;
use crate::gate_flags::GateFlags;
use crate::kinds::{self, GenerateKind, StandaloneCommand};
use crate::output::OutputFlags;
use crate::rollback_targets::RollbackTargets;
use crate::{help, value};

/// Change a live cluster's pod network, node by node, while it carries traffic.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "kubectl-replumb",
    bin_name = "kubectl replumb",
    version,
    after_help = help::EXIT_CODES
)]
pub struct Args {
    /// The cluster and the user.
    #[command(flatten)]
    pub connection: Connection,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Clone, Debug, Subcommand)]
pub enum Command {
    /// Check prerequisites. Failures first. Changes nothing on any node.
    #[command(after_help = help::PREFLIGHT_EXAMPLES)]
    Preflight(Judgement),
    /// Print the plan: every action on every object, node by node, and failed checks. Changes nothing on any node.
    #[command(after_help = help::PLAN_EXAMPLES)]
    Plan(Plan),
    /// Write what the checks read to a file, without secrets: a snapshot for `preflight` and `plan`. Changes nothing on any node.
    #[command(after_help = help::BUNDLE_EXAMPLES)]
    Bundle(Bundle),
    /// Show the plan, ask for confirmation, and start the migration.
    #[command(after_help = help::APPLY_EXAMPLES)]
    Apply(Apply),
    /// Show the progress of a migration, node by node, and what blocks it.
    #[command(after_help = help::STATUS_EXAMPLES)]
    Status(Status),
    /// Finish the nodes in progress, and start no other node.
    #[command(after_help = help::PAUSE_EXAMPLES)]
    Pause(Change),
    /// Resume after a pause, halt or rollback. Timeouts restart.
    #[command(after_help = help::RESUME_EXAMPLES)]
    Resume(Change),
    /// Roll back the nodes in progress, and start no other node. Nodes that are done stay on the new network.
    #[command(after_help = help::ABORT_EXAMPLES)]
    Abort(Change),
    /// Roll back nodes to the old network and their previous state; with --all, roll back the whole migration.
    #[command(after_help = help::ROLLBACK_EXAMPLES)]
    Rollback(Rollback),
    /// Print the manifest of a Migration. Needs no cluster, changes nothing.
    #[command(after_help = help::GENERATE_EXAMPLES)]
    Generate(Generate),
    /// The commands of single kinds, which need no cluster.
    #[command(flatten)]
    OfKind(StandaloneCommand),
    /// Print the versions of this tool and of the agents.
    Version(OutputFlags),
}

impl Command {
    /// The snapshot that the command judges instead of a cluster.
    pub fn snapshot(&self) -> Option<&Path> {
        match self {
            Self::Preflight(judgement) | Self::Plan(Plan { judgement, .. }) => judgement.snapshot.as_deref(),
            Self::Bundle(_)
            | Self::Apply(_)
            | Self::Status(_)
            | Self::Pause(_)
            | Self::Resume(_)
            | Self::Abort(_)
            | Self::Rollback(_)
            | Self::Generate(_)
            | Self::OfKind(_)
            | Self::Version(_) => None,
        }
    }
}

/// `plan`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Plan {
    /// Run the whole migration in memory and print what would happen, and when: nodes, evictions in order, refusals by budgets,
    /// missing pods of workloads, pods without a place. Needs flannelToCalico.
    #[arg(long)]
    pub simulate: bool,
    /// The cluster and the desired migration. Last, as in `PlanArguments`.
    #[command(flatten)]
    pub judgement: Judgement,
}

/// `preflight` and `plan`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Judgement {
    /// Judge the cluster of this snapshot (YAML or JSON), without a connection to any cluster. `-` is standard input.
    #[arg(long, value_name = "FILE")]
    pub snapshot: Option<PathBuf>,
    /// The desired migration and output options. Last, as in `PlanArguments`.
    #[command(flatten)]
    pub look: PlanArguments,
}

/// `bundle`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Bundle {
    /// The new file.
    #[arg(id = "bundle", value_name = "FILE")]
    pub path: PathBuf,
    /// Replace names of nodes, of tenants' namespaces and objects, and of their labels, images and domains.
    #[arg(long)]
    pub redact: bool,
    /// The desired migration and output options. Last, as in `PlanArguments`.
    #[command(flatten)]
    pub look: PlanArguments,
}

/// The common options of `preflight`, `plan`, `bundle` and `apply`.
#[derive(Clone, Debug, ClapArgs)]
pub struct PlanArguments {
    /// Name of the Migration. May be omitted if there is none, one, or one in progress.
    pub name: Option<String>,
    /// Timeout of the wait for checks and plan.
    #[arg(long, value_name = "DURATION", default_value = "2m", value_parser = value::wait)]
    pub timeout: Duration,
    /// Output options.
    #[command(flatten)]
    pub shown: OutputFlags,
    /// The desired migration. Last, because later options would be listed below the last of its headings.
    #[command(flatten)]
    pub wanted: RequestFlags,
}

/// `apply`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Apply {
    /// Start only if the plan has this hash. `kubectl replumb plan` prints the hash.
    #[arg(long, value_name = "HASH", value_parser = value::plan_hash)]
    pub plan_hash: Option<String>,
    /// Do not ask for confirmation.
    #[arg(long, short)]
    pub yes: bool,
    /// Watch the migration until it ends, as `status --watch` does.
    #[arg(long, short)]
    pub watch: bool,
    /// The desired migration and output options. Last, as in `Look`.
    #[command(flatten)]
    pub look: PlanArguments,
}

/// `status`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Status {
    /// Name of the Migration. May be omitted if there is one, or one in progress.
    pub name: Option<String>,
    /// Watch the migration until it ends.
    #[arg(long, short)]
    pub watch: bool,
    /// With --watch: exit with code 1 after this time.
    #[arg(long, value_name = "DURATION", value_parser = value::wait, requires = "watch")]
    pub timeout: Option<Duration>,
    /// Output options.
    #[command(flatten)]
    pub shown: OutputFlags,
}

/// `rollback`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Rollback {
    /// The nodes or Services.
    #[command(flatten)]
    pub targets: RollbackTargets,
    /// Name of the Migration. May be omitted if there is one, or one in progress.
    #[arg(long, value_name = "NAME")]
    pub migration: Option<String>,
    /// Do not ask for confirmation.
    #[arg(long, short)]
    pub yes: bool,
    /// Wait until the rollback is complete.
    #[arg(long, short)]
    pub wait: bool,
    /// Timeout of the wait for the coordinator to accept the change.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = value::wait)]
    pub timeout: Duration,
    /// Output options.
    #[command(flatten)]
    pub shown: OutputFlags,
}

/// `pause`, `resume` and `abort`.
#[derive(Clone, Debug, ClapArgs)]
pub struct Change {
    /// Name of the Migration. May be omitted if there is one, or one in progress.
    pub name: Option<String>,
    /// Watch the migration, as `status --watch` does.
    #[arg(long, short)]
    pub wait: bool,
    /// Timeout of the wait for the coordinator to accept the change.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = value::wait)]
    pub timeout: Duration,
    /// Output options.
    #[command(flatten)]
    pub shown: OutputFlags,
}

/// `generate`.
#[derive(Clone, Debug, ClapArgs)]
#[command(disable_help_subcommand = true)]
pub struct Generate {
    /// The kind of the manifest.
    #[command(subcommand)]
    pub kind: GenerateKind,
}

/// The desired migration, from a file, from Calico's variables and from flags. Flags win over variables, and variables over the
/// file.
#[derive(Clone, Debug, Default, ClapArgs)]
pub struct RequestFlags {
    /// File with one Migration, YAML or JSON; `-` is standard input. `spec.desired` in the file is ignored.
    #[arg(long = "filename", short = 'f', value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Options of each kind.
    #[command(flatten)]
    pub kinds: kinds::Flags,
    /// Options of rollout and drain.
    #[command(flatten)]
    pub rollout: RolloutFlags,
    /// Limits of traffic loss.
    #[command(flatten)]
    pub gates: GateFlags,
}

/// Options of rollout and drain.
#[derive(Clone, Debug, Default, PartialEq, ClapArgs)]
#[command(next_help_heading = "Rollout")]
pub struct RolloutFlags {
    /// Nodes that may be unavailable at the same time: a number, or a percentage rounded up. Default 1.
    #[arg(long, value_name = "N|N%", value_parser = value::max_unavailable)]
    pub max_unavailable: Option<IntOrString>,
    /// Number of canary nodes, which are migrated before all others.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub canary: Option<u32>,
    /// How long the canary nodes must be done before the others start.
    #[arg(long, value_name = "DURATION", value_parser = value::seconds, requires = "canary")]
    pub canary_soak: Option<u32>,
    /// Pause between the end of one node and the start of the next.
    #[arg(long, value_name = "DURATION", value_parser = value::seconds)]
    pub interval: Option<u32>,
    /// Timeout of one step of one node, after which the rollout halts. Default 10m.
    #[arg(long, value_name = "DURATION", value_parser = value::seconds)]
    pub step_timeout: Option<u32>,
    /// Timeout of the drain of one node. Default 15m.
    #[arg(long, value_name = "DURATION", value_parser = value::seconds)]
    pub drain_timeout: Option<u32>,
    /// Grace period of evicted pods. Default: the grace period of each pod.
    #[arg(long, value_name = "DURATION", value_parser = value::grace_period)]
    pub grace_period: Option<u32>,
    /// Reaction to a drain that exceeds its timeout. Default Pause.
    #[arg(long, value_enum, ignore_case = true)]
    pub on_blocked: Option<OnBlocked>,
    /// Evict pods with emptyDir volumes. Their data is lost.
    #[arg(long, value_name = "BOOL", value_parser = value::truth, num_args = 0..=1, require_equals = true,
        default_missing_value = "true")]
    pub delete_emptydir_data: Option<bool>,
    /// Evict pods without a controller. They are not recreated.
    #[arg(long, value_name = "BOOL", value_parser = value::truth, num_args = 0..=1, require_equals = true,
        default_missing_value = "true")]
    pub force: Option<bool>,
}

/// The reaction to a drain that exceeds its timeout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnBlocked {
    /// Halt; the node stays cordoned on the old network until you decide.
    #[value(name = "Pause")]
    Pause,
    /// Continue to wait.
    #[value(name = "Wait")]
    Wait,
    /// Uncordon the node, and try again after all other nodes.
    #[value(name = "Skip")]
    Skip,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_definition_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn general_options_have_no_heading() {
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
    fn switches_can_be_set_to_false() {
        let read = |line: &[&str]| {
            let args = Args::try_parse_from([&["kubectl-replumb", "plan"], line].concat()).unwrap();
            let Command::Plan(wanted) = args.command else {
                panic!("not a plan")
            };
            wanted.judgement.look.wanted.rollout.force
        };
        assert_eq!(read(&[]), None);
        assert_eq!(read(&["--force"]), Some(true));
        assert_eq!(read(&["--force=false"]), Some(false));
    }
}
