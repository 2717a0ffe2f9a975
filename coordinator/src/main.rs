//! `replumb-coordinator`: arguments, wiring, exit code.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use coordinator::args::Args;
use coordinator::cache::Cache;
use coordinator::context::Context;
use coordinator::events::EventRecorder;
use coordinator::health::Health;
use coordinator::lease::Candidate;
use coordinator::metrics::Metrics;
use coordinator::obstacles::Obstacles;
use coordinator::pass;
use coordinator::words::MessagePace;
use kube::{Client, Config};
use runtime::admin;
use runtime::client::{Limit, Observer};
use runtime::secure_metrics::SecureMetrics;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Time limit of one request to the API.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// Time within which a pass starts new writes; after it, the pass reports what was done.
const WRITING: Duration = Duration::from_secs(5);
/// Request limit of each client. The leader of a large cluster writes in bursts; deploy/ has a priority level of the API server
/// for it.
const RATE: Limit = Limit {
    requests: 100,
    period: Duration::from_secs(1),
};
/// The same for work beside the passes.
const BACKGROUND_RATE: Limit = Limit {
    requests: 50,
    period: Duration::from_secs(1),
};

// Two threads on a node of any size: each further thread costs memory (the allocator keeps an arena for each), and a pass runs on
// one thread.
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

/// The clients of the API server. Each has a rate of its own.
struct Clients {
    /// Without a limit on reads, because watches are long.
    watching: Client,
    client: Client,
    background: Client,
    /// A leader with many writes in a pass still renews its Lease in time.
    leasing: Client,
}

/// Builds the clients. Afterwards, the configuration has the limit of requests that are no watches.
fn clients(config: &mut Config, requests: &Arc<dyn Observer>) -> anyhow::Result<Clients> {
    let build = |config: &Config, limit: Limit, purpose: &'static str| {
        runtime::client::client(config.clone(), Arc::clone(requests), limit)
            .with_context(|| format!("building the client for {purpose}"))
    };
    let watching = build(config, RATE, "watches")?;
    config.read_timeout = Some(REQUEST_LIMIT);
    Ok(Clients {
        watching,
        client: build(config, RATE, "passes")?,
        background: build(config, BACKGROUND_RATE, "work beside the passes")?,
        leasing: build(config, RATE, "the Lease")?,
    })
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
    let mut config = Config::infer()
        .await
        .context("loading the configuration of the API client")?;
    config.connect_timeout = Some(REQUEST_LIMIT);
    // A refused eviction is a 429 and must return at once: its reason is reported to the user.
    config.default_retry = false;
    let metrics = Arc::new(Metrics::new().context("registering metrics")?);
    let requests: Arc<dyn Observer> = Arc::new(metrics.api.clone());
    let Clients {
        watching,
        client,
        background,
        leasing,
    } = clients(&mut config, &requests)?;
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
        events: EventRecorder::new(client.clone(), &pod_name),
        obstacles: Obstacles::within(WRITING),
        pace: MessagePace::FOR_USERS,
        client: client.clone(),
        background,
        watching: watching.clone(),
        config,
        asks_other_servers: true,
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
        .context("opening the port for metrics and health")?;
    let ended = tokio::select! {
        never = admin::serve(
            listener, secure, move || metrics.text(), Arc::clone(&health) as Arc<dyn admin::Health>, crash_point::routes(),
        ) => match never {},
        // A task that ends takes its watch or the Lease with it: a new process is better than a coordinator without input.
        ended = tasks.join_next() => anyhow::bail!("a background task ended: {ended:?}"),
        () = passes => anyhow::bail!("the pass loop ended"),
        _ = terminate.recv() => Ok(()),
        _ = tokio::signal::ctrl_c() => Ok(()),
    };
    // No write follows: passes and Lease renewals ended with the select above.
    tasks.shutdown().await;
    if let Err(error) = candidate().release().await {
        tracing::warn!(
            error = runtime::error::chain(&error),
            "Lease not released; it expires without renewal"
        );
    }
    ended
}
