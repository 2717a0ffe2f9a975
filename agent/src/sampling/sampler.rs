//! The thread that reads connection tracking. It has nothing to do with the host thread, and a lower priority: a reading of a large
//! table delays no step, no probe and no request to the API.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::connection_sample::{ConnectionSampleSpec, ConnectionSampleStatus, PortRange};
use engine::words;
use jiff::Timestamp;
use runtime::error::chain;
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::metrics::{ReadingOutcome, SamplingMetrics};
use super::sample::Sample;
use crate::host::netlink::conntrack::{ConntrackError, EndedConnections, Listed, Listing, MalformedEntry};
use crate::host::priority;
use crate::host::sysctl::{self, SysctlError};

/// Time between the starts of two readings.
const PACE: Duration = Duration::from_secs(10);
/// Time between the starts of two readings, in durations of a reading: a huge table makes the pauses longer.
const SHARE: u32 = 20;
/// Timeout of a reading.
const LIMIT: Duration = Duration::from_mins(1);
/// Events arrive in bursts: the thread wakes up once for all of this time.
const BURST: Duration = Duration::from_millis(100);
/// Events that are received in one burst. A host that ends more than 20 000 connections a second needs its processor for them.
const MOST_EVENTS: usize = 2000;

/// A reading was not complete.
#[derive(Debug, Error)]
enum ReadingError {
    #[error(transparent)]
    Conntrack(#[from] ConntrackError),
    #[error(transparent)]
    ClientPorts(#[from] SysctlError),
    #[error(
        "the kernel tracks no connection, not even the agent's own: no rule of the host's firewall needs connection tracking"
    )]
    Empty,
    #[error("reading connection tracking has not ended within {} s", LIMIT.as_secs())]
    Late,
}

impl ReadingError {
    fn outcome(&self) -> ReadingOutcome {
        match self {
            Self::Conntrack(ConntrackError::Interrupted) => ReadingOutcome::Interrupted,
            Self::Conntrack(ConntrackError::Overrun) => ReadingOutcome::Overrun,
            Self::Conntrack(ConntrackError::Malformed { .. }) => ReadingOutcome::Malformed,
            Self::Conntrack(ConntrackError::Socket { .. } | ConntrackError::Refused(_))
            | Self::ClientPorts(_) => ReadingOutcome::Refused,
            Self::Empty => ReadingOutcome::Empty,
            Self::Late => ReadingOutcome::Late,
        }
    }
}

/// The running thread. It ends when this is dropped, and frees what it has seen.
#[derive(Debug)]
pub struct Sampler {
    specs: watch::Sender<Arc<ConnectionSampleSpec>>,
    statuses: watch::Receiver<Option<Arc<ConnectionSampleStatus>>>,
}

impl Sampler {
    /// Starts the thread in the network namespace of the calling thread. `proc` has the kernel's parameters.
    ///
    /// # Errors
    ///
    /// The thread or its runtime cannot be started.
    pub fn start(
        spec: Arc<ConnectionSampleSpec>,
        proc: PathBuf,
        metrics: Arc<SamplingMetrics>,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let sample = Sample::new(&spec);
        let (specs, seen_specs) = watch::channel(spec);
        let (sender, statuses) = watch::channel(None);
        let work = Work {
            sample,
            proc,
            metrics,
            events: None,
            specs: seen_specs.clone(),
            statuses: sender,
            replaced: 0,
        };
        std::thread::Builder::new()
            .name("sampling".to_owned())
            .spawn(move || {
                if let Err(error) = priority::lower() {
                    tracing::debug!(%error, "the priority of the sampling thread stays");
                }
                runtime.block_on(async {
                    tokio::select! {
                        () = work.run() => {}
                        () = is_dropped(seen_specs) => {}
                    }
                });
            })?;
        Ok(Self { specs, statuses })
    }

    /// Changes what is sampled.
    pub fn set(&self, spec: &Arc<ConnectionSampleSpec>) {
        self.specs.send_if_modified(|held| {
            let is_news = **held != **spec;
            held.clone_from(spec);
            is_news
        });
    }

    /// The newest status; `None` before the end of the first reading.
    pub fn status(&mut self) -> Option<Arc<ConnectionSampleStatus>> {
        self.statuses.borrow_and_update().clone()
    }

    /// Waits for a newer status. False if the thread has ended.
    pub async fn changed(&mut self) -> bool {
        self.statuses.changed().await.is_ok()
    }
}

/// Waits until the [`Sampler`] is dropped.
async fn is_dropped(mut specs: watch::Receiver<Arc<ConnectionSampleSpec>>) {
    while specs.changed().await.is_ok() {}
}

struct Work {
    sample: Sample,
    proc: PathBuf,
    metrics: Arc<SamplingMetrics>,
    events: Option<EndedConnections>,
    specs: watch::Receiver<Arc<ConnectionSampleSpec>>,
    statuses: watch::Sender<Option<Arc<ConnectionSampleStatus>>>,
    /// How many replaced kinds the metric counts.
    replaced: u64,
}

impl Work {
    async fn run(mut self) {
        loop {
            let began = Instant::now();
            self.subscribe();
            let outcome = timeout(LIMIT, self.read())
                .await
                .unwrap_or(Err(ReadingError::Late));
            self.report(outcome);
            self.listen(began + PACE.max(began.elapsed() * SHARE)).await;
        }
    }

    /// Subscribes to events if there is no subscription. Before the first reading nothing is missed.
    fn subscribe(&mut self) {
        if self.events.is_some() {
            return;
        }
        let subscribed = match sysctl::connection_events(&self.proc) {
            Ok(true) => EndedConnections::subscribe().map_err(|error| chain(&error)),
            Ok(false) => Err("net.netfilter.nf_conntrack_events is 0, needed 1 or 2".to_owned()),
            Err(error) => Err(chain(&error)),
        };
        match subscribed {
            Ok(events) => self.events = Some(events),
            Err(why) => self.miss(&why),
        }
    }

    fn miss(&mut self, why: &str) {
        self.metrics.gaps.inc();
        self.sample.miss(Timestamp::now(), why);
    }

    /// Reads the whole table. Events are received meanwhile, so that none is dropped because the table is large.
    async fn read(&mut self) -> Result<(), ReadingError> {
        let (first, last) = sysctl::client_ports(&self.proc)?;
        self.sample.begin(PortRange { first, last });
        let mut listing = Listing::start()?;
        let mut entries = 0_u64;
        loop {
            let (at, sample) = (Timestamp::now(), &mut self.sample);
            let listed = listing
                .next(|connection| {
                    entries += 1;
                    sample.see(&connection, at);
                })
                .await?;
            if listed == Listed::Completely {
                break;
            }
            self.take_spec();
            self.receive();
        }
        if entries == 0 {
            return Err(ReadingError::Empty);
        }
        Ok(())
    }

    fn report(&mut self, outcome: Result<(), ReadingError>) {
        let counted = outcome
            .as_ref()
            .map_or_else(ReadingError::outcome, |()| ReadingOutcome::Complete);
        self.metrics.count_reading(counted);
        self.sample
            .end(outcome.map(|()| Timestamp::now()).map_err(|error| chain(&error)));
        let replaced = self.sample.replaced();
        self.metrics
            .replaced
            .inc_by(replaced.saturating_sub(self.replaced));
        self.replaced = replaced;
        let kinds = i64::try_from(self.sample.kinds()).unwrap_or(i64::MAX);
        self.metrics.kinds.set(kinds);
        self.statuses.send_replace(Some(Arc::new(self.sample.status())));
    }

    /// Receives events until this time.
    async fn listen(&mut self, until: Instant) {
        loop {
            let has_more = self.receive();
            let arrived = async {
                match &mut self.events {
                    Some(events) if !has_more => events.arrived().await?,
                    Some(_) => {}
                    None => std::future::pending().await,
                }
                sleep(BURST).await;
                Ok::<(), ConntrackError>(())
            };
            tokio::select! {
                () = sleep_until(until) => return,
                changed = self.specs.changed() => match changed {
                    Ok(()) => self.sample.set(&self.specs.borrow_and_update().clone()),
                    Err(_) => return,
                },
                arrived = arrived => if let Err(error) = arrived {
                    self.events = None;
                    self.miss(&chain(&error));
                }
            }
        }
    }

    fn take_spec(&mut self) {
        if self.specs.has_changed().unwrap_or_default() {
            let spec = Arc::clone(&self.specs.borrow_and_update());
            self.sample.set(&spec);
        }
    }

    /// Receives the events that have arrived. Returns whether more of them are there.
    fn receive(&mut self) -> bool {
        let Some(events) = &mut self.events else {
            return false;
        };
        let (at, sample) = (Timestamp::now(), &mut self.sample);
        match events.receive(MOST_EVENTS, |connection| sample.see_end(&connection, at)) {
            Ok(received) => {
                if received.overflows > 0 {
                    self.miss(
                        "the kernel dropped events of connections, because they were not received in time",
                    );
                }
                if let Some((count, first)) = received.malformed {
                    self.miss(&malformed(count, &first));
                }
                received.has_more
            }
            Err(error) => {
                self.events = None;
                self.miss(&chain(&error));
                false
            }
        }
    }
}

fn malformed(count: usize, first: &MalformedEntry) -> String {
    let events = words::number(count, "event of a connection", "events of connections");
    format!("{events} could not be decoded; the first: {first}")
}
