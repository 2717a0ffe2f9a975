//! The preview of network policies: which policies begin to hold, and what they would do with the connections that agents have
//! seen. The coordinator reads and sums up; this is the result.

use std::collections::BTreeMap;

use engine::words::cut;
use jiff::Timestamp;
use policy::dormant::{Dormant, Selected};
use policy::tally::{Pair, Refusal, Sum};
use policy::{End, ObjectName, Tally};

use crate::policy_preview::{
    DormantPolicy, PolicyPreview, PolicyPreviewStatus, PreviewCounts, RefusedConnections, UnknownConnections,
};

/// The most policies in a status.
const POLICIES: usize = 30;
/// The most kinds of refused connections in a status.
const REFUSED: usize = 20;
/// The most reasons in a status.
const UNKNOWN: usize = 5;
/// The most nodes in a status.
const NODES: usize = 10;
/// The most policies of a refusal in a status.
const POLICIES_OF_A_REFUSAL: usize = 3;
/// The most lists that were not read in a status, and the most bytes of each error.
const UNREAD: usize = 5;
const ERROR_BYTES: usize = 512;

/// What is known of the network policies that begin to hold.
#[derive(Clone, Debug, Default)]
pub struct Preview {
    /// Lists that could not be read, each with its error. The rest is not known then.
    pub unread: Vec<String>,
    /// The number of policies that were left out, because there are too many.
    pub unjudged: usize,
    /// Policies that begin to hold, those with the most pods first, not all of them.
    pub dormant: Vec<Dormant>,
    /// The number of policies that begin to hold.
    pub policies: usize,
    /// The number of pods that at least one of them may restrict.
    pub selected_pods: usize,
    /// What was observed; `None` before the first samples are read.
    pub observation: Option<Observation>,
}

/// Connections that the agents have seen.
#[derive(Clone, Debug)]
pub struct Observation {
    /// The time since which connections are observed.
    pub since: Option<Timestamp>,
    /// Nodes with pods that policies may restrict, by name.
    pub nodes: BTreeMap<String, NodeObservation>,
    /// The connections.
    pub tally: Tally,
    /// The number of kinds of connections that are at most missing.
    pub missing: u64,
}

/// The observation of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeObservation {
    /// For how many seconds its connections are observed; `None` before its agent has reported.
    pub seconds: Option<u64>,
    /// How many seconds after the first node it was asked to observe.
    pub later_by: u64,
    /// Why its connections cannot be observed.
    pub problem: Option<String>,
}

/// Whether a node has been observed for long enough.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Completeness<'preview> {
    /// It has.
    Complete,
    /// It has not: the number of seconds so far.
    Short(u64),
    /// Its connections cannot be observed.
    Impossible(&'preview str),
}

impl NodeObservation {
    /// Whether the node has been observed for this time. A node that was asked in the second half of that time only has to report:
    /// pods come and go, and the observation would never end.
    pub fn completeness(&self, needed: u64) -> Completeness<'_> {
        if let Some(problem) = &self.problem {
            return Completeness::Impossible(problem);
        }
        match self.seconds {
            None => Completeness::Short(0),
            Some(seconds) if seconds < needed && self.later_by <= needed / 2 => Completeness::Short(seconds),
            Some(_) => Completeness::Complete,
        }
    }
}

impl Observation {
    /// The shortest time that a node was observed, of those that were asked from the start.
    pub fn seconds(&self, needed: u64) -> u64 {
        let from_the_start = self.nodes.values().filter(|node| node.later_by <= needed / 2);
        from_the_start
            .map(|node| node.seconds.unwrap_or_default())
            .min()
            .unwrap_or_default()
    }

    /// The shortest time that any node was observed.
    pub fn shortest(&self) -> u64 {
        let nodes = self.nodes.values();
        nodes
            .map(|node| node.seconds.unwrap_or_default())
            .min()
            .unwrap_or_default()
    }

    /// Nodes that have not been observed for long enough.
    pub fn incomplete(&self, needed: u64) -> impl Iterator<Item = (&str, Completeness<'_>)> {
        let nodes = self.nodes.iter();
        nodes
            .map(move |(name, node)| (name.as_str(), node.completeness(needed)))
            .filter(|(_, completeness)| *completeness != Completeness::Complete)
    }
}

/// The name with which a user accepts what the policy refuses: `shop/db`, and `deny-all` for a policy of the whole cluster.
pub fn accepted_name(policy: &ObjectName) -> String {
    match &policy.namespace {
        Some(namespace) => format!("{namespace}/{}", policy.name),
        None => policy.name.to_string(),
    }
}

impl PolicyPreview {
    /// Whether the user accepts this refusal: each of its policies is named. A drop without any policy has no name.
    pub fn accepts(&self, refusal: &Refusal) -> bool {
        let is_named = |policy: &ObjectName| {
            self.accepted_denials
                .iter()
                .any(|name| *name == accepted_name(policy))
        };
        !refusal.policies.is_empty() && refusal.policies.iter().all(is_named)
    }
}

/// `shop/web → shop/db:5432 TCP`.
pub fn connection(pair: &Pair, sum: &Sum) -> String {
    let (client, server) = ends(pair, sum);
    let protocol = pair.protocol.name();
    match pair.port {
        Some(port) => format!("{client} → {server}:{port} {protocol}"),
        None => format!("{client} → {server} {protocol}"),
    }
}

fn ends(pair: &Pair, sum: &Sum) -> (String, String) {
    let (client, server) = sum.example;
    let name = |end: &End, address| end.with(address).to_string();
    (name(&pair.client, client), name(&pair.server, server))
}

impl Preview {
    /// The preview in the status of the Migration.
    pub fn status(&self, spec: &PolicyPreview) -> PolicyPreviewStatus {
        let mut status = PolicyPreviewStatus {
            policies: count(self.policies),
            dormant_policies: self.dormant.iter().take(POLICIES).map(dormant).collect(),
            selected_pods: count(self.selected_pods),
            unread: self
                .unread
                .iter()
                .take(UNREAD)
                .map(|error| cut(error, ERROR_BYTES).into_owned())
                .collect(),
            ..PolicyPreviewStatus::default()
        };
        let Some(observation) = self.observation.as_ref().filter(|_| spec.observe_seconds > 0) else {
            return status;
        };
        let needed = u64::from(spec.observe_seconds);
        let tally = &observation.tally;
        let counts = tally.counts();
        let refused = tally.refused();
        let unknown = tally.unknown();
        let incomplete: Vec<&str> = observation.incomplete(needed).map(|(name, _)| name).collect();
        status.since = observation.since;
        status.observed_seconds = observation.seconds(needed);
        status.connections = PreviewCounts {
            allowed: counts.allowed,
            refused: counts.refused,
            unknown: counts.unknown,
            unanswered: counts.unanswered,
        };
        status.refused_kinds = count(refused.len());
        status.refused = refused
            .into_iter()
            .take(REFUSED)
            .map(|(pair, refusal, sum)| refused_connections(spec, pair, refusal, sum))
            .collect();
        status.unknown = unknown
            .into_iter()
            .take(UNKNOWN)
            .map(|(doubt, pair, sum)| UnknownConnections {
                reason: doubt.why.as_str().to_owned(),
                count: sum.count,
                example: connection(pair, sum),
            })
            .collect();
        status.missing_kinds = observation.missing;
        status.incomplete_node_count = count(incomplete.len());
        status.incomplete_nodes = incomplete.into_iter().take(NODES).map(str::to_owned).collect();
        status
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The number of pods that a policy selects, in the direction with more of them; `None` if it is not known.
pub fn selected(policy: &Dormant) -> Option<usize> {
    let mut most = 0;
    for selected in [policy.ingress, policy.egress].into_iter().flatten() {
        match selected {
            Selected::Pods(pods) => most = most.max(pods),
            Selected::Unknown(_) => return None,
        }
    }
    Some(most)
}

fn dormant(policy: &Dormant) -> DormantPolicy {
    DormantPolicy {
        policy: policy.object.to_string(),
        pods: selected(policy).map(count),
        ingress: policy.ingress.is_some(),
        egress: policy.egress.is_some(),
    }
}

fn refused_connections(
    spec: &PolicyPreview,
    pair: &Pair,
    refusal: &Refusal,
    sum: &Sum,
) -> RefusedConnections {
    let (client, server) = ends(pair, sum);
    RefusedConnections {
        client,
        server,
        protocol: pair.protocol.name(),
        port: pair.port,
        direction: refusal.direction.as_str().to_owned(),
        policies: refusal
            .policies
            .iter()
            .take(POLICIES_OF_A_REFUSAL)
            .map(ToString::to_string)
            .collect(),
        policy_count: count(refusal.policies.len()),
        reason: refusal.why.as_str().to_owned(),
        count: sum.count,
        last: sum.last,
        is_accepted: spec.accepts(refusal),
    }
}
