//! The agent's end: tells the traffic pods of its node what to send, judges what they counted, and keeps the sum.

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

/// How often somebody looks whether there is something new to report.
const LOOK: Duration = Duration::from_millis(250);
/// The user of the traffic pods.
const ROOT: u32 = 0;
/// Connections at a time: a node has a pod of each network, and one of either may be about to end.
const MOST_CONNECTIONS: usize = 16;
/// How long a new connection may take to say whose it is.
const HELLO: Duration = Duration::from_secs(5);

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
            floods: state.floods.iter().cloned().collect(),
            at: Timestamp::now(),
        })
    }

    async fn accept(self, listener: UnixListener) {
        let seats = Arc::new(Semaphore::new(MOST_CONNECTIONS));
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let Ok(seat) = Arc::clone(&seats).try_acquire_owned() else {
                        continue;
                    };
                    let hub = self.clone();
                    tokio::spawn(async move {
                        if let Err(error) = hub.converse(stream).await {
                            tracing::debug!(%error, "a traffic pod is gone");
                        }
                        drop(seat);
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
        // The traffic pod runs as root, and nothing else of the node has to say something here.
        let user = stream.peer_cred()?.uid();
        if user != ROOT {
            let problem = format!("user {user} connected, needed root");
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem));
        }
        let (read, mut write) = stream.into_split();
        let mut read = BufReader::new(read);
        let Some(Hello { pod_uid }) = tokio::time::timeout(HELLO, line::read(&mut read)).await?? else {
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
            let now = self.report().map(|report| {
                (
                    report.judged_since,
                    report.reporting,
                    report.breaches,
                    report.floods,
                )
            });
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

#[cfg(test)]
#[path = "hub_tests.rs"]
mod tests;
