//! What was seen of connections since the first complete reading. Its memory is bounded by the capacity of the `ConnectionSample` and
//! by the number of connections that are remembered. Pure: time comes in with each observation.

use std::cmp::Reverse;
use std::net::IpAddr;

use api::connection_sample::{
    ConnectionSampleSpec, ConnectionSampleStatus, MAX_CAPACITY, PortRange, SeenConnection,
};
use engine::words;
use jiff::Timestamp;
use policy::sketch::{Coverage, Entry, Sample as Observation, Sketch};

use super::kind::{ConnectionKind, SampledAddresses, ServerPort, kind};
use super::known::{KnownConnections, MOST, Sighting};
use crate::host::netlink::conntrack::TrackedConnection;

/// Bytes of a text of the status.
const TEXT: usize = 1024;

/// What was seen.
#[derive(Debug)]
pub struct Sample {
    kinds: Sketch<ConnectionKind, ()>,
    capacity: usize,
    known: KnownConnections,
    spec: SampledAddresses,
    /// Those of the spec, and those that it had since the last complete reading began: each address takes part in one reading at
    /// least, however soon its pod ends.
    addresses: SampledAddresses,
    client_ports: Option<PortRange>,
    since: Option<Timestamp>,
    last: Option<Timestamp>,
    problem: Option<String>,
    gaps: Gaps,
    families: Families,
}

/// Families of which a connection was seen, of any host or pod.
#[derive(Debug, Default)]
struct Families {
    has_ipv4: bool,
    has_ipv6: bool,
}

/// Times in which connections may have ended unseen.
#[derive(Debug, Default)]
struct Gaps {
    count: u64,
    /// The last one, and its reason.
    last: Option<(Timestamp, String)>,
    /// More connections were open than are remembered.
    is_forgetful: bool,
}

fn capacity(spec: &ConnectionSampleSpec) -> usize {
    spec.capacity.clamp(1, MAX_CAPACITY) as usize
}

impl Sample {
    /// Nothing was seen.
    pub fn new(spec: &ConnectionSampleSpec) -> Self {
        Self {
            kinds: Sketch::new(capacity(spec)),
            capacity: capacity(spec),
            known: KnownConnections::new(MOST),
            spec: SampledAddresses::of(spec),
            addresses: SampledAddresses::of(spec),
            client_ports: None,
            since: None,
            last: None,
            problem: None,
            gaps: Gaps::default(),
            families: Families::default(),
        }
    }

    /// The spec has changed. What was seen of an address that it does not have any more stays: its pod made these connections.
    pub fn set(&mut self, spec: &ConnectionSampleSpec) {
        self.spec = SampledAddresses::of(spec);
        self.addresses.add(spec);
        if self.capacity != capacity(spec) {
            self.capacity = capacity(spec);
            let mut kinds = Sketch::new(self.capacity);
            kinds.merge(&self.kinds);
            self.kinds = kinds;
        }
    }

    /// A reading begins.
    pub fn begin(&mut self, client_ports: PortRange) {
        self.client_ports = Some(client_ports);
        self.known.begin();
    }

    /// The reading has ended: at this time it was complete, or for this reason it was not.
    pub fn end(&mut self, outcome: Result<Timestamp, String>) {
        self.known.end(outcome.is_ok());
        match outcome {
            Ok(at) => {
                self.since.get_or_insert(at);
                self.last = Some(at);
                self.problem = None;
                self.addresses = self.spec.clone();
            }
            Err(why) => self.problem = Some(words::cut(&why, TEXT).into_owned()),
        }
    }

    /// A connection that is open.
    pub fn see(&mut self, connection: &TrackedConnection, at: Timestamp) {
        if let Some(kind) = self.sampled(connection) {
            let sighting = self.known.see(connection);
            self.count(kind, sighting, connection.is_replied, at);
        }
    }

    /// A connection that has ended, in its last state.
    pub fn see_end(&mut self, connection: &TrackedConnection, at: Timestamp) {
        if let Some(kind) = self.sampled(connection) {
            let sighting = self.known.see_end(connection);
            self.count(kind, sighting, connection.is_replied, at);
        }
    }

    /// Connections may have ended unseen, for this reason.
    pub fn miss(&mut self, at: Timestamp, why: &str) {
        self.gaps.count += 1;
        self.gaps.last = Some((at, words::cut(why, TEXT / 2).into_owned()));
    }

    /// The kind of a connection; `None` if connections of this kind are not sampled.
    fn sampled(&mut self, connection: &TrackedConnection) -> Option<ConnectionKind> {
        match connection.original.source {
            IpAddr::V4(_) => self.families.has_ipv4 = true,
            IpAddr::V6(_) => self.families.has_ipv6 = true,
        }
        let client_ports = self.client_ports?;
        let kind = kind(connection, client_ports);
        self.addresses.have(&kind, client_ports).then_some(kind)
    }

    fn count(&mut self, kind: ConnectionKind, sighting: Sighting, is_replied: bool, at: Timestamp) {
        let is_there = sighting != Sighting::First
            && self
                .kinds
                .observe_again(&kind, at, sighting == Sighting::FirstReply);
        let counts = match sighting {
            Sighting::First => true,
            Sighting::FirstReply | Sighting::Again => false,
            // The kind is not missed. The connection counts when it ends.
            Sighting::Unknown => {
                self.gaps.is_forgetful = true;
                !is_there
            }
        };
        if counts {
            let example = ();
            self.kinds.observe(
                kind,
                Observation {
                    at,
                    is_replied,
                    example,
                },
            );
        }
    }

    /// The number of kinds.
    pub fn kinds(&self) -> usize {
        self.kinds.find(|_| true).entries.len()
    }

    /// How often a kind was replaced by another one, because of the capacity.
    pub fn replaced(&self) -> u64 {
        match self.kinds.coverage() {
            Coverage::Complete => 0,
            Coverage::Incomplete { replaced } => replaced,
        }
    }

    /// Why connections may be missing although the readings were complete.
    fn limitation(&self) -> Option<String> {
        let of_families = self.last.and_then(|_| self.families.text(&self.spec));
        let texts: Vec<String> = self.gaps.texts().chain(of_families).collect();
        (!texts.is_empty()).then(|| texts.join("; "))
    }

    /// What the agent reports.
    pub fn status(&self) -> ConnectionSampleStatus {
        let mut seen = self.kinds.find(|_| true).entries;
        // Equal counts in the order of their kinds: the same sample gives the same status.
        seen.sort_by_key(|(kind, entry)| (Reverse(entry.count), **kind));
        ConnectionSampleStatus {
            since: self.since,
            last: self.last,
            problem: self.problem.clone(),
            limitation: self.limitation(),
            replaced: self.replaced(),
            client_ports: self.client_ports,
            connections: seen
                .into_iter()
                .map(|(kind, entry)| seen_connection(kind, entry))
                .collect(),
        }
    }
}

impl Families {
    /// Why connections of a family with sampled addresses may be missing: rules of the firewall turn tracking on for each family.
    fn text(&self, sampled: &SampledAddresses) -> Option<String> {
        let (has_ipv4, has_ipv6) = sampled.families();
        let untracked = [
            ("IPv4", has_ipv4 && !self.has_ipv4),
            ("IPv6", has_ipv6 && !self.has_ipv6),
        ];
        let (family, _) = untracked.into_iter().find(|(_, is_untracked)| *is_untracked)?;
        Some(format!(
            "no {family} connection was seen on the host, not even of another pod: its firewall may not track them"
        ))
    }
}

impl Gaps {
    fn texts(&self) -> impl Iterator<Item = String> {
        let gaps = self.last.as_ref().map(|(at, why)| {
            format!(
                "connections that began and ended between two readings may be missing: {}, the last one at {at}: {why}",
                words::number(self.count, "gap", "gaps")
            )
        });
        let forgets = self.is_forgetful.then(|| {
            format!("more than {MOST} connections of the pods were open, so that counts may be too small")
        });
        gaps.into_iter().chain(forgets)
    }
}

fn seen_connection(kind: &ConnectionKind, entry: &Entry<()>) -> SeenConnection {
    let (source_port, port) = match kind.port {
        ServerPort::None => (None, None),
        ServerPort::OfReceiver(port) => (None, Some(port)),
        ServerPort::OfSender(port) => (Some(port), None),
    };
    SeenConnection {
        protocol: kind.protocol,
        source: kind.source,
        source_port,
        destination: kind.destination,
        port,
        is_translated: kind.is_translated,
        count: entry.count,
        replied: entry.replied,
        first: entry.first,
        last: entry.last,
    }
}

#[cfg(test)]
mod tests;
