//! The agent's end: tells the traffic pods of its node what to send, judges what they counted, and keeps the sum.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::traffic::{Breach, ClassCount, TrafficReport};
use jiff::Timestamp;
use plan::traffic::gates::{Gates, judge};
use plan::traffic::stream::Totals;
use plan::traffic::{Flow, PathClass, Protocol};
use thiserror::Error;
use tokio::io::BufReader;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use super::line::{self, Counts, Hello, SOCKET, Task};
use super::prober::Prober;

/// A pod that says nothing for this long is one that nobody knows anything of.
const SILENCE: Duration = Duration::from_secs(5);
/// A path to the API server is a breach only after this time: by then the agent knows whether it hears of it itself.
const OWN_LOOK: Duration = Duration::from_secs(1);
/// How often somebody looks whether there is something new to report.
const LOOK: Duration = Duration::from_millis(250);

/// The socket for the traffic pods could not be made.
#[derive(Debug, Error)]
#[error("could not listen for traffic pods on {path}")]
pub struct HubError {
    path: PathBuf,
    /// The kernel's answer.
    #[source]
    source: io::Error,
}

/// The traffic pods of this node and what is known of them. Cloning shares it.
#[derive(Clone, Debug)]
pub struct Hub {
    node: String,
    orders: Arc<watch::Sender<Orders>>,
    state: Arc<Mutex<State>>,
    /// Sends to the API server from the host, whose network nobody changes: where this is not answered either, it is not the
    /// pods' path that is broken.
    own: Arc<Mutex<Prober>>,
    news: Arc<Notify>,
}

/// What is wanted of the traffic pods.
#[derive(Clone, Debug, Default, PartialEq)]
struct Orders {
    flows: Vec<Flow>,
    gates: Gates,
    judged_since: Option<Timestamp>,
    mtu: u32,
}

type Key = (Flow, Protocol);

#[derive(Debug, Default)]
struct State {
    /// Since when each flow is asked for.
    asked: BTreeMap<Flow, Instant>,
    /// When each pod said something last, by UID.
    heard: BTreeMap<String, Instant>,
    streams: BTreeMap<Key, Known>,
    /// Streams that are not sent any more.
    over: BTreeMap<PathClass, Totals>,
    breaches: BTreeMap<(Flow, Option<Protocol>), Breach>,
}

/// What is known of one stream.
#[derive(Clone, Debug, Default)]
struct Known {
    /// From before the pod's process was started anew.
    before: Totals,
    last: Totals,
    /// The words, and since when without a pause.
    exceeded: Option<(Instant, String)>,
}

impl Hub {
    /// Listens in this folder.
    pub fn listen(node: &str, folder: &Path) -> Result<Self, HubError> {
        let path = folder.join(SOCKET);
        let open = || -> io::Result<UnixListener> {
            std::fs::create_dir_all(folder)?;
            // The last agent's, who does not listen any more.
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
            let listener = UnixListener::bind(&path)?;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
            Ok(listener)
        };
        let listener = open().map_err(|source| HubError {
            path: path.clone(),
            source,
        })?;
        let hub = Self {
            node: node.to_owned(),
            orders: Arc::new(watch::Sender::new(Orders::default())),
            state: Arc::default(),
            own: Arc::default(),
            news: Arc::default(),
        };
        tokio::spawn(hub.clone().accept(listener));
        tokio::spawn(hub.clone().look_out());
        Ok(hub)
    }

    /// Completes when a breach has begun or ended, or a pod begins or ceases to report, since it completed last.
    pub async fn has_news(&self) {
        self.news.notified().await;
    }

    /// Asks for these flows and no others. With another `judged_since` everything begins anew but the counts.
    pub fn set(&self, flows: &[Flow], gates: Option<Gates>, judged_since: Option<Timestamp>, mtu: u32) {
        let orders = Orders {
            flows: flows.to_vec(),
            gates: gates.unwrap_or_default(),
            judged_since,
            mtu,
        };
        let anew = self.orders.borrow().judged_since != judged_since;
        let changed = self.orders.send_if_modified(|now| {
            let differs = *now != orders;
            if differs {
                *now = orders;
            }
            differs
        });
        if changed {
            lock(&self.own).set(&own_task(&self.orders.borrow()));
            let wanted: BTreeSet<&Flow> = flows.iter().collect();
            let mut state = lock(&self.state);
            if anew {
                state.forget_all_but(&BTreeSet::new());
            }
            state.forget_all_but(&wanted);
        }
    }

    /// What is known now; `None` while nothing is asked for and nothing was.
    pub fn report(&self) -> Option<TrafficReport> {
        let orders = self.orders.borrow().clone();
        let mut state = lock(&self.state);
        let reporting: Vec<String> = sources(&orders)
            .into_iter()
            .filter(|uid| !state.is_silent(uid) && state.has_begun(uid, &orders))
            .map(str::to_owned)
            .collect();
        let silent = not_answered(&lock(&self.own).counts());
        state.judge(&self.node, &orders, &silent, Timestamp::now());
        let classes: Vec<ClassCount> = state.sums();
        let breaches: Vec<Breach> = state.breaches.values().cloned().collect();
        let nothing = orders.flows.is_empty() && classes.is_empty();
        (!nothing).then(|| TrafficReport {
            flows: u32::try_from(orders.flows.len()).unwrap_or(u32::MAX),
            judged_since: orders.judged_since,
            reporting,
            classes,
            breaches,
            at: Timestamp::now(),
        })
    }

    async fn accept(self, listener: UnixListener) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let hub = self.clone();
                    tokio::spawn(async move {
                        if let Err(error) = hub.converse(stream).await {
                            tracing::debug!(%error, "a traffic pod is gone");
                        }
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a traffic pod could not be let in");
                    tokio::time::sleep(LOOK).await;
                }
            }
        }
    }

    async fn converse(&self, stream: UnixStream) -> io::Result<()> {
        let (read, mut write) = stream.into_split();
        let mut read = BufReader::new(read);
        let Some(Hello { pod_uid }) = line::read(&mut read).await? else {
            return Ok(());
        };
        tracing::info!(pod_uid, "a traffic pod is in touch");
        let mut orders = self.orders.subscribe();
        let tell = async {
            loop {
                let task = task(&orders.borrow_and_update(), &pod_uid);
                line::write(&mut write, &task).await?;
                if orders.changed().await.is_err() {
                    return Ok(());
                }
            }
        };
        let listen = async {
            while let Some(counts) = line::read::<Counts>(&mut read).await? {
                let orders = self.orders.borrow().clone();
                lock(&self.state).hear(&pod_uid, counts, &orders);
            }
            Ok(())
        };
        tokio::select! {
            ended = tell => ended,
            ended = listen => ended,
        }
    }

    /// Wakes the loop when there is something that the coordinator has to know at once.
    async fn look_out(self) {
        let mut told = None;
        let mut ticks = tokio::time::interval(LOOK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = self
                .report()
                .map(|report| (report.judged_since, report.reporting, report.breaches));
            if now != told {
                told = now;
                self.news.notify_one();
            }
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change of it is whole before something can fail.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn sources(orders: &Orders) -> BTreeSet<&str> {
    orders.flows.iter().map(|flow| flow.source.as_str()).collect()
}

fn task(orders: &Orders, pod_uid: &str) -> Task {
    Task {
        flows: orders
            .flows
            .iter()
            .filter(|flow| flow.source == pod_uid)
            .cloned()
            .collect(),
        judged_since: orders.judged_since,
        mtu: orders.mtu,
        patience_milliseconds: orders.gates.max_gap_milliseconds,
    }
}

/// The API server's addresses, once each.
fn own_task(orders: &Orders) -> Task {
    let flows: BTreeSet<Flow> = orders
        .flows
        .iter()
        .filter(|flow| flow.class == PathClass::PodToApi)
        .map(|flow| Flow {
            source: String::new(),
            ..flow.clone()
        })
        .collect();
    Task {
        flows: flows.into_iter().collect(),
        judged_since: orders.judged_since,
        mtu: orders.mtu,
        patience_milliseconds: orders.gates.max_gap_milliseconds,
    }
}

/// Whom the host itself had an answer missing from lately.
fn not_answered(own: &Counts) -> BTreeSet<SocketAddr> {
    own.streams
        .iter()
        .filter(|stream| stream.recent.lost > 0)
        .map(|stream| SocketAddr::new(stream.flow.address, stream.flow.port))
        .collect()
}

impl State {
    fn forget_all_but(&mut self, wanted: &BTreeSet<&Flow>) {
        let now = Instant::now();
        let (kept, over): (BTreeMap<_, _>, BTreeMap<_, _>) = std::mem::take(&mut self.streams)
            .into_iter()
            .partition(|((flow, _), _)| wanted.contains(flow));
        self.streams = kept;
        for ((flow, _), known) in over {
            let sum = self.over.entry(flow.class).or_default();
            *sum = sum.and(known.totals());
        }
        self.asked.retain(|flow, _| wanted.contains(flow));
        for flow in wanted {
            self.asked.entry((*flow).clone()).or_insert(now);
        }
        self.heard
            .retain(|uid, _| wanted.iter().any(|flow| flow.source == *uid));
    }

    fn hear(&mut self, pod_uid: &str, counts: Counts, orders: &Orders) {
        // It has not heard of its new task yet.
        if counts.judged_since != orders.judged_since {
            return;
        }
        self.heard.insert(pod_uid.to_owned(), Instant::now());
        for count in counts.streams {
            // What it sends still, although it is not asked for any more, is counted already.
            if count.flow.source != pod_uid || !orders.flows.contains(&count.flow) {
                continue;
            }
            let class = count.flow.class;
            let known = self.streams.entry((count.flow, count.protocol)).or_default();
            if count.totals.sent < known.last.sent {
                known.before = known.totals();
            }
            known.last = count.totals;
            let since = known
                .exceeded
                .take()
                .map_or_else(Instant::now, |(since, _)| since);
            known.exceeded = judge(class, &count.recent, &orders.gates).map(|words| {
                if count.problem.is_empty() {
                    (since, words)
                } else {
                    (since, format!("{words} ({})", count.problem))
                }
            });
        }
    }

    fn is_silent(&self, pod_uid: &str) -> bool {
        self.heard.get(pod_uid).is_none_or(|at| at.elapsed() > SILENCE)
    }

    /// Whether something is counted on each of the pod's streams.
    fn has_begun(&self, pod_uid: &str, orders: &Orders) -> bool {
        let mut flows = orders.flows.iter().filter(|flow| flow.source == pod_uid);
        flows.all(|flow| {
            flow.class.protocols().iter().all(|protocol| {
                let known = self.streams.get(&(flow.clone(), *protocol));
                known.is_some_and(|known| known.totals().sent > 0)
            })
        })
    }

    /// Breaches that begin now get their words; those that go on keep theirs, and those that are over go.
    fn judge(&mut self, node: &str, orders: &Orders, silent: &BTreeSet<SocketAddr>, now: Timestamp) {
        let mut found: BTreeMap<(Flow, Option<Protocol>), String> = BTreeMap::new();
        for flow in &orders.flows {
            let patient = self.asked.get(flow).is_none_or(|at| at.elapsed() <= SILENCE);
            if self.is_silent(&flow.source) {
                if !patient {
                    let words = "the traffic pod does not report: nobody knows what is lost".to_owned();
                    found.insert((flow.clone(), None), words);
                }
                continue;
            }
            for protocol in flow.class.protocols() {
                let known = self.streams.get(&(flow.clone(), *protocol));
                let Some((since, words)) = known.and_then(|known| known.exceeded.clone()) else {
                    continue;
                };
                let to_api = flow.class == PathClass::PodToApi;
                let is_away = silent.contains(&SocketAddr::new(flow.address, flow.port));
                if to_api && (is_away || since.elapsed() < OWN_LOOK) {
                    continue;
                }
                found.insert((flow.clone(), Some(*protocol)), words);
            }
        }
        self.breaches.retain(|key, _| found.contains_key(key));
        for ((flow, protocol), words) in found {
            let how = protocol.map_or("nothing", Protocol::words);
            let message = format!(
                "{}, {how} from node {node} to {} ({}): {words}",
                flow.class.words(),
                flow.to,
                flow.address
            );
            let breach = Breach {
                flow: flow.clone(),
                protocol,
                since: now,
                message,
            };
            self.breaches.entry((flow, protocol)).or_insert(breach);
        }
    }

    fn sums(&self) -> Vec<ClassCount> {
        let mut sums = self.over.clone();
        for ((flow, _), known) in &self.streams {
            let sum = sums.entry(flow.class).or_default();
            *sum = sum.and(known.totals());
        }
        sums.into_iter()
            .map(|(class, totals)| ClassCount { class, totals })
            .collect()
    }
}

impl Known {
    fn totals(&self) -> Totals {
        self.before.and(self.last)
    }
}

#[cfg(test)]
#[path = "hub_tests.rs"]
mod tests;
