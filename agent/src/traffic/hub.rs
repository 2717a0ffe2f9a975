//! The agent's side: gives tasks to the traffic pods of its node, judges their counts, and keeps the totals.

mod state;

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::traffic::{Breach, ClassCount, TrafficReport};
use engine::traffic::gates::Gates;
use engine::traffic::{Flow, PathClass};
use jiff::Timestamp;
use thiserror::Error;
use tokio::io::BufReader;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, Semaphore, watch};

use super::line::{self, Counts, Hello, SOCKET, Task};
use super::prober::Prober;
use state::State;

/// Period of checking whether the report has changed.
const CHECK_PERIOD: Duration = Duration::from_millis(250);
/// The user of the traffic pods.
const ROOT: u32 = 0;
/// Maximum number of connections: a node has a traffic pod of each network, and one more of each may be terminating.
const MOST_CONNECTIONS: usize = 16;
/// Timeout of the first line of a new connection, which names the pod.
const HELLO: Duration = Duration::from_secs(5);

/// The socket for the traffic pods could not be created.
#[derive(Debug, Error)]
#[error("could not listen for traffic pods on {path}")]
pub struct HubError {
    path: PathBuf,
    /// The kernel's error.
    #[source]
    source: io::Error,
}

/// The traffic pods of this node and their state. Clones share the state.
#[derive(Clone, Debug)]
pub struct Hub {
    node: String,
    orders: Arc<watch::Sender<Orders>>,
    state: Arc<Mutex<State>>,
    /// Sends to the API server from the host network, which does not change: if these probes are not answered either, the pods'
    /// path is not the cause.
    own: Arc<Mutex<Prober>>,
    news: Arc<Notify>,
}

/// Task of all traffic pods.
#[derive(Clone, Debug, Default, PartialEq)]
struct Orders {
    flows: Vec<Flow>,
    gates: Gates,
    judged_since: Option<Timestamp>,
    mtu: u32,
}

impl Hub {
    /// Listens in this folder.
    ///
    /// # Errors
    ///
    /// The folder or the socket cannot be created.
    pub fn listen(node: &str, folder: &Path) -> Result<Self, HubError> {
        let path = folder.join(SOCKET);
        let open = || -> io::Result<UnixListener> {
            std::fs::create_dir_all(folder)?;
            // The socket of the previous agent, which has ended.
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
        tokio::spawn(hub.clone().watch_for_news());
        Ok(hub)
    }

    /// Completes when a breach started or ended, or a pod started or stopped reporting, since the last completion.
    pub async fn changed(&self) {
        self.news.notified().await;
    }

    /// Requests these flows and no others. A changed `judged_since` restarts everything except the counts.
    pub fn set(&self, flows: &[Flow], gates: Option<Gates>, judged_since: Option<Timestamp>, mtu: u32) {
        let orders = Orders {
            flows: flows.to_vec(),
            gates: gates.unwrap_or_default(),
            judged_since,
            mtu,
        };
        let restarts = self.orders.borrow().judged_since != judged_since;
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
            if restarts {
                state.forget_all_but(&BTreeSet::new());
            }
            state.forget_all_but(&wanted);
        }
    }

    /// The current report; `None` as long as no flow was ever requested.
    pub fn report(&self) -> Option<TrafficReport> {
        let orders = self.orders.borrow().clone();
        let mut state = lock(&self.state);
        let reporting: Vec<String> = sources(&orders)
            .into_iter()
            .filter(|uid| !state.is_silent(uid) && state.has_started(uid, &orders))
            .map(str::to_owned)
            .collect();
        let silent = unanswered(&lock(&self.own).counts());
        state.judge(&self.node, &orders, &silent, Timestamp::now());
        let classes: Vec<ClassCount> = state.sums();
        let breaches: Vec<Breach> = state.breaches.values().cloned().collect();
        let is_empty = orders.flows.is_empty() && classes.is_empty();
        (!is_empty).then(|| TrafficReport {
            flows: u32::try_from(orders.flows.len()).unwrap_or(u32::MAX),
            losses_counted_since: orders.judged_since,
            reporting,
            classes,
            breaches,
            floods: state.floods.iter().cloned().collect(),
            masquerades: state.masquerades(&orders),
            at: Timestamp::now(),
        })
    }

    async fn accept(self, listener: UnixListener) {
        let slots = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let Ok(slot) = Arc::clone(&slots).try_acquire_owned() else {
                        continue;
                    };
                    let hub = self.clone();
                    tokio::spawn(async move {
                        if let Err(error) = hub.converse(stream).await {
                            tracing::debug!(%error, "connection of a traffic pod failed");
                        }
                        drop(slot);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "accepting a connection of a traffic pod failed");
                    tokio::time::sleep(CHECK_PERIOD).await;
                }
            }
        }
    }

    async fn converse(&self, stream: UnixStream) -> io::Result<()> {
        // Traffic pods run as root, and no other program of the node may report here.
        let user = stream.peer_cred()?.uid();
        if user != ROOT {
            let problem = format!("user of the connecting process is {user}, needed {ROOT} (root)");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
        }
        let (read, mut write) = stream.into_split();
        let mut read = BufReader::new(read);
        let Some(Hello { pod_uid }) = tokio::time::timeout(HELLO, line::read(&mut read)).await?? else {
            return Ok(());
        };
        tracing::info!(pod_uid, "traffic pod connected");
        let mut orders = self.orders.subscribe();
        let send_tasks = async {
            loop {
                let task = task(&orders.borrow_and_update(), &pod_uid);
                line::write(&mut write, &task).await?;
                if orders.changed().await.is_err() {
                    return Ok(());
                }
            }
        };
        let receive_counts = async {
            while let Some(counts) = line::read::<Counts>(&mut read).await? {
                let orders = self.orders.borrow().clone();
                lock(&self.state).add_counts(&pod_uid, counts, &orders);
            }
            Ok(())
        };
        tokio::select! {
            ended = send_tasks => ended,
            ended = receive_counts => ended,
        }
    }

    /// Wakes the loop when the coordinator has to know a change immediately.
    async fn watch_for_news(self) {
        let mut notified = None;
        let mut ticks = tokio::time::interval(CHECK_PERIOD);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let now = self.report().map(|report| {
                (
                    report.losses_counted_since,
                    report.reporting,
                    report.breaches,
                    report.floods,
                    report.masquerades,
                )
            });
            if now != notified {
                notified = now;
                self.news.notify_one();
            }
        }
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is complete before a panic is possible.
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

/// Flows from the host to each address of the API server.
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

/// Peers that left a probe of the host unanswered in the last seconds.
fn unanswered(own: &Counts) -> BTreeSet<SocketAddr> {
    own.streams
        .iter()
        .filter(|stream| stream.recent.lost > 0)
        .map(|stream| SocketAddr::new(stream.flow.address, stream.flow.port))
        .collect()
}

#[cfg(test)]
mod tests;
