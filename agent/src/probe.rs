//! Probes an address in another node's pod network: UDP, TCP, and the largest datagram that the tunnel carries.
//! Opens sockets.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::node_migration::{ProbeResult, ProbeTarget};
use jiff::Timestamp;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::echo;
use crate::echo::message::{self, Asker, LEAST, Nonce};
use crate::host::socket;

/// Timeout of one answer: a pod network of one cluster answers in milliseconds.
const ANSWER: Duration = Duration::from_secs(1);
/// Attempts before the path counts as broken: one may be lost while the neighbor's address is being resolved.
const TRIES: u32 = 3;
/// Pause between two probes of a target that was not reached.
const SOON: Duration = Duration::from_millis(500);
/// Pause between two probes of a target that was reached.
const LATER: Duration = Duration::from_secs(5);
/// MTU while the settings are not known: every IPv4 path of a tunnel carries it.
pub const LEAST_MTU: u32 = 1280;

/// Probes every target until it is removed from the spec; results wake the loop.
#[derive(Debug)]
pub struct Probes {
    changed: Arc<Notify>,
    results: Arc<Mutex<BTreeMap<String, ProbeResult>>>,
    running: BTreeMap<String, JoinHandle<()>>,
}

impl Probes {
    /// Without targets. Each result notifies `changed`.
    pub fn new(changed: Arc<Notify>) -> Self {
        Self {
            changed,
            results: Arc::default(),
            running: BTreeMap::new(),
        }
    }

    /// Probes these targets and no others. The size of the large datagram follows from the tunnel's MTU.
    pub fn set(&mut self, targets: &[ProbeTarget], mtu: u32) {
        let wanted: BTreeMap<String, &ProbeTarget> =
            targets.iter().map(|target| (key(target, mtu), target)).collect();
        self.running.retain(|key, task| {
            let keep = wanted.contains_key(key);
            if !keep {
                task.abort();
            }
            keep
        });
        self.lock().retain(|key, _| wanted.contains_key(key));
        for (key, target) in wanted {
            self.running.entry(key.clone()).or_insert_with(|| {
                let (target, changed, results) = (
                    target.clone(),
                    Arc::clone(&self.changed),
                    Arc::clone(&self.results),
                );
                tokio::spawn(follow(key, target, mtu, changed, results))
            });
        }
    }

    /// The latest results, in the order of the targets in the spec.
    pub fn results(&self, targets: &[ProbeTarget]) -> Vec<ProbeResult> {
        let results = self.lock();
        targets
            .iter()
            .filter_map(|target| results.values().find(|result| result.target == *target).cloned())
            .collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<String, ProbeResult>> {
        // A poisoned map still contains only complete results.
        self.results.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        for task in self.running.values() {
            task.abort();
        }
    }
}

fn key(target: &ProbeTarget, mtu: u32) -> String {
    format!(
        "{} {} {} {} {mtu}",
        target.node, target.address, target.port, target.pod_uid
    )
}

async fn follow(
    key: String,
    target: ProbeTarget,
    mtu: u32,
    changed: Arc<Notify>,
    results: Arc<Mutex<BTreeMap<String, ProbeResult>>>,
) {
    loop {
        let outcome = probe(&target, mtu).await;
        let reached = outcome.is_reached();
        let result = ProbeResult {
            target: target.clone(),
            reached,
            message: outcome.message(),
            at: Timestamp::now(),
        };
        tracing::debug!(node = %target.node, address = %target.address, reached, message = %result.message, "probed");
        results
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(key.clone(), result);
        changed.notify_one();
        tokio::time::sleep(if reached { LATER } else { SOON }).await;
    }
}

/// Results of one round of probes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// A small datagram, answered by the expected pod.
    pub udp: Result<(), String>,
    /// A connection, answered by the expected pod.
    pub tcp: Result<(), String>,
    /// The largest datagram that the tunnel carries, in both directions.
    pub large: Result<(), String>,
    /// The size of that datagram's IP packet.
    pub mtu: u32,
}

impl Outcome {
    /// Whether all three were answered.
    pub fn is_reached(&self) -> bool {
        self.udp.is_ok() && self.tcp.is_ok() && self.large.is_ok()
    }

    /// The result of each probe. The text does not change while the results do not.
    pub fn message(&self) -> String {
        let say = |name: String, outcome: &Result<(), String>| match outcome {
            Ok(()) => format!("{name} answered"),
            Err(problem) => format!("{name}: {problem}"),
        };
        [
            say("UDP".to_owned(), &self.udp),
            say("TCP".to_owned(), &self.tcp),
            say(format!("UDP of {} bytes", self.mtu), &self.large),
        ]
        .join("; ")
    }
}

/// One round of probes, all three at once.
pub async fn probe(target: &ProbeTarget, mtu: u32) -> Outcome {
    let address = SocketAddr::new(target.address, target.port);
    let headers = if target.address.is_ipv4() { 28 } else { 48 };
    let payload = usize::try_from(mtu.saturating_sub(headers)).unwrap_or_default();
    let asker = match Asker::new() {
        Ok(asker) => asker,
        Err(error) => {
            let problem = || Err(format!("no random number: {error}"));
            return Outcome {
                udp: problem(),
                tcp: problem(),
                large: problem(),
                mtu,
            };
        }
    };
    let tries = u64::from(TRIES);
    let (udp, tcp, large) = tokio::join!(
        ask(Over::Udp, address, asker, (0, LEAST), &target.pod_uid),
        ask(Over::Tcp, address, asker, (tries, LEAST), &target.pod_uid),
        ask(Over::Udp, address, asker, (2 * tries, payload), &target.pod_uid),
    );
    Outcome { udp, tcp, large, mtu }
}

/// Transport of a question.
#[derive(Clone, Copy)]
enum Over {
    Udp,
    /// Over a new connection.
    Tcp,
}

/// Asks until one attempt is answered; `first` is the number of the first question, and `size` the bytes of each. Each question
/// has its own number: a late answer to another question does not count.
async fn ask(
    over: Over,
    address: SocketAddr,
    asker: Asker,
    (first, size): (u64, usize),
    uid: &str,
) -> Result<(), String> {
    let mut problem = String::new();
    for attempt in 0..u64::from(TRIES) {
        let nonce = asker.nonce(first + attempt);
        let question = message::question(nonce, size);
        let reply = match over {
            Over::Udp => exchange(address, &question).await,
            Over::Tcp => timed(echo::ask(address, &question))
                .await
                .map(|reply| reply.bytes),
        };
        match reply.and_then(|reply| understood(asker, nonce, &reply, question.len(), uid)) {
            Ok(()) => return Ok(()),
            Err(text) => problem = text,
        }
    }
    Err(problem)
}

/// Sends a datagram and receives the reply. A valid answer has as many bytes as the question; one byte more shows that it is not
/// valid.
async fn exchange(address: SocketAddr, question: &[u8]) -> Result<Vec<u8>, String> {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let talk = async {
        let socket = socket::datagrams(SocketAddr::new(any, 0)).map_err(|error| error.source)?;
        socket.connect(address).await?;
        socket.send(question).await?;
        let mut reply = vec![0; question.len() + 1];
        let length = socket.recv(&mut reply).await?;
        reply.truncate(length);
        Ok::<_, std::io::Error>(reply)
    };
    timed(talk).await
}

/// Checks that this is the answer of the expected pod to this question.
fn understood(asker: Asker, nonce: Nonce, reply: &[u8], size: usize, uid: &str) -> Result<(), String> {
    let Some(answer) = asker.read(reply).filter(|answer| answer.nonce == nonce) else {
        let start: String = String::from_utf8_lossy(reply).trim().chars().take(80).collect();
        return Err(format!(
            "answer is not from a replumb pod: {start:?}, needed pod UID {uid}"
        ));
    };
    if answer.uid != uid {
        return Err(format!("pod UID {} answered, needed pod UID {uid}", answer.uid));
    }
    if answer.size != size {
        return Err(format!("answer has {} bytes, needed {size}", answer.size));
    }
    Ok(())
}

async fn timed<T>(talk: impl Future<Output = std::io::Result<T>>) -> Result<T, String> {
    match tokio::time::timeout(ANSWER, talk).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", ANSWER.as_secs())),
    }
}

#[cfg(test)]
mod tests;
