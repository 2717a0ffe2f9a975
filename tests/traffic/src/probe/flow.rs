//! The flows of one prober: to the Service, and to each present or past pod.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Instant;

use jiff::Timestamp;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::count::{Counter, Limits};
use super::targets::Target;
use super::{Answer, Origin};
use crate::packet::Packet;
use crate::report;

/// The target of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One pod.
    Pod,
    /// One pod, over a permanent connection.
    Connection,
    /// A Service: any of its pods, by a new flow for each probe.
    Service,
    /// A Service, by one stream of datagrams: always the same pod.
    ServiceStream,
    /// A Service, over a permanent connection.
    ServiceConnection,
    /// A name, at a name server.
    Name,
}

impl Kind {
    /// Whether probes are sent over a connection.
    fn is_connection(self) -> bool {
        matches!(self, Self::Connection | Self::ServiceConnection)
    }
}

/// A connection to be made.
#[derive(Debug)]
pub struct Start {
    /// The flow.
    pub flow: usize,
    /// The target address.
    pub address: SocketAddr,
    /// The probes for the connection, which ends when the channel closes.
    pub probes: UnboundedReceiver<Packet>,
}

#[derive(Debug)]
struct Flow {
    kind: Kind,
    target: Target,
    counter: Counter,
    /// Number of intervals between two probes, and number of intervals since the last one.
    every: u32,
    passed: u32,
    active: bool,
    last_error: Option<String>,
    /// The channel for probes over a connection.
    connection: Option<UnboundedSender<Packet>>,
}

impl Flow {
    /// Sends no more probes; pending ones may still be answered.
    fn end(&mut self) {
        self.active = false;
        self.connection = None;
    }
}

/// All flows. A flow is identified by its index in the list, which never changes.
#[derive(Debug)]
pub struct Flows {
    origin: Origin,
    limits: Limits,
    /// Whether each pod also gets probes over a connection.
    connections: bool,
    list: Vec<Flow>,
}

impl Flows {
    /// An empty list. `connections`: whether each pod also gets probes over a connection.
    pub fn new(origin: Origin, limits: Limits, connections: bool) -> Self {
        Self {
            origin,
            limits,
            connections,
            list: Vec::new(),
        }
    }

    /// Starts the flow to the Service.
    pub fn set_service(&mut self, name: &str, address: SocketAddr) {
        self.set(Kind::Service, name, address);
    }

    /// Starts a stream of datagrams and a connection to the Service. Its pods must not end: both stay with the pod that
    /// they met first. Returns the connection to be made.
    pub fn hold_service(&mut self, name: &str, address: SocketAddr) -> Start {
        self.set(Kind::ServiceStream, name, address);
        let flow = self.set(Kind::ServiceConnection, name, address);
        self.connect(flow)
    }

    /// Opens the channel of a flow over a connection.
    fn connect(&mut self, flow: usize) -> Start {
        let (sender, probes) = unbounded_channel();
        self.list[flow].connection = Some(sender);
        Start {
            flow,
            address: self.list[flow].target.address,
            probes,
        }
    }

    /// Starts to query a name server for this name, once in this number of intervals.
    pub fn set_name(&mut self, name: &str, name_server: SocketAddr, every: u32) {
        let flow = self.set(Kind::Name, name, name_server);
        self.list[flow].every = every;
        self.list[flow].counter = Counter::new(Limits {
            interval: self.limits.interval * every,
            ..self.limits
        });
    }

    fn set(&mut self, kind: Kind, name: &str, address: SocketAddr) -> usize {
        self.begin(
            kind,
            Target {
                name: name.to_owned(),
                address,
                node: None,
            },
        )
    }

    /// Sends probes to exactly these pods from now on. Returns the connections to be made.
    pub fn set_pods(&mut self, targets: &BTreeSet<Target>) -> Vec<Start> {
        let is_of_a_pod = |flow: &&mut Flow| matches!(flow.kind, Kind::Pod | Kind::Connection);
        for flow in self.list.iter_mut().filter(is_of_a_pod) {
            if !targets.contains(&flow.target) {
                flow.end();
            }
        }
        let mut starts = Vec::new();
        for target in targets {
            self.begin(Kind::Pod, target.clone());
            if !self.connections {
                continue;
            }
            let flow = self.begin(Kind::Connection, target.clone());
            if self.list[flow].connection.is_none() {
                starts.push(self.connect(flow));
            }
        }
        starts
    }

    /// Continues an existing flow, or starts a new one.
    fn begin(&mut self, kind: Kind, target: Target) -> usize {
        let known = self
            .list
            .iter()
            .position(|flow| flow.kind == kind && flow.target == target);
        if let Some(index) = known {
            self.list[index].active = true;
            return index;
        }
        let counter = Counter::new(self.limits);
        self.list.push(Flow {
            kind,
            target,
            counter,
            every: 1,
            passed: 0,
            active: true,
            last_error: None,
            connection: None,
        });
        self.list.len() - 1
    }

    /// Stops all flows.
    pub fn stop(&mut self) {
        self.list.iter_mut().for_each(Flow::end);
    }

    /// An interval has passed: returns the flows that send a probe now, either those over connections or the others.
    pub fn due(&mut self, connections: bool) -> Vec<usize> {
        let is_due = |flow: &mut Flow| {
            if !flow.active || flow.kind.is_connection() != connections {
                return false;
            }
            flow.passed = (flow.passed + 1) % flow.every;
            flow.passed == 0
        };
        let flows = self.list.iter_mut().enumerate();
        flows
            .filter_map(|(index, flow)| is_due(flow).then_some(index))
            .collect()
    }

    /// Sends a probe over a flow's connection. Without a connection at the moment, the probe is lost after its timeout.
    pub fn send_over_connection(&mut self, index: usize, now: Instant, time: Timestamp) {
        let (packet, ..) = self.send(index, now, time);
        if let Some(connection) = &self.list[index].connection {
            connection.send(packet).ok();
        }
    }

    /// A connection could not be made or has ended. For a terminating target this is expected.
    pub fn broken(&mut self, index: usize, was_open: bool, reason: String) {
        let flow = &mut self.list[index];
        if flow.active {
            if was_open {
                flow.counter.broken();
            }
            flow.last_error = Some(reason);
        }
    }

    /// The next probe of a flow, counted as sent.
    pub fn send(&mut self, index: usize, now: Instant, time: Timestamp) -> (Packet, SocketAddr, Kind) {
        let flow = &mut self.list[index];
        let packet = Packet {
            flow: index as u64,
            number: flow.counter.send(now, time),
        };
        (packet, flow.target.address, flow.kind)
    }

    /// Stores the reason why a probe could not be sent; the probe is lost after its timeout.
    pub fn sent(&mut self, index: usize, error: Option<std::io::Error>) {
        if let Some(error) = error {
            self.list[index].last_error = Some(error.to_string());
        }
    }

    /// Stores the reason why a probe got no answer; the probe is lost after its timeout.
    pub fn failed(&mut self, index: usize, reason: String) {
        if let Some(flow) = self.list.get_mut(index) {
            flow.last_error = Some(reason);
        }
    }

    /// Counts an answer, with its sender if relevant.
    pub fn answered(&mut self, answer: &Answer, by: Option<&str>) {
        let packet = answer.packet;
        let Some(flow) = usize::try_from(packet.flow)
            .ok()
            .and_then(|index| self.list.get_mut(index))
        else {
            return;
        };
        match by {
            Some(name) if flow.kind == Kind::Pod && name != flow.target.name => flow.counter.stray(),
            _ => {
                flow.counter.answer(packet.number, answer.at);
                if let Some(time) = answer.in_the_network {
                    flow.counter.was_in_the_network(time);
                }
            }
        }
    }

    /// Counts probes without an answer in time as lost; pauses flows without a target.
    pub fn expire(&mut self, now: Instant) {
        for flow in &mut self.list {
            flow.counter.expire(now);
            if !flow.active && !flow.counter.is_pending() {
                flow.counter.rest();
            }
        }
    }

    /// Whether an answer may still come.
    pub fn is_pending(&self) -> bool {
        self.list.iter().any(|flow| flow.counter.is_pending())
    }

    /// All flows in the form of the report.
    pub fn report(&self) -> Vec<report::Flow> {
        self.list.iter().map(|flow| self.describe(flow)).collect()
    }

    fn describe(&self, flow: &Flow) -> report::Flow {
        let class = match (self.origin, flow.kind) {
            (Origin::Pod, Kind::Pod) => "pod-to-pod",
            (Origin::Pod, Kind::Connection) => "pod-to-pod-tcp",
            (Origin::Pod, Kind::Service) => "pod-to-service",
            (Origin::Pod, Kind::ServiceStream) => "pod-to-service-stream",
            (Origin::Pod, Kind::ServiceConnection) => "pod-to-service-tcp",
            (Origin::Pod, Kind::Name) => "pod-to-dns",
            (Origin::Host, Kind::Pod) => "host-to-pod",
            (Origin::Host, Kind::Connection) => "host-to-pod-tcp",
            (Origin::Host, Kind::Service) => "host-to-service",
            (Origin::Host, Kind::ServiceStream) => "host-to-service-stream",
            (Origin::Host, Kind::ServiceConnection) => "host-to-service-tcp",
            (Origin::Host, Kind::Name) => "host-to-dns",
        };
        let family = if flow.target.address.is_ipv6() {
            "-ipv6"
        } else {
            ""
        };
        report::Flow {
            class: format!("{class}{family}"),
            target: flow.target.name.clone(),
            address: flow.target.address.to_string(),
            node: flow.target.node.clone(),
            counts: flow.counter.counts(),
            outages: flow.counter.outages(),
            last_error: flow.last_error.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const LIMITS: Limits = Limits {
        interval: Duration::from_millis(10),
        timeout: Duration::from_millis(100),
        settle: Duration::ZERO,
    };

    fn target(name: &str) -> Target {
        Target {
            name: name.to_owned(),
            address: "10.0.0.1:7000".parse().unwrap(),
            node: None,
        }
    }

    #[test]
    fn a_removed_pod_gets_no_probes_but_keeps_its_counts() {
        let mut flows = Flows::new(Origin::Pod, LIMITS, true);
        let start = Instant::now();
        flows.set_service("echo", "10.96.0.9:7000".parse().unwrap());
        let mut connections = flows.set_pods(&BTreeSet::from([target("a"), target("b")]));
        assert_eq!((flows.due(false), flows.due(true)), (vec![0, 1, 3], vec![2, 4]));
        assert_eq!(
            connections.iter().map(|start| start.flow).collect::<Vec<_>>(),
            [2, 4]
        );
        flows.send(1, start, Timestamp::UNIX_EPOCH);
        assert!(
            flows.set_pods(&BTreeSet::from([target("b")])).is_empty(),
            "b has its connection"
        );
        assert_eq!((flows.due(false), flows.due(true)), (vec![0, 3], vec![4]));
        assert!(connections[0].probes.try_recv().is_err() && connections[0].probes.is_closed());
        flows.expire(start + Duration::from_secs(1));
        let report = flows.report();
        assert_eq!(
            (
                report[1].target.as_str(),
                report[1].counts.sent,
                report[1].counts.lost
            ),
            ("a", 1, 1)
        );
        let again = flows.set_pods(&BTreeSet::from([target("a"), target("b")]));
        assert_eq!(
            flows.due(false),
            [0, 1, 3],
            "the same pod continues the same flow"
        );
        assert_eq!(
            again.iter().map(|start| start.flow).collect::<Vec<_>>(),
            [2],
            "with a new connection"
        );
        assert_eq!(flows.report()[0].class, "pod-to-service");
        flows.set_service("echo", "[fd00:10:96::9]:7000".parse().unwrap());
        assert_eq!(flows.report().last().unwrap().class, "pod-to-service-ipv6");
    }

    #[test]
    fn a_held_service_has_one_stream_and_one_connection() {
        let mut flows = Flows::new(Origin::Host, LIMITS, true);
        let now = Instant::now();
        let start = flows.hold_service("echo", "10.96.0.9:7000".parse().unwrap());
        assert_eq!((flows.due(false), flows.due(true)), (vec![0], vec![1]));
        assert_eq!((start.flow, start.address.port()), (1, 7000));
        let (packet, _, kind) = flows.send(0, now, Timestamp::UNIX_EPOCH);
        let answer = Answer {
            packet,
            at: now,
            in_the_network: None,
        };
        flows.answered(&answer, Some("echo-1"));
        flows.broken(1, true, "reset".to_owned());
        let report = flows.report();
        assert_eq!(kind, Kind::ServiceStream);
        assert_eq!(
            report.iter().map(|flow| flow.class.as_str()).collect::<Vec<_>>(),
            ["host-to-service-stream", "host-to-service-tcp"]
        );
        assert_eq!(
            (report[0].counts.answered, report[0].counts.strays),
            (1, 0),
            "any pod may answer"
        );
        assert_eq!(report[1].counts.broken, 1);
    }

    #[test]
    fn a_name_is_queried_less_often() {
        let mut flows = Flows::new(Origin::Pod, LIMITS, true);
        flows.set_service("echo", "10.96.0.9:7000".parse().unwrap());
        flows.set_name(
            "echo.traffic.svc.cluster.local",
            "10.96.0.10:53".parse().unwrap(),
            3,
        );
        let due: Vec<Vec<usize>> = (0..6).map(|_| flows.due(false)).collect();
        assert_eq!(due, [vec![0], vec![0], vec![0, 1], vec![0], vec![0], vec![0, 1]]);
        assert_eq!(flows.report()[1].class, "pod-to-dns");
    }

    #[test]
    fn an_answer_of_another_pod_is_a_stray_and_leaves_the_probe_pending() {
        let mut flows = Flows::new(Origin::Host, LIMITS, true);
        let now = Instant::now();
        flows.set_pods(&BTreeSet::from([target("a")]));
        let (packet, ..) = flows.send(0, now, Timestamp::UNIX_EPOCH);
        let answer = |packet: Packet| Answer {
            packet,
            at: now,
            in_the_network: Some(Duration::from_micros(1700)),
        };
        flows.answered(&answer(packet), Some("z"));
        assert_eq!(
            (flows.report()[0].counts.strays, flows.report()[0].counts.pending),
            (1, 1)
        );
        flows.answered(&answer(packet), Some("a"));
        assert_eq!(
            (
                flows.report()[0].counts.answered,
                flows.report()[0].class.as_str()
            ),
            (1, "host-to-pod")
        );
        assert_eq!(flows.report()[0].counts.longest_in_network_us, 1700);
        flows.answered(&answer(Packet { flow: 9, number: 0 }), None);
    }

    #[test]
    fn a_connection_breaks_only_while_its_target_exists() {
        let mut flows = Flows::new(Origin::Pod, LIMITS, true);
        let mut connections = flows.set_pods(&BTreeSet::from([target("a")]));
        flows.send_over_connection(1, Instant::now(), Timestamp::UNIX_EPOCH);
        assert_eq!(
            connections[0].probes.try_recv(),
            Ok(Packet { flow: 1, number: 0 })
        );
        flows.broken(1, false, "refused".to_owned());
        flows.broken(1, true, "reset".to_owned());
        flows.set_pods(&BTreeSet::new());
        flows.broken(1, true, "ended".to_owned());
        let report = &flows.report()[1];
        assert_eq!(
            (report.class.as_str(), report.counts.broken),
            ("pod-to-pod-tcp", 1)
        );
        assert_eq!(report.last_error.as_deref(), Some("reset"));
    }
}
