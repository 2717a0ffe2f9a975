//! The agent's part of the policy preview: while a `ConnectionSample` with the name of its node exists, the agent samples the
//! connections of the pods that the object names, and reports them in its status.
//!
//! Three parts run beside each other: the watch of the object ([`watched`]), a thread of its own that reads connection tracking
//! ([`sampler`]), and the task here, which starts and ends the thread and writes the status ([`writer`]). Without the object there is
//! no thread, no socket and no memory. Nothing here ends the agent: a migration does not depend on a preview.

#[cfg(test)]
mod fixture;
pub mod kind;
pub mod known;
pub mod metrics;
pub mod sample;
pub mod sampler;
pub mod watched;
pub mod writer;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::ConnectionSample;
use api::connection_sample::ConnectionSampleStatus;
use kube::{Api, Client, ResourceExt};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use self::metrics::SamplingMetrics;
use self::sampler::Sampler;
use self::watched::WatchedSample;
use self::writer::Writer;
use crate::backoff::{Backoff, LONGEST_PAUSE_ON_WATCH};
use crate::host::random;

/// What sampling needs.
#[derive(Clone)]
pub struct Parts {
    /// Name of the node.
    pub node: String,
    /// The client of the watch.
    pub watching: Client,
    /// The client of writes.
    pub client: Client,
    /// Folder of the kernel's parameters.
    pub proc: PathBuf,
    /// The metrics.
    pub metrics: Arc<SamplingMetrics>,
}

/// Samples until the task is aborted. The thread is in the network namespace of the calling thread.
pub fn start(parts: Parts) -> JoinHandle<()> {
    tokio::spawn(async move {
        let (sender, seen) = watch::channel(WatchedSample::Unknown);
        let follows = watched::follow(parts.watching.clone(), parts.node.clone(), sender);
        let sampling = Sampling {
            parts,
            seen,
            running: None,
            failures: Backoff::default(),
            not_before: None,
        };
        tokio::select! {
            () = follows => tracing::error!("the watch of the ConnectionSample ended: nothing is sampled any more"),
            () = sampling.run() => {}
        }
    })
}

struct Sampling {
    parts: Parts,
    seen: watch::Receiver<WatchedSample>,
    running: Option<Running>,
    /// Failures of the thread in a row, and the earliest time of its next start.
    failures: Backoff,
    not_before: Option<Instant>,
}

/// The sampling of one object.
struct Running {
    uid: Option<String>,
    /// `None` if it could not be started, or has ended.
    sampler: Option<Sampler>,
    writer: Writer,
    /// Why there is no thread.
    failure: String,
}

impl Sampling {
    async fn run(mut self) {
        loop {
            let next = self.turn().await;
            let sampled = async {
                match self.running.as_mut().and_then(|running| running.sampler.as_mut()) {
                    Some(sampler) => sampler.changed().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                changed = self.seen.changed() => if changed.is_err() { return },
                is_alive = sampled => if !is_alive { self.fail("the thread that reads connection tracking has ended") },
                () = tokio::time::sleep(next) => {}
            }
        }
    }

    /// Starts or ends the thread, and writes the status. Returns the pause until the next turn.
    async fn turn(&mut self) -> Duration {
        let seen = self.seen.borrow_and_update().clone();
        let object = match seen {
            WatchedSample::Unknown => return writer::IDLE,
            WatchedSample::Absent => {
                self.stop();
                return writer::IDLE;
            }
            WatchedSample::Present(object) => object,
        };
        if self
            .running
            .as_ref()
            .is_some_and(|running| running.uid != object.uid())
        {
            self.stop();
        }
        let restart = self.sample(&object);
        let Some(running) = &mut self.running else {
            return writer::IDLE;
        };
        let status = match &mut running.sampler {
            Some(sampler) => sampler.status().inspect(|_| self.failures.succeeded()),
            None => Some(Arc::new(ConnectionSampleStatus {
                problem: Some(running.failure.clone()),
                ..ConnectionSampleStatus::default()
            })),
        };
        match status {
            Some(status) => running.writer.write(&object, &status).await.min(restart),
            None => restart,
        }
    }

    /// Lets the thread sample what the object says, and starts it if it does not run. Returns the pause until the next attempt.
    fn sample(&mut self, object: &Arc<ConnectionSample>) -> Duration {
        let running = self.running.get_or_insert_with(|| {
            tracing::info!("sampling connections for the policy preview");
            Running {
                uid: object.uid(),
                sampler: None,
                writer: Writer::new(
                    Api::all(self.parts.client.clone()),
                    Arc::clone(&self.parts.metrics),
                ),
                failure: String::new(),
            }
        });
        let spec = Arc::new(object.spec.clone());
        if let Some(sampler) = &running.sampler {
            sampler.set(&spec);
            return writer::IDLE;
        }
        let now = Instant::now();
        if let Some(next) = self.not_before.filter(|next| *next > now) {
            return next - now;
        }
        match Sampler::start(spec, self.parts.proc.clone(), Arc::clone(&self.parts.metrics)) {
            Ok(sampler) => {
                running.sampler = Some(sampler);
                writer::IDLE
            }
            Err(error) => {
                let text = format!("could not start the thread that reads connection tracking: {error}");
                self.fail(&text);
                self.not_before.map_or(writer::IDLE, |next| next - now)
            }
        }
    }

    /// There is no thread, for this reason. The next one starts from nothing.
    fn fail(&mut self, why: &str) {
        tracing::warn!("{why}; retrying");
        let random = random::number().unwrap_or_default();
        let pause = self.failures.after_failure(LONGEST_PAUSE_ON_WATCH, random);
        self.not_before = Some(Instant::now() + pause);
        if let Some(running) = &mut self.running {
            running.sampler = None;
            why.clone_into(&mut running.failure);
        }
    }

    /// Ends the thread and frees its memory.
    fn stop(&mut self) {
        if self.running.take().is_some() {
            tracing::info!("sampling of connections ended");
        }
        self.failures.succeeded();
        self.not_before = None;
        self.parts.metrics.kinds.set(0);
    }
}

#[cfg(test)]
mod tests;
