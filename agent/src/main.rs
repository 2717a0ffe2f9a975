//! `replumb-agent`: arguments, wiring, exit code.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use agent::args::{Arguments, Command, Echo, Run, Traffic};
use agent::goal;
use agent::health::Health;
use agent::host::folders::FolderWatch;
use agent::host::netlink;
use agent::host::paths::Paths;
use agent::host_thread::{HostThread, Parts};
use agent::kinds::{self, HostParts, Kinds, Watched};
use agent::metrics::Metrics;
use agent::sampling;
use agent::traffic::hub::Hub;
use agent::turn::Agent;
use anyhow::Context as _;
use clap::Parser;
use engine::cni::CONFIGURATION_DIRECTORY;
use kube::{Api, Client, Config};
use runtime::admin;
use runtime::client::{Limit, Observer as ClientObserver};
use runtime::log::Log;
use runtime::secure_metrics::SecureMetrics;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinHandle};

/// Pause between two attempts to open a socket that another process may hold for now.
const NEXT_TRY: Duration = Duration::from_secs(5);
/// A pod still answers for this long after SIGTERM: its Service sends to it until every node has removed the endpoint.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// Timeout of one request to the API.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// Request limit of each client: a step of a node needs a few requests. Thousands of agents share one API server.
const RATE: Limit = Limit {
    requests: 20,
    period: Duration::from_secs(4),
};

// One thread: the agent mostly waits for its host and the API, and shares the node with the cluster's pods.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Arguments { command, run } = Arguments::parse();
    let run = match command {
        Some(Command::Echo(echo)) => {
            Log::plain().start();
            return exit_code(answer(echo).await);
        }
        Some(Command::Traffic(Traffic { echo, run_dir })) => {
            Log::plain().start();
            let sends = agent::traffic::pod::send(&run_dir, &echo.pod_uid);
            let answers = answer(echo.clone());
            return exit_code(tokio::select! {
                ended = answers => ended,
                () = sends => Err(anyhow::anyhow!("sending of probes ended")),
            });
        }
        Some(Command::Run(run)) => *run,
        None => run,
    };
    run.log.start();
    exit_code(Box::pin(run_agent(run)).await)
}

fn exit_code(ended: anyhow::Result<()>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "stopped");
            ExitCode::FAILURE
        }
    }
}

async fn answer(echo: Echo) -> anyhow::Result<()> {
    let Echo { port, pod_uid } = echo;
    anyhow::ensure!(
        !pod_uid.is_empty(),
        "POD_UID is not set, needed the UID of this pod: set it through the downward API (metadata.uid)"
    );
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let echo = agent::echo::Echo::bind(port, &pod_uid)?;
    tracing::info!(port, pod_uid, "answering probes");
    let ends = async {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        tokio::time::sleep(LAST_ANSWERS).await;
    };
    tokio::select! {
        ended = echo.serve() => ended.context("answering probes"),
        () = ends => Ok(()),
    }
}

/// Address of the API server and credentials.
async fn configuration() -> anyhow::Result<Config> {
    let mut config = Config::infer().await.context(
        "no configuration of the API server found (tried $KUBECONFIG, ~/.kube/config, in-cluster)",
    )?;
    config.connect_timeout = Some(REQUEST_LIMIT);
    Ok(config)
}

/// The clients of the API.
struct Clients {
    watching: Client,
    client: Client,
    /// The configuration of every client that does not watch.
    config: Config,
}

impl Clients {
    /// What sampling needs.
    fn sampling(&self, node: &str, proc: PathBuf, metrics: &Metrics) -> sampling::Parts {
        sampling::Parts {
            node: node.to_owned(),
            watching: self.watching.clone(),
            client: self.client.clone(),
            proc,
            metrics: Arc::clone(&metrics.sampling),
        }
    }
}

fn clients(mut config: Config, requests: &Arc<dyn ClientObserver>) -> anyhow::Result<Clients> {
    let watching = runtime::client::client(config.clone(), requests.clone(), RATE)
        .context("building the client of the watch")?;
    // A watch is long-lived and has its own timeout; every other request has this one.
    config.read_timeout = Some(REQUEST_LIMIT);
    let client =
        runtime::client::client(config.clone(), requests.clone(), RATE).context("building the client")?;
    Ok(Clients {
        watching,
        client,
        config,
    })
}

/// The metrics, with a value for each phase.
fn registered_metrics() -> anyhow::Result<Arc<Metrics>> {
    let metrics = Metrics::new().context("registering the metrics")?;
    metrics.set_phase(&kinds::phases(), None);
    Ok(Arc::new(metrics))
}

async fn run_agent(run: Run) -> anyhow::Result<()> {
    let Run {
        node_name,
        listen,
        secure_metrics_port,
        host_address,
        run_dir,
        state_dir,
        flannel_dir,
        cni_state_dir,
        cni_plugins_dir,
        crio_dir,
        sysctl_dir,
        proc_dir,
        pod_uid,
        log: _,
    } = run;
    let node = node_name.context("node name is not set: set NODE_NAME or --node-name")?;
    let metrics = registered_metrics()?;
    let requests: Arc<dyn ClientObserver> = Arc::new(metrics.api.clone());
    let clients = clients(configuration().await?, &requests)?;
    let secure = secure_metrics_port.map(|port| SecureMetrics {
        given: listen,
        node: host_address,
        port,
        program: api::names::AGENT,
        config: clients.config.clone(),
        observer: requests,
    });

    let sampling = clients.sampling(&node, proc_dir.clone(), &metrics);
    // No part of a migration: its end is no reason to end the agent.
    drop(sampling::start(sampling));
    let health = Arc::new(Health::starting());
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let (seen, mut goals) = goal::follow(clients.watching.clone(), &node);
    let (watched, watches) = Watched::start(&clients.watching, &seen);
    let (of_node, of_metrics, of_health) = (node.clone(), Arc::clone(&metrics), Arc::clone(&health));
    let parts = move |folders| HostParts {
        node: of_node,
        paths: Paths {
            proc: proc_dir,
            flannel: flannel_dir,
            cni_state: cni_state_dir,
            // Observed until the settings of a Migration name another folder.
            cni_configuration: CONFIGURATION_DIRECTORY.into(),
            cni_plugins: cni_plugins_dir,
            crio: crio_dir,
            sysctl: sysctl_dir,
        },
        state: state_dir,
        pod_uid,
        config: clients.config,
        folders,
        metrics: of_metrics,
        health: of_health,
    };
    let parts = parts_of_host(parts, watched);
    let host = HostThread::start(parts, seen.clone(), Arc::clone(&metrics), Arc::clone(&health))?;
    let serves = async {
        // The host thread needs neither of them: a program that holds the port cannot delay the dead man's switch.
        let hub = retry_until_open("socket for traffic pods", async || Hub::listen(&node, &run_dir)).await;
        let listener = retry_until_open("port for metrics and health", async || {
            listening::bind(listen, host_address, api::names::AGENT_PORT).await
        })
        .await;
        let agent = Agent::new(host, Api::all(clients.client), seen, hub, Arc::clone(&metrics));
        tracing::info!(node, version = env!("CARGO_PKG_VERSION"), "agent started");
        tokio::select! {
            never = admin::serve(
                listener, secure, move || metrics.text(), health, crash_point::routes(),
            ) => match never {},
            () = agent.run() => anyhow::bail!("the agent's loop ended"),
        }
    };
    tokio::select! {
        ended = serves => ended,
        // A task that ends takes its watch with it: a new process is better than one without a watch.
        ended = &mut goals => anyhow::bail!("the watch of this node's NodeMigration ended: {ended:?}"),
        ended = any_of(watches) => anyhow::bail!("a watch of the API ended: {ended:?}"),
        _ = terminate.recv() => Ok(()),
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

/// Repeats the attempt until it succeeds.
async fn retry_until_open<T, Error>(what: &str, attempt: impl AsyncFn() -> Result<T, Error>) -> T
where
    Error: std::error::Error,
{
    loop {
        match attempt().await {
            Ok(opened) => return opened,
            Err(error) => {
                let error = runtime::error::chain(&error);
                tracing::warn!(error, "{what} could not be opened; retrying");
                tokio::time::sleep(NEXT_TRY).await;
            }
        }
    }
}

/// Waits until one of the tasks ends. Waits for ever without a task.
async fn any_of(tasks: Vec<JoinHandle<()>>) -> Result<(), JoinError> {
    if tasks.is_empty() {
        return std::future::pending().await;
    }
    futures::future::select_all(tasks).await.0
}

/// Everything that touches the host, to be created on the host thread.
fn parts_of_host(
    of_host: impl FnOnce(Arc<FolderWatch>) -> HostParts + Send,
    watched: Watched,
) -> impl FnOnce() -> anyhow::Result<Parts> + Send {
    move || {
        let changed = Arc::new(Notify::new());
        let watching = netlink::watch(Arc::clone(&changed));
        let folders = Arc::new(FolderWatch::start(Arc::clone(&changed)));
        Ok(Parts {
            kinds: Kinds::start(&of_host(folders), watched)?,
            changed,
            watching,
        })
    }
}
