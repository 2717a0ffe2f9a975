//! The flows of one prober: one to the Service, one to each pod that there is or was.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::Origin;
use super::count::Counter;
use super::targets::Target;
use crate::packet::Packet;
use crate::report;

/// What is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One pod.
    Pod,
    /// A Service: any of its pods.
    Service,
}

#[derive(Debug)]
struct Flow {
    kind: Kind,
    target: Target,
    counter: Counter,
    active: bool,
    last_error: Option<String>,
}

/// All flows. A flow is known by its place in the list, which never changes.
#[derive(Debug)]
pub struct Flows {
    origin: Origin,
    timeout: Duration,
    list: Vec<Flow>,
}

impl Flows {
    /// None yet.
    pub fn new(origin: Origin, timeout: Duration) -> Self {
        Self {
            origin,
            timeout,
            list: Vec::new(),
        }
    }

    /// Asks the Service from now on.
    pub fn set_service(&mut self, name: &str, address: SocketAddr) {
        self.begin(
            Kind::Service,
            Target {
                name: name.to_owned(),
                address,
                node: None,
            },
        );
    }

    /// Asks these pods from now on, and no others.
    pub fn set_pods(&mut self, targets: &BTreeSet<Target>) {
        for flow in self.list.iter_mut().filter(|flow| flow.kind == Kind::Pod) {
            flow.active = targets.contains(&flow.target);
        }
        for target in targets {
            if !self
                .list
                .iter()
                .any(|flow| flow.kind == Kind::Pod && flow.target == *target)
            {
                self.begin(Kind::Pod, target.clone());
            }
        }
    }

    fn begin(&mut self, kind: Kind, target: Target) {
        self.list.push(Flow {
            kind,
            target,
            counter: Counter::new(self.timeout),
            active: true,
            last_error: None,
        });
    }

    /// Asks nobody any more.
    pub fn stop(&mut self) {
        for flow in &mut self.list {
            flow.active = false;
        }
    }

    /// The flows that are asked.
    pub fn active(&self) -> Vec<usize> {
        (0..self.list.len())
            .filter(|index| self.list[*index].active)
            .collect()
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

    /// Notes why a probe could not leave; it is lost in time.
    pub fn sent(&mut self, index: usize, error: Option<std::io::Error>) {
        if let Some(error) = error {
            self.list[index].last_error = Some(error.to_string());
        }
    }

    /// An answer, and who gave it if that matters.
    pub fn answered(&mut self, packet: Packet, by: Option<&str>, now: Instant) {
        let Some(flow) = usize::try_from(packet.flow)
            .ok()
            .and_then(|index| self.list.get_mut(index))
        else {
            return;
        };
        match by {
            Some(name) if name != flow.target.name => flow.counter.stray(),
            _ => flow.counter.answer(packet.number, now),
        }
    }

    /// Counts as lost what has waited too long; lets those rest that are asked no more.
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

    /// All flows as the report has them.
    pub fn report(&self) -> Vec<report::Flow> {
        self.list.iter().map(|flow| self.describe(flow)).collect()
    }

    fn describe(&self, flow: &Flow) -> report::Flow {
        let class = match (self.origin, flow.kind) {
            (Origin::Pod, Kind::Pod) => "pod-to-pod",
            (Origin::Pod, Kind::Service) => "pod-to-service",
            (Origin::Host, Kind::Pod) => "host-to-pod",
            (Origin::Host, Kind::Service) => "host-to-service",
        };
        report::Flow {
            class: class.to_owned(),
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

    fn target(name: &str) -> Target {
        Target {
            name: name.to_owned(),
            address: "10.0.0.1:7000".parse().unwrap(),
            node: None,
        }
    }

    #[test]
    fn a_pod_that_is_no_target_any_more_is_not_asked_but_keeps_its_figures() {
        let mut flows = Flows::new(Origin::Pod, Duration::from_millis(100));
        let start = Instant::now();
        flows.set_service("echo", "10.96.0.9:7000".parse().unwrap());
        flows.set_pods(&BTreeSet::from([target("a"), target("b")]));
        assert_eq!(flows.active(), [0, 1, 2]);
        flows.send(1, start, Timestamp::UNIX_EPOCH);
        flows.set_pods(&BTreeSet::from([target("b")]));
        assert_eq!(flows.active(), [0, 2]);
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
        flows.set_pods(&BTreeSet::from([target("a"), target("b")]));
        assert_eq!(flows.active(), [0, 1, 2], "the same pod goes on in the same flow");
        assert_eq!(flows.report()[0].class, "pod-to-service");
    }

    #[test]
    fn an_answer_by_another_pod_is_a_stray_and_leaves_the_probe_pending() {
        let mut flows = Flows::new(Origin::Host, Duration::from_millis(100));
        let now = Instant::now();
        flows.set_pods(&BTreeSet::from([target("a")]));
        let (packet, ..) = flows.send(0, now, Timestamp::UNIX_EPOCH);
        flows.answered(packet, Some("z"), now);
        assert_eq!(
            (flows.report()[0].counts.strays, flows.report()[0].counts.pending),
            (1, 1)
        );
        flows.answered(packet, Some("a"), now);
        assert_eq!(
            (
                flows.report()[0].counts.answered,
                flows.report()[0].class.as_str()
            ),
            (1, "host-to-pod")
        );
        flows.answered(Packet { flow: 9, number: 0 }, None, now);
    }
}
