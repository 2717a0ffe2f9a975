//! What Calico would do with the connections that nodes have seen, summed up by workload, port and policy. The number of sums is
//! bounded; what is beyond the bound is counted without a name.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::net::IpAddr;

use jiff::Timestamp;

use crate::cluster::Cluster;
use crate::conntrack::{Entry, Host, Observation, observe};
use crate::end::End;
use crate::evaluate::evaluate;
use crate::flow::{Flow, Protocol};
use crate::name::ObjectName;
use crate::verdict::{Direction, RefuseReason, UnknownReason, Verdict};

/// Connections of one kind, as a node has seen them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// One of them, in connection tracking.
    pub entry: Entry,
    /// The port of the server is known. Without it source and destination may be exchanged.
    pub has_port: bool,
    /// Their number, at most.
    pub count: u64,
    /// The number of these with a reply, at least.
    pub replied: u64,
    /// The time of the first one.
    pub first: Timestamp,
    /// The time of the last one.
    pub last: Timestamp,
}

/// Connections between two workloads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pair {
    /// The client.
    pub client: End,
    /// The server.
    pub server: End,
    /// The protocol.
    pub protocol: Protocol,
    /// The port of the server; `None` for a protocol without ports.
    pub port: Option<u16>,
}

/// Why connections would be refused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refusal {
    /// The direction in which they are dropped.
    pub direction: Direction,
    /// The policies that cause it; empty for a drop without any policy.
    pub policies: Vec<ObjectName>,
    /// The reason.
    pub why: RefuseReason,
}

/// Why the fate of connections is not known.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Doubt {
    /// The reason.
    pub why: UnknownReason,
    /// The objects that could not be evaluated.
    pub objects: Vec<ObjectName>,
}

/// A sum of connections with one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sum {
    /// Their number, at most.
    pub count: u64,
    /// The time of the last one.
    pub last: Timestamp,
    /// Client and server of one of them.
    pub example: (IpAddr, IpAddr),
}

/// Numbers of connections by verdict. A connection that two nodes see is counted by both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Calico lets them through.
    pub allowed: u64,
    /// Calico drops them.
    pub refused: u64,
    /// The facts do not decide.
    pub unknown: u64,
    /// TCP without an answer: they fail already, so they are not judged.
    pub unanswered: u64,
}

/// The sums.
#[derive(Clone, Debug)]
pub struct Tally {
    limit: usize,
    counts: Counts,
    refused: BTreeMap<(Pair, Refusal), Sum>,
    unknown: BTreeMap<Doubt, (Pair, Sum)>,
    /// Refused connections beyond the limit of sums.
    unnamed: BTreeMap<Refusal, u64>,
    /// Refused connections beyond the limit of `unnamed`.
    untold: u64,
}

enum Judged {
    /// Nothing that a policy could refuse.
    Nothing,
    /// TCP without a reply.
    Unanswered,
    Flow(Flow, Verdict),
}

impl Tally {
    /// An empty tally with at most so many sums of refused connections, and as many of unknown ones.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            counts: Counts::default(),
            refused: BTreeMap::new(),
            unknown: BTreeMap::new(),
            unnamed: BTreeMap::new(),
            untold: 0,
        }
    }

    /// Judges connections with the pods of their time, and adds them.
    pub fn add(&mut self, cluster: &Cluster, host: &Host, seen: &Seen) {
        let moment = cluster.at(seen.last);
        let judged = judge(&moment, host, seen);
        let (moment, judged) = settle(cluster, host, seen, moment, judged);
        match judged {
            Judged::Nothing => {}
            Judged::Unanswered => self.count_unanswered(seen.count),
            Judged::Flow(flow, verdict) => {
                // Of TCP, connections without an answer fail already.
                let count = if flow.protocol == Protocol::Tcp {
                    self.count_unanswered(seen.count.saturating_sub(seen.replied));
                    seen.replied
                } else {
                    seen.count
                };
                self.add_verdict(&moment, &flow, verdict, count, seen.last);
            }
        }
    }

    fn count_unanswered(&mut self, count: u64) {
        self.counts.unanswered = self.counts.unanswered.saturating_add(count);
    }

    fn add_verdict(&mut self, cluster: &Cluster, flow: &Flow, verdict: Verdict, count: u64, last: Timestamp) {
        let pair = || Pair {
            client: cluster.end(flow.source, &flow.node),
            server: cluster.end(flow.destination, &flow.node),
            protocol: flow.protocol,
            port: flow.port,
        };
        let sum = Sum {
            count,
            last,
            example: (flow.source, flow.destination),
        };
        match verdict {
            Verdict::Allowed { .. } => self.counts.allowed = self.counts.allowed.saturating_add(count),
            Verdict::Refused {
                direction,
                policies,
                why,
            } => {
                self.counts.refused = self.counts.refused.saturating_add(count);
                let refusal = Refusal {
                    direction,
                    policies,
                    why,
                };
                self.add_refused((pair(), refusal), sum);
            }
            Verdict::Unknown { why, objects } => {
                self.counts.unknown = self.counts.unknown.saturating_add(count);
                let doubt = Doubt { why, objects };
                if let Some((_, known)) = self.unknown.get_mut(&doubt) {
                    known.add(&sum);
                } else if self.unknown.len() < self.limit {
                    self.unknown.insert(doubt, (pair(), sum));
                }
            }
        }
    }

    fn add_refused(&mut self, key: (Pair, Refusal), sum: Sum) {
        if let Some(known) = self.refused.get_mut(&key) {
            known.add(&sum);
        } else if self.refused.len() < self.limit {
            self.refused.insert(key, sum);
        } else if let Some(count) = self.unnamed.get_mut(&key.1) {
            *count = count.saturating_add(sum.count);
        } else if self.unnamed.len() < self.limit {
            self.unnamed.insert(key.1, sum.count);
        } else {
            self.untold = self.untold.saturating_add(sum.count);
        }
    }

    /// Numbers by verdict.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Refused connections, the largest sum first.
    pub fn refused(&self) -> Vec<(&Pair, &Refusal, &Sum)> {
        let mut sums: Vec<_> = self
            .refused
            .iter()
            .map(|((pair, refusal), sum)| (pair, refusal, sum))
            .collect();
        sums.sort_by_key(|(.., sum)| Reverse(sum.count));
        sums
    }

    /// Connections whose fate is not known, by reason, with a pair of each; the largest sum first.
    pub fn unknown(&self) -> Vec<(&Doubt, &Pair, &Sum)> {
        let mut sums: Vec<_> = self
            .unknown
            .iter()
            .map(|(doubt, (pair, sum))| (doubt, pair, sum))
            .collect();
        sums.sort_by_key(|(.., sum)| Reverse(sum.count));
        sums
    }

    /// Refused connections that are in no sum, because there are too many sums: their number by reason, and the number of those
    /// without a reason, because there are too many reasons.
    pub fn unnamed(&self) -> (&BTreeMap<Refusal, u64>, u64) {
        (&self.unnamed, self.untold)
    }
}

impl Sum {
    fn add(&mut self, other: &Self) {
        self.count = self.count.saturating_add(other.count);
        self.last = self.last.max(other.last);
    }
}

fn judge(cluster: &Cluster, host: &Host, seen: &Seen) -> Judged {
    let unclear = |flow, why| {
        let objects = Vec::new();
        Judged::Flow(flow, Verdict::Unknown { why, objects })
    };
    match observe(cluster, host, &seen.entry) {
        Observation::Nothing => Judged::Nothing,
        Observation::WithoutReply(flow) if flow.protocol == Protocol::Tcp => Judged::Unanswered,
        Observation::Unclear { flow, why } => unclear(flow, why),
        // The port that was found is not one of the entry, unless the sides were exchanged.
        Observation::Connection(flow) | Observation::WithoutReply(flow)
            if !seen.has_port && flow.source == seen.entry.original.source =>
        {
            unclear(flow, UnknownReason::AmbiguousDirection)
        }
        Observation::Connection(flow) | Observation::WithoutReply(flow) => {
            let verdict = evaluate(cluster, &flow);
            Judged::Flow(flow, verdict)
        }
    }
}

/// The verdict with the pods of the first and of the last moment, where these are not the same.
fn settle(cluster: &Cluster, host: &Host, seen: &Seen, last: Cluster, at_last: Judged) -> (Cluster, Judged) {
    let first = cluster.at(seen.first);
    let ends = [seen.entry.original.source, seen.entry.reply.source];
    if ends.iter().all(|address| first.has_same_holders(&last, *address)) {
        return (last, at_last);
    }
    let Judged::Flow(flow, of_last) = at_last else {
        return (last, at_last);
    };
    let (first_flow, of_first) = match judge(&first, host, seen) {
        Judged::Flow(flow, verdict) => (flow, verdict),
        Judged::Nothing | Judged::Unanswered => return (last, Judged::Flow(flow, of_last)),
    };
    let has_no_pod = |verdict: &Verdict| matches!(verdict, Verdict::Unknown { why, .. } if *why == UnknownReason::AddressWithoutPod);
    if of_first == of_last && flow == first_flow {
        let is_known = |address: IpAddr| last.end(address, &flow.node) != End::Unknown;
        let moment = if is_known(flow.source) && is_known(flow.destination) {
            last
        } else {
            first
        };
        return (moment, Judged::Flow(flow, of_last));
    }
    // Connection tracking remembers a connection after the end of its pod.
    if has_no_pod(&of_last) && !has_no_pod(&of_first) {
        return (first, Judged::Flow(first_flow, of_first));
    }
    let verdict = Verdict::Unknown {
        why: UnknownReason::AddressReused,
        objects: Vec::new(),
    };
    (last, Judged::Flow(flow, verdict))
}

#[cfg(test)]
mod tests;
