//! `cargo lab test`: runs every test, the cheapest first, with one count at the end.

mod advisories;
mod background;
mod disk_space;
mod part;
mod place;
mod programs;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum as _;

use background::in_background;
use part::{Part, SMALL};
use place::Run;
use programs::{cargo, cargo_tests, cargo_tests_with, go_tests, run_program};

use super::up::ClusterArguments;
use super::{Ended, interrupted};
use crate::assets::{self, Build};
use crate::cluster::{Cluster, KubeProxy, PodNetwork, Tunnel};
use crate::demo::Tools;
use crate::end_to_end::datastore::Bench;
use crate::end_to_end::{self, Tally};
use crate::progress::Progress;
use crate::scale::Kind;

/// Default milliseconds between two probes of a flow. Probes every 10 ms take half of two slow cores in a lab of
/// three nodes, and then the cluster itself falls behind: kube-proxy processed pods that end 5 s late.
const PROBE_INTERVAL: u64 = 20;
/// The interval in a lab of more nodes: there, probes every 20 ms from all nodes left so little of two cores that a
/// heartbeat arrived between each read of the coordinator and its write.
const PROBE_INTERVAL_OF_MANY: u64 = 100;

/// `cargo lab test`.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// The clusters of the end-to-end cases.
    #[command(flatten)]
    pub cluster: ClusterArguments,
    /// Only these parts. Default: all parts that end within an hour on two cores, built from nothing: not fair,
    /// in-place, gate, crash, wide, storm, strangers and stranger-services.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "PART")]
    pub only: Vec<Part>,
}

/// Runs the tests. After a failed part the other parts still run.
pub async fn run(arguments: Arguments) -> Result<ExitCode> {
    let asked = |part: &Part| {
        if arguments.only.is_empty() {
            part.is_usual()
        } else {
            arguments.only.contains(part)
        }
    };
    let parts: Vec<Part> = Part::ALL.into_iter().filter(asked).collect();
    let progress = Progress::default();
    let run = Arc::new(Run::begin(&arguments.cluster.place.directory, &progress).await?);
    disk_space::check(&parts, &arguments.cluster.place.directory)?;
    let mut tally = Tally::default();
    let mut took = Vec::new();
    for shift in part::shifts(&parts) {
        let work = Box::pin(at_once(shift, &arguments, &run, progress));
        // A part that makes a lab removes the lab when the program is told to end: no other listener may end the program before.
        let ended = if shift.iter().any(|part| part.makes_a_lab()) {
            work.await
        } else {
            tokio::select! {
                ended = work => ended,
                signal = interrupted() => return Err(Ended(signal?).into()),
            }
        };
        for Outcome { part, time, result } in ended? {
            took.push(format!("{part:?} {} s", time.as_secs()));
            match result {
                Ok(counted) => tally.add(counted),
                Err(error) if error.is::<Ended>() => return Err(error),
                Err(error) => {
                    tally.count::<()>(format_args!("{part:?}"), Err(error));
                }
            }
        }
    }
    progress.say(format_args!("done: {}", took.join(", ")));
    for name in &tally.failed {
        println!("FAILED  {name}");
    }
    println!("{} passed, {} failed", tally.passed, tally.failed.len());
    Ok(if tally.failed.is_empty() && tally.passed > 0 {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// Result of a part.
struct Outcome {
    part: Part,
    time: Duration,
    result: Result<Tally>,
}

/// Runs parts of one shift: those that may use idle processor time run beside the others.
async fn at_once(
    shift: &[Part],
    arguments: &Arguments,
    run: &Arc<Run>,
    progress: Progress,
) -> Result<Vec<Outcome>> {
    let (behind, before): (Vec<Part>, Vec<Part>) = shift.iter().partition(|part| part.is_behind());
    let background = async {
        if behind.is_empty() {
            return Ok(Vec::new());
        }
        let (arguments, run) = (arguments.clone(), Arc::clone(run));
        in_background(async move || in_order(&behind, &arguments, &run, progress).await).await
    };
    let (mut first, then) = tokio::join!(in_order(&before, arguments, run, progress), background);
    first.extend(then?);
    Ok(first)
}

async fn in_order(parts: &[Part], arguments: &Arguments, run: &Run, progress: Progress) -> Vec<Outcome> {
    let mut ended = Vec::with_capacity(parts.len());
    for part in parts.iter().copied() {
        progress.say(format_args!("{part:?}"));
        let began = Instant::now();
        let work = Box::pin(perform(part, arguments, run, &progress));
        let result = match within_limit(part, work).await {
            Err(hung) if hung.is::<Hung>() => Err(clean_up(hung, arguments, run, &progress).await),
            ended => ended,
        };
        let time = began.elapsed();
        ended.push(Outcome { part, time, result });
    }
    ended
}

/// A part has exceeded its time.
#[derive(Debug)]
struct Hung(Part);

impl std::fmt::Display for Hung {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let minutes = self.0.limit().as_secs() / 60;
        write!(
            formatter,
            "part {:?} has not ended within {minutes} min and was stopped",
            self.0
        )
    }
}

impl std::error::Error for Hung {}

async fn within_limit(part: Part, work: impl Future<Output = Result<Tally>>) -> Result<Tally> {
    match tokio::time::timeout(part.limit(), work).await {
        Ok(ended) => ended,
        Err(_) => Err(Hung(part).into()),
    }
}

/// A part that hangs may have left a lab.
async fn clean_up(
    error: anyhow::Error,
    arguments: &Arguments,
    run: &Run,
    progress: &Progress,
) -> anyhow::Error {
    let cleaned = if arguments.cluster.keep {
        run.keep()
    } else {
        run.sweep(progress).await
    };
    match cleaned {
        Ok(()) => error,
        Err(left) => error.context(format!("{left:#}")),
    }
}

async fn perform(part: Part, arguments: &Arguments, run: &Run, progress: &Progress) -> Result<Tally> {
    let nodes = part.nodes().unwrap_or(SMALL);
    match part {
        Part::Format => Ok(whole(
            "cargo fmt --all --check",
            cargo(&["fmt", "--all", "--check"]).await,
        )),
        Part::Programs => {
            let built = arguments.cluster.binaries(progress).await;
            Ok(whole("the programs of a lab are built", built.map(drop)))
        }
        Part::Unit => cargo_tests(&["--workspace"], &[]).await,
        Part::Clippy => lints().await,
        Part::Deny => deny_checks(progress).await,
        Part::Go => go_tests().await,
        Part::Kernel => {
            assets::packages(progress).await?;
            cargo_tests(
                &["--workspace", "--bin", "standin", "--test", "netns"],
                &["--ignored", "--test-threads=1"],
            )
            .await
        }
        Part::Datastore => datastore_tests(arguments, progress).await,
        Part::Api => api_tests(arguments, progress).await,
        Part::Scale => scale_tests(arguments, progress).await,
        Part::Back => {
            in_cluster(arguments, run, nodes, async |cluster, tools| {
                let mut tally = end_to_end::refusals(cluster, tools).await;
                tally.add(end_to_end::back(cluster, tools).await);
                tally
            })
            .await
        }
        Part::Fair => in_cluster(arguments, run, nodes, end_to_end::fair).await,
        Part::InPlace => in_cluster(arguments, run, nodes, end_to_end::in_place).await,
        Part::Gate => in_cluster(arguments, run, nodes, end_to_end::gate).await,
        Part::Crash => {
            let mut arguments = arguments.clone();
            arguments.cluster.crash_points = true;
            in_cluster(&arguments, run, nodes, async |cluster, tools| {
                end_to_end::crash(cluster, tools).await
            })
            .await
        }
        Part::PodCidr => in_cluster_of(PodNetwork::Calico, arguments, run, nodes, end_to_end::pod_cidr).await,
        Part::PodCidrEtcd => {
            let mut arguments = arguments.clone();
            // With a tunnel there is more work, in etcd and on every node; the run includes every step of the way
            // without a tunnel.
            arguments.cluster.tunnel.get_or_insert(Tunnel::Vxlan);
            arguments.cluster.kube_proxy = KubeProxy::StaticPods;
            in_cluster_of(
                PodNetwork::CalicoEtcd,
                &arguments,
                run,
                nodes,
                end_to_end::pod_cidr_etcd,
            )
            .await
        }
        Part::ServiceCidr => in_cluster(arguments, run, nodes, end_to_end::service_cidr).await,
        Part::CalicoV2 => {
            in_cluster_of(PodNetwork::CalicoV2, arguments, run, nodes, end_to_end::calico_v2).await
        }
        Part::CalicoDatastore => {
            in_cluster_of(
                PodNetwork::CalicoV2,
                arguments,
                run,
                nodes,
                end_to_end::calico_datastore,
            )
            .await
        }
        Part::Wide => {
            in_cluster(arguments, run, nodes, async |cluster, tools| {
                end_to_end::wide(cluster, tools).await
            })
            .await
        }
        Part::Storm => {
            in_cluster(arguments, run, nodes, async |cluster, tools| {
                end_to_end::storm(cluster, tools).await
            })
            .await
        }
        Part::Strangers => in_cluster(arguments, run, nodes, end_to_end::strangers).await,
        Part::StrangerServices => in_cluster(arguments, run, nodes, end_to_end::stranger_services).await,
    }
}

/// clippy with warnings as errors, once more for the code of the example kind, which is compiled with its feature only, and
/// rustdoc.
async fn lints() -> Result<Tally> {
    let features = "coordinator/example-kind,agent/example-kind,cli/example-kind";
    let example = [
        "-p",
        "coordinator",
        "-p",
        "agent",
        "-p",
        "cli",
        "--features",
        features,
    ];
    let mut tally = Tally::default();
    for (name, packages) in [
        ("cargo clippy -D warnings", &["--workspace", "--all-targets"][..]),
        ("cargo clippy -D warnings, with the example kind", &example),
    ] {
        let arguments = [&["clippy"], packages, &["--", "-D", "warnings"]].concat();
        tally.count(name, cargo(&arguments).await);
    }
    let deny = "build.rustdocflags=['-D', 'warnings']";
    let documented = cargo(&["doc", "--workspace", "--no-deps", "--config", deny]).await;
    tally.count("cargo doc --no-deps, with warnings as errors", documented);
    Ok(tally)
}

async fn deny_checks(progress: &Progress) -> Result<Tally> {
    let program = assets::cargo_deny(progress).await?;
    let check = ["check", "bans", "licenses", "sources"];
    let checked = run_program(&program, &check, crate::cargo::workspace()?).await;
    let mut tally = whole("cargo deny check bans licenses sources", checked);
    if let Some(checked) = advisories::check(&program).await {
        tally.count("cargo deny check advisories", checked);
    }
    Ok(tally)
}

/// One cluster of each kind after the other.
async fn scale_tests(arguments: &Arguments, progress: &Progress) -> Result<Tally> {
    let mut tally = Tally::default();
    for kind in Kind::value_variants() {
        let assets = arguments.cluster.assets.as_deref();
        let wanted = super::scale::Arguments::small(assets, *kind);
        let size = wanted.size(progress).await?;
        tally.add(Box::pin(end_to_end::scale(&size, progress)).await);
    }
    Ok(tally)
}

async fn datastore_tests(arguments: &Arguments, progress: &Progress) -> Result<Tally> {
    let folder = tempfile::tempdir().context("create a folder for etcd")?;
    let bench = Bench {
        old: assets::old_etcd(progress).await?,
        new: arguments.cluster.binaries(progress).await?.join("etcd"),
        program: assets::command_line(Build::default(), progress).await?,
        folder: folder.path().to_owned(),
    };
    Ok(end_to_end::datastore::datastore(&bench).await)
}

/// The longest test of its program, whose tests run one at a time. It has its own lane.
const LONGEST_OF_COMMANDS: &str = "the_second_of_two_hops_waits_for_the_first";

async fn api_tests(arguments: &Arguments, progress: &Progress) -> Result<Tally> {
    let assets = arguments.cluster.binaries(progress).await?;
    let of = async |programs: &[&str], harness: &[&str]| {
        let programs = programs.iter().flat_map(|name| ["--test", name]);
        let packages: Vec<&str> = std::iter::once("--workspace").chain(programs).collect();
        let environment = [("REPLUMB_LAB_ASSETS", assets.as_os_str())];
        let harness = [&["--ignored"], harness].concat();
        cargo_tests_with(&packages, &harness, &environment).await
    };
    // These tests mostly wait for a clock: a Lease that expires, a command that times out. Each lane has its own API server.
    let (hops, commands, services, preview, labs, others) = tokio::join!(
        of(&["api_cli"], &["--exact", LONGEST_OF_COMMANDS]),
        of(&["api_cli"], &["--exact", "--skip", LONGEST_OF_COMMANDS]),
        of(&["api_services"], &[]),
        of(&["api_policy_preview"], &[]),
        of(&["lab_life"], &[]),
        of(
            &[
                "api_rules",
                "api_rights",
                "api_bounds",
                "api_evictions",
                "api_lease",
                "api_metrics",
                "api_patches"
            ],
            &[]
        )
    );
    let mut tally = Tally::default();
    for lane in [hops, commands, services, preview, labs, others] {
        tally.add(lane?);
    }
    // A build of its own: the features of a build count for every crate of it.
    let example = ["-p", "lab", "--features", "example-kind", "--test", "api_example"];
    let environment = [("REPLUMB_LAB_ASSETS", assets.as_os_str())];
    tally.add(cargo_tests_with(&example, &["--ignored"], &environment).await?);
    Ok(tally)
}

/// Makes a cluster with flannel, runs the cases in it, and removes it.
async fn in_cluster(
    arguments: &Arguments,
    run: &Run,
    nodes: usize,
    cases: impl AsyncFnOnce(&Cluster, &Tools) -> Tally,
) -> Result<Tally> {
    in_cluster_of(PodNetwork::Flannel, arguments, run, nodes, cases).await
}

/// Makes a cluster, runs the cases in it, and removes it: the check that nothing remains is a case, too.
async fn in_cluster_of(
    network: PodNetwork,
    arguments: &Arguments,
    run: &Run,
    nodes: usize,
    cases: impl AsyncFnOnce(&Cluster, &Tools) -> Tally,
) -> Result<Tally> {
    let mut wanted = arguments.cluster.clone();
    wanted.nodes = nodes;
    wanted.start_on(network)?;
    wanted.replumb = true;
    wanted.probe_interval.get_or_insert(if nodes > SMALL {
        PROBE_INTERVAL_OF_MANY
    } else {
        PROBE_INTERVAL
    });
    wanted.place = run.place(nodes);
    let tools = wanted.tools().await?;
    let cluster = wanted.up().await?;
    let directory = cluster.directory().clone();
    let mut tally = tokio::select! {
        tally = Box::pin(cases(&cluster, &tools)) => tally,
        signal = interrupted() => {
            let error = anyhow::Error::from(Ended(signal?));
            drop(cluster);
            return Err(wanted.abandon(&directory, error).await);
        }
    };
    if wanted.keep && !tally.failed.is_empty() {
        Cluster::keep(&directory)?;
        println!("the lab is kept in {}", directory.path().display());
        return Ok(tally);
    }
    let removed = async {
        cluster.remove().await?;
        let left = Cluster::leftovers(&directory).await?;
        if left.is_empty() {
            Ok(())
        } else {
            bail!("left behind: {}", left.join("; "))
        }
    };
    tally.count(
        format_args!("the lab of {nodes} nodes leaves nothing behind"),
        removed.await,
    );
    Ok(tally)
}

fn whole(name: &str, result: Result<()>) -> Tally {
    let mut tally = Tally::default();
    tally.count(name, result);
    tally
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_part_that_hangs_is_stopped_and_named() {
        let began = tokio::time::Instant::now();
        let error = within_limit(Part::Kernel, std::future::pending())
            .await
            .unwrap_err();
        assert!(error.is::<Hung>());
        assert_eq!(
            error.to_string(),
            "part Kernel has not ended within 45 min and was stopped"
        );
        assert_eq!(began.elapsed().as_secs(), Part::Kernel.limit().as_secs());
        let ended = within_limit(Part::Kernel, async { bail!("a test failed") }).await;
        assert_eq!(ended.unwrap_err().to_string(), "a test failed");
    }
}
