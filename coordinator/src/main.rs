//! `replumb-coordinator`: arguments, wiring, exit code.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use coordinator::args::Args;
use coordinator::cache::Cache;
use coordinator::context::Context;
use coordinator::health::Health;
use coordinator::lease::Candidate;
use coordinator::metrics::Metrics;
use coordinator::obstacles::Obstacles;
use coordinator::pass;
use coordinator::tell::Teller;
use coordinator::words::Pace;
use kube::Config;
use runtime::admin;
use runtime::client::{Limit, Observer};
use runtime::secure_metrics::SecureMetrics;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How long one request to the API may take.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// For how long a pass begins to write objects, before it says what it has done.
const WRITING: Duration = Duration::from_secs(5);
/// The requests of each client. A leader whose cluster is large writes in bursts; the API server has a priority level for it in deploy/.
const RATE: Limit = Limit {
    requests: 100,
    period: Duration::from_secs(1),
};

// Two threads, however many cores its node has: each more costs memory (the allocator has places of its own for each), and a pass runs on
// one.
#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let args = Args::parse();
    args.log.start();
    match Box::pin(run(args)).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!(error = format!("{error:#}"), "stopped");
            ExitCode::FAILURE
        }
    }
}

async fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        namespace,
        pod_name,
        node_name,
        agent_image,
        listen,
        secure_metrics_port,
        host_address,
        log: _,
    } = args;
    let mut config = Config::infer().await.context("finding the API server")?;
    config.connect_timeout = Some(REQUEST_LIMIT);
    // A refused eviction is a 429: it has to come back at once, since its reason is what people wait for.
    config.default_retry = false;
    let metrics = Arc::new(Metrics::new().context("registering the metrics")?);
    let requests: Arc<dyn Observer> = Arc::new(metrics.api.clone());
    let watching = runtime::client::client(config.clone(), requests.clone(), RATE)
        .context("building the client of the watches")?;
    // Watches are long and have a limit of their own; every other request has this one.
    config.read_timeout = Some(REQUEST_LIMIT);
    let client =
        runtime::client::client(config.clone(), requests.clone(), RATE).context("building the client")?;
    // The Lease has a client of its own: a leader whose passes have many writes still renews it in time.
    let leasing = runtime::client::client(config.clone(), requests.clone(), RATE)
        .context("building the client of the Lease")?;
    let secure = secure_metrics_port.map(|port| SecureMetrics {
        given: listen,
        node: host_address,
        port,
        program: api::names::COORDINATOR,
        config: config.clone(),
        observer: requests,
    });

    let health = Arc::new(Health::starting());
    let context = Context {
        teller: Teller::new(client.clone(), &pod_name),
        obstacles: Obstacles::within(WRITING),
        pace: Pace::OF_PEOPLE,
        client: client.clone(),
        watching: watching.clone(),
        config,
        namespace: namespace.clone(),
        node_name,
        agent_image,
        metrics: Arc::clone(&metrics),
    };
    let mut terminate = signal(SignalKind::terminate()).context("listening for SIGTERM")?;
    let (leader, leading) = watch::channel(false);
    let mut tasks = JoinSet::new();
    let cache = Cache::start(&watching, &namespace, &mut tasks);
    let candidate = || Candidate::new(leasing.clone(), &namespace, api::names::COORDINATOR, &pod_name);
    tasks.spawn(candidate().run(leader));
    let passes = async {
        cache.ready().await;
        health.filled();
        Box::pin(pass::run(&context, &cache, &health, &leading)).await;
    };
    let listener = listening::bind(listen, host_address, api::names::COORDINATOR_PORT)
        .await
        .context("opening the port of metrics and health")?;
    let ended = tokio::select! {
        never = admin::serve(
            listener, secure, move || metrics.text(), Arc::clone(&health) as Arc<dyn admin::Health>, crash_point::routes(),
        ) => match never {},
        // A task that ends took its watch or the Lease with it: better a new process than a blind one.
        ended = tasks.join_next() => anyhow::bail!("a background task ended: {ended:?}"),
        () = passes => anyhow::bail!("the loop ended"),
        _ = terminate.recv() => Ok(()),
        _ = tokio::signal::ctrl_c() => Ok(()),
    };
    // Nothing is written any more: the passes and the claims have ended with the choice above.
    tasks.shutdown().await;
    if let Err(error) = candidate().release().await {
        tracing::warn!(
            error = runtime::error::chain(&error),
            "the Lease was not given up; it expires by itself"
        );
    }
    ended
}
