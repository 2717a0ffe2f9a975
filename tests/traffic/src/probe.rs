//! The sending side.

mod connection;
mod count;
mod exchange;
mod flow;
pub(crate) mod names;
mod targets;
mod writer;

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use jiff::Timestamp;
use kube::Client;
use tokio::net::UdpSocket;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;

use crate::packet::{self, Packet};
use crate::report::Report;
use crate::socket::{self, Arrival};
use connection::Event;
use count::Limits;
use exchange::Exchange;
use flow::{Flows, Kind, Start};
use targets::{Known, Target};
use writer::Writer;

/// Time between two writes of the report.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// Source ports of probes to the Service, in turn. Connection tracking stores the pod of a port for half a minute: a
/// port that is reused sooner would reach the same pod, even if it has been deleted.
const SERVICE_PORTS: std::ops::RangeInclusive<u16> = 33_000..=60_999;

/// Location of the prober.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Origin {
    /// In the pod network.
    Pod,
    /// On the node itself.
    Host,
}

/// Targets, intervals, and the report file.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Location of this prober; names the class of its flows
    #[arg(long, value_enum, default_value = "pod")]
    pub from: Origin,
    /// Source address; `::` means all addresses of both families
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    pub address: IpAddr,
    /// Namespace of the Service
    #[arg(long, env = "POD_NAMESPACE", default_value = "traffic")]
    pub namespace: String,
    /// The Service: each of its addresses gets probes, and each address of its ready pods
    #[arg(long, default_value = "echo")]
    pub service: String,
    /// Send probes also over one stream of datagrams and one connection to each address of the Service. Only where its
    /// pods do not end meanwhile: a break is counted
    #[arg(long, action = clap::ArgAction::Set, default_value_t = false)]
    pub hold_service: bool,
    /// Send probes only to the targets of --also and --resolve, not to the Service and its pods
    #[arg(long)]
    pub without_service: bool,
    /// Send only datagrams to the pods: for many of them
    #[arg(long)]
    pub without_connections: bool,
    /// Port of the Service and of its pods
    #[arg(long, default_value_t = 7000)]
    pub port: u16,
    /// Name to resolve with each name server of /etc/resolv.conf; the answer must have an address
    #[arg(long, value_name = "NAME")]
    pub resolve: Option<String>,
    /// Intervals between two queries for the name: a name server has more work than an echo
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub resolve_every: u32,
    /// File of more addresses that get probes like a Service: NAME=ADDRESS:PORT on each line. An address may not
    /// exist yet: see --settle-ms.
    #[arg(long, value_name = "FILE")]
    pub also: Option<PathBuf>,
    /// File of name servers in the format of /etc/resolv.conf, used instead of it
    #[arg(long, value_name = "FILE", default_value = names::RESOLV_CONF)]
    pub resolver: PathBuf,
    /// Time between two probes of a flow
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub interval_ms: u64,
    /// A probe without an answer after this time is lost. Long enough for a sender or target that waits for a core:
    /// on two busy cores 1.85 s were measured once, and an answer dropped by the network never arrives.
    #[arg(long, default_value_t = 4000, value_parser = clap::value_parser!(u64).range(1..))]
    pub timeout_ms: u64,
    /// A new flow counts from its first answer on, and after this time without one at the latest
    #[arg(long, default_value_t = 10_000)]
    pub settle_ms: u64,
    /// Name of this prober: its pod's. The report is NAME.json.
    #[arg(long, env = "POD_NAME")]
    pub name: String,
    /// Node of the prober
    #[arg(long, env = "NODE_NAME")]
    pub node: String,
    /// Folder of the report; it should outlive the pod
    #[arg(long, default_value = "/var/log/traffic")]
    pub reports: PathBuf,
}

/// An answer to a probe, and its time of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Answer {
    packet: Packet,
    at: Instant,
    /// Time of probe and answer in the network, if known.
    in_the_network: Option<Duration>,
}

impl Answer {
    /// Read just now.
    fn of(answer: &packet::Answer<'_>, arrival: &Arrival) -> Self {
        Self {
            packet: answer.packet,
            at: Instant::now(),
            in_the_network: Some(answer.journey.in_the_network(arrival.at)),
        }
    }
}

/// Sends probes until the program is told to end, then writes the last report.
pub async fn run(options: Options) -> Result<()> {
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    std::fs::create_dir_all(&options.reports)
        .with_context(|| format!("create the folder of reports {}", options.reports.display()))?;
    let prober = Prober::new(options).await?;
    let mut prober = tokio::select! {
        prober = prober.meet() => prober?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    tokio::select! {
        () = prober.ask() => {}
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    prober.finish().await
}

struct Prober {
    options: Options,
    socket: UdpSocket,
    flows: Flows,
    known: watch::Receiver<Known>,
    publish: Option<watch::Sender<Known>>,
    events: mpsc::UnboundedReceiver<Event>,
    event_sender: mpsc::UnboundedSender<Event>,
    started: Timestamp,
    next_port: u16,
    last_tick: Option<Instant>,
    longest_pause: Duration,
    writer: Writer,
}

impl Prober {
    async fn new(options: Options) -> Result<Self> {
        let socket = socket::bind((options.address, 0))
            .await
            .with_context(|| format!("open a UDP socket at {}", options.address))?;
        let writer = Writer::new(options.reports.join(format!("{}.json", options.name)));
        let (publish, known) = watch::channel(Known::default());
        let (event_sender, events) = mpsc::unbounded_channel();
        let limits = Limits {
            interval: Duration::from_millis(options.interval_ms),
            timeout: Duration::from_millis(options.timeout_ms),
            settle: Duration::from_millis(options.settle_ms),
        };
        Ok(Self {
            socket,
            flows: Flows::new(options.from, limits, !options.without_connections),
            options,
            known,
            publish: Some(publish),
            events,
            event_sender,
            started: Timestamp::now(),
            next_port: first_port(Timestamp::now()),
            last_tick: None,
            longest_pause: Duration::ZERO,
            writer,
        })
    }

    /// Reads the Service and starts to watch its pods.
    async fn meet(mut self) -> Result<Self> {
        let client = Client::try_default().await.context("find the API server")?;
        let Options {
            namespace,
            service,
            port,
            ..
        } = &self.options;
        if !self.options.without_service {
            for address in targets::service_addresses(client.clone(), namespace, service, *port).await {
                self.flows.set_service(service, address);
                if self.options.hold_service {
                    let start = self.flows.hold_service(service, address);
                    self.connect(start);
                }
            }
        }
        if let Some(file) = &self.options.also {
            for (name, address) in also(file)? {
                self.flows.set_service(&name, address);
            }
        }
        if let Some(name) = &self.options.resolve {
            let name_servers = names::servers(&self.options.resolver).await?;
            for name_server in name_servers {
                self.flows.set_name(name, name_server, self.options.resolve_every);
            }
        }
        if let Some(publish) = self.publish.take()
            && !self.options.without_service
        {
            tokio::spawn(targets::follow(
                client,
                namespace.clone(),
                service.clone(),
                *port,
                publish,
            ));
        }
        Ok(self)
    }

    async fn ask(&mut self) {
        let mut ticks = tokio::time::interval(Duration::from_millis(self.options.interval_ms));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut reports = tokio::time::interval(REPORT_INTERVAL);
        reports.set_missed_tick_behavior(MissedTickBehavior::Skip);
        let mut buffer = [0; 2048];
        loop {
            tokio::select! {
                _ = ticks.tick() => {
                    self.send_all().await;
                    for index in self.flows.due(true) {
                        self.flows.send_over_connection(index, Instant::now(), Timestamp::now());
                    }
                }
                received = socket::receive(&self.socket, &mut buffer) => self.received(&received, &buffer),
                Some(event) = self.events.recv() => self.happened(event),
                Ok(()) = self.known.changed() => {
                    let targets = self.known.borrow_and_update().targets.clone();
                    self.set_pods(&targets);
                }
                _ = reports.tick() => {
                    // The next report may succeed; the last one must.
                    if let Err(error) = self.write(false).await {
                        eprintln!("{error:#}");
                    }
                }
            }
        }
    }

    /// Waits for pending answers, and writes the last report.
    async fn finish(&mut self) -> Result<()> {
        self.flows.stop();
        let limit = tokio::time::Instant::now() + Duration::from_millis(self.options.timeout_ms);
        let mut buffer = [0; 2048];
        while self.flows.is_pending() {
            tokio::select! {
                received = socket::receive(&self.socket, &mut buffer) => self.received(&received, &buffer),
                Some(event) = self.events.recv() => self.happened(event),
                () = tokio::time::sleep_until(limit) => self.flows.expire(Instant::now()),
            }
        }
        self.write(true).await
    }

    fn set_pods(&mut self, targets: &BTreeSet<Target>) {
        for start in self.flows.set_pods(targets) {
            self.connect(start);
        }
    }

    fn connect(&self, start: Start) {
        let Start {
            flow,
            address,
            probes,
        } = start;
        let timeout = Duration::from_millis(self.options.timeout_ms);
        tokio::spawn(connection::hold(
            flow,
            address,
            timeout,
            probes,
            self.event_sender.clone(),
        ));
    }

    fn happened(&mut self, event: Event) {
        match event {
            Event::Answered(answer) => self.flows.answered(&answer, None),
            Event::Failed { flow, reason } => self.flows.failed(flow, reason),
            Event::Broken {
                flow,
                was_open,
                reason,
            } => self.flows.broken(flow, was_open, reason),
        }
    }

    async fn send_all(&mut self) {
        let now = Instant::now();
        if let Some(last) = self.last_tick.replace(now) {
            self.longest_pause = self.longest_pause.max(now - last);
        }
        self.flows.expire(now);
        for index in self.flows.due(false) {
            let (packet, address, kind) = self.flows.send(index, Instant::now(), Timestamp::now());
            match kind {
                // Flows over connections are handled elsewhere.
                Kind::Pod | Kind::ServiceStream | Kind::Connection | Kind::ServiceConnection => {
                    let sent = self
                        .socket
                        .send_to(
                            &packet.encode(Timestamp::now()),
                            from(self.options.address, address),
                        )
                        .await;
                    self.flows.sent(index, sent.err());
                }
                Kind::Service => self.exchange(packet, address, None),
                Kind::Name => {
                    let name = self.options.resolve.clone();
                    self.exchange(packet, address, name);
                }
            }
        }
    }

    /// Sends one probe from its own port: an echo, or a DNS query.
    fn exchange(&mut self, packet: Packet, address: SocketAddr, name: Option<String>) {
        let port = self.next_port;
        self.next_port = if port == *SERVICE_PORTS.end() {
            *SERVICE_PORTS.start()
        } else {
            port + 1
        };
        let exchange = Exchange {
            packet,
            name,
            address,
            port,
            timeout: Duration::from_millis(self.options.timeout_ms),
        };
        tokio::spawn(exchange.make(self.event_sender.clone()));
    }

    fn received(&mut self, received: &std::io::Result<Arrival>, buffer: &[u8]) {
        // An error belongs to one probe that could not be delivered: that probe is lost after its timeout.
        if let Ok(arrival) = received
            && let Some(answer) = Packet::decode_answer(&buffer[..arrival.length])
        {
            self.flows
                .answered(&Answer::of(&answer, arrival), Some(answer.name));
        }
    }

    async fn write(&mut self, finished: bool) -> Result<()> {
        let options = &self.options;
        let report = Report {
            prober: options.name.clone(),
            node: options.node.clone(),
            started: self.started,
            updated: Timestamp::now(),
            finished,
            interval_ms: options.interval_ms,
            timeout_ms: options.timeout_ms,
            longest_pause_ms: u64::try_from(self.longest_pause.as_millis()).unwrap_or(u64::MAX),
            last_problem: self.known.borrow().problem.clone(),
            flows: self.flows.report(),
        };
        self.writer.write(report).await
    }
}

/// Lines of `NAME=ADDRESS:PORT`.
fn also(file: &Path) -> Result<Vec<(String, SocketAddr)>> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let of_line = |line: &str| {
        let (name, address) = line
            .split_once('=')
            .with_context(|| format!("{line:?} in {} is not NAME=ADDRESS:PORT", file.display()))?;
        let parsed = address.parse();
        let address =
            parsed.with_context(|| format!("{address:?} in {} is not ADDRESS:PORT", file.display()))?;
        Ok((name.to_owned(), address))
    };
    text.lines().map(of_line).collect()
}

/// The form of a target for a socket of this address: a socket of both families has IPv4 addresses within IPv6 ones.
fn from(own: IpAddr, target: SocketAddr) -> SocketAddr {
    match (own, target) {
        (IpAddr::V6(_), SocketAddr::V4(target)) => (target.ip().to_ipv6_mapped(), target.port()).into(),
        _ => target,
    }
}

/// A prober that restarts soon uses other ports than its predecessor.
fn first_port(time: Timestamp) -> u16 {
    let count = i64::from(SERVICE_PORTS.end() - SERVICE_PORTS.start()) + 1;
    let offset = u16::try_from(time.as_millisecond().rem_euclid(count)).unwrap_or_default();
    SERVICE_PORTS.start() + offset
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dual_stack_socket_uses_an_ipv4_target_mapped_to_ipv6() {
        let unspecified = |text: &str| text.parse::<IpAddr>().unwrap();
        for (own, target, named) in [
            ("0.0.0.0", "10.244.1.2:7000", "10.244.1.2:7000"),
            ("::", "10.244.1.2:7000", "[::ffff:10.244.1.2]:7000"),
            ("::", "[fd00::2]:7000", "[fd00::2]:7000"),
        ] {
            let target = target.parse().unwrap();
            assert_eq!(from(unspecified(own), target), named.parse().unwrap());
        }
    }
}
