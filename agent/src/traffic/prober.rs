//! Sends on every flow of a task and counts the answers. Opens sockets in the pod's network.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use engine::traffic::stream::{FIRST_ANSWER_TIMEOUT, Stream, WINDOW};
use engine::traffic::{Flow, Protocol, TICK};
use jiff::Timestamp;
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::line::{Counts, StreamCount, Task};
use crate::echo::message::{self, Asker};
use crate::echo::{self, Reply};
use crate::host::socket;

/// IPv4 and UDP headers; IPv6 has 20 bytes more.
const HEADERS: u32 = 28;
/// How long a pod counts as flooded, or as masqueraded, after the last answer that says so.
const RECENT: Duration = Duration::from_secs(10);
/// A question that every DNS server answers, at least with a refusal: the name servers of the root. Header of RFC 1035
/// §4.1.1 (recursion desired, one question) without its identifier, then the empty name, type NS, class IN.
const QUESTION: [u8; 15] = [1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 1];
/// Maximum size of a DNS answer over UDP without EDNS (RFC 1035 §2.3.4).
const LONGEST_DNS_ANSWER: usize = 512;
/// The bit of a DNS header's third byte that marks an answer.
const IS_ANSWER: u8 = 0x80;

type Key = (Flow, Protocol);
type Counted = Arc<Mutex<BTreeMap<Key, StreamCount>>>;

/// The current streams.
#[derive(Debug, Default)]
pub struct Prober {
    judged_since: Option<Timestamp>,
    counted: Counted,
    running: BTreeMap<Key, (Limits, JoinHandle<()>)>,
}

/// Settings of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    judged_since: Option<Timestamp>,
    mtu: u32,
    patience: Duration,
}

impl Prober {
    /// Sends on the flows of this task and no others. A stream that continues keeps its counts.
    pub fn set(&mut self, task: &Task) {
        self.judged_since = task.judged_since;
        let limits = Limits {
            judged_since: task.judged_since,
            mtu: task.mtu,
            patience: Duration::from_millis(u64::from(task.patience_milliseconds)),
        };
        let wanted: Vec<Key> = task
            .flows
            .iter()
            .flat_map(|flow| {
                let protocols = flow.class.protocols().iter();
                protocols.map(|protocol| (flow.clone(), *protocol))
            })
            .collect();
        self.running.retain(|key, (current, stream)| {
            let keep = *current == limits && wanted.contains(key);
            if !keep {
                stream.abort();
                lock(&self.counted).remove(key);
            }
            keep
        });
        let asker = match Asker::new() {
            Ok(asker) => asker,
            Err(error) => {
                // The agent waits for a stream that does not start; the next task starts it.
                tracing::error!(%error, "no random number available; no probes are sent");
                return;
            }
        };
        for (place, key) in wanted.into_iter().enumerate() {
            let counted = Arc::clone(&self.counted);
            self.running.entry(key.clone()).or_insert_with(|| {
                let run = Run::new(key, limits, asker, counted);
                (limits, tokio::spawn(run.send_for_ever(place)))
            });
        }
    }

    /// The counts so far.
    pub fn counts(&self) -> Counts {
        Counts {
            judged_since: self.judged_since,
            streams: lock(&self.counted).values().cloned().collect(),
        }
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        for (_, stream) in self.running.values() {
            stream.abort();
        }
    }
}

fn lock(counted: &Counted) -> std::sync::MutexGuard<'_, BTreeMap<Key, StreamCount>> {
    // A poisoned map still contains only complete counts.
    counted.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One running stream.
struct Run {
    key: Key,
    limits: Limits,
    asker: Asker,
    counted: Counted,
    stream: Stream,
    /// Source that floods the answering pod according to its answers, and when it last said so, in running time.
    flooded: Option<(IpAddr, Duration)>,
    /// Address of another host that probes came from at the answering pod, and when it last said so, in running time.
    masqueraded: Option<(IpAddr, Duration)>,
    problem: String,
    /// When the problem occurred, in running time.
    problem_at: Duration,
    /// Time for which this process has run: see [`Stream`].
    running: Duration,
    last_beat: Instant,
}

impl Run {
    fn new(key: Key, limits: Limits, asker: Asker, counted: Counted) -> Self {
        Self {
            key,
            limits,
            asker,
            counted,
            flooded: None,
            masqueraded: None,
            stream: Stream::default(),
            problem: String::new(),
            problem_at: Duration::ZERO,
            running: Duration::ZERO,
            last_beat: Instant::now(),
        }
    }

    async fn send_for_ever(mut self, place: usize) {
        let period = TICK * self.key.1.ticks();
        // Streams that start together do not send at the same moments.
        let places = u32::try_from(place % 16).unwrap_or_default();
        tokio::time::sleep(period / 16 * places).await;
        self.last_beat = Instant::now();
        match self.key.1 {
            Protocol::Udp | Protocol::LargeUdp => loop {
                match self.open() {
                    Ok(socket) => self.datagrams(&socket, period).await,
                    Err(problem) => {
                        // A probe that cannot be sent counts as not answered, whatever the reason.
                        self.beat(period);
                        self.set_problem(problem.to_string());
                        let _ = self.stream.send(self.running);
                        tokio::time::sleep(period).await;
                    }
                }
            },
            Protocol::Tcp | Protocol::Connect | Protocol::Dns => self.exchanges(period).await,
        }
    }

    /// Advances the running time, and counts late probes as lost.
    fn beat(&mut self, period: Duration) {
        let now = Instant::now();
        // A process that was not scheduled for a while did not receive answers either: that time does not count.
        self.running += now.duration_since(self.last_beat).min(period * 2);
        self.last_beat = now;
        let recent = self.stream.observe(self.running, self.limits.patience);
        // Probes that are unanswered because of the problem count as lost only later.
        if recent.lost == 0
            && self.running.saturating_sub(self.problem_at) > self.limits.patience + FIRST_ANSWER_TIMEOUT
        {
            self.problem.clear();
        }
        let recent_of = |said: Option<(IpAddr, Duration)>| {
            said.filter(|(_, at)| self.running.saturating_sub(*at) < RECENT)
                .map(|(address, _)| address)
        };
        lock(&self.counted).insert(
            self.key.clone(),
            StreamCount {
                flow: self.key.0.clone(),
                protocol: self.key.1,
                totals: self.stream.totals(),
                recent,
                problem: self.problem.clone(),
                flooded_by: recent_of(self.flooded),
                masqueraded_as: recent_of(self.masqueraded),
            },
        );
    }

    fn peer(&self) -> SocketAddr {
        SocketAddr::new(self.key.0.address, self.key.0.port)
    }

    fn open(&self) -> io::Result<UdpSocket> {
        socket::datagrams(any_like(self.peer())).map_err(|error| error.source)
    }

    /// Uses one socket for the stream's lifetime, as long as the socket works: connection tracking between the two pods then
    /// treats the probes like the pods' own traffic.
    async fn datagrams(&mut self, socket: &UdpSocket, period: Duration) {
        if let Err(error) = socket.connect(self.peer()).await {
            self.beat(period);
            self.set_problem(error.to_string());
            let _ = self.stream.send(self.running);
            tokio::time::sleep(period).await;
            return;
        }
        let own_address = match socket.local_addr() {
            Ok(address) => address.ip(),
            Err(error) => {
                self.set_problem(error.to_string());
                return;
            }
        };
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut buffer = vec![0; 65_535];
        loop {
            tokio::select! {
                // Pending answers are read before the time advances.
                biased;
                received = socket.recv(&mut buffer) => match received {
                    Ok(length) => self.received(buffer.get(..length).unwrap_or_default(), own_address),
                    Err(error) => self.set_problem(error.to_string()),
                },
                _ = ticks.tick() => {
                    self.beat(period);
                    let number = self.stream.send(self.running);
                    if let Err(error) = socket.send(&self.question(number)).await {
                        self.set_problem(error.to_string());
                    }
                }
            }
        }
    }

    fn set_problem(&mut self, problem: String) {
        self.problem = problem;
        self.problem_at = self.running;
    }

    fn question(&self, number: u64) -> Vec<u8> {
        let size = match self.key.1 {
            Protocol::LargeUdp => {
                let headers = HEADERS + if self.key.0.address.is_ipv6() { 20 } else { 0 };
                usize::try_from(self.limits.mtu.saturating_sub(headers)).unwrap_or_default()
            }
            Protocol::Udp | Protocol::Tcp | Protocol::Connect | Protocol::Dns => message::LEAST,
        };
        message::question(self.asker.nonce(number), size)
    }

    fn received(&mut self, bytes: &[u8], own_address: IpAddr) {
        let Some(answer) = self.asker.read(bytes) else {
            let start = bytes.get(..bytes.len().min(60)).unwrap_or_default();
            self.set_first_problem(format!(
                "answer is not from a replumb pod: {:?}",
                String::from_utf8_lossy(start)
            ));
            return;
        };
        let expected = self.key.0.pod_uid.as_deref();
        if expected.is_some_and(|expected| expected != answer.uid) {
            self.set_first_problem(format!("pod UID {} answered", answer.uid));
            return;
        }
        let needed = self.question(answer.nonce.number).len();
        if answer.size != needed {
            self.set_first_problem(format!("answer has {} bytes, needed {needed}", answer.size));
            return;
        }
        if let Some(source) = answer.flooded_by {
            self.flooded = Some((source, self.running));
        }
        // A pod that reaches itself through a Service has the address of its node, whatever else is masqueraded. The kernel keeps
        // the address that a stream of datagrams began with, whatever its rules are by now.
        let is_itself = answer.uid == self.key.0.source;
        let is_new_connection = self.key.1 == Protocol::Tcp;
        if is_new_connection && answer.source != own_address.to_canonical() && !is_itself {
            self.masqueraded = Some((answer.source, self.running));
        }
        self.stream.answer(answer.nonce.number);
    }

    fn set_first_problem(&mut self, problem: String) {
        if self.problem.is_empty() {
            self.set_problem(problem);
        }
    }

    /// Uses a new socket for each probe, as a client does: the probe tests whether a connection can be opened, and with a fixed
    /// source port connection tracking would send DNS queries to a name server that has ended.
    async fn exchanges(&mut self, period: Duration) {
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (done, mut outcomes) = mpsc::unbounded_channel::<(u64, Result<Answer, String>)>();
        let mut open = JoinSet::new();
        loop {
            tokio::select! {
                biased;
                Some((number, outcome)) = outcomes.recv() => match outcome {
                    Ok(Answer::Anonymous) => self.stream.answer(number),
                    Ok(Answer::Line(Reply { bytes, own_address })) => self.received(&bytes, own_address),
                    Err(problem) => self.set_problem(problem),
                },
                Some(_) = open.join_next() => {}
                _ = ticks.tick() => {
                    self.beat(period);
                    let number = self.stream.send(self.running);
                    let (peer, protocol, done) = (self.peer(), self.key.1, done.clone());
                    // A lost probe that is answered later is counted as late.
                    let limit = self.limits.patience.max(WINDOW);
                    let question = self.question(number);
                    open.spawn(async move {
                        let outcome = tokio::time::timeout(limit, exchange(peer, protocol, number, &question)).await;
                        let outcome = match outcome {
                            Ok(Ok(answer)) => Ok(answer),
                            Ok(Err(error)) => Err(error.to_string()),
                            Err(_) => Err(String::new()),
                        };
                        // The receiver is dropped when the stream has ended.
                        let _ = done.send((number, outcome));
                    });
                }
            }
        }
    }
}

/// The answer on a socket with only one probe.
enum Answer {
    /// The expected answer, from any peer.
    Anonymous,
    /// A line that names the answering pod and the question.
    Line(Reply),
}

async fn exchange(peer: SocketAddr, protocol: Protocol, number: u64, question: &[u8]) -> io::Result<Answer> {
    match protocol {
        Protocol::Dns => resolve(peer, number).await,
        Protocol::Connect => TcpStream::connect(peer).await.map(|_| Answer::Anonymous),
        Protocol::Udp | Protocol::LargeUdp | Protocol::Tcp => {
            echo::ask(peer, question).await.map(Answer::Line)
        }
    }
}

async fn resolve(peer: SocketAddr, number: u64) -> io::Result<Answer> {
    let socket = UdpSocket::bind(any_like(peer)).await?;
    socket.connect(peer).await?;
    let [.., high, low] = number.to_be_bytes();
    socket.send(&[&[high, low], QUESTION.as_slice()].concat()).await?;
    let mut buffer = [0; LONGEST_DNS_ANSWER];
    loop {
        let length = socket.recv(&mut buffer).await?;
        match buffer.get(..length) {
            Some([first, second, flags, ..])
                if (*first, *second) == (high, low) && flags & IS_ANSWER != 0 =>
            {
                return Ok(Answer::Anonymous);
            }
            _ => {}
        }
    }
}

fn any_like(peer: SocketAddr) -> SocketAddr {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(any, 0)
}
